//! What users of other syncing programs report, each with real folders, real processes and a real server: nodes that
//! were away, stale locks, one id on two nodes, late listings, and files that change while they are merged.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dfq_s3_server::{Faults, Lies};
use support::Desk;
use support::synced::{
    Files, Town, alone, ended, eventually, merged, pending, poll, push, stats, stop, wall_days_ago,
    work,
};

const DAY_MS: i64 = 24 * 3600 * 1000;

/// Makes a node look as if its last pass was so many days ago.
fn was_away(desk: &Desk, node: &str, days: i64) {
    let path = format!("{node}/sync/nodes.json");
    let mut told: serde_json::Value = serde_json::from_str(&desk.read(&path)).unwrap();
    for clock in ["began", "began_there"] {
        told[clock] = serde_json::json!(wall_days_ago(days));
    }
    desk.write(&path, format!("{told}\n"));
}

#[test]
fn a_node_that_was_away_brings_nothing_back() {
    let town = Town::with_nodes(&["./a", "./b"]);
    let (desk, server) = (&town.desk, &town.bucket.server);
    // The hub's records are forty days old when they are purged.
    server.set_lies(Lies { clock_offset_ms: -40 * DAY_MS, ..Lies::default() });
    push(desk, "./a", (0..12).map(|number| format!("old-{number}")));
    push(desk, "./a", ["open-1", "open-2"]);
    town.settle(&["./a", "./b"]);
    // The last that the node sees: it has claimed some, has done some, and nobody hears of it any more.
    alone(desk, "b");
    let mut held = poll(desk, "./b");
    assert_eq!(held.len(), 14);
    // The claims of these are heard of when it is back.
    held.retain(|(id, _)| id.starts_with("old"));
    let (done, left) = held.split_at(held.len() / 2);
    for (_, receipt) in done {
        desk.ok(&["ack", "./b", receipt]);
    }
    // Meanwhile the others do all but two of them, and the hub forgets that.
    for (id, _) in left {
        desk.ok(&["cancel", "./a", id, "-q"]);
    }
    desk.ok(&[
        "work",
        "./a",
        "--until",
        "idle",
        "-q",
        "--",
        "sh",
        "-c",
        "case $DFQ_TASK_ID in open-*) exit 75; esac",
    ]);
    for id in pending(&merged(&desk.path("a"))) {
        if id.starts_with("old") {
            desk.ok(&["cancel", "./a", id, "-q"]);
        }
    }
    town.merge("./a");
    server.set_lies(Lies::default());
    for kind in ["--completed", "--failed"] {
        desk.ok(&["gc", &town.hub, kind, "--older-than", "30d", "--yes", "-q"]);
    }
    town.settle(&["./a"]);
    let purged = town.in_hub();
    assert!(ended(&purged, "completed").iter().all(|id| id.starts_with("open")), "{purged:?}");
    assert!(pending(&purged).iter().all(|id| id.starts_with("open")), "{purged:?}");
    // It returns, with tasks of its own; one has the name of a task that was done and forgotten.
    push(desk, "./b", ["new-1", "new-2", "new-3"]);
    was_away(desk, "b", 89);
    town.settle(&["./b", "./a"]);
    let all = town.alike(&["./a", "./b"]);
    let seen: Vec<&str> = pending(&all)
        .into_iter()
        .chain(ended(&all, "completed"))
        .chain(ended(&all, "failed"))
        .collect();
    assert!(!seen.iter().any(|id| id.starts_with("old")), "what was purged is back: {seen:?}");
    for id in ["new-1", "new-2", "new-3", "open-1", "open-2"] {
        assert!(seen.contains(&id), "{id} is lost: {seen:?}");
    }
    assert_eq!(desk.ok(&["conflicts", "./b", "--json"]), "", "nothing was lost");
}

