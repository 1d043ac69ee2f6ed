//! What only a bucket has: compare-and-swap by `If-Match`, conditional DELETE, versions, lifecycle
//! rules.

use std::time::Duration;

use super::verdict::{Check, Outcome, Promise};
use crate::error::{ErrorKind, Result};
use crate::layout;
use crate::model::Verdict;
use crate::store::ObjectsExt as _;
use crate::store::bucket::{Bucket, Raw, RawAnswer};

/// In which form an ETag has to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EtagForm {
    /// As the server told it, in quotes.
    Quoted,
    /// Without them.
    Bare,
}

impl EtagForm {
    pub(super) fn of(self, etag: &str) -> String {
        match self {
            Self::Quoted => format!("\"{}\"", etag.trim_matches('"')),
            Self::Bare => etag.trim_matches('"').to_owned(),
        }
    }
}

/// How often something is asked that got no answer.
const TRIES: usize = 5;

/// Asks again what got no answer; whatever it wrote is written anew.
pub(super) async fn patiently<R, F>(mut ask: impl FnMut() -> F) -> Result<R>
where
    F: Future<Output = Result<R>>,
{
    for _ in 1..TRIES {
        match ask().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            answer => return answer,
        }
    }
    ask().await
}

const SWAP: &str = "If-Match";

/// Whether `If-Match` is honoured, and in which form.
pub(super) async fn if_match(raw: &Raw, scratch: &str) -> Result<Check> {
    let path = layout::below(scratch, "if-match");
    let mut etag = raw.put(&path, b"0").await?.etag.unwrap_or_default();
    if etag.is_empty() {
        let check = Check::breaks(SWAP, "a write is answered without an ETag", &[Promise::Index]);
        return Ok(check);
    }
    let mut works = Vec::new();
    for (number, form) in [EtagForm::Quoted, EtagForm::Bare].into_iter().enumerate() {
        // The ETag of something else: nothing may be written.
        let other = form.of("00000000000000000000000000000000");
        let wrong = raw.put_if_match(&path, &other, b"wrong").await?;
        if wrong.status.is_success() {
            let detail = "ignored: an object was replaced though its ETag was another";
            return Ok(Check::breaks(SWAP, detail, &[Promise::Index]));
        }
        let content = format!("{number} of {}", etag.trim_matches('"'));
        let right = raw.put_if_match(&path, &form.of(&etag), content.as_bytes()).await?;
        if right.status.is_success() {
            etag = right.etag.unwrap_or_default();
            works.push(form);
        }
    }
    Ok(match works[..] {
        [] => Check::breaks(SWAP, "the right ETag is refused", &[Promise::Index]),
        [EtagForm::Bare] => {
            let detail = "the right ETag is refused in quotes and taken without them";
            Check::note(SWAP, detail).meaning(Promise::Index, Verdict::Safe, None)
        }
        _ => {
            let detail = match works.len() {
                1 => "honoured, the ETag in quotes",
                _ => "honoured, the ETag with and without quotes",
            };
            Check::yes(SWAP, detail)
        }
    })
}

/// Whether a DELETE with `If-Match` looks at it. The queue never relies on that.
pub(super) async fn conditional_delete(bucket: &Bucket, raw: &Raw, scratch: &str) -> Result<Check> {
    const NAME: &str = "conditional delete";
    let path = layout::below(scratch, "if-match-delete");
    raw.put(&path, b"kept").await?;
    let other = EtagForm::Quoted.of("00000000000000000000000000000000");
    let answer = raw.delete_if_match(&path, &other).await?;
    let gone = bucket.read(&path).await?.is_none();
    Ok(match answer.status.as_u16() {
        200..=299 if gone => {
            Check::note(NAME, "ignored: deletes anyway; the queue does not need it")
        }
        412 => Check::yes(NAME, "honoured; the queue does not need it"),
        status => Check::note(NAME, format!("answered {status}; the queue does not need it")),
    })
}

/// Whether overwritten and deleted objects stay.
pub(super) async fn versioning(raw: &Raw) -> Result<Check> {
    const NAME: &str = "versioning";
    let answer = raw.ask_bucket("versioning=").await?;
    Ok(match untold(NAME, &answer) {
        Some(untold) => untold,
        None if element(&answer.body, "Status") == Some("Enabled") => Check::note(
            NAME,
            "on: every version of every lease and task is kept and charged for; let a lifecycle rule \
             remove noncurrent versions",
        ),
        None => Check::yes(NAME, "off"),
    })
}

/// Whether the bucket removes or archives objects by itself, where the queue is.
pub(super) async fn lifecycle(raw: &Raw) -> Result<Check> {
    const NAME: &str = "lifecycle rules";
    let answer = raw.ask_bucket("lifecycle=").await?;
    if answer.status.as_u16() == 404 {
        return Ok(Check::yes(NAME, "none"));
    }
    if let Some(untold) = untold(NAME, &answer) {
        return Ok(untold);
    }
    Ok(match harm(&answer.body, raw.prefix()) {
        None => Check::yes(NAME, "none that removes or archives tasks here"),
        Some(harm) => {
            let detail = format!("{harm}, tasks that still wait among them");
            Check::new(NAME, Outcome::No, detail).meaning(
                Promise::AtLeastOnce,
                Verdict::Degraded,
                None,
            )
        }
    })
}

