//! In a synced queue, too, one bad thing costs only itself.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::os::unix::fs::MetadataExt;

use dfq::Queue;
use dfq::queue::TaskState;
use rustix::io::Errno;
use support::pair::{PERIOD, Pair, SECOND};
use support::{ack_all, id, poll, push, task};

/// The folder of a shard that has this task, below a place.
fn shard(name: &str) -> String {
    format!("{:02x}", <sha2::Sha256 as sha2::Digest>::digest(name)[0])
}

/// A folder without permission to read it: its tasks wait, all others are merged, and nothing is taken to be gone.
#[tokio::test]
async fn a_folder_that_cannot_be_read_costs_only_what_is_in_it() {
    let mut pair = Pair::new().await;
    push(&*pair.nodes[0], "hidden").await;
    pair.merge().await;
    let shard = shard("hidden");
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
    let shard = shard("a");
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

/// A node has claimed a task and renews it. Nobody else takes it for abandoned on the word of a pass that did not look.
#[tokio::test]
async fn what_a_pass_has_left_out_is_not_taken_over() {
    for is_folder in [true, false] {
        let mut pair = Pair::new().await;
        push(&*pair.nodes[1], "held").await;
        let held = poll(&*pair.nodes[1]).await;
        pair.merge().await;
        let folder = pair.sites[0].path("q/pending").join(shard("held"));
        let mut blind = pair.supervisor(0).await;
        match is_folder {
            true => blind.here.spoil(folder.metadata().unwrap().ino(), Some(Errno::ACCESS)),
            // A name that nobody has counted up to: the id cannot be merged.
            false => pair.hub.write("scheduled/20200101T0000Z/held@999999999/task.json", "{}"),
        }
        for _ in 0..3 {
            pair.pass(PERIOD * 5 / 2);
            let beaten = pair.nodes[1].heartbeat(vec![held[0].receipt.clone()]).await;
            assert!(beaten[0].is_ok(), "{beaten:?}");
            if is_folder {
                pair.merge_one(1).await;
            }
            let passed = blind.merge.pass(false).await.unwrap();
            assert!(!passed.troubles.is_empty(), "{passed:?}");
            pair.pass(2 * SECOND);
            assert_eq!(poll(&*pair.nodes[0]).await.len(), 0, "folder: {is_folder}");
        }
        // Other tasks are judged as ever, and so is this one once it was looked at.
        std::fs::remove_dir_all(pair.hub.path("q/scheduled")).ok();
        blind.here.spoil(folder.metadata().unwrap().ino(), None);
        pair.merge_one(1).await;
        for _ in 0..7 {
            pair.pass(PERIOD);
            blind.merge.pass(false).await.unwrap();
        }
        pair.pass(2 * SECOND);
        assert_eq!(poll(&*pair.nodes[0]).await.len(), 1, "folder: {is_folder}");
    }
}

/// The clock was set forward by hours just after a lease had come, so it looks as if it had lain here for hours.
#[tokio::test]
async fn a_lease_that_came_before_the_clock_was_set_is_given_its_time() {
    let mut pair = Pair::new().await;
    push(&*pair.nodes[1], "held").await;
    assert_eq!(poll(&*pair.nodes[1]).await.len(), 1);
    pair.merge().await;
    pair.pass(PERIOD * 7);
    pair.merge_one(0).await;
    let told = "sync/nodes.json";
    let mut nodes: serde_json::Value = serde_json::from_str(&pair.sites[0].read(told)).unwrap();
    nodes["clock_set"] = nodes["began"].clone();
    pair.sites[0].write(told, nodes.to_string());
    for _ in 0..5 {
        pair.pass(PERIOD);
        assert_eq!(poll(&*pair.nodes[0]).await.len(), 0);
        pair.merge_one(0).await;
    }
    pair.pass(PERIOD + 2 * SECOND);
    pair.merge_one(0).await;
    pair.pass(2 * SECOND);
    assert_eq!(poll(&*pair.nodes[0]).await.len(), 1);
}

/// The hub has lost a record that a node has seen there. It gets it back, and before a task goes for its sake.
#[tokio::test]
async fn a_record_that_the_hub_has_lost_is_brought_again() {
    let mut pair = Pair::new().await;
    push(&*pair.nodes[0], "x").await;
    let record = format!("completed/{}/x.json", shard("x"));
    let task = format!("pending/{}/x/task.json", shard("x"));
    pair.merge_one(0).await;
    pair.merge_one(1).await;
    let [mut one, mut other] = pair.poll().await;
    one.append(&mut other);
    let by = usize::from(pair.sites[1].exists(&task.replace("task.json", "lease.json")));
    ack_all(&*pair.nodes[by], one).await;
    for _ in 0..3 {
        pair.merge_thoroughly(by).await;
    }
    assert!(pair.hub.exists(&record) && !pair.hub.exists(&task));
    std::fs::remove_dir_all(pair.hub.path("q/completed")).unwrap();
    // It is still to be done at the other node, which brings it to the hub.
    pair.merge_one(1 - by).await;
    assert!(pair.hub.exists(&task));
    pair.merge_one(by).await;
    assert!(pair.hub.exists(&record) && !pair.hub.exists(&task));
    pair.merge_thoroughly(by).await;
    std::fs::remove_dir_all(pair.hub.path("q/completed")).unwrap();
    pair.merge_thoroughly(by).await;
    assert!(pair.hub.exists(&record));
}

/// The root of a disk has a folder that only root may read. Where nothing of ours can be, that is of no account.
#[tokio::test]
async fn foreign_folders_that_may_not_be_read_hold_nothing_up() {
    let mut pair = Pair::new().await;
    push(&*pair.nodes[0], "x").await;
    for below in ["lost+found", "pending/lost+found", "completed/lost+found", "scheduled/old"] {
        pair.sites[0].write(&format!("{below}/file"), "?");
        let folder = pair.sites[0].path("q").join(below);
        pair.calls[0].spoil(folder.metadata().unwrap().ino(), Some(Errno::ACCESS));
    }
    let passed = pair.merge_thoroughly(0).await;
    assert_eq!((passed.up, passed.left), (1, 0), "{passed:?}");
    assert!(passed.troubles.iter().all(|it| it.contains("is not ours")), "{passed:?}");
    assert!(!passed.troubles.iter().any(|it| it.contains("'lost+found")), "{passed:?}");
    let passed = pair.merge_one(0).await;
    assert!(passed.is_calm(), "{passed:?}");
}

/// Of a large queue, only a part is looked at.
#[tokio::test]
async fn to_count_what_is_left_to_others_reads_so_many_tasks_and_no_more() {
    let mut pair = Pair::new().await;
    push(&*pair.nodes[1], "model").await;
    pair.merge().await;
    let model = pair.sites[0].read(&format!("pending/{}/model/task.json", shard("model")));
    for number in 0..4000 {
        let name = format!("n{number}");
        let text = model.replace("\"model\"", &format!("\"{name}\""));
        pair.sites[0].write(&format!("pending/{}/{name}/task.json", shard(&name)), text);
    }
    pair.calls[0].arm(None);
    let left = pair.nodes[0].count_left_to_others().await.unwrap();
    assert!(left.at_least && (1..=1000).contains(&left.tasks), "{left:?}");
    assert!(pair.calls[0].all_calls() < 20_000, "{}", pair.calls[0].all_calls());
}
