//! `dfq index` when it is killed, interrupted, run twice at once, given much, or not listened to: real processes.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Desk, Said, short_or_long};

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn end(child: Child) -> Said {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Said {
        command: String::new(),
        out: text(output.stdout),
        err: text(output.stderr),
        status: output.status.code(),
    }
}

/// What a scan shows: values by key. A key that comes twice is an error.
fn scan(desk: &Desk, index: &str) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    for line in desk.ok(&["index", "scan", index]).lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let key = record["key"].as_str().unwrap().to_owned();
        assert_eq!(found.insert(key, record["n"].as_i64().unwrap()), None, "{line}");
    }
    found
}

fn lines(keys: std::ops::Range<usize>, value: usize) -> String {
    keys.map(|n| format!("{{\"key\":\"k{n}\",\"n\":{value}}}\n")).collect()
}

fn put(desk: &Desk, index: &str, lines: String, options: &[&str]) {
    let said =
        desk.dfq_with(&[&["index", "put", "-q", index, "--jsonl", "-"], options].concat(), lines);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
}

/// Records of a put that is killed are there or not, each as a whole; to put them again does no harm.
#[test]
fn a_killed_put() {
    let desk = Desk::new();
    put(&desk, "./i", lines(0..200, 1), &[]);
    for (round, options) in [&[][..], &["--bundle"], &[]].into_iter().enumerate() {
        let mut command =
            desk.command(&[&["index", "put", "-q", "./i", "--jsonl", "-"], options].concat());
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(lines(100..600, round + 2).as_bytes()).unwrap();
        stdin.flush().unwrap();
        if options.is_empty() {
            support::until("some are put", || {
                desk.dfq(&["index", "get", "./i", "k599"]).status == Some(0)
            });
        }
        signal(&child, Signal::KILL);
        child.wait().unwrap();
        drop(stdin);
        let found = scan(&desk, "./i");
        assert!((0..100).all(|n| found[&format!("k{n}")] == 1), "what was there stays");
        assert!(found.values().all(|value| (1..=round as i64 + 2).contains(value)));
    }
    put(&desk, "./i", lines(0..600, 9), &[]);
    desk.ok(&["index", "compact", "-q", "--all", "./i"]);
    assert_eq!(desk.ok(&["index", "check", "./i", "-q"]), "");
    assert_eq!(scan(&desk, "./i"), (0..600).map(|n| (format!("k{n}"), 9)).collect());
}

/// Ctrl-C: what was answered is there, and its number is said.
#[test]
fn an_interrupted_put_says_how_many() {
    let desk = Desk::new();
    let plain = desk.command(&["index", "put", "./i"]);
    let mut command = std::process::Command::new("env");
    command.arg("--default-signal=HUP,INT,TERM").arg(plain.get_program()).args(plain.get_args());
    command.current_dir(desk.path(""));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A slow writer's records are not kept waiting.
    stdin.write_all(lines(0..3, 1).as_bytes()).unwrap();
    support::until("they are put", || desk.dfq(&["index", "get", "./i", "k2"]).status == Some(0));
    // The answer may still be on its way to the one who counts.
    support::pause();
    signal(&child, Signal::INT);
    let said = end(child);
    drop(stdin);
    assert_eq!(said.status, Some(130), "{said:?}");
    assert!(said.err.contains("dfq: interrupted; put so far: 3 records"), "{said:?}");
}

/// Compactors that are killed again and again, while others write: nothing is lost, and the next one finishes.
#[test]
fn killed_compactors() {
    let desk = Desk::new();
    let mut model = BTreeMap::new();
    let rounds = short_or_long(8, 40);
    let mut killed = 0;
    for round in 0..rounds {
        let keys = round * 20..round * 20 + 300;
        put(
            &desk,
            "./i",
            lines(keys.clone(), round),
            if round % 2 == 0 { &["--bundle"] } else { &[] },
        );
        model.extend(keys.map(|n| (format!("k{n}"), i64::try_from(round).unwrap())));
        let mut child = desk.start(&["index", "compact", "./i", "--all"]);
        let files = |desk: &Desk| -> u64 {
            let stats: serde_json::Value =
                serde_json::from_str(&desk.ok(&["index", "stats", "--json", "./i"])).unwrap();
            stats["inbox_files"].as_u64().unwrap()
        };
        let before = files(&desk);
        // In the middle of it, if it is not over before.
        support::until("some is merged", || {
            child.try_wait().unwrap().is_some() || files(&desk) < before
        });
        signal_if_running(&mut child, &mut killed);
        child.wait().unwrap();
        assert_eq!(scan(&desk, "./i"), model, "after round {round}");
    }
    let mut last = desk.dfq(&["index", "compact", "./i", "--all", "--json"]);
    // Those who were killed held locks.
    for lock in std::fs::read_dir(desk.path("i/shards")).unwrap() {
        let path = lock.unwrap().path();
        if path.extension().is_some_and(|it| it == "lock") {
            std::fs::remove_file(path).unwrap();
            last = desk.dfq(&["index", "compact", "./i", "--all", "--json"]);
        }
    }
    assert_eq!(last.status, Some(0), "{last:?}");
    assert_eq!(scan(&desk, "./i"), model);
    let check = desk.dfq(&["index", "check", "./i", "--repair", "--json"]);
    assert_eq!(check.status, Some(0), "{check:?}");
    assert!(check.out.contains(&format!("\"records\":{}", model.len())), "{check:?}");
    assert!(killed > 0, "none was killed in the middle");
}

