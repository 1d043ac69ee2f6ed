//! Synced queues: real processes, folders of their own, and one bucket.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;

use support::bucket::Place;
use support::synced::{merged, stats, stop};
use support::{Desk, until};

#[test]
fn one_id_pushed_on_two_nodes_is_done_once_and_the_other_is_kept() {
    Place::each().for_each(push_on_two);
}

fn push_on_two(place: Place) {
    let (desk, hub) = (&place.desk, place.address("hub"));
    for node in ["./a", "./b"] {
        desk.ok(&["supervise", node, "--with", &hub, "--once"]);
    }
    assert_eq!(desk.dfq_with(&["push", "./a", "--id", "x"], "{\"from\":\"a\"}").status, Some(0));
    assert_eq!(desk.dfq_with(&["push", "./b", "--id", "x"], "{\"from\":\"b\"}").status, Some(0));
    for node in ["./a", "./b", "./a"] {
        desk.ok(&["supervise", node, "--once"]);
    }
    assert_eq!(merged(&desk.path("a")), merged(&desk.path("b")));
    assert!(desk.ok(&["show", "./b", "x"]).contains("\"a\""), "the first push counts");
    let kept = desk.dfq(&["conflicts", "./b", "--json"]);
    assert_eq!(kept.status, Some(1), "{kept:?}");
    assert!(kept.out.contains("\"from\":\"b\""), "{kept:?}");
    let warned = desk.dfq(&["stats", "./b"]);
    assert!(warned.err.contains("1 conflict in ./b"), "{warned:?}");
    desk.ok(&["conflicts", "./b", "--push"]);
    assert!(desk.ok(&["conflicts", "./b", "--json"]).is_empty());
    desk.ok(&["supervise", "./b", "--once"]);
    desk.ok(&["supervise", "./a", "--once"]);
    desk.ok(&["work", "./a", "--until", "idle", "--", "true"]);
    // What hashes to the other node is left to it for two periods.
    assert_eq!(stats(desk, &hub)["pending"], 2);
}

#[test]
fn each_place_is_used_only_for_what_it_is_for() {
    Place::each().for_each(use_each);
}

fn use_each(place: Place) {
    let (desk, hub) = (&place.desk, place.address("hub"));
    desk.ok(&["supervise", "./a", "--with", &hub, "--once"]);
    let worker = desk.dfq(&["work", &hub, "--until", "idle", "--", "true"]);
    assert!(worker.err.contains("the hub of a synced queue"), "{worker:?}");
    let purge = desk.dfq(&["gc", "./a", "--completed", "--older-than", "7d", "--yes"]);
    assert!(purge.err.contains("only its hub forgets"), "{purge:?}");
    let short = desk.dfq(&["poll", "./a", "--lease", "100s"]);
    assert!(short.err.contains("too short"), "{short:?}");
    // Neither an ordinary bucket nor an ordinary folder is taken for a part of a synced queue.
    let other = place.address("plain");
    assert_eq!(desk.dfq_with(&["push", &other], "{}").status, Some(0));
    let refused = desk.dfq(&["supervise", "./a", "--with", &other, "--once"]);
    assert!(refused.err.contains("--adopt"), "{refused:?}");
    assert_eq!(desk.dfq_with(&["push", "./plain"], "{}").status, Some(0));
    let refused = desk.dfq(&["supervise", "./plain", "--with", &hub, "--once"]);
    assert!(refused.err.contains("--adopt"), "{refused:?}");
    desk.ok(&["supervise", "./plain", "--with", &hub, "--adopt"]);
    desk.ok(&["supervise", "./plain", "--with", &hub, "--once"]);
    assert_eq!(stats(desk, &hub)["pending"], 1);
    desk.ok(&["supervise", "./plain", "--leave"]);
    let left = desk.dfq(&["supervise", "./plain", "--once"]);
    assert!(left.err.contains("not a synced queue"), "{left:?}");
    // Settings that differ are refused, and so is a cadence that others do not count on.
    let seldom = desk.dfq(&["supervise", "./a", "--every", "1h", "--once"]);
    assert!(seldom.err.contains("too seldom"), "{seldom:?}");
}

