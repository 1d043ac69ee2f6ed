//! `dfq doctor` on folders: what it says of stores that are safe, that it leaves nothing behind, and
//! that others heed its word.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{Desk, Said};

/// A short examination, for programs.
fn examine(desk: &Desk, args: &[&str]) -> (Said, Value) {
    let all = [&["doctor", "--json", "--rounds", "12"], args].concat();
    let said = desk.dfq(&all);
    let report = serde_json::from_str(&said.out).unwrap_or(Value::Null);
    (said, report)
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or(&Value::Null)
}

/// What is left in a folder, and below.
fn left(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            names.extend(left(&entry.path()));
        }
    }
    names.sort();
    names
}

fn assert_safe(desk: &Desk) {
    let (said, report) = examine(desk, &["./new"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert_eq!(report["verdict"], "safe");
    for race in ["race: records", "race: leases", "race: tasks", "race: O_EXCL"] {
        let detail = check(&report, race)["detail"].as_str().unwrap();
        let field = "32 clients in 4 processes";
        assert_eq!(detail, format!("one winner in 12 of 12 rounds ({field})"), "{race}");
    }
    let swapped = check(&report, "race: swap")["detail"].as_str().unwrap();
    assert_eq!(swapped, "one winner in 6 of 6 rounds (32 clients in 4 processes)");
    assert_eq!(check(&report, "swap")["outcome"], "yes", "{report}");
    assert!(report["speed"].as_array().unwrap().len() >= 15, "{report}");
    assert!(!report["advice"].as_array().unwrap().is_empty());
    assert_eq!(left(&desk.path("new")), ["doctor.json"]);
}

#[test]
fn an_ordinary_folder_is_safe() {
    assert_safe(&Desk::new());
}

#[test]
fn memory_is_safe_and_says_what_it_is() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        println!("SKIPPED: there is no /dev/shm");
        return;
    }
    let desk = Desk::in_folder(shm);
    assert_safe(&desk);
    let (_, report) = examine(&desk, &["./new"]);
    assert_eq!(report["store"], "tmpfs (memory)");
    assert_eq!(
        report["promises"][0]["why"][0],
        "kept in memory: it survives any process, and no reboot"
    );
}

#[test]
fn another_mount_is_safe() {
    let Some(mount) = std::env::var_os("DFQ_TEST_MOUNT") else {
        println!("SKIPPED: DFQ_TEST_MOUNT names no mount");
        return;
    };
    assert_safe(&Desk::in_folder(Path::new(&mount)));
}

/// What does not depend on the machine: its words, not its figures.
#[test]
fn report() {
    let desk = Desk::on_disk();
    let mut said = desk.dfq(&["doctor", "./jobs", "--rounds", "10"]);
    let measured = ["durable create ", "create ", "replace ", "read ", "list "];
    let of_the_machine = |line: &&str| {
        let (head, figures) = line.split_at(line.find("  ").unwrap_or(line.len()));
        let words = ["mount", "times", "one owner per attempt"];
        let is_figure = figures.contains(" ms") || figures.contains(" µs");
        words.contains(&head)
            || line.contains("/jobs: ")
            || line.starts_with("OPERATION")
            || (measured.iter().any(|name| line.starts_with(name)) && is_figure)
            || ["As ", "SD ", "Memory", "Network", "The store", "If it", "Leases"]
                .iter()
                .any(|begin| line.starts_with(begin))
    };
    let lines = said.out.lines().filter(|line| !of_the_machine(line));
    said.out = lines.map(|line| format!("{line}\n")).collect();
    assert_transcript!("doctor", desk.transcript(&[said]));
}