fn signal_if_running(child: &mut Child, killed: &mut usize) {
    if child.try_wait().unwrap().is_none() {
        *killed += 1;
        signal(child, Signal::KILL);
    }
}

#[test]
fn two_compactors_at_once() {
    let desk = Desk::new();
    put(&desk, "./i", lines(0..1500, 1), &["--bundle"]);
    put(&desk, "./i", lines(500..1500, 2), &["--bundle"]);
    let both = [(); 2].map(|()| desk.start(&["index", "compact", "./i", "--all", "--json"]));
    let reports = both.map(end);
    for said in &reports {
        assert_eq!(said.status, Some(0), "{said:?}");
    }
    desk.ok(&["index", "compact", "-q", "./i", "--all"]);
    let expected = (0..1500).map(|n| (format!("k{n}"), if n < 500 { 1 } else { 2 }));
    assert_eq!(scan(&desk, "./i"), expected.collect());
    assert_eq!(desk.ok(&["index", "check", "./i", "-q"]), "");
}

/// `--every` goes on until it is told to stop, and ends in good order.
#[test]
fn compaction_again_and_again() {
    let desk = Desk::new();
    put(&desk, "./i", lines(0..10, 1), &[]);
    let child = desk.start(&["index", "compact", "./i", "--every", "20ms", "--json"]);
    for round in 1..4 {
        put(&desk, "./i", lines(0..10, round), &[]);
        support::until("it is merged", || {
            desk.ok(&["index", "stats", "./i"]).contains("inbox      empty")
        });
        assert_eq!(scan(&desk, "./i").len(), 10);
    }
    signal(&child, Signal::TERM);
    let said = end(child);
    assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{said:?}");
    let rounds: Vec<serde_json::Value> =
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: u64 = rounds.iter().map(|round| round["rows"].as_u64().unwrap()).sum();
    assert!(rows >= 30, "{said:?}");
    assert!(
        !desk.path("i/shards").read_dir().unwrap().any(|it| it
            .unwrap()
            .path()
            .extension()
            .is_some_and(|it| it == "lock"))
    );
}

#[test]
fn a_hundred_thousand_records() {
    let desk = Desk::new();
    let number = short_or_long(100_000, 1_000_000);
    desk.write("lines.jsonl", lines(0..number, 1));
    let said = desk.dfq(&["index", "put", "./i", "--bundle", "--jsonl", "lines.jsonl"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    let said = desk.dfq(&["index", "compact", "./i", "--all", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (report["shards"].as_u64(), report["rows"].as_u64()),
        (Some(256), Some(number as u64))
    );
    let stats: serde_json::Value =
        serde_json::from_str(&desk.ok(&["index", "stats", "./i", "--json"])).unwrap();
    assert_eq!(
        (stats["records"].as_u64(), stats["inbox_files"].as_u64()),
        (Some(number as u64), Some(0))
    );
    assert_eq!(desk.ok(&["index", "get", "./i", "k0", "k99999"]).lines().count(), 2);
    assert_eq!(desk.ok(&["index", "scan", "./i", "-o", "usv"]).lines().count(), number);
    whoever_reads_may_go_away(&desk);
}

fn whoever_reads_may_go_away(desk: &Desk) {
    for format in ["json", "csv", "usv"] {
        let mut child = desk.start(&["index", "scan", "./i", "-o", format]);
        let mut some = [0; 100];
        child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
        drop(child.stdout.take());
        let said = end(child);
        assert_eq!((said.status, said.err.as_str()), (Some(141), ""), "{format}");
    }
}

/// Where nothing may be written it is said in a sentence.
#[test]
fn a_place_that_cannot_be_written() {
    let desk = Desk::new();
    let said = desk.dfq(&["index", "put", "/proc/self/index", "key=a"]);
    assert!(said.status.is_some_and(|status| status > 1), "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
    assert!(said.err.starts_with("dfq: "), "{said:?}");
}