#[test]
fn a_node_that_was_away_for_too_long_asks_before_it_changes_anything() {
    let town = Town::with_nodes(&["./a", "./b"]);
    let desk = &town.desk;
    push(desk, "./a", ["x", "y"]);
    town.settle(&["./a", "./b"]);
    work(desk, "./a");
    push(desk, "./b", ["new"]);
    was_away(desk, "b", 91);
    let before = (merged(&desk.path("b")), town.bucket.server.objects());
    for args in [&["supervise", "./b", "--once"][..], &["supervise", "./b"]] {
        let said = desk.dfq(args);
        assert_eq!(said.status, Some(2), "{said:?}");
        assert!(said.err.contains("91 days ago") && said.err.contains("--yes"), "{said:?}");
    }
    assert_eq!((merged(&desk.path("b")), town.bucket.server.objects()), before);
    desk.ok(&["supervise", "./b", "--once", "--yes"]);
    town.settle(&["./a", "./b"]);
    town.alike(&["./a", "./b"]);
    assert_eq!(stats(desk, &town.hub)["pending"] + stats(desk, &town.hub)["completed"], 3);
}

#[test]
fn a_node_that_has_lost_the_time_of_its_last_pass_asks_as_well() {
    let town = Town::with_nodes(&["./a"]);
    let desk = &town.desk;
    was_away(desk, "a", 91);
    desk.write("a/sync/nodes.json", "{\"nodes\":[");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(91 * 24 * 3600);
    let check_ins = std::fs::read_dir(desk.path("a/sync/check-ins")).unwrap();
    let files = std::fs::read_dir(desk.path("a/sync")).unwrap().chain(check_ins);
    for path in files.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let said = town.try_merge("./a");
    assert_eq!(said.status, Some(2), "{said:?}");
    assert!(said.err.contains("--yes"), "{said:?}");
}

