//! Errors by kind: what differs from task to task (numbers, ids, addresses) is left out, so that alike
//! errors count together. Memory is bounded: past so many kinds, the rest is one.

use std::collections::BTreeMap;

use dfq::TaskId;
use jiff::Timestamp;

/// The most kinds that are told apart.
const MOST: usize = 10_000;

/// The part of an error that decides its kind.
const LETTERS: usize = 300;

/// What is counted together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) error: String,
    pub(super) count: u64,
    pub(super) example: TaskId,
    pub(super) last_at: Option<Timestamp>,
}

/// All kinds so far.
#[derive(Default)]
pub(super) struct Groups(BTreeMap<String, Group>);

impl Groups {
    pub(super) fn add(&mut self, error: &str, id: &TaskId, at: Option<Timestamp>) {
        let mut kind = kind(error);
        if self.0.len() >= MOST && !self.0.contains_key(&kind) {
            kind = "(other errors)".to_owned();
        }
        let new = || Group { error: kind.clone(), count: 0, example: id.clone(), last_at: None };
        let group = self.0.entry(kind.clone()).or_insert_with(new);
        group.count += 1;
        if at >= group.last_at {
            group.last_at = at;
            group.example = id.clone();
        }
    }

    pub(super) fn most_frequent(self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.0.into_values().collect();
        groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.error.cmp(&b.error)));
        groups
    }
}

/// Words before a number that is no chance: `HTTP 503` and `HTTP 404` are two kinds.
const CODES: [&str; 6] = ["http", "status", "code", "signal", "errno", "error"];

/// An error without what differs from task to task.
pub(super) fn kind(error: &str) -> String {
    if error.trim().is_empty() {
        return "(no error given)".to_owned();
    }
    let mut rest: String = error.chars().take(LETTERS).collect();
    rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = rest.as_str();
    let mut kind = String::with_capacity(rest.len());
    let mut before = String::new();
    while let Some(first) = rest.chars().next() {
        if let Some(length) = address(rest).or_else(|| uuid(rest)) {
            kind.push('…');
            rest = &rest[length..];
            before.clear();
            continue;
        }
        if !first.is_ascii_alphanumeric() {
            kind.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        let is_code = CODES.contains(&before.as_str());
        match word {
            _ if is_hex(word) => kind.push('…'),
            _ if word.bytes().all(|byte| byte.is_ascii_digit()) && is_code => kind.push_str(word),
            _ => without_digits(word, &mut kind),
        }
        before = word.to_ascii_lowercase();
    }
    kind
}

/// `https://…` up to a space, a quote or a bracket.
fn address(text: &str) -> Option<usize> {
    let scheme = text.find(|letter: char| !letter.is_ascii_alphanumeric())?;
    if scheme == 0 || !text[scheme..].starts_with("://") {
        return None;
    }
    let ends = |letter: char| letter.is_whitespace() || "\"'`<>()[]{}".contains(letter);
    let end = text.find(ends).unwrap_or(text.len());
    Some(text[..end].trim_end_matches([',', '.', ':', ';']).len())
}

fn uuid(text: &str) -> Option<usize> {
    let word = text.get(..36)?;
    let fits = word.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    fits.then_some(36)
}

/// A hash, a pointer, an object id: long, and neither a number nor a word.
fn is_hex(word: &str) -> bool {
    let digits = word.strip_prefix("0x").unwrap_or(word);
    let long = if digits.len() < word.len() { 1 } else { 8 };
    digits.len() >= long
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// `task17` as `task#`.
fn without_digits(word: &str, out: &mut String) {
    let mut in_number = false;
    for letter in word.chars() {
        if !letter.is_ascii_digit() {
            out.push(letter);
        } else if !in_number {
            out.push('#');
        }
        in_number = letter.is_ascii_digit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_left_out() {
        let cases = [
            ("HTTP 503 for https://acme.com/a?x=1", "HTTP 503 for …"),
            ("HTTP 404 for 'https://acme.com/'", "HTTP 404 for '…'"),
            ("timeout after 31 s (try 2)", "timeout after # s (try #)"),
            ("no row 0198c7a1-7c3e-7bd0-8a3e-1c9a2b3c4d5e", "no row …"),
            ("at 0x7ffe12 in d41d8cd98f00b204", "at … in …"),
            ("exit status 2", "exit status 2"),
            ("os error 13: facade deadbeef", "os error 13: facade deadbeef"),
            ("file17.json:\n  line 3", "file#.json: line #"),
            ("KeyError: 'größe'", "KeyError: 'größe'"),
            ("", "(no error given)"),
        ];
        for (error, wanted) in cases {
            assert_eq!(kind(error), wanted);
        }
    }

    #[test]
    fn groups_are_counted_and_bounded() {
        let mut groups = Groups::default();
        let id = |n: usize| TaskId::new(format!("t{n}")).unwrap();
        // Letters only: digits would make one group of them all.
        let word = |mut n: usize| {
            let mut word = String::new();
            for _ in 0..4 {
                word.push(char::from(b'g' + u8::try_from(n % 16).unwrap()));
                n /= 16;
            }
            word
        };
        for n in 0..MOST + 50 {
            groups.add(&word(n), &id(n), None);
        }
        groups.add(&word(7), &id(7), None);
        let groups = groups.most_frequent();
        assert_eq!(groups.len(), MOST + 1);
        assert_eq!((groups[0].error.as_str(), groups[0].count), ("(other errors)", 50));
        assert_eq!((groups[1].error.as_str(), groups[1].count), (word(7).as_str(), 2));
    }
}
