//! Synced queues as people see them: how the merge goes, what other nodes have to do with a task, and what is refused
//! with one sentence that says what to do.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dfq_s3_server::Fault;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::bucket::TestBucket;
use support::{Desk, Said, until};

/// Two nodes of one queue, which have heard of each other.
fn two_nodes(desk: &Desk, hub: &str) {
    for node in ["./a", "./b", "./a"] {
        desk.ok(&["supervise", node, "--with", hub, "--once", "-q"]);
    }
}

fn push(desk: &Desk, node: &str, ids: &[String]) {
    let lines: String = ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}\n")).collect();
    let said = desk.dfq_with(&["push", node, "--jsonl", "-", "--id-field", "id", "-q"], lines);
    assert_eq!(said.status, Some(0), "{said:?}");
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

/// What `explain --json` says about something.
fn finding(desk: &Desk, args: &[&str], about: &str) -> Option<Value> {
    let said = desk.ok(&[&["explain", "--json"], args].concat());
    said.lines().map(json).find(|finding| finding["about"] == about)
}

/// The command ends with this status, says all of these in one line, and makes none of these.
fn refused(said: &Said, status: i32, words: &[&str]) {
    assert_eq!(said.status, Some(status), "{said:?}");
    let lines: Vec<&str> = said.err.lines().collect();
    assert!(matches!(lines[..], [line] if line.starts_with("dfq: ")), "one line: {said:?}");
    for word in words {
        assert!(said.err.contains(word), "'{word}' in {said:?}");
    }
}

#[test]
fn how_the_merge_goes_is_told_everywhere() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    two_nodes(&desk, &hub);
    push(&desk, "./a", &["x".to_owned()]);
    let passed = desk.dfq(&["supervise", "./a", "--once"]);
    assert!(passed.err.contains("1 up, 0 down"), "{passed:?}");
    assert!(passed.err.contains(" B sent, ") && passed.err.contains(" received"), "{passed:?}");
    let line = json(&desk.ok(&["supervise", "./b", "--once", "--json"]));
    let bytes = |of: &Value, name: &str| of[name].as_u64().unwrap();
    assert!(bytes(&line["bytes"], "received") > bytes(&line["bytes"], "sent"), "a listing: {line}");
    let status = json(&desk.ok(&["supervise", "./b", "--status", "--json"]));
    assert_eq!(status["bytes"], line["bytes"]);
    let shown = desk.ok(&["supervise", "./b", "--status"]);
    assert!(shown.contains(" sent, ") && shown.contains(" received, $0.0"), "{shown}");
    let stats = desk.dfq(&["stats", "./b"]);
    assert!(stats.err.starts_with("dfq: ./b: merged "), "{stats:?}");
    assert!(stats.err.contains("0 up, 1 down") && stats.err.contains(&hub), "{stats:?}");
    let merge = json(&desk.ok(&["stats", "./b", "--json"]))["merge"].clone();
    assert_eq!(merge["down"], 1);
    assert_eq!(merge["late"], false);
    assert_eq!(merge["conflicts"], 0);
    assert_eq!(merge["bytes_sent"], line["bytes"]["sent"]);
    assert!(merge["dollars"].as_f64().unwrap() > 0.0, "{merge}");
    let explained = finding(&desk, &["./b"], "merge").unwrap();
    assert!(explained["text"].as_str().unwrap().starts_with("The folder was merged "));
    assert_eq!(explained["merge"]["node"], merge["node"]);
    // What is no node says nothing of all that.
    assert_eq!(finding(&desk, &[&hub], "merge"), None);
    assert_eq!(json(&desk.ok(&["stats", &hub, "--json"]))["merge"], Value::Null);
}

#[test]
fn what_keeps_it_from_merging_is_told() {
    let desk = Desk::new();
    two_nodes(&desk, "./hub");
    std::fs::rename(desk.path("hub"), desk.path("away")).unwrap();
    assert_eq!(desk.dfq(&["supervise", "./a", "--once"]).status, Some(3));
    let status = desk.dfq(&["supervise", "./a", "--status"]);
    assert_eq!(status.status, Some(1), "{status:?}");
    assert!(status.out.contains("failing"), "{status:?}");
    for args in [&["stats", "./a"][..], &["explain", "./a"], &["explain", "./a", "x"]] {
        push(&desk, "./a", &["x".to_owned()]);
        let said = desk.dfq(args);
        assert!((said.err + &said.out).contains("now that fails: "), "{args:?}");
    }
}