#[test]
fn a_stale_lock_keeps_nobody() {
    let desk = Desk::new();
    desk.ok(&["supervise", "./a", "--with", "./hub", "--every", "1s", "--once", "-q"]);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let lock = |host: &str, pid: u32| {
        format!(
            "{{\"nonce\":\"00000000000000000000000000000000\",\"host\":\"{host}\",\"pid\":{pid}}}\n"
        )
    };
    // One that was killed, as it has left it itself.
    let mut killed = desk.start(&["supervise", "./a", "-q"]);
    eventually("it says that it merges", || desk.path("a/sync/supervisor.json").exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut locks = vec![("killed", desk.read("a/sync/supervisor.json"))];
    assert!(locks[0].1.contains(&host), "{locks:?}");
    locks.push(("another host", lock("elsewhere", 1)));
    locks.push(("the pid is another program's", lock(&host, std::process::id())));
    locks.push(("torn", "{\"nonce\":".to_owned()));
    locks.push(("empty", String::new()));
    locks.push(("of an hour to come", lock(&host, 1)));
    for (number, (what, lock)) in locks.into_iter().enumerate() {
        desk.write("a/sync/supervisor.json", lock);
        if what.starts_with("of an hour") {
            let file =
                std::fs::File::options().write(true).open(desk.path("a/sync/supervisor.json"));
            let later = std::time::SystemTime::now() + Duration::from_secs(3600);
            file.unwrap().set_modified(later).unwrap();
        }
        push(&desk, "./a", [format!("t{number}")]);
        let next = desk.start(&["supervise", "./a", "-q"]);
        eventually(what, || stats(&desk, "./hub")["pending"] == number as u64 + 1);
        stop(next);
        assert!(!desk.path("a/sync/supervisor.json").exists(), "{what}");
    }
}

#[test]
fn one_id_on_three_nodes_is_one_task_and_each_other_payload_is_kept() {
    let nodes = ["./a", "./b", "./c"];
    let town = Town::with_nodes(&nodes);
    let desk = &town.desk;
    let put = |node: &str, id: &str, payload: &str, more: &[&str]| {
        let args = [&["push", node, "--id", id, "-q"], more].concat();
        let said = desk.dfq_with(&args, payload);
        assert_eq!(said.status, Some(0), "{said:?}");
    };
    for node in nodes {
        put(node, "same", "{\"n\":1}", &[]);
        put(node, "differs", &format!("{{\"from\":\"{node}\"}}"), &[]);
    }
    // One is pending here and waits for its time there.
    put("./a", "later", "{\"from\":\"a\"}", &["--delay", "1h"]);
    put("./b", "later", "{\"from\":\"b\"}", &[]);
    // One is done elsewhere before its loser is heard of.
    put("./a", "done", "{\"from\":\"a\"}", &[]);
    put("./b", "done", "{\"from\":\"b\"}", &[]);
    alone(desk, "a");
    let held = poll(desk, "./a");
    let done = held.iter().find(|(id, _)| id == "done").unwrap();
    desk.ok(&["ack", "./a", &done.1]);
    for (_, receipt) in held.iter().filter(|(id, _)| id != "done") {
        desk.ok(&["release", "./a", receipt]);
    }
    town.settle(&nodes);
    let all = town.alike(&nodes);
    assert_eq!(ended(&all, "completed"), ["done"]);
    assert!(desk.ok(&["show", "./c", "differs"]).contains("./a"), "the first push counts");
    assert!(desk.ok(&["show", "./c", "done"]).contains("\"a\""));
    let kept = |node: &str| -> Vec<(String, String)> {
        let said = desk.dfq(&["conflicts", node, "--json"]);
        let lines = said.out.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            (line["id"].as_str().unwrap().to_owned(), line["task"]["from"].to_string())
        });
        lines.collect()
    };
    let losers: std::collections::BTreeSet<_> = nodes.iter().flat_map(|it| kept(it)).collect();
    let of = |id: &str| losers.iter().filter(|it| it.0 == id).count();
    assert_eq!((of("same"), of("differs"), of("later"), of("done")), (0, 2, 1, 1), "{losers:?}");
    for node in nodes {
        let shown = desk.dfq(&["conflicts", node]);
        for (id, _) in kept(node) {
            assert!(shown.out.contains(&id), "{shown:?}");
        }
        assert_eq!(stats_warns(desk, node), !kept(node).is_empty());
    }
    // Pushed again on each node that has kept some, they are tasks of their own, once each.
    for node in nodes {
        desk.ok(&["conflicts", node, "--push", "-q"]);
        assert_eq!(kept(node), []);
    }
    town.settle(&nodes);
    let all = town.alike(&nodes);
    let again: Vec<&str> = pending(&all).into_iter().filter(|id| id.contains('.')).collect();
    assert_eq!(again.len(), losers.len(), "{again:?}");
    for node in nodes {
        assert_eq!(kept(node), [], "{node}");
    }
}

fn stats_warns(desk: &Desk, node: &str) -> bool {
    desk.dfq(&["stats", node]).err.contains("conflict")
}

#[test]
fn late_listings_lose_nothing_and_bring_nothing_back() {
    let nodes = ["./a", "./b", "./c"];
    let town = Town::with_nodes(&nodes);
    let (desk, server) = (&town.desk, &town.bucket.server);
    let ran = desk.path("ran");
    let run = format!("echo $DFQ_TASK_ID >> {}", ran.display());
    server.set_faults(Faults { seed: 7, list_lag: Duration::from_secs(3), ..Faults::default() });
    for round in 0..12 {
        push(desk, nodes[round % 3], (0..6).map(|number| format!("r{round}-{number}")));
        for node in nodes {
            town.try_merge(node);
        }
        // One node alone works, so whatever runs twice has come back.
        desk.dfq(&["work", "./a", "--until", "idle", "-q", "--", "sh", "-c", &run]);
        town.try_merge(nodes[(round + 1) % 3]);
    }
    server.set_faults(Faults::default());
    town.settle(&nodes);
    let all = town.alike(&nodes);
    let done: Vec<String> = desk.read("ran").lines().map(str::to_owned).collect();
    let mut times = BTreeMap::new();
    for id in &done {
        *times.entry(id.as_str()).or_insert(0) += 1;
    }
    assert!(times.values().all(|runs| *runs == 1), "done again: {times:?}");
    assert!(!times.is_empty());
    let mut seen = [pending(&all), ended(&all, "completed")].concat();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 72, "each is pending or done, and nothing else");
    assert_eq!(ended(&all, "completed").len(), done.len());
}

