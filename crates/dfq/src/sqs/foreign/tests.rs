use std::collections::BTreeMap;

use super::*;

fn message(body: &str, attributes: &[(&str, &str)]) -> Message {
    let mut message = Message::builder().body(body).message_id("0-1-2");
    for (name, value) in attributes {
        message = message.message_attributes(*name, text_value(value).unwrap());
    }
    message.build()
}

fn id_and_payload(body: &str, attributes: &[(&str, &str)]) -> (String, String) {
    let content = read(&message(body, attributes)).unwrap();
    assert_eq!(content.foreign.unwrap().text, body);
    (content.meta.id.to_string(), content.payload.as_json().to_owned())
}

#[test]
fn the_id_is_said_by_the_body_or_else_by_sqs() {
    let id = |body, attributes: &[_]| id_and_payload(body, attributes).0;
    assert_eq!(id(r#"{"id":"a","id":"b/ü"}"#, &[]), "b/ü");
    let too_long = "x".repeat(201);
    let long = format!("{{\"id\":\"{too_long}\"}}");
    for body in ["{}", r#"{"id":1}"#, r#"{"id":null}"#, r#"{"id":""}"#, &long, "[]", "a"] {
        assert_eq!(id(body, &[]), "0-1-2", "{body}");
        assert_eq!(id(body, &[(ID, "before")]), "before", "{body}");
        assert_eq!(id(body, &[(ID, &too_long)]), "0-1-2", "{body}");
    }
    assert_eq!(id(r#"{"id":"a"}"#, &[(ID, "before")]), "a");
}

#[test]
fn an_object_is_the_payload_and_anything_else_is_its_text() {
    let payload = |body| id_and_payload(body, &[]).1;
    assert_eq!(payload(" {\"a\" : 1.50} "), "{\"a\" : 1.50}", "as of a file");
    let others =
        ["hi", " ", "[1]", "null", "\"x\"", "{", "{}{}", "{\"_dfq\":", "\u{85}\t😀", "{a:1}"];
    for text in others {
        let wrapped: BTreeMap<String, String> = serde_json::from_str(&payload(text)).unwrap();
        assert_eq!(wrapped, BTreeMap::from([("body".to_owned(), text.to_owned())]));
    }
}

#[test]
fn what_has_our_member_is_ours_or_cannot_be_read() {
    let ours = read(&message(r#"{"n":1,"_dfq":{"id":"a"}}"#, &[])).unwrap();
    assert!(ours.foreign.is_none());
    assert_eq!((ours.meta.id.as_str(), ours.payload.as_json()), ("a", r#"{"n":1}"#));
    for body in ["{\"_dfq\":{}}", "{\"_dfq\":{\"id\":\"\"}}", "{\"_dfq\":1}", "{\"_dfq\":null}"] {
        assert!(read(&message(body, &[])).is_err(), "{body}");
    }
    assert!(read(&message("{}", &[(ESCAPE, "upper")])).is_err());
}

#[test]
fn what_we_have_to_say_stands_beside_their_attributes() {
    let last = |count: usize, reason: &str, limit: usize| {
        let theirs: Vec<_> = (0..count).map(|n| (format!("a{n}"), "x")).collect();
        let theirs: Vec<_> = theirs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let content = read(&message("hello", &theirs)).unwrap();
        let all = content.foreign.unwrap().last_attributes(&content.meta.id, reason, limit);
        assert!(theirs.iter().all(|(name, _)| all.contains_key(*name)));
        let said = |name| all.get(name).and_then(|value| value.string_value()).map(str::to_owned);
        (said(ID), said(REASON))
    };
    let id = || Some("0-1-2".to_owned());
    assert_eq!(last(8, "no", 1000), (id(), Some("no".into())));
    assert_eq!(last(8, "", 1000), (id(), None), "SQS takes no empty values");
    assert_eq!(last(9, "no", 1000), (id(), None));
    assert_eq!(last(10, "no", 1000), (None, None));
    assert_eq!(last(0, &"no".repeat(500), 1000), (id(), None));
    assert_eq!(last(0, "no", 5), (None, None));
    let odd = "\u{1b}[1mä\u{ffff}\n😀";
    assert_eq!(last(0, odd, 1000), (id(), Some("\u{fffd}[1mä\u{fffd}\n\u{fffd}".into())));
    let again = read(&message(r#"{"id":"a"}"#, &[(REASON, "old")])).unwrap();
    assert!(again.foreign.unwrap().last_attributes(&again.meta.id, "", 1000).is_empty());
}
