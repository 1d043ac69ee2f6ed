//! `dfq init`, `pause`, `resume`, `poll`, `ack`, `nack`, `fail`, `heartbeat` and `release`: a worker made
//! of a script.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::Desk;

fn poll(desk: &Desk, args: &[&str]) -> serde_json::Value {
    let out = desk.ok(&[&["poll", "./jobs"], args].concat());
    serde_json::from_str(&out).unwrap()
}

fn receipt(desk: &Desk) -> String {
    poll(desk, &[])["receipt"].as_str().unwrap().to_owned()
}

#[test]
fn init() {
    let desk = Desk::new();
    desk.write("file", "");
    desk.write("full/of things", "");
    let said = [
        desk.dfq(&["init", "./jobs", "--lease", "90s", "--max-attempts", "3", "--backoff", "1s"]),
        desk.dfq(&["init", "./jobs"]),
        desk.dfq(&["init", "./flat and wide", "--layout", "flat", "--durability", "relaxed", "-q"]),
        desk.dfq(&["init", "./x", "--lease", "1ms"]),
        desk.dfq(&["init", "./x", "--lease", "soon"]),
        desk.dfq(&["init", "./x", "--max-attempts", "0"]),
        desk.dfq(&["init", "./x", "--layout", "round"]),
        desk.dfq(&["init", "./file"]),
        desk.dfq(&["init", "./file/below"]),
        desk.dfq(&["init", "./full"]),
        desk.dfq(&["init", "nameless"]),
        desk.dfq(&["init", "s3://bucket/jobs"]),
    ];
    assert_transcript!("init", desk.transcript(&said));
    assert!(!desk.path("x").exists(), "made although it was refused");
    let settings: serde_json::Value = serde_json::from_str(&desk.read("jobs/queue.json")).unwrap();
    assert_eq!(settings["max_attempts"], 3, "{settings}");
    let settings = desk.read("flat and wide/queue.json");
    assert!(settings.contains("flat") && settings.contains("relaxed"), "{settings}");
}

#[test]
fn a_queue_for_a_group() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    desk.ok(&["init", "./jobs", "--shared", "group"]);
    desk.ok(&["push", "./jobs", "id=a"]);
    let mode = |path: &str| desk.path(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("jobs"), 0o2775);
    assert_eq!(mode("jobs/pending"), 0o2775);
}

#[test]
fn pause_and_resume() {
    let desk = Desk::new();
    desk.ok(&["push", "./jobs", "-q", "id=a"]);
    let said = [
        desk.dfq(&["pause", "./jobs", "--reason", "the site is down"]),
        desk.dfq(&["poll", "./jobs"]),
        desk.dfq(&["push", "./jobs", "-q", "id=b"]),
        desk.dfq(&["pause", "./jobs", "-q"]),
        desk.dfq(&["poll", "./jobs", "-q"]),
        desk.dfq(&["resume", "./jobs"]),
        desk.dfq(&["resume", "./jobs", "-q"]),
        desk.dfq(&["pause", "./nope"]),
        desk.dfq(&["resume", "./nope"]),
    ];
    assert_transcript!("pause", desk.transcript(&said));
    assert_eq!(desk.ok(&["poll", "./jobs", "-n", "5"]).lines().count(), 2);
}

#[test]
fn poll_and_ack() {
    let desk = Desk::new();
    let none = desk.dfq(&["poll", "./jobs"]);
    desk.ok(&["push", "./jobs", "-q", r#"{"id": "a", "deep": {"er": [1, 2.50]}}"#]);
    let claimed = poll(&desk, &[]);
    assert_eq!(claimed["task"]["deep"]["er"][0], 1);
    assert_eq!((&claimed["attempt"], &claimed["fence"]), (&1.into(), &1.into()));
    let receipt = claimed["receipt"].as_str().unwrap();
    let said = [
        none,
        desk.dfq(&["poll", "./jobs"]),
        desk.dfq(&["poll", "./jobs", "--wait", "10ms"]),
        desk.dfq(&["ack", "./jobs", receipt]),
        desk.dfq(&["ack", "./jobs", receipt]),
        desk.dfq(&["ack", "./jobs", receipt, "--json"]),
        desk.dfq(&["nack", "./jobs", receipt]),
        desk.dfq(&["heartbeat", "./jobs", receipt]),
        desk.dfq(&["ack", "./jobs", "nonsense"]),
        desk.dfq(&["ack", "./jobs"]),
        desk.dfq(&["poll", "./jobs", "-n", "0"]),
        desk.dfq(&["poll", "./jobs", "--lease", "1ms"]),
    ];
    assert_transcript!("poll", desk.transcript(&said));
}

#[test]
fn the_other_ends_of_a_claim() {
    let desk = Desk::new();
    desk.ok(&["init", "./jobs", "-q", "--max-attempts", "2"]);
    desk.ok(&["push", "./jobs", "-q", "--id", "päivä 1/2", "1"]);
    let mut said = Vec::new();
    let first = receipt(&desk);
    said.push(desk.dfq(&["release", "./jobs", &first, "--reason", "not me"]));
    said.push(desk.dfq(&["ack", "./jobs", &first]));
    let second = receipt(&desk);
    let holds = desk.ok(&["heartbeat", "./jobs", &second]);
    assert!(holds.starts_with("päivä 1/2: holds for 9m"), "{holds}");
    let holds = desk.ok(&["heartbeat", "./jobs", &second, "--json"]);
    assert!(holds.contains(r#""status":"held","seconds":5"#), "{holds}");
    said.push(desk.dfq(&["nack", "./jobs", &second, "--error", "oh", "--delay", "0s"]));
    let third = receipt(&desk);
    said.push(desk.dfq(&["nack", "./jobs", &third, "--error", "no"]));
    said.push(desk.dfq(&["fail", "./jobs", &third]));
    desk.ok(&["retry", "./jobs", "päivä 1/2"]);
    let fourth = receipt(&desk);
    said.push(desk.dfq(&["fail", "./jobs", &fourth, "--reason", "hopeless", "--json"]));
    assert_transcript!("ends", desk.transcript(&said));
}

#[test]
fn many_receipts_and_one_that_is_stale() {
    let desk = Desk::new();
    let lines: String = (0..700).map(|n| format!("{{\"id\":\"{n}\"}}\n")).collect();
    desk.dfq_with(&["push", "./jobs", "-q"], lines);
    let claimed = desk.ok(&["poll", "./jobs", "-n", "1000"]);
    let receipt = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["receipt"].as_str().unwrap().to_owned()
    };
    let receipts: Vec<String> = claimed.lines().map(receipt).collect();
    assert_eq!(receipts.len(), 700);
    desk.ok(&["fail", "./jobs", &receipts[1]]);
    desk.ok(&["unlock", "./jobs", receipts[3].split('/').next().unwrap()]);
    let said = desk.dfq_with(&["ack", "./jobs", "-"], receipts.join("\n") + "\n");
    // The first trouble decides, and all others are done.
    assert_eq!(said.status, Some(5), "{said:?}");
    assert_eq!(said.err.lines().count(), 2, "{said:?}");
    let check = desk.ok(&["check", "./jobs"]);
    assert_eq!(check, "in order: 1 pending, 0 scheduled, 698 completed, 1 failed\n");
    let said = desk.dfq_with(&["ack", "./jobs", "-"], "");
    assert_eq!(said.status, Some(0), "{said:?}");
}