#[test]
fn a_task_is_explained_by_what_other_nodes_have_to_do_with_it() {
    let desk = Desk::new();
    two_nodes(&desk, "./hub");
    let ids: Vec<String> = (0..24).map(|number| format!("t{number}")).collect();
    push(&desk, "./a", &ids);
    let new = finding(&desk, &["./a", "t0"], "not_up").unwrap();
    assert!(new["text"].as_str().unwrap().contains("no other node knows of it"), "{new}");
    for node in ["./a", "./b"] {
        desk.ok(&["supervise", node, "--once", "-q"]);
    }
    for node in ["./a", "./b"] {
        assert_eq!(finding(&desk, &[node, "t0"], "not_up"), None);
    }
    // Each is left to one of the two, and to nobody there.
    let left: Vec<Value> =
        ids.iter().filter_map(|id| finding(&desk, &["./b", id], "left")).collect();
    assert!(!left.is_empty() && left.len() < ids.len(), "{left:?}");
    for finding in &left {
        assert!(finding["node"].is_string() && finding["until"].is_string(), "{finding}");
    }
    let of_all = finding(&desk, &["./b"], "left").unwrap();
    assert_eq!(of_all["count"], left.len());
    // A worker that ends because of that says so.
    let work = |form: &str| desk.dfq(&["work", "./b", "--until", "idle", form, "--", "true"]);
    let summary = json(&work("--json").out);
    assert_eq!(summary["left_to_others"], left.len());
    assert_eq!(summary["completed"], ids.len() - left.len());
    let said = work("--verbose");
    assert!(said.err.contains(&format!("{} left to other nodes", left.len())), "{said:?}");
    // Another node's worker has one.
    let polled = json(&desk.ok(&["poll", "./a", "--json"]));
    for node in ["./a", "./b"] {
        desk.ok(&["supervise", node, "--once", "-q"]);
    }
    let id = polled["id"].as_str().unwrap();
    let held = finding(&desk, &["./b", id], "elsewhere").unwrap();
    assert!(held["until"].is_string() && held["node"].is_string(), "{held}");
    assert_eq!(finding(&desk, &["./a", id], "elsewhere"), None, "it is its own there");
}

#[test]
fn a_task_in_conflict_says_so() {
    let desk = Desk::new();
    two_nodes(&desk, "./hub");
    for node in ["./a", "./b"] {
        let payload = format!("{{\"from\":\"{node}\"}}");
        assert_eq!(desk.dfq_with(&["push", node, "--id", "x"], payload).status, Some(0));
    }
    for node in ["./a", "./b"] {
        desk.ok(&["supervise", node, "--once", "-q"]);
    }
    let conflict = finding(&desk, &["./b", "x"], "conflict").unwrap();
    assert_eq!(conflict["count"], 1);
    assert_eq!(finding(&desk, &["./a", "x"], "conflict"), None);
    let merge = &finding(&desk, &["./b"], "merge").unwrap()["merge"];
    assert_eq!(merge["conflicts"], 1);
}

#[test]
fn a_disk_that_is_not_mounted_is_noticed_before_anything_is_made() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    desk.write("dfq.toml", format!("provider = 'synced'\nbucket = '{hub}'\n[queues.q]\n"));
    let folder = desk.path("queues/default/q");
    desk.ok(&["supervise", "q", "--once"]);
    std::fs::rename(desk.path("queues"), desk.path("unmounted")).unwrap();
    let worker = ["work", "q", "--supervise", "--until", "idle", "-q", "--", "true"];
    for args in [&["supervise", "q", "--once"][..], &["supervise", "q"], &worker] {
        refused(&desk.dfq(args), 2, &["was node '", "mount it", "--yes"]);
        assert!(!desk.path("queues").exists(), "{args:?}");
    }
    desk.ok(&["supervise", "q", "--once", "--yes"]);
    assert!(folder.exists());
    // Where the hub does not answer, that cannot be known.
    std::fs::remove_dir_all(desk.path("queues")).unwrap();
    let desk = desk.and(vec![("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9".to_owned())]);
    for args in [&["supervise", "q", "--once"][..], &worker] {
        refused(&desk.dfq(args), 7, &["no answer", "mount it", "dfq init"]);
        assert!(!desk.path("queues").exists(), "{args:?}");
    }
    assert_eq!(desk.dfq(&["supervise", "q", "--once", "--yes"]).status, Some(7));
    assert!(folder.join("queue.json").exists(), "a first start offline");
    std::fs::remove_dir_all(desk.path("queues")).unwrap();
    desk.ok(&["init", "q"]);
    refused(&desk.dfq(&["supervise", "q", "--once"]), 7, &["no answer"]);
}