/// What somebody does in the folder while a pass goes on. Each leaves something that must not be lost.
const CHANGES: [&str; 6] = ["ack", "heartbeat", "release", "fail", "push", "cancel"];

fn change(desk: &Desk, what: &str, receipt: &str) {
    let said = match what {
        "push" => desk.dfq_with(&["push", "./a", "--id", "mid", "-q"], "{}"),
        "cancel" => desk.dfq(&["cancel", "./a", "held", "-q"]),
        "fail" => desk.dfq(&["fail", "./a", receipt, "-q"]),
        verb => desk.dfq(&[verb, "./a", receipt]),
    };
    assert_eq!(said.status, Some(0), "{said:?}");
}

fn is_right(what: &str, all: &Files) -> bool {
    let is_over = |place: &str| ended(all, place).contains(&"held");
    let is_pending = pending(all).contains(&"held");
    match what {
        "ack" | "heartbeat" => is_over("completed") && !is_pending,
        "fail" | "cancel" => is_over("failed") && !is_pending,
        "release" => {
            let leases = all.iter().filter(|(name, _)| name.contains("/held/lease"));
            is_pending && leases.count() == 1 && all.values().any(|it| it.contains("released"))
        }
        _ => is_pending && pending(all).contains(&"mid"),
    }
}

#[test]
fn a_file_that_changes_at_any_request_of_a_pass_is_merged_by_the_next() {
    let mut changed = 0;
    for what in CHANGES {
        for at in 1.. {
            let town = Town::with_nodes(&["./a", "./b"]);
            let (desk_a, desk) = (&town.desk, Arc::clone(&town.desk));
            push(desk_a, "./b", ["from-b"]);
            town.merge("./b");
            push(desk_a, "./a", ["other"]);
            // The claim is known in the hub, or not yet.
            assert_eq!(
                desk_a.dfq_with(&["push", "./a", "--id", "held", "-q"], "{}").status,
                Some(0)
            );
            if at % 2 == 0 {
                town.merge("./a");
            }
            alone(desk_a, "a");
            let held = poll(desk_a, "./a");
            let receipt = held.iter().find(|(id, _)| id == "held").unwrap().1.clone();
            let renewed = receipt.clone();
            let (seen, count) = (Arc::new(AtomicU64::new(0)), at);
            let counter = Arc::clone(&seen);
            town.bucket.server.on(move |_| {
                // Other requests wait meanwhile.
                if counter.fetch_add(1, Ordering::SeqCst) + 1 == count {
                    change(&desk, what, &receipt);
                }
                None
            });
            town.try_merge("./a");
            town.bucket.server.off();
            if seen.load(Ordering::SeqCst) < at {
                break;
            }
            changed += 1;
            if what == "heartbeat" {
                // The claim is still its owner's.
                change(desk_a, "ack", &renewed);
            }
            town.settle(&["./a", "./b"]);
            let all = town.alike(&["./a", "./b"]);
            assert!(is_right(what, &all), "{what} at request {at}: {all:?}");
            for id in ["from-b", "other"] {
                assert!(pending(&all).contains(&id), "{what} at request {at}: {id} is lost");
            }
        }
    }
    assert!(changed > 60, "{changed}");
    println!("{changed} changes in the middle of a pass");
}