#[test]
fn beside_a_live_queue_nothing_changes() {
    let desk = Desk::new();
    desk.ok(&["push", "./jobs", "a=1", "--id", "one"]);
    let before = left(&desk.path("jobs"));
    let (said, _) = examine(&desk, &["./jobs"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    let mut after = left(&desk.path("jobs"));
    after.retain(|name| name != "doctor.json");
    assert_eq!(before, after);
    // It belongs there.
    assert_eq!(
        desk.ok(&["check", "./jobs"]),
        "in order: 1 pending, 0 scheduled, 0 completed, 0 failed\n"
    );
    // And a queue can be made where only a verdict is.
    examine(&desk, &["./new"]);
    desk.ok(&["push", "./new", "a=1"]);
}

const REFUSED: &str =
    r#"{"verdict":"refused","cause":"two won","examined_at":"2026-11-15T22:20:00Z"}"#;

#[test]
fn a_refused_store_is_not_used_unless_told_so() {
    let desk = Desk::new();
    desk.ok(&["push", "./jobs", "a=1", "--id", "one"]);
    desk.write("jobs/doctor.json", REFUSED);
    let mut said = vec![
        desk.dfq(&["push", "./jobs", "a=2"]),
        desk.dfq(&["poll", "./jobs"]),
        desk.dfq(&["work", "./jobs", "--drain", "--", "true"]),
    ];
    for said in &said {
        assert_eq!(said.status, Some(13), "{said:?}");
    }
    // Looking is harmless.
    desk.ok(&["stats", "./jobs"]);
    desk.ok(&["push", "./jobs", "a=2", "--id", "two", "--allow-unsafe"]);
    assert!(desk.ok(&["poll", "./jobs", "--allow-unsafe"]).contains("receipt"));
    desk.ok(&["work", "./jobs", "--until", "idle", "--allow-unsafe", "--", "true"]);
    // No queue is made there either.
    desk.write("new/doctor.json", REFUSED);
    said.push(desk.dfq(&["push", "./new", "a=2"]));
    said.push(desk.dfq(&["init", "./new"]));
    assert!(!desk.path("new/queue.json").exists());
    desk.ok(&["push", "./new", "a=2", "--allow-unsafe"]);
    assert_transcript!("doctor_refused", desk.transcript(&said));
    // A later verdict replaces it; one that cannot be read is none.
    assert_eq!(examine(&desk, &["./jobs"]).0.status, Some(0));
    desk.ok(&["push", "./jobs", "a=3"]);
    desk.write("jobs/doctor.json", "no verdict");
    let said = desk.dfq(&["push", "./jobs", "a=4"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("it is ignored"), "{said:?}");
}

#[test]
fn peers_find_each_other() {
    let desk = Desk::new();
    let peer = ["doctor", "./jobs", "--peer", "--peers", "3", "--rounds", "5", "--json"];
    let peers: Vec<_> = (0..3).map(|_| desk.start(&peer)).collect();
    for peer in peers {
        let output = peer.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        for race in ["race of peers: records", "race of peers: swap"] {
            let detail = check(&report, race)["detail"].as_str().unwrap();
            assert_eq!(detail, "one winner in 100 of 100 rounds (33 clients of 3 peers)", "{race}");
        }
    }
    assert_eq!(left(&desk.path("jobs")), ["doctor.json"]);
}

#[test]
fn a_peer_that_stays_alone_says_so() {
    let desk = Desk::new();
    let said = desk.dfq(&["doctor", "./jobs", "--peer", "--wait", "1s", "--rounds", "5"]);
    assert_eq!(said.status, Some(7));
    assert!(said.err.contains("1 of 2 peers came within 1 s"), "{said:?}");
    assert_eq!(left(&desk.path("jobs")), [""; 0]);
}

#[test]
fn two_ways_to_the_same_folder() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("jobs")).unwrap();
    std::os::unix::fs::symlink(desk.path("jobs"), desk.path("other")).unwrap();
    let (said, report) = examine(&desk, &["--peer", "./jobs", "./other"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    let detail = check(&report, "race: records")["detail"].as_str().unwrap();
    assert!(detail.ends_with("in 4 processes, 2 ways to the same place)"), "{detail}");
}

#[test]
fn wrong_uses() {
    let desk = Desk::new();
    desk.write("file", "");
    let said = [
        desk.dfq(&["doctor"]),
        desk.dfq(&["doctor", "./a", "./b"]),
        desk.dfq(&["doctor", "./file"]),
        desk.dfq(&["doctor", "--peer", "./a", "s3://bucket/b"]),
        desk.dfq(&["doctor", "nameless"]),
    ];
    assert_transcript!("doctor_wrong_uses", desk.transcript(&said));
}

#[test]
fn a_signal_leaves_nothing_behind() {
    let desk = Desk::new();
    let mut doctor = desk.start(&["doctor", "./jobs", "--rounds", "100000"]);
    let tmp = desk.path("jobs/tmp");
    support::until("it has begun", || {
        std::fs::read_dir(&tmp).is_ok_and(|mut entries| entries.next().is_some())
    });
    let pid = doctor.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert_eq!(doctor.wait().unwrap().code(), Some(130));
    assert_eq!(left(&desk.path("jobs")), [""; 0]);
}