#[test]
fn what_cannot_be_merged_is_refused_in_a_sentence() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    desk.ok(&["supervise", "./a", "--with", &hub, "--once"]);
    for (args, status, words) in [
        (
            &["./new", "--with", "s3://nobucket/q", "--once"][..],
            3,
            &["no such bucket", "make it"][..],
        ),
        (&["./new", "--with", "./new", "--once"], 2, &["with itself"]),
        (&["./new", "--with", &hub, "--every", "0"], 2, &["too often", "1s"]),
        (&["./new", "--with", &hub, "--every", "1ms"], 2, &["too often", "1s"]),
        (&["./a", "--every", "1h"], 2, &["too seldom", "leave out"]),
        (&["./new"], 3, &["no queue", "--with"]),
        (&["./new", "--status"], 3, &["no queue", "--with"]),
        (&["./new", "--leave"], 3, &["no queue", "--with"]),
        (&["./new", "--adopt", "--with", &hub], 3, &["no queue", "--with"]),
        (&[&hub, "--once"], 2, &["not a folder"]),
    ] {
        refused(&desk.dfq(&[&["supervise"], args].concat()), status, words);
        assert!(!desk.path("new").exists(), "{args:?}");
    }
    let years = desk.dfq(&["supervise", "./a", "--every", "5y"]);
    assert_eq!(years.status, Some(2), "{years:?}");
    assert!(years.err.contains("7d"), "{years:?}");
    let keyless = desk.and(vec![("AWS_SECRET_ACCESS_KEY", "wrong".to_owned())]);
    for folder in ["./a", "./new"] {
        let said = keyless.dfq(&["supervise", folder, "--with", &hub, "--once"]);
        refused(&said, 9, &["the credentials are wrong"]);
    }
    assert!(!keyless.path("new").exists());
}

#[test]
fn a_newer_hub_is_left_alone() {
    let desk = Desk::new();
    desk.ok(&["supervise", "./a", "--with", "./hub", "--once"]);
    let settings = desk.read("hub/queue.json");
    for (old, new) in
        [("\"format\": 1", "\"format\": 2"), ("\"synced\"\n", "\"synced\", \"magic\"\n")]
    {
        let newer = settings.replace(old, new);
        assert_ne!(newer, settings);
        desk.write("hub/queue.json", newer);
        for folder in ["./a", "./new"] {
            let said = desk.dfq(&["supervise", folder, "--with", "./hub", "--once"]);
            refused(&said, 10, &["upgrade dfq"]);
        }
        // Nor does it go on trying: it would not get better.
        let said = desk.dfq(&["supervise", "./a", "-q"]);
        refused(&said, 10, &["upgrade dfq"]);
        assert!(!desk.path("new").exists());
    }
}

#[test]
fn an_empty_bucket_and_a_path_with_spaces() {
    let desk = Desk::new();
    desk.write("dfq.toml", "provider = 'synced'\nbucket = ''\n[queues.q]\n");
    let empty = desk.dfq(&["supervise", "q", "--once"]);
    refused(&empty, 2, &["dfq.toml: bucket is ''", "s3://bucket/prefix"]);
    std::fs::remove_file(desk.path("dfq.toml")).unwrap();
    let (node, hub) = ("./köln süd/q 1", "./der hub/日本");
    desk.ok(&["supervise", node, "--with", hub, "--once"]);
    push(&desk, node, &["ä b".to_owned()]);
    desk.ok(&["supervise", node, "--once"]);
    let status = json(&desk.ok(&["supervise", node, "--status", "--json"]));
    assert_eq!(status["up"], 1, "{status}");
    assert!(status["hub"].as_str().unwrap().starts_with('/'), "known from wherever one looks");
    assert_eq!(json(&desk.ok(&["stats", hub, "--json"]))["pending"], 1);
}

