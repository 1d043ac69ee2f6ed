use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::model::{
    AttemptSummary, Carried, Journey, Lease, LeaseState, Outcome, Payload, Record, Settings,
    TaskId, TaskKey, TaskMeta,
};

fn key(id: &str) -> TaskKey {
    TaskKey::new(TaskId::new(id).unwrap(), 1)
}

fn meta(id: &str) -> TaskMeta {
    let carried = Carried { failed: 1, lost: 2 };
    let journey = Journey { moves: 3, fence: 4 };
    TaskMeta { push_id: "n".into(), attempts_before: 3, carried, journey, ..bare_meta(&key(id)) }
}

fn through_a_file(json: &str) -> String {
    let payload = Payload::from_json(json).unwrap();
    let bytes = encode_task(&payload, &meta("a"));
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["_dfq"]["id"], "a");
    let (back, back_meta) = decode_task(&bytes, &key("a")).unwrap();
    assert_eq!(back_meta, meta("a"));
    back.as_json().to_owned()
}

#[test]
fn payloads_come_out_byte_for_byte() {
    for json in [
        "{}",
        "{ }",
        r#"{"b": 1,  "a":12345678901234567890123.50}"#,
        "{\n  \"a\": [1,\n 2]\n}",
        r#"{"nested":{"_dfq":1},"a}":"}\"","é":"\u00e9"}"#,
        "[1,2]",
        "17",
        "\"text\"",
        "null",
        r#"{"payload":5}"#,
        r#"{"a":1,"a":2}"#,
    ] {
        assert_eq!(through_a_file(json), json);
    }
}

#[test]
fn a_payload_with_its_id_is_one_line_and_the_same_task() {
    for json in ["{}", "{ }", r#"{"id":"other","é":"\n"}"#, "[1,2]", "null", "{\"a\": 1\n}"] {
        let line = Payload::from_json(json).unwrap().with_id(&TaskId::new("é \n\"").unwrap());
        assert!(!line.contains('\n'), "{line}");
        let (payload, meta) = split_payload(&line).unwrap();
        assert_eq!(payload.as_json(), json.replace('\n', " "));
        assert_eq!(meta.unwrap().id.as_str(), "é \n\"");
    }
}

