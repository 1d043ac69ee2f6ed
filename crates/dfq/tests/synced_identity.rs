//! Who a node of a synced queue is: through two supervisors at once, copies, kills, and power cuts.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use dfq::{PollRequest, Queue};
use rustix::io::Errno;
use support::pair::{PERIOD, Pair, SECOND};
use support::{poll, push};

const IDENTITY: &str = "sync/node.json";

async fn node_of(pair: &Pair, node: usize) -> String {
    pair.nodes[node].node().await.unwrap().node
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Both have read what the folder has told the hub. Then one tells it more, and the other is killed after it has noted
/// its own nonce.
#[tokio::test]
async fn two_that_check_in_at_once_do_not_take_each_other_for_a_copy() {
    let pair = Pair::new().await;
    let node = node_of(&pair, 0).await;
    let (mut one, other) = (pair.supervisor(0).await, pair.supervisor(0).await);
    let (done, is_done) = std::sync::mpsc::channel();
    one.here.after_read("sync/node.json", move || done.send(other.pass_now()).unwrap());
    one.there.refuse("workers", Some(Errno::IO));
    assert!(one.merge.pass(false).await.is_err());
    assert_eq!(is_done.recv().unwrap().troubles, Vec::<String>::new());
    let passed = pair.supervisor(0).await.merge.pass(false).await.unwrap();
    assert_eq!(passed.troubles, Vec::<String>::new());
    assert_eq!(node_of(&pair, 0).await, node);
}

/// One supervisor has found out that the folder is a copy; the other still has the old id in mind.
#[tokio::test]
async fn a_copy_takes_one_new_id_though_two_merge_it() {
    let mut pair = Pair::new().await;
    let (node, sync, backup) =
        (node_of(&pair, 0).await, pair.sites[0].path("q/sync"), pair.sites[0].path("backup"));
    let mut late = pair.supervisor(0).await;
    late.merge.pass(false).await.unwrap();
    copy(&sync, &backup);
    pair.pass(PERIOD * 4);
    pair.merge_one(0).await;
    copy(&backup, &sync);
    let passed = pair.supervisor(0).await.merge.pass(false).await.unwrap();
    assert!(passed.troubles[0].contains("is a copy of node"), "{passed:?}");
    let new = node_of(&pair, 0).await;
    assert_ne!(new, node);
    let passed = late.merge.pass(false).await.unwrap();
    assert_eq!((passed.troubles, late.merge.node()), (Vec::<String>::new(), &*new));
    assert_eq!(node_of(&pair, 0).await, new);
}

/// A restored backup, in its old place: it has a new id, and was killed before it noted what it would tell the hub.
#[tokio::test]
async fn a_copy_that_is_killed_while_it_takes_a_new_id_goes_on() {
    let mut pair = Pair::new().await;
    let (sync, backup) = (pair.sites[0].path("q/sync"), pair.sites[0].path("backup"));
    copy(&sync, &backup);
    pair.pass(PERIOD * 4);
    pair.merge_one(0).await;
    let node = node_of(&pair, 0).await;
    copy(&backup, &sync);
    let mut killed = pair.supervisor(0).await;
    killed.here.refuse("sync/check-ins", Some(Errno::IO));
    assert!(killed.merge.pass(false).await.is_err());
    let new = node_of(&pair, 0).await;
    assert_ne!(new, node);
    let passed = pair.supervisor(0).await.merge.pass(false).await.unwrap();
    assert_eq!((passed.troubles, node_of(&pair, 0).await), (Vec::<String>::new(), new));
}

#[tokio::test]
async fn an_identity_that_is_torn_or_lost_is_known_by_what_the_hub_was_told() {
    let pair = Pair::new().await;
    let node = node_of(&pair, 0).await;
    for torn in [Some("{\"node\":\"pi"), Some(""), None] {
        match torn {
            Some(torn) => pair.sites[0].write(IDENTITY, torn),
            None => std::fs::remove_file(pair.sites[0].path("q").join(IDENTITY)).unwrap(),
        }
        let passed = pair.supervisor(0).await.merge.pass(false).await.unwrap();
        assert_eq!(passed.troubles, Vec::<String>::new(), "{torn:?}");
        assert_eq!(node_of(&pair, 0).await, node, "{torn:?}");
    }
    // What was there is kept.
    assert_eq!(pair.sites[0].read("sync/node.damaged.json"), "{\"node\":\"pi");
    // Without all that it would be a fresh node, where another was.
    std::fs::remove_dir_all(pair.sites[0].path("q/sync")).unwrap();
    pair.sites[0].write(IDENTITY, "");
    let refused = pair.supervisor(0).await.merge.pass(false).await.unwrap_err();
    assert!(refused.to_string().contains("mount it"), "{refused}");
}

#[tokio::test]
async fn a_torn_record_in_the_hub_is_written_anew() {
    let pair = Pair::new().await;
    let node = node_of(&pair, 0).await;
    let record = format!("workers/{node}.node");
    for torn in ["", "{\"node\":"] {
        pair.hub.write(&record, torn);
        let passed = pair.supervisor(0).await.merge.pass(false).await.unwrap();
        assert!(passed.troubles[0].contains(&record), "{passed:?}");
        assert!(pair.hub.read(&record).contains(&node));
    }
    assert_eq!(node_of(&pair, 0).await, node);
    // A new folder in its place is asked about, though the record does not tell where it was.
    pair.hub.write(&record, "");
    std::fs::remove_dir_all(pair.sites[0].path("q/sync")).unwrap();
    let refused = pair.supervisor(0).await.merge.pass(false).await.unwrap_err();
    assert!(refused.to_string().contains("may have been node"), "{refused}");
}

/// Nothing goes up to a hub that has forgotten this node, not even until the next check-in is due.
#[tokio::test]
async fn a_hub_that_is_emptied_between_two_passes_is_not_filled_in_silence() {
    let pair = Pair::new().await;
    let mut supervisor = pair.supervisor(0).await;
    supervisor.merge.pass(false).await.unwrap();
    push(&*pair.nodes[0], "x").await;
    for folder in ["workers", "pending", "completed", "failed", "floors"] {
        let _ = std::fs::remove_dir_all(pair.hub.path("q").join(folder));
    }
    let refused = supervisor.merge.pass(false).await.unwrap_err();
    assert!(refused.to_string().contains("does not know this node any more"), "{refused}");
    assert!(!pair.hub.exists("pending"));
}

/// A node that cannot tell its own leases from others' must not judge them by its clock.
#[tokio::test]
async fn a_node_that_cannot_read_who_it_is_leaves_others_leases_alone() {
    let mut pair = Pair::new().await;
    push(&*pair.nodes[1], "x").await;
    assert_eq!(poll(&*pair.nodes[1]).await.len(), 1);
    pair.merge().await;
    let identity = pair.sites[0].path("q").join(IDENTITY).metadata().unwrap().ino();
    let (queue, calls) = pair.sites[0].faulty(dfq::Settings::default()).await;
    calls.spoil(identity, Some(Errno::IO));
    // The lease has run out by its own word, and its owner has two periods more.
    pair.pass(PERIOD * 5);
    assert!(queue.poll(PollRequest::new(1)).await.map_or(true, |it| it.deliveries.is_empty()));
    assert!(queue.stats(dfq::queue::Detail::Counts).await.is_ok());
    pair.pass(PERIOD * 2 + SECOND);
}