/// The server does not say; which is nothing against it.
fn untold(name: &'static str, answer: &RawAnswer) -> Option<Check> {
    match answer.status.as_u16() {
        200..=299 => None,
        401 | 403 => Some(Check::new(name, Outcome::Unknown, "not allowed to ask")),
        status => Some(Check::new(name, Outcome::Unknown, format!("the server answers {status}"))),
    }
}

/// What the first rule in force does to tasks of a queue at this prefix, or to its settings. That finished records go
/// by their age may well be wanted.
fn harm(document: &str, prefix: &str) -> Option<String> {
    let ours = [
        layout::below(layout::PENDING, ""),
        layout::below(layout::SCHEDULED, ""),
        layout::SETTINGS.to_owned(),
    ];
    let ours = ours.map(|name| format!("{prefix}{name}"));
    let mut rest = document;
    while let Some((_, after)) = rest.split_once("<Rule>") {
        let (rule, behind) = after.split_once("</Rule>").unwrap_or((after, ""));
        rest = behind;
        let at = element(rule, "Prefix").unwrap_or_default();
        let concerns_us = ours.iter().any(|name| name.starts_with(at) || at.starts_with(name));
        if !concerns_us || element(rule, "Status") != Some("Enabled") {
            continue;
        }
        let what = match archives(rule) {
            _ if removes(rule) => "removes objects by their age".to_owned(),
            Some(class) => {
                format!("moves objects to {class} by their age, where nobody can read them")
            }
            None => continue,
        };
        let rule = match element(rule, "ID") {
            Some(id) => format!("the rule '{id}'"),
            None => "a rule without a name".to_owned(),
        };
        return Some(format!("{rule} {what}"));
    }
    None
}

/// It expires current objects, not only old versions or what is left of deleted ones.
fn removes(rule: &str) -> bool {
    element(rule, "Expiration")
        .is_some_and(|expiration| expiration.contains("<Days>") || expiration.contains("<Date>"))
}

/// The storage class to which it moves current objects, if they have to be restored before they can be read.
fn archives(rule: &str) -> Option<&'static str> {
    let classes =
        rule.split("<Transition>").skip(1).filter_map(|part| element(part, "StorageClass"));
    let mut archives = classes.filter_map(|class| {
        ["GLACIER", "DEEP_ARCHIVE"].into_iter().find(|archive| *archive == class)
    });
    archives.next()
}

/// The content of the first element of this name.
fn element<'a>(document: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = document.split_once(&format!("<{name}>"))?;
    after.split_once(&format!("</{name}>")).map(|(content, _)| content)
}

/// How finely listings tell times: to the millisecond, or whole seconds.
pub(super) async fn listed_resolution(raw: &Raw, scratch: &str) -> Duration {
    let prefix = format!("{}{scratch}/", raw.prefix()).replace('/', "%2F");
    let listed = raw.ask_bucket(&format!("list-type=2&max-keys=100&prefix={prefix}")).await;
    let body = listed.map(|answer| answer.body).unwrap_or_default();
    let mut rest = body.as_str();
    while let Some((_, after)) = rest.split_once("<LastModified>") {
        let time = after.split('<').next().unwrap_or_default();
        let fraction = time.split_once('.').map_or("", |(_, fraction)| fraction);
        if fraction.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) {
            return Duration::from_millis(1);
        }
        rest = after;
    }
    Duration::from_secs(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_remove_objects_here() {
        let rule = |prefix: &str, status: &str, act: &str| {
            format!(
                "<LifecycleConfiguration><Rule><ID>tidy</ID><Filter><Prefix>{prefix}</Prefix></Filter>\
                 <Status>{status}</Status>{act}</Rule></LifecycleConfiguration>"
            )
        };
        let days = "<Expiration><Days>3</Days></Expiration>";
        let old = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
                   </NoncurrentVersionExpiration>";
        let found = |document: String| harm(&document, "jobs/");
        let removes = "the rule 'tidy' removes objects by their age";
        assert_eq!(found(rule("", "Enabled", days)).as_deref(), Some(removes));
        // Any beginning of a name of ours will do.
        for prefix in ["jobs/pend", "jobs/scheduled/2026", "jobs/q", "jo"] {
            assert!(found(rule(prefix, "Enabled", days)).is_some(), "{prefix}");
        }
        assert!(found(rule("jobs/pending/", "Enabled", days)).is_some());
        assert_eq!(found(rule("jobs/completed/", "Enabled", days)), None);
        assert_eq!(found(rule("logs/", "Enabled", days)), None);
        assert_eq!(found(rule("", "Disabled", days)), None);
        assert_eq!(found(rule("", "Enabled", old)), None);
        let transition = |class: &str| {
            format!("<Transition><Days>30</Days><StorageClass>{class}</StorageClass></Transition>")
        };
        for class in ["GLACIER", "DEEP_ARCHIVE"] {
            let harm = found(rule("jobs/", "Enabled", &transition(class))).unwrap();
            assert!(harm.contains(class) && harm.contains("read"), "{harm}");
        }
        for class in ["STANDARD_IA", "GLACIER_IR"] {
            assert_eq!(found(rule("jobs/", "Enabled", &transition(class))), None, "{class}");
        }
    }
}
