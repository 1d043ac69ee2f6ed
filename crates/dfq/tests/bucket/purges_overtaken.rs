//! An id that is pushed again while a purge removes its records: its lives get no gaps, by which a push would
//! take it for new.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dfq::queue::Purge;
use dfq::{Outcome, Pushed, Queue, TaskKey};
use dfq_s3_server::Fault;

use crate::world::*;

const SECOND: &str = "completed/ca/a@2.json";

/// A purge is held up for so long before it marks a record.
const HELD_UP: Duration = Duration::from_millis(1500);

/// Does something after a purge has listed everything, when it is about to mark this record. The task has had two lives
/// by then.
async fn while_it_marks(world: &World, record: &'static str, act: impl AsyncFnOnce(&dyn Queue)) {
    once_it_marks(world, HELD_UP, record, act).await;
}

async fn once_it_marks(
    world: &World,
    held_up: Duration,
    record: &'static str,
    act: impl AsyncFnOnce(&dyn Queue),
) {
    let queue = world.worker().await;
    for _ in 0..2 {
        queue.push(vec![task().again()]).await.remove(0).unwrap();
        let receipt = claim(&*queue).await.receipt;
        ack(&*queue, &receipt).await.unwrap();
    }
    queue.close().await;
    assert_eq!(world.keys("completed/"), [COMPLETED, SECOND]);
    world.set_clock(3 * 3_600_000);
    let (purger, other) = (world.worker().await, world.worker().await);
    let come = world.once(Fault::Delay(held_up), move |request| {
        let marks = request.op == "PutObject" && request.if_match.is_some();
        marks && request.key.ends_with(record)
    });
    let older_than = Duration::from_secs(2 * 3600);
    let purge = Purge { outcome: Outcome::Completed, older_than, dry_run: false };
    let acting = async {
        while !come.load(Ordering::SeqCst) {
            pause(5).await;
        }
        act(&*other).await;
        other.close().await;
    };
    let (purged, ()) = tokio::join!(purger.purge(purge), acting);
    purged.unwrap();
}

async fn push_again(queue: &dyn Queue) -> TaskKey {
    match queue.push(vec![task().again()]).await.remove(0).unwrap() {
        Pushed::Created(key) => key,
        other => panic!("{other:?}"),
    }
}

/// Every life before the last is over, or has begun anew.
fn assert_no_gaps(world: &World) {
    let all = world.keys("");
    let is_there = |life: u32| {
        let name = if life == 1 { "a".to_owned() } else { format!("a@{life}") };
        let ends = [format!("/{name}.json"), format!("/{name}/task.json")];
        all.iter().any(|key| ends.iter().any(|end| key.ends_with(end)))
    };
    let last = (1..9).rev().find(|life| is_there(*life)).unwrap_or(0);
    assert!((1..=last).all(is_there), "a gap in {all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_of_the_next_life_stops_the_purge() {
    let world = World::new().await;
    let mut pushed = None;
    while_it_marks(&world, SECOND, async |queue| pushed = Some(push_again(queue).await)).await;
    assert_no_gaps(&world);
    if pushed.unwrap().generation() == 3 {
        // What was not removed is as it was, not only marked as having been.
        let first = world.server.objects()[&format!("{PREFIX}/{COMPLETED}")].clone();
        assert!(String::from_utf8_lossy(&first).contains("what is to be done"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_life_that_is_over_at_once_is_found() {
    let world = World::new().await;
    while_it_marks(&world, SECOND, async |queue| {
        push_again(queue).await;
        let receipt = claim(queue).await.receipt;
        ack(queue, &receipt).await.unwrap();
    })
    .await;
    assert_no_gaps(&world);
    assert_eq!(world.keys("pending/"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_takes_an_earlier_life_for_the_last_is_found() {
    let world = World::new().await;
    while_it_marks(&world, COMPLETED, async |queue| drop(push_again(queue).await)).await;
    assert_no_gaps(&world);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_life_that_is_scheduled_meanwhile_is_found() {
    let world = World::new().await;
    while_it_marks(&world, SECOND, async |queue| {
        let later = task().again().delay(Duration::from_secs(24 * 3600));
        queue.push(vec![later]).await.remove(0).unwrap();
    })
    .await;
    assert_eq!(world.keys("scheduled/").len(), 1);
    assert_no_gaps(&world);
}

/// The same beside a purge that is hardly held up: whenever it comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_at_any_time() {
    for wait_ms in [0, 1, 2, 3, 5, 8, 12, 20] {
        let world = World::new().await;
        let pushing = async |queue: &dyn Queue| {
            pause(wait_ms).await;
            push_again(queue).await;
        };
        once_it_marks(&world, Duration::from_millis(1), SECOND, pushing).await;
        assert_no_gaps(&world);
    }
}
