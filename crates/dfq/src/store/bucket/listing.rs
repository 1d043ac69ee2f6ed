//! Listings as they come from the server, without keys that cannot be part of a queue.
//!
//! A bucket may hold anything: `a//b`, `a/./b`, a control character. The client below refuses a whole page
//! for one such key. So they are left out before it sees them, and said to have been.

use bytes::Bytes;
use object_store::path::Path;

/// The elements of a listing that have a name, and the element that holds it.
const NAMED: [(&str, &str); 2] = [("Contents", "Key"), ("CommonPrefixes", "Prefix")];

/// The same listing without what cannot be ours.
pub(crate) fn without_foreign_keys(body: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&body) else { return body };
    let mut kept = None;
    for (element, name) in NAMED {
        if let Some(less) = without(kept.as_deref().unwrap_or(text), element, name) {
            kept = Some(less);
        }
    }
    kept.map_or(body.clone(), Bytes::from)
}

/// `None` if nothing was left out.
fn without(listing: &str, element: &str, name: &str) -> Option<String> {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let (mut kept, mut rest, mut foreign) = (String::new(), listing, 0);
    while let Some(begin) = rest.find(&open) {
        let Some(length) = rest[begin..].find(&close) else { break };
        let end = begin + length + close.len();
        let key = inside(&rest[begin..end], name).unwrap_or_default();
        if can_be_ours(&key) {
            kept.push_str(&rest[..end]);
        } else {
            kept.push_str(&rest[..begin]);
            foreign += 1;
            tracing::warn!(key, "a key that cannot be part of a queue is left alone");
        }
        rest = &rest[end..];
    }
    kept.push_str(rest);
    (foreign > 0).then_some(kept)
}

fn inside(element: &str, name: &str) -> Option<String> {
    let (_, rest) = element.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(unescape(text))
}

/// Names of characters in XML, as servers write them.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        let Some((name, after)) = rest[at + 1..].split_once(';') else { break };
        plain.push_str(&rest[..at]);
        let number =
            name.strip_prefix('#').and_then(|number| match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => number.parse().ok(),
            });
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => number.and_then(char::from_u32).unwrap_or('\u{FFFD}'),
        });
        rest = after;
    }
    plain.push_str(rest);
    plain
}

fn can_be_ours(key: &str) -> bool {
    let key = key.strip_suffix('/').unwrap_or(key);
    let odd = |part: &str| matches!(part, "" | "." | "..");
    !key.contains(char::is_control) && !key.split('/').any(odd) && Path::parse(key).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&str]) -> String {
        let each =
            keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"));
        format!(
            "<ListBucketResult>{}<KeyCount>9</KeyCount></ListBucketResult>",
            each.collect::<String>()
        )
    }

    #[test]
    fn foreign_keys_are_left_out() {
        let good = ["q/pending/ca/a/task.json", "q/pending/ca/%C3%BC&amp;x/task.json", "q/a b"];
        let all = page(&[
            good[0],
            "q/pending//x",
            good[1],
            "q/./x",
            "q/a&#x1;b",
            "/q",
            good[2],
            "q/../x",
        ]);
        assert_eq!(without_foreign_keys(Bytes::from(all)), page(&good));
        let untouched = Bytes::from(page(&good));
        assert_eq!(without_foreign_keys(untouched.clone()), untouched);
        let folders = "<CommonPrefixes><Prefix>q//</Prefix></CommonPrefixes>\
                       <CommonPrefixes><Prefix>q/a/</Prefix></CommonPrefixes>";
        let left = without_foreign_keys(Bytes::from(folders));
        assert_eq!(left, "<CommonPrefixes><Prefix>q/a/</Prefix></CommonPrefixes>");
    }
}