#[test]
fn a_copied_folder_is_a_node_of_its_own_and_an_empty_one_is_not_believed() {
    Place::each().for_each(copy_a_folder);
}

fn copy_a_folder(place: Place) {
    let (desk, hub) = (&place.desk, place.address("hub"));
    desk.ok(&["supervise", "./a", "--with", &hub, "--once"]);
    assert_eq!(desk.dfq_with(&["push", "./a", "--id", "x"], "{}").status, Some(0));
    desk.ok(&["supervise", "./a", "--once"]);
    let copied = std::process::Command::new("cp")
        .args(["-a"])
        .args([desk.path("a"), desk.path("b")])
        .status();
    assert!(copied.unwrap().success());
    desk.ok(&["supervise", "./a", "--once"]);
    let said = desk.dfq(&["supervise", "./b", "--once"]);
    assert!(said.err.contains("this folder is a copy of node"), "{said:?}");
    let node = |folder: &str| desk.read(&format!("{folder}/sync/node.json"));
    let id = |text: String| text.split('"').nth(3).unwrap().to_owned();
    assert_ne!(id(node("a")), id(node("b")));
    let again = desk.dfq(&["supervise", "./a", "--once"]);
    assert!(!again.err.contains("copy"), "only one of the two takes a new id: {again:?}");
    // The disk is not there any more.
    std::fs::remove_dir_all(desk.path("a")).unwrap();
    let empty = desk.dfq(&["supervise", "./a", "--with", &hub, "--once"]);
    assert_eq!(empty.status, Some(2), "{empty:?}");
    assert!(empty.err.contains("mount it"), "{empty:?}");
    assert_eq!(
        stats(desk, &hub)["pending"],
        1,
        "nothing is removed because it is missing elsewhere"
    );
    desk.ok(&["supervise", "./a", "--with", &hub, "--once", "--yes"]);
    assert_eq!(stats(desk, "./a")["pending"], 1);
}

#[test]
fn a_push_is_elsewhere_before_the_next_pass() {
    let desk = Desk::new();
    let supervisor = desk.start(&["supervise", "./a", "--with", "./hub", "--every", "5m", "-q"]);
    until("the first pass has ended", || desk.path("a/sync/status.json").exists());
    assert_eq!(desk.dfq_with(&["push", "./a", "--id", "x"], "{}").status, Some(0));
    until("it is in the hub", || stats(&desk, "./hub")["pending"] == 1);
    desk.ok(&["work", "./a", "--until", "idle", "-q", "--", "true"]);
    until("its record is in the hub", || stats(&desk, "./hub")["completed"] == 1);
    // A second supervisor rests.
    let mut second = desk.start(&["supervise", "./a"]);
    let lines = BufReader::new(second.stderr.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains("this one rests")));
    stop(second);
    stop(supervisor);
    assert!(!desk.path("a/sync/supervisor.json").exists());
}

#[test]
fn a_worker_may_merge_by_itself() {
    let desk = Desk::new();
    desk.write(
        "dfq.toml",
        "provider = 'synced'\nbucket = 's3://nowhere/x'\n[queues.q]\nlease = '10m'\n",
    );
    let offline = desk.dfq_with(&["push", "q", "--id", "x"], "{}");
    assert_eq!(offline.status, Some(0), "{offline:?}");
    let behind = desk.dfq(&["stats", "q"]);
    assert!(behind.err.contains("never merged"), "{behind:?}");
    desk.ok(&["work", "q", "--until", "idle", "-q", "--", "true"]);
    desk.ok(&["supervise", "./a", "--with", "./hub", "--every", "1s", "--once"]);
    assert_eq!(desk.dfq_with(&["push", "./a", "--id", "y"], "{}").status, Some(0));
    desk.ok(&["work", "./a", "--supervise", "--until", "idle", "-q", "--", "true"]);
    assert_eq!(stats(&desk, "./hub")["completed"], 1);
}

