//! Messages in SQS, and listings of buckets.

use dfq::Payload;
use dfq::conformance::parsers as p;
use serde_json::Value;

use super::{choice, is_json, key, text};

/// Words of listings.
pub(crate) const XML: &[&str] = &[
    "<Contents>",
    "</Contents>",
    "<Key>",
    "</Key>",
    "<CommonPrefixes>",
    "</CommonPrefixes>",
    "<Prefix>",
    "</Prefix>",
    "&amp;",
    "&lt;",
    "&#x1;",
    "&#10;",
    "&#xD800;",
    "&#99999999999;",
    "&",
    ";",
    "//",
    "/./",
    "/../",
    "q/pending/ca/a/task.json",
];

/// What SQS refuses; `strictly` what some servers refuse.
fn is_refused(letter: char, strictly: bool) -> bool {
    matches!(letter, '\u{fffe}' | '\u{ffff}') || strictly && letter > '\u{ffff}'
}

pub(crate) fn sqs_body(input: &[u8]) {
    let (choice, rest) = choice(input);
    let strictly = choice % 2 == 1;
    let Some(text) = text(rest) else { return };
    for escape in [None, Some("upper"), Some("lower"), Some("odd")] {
        if let Ok((payload, _)) = p::decode_sqs_body(text, escape) {
            assert!(is_json(payload.as_json().as_bytes()));
        }
    }
    let word = p::sqs_word(text);
    assert!((1..=128).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_graphic()));
    let Ok(payload) = Payload::from_json(text) else { return };
    if p::has_reserved(payload.as_json()) {
        return;
    }
    let key = key("ä\u{ffff}/b", 2);
    let file = r#"{"_dfq":{"id":"ä\uffff/b","generation":2}}"#;
    let meta = p::decode_task(file.as_bytes(), &key).unwrap().1;
    let file = p::encode_task(&payload, &meta);
    let Ok((body, escape)) = p::sqs_body(file.clone(), strictly) else { return };
    assert!(!body.chars().any(|letter| is_refused(letter, strictly)));
    assert_eq!(p::decode_sqs_body(&body, escape).unwrap(), (payload, meta), "byte for byte");
    // Whoever knows no dfq.escape reads the same value.
    if let Ok(value) = serde_json::from_slice::<Value>(&file) {
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), value);
    }
}

pub(crate) fn sqs_foreign(input: &[u8]) {
    let (choice, rest) = choice(input);
    let escape =
        [None, None, None, Some("upper"), Some("lower"), Some("")][usize::from(choice % 6)];
    let Some(body) = text(rest) else { return };
    match p::read_sqs_message(body, "0123-4567", escape) {
        Ok((payload, meta, foreign)) => {
            assert!(is_json(payload.as_json().as_bytes()));
            if foreign {
                assert!(!p::has_reserved(body) && escape.is_none());
                assert_eq!((meta.generation, meta.push_id.as_str()), (1, "0123-4567"));
                let as_text = || payload.string_member("body").is_some_and(|it| it == body);
                assert!(payload.as_json() == body.trim() || as_text(), "not what was sent");
            }
        }
        Err(_) => assert!(p::has_reserved(body) || escape.is_some(), "any body is a task"),
    }
}

fn page(keys: &[&str]) -> String {
    let escape = |key: &str| -> String {
        let letter = |letter: char| match letter {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            letter if letter.is_control() => format!("&#x{:X};", u32::from(letter)),
            letter => letter.to_string(),
        };
        key.chars().map(letter).collect()
    };
    let each = keys.iter().map(|key| format!("<Contents><Key>{}</Key></Contents>", escape(key)));
    format!("<ListBucketResult>{}</ListBucketResult>", each.collect::<String>())
}

pub(crate) fn listing(input: &[u8]) {
    // Whatever a server sends.
    let less = p::without_foreign_keys(input.to_vec());
    assert!(less.len() <= input.len());
    // Any keys, in a listing as servers write it: one that cannot be ours costs only itself.
    let Some(text) = text(input) else { return };
    let keys: Vec<&str> = text.split('\n').collect();
    let is_ours = |key: &&&str| {
        let key = key.strip_suffix('/').unwrap_or(key);
        let odd = |part: &str| matches!(part, "" | "." | "..");
        !key.chars().any(char::is_control) && !key.split('/').any(odd)
    };
    let ours: Vec<&str> = keys.iter().filter(is_ours).copied().collect();
    let left = p::without_foreign_keys(page(&keys).into_bytes());
    assert_eq!(String::from_utf8(left).unwrap(), page(&ours));
}