/// Runs a command where these folders cannot be written. Nothing, if this machine does not let us.
fn read_only(desk: &Desk, args: &[&str]) -> Option<Said> {
    let here = desk.path(".");
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && cd \"$0\" && echo mounted && exec \"$@\"";
    let mut command: Command =
        desk.program(Path::new("unshare"), &["-m", "sh", "-c", script, here.to_str().unwrap()]);
    command.arg(env!("CARGO_BIN_EXE_dfq")).args(args);
    let output = command.output().ok()?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let out = out.strip_prefix("mounted\n")?.to_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(Said { command: args.join(" "), out, err, status: output.status.code() })
}

#[test]
fn a_disk_that_cannot_be_written() {
    let desk = Desk::new();
    desk.ok(&["supervise", "./a", "--with", "./hub", "--once"]);
    let Some(once) = read_only(&desk, &["supervise", "./a", "--once"]) else {
        println!("SKIPPED: nothing can be mounted read-only here");
        return;
    };
    refused(&once, 9, &["cannot write", "Read-only file system"]);
    let new = read_only(&desk, &["supervise", "./new", "--with", "./hub", "--once"]).unwrap();
    refused(&new, 9, &["Read-only file system"]);
    let status = read_only(&desk, &["supervise", "./a", "--status"]).unwrap();
    assert!(status.out.contains("last merged"), "{status:?}");
    let explained = read_only(&desk, &["explain", "./a"]).unwrap();
    assert!(explained.out.contains("The folder was merged"), "{explained:?}");
}

#[test]
fn a_worker_that_merges_stops_in_mid_pass() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    desk.ok(&["supervise", "./a", "--with", &hub, "--once", "-q"]);
    push(&desk, "./a", &(0..20).map(|number| format!("t{number}")).collect::<Vec<_>>());
    // The first tasks that go up never come to an end.
    bucket.server.on(|request| {
        (request.op == "PutObject" && request.key.contains("/pending/"))
            .then_some(Fault::DelayAnswer(Duration::from_secs(3600)))
    });
    let worker = desk.start(&["work", "./a", "--supervise", "-q", "--", "true"]);
    let arrived = || bucket.server.objects().keys().any(|key| key.contains("/pending/"));
    until("a pass is at it", arrived);
    bucket.server.off();
    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    let ended = worker.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    // What was done last has gone up, too: it merges once more.
    let all = json(&desk.ok(&["stats", "./a", "--json", "-q"]));
    let there = json(&desk.ok(&["stats", &hub, "--json", "-q"]));
    assert_eq!((&all["pending"], &all["completed"]), (&there["pending"], &there["completed"]));
    assert!(!desk.path("a/sync/supervisor.json").exists(), "it has given up its turn");
}

#[test]
fn a_pass_that_is_stopped_says_that_it_did_not_come_to_its_end() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    desk.ok(&["supervise", "./a", "--with", &hub, "--once", "-q"]);
    push(&desk, "./a", &["x".to_owned()]);
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_asked = std::sync::Arc::clone(&asked);
        // The network hangs.
        bucket.server.on(move |request| {
            let is_push = request.op == "PutObject" && request.key.contains("/pending/");
            is_asked.fetch_or(is_push, std::sync::atomic::Ordering::SeqCst);
            is_push.then_some(Fault::Delay(Duration::from_secs(3600)))
        });
        let once = desk.start(&["supervise", "./a", "--once"]);
        until("the pass is at it", || asked.load(std::sync::atomic::Ordering::SeqCst));
        kill_process(Pid::from_child(&once), signal).unwrap();
        let ended = once.wait_with_output().unwrap();
        bucket.server.off();
        assert_eq!(ended.status.code(), Some(status), "{ended:?}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("stopped in the middle of a pass"), "{said}");
    }
    desk.ok(&["supervise", "./a", "--once"]);
    assert_eq!(json(&desk.ok(&["stats", &hub, "--json", "-q"]))["pending"], 1);
}

#[test]
fn what_is_dear_says_so_in_a_worker_too() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    desk.ok(&["supervise", "./a", "--with", &hub, "--every", "2s", "--once", "-q"]);
    let work = ["work", "./a", "--supervise", "--until", "idle", "--", "true"];
    let said = desk.dfq(&work);
    assert!(said.err.contains("to look every 2s costs about $"), "{said:?}");
    assert!(said.err.contains("sync_every") && !said.err.contains("--every"), "{said:?}");
    let hurried = desk.dfq(&["supervise", "./a", "--every", "1s", "--once"]);
    assert!(hurried.err.contains("without --every, every 2s, it is $"), "{hurried:?}");
}
