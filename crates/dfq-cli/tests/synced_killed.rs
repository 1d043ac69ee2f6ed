//! A pass that is killed after each of its requests in turn, over all that a pass can meet.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use dfq_s3_server::{Fault, Lies};
use rustix::process::{Pid, Signal, kill_process};
use support::bucket::TestBucket;
use support::synced::{Files, Town, alone, ended, merged, pending, poll, push};
use support::{Desk, short_or_long};

const NODES: [&str; 2] = ["./a", "./b"];

fn put(desk: &Desk, node: &str, id: &str, more: &[&str]) {
    let args = [&["push", node, "--id", id, "-q"], more].concat();
    let said = desk.dfq_with(&args, format!("{{\"from\":\"{node}\"}}"));
    assert_eq!(said.status, Some(0), "{said:?}");
}

/// Claims this and no other.
fn claim(desk: &Desk, node: &str, id: &str) -> String {
    alone(desk, node);
    let held = poll(desk, node);
    for (_, receipt) in held.iter().filter(|held| held.0 != id) {
        desk.ok(&["release", node, receipt]);
    }
    held.into_iter().find(|held| held.0 == id).unwrap().1
}

/// A node that is about to meet one of everything in its next pass.
fn before() -> Town {
    let town = Town::with_nodes(&NODES);
    let (desk, server) = (&town.desk, &town.bucket.server);
    // Done three hours ago, and purged since: the node has one still pending, and pushes the other's name anew.
    server.set_lies(Lies { clock_offset_ms: -3 * 3600 * 1000, ..Lies::default() });
    push(desk, "./a", ["gone", "x-1", "x-2", "x-3", "y-1", "y-2"]);
    town.settle(&NODES);
    put(desk, "./b", "reborn", &[]);
    for id in ["gone", "reborn"] {
        let receipt = claim(desk, "./b", id);
        desk.ok(&["ack", "./b", &receipt]);
    }
    town.merge("./b");
    server.set_lies(Lies::default());
    desk.ok(&["gc", &town.hub, "--completed", "--older-than", "2h", "--yes", "-q"]);
    // What is new at the other node: pushes, a claim, records, a delayed task, one that fails.
    put(desk, "./b", "new-b", &[]);
    put(desk, "./b", "later-b", &["--delay", "1h"]);
    claim(desk, "./b", "y-1");
    let receipt = claim(desk, "./b", "y-2");
    desk.ok(&["ack", "./b", &receipt]);
    // And here.
    put(desk, "./a", "both", &[]);
    put(desk, "./b", "both", &[]);
    put(desk, "./a", "reborn", &[]);
    put(desk, "./a", "new-a", &[]);
    put(desk, "./a", "later-a", &["--delay", "1h"]);
    claim(desk, "./a", "x-1");
    let receipt = claim(desk, "./a", "x-2");
    desk.ok(&["ack", "./a", &receipt]);
    let receipt = claim(desk, "./a", "x-3");
    desk.ok(&["fail", "./a", &receipt]);
    town.merge("./b");
    desk.ok(&["pause", &town.hub, "-q"]);
    town
}

/// The same again, on a server and a desk of its own.
fn copy_of(town: &Town) -> Town {
    let bucket = TestBucket::start();
    for (key, bytes) in town.bucket.server.objects() {
        bucket.server.put(&key, &bytes);
    }
    let (desk, hub) = (Arc::new(bucket.desk()), town.hub.clone());
    for node in NODES {
        let copied =
            Command::new("cp").arg("-a").args([town.desk.path(node), desk.path(node)]).status();
        assert!(copied.unwrap().success());
    }
    Town { bucket, desk, hub }
}

