use super::*;
use crate::model::TaskId;

fn meta(id: &str) -> TaskMeta {
    let key = TaskKey::new(TaskId::new(id).unwrap(), 1);
    TaskMeta { push_id: "00ff".into(), ..format::bare_meta(&key) }
}

fn there_and_back(payload: &str, id: &str) -> Body {
    let payload = Payload::from_json(payload).unwrap();
    let body = Body::new(format::encode_task(&payload, &meta(id)), false).unwrap();
    assert!(!body.text.contains(['\u{fffe}', '\u{ffff}']), "{}", body.text);
    let strict = body.strictly().unwrap();
    assert!(strict.text.chars().all(|c| c < '\u{fffe}'), "{}", strict.text);
    for sent in [&body, &strict] {
        let (back, noted) = decode(&sent.text, sent.escape.map(Spelling::name)).unwrap();
        assert_eq!((back.as_json(), noted), (payload.as_json(), meta(id)));
    }
    body
}

#[test]
fn bodies_come_back_byte_for_byte() {
    let odd =
        ["{}", "[1, 2]", "null", r#"{"b" :1e400, "a": 1234567890123456789}"#, "\"\u{7f}\u{85}\""];
    for payload in odd {
        assert_eq!(there_and_back(payload, "a").escape, None);
    }
    assert_eq!(there_and_back("\"😀 \\ud83d\\ude00 C:\\\\u\"", "a").escape, None);
}

#[test]
fn characters_that_sqs_refuses_travel_escaped() {
    there_and_back("{\"a\":\"\u{fffe}\u{ffff}x\",\"\u{ffff}\":1}", "\u{fffe}");
    there_and_back("{\"a\":\"\\\\\u{fffe}\\\\\\\\\u{ffff}\\\\\"}", "a");
    // What was an escape stays one, what was the character itself becomes it again.
    let both = "{\"a\":\"\\ufffe\u{fffe}\\\\ufffe😀\\uffff\u{ffff}\"}";
    let body = there_and_back(both, "a");
    let (ours, theirs): (serde_json::Value, serde_json::Value) =
        (serde_json::from_str(&body.text).unwrap(), serde_json::from_str(both).unwrap());
    assert_eq!(ours["a"], theirs["a"], "the same text to any other reader");
}

#[test]
fn a_payload_with_every_spelling_is_refused() {
    let payload = Payload::from_json("\"\\uFFFE\\uffff\u{fffe}\"").unwrap();
    assert!(Body::new(format::encode_task(&payload, &meta("a")), false).is_err());
}

#[test]
fn torn_escapes_are_told_apart() {
    for text in ["\"\\uD83D\"", "\"\\uFFF", "\"\\uFxyz\"", "\"\\uF€€\""] {
        assert!(decode(text, Some("upper")).is_err(), "{text}");
    }
    assert!(decode("{}", Some("sideways")).is_err());
}

#[test]
fn what_is_not_ours_is_told_apart() {
    for foreign in ["", "hello", "{\"a\":1}", "[]", "{\"_dfq\":{}}", "{\"_dfq\":{\"id\":\"\"}}"] {
        assert!(decode(foreign, None).is_err(), "{foreign}");
    }
}

#[test]
fn receipts_carry_any_handle_as_one_word() {
    for handle in ["AQEB/x+y==", "a-b", "..", "🙂 \n"] {
        let ticket = Ticket { seconds: 30, origin: "00ff".into(), handle: handle.into() };
        let key = TaskKey::new(TaskId::new("a/b").unwrap(), 1);
        let printed = ticket.receipt(key, 3).to_string();
        assert!(!printed.contains(char::is_whitespace), "{printed}");
        assert_eq!(Ticket::of(&printed.parse().unwrap()), Some(ticket));
    }
    for foreign in ["a/1/00ff", "a/1/30-", "a/1/30-x-", "a/1/x-y-z"] {
        assert_eq!(Ticket::of(&foreign.parse().unwrap()), None, "{foreign}");
    }
}

#[test]
fn words_are_what_sqs_takes() {
    assert_eq!(word("order-17"), "order-17");
    for odd in ["", "päivä", "a b", &"x".repeat(129)] {
        assert_eq!(word(odd).len(), 64, "{odd}");
    }
}
