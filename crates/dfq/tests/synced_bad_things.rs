//! In a synced queue, too, one bad thing costs only itself.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::os::unix::fs::MetadataExt;

use dfq::Queue;
use dfq::queue::TaskState;
use rustix::io::Errno;
use support::pair::{PERIOD, Pair, SECOND};
use support::{id, push, task};

/// The folder of a shard that has this task, below a place.
async fn shard_of(queue: &dyn Queue, name: &str) -> String {
    let key = queue.get(id(name)).await.unwrap().unwrap().key;
    let hash = <sha2::Sha256 as sha2::Digest>::digest(key.id().as_str());
    format!("{:02x}", hash[0])
}

/// A folder without permission to read it: its tasks wait, all others are merged, and nothing is taken to be gone.
#[tokio::test]
async fn a_folder_that_cannot_be_read_costs_only_what_is_in_it() {
    let mut pair = Pair::new().await;
    push(&*pair.nodes[0], "hidden").await;
    pair.merge().await;
    let shard = shard_of(&*pair.nodes[0], "hidden").await;
    let folder = pair.sites[0].path("q/pending").join(&shard);
    pair.calls[0].spoil(folder.metadata().unwrap().ino(), Some(Errno::ACCESS));
    push(&*pair.nodes[0], "other").await;
    push(&*pair.nodes[1], "third").await;
    pair.merge_one(1).await;
    let passed = pair.merge_one(0).await;
    assert_eq!((passed.up, passed.down, passed.left), (1, 1, 1), "{passed:?}");
    assert!(
        passed.troubles.iter().any(|it| it.contains(&format!("pending/{shard}/"))),
        "{passed:?}"
    );
    assert!(pair.hub.exists(&format!("pending/{shard}/hidden/task.json")));
    // Once it can be read again, it is as if nothing had been.
    pair.calls[0].spoil(folder.metadata().unwrap().ino(), None);
    let passed = pair.merge_one(0).await;
    assert_eq!((passed.left, passed.troubles.len()), (0, 0), "{passed:?}");
    assert!(pair.sites[0].exists(&format!("pending/{shard}/hidden/task.json")));
}

/// The task cannot be read in either place, but a copy of it waits for its time.
#[tokio::test]
async fn a_damaged_task_is_healed_by_a_delayed_copy() {
    let mut pair = Pair::new().await;
    pair.nodes[1].push(vec![task("a").delay(PERIOD)]).await.remove(0).unwrap();
    push(&*pair.nodes[0], "a").await;
    let shard = shard_of(&*pair.nodes[0], "a").await;
    let file = format!("pending/{shard}/a/task.json");
    pair.sites[0].write(&file, "{\"torn");
    pair.pass(2 * SECOND);
    pair.merge().await;
    let view = pair.nodes[0].get(id("a")).await.unwrap().unwrap();
    assert_eq!(view.state, TaskState::Ready);
    assert_eq!(pair.sites[0].read(&file), pair.sites[1].read(&file));
    // What was there is kept.
    assert_eq!(pair.nodes[0].count_conflicts().await.unwrap(), 1);
}

/// Files that nobody here has made are told of, wherever they lie, and stay where they are.
#[tokio::test]
async fn foreign_names_are_reported_and_not_spread() {
    let mut pair = Pair::new().await;
    let strange =
        ["pending/notes.txt", "completed/00/a b.txt", "floors/00/notes.txt", "failed/00/x y.json"];
    for name in strange {
        pair.sites[0].write(name, "mine");
        pair.hub.write(name, "mine, too");
    }
    let passed = pair.merge_thoroughly(0).await;
    let told = |name: &str| passed.troubles.iter().filter(|it| it.contains(name)).count();
    assert_eq!(strange.map(told), [2; 4], "{:?}", passed.troubles);
    pair.merge_thoroughly(1).await;
    assert!(strange.iter().all(|name| !pair.sites[1].exists(name)));
    assert!(strange.iter().all(|name| pair.sites[0].read(name) == "mine"));
}