/// A pass of the first node that is killed at its nth request. Answers whether it had so many.
fn kill_at(town: &Town, nth: u64, is_lost: bool) -> bool {
    let (seen, pid) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicI32::new(0)));
    let (counter, of) = (Arc::clone(&seen), Arc::clone(&pid));
    town.bucket.server.on(move |_| {
        if counter.fetch_add(1, Ordering::SeqCst) + 1 < nth {
            return None;
        }
        while of.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let _ = kill_process(Pid::from_raw(of.load(Ordering::SeqCst)).unwrap(), Signal::KILL);
        // What the dead process has sent is carried out, or not.
        is_lost.then_some(Fault::LoseRequest)
    });
    let mut child = town.desk.start(&["supervise", "./a", "--once", "-q"]);
    pid.store(i32::try_from(child.id()).unwrap(), Ordering::SeqCst);
    let status = child.wait().unwrap();
    town.bucket.server.off();
    let is_killed = seen.load(Ordering::SeqCst) >= nth;
    assert_eq!(status.success(), !is_killed, "{status} at request {nth}");
    end_claims(town);
    is_killed
}

/// A task that is to get another number is claimed for that. If the process dies then, that claim runs out in time; here,
/// at once.
fn end_claims(town: &Town) {
    let folder = town.desk.path("a");
    for (name, text) in merged(&folder) {
        if name.contains("/lease") && text.contains("\"moving\"") {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
    }
}

/// What there is, told apart by all but what is drawn anew in each run.
#[derive(Debug, PartialEq)]
struct Outcome {
    names: BTreeSet<String>,
    kept: BTreeMap<String, String>,
    paused: Vec<bool>,
}

fn outcome(town: &Town) -> Outcome {
    let all = town.alike(&NODES);
    let is_named = |name: &&String| !name.starts_with("floors/");
    let names = all.keys().filter(is_named).cloned().collect();
    let mut kept = BTreeMap::new();
    for node in NODES {
        for line in town.desk.dfq(&["conflicts", node, "--json"]).out.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            kept.insert(line["id"].to_string(), line["task"].to_string());
        }
    }
    let paused = |node: &&str| town.desk.path(node).join("paused.json").exists();
    Outcome { names, kept, paused: NODES.iter().map(paused).collect() }
}

/// That of a pass which nobody kills, looked at by eye.
fn check(all: &Files, outcome: &Outcome) {
    assert_eq!(ended(all, "completed"), ["x-2", "y-2"], "{all:?}");
    assert_eq!(ended(all, "failed"), ["x-3"]);
    let mut open = pending(all);
    open.sort_unstable();
    assert_eq!(open, ["both", "new-a", "new-b", "reborn@2", "x-1", "y-1"]);
    for later in ["later-a", "later-b"] {
        assert!(
            outcome.names.iter().any(|name| name.starts_with("scheduled/") && name.contains(later))
        );
    }
    for claimed in ["x-1/lease", "y-1/lease"] {
        assert!(outcome.names.iter().any(|name| name.contains(claimed)), "{claimed}");
    }
    assert_eq!(outcome.kept.keys().collect::<Vec<_>>(), ["\"both\""]);
    assert_eq!(outcome.paused, [true, true]);
}

#[test]
fn a_pass_killed_at_any_request_is_made_good_by_the_next() {
    let town = before();
    let whole = copy_of(&town);
    whole.settle(&NODES);
    let expected = outcome(&whole);
    check(&merged(&whole.desk.path("a")), &expected);
    let mut kills = 0;
    // That the last request is not carried out is as if it was killed one request before, but for what goes on at once.
    let modes = [false, true].into_iter().take(short_or_long(1, 2));
    for is_lost in modes {
        for nth in 1.. {
            let town = copy_of(&town);
            if !kill_at(&town, nth, is_lost) {
                break;
            }
            kills += 1;
            town.settle(&NODES);
            assert_eq!(outcome(&town), expected, "killed at request {nth}, lost: {is_lost}");
        }
    }
    assert!(kills > 60, "{kills}");
    println!("{kills} passes were killed");
}

#[test]
fn a_pass_that_is_killed_again_and_again_comes_to_its_end() {
    let town = before();
    let mut nth = 1;
    while kill_at(&town, nth, nth % 2 == 0) {
        nth += 1;
    }
    town.settle(&NODES);
    let all = town.alike(&NODES);
    check(&all, &outcome(&town));
}