#[test]
fn an_emptied_hub_is_filled_again_only_on_request() {
    let desk = Desk::new();
    desk.ok(&["supervise", "./a", "--with", "./hub", "--once"]);
    for id in ["done", "open"] {
        assert_eq!(desk.dfq_with(&["push", "./a", "--id", id], "{}").status, Some(0));
        if id == "done" {
            desk.ok(&["work", "./a", "--until", "idle", "-q", "--", "true"]);
        }
    }
    desk.ok(&["supervise", "./a", "--once"]);
    let all = merged(&desk.path("a"));
    assert_eq!(merged(&desk.path("hub")), all);
    std::fs::remove_dir_all(desk.path("hub")).unwrap();
    let gone = desk.dfq(&["supervise", "./a", "--once"]);
    assert_eq!(gone.status, Some(3), "{gone:?}");
    assert!(!desk.path("hub/queue.json").exists());
    // Another node has made it anew.
    desk.ok(&["supervise", "./b", "--with", "./hub", "--once"]);
    let refused = desk.dfq(&["supervise", "./a", "--once"]);
    assert!(refused.err.contains("does not know this node any more"), "{refused:?}");
    assert_eq!(merged(&desk.path("a")), all, "nothing is removed because it is missing elsewhere");
    desk.ok(&["supervise", "./a", "--once", "--yes"]);
    desk.ok(&["supervise", "./b", "--once"]);
    assert_eq!(merged(&desk.path("hub")), all);
}

#[test]
fn a_bad_file_costs_only_itself() {
    let desk = Desk::new();
    desk.ok(&["supervise", "./a", "--with", "./hub", "--once"]);
    for number in 0..20 {
        let id = format!("t{number}");
        assert_eq!(desk.dfq_with(&["push", "./a", "--id", &id], "{}").status, Some(0));
    }
    for bad in merged(&desk.path("a")).keys().take(10) {
        let folder = Path::new(bad).parent().unwrap().to_str().unwrap();
        desk.write(&format!("a/{folder}/lease.json"), vec![b'x'; 2 << 20]);
    }
    // A name that nobody has counted up to.
    desk.write("a/scheduled/20200101T0000Z/x@999999999/task.json", "{}");
    let said = desk.dfq(&["supervise", "./a", "--once"]);
    assert!(said.err.contains("cannot be merged"), "{said:?}");
    assert_eq!(stats(&desk, "./hub")["pending"], 10, "{said:?}");
    let status = desk.dfq(&["supervise", "./a", "--status"]);
    assert_eq!(status.status, Some(0), "{status:?}");
}

#[test]
fn a_damaged_conflict_stays_and_another_hub_is_asked_for() {
    let desk = Desk::new();
    for (node, hub) in [("./a", "./hub"), ("./b", "./hub2")] {
        desk.ok(&["supervise", node, "--with", hub, "--once"]);
    }
    desk.write("a/conflicts/x.0123456789abcdef.json", "{torn");
    let pushed = desk.dfq(&["conflicts", "./a", "--push"]);
    assert!(pushed.err.contains("cannot be read"), "{pushed:?}");
    assert!(desk.path("a/conflicts/x.0123456789abcdef.json").exists());
    let other = desk.dfq(&["supervise", "./a", "--with", "./hub2", "--once"]);
    assert_eq!(other.status, Some(2), "{other:?}");
    assert!(other.err.contains("belongs to the synced queue"), "{other:?}");
    let new = desk.dfq(&["supervise", "./a", "--with", "./hub3", "--once"]);
    assert_ne!(new.status, Some(0), "{new:?}");
    assert!(!desk.path("hub3").exists());
}
