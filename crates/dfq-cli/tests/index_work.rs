//! `dfq work --index`: what commands print is in the index before their tasks are done.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dfq_s3_server::Fault;
use support::bucket::TestBucket;
use support::{Desk, Said};

fn work(desk: &Desk, index: &str, options: &[&str], script: &str) -> Said {
    let args = ["work", "./jobs", "--index", index, "--until", "drained", "--max-attempts", "1"];
    let said = desk.dfq(&[&args[..], options, &["--", "sh", "-c", script]].concat());
    Said { command: format!("dfq work ./jobs --index … -- sh -c '{script}'"), ..said }
}

fn said(desk: &Desk, said: &[Said]) -> String {
    let text = desk.transcript(said);
    let steady = |line: &str| match line.rsplit_once(", in ") {
        Some((before, _)) => format!("{before}, in [TIME]"),
        None => line.to_owned(),
    };
    text.lines().map(steady).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_commands_output_is_put() {
    let desk = Desk::new();
    let index = ["index", "init", "-q", "./i", "--key-field", "domain", "--columns", "n:integer"];
    desk.ok(&index);
    let mut all = Vec::new();
    for script in [
        r#"echo "{\"domain\":\"one\",\"task\":\"$DFQ_TASK_ID\"}""#,
        r#"printf '{\n  "domain": "laid out"\n}\n'"#,
        r#"printf '{"domain":"a","n":1}\n{"domain":"b","n":2}\n'"#,
        "echo '[]'",
        "true",
        "echo done",
        r#"echo '{"domain":"half"}'; echo oops"#,
        r#"echo '{"name":"no key"}'"#,
        r#"echo '{"domain":"typed","n":"many"}'"#,
        r#"echo '{"domain":"failed"}'; exit 1"#,
    ] {
        desk.ok(&["push", "-q", "./jobs", &format!("n:={}", all.len()), "--id-hash"]);
        all.push(work(&desk, "./i", &[], script));
    }
    all.push(desk.dfq(&["index", "scan", "./i"]));
    all.push(desk.dfq(&["failed", "./jobs", "--reasons"]));
    let hashes = said(&desk, &all[..all.len() - 1]);
    let steady: Vec<String> = hashes
        .lines()
        .map(|line| {
            line.split(' ')
                .map(|word| if word.trim_end_matches(':').len() == 64 { "[ID]:" } else { word })
                .collect::<Vec<_>>()
                .join(" ")
        })
        .map(|line| match line.find("\"task\":\"") {
            Some(at) => line[..at + 8].to_owned() + "…",
            None => line,
        })
        .collect();
    assert_transcript!("index_work", steady.join("\n"));
    // What is put is not printed, but it is in the log.
    desk.ok(&["push", "-q", "./jobs", "id=logged"]);
    let said =
        work(&desk, "./i", &["--log-dir", "logs"], r#"echo '{"domain":"logged"}'; echo aside >&2"#);
    assert_eq!((said.status, said.out.as_str()), (Some(0), ""), "{said:?}");
    assert_eq!(desk.read("logs/logged.1.log").lines().count(), 2);
    assert_eq!(desk.ok(&["index", "get", "./i", "logged"]), "{\"domain\":\"logged\"}\n");
}

#[test]
fn a_streams_answers_can_carry_records() {
    let desk = Desk::new();
    let child = r#"while read -r line; do
        case $line in
          *'"id":"one"'*) echo '{"ok":true,"record":{"key":"one","n":1}}';;
          *'"id":"two"'*) echo '{"ok":true,"records":[{"key":"a"},{"key":"b"}]}';;
          *'"id":"none"'*) echo '{"ok":true,"records":[]}';;
          *'"id":"bare"'*) echo '{"ok":true}';;
          *'"id":"bad"'*) echo '{"ok":true,"record":{"n":1}}';;
          *) echo '{"fail":"hopeless"}';;
        esac
    done"#;
    for id in ["one", "two", "none", "bare", "bad", "other"] {
        desk.ok(&["push", "-q", "./jobs", &format!("id={id}")]);
    }
    let told = work(&desk, "./i", &["--stream"], child);
    assert_eq!(told.status, Some(1), "{told:?}");
    for why in [
        "bare: failed: the command answered without a record",
        "bad: failed: the command's record cannot be put into the index: the record has no 'key'",
        "other: failed: hopeless",
        "3 tasks completed, 3 failed",
    ] {
        assert!(told.err.contains(why), "{}", told.err);
    }
    let mut found: Vec<String> =
        desk.ok(&["index", "scan", "./i"]).lines().map(str::to_owned).collect();
    found.sort();
    assert_eq!(found, [r#"{"key":"a"}"#, r#"{"key":"b"}"#, r#"{"key":"one","n":1}"#]);
    // Without an index there is no place for it.
    desk.ok(&["push", "-q", "./jobs", "id=one", "--again"]);
    let args =
        ["work", "./jobs", "--stream", "--drain", "--max-attempts", "1", "--", "sh", "-c", child];
    let told = desk.dfq(&args);
    assert!(told.err.contains("--index names no index"), "{told:?}");
}

/// An index that does not answer for a while is waited for; nothing of it counts against the task.
#[test]
fn an_index_that_is_down_is_waited_for() {
    let bucket = TestBucket::start();
    let desk = bucket.desk();
    let index = bucket.address("i");
    desk.ok(&["index", "init", "-q", &index]);
    desk.ok(&["push", "-q", "./jobs", "id=a"]);
    let refused = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&refused);
    bucket.server.on(move |request| {
        let is_put = request.op == "PutObject" && request.key.contains("/inbox/");
        // More often than one call is made again by itself.
        (is_put && seen.fetch_add(1, Ordering::SeqCst) < 8).then_some(Fault::Error)
    });
    let told = work(&desk, &index, &[], r#"echo '{"key":"a"}'; echo ran >> runs"#);
    assert_eq!(told.status, Some(0), "{told:?}");
    assert!(told.err.contains("a record cannot be put now; trying again"), "{told:?}");
    assert!(refused.load(Ordering::SeqCst) > 8);
    assert_eq!(desk.read("runs"), "ran\n", "it was done once");
    assert_eq!(desk.ok(&["index", "get", &index, "a"]), "{\"key\":\"a\"}\n");
}

/// An index into which nothing can be put stops the worker, and its tasks stay as they were.
#[test]
fn an_index_that_is_broken_stops_the_worker() {
    let desk = Desk::new();
    desk.ok(&["index", "init", "-q", "./i"]);
    desk.ok(&["push", "-q", "./jobs", "id=a"]);
    // Only when a record has a new column are the columns read again.
    let script = r#"echo '{' > i/versions/datapackage.json/1; echo '{"key":"a","new":1}'"#;
    let told = work(&desk, "./i", &[], script);
    assert_eq!(told.status, Some(12), "{told:?}");
    assert!(told.err.contains("stopped: nothing can be put into"), "{told:?}");
    assert!(told.err.contains("0 tasks completed, 1 given back"), "{told:?}");
    let left: serde_json::Value =
        serde_json::from_str(&desk.ok(&["show", "./jobs", "a", "--json"])).unwrap();
    assert_eq!(left["attempts"][0]["state"], "released");
}

/// A task whose worker was killed after the put, and before the ack, is done again: the same key, so the same record.
#[test]
fn records_of_two_attempts_are_one() {
    let desk = Desk::new();
    desk.ok(&[
        "init",
        "-q",
        "./jobs",
        "--lease",
        "1s",
        "--backoff",
        "10ms",
        "--backoff-max",
        "10ms",
    ]);
    desk.ok(&["push", "-q", "./jobs", "id=a"]);
    let script = r#"echo "{\"key\":\"a\",\"attempt\":$DFQ_ATTEMPT}"; [ $DFQ_ATTEMPT -gt 1 ] || { kill -9 $PPID; sleep 600; }"#;
    let args = ["work", "./jobs", "--index", "./i", "--drain", "--", "sh", "-c"];
    let killed = desk.dfq(&[&args[..], &[script]].concat());
    assert_eq!(killed.status, None, "{killed:?}");
    let again = desk.dfq(&[&args[..], &[script]].concat());
    assert_eq!(again.status, Some(0), "{again:?}");
    assert_eq!(desk.ok(&["index", "scan", "./i"]), "{\"key\":\"a\",\"attempt\":2}\n");
}

/// The example, as anybody would run it: it checks its own result.
#[test]
fn enrich_and_record() {
    let desk = Desk::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/enrich-and-record");
    let dfq = Path::new(env!("CARGO_BIN_EXE_dfq")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let plain = desk.command(&[]);
    let mut command = Command::new("bash");
    command.arg(script).arg("work").current_dir(desk.path(""));
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.env("PATH", format!("{}:{path}", dfq.display())).output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains(r#"{"domain":"example.com","letters":11,"dots":1}"#), "{out}");
}
