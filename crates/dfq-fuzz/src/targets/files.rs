//! Files of the tree.
//!
//! What is read is written and read again as the same; what is damaged is an error and never a default.

use std::time::Duration;

use dfq::conformance::parsers as p;
use dfq::queue::{Paused, WorkerRecord};
use dfq::{ErrorKind, NewTask, Outcome, Payload, TaskKey};
use jiff::SignedDuration;

use super::{is_json, is_json_bytes, key, text};

/// The key under which such a file would lie.
fn own_key(input: &[u8]) -> TaskKey {
    let meta = text(input).and_then(|text| p::split_payload(text).ok()).and_then(|it| it.1);
    meta.map_or_else(|| key("a", 1), |meta| TaskKey::new(meta.id, meta.generation))
}

pub(crate) fn task(input: &[u8]) {
    let key = own_key(input);
    match p::decode_task(input, &key) {
        Ok((payload, meta)) => {
            assert!(is_json(input), "a damaged file was taken for a task");
            assert!(is_json(payload.as_json().as_bytes()), "the payload is not JSON");
            assert_eq!((&meta.id, meta.generation), (key.id(), key.generation()));
            let file = p::encode_task(&payload, &meta);
            let (again, meta_again) = p::decode_task(&file, &key).unwrap();
            assert_eq!(again, payload, "the payload has changed");
            assert_eq!(p::encode_task(&again, &meta_again), file, "written differently");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid),
    }
    if let Some(text) = text(input) {
        pushed(text);
    }
}

/// What the caller pushes comes out byte for byte.
fn pushed(text: &str) {
    let Ok(payload) = Payload::from_json(text) else { return };
    if !p::has_reserved(text) {
        assert_eq!(payload.as_json(), text.trim(), "not the bytes that were pushed");
    }
    let _ = NewTask::from_json(text).unwrap().chosen_id();
    let _ = (payload.integer_member("n"), payload.string_member("s"));
    // A payload may hold a task file's text in its turn: then there is a second `_dfq` to be told from ours.
    if p::has_reserved(payload.as_json()) {
        return;
    }
    let key = key("k", 3);
    let meta = p::decode_task(br#"{"_dfq":{"id":"k","generation":3}}"#, &key).unwrap().1;
    let through = p::decode_task(&p::encode_task(&payload, &meta), &key).unwrap();
    assert_eq!(through, (payload.clone(), meta));
    let line = payload.with_id(key.id());
    assert!(!line.contains(['\n', '\r']), "more than a line");
    let spaced = payload.as_json().replace(['\n', '\r'], " ");
    assert_eq!(Payload::from_json(&line).unwrap().as_json(), spaced);
}

pub(crate) fn record(input: &[u8]) {
    let key = own_key(input);
    for outcome in [Outcome::Completed, Outcome::Failed] {
        let Ok(record) = p::decode_record(input, outcome, &key) else { continue };
        assert!(is_json(input), "a damaged file was taken for a record");
        assert_eq!(record.outcome, outcome);
        assert_eq!(p::is_forgotten(input), record.forgotten);
        let value: serde_json::Value = serde_json::from_slice(input).unwrap_or_default();
        let says = |name: &str| value.get("_dfq").is_some_and(|ours| !ours[name].is_null());
        if says("damaged_text") || says("damaged_hex") {
            assert!(record.payload.is_none() && record.damaged.is_some(), "made up a payload");
        }
        let file = p::encode_record(&record);
        assert_eq!(p::shows_rewritten(file.len() as u64), record.forgotten);
        let again = p::decode_record(&file, outcome, &key).unwrap();
        assert_eq!((&again.payload, &again.damaged), (&record.payload, &record.damaged));
        assert_eq!(p::encode_record(&again), file, "written differently");
        let respaced = p::respaced(&file, "0123456789abcdef");
        assert!(p::shows_rewritten(respaced.len() as u64));
        assert_eq!(p::decode_record(&respaced, outcome, &key).unwrap(), again);
    }
}

pub(crate) fn lease(input: &[u8]) {
    let Some(lease) = p::decode_lease(input, 7) else { return };
    assert!(is_json_bytes(input), "a damaged file was taken for a lease");
    assert_eq!(lease.attempt, 7, "the name decides");
    let length = lease.length();
    assert!(length >= SignedDuration::ZERO && length <= SignedDuration::from_hours(24));
    let file = p::encode_lease(&lease);
    let again = p::decode_lease(&file, 7).unwrap();
    assert_eq!(p::encode_lease(&again), file, "written differently");
    assert_eq!((&again.lease_id, again.state), (&lease.lease_id, lease.state));
}

pub(crate) fn settings(input: &[u8]) {
    let settings = match p::decode_settings(input) {
        Ok(settings) => settings,
        Err(error) => {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::Damaged | ErrorKind::Incompatible), "{error}");
            return;
        }
    };
    assert!(is_json_bytes(input) && p::check_compatible(input).is_ok());
    settings.check().unwrap();
    let again = p::decode_settings(&p::encode_settings(&settings)).unwrap();
    assert_eq!((again.max_attempts, again.max_lost), (settings.max_attempts, settings.max_lost));
    // Numbers of seventeen digits are read as their neighbours, which is less than a nanosecond for any that counts.
    let alike = |one: Duration, other: Duration| {
        one.abs_diff(other) <= Duration::from_nanos(1).saturating_add(one / 1_000_000_000)
    };
    assert!(alike(again.lease, settings.lease));
    assert!(alike(again.backoff.base, settings.backoff.base));
    assert!(alike(again.backoff.max, settings.backoff.max));
    for failures in [0, 1, 2, 31, 32, u32::MAX] {
        for fraction in [0.0, 0.5, 1.0] {
            let longest = settings.backoff.max.saturating_add(Duration::from_micros(1));
            assert!(settings.backoff.wait(failures, fraction) <= longest);
        }
    }
}

pub(crate) fn floors(input: &[u8]) {
    let Some(floors) = p::decode_floors(input) else { return };
    for (id, generation, ..) in &floors {
        assert!((1..=1_000_000_000).contains(generation), "life {generation}");
        // The life after it has a name of its own.
        let next = TaskKey::new(id.clone(), generation + 1);
        if *generation < 1_000_000_000 {
            assert_eq!(p::parse_canonical_stem(&p::stem(&next)), Some(next));
        }
    }
    let file = p::encode_floors(&floors);
    assert!(file.split(|byte| *byte == b'\n').all(|line| line.len() < p::LONGEST_FLOOR));
    let again = p::decode_floors(&file).unwrap();
    assert_eq!(p::encode_floors(&again), file, "written differently");
}

pub(crate) fn worker(input: &[u8]) {
    let Ok(record) = serde_json::from_slice::<WorkerRecord>(input) else { return };
    let file = serde_json::to_vec(&record).unwrap();
    assert_eq!(serde_json::from_slice::<WorkerRecord>(&file).unwrap(), record);
}

pub(crate) fn marks(input: &[u8]) {
    if let Some(watch) = p::rewrite_watch(input) {
        assert!(is_json_bytes(input));
        assert_eq!(p::rewrite_watch(&watch).as_ref(), Some(&watch), "written differently");
    }
    if serde_json::from_slice::<Paused>(input).is_ok() {
        assert!(is_json_bytes(input));
    }
}

pub(crate) fn doctor(input: &[u8]) {
    match p::decode_diagnosis(input) {
        Ok(found) => {
            let file = p::encode_diagnosis(&found);
            assert_eq!(p::decode_diagnosis(&file).unwrap(), found);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged),
    }
}