#[test]
fn a_task_file_can_be_pushed_again_as_it_is() {
    let first = Payload::from_json(r#"{"url":"x"}"#).unwrap();
    let file = String::from_utf8(encode_task(&first, &meta("a"))).unwrap();
    let (payload, found) = split_payload(&file).unwrap();
    assert_eq!(payload, first);
    assert_eq!(found.unwrap().id.as_str(), "a");
}

#[test]
fn the_reserved_member_may_stand_anywhere_and_be_spaced_by_hand() {
    for text in [
        r#"{"_dfq":{"id":"a"},"x":1}"#,
        r#"{"x":1 , "_dfq" : {"id":"a"} }"#,
        r#"{"x":1,"_dfq":{"id":"a"}}"#,
    ] {
        let (payload, meta) = split_payload(text).unwrap();
        let value: serde_json::Value = payload.parse().unwrap();
        assert_eq!(value, serde_json::json!({"x": 1}), "{text}");
        assert_eq!(meta.unwrap().id.as_str(), "a");
    }
}

#[test]
fn what_is_no_json_is_refused() {
    for text in
        ["", " ", "{", "{\"a\":}", "nul", "{} {}", "{\"_dfq\":5}", "{\"_dfq\":{\"id\":\"\"}}"]
    {
        assert_eq!(split_payload(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
    }
    assert!(decode_task(b"\xff\xfe", &key("a")).is_err());
}

#[test]
fn a_task_in_anothers_place_is_refused() {
    let bytes = encode_task(&Payload::from_json("{}").unwrap(), &meta("ABC"));
    let error = decode_task(&bytes, &key("abc")).unwrap_err();
    assert!(error.to_string().contains("'ABC'"), "{error}");
}

#[test]
fn the_seeds_files_are_read() {
    let task = br#"{"id": "x1", "schema_version": 1, "domain": "acme.com", "attempts": 0}"#;
    let (payload, meta) = decode_task(task, &key("x1")).unwrap();
    assert_eq!(payload.as_json().as_bytes(), task);
    assert_eq!((meta.generation, meta.attempts_before), (1, 0));

    for text in [
        r#"{"worker_id": "pi-3", "created_at": "2026-01-05T10:00:00.123456+00:00", "heartbeat_at": "2026-01-05T10:01:00+00:00", "expires_at": "2026-01-05T10:16:00+00:00"}"#,
        r#"{"worker_id": "pi-3", "created_at": "2026-01-05T10:00:00.123456", "heartbeat_at": "2026-01-05T10:01:00", "expires_at": "2026-01-05T10:16:00"}"#,
    ] {
        let lease = decode_lease(text.as_bytes(), 1).unwrap();
        assert_eq!(lease.worker_id, "pi-3");
        assert_eq!(lease.lease_id, None);
        assert_eq!(lease.length().as_mins(), 15);
    }
}

#[test]
fn unreadable_leases_are_not_leases() {
    for text in ["", "{", "{}", "[]", r#"{"worker_id":"a","created_at":"yesterday"}"#] {
        assert!(decode_lease(text.as_bytes(), 1).is_none(), "{text}");
    }
}

fn lease() -> Lease {
    let at = "2026-11-15T19:30:00.000001Z".parse().unwrap();
    Lease {
        worker_id: "w".into(),
        lease_id: Some("n".into()),
        attempt: 2,
        created_at: at,
        heartbeat_at: at,
        expires_at: at,
        host: Some("h".into()),
        pid: Some(7),
        state: Some(LeaseState::Failed),
        error: Some("why\n\"so\"".into()),
        not_before: Some(at),
        moving: true,
        node: Some("n1".into()),
        beat: 3,
    }
}

#[test]
fn leases_survive_their_file() {
    assert_eq!(decode_lease(&encode_lease(&lease()), 2), Some(lease()));
    // The name is what was won, whatever the content says.
    assert_eq!(decode_lease(&encode_lease(&lease()), 3).unwrap().attempt, 3);
}

#[test]
fn records_survive_their_file() {
    let attempt = AttemptSummary {
        attempt: 1,
        worker_id: "w".into(),
        created_at: lease().created_at,
        heartbeat_at: lease().created_at,
        state: Some(LeaseState::Released),
        error: None,
    };
    let whole = Record {
        outcome: Outcome::Failed,
        payload: Some(Payload::from_json(r#"{"x":1}"#).unwrap()),
        meta: meta("a"),
        lease_id: Some("n".into()),
        worker_id: Some("w".into()),
        finished_at: Some(lease().created_at),
        reason: Some("no".into()),
        cancelled: true,
        forgotten: false,
        moved_to: Some("s3://b/q".into()),
        damaged: None,
        attempts: vec![attempt],
    };
    let text = Record { payload: None, damaged: Some(b"{\"cut".to_vec()), ..whole.clone() };
    let bytes = Record { payload: None, damaged: Some(vec![0xff, 0]), ..whole.clone() };
    for record in [whole, text, bytes] {
        let file = encode_record(&record);
        assert_eq!(decode_record(&file, Outcome::Failed, &key("a")).unwrap(), record);
    }
}

/// Pages of keys show lengths.
#[test]
fn the_length_of_a_record_shows_that_it_was_written_anew() {
    for spaces in 0..130 {
        let payload = format!("{{\"x\":{}1}}", " ".repeat(spaces));
        let mut record = decode_record(payload.as_bytes(), Outcome::Failed, &key("a")).unwrap();
        let file = encode_record(&record);
        assert!(!shows_rewritten(file.len() as u64), "{}", file.len());
        let [one, other] = ["0123456789abcdef", "0123456789abcdee"].map(|nonce| {
            let anew = respaced(&respaced(&file, "f"), nonce);
            assert!(shows_rewritten(anew.len() as u64), "{}", anew.len());
            assert_eq!(decode_record(&anew, Outcome::Failed, &key("a")).unwrap(), record);
            anew
        });
        assert_ne!(one, other, "the nonce tells them apart");
        record.forgotten = true;
        let mark = encode_record(&record);
        assert!(shows_rewritten(mark.len() as u64) && is_forgotten(&mark), "{}", mark.len());
    }
}

#[test]
fn the_seeds_completed_file_is_the_payload() {
    let record = decode_record(br#"{"id": "a"}"#, Outcome::Completed, &key("a")).unwrap();
    assert_eq!(record.payload.unwrap().as_json(), r#"{"id": "a"}"#);
    assert_eq!(record.finished_at, None);
}

#[test]
fn settings_survive_their_file_and_newer_ones_are_refused() {
    let settings = Settings::default();
    assert_eq!(decode_settings(&encode_settings(&settings)).unwrap(), settings);
    assert_eq!(decode_settings(br#"{"format":1}"#).unwrap(), settings);
    let newer = decode_settings(br#"{"format":2,"layout":"spiral"}"#).unwrap_err();
    assert_eq!(newer.kind(), ErrorKind::Incompatible);
    for text in
        ["", "{}", r#"{"format":1,"layout":"spiral"}"#, r#"{"format":1,"lease_seconds":-1}"#]
    {
        let error = decode_settings(text.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{text}");
    }
}

proptest! {
    #[test]
    fn any_json_comes_out_byte_for_byte(
        members in proptest::collection::vec(("\\PC{0,12}", any::<i64>(), " {0,3}|\n"), 0..6),
    ) {
        let mut text = String::from("{");
        for (i, (name, value, space)) in members.iter().enumerate() {
            let name = serde_json::to_string(name).unwrap();
            let comma = if i == 0 { "" } else { "," };
            text.push_str(&format!("{comma}{space}{name}{space}:{value}{space}"));
        }
        text.push('}');
        prop_assume!(!members.iter().any(|(name, ..)| name == "_dfq"));
        prop_assert_eq!(through_a_file(&text), text);
    }

    #[test]
    fn no_bytes_make_the_readers_stumble(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_task(&bytes, &key("a"));
        let _ = decode_record(&bytes, Outcome::Failed, &key("a"));
        let _ = decode_lease(&bytes, 1);
        let _ = decode_settings(&bytes);
    }

    #[test]
    fn no_truncation_is_taken_for_a_task(cut in 0_usize..100) {
        let whole = encode_task(&Payload::from_json(r#"{"x":1}"#).unwrap(), &meta("a"));
        prop_assume!(cut + 1 < whole.len());
        prop_assert!(decode_task(&whole[..cut], &key("a")).is_err());
    }
}
