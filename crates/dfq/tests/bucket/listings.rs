//! Listings that are behind: they show what is gone and hide what is there. They may cost time; they
//! must not cost a task, nor do one twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dfq::{NewTask, Outcome, Pushed};
use dfq_s3_server::{Fault, Faults};

use crate::world::*;

/// Shows what was there a second after `then`, from now on.
fn as_of(world: &World, then: Instant) {
    let age = then.elapsed() - Duration::from_secs(1);
    world.always(Fault::StaleList(age), lists);
}

#[tokio::test]
async fn a_finished_task_is_not_handed_out() {
    let world = World::new().await;
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let pushed = Instant::now();
    pause(3_000).await;
    let delivery = claim(&*queue).await;
    ack(&*queue, &delivery.receipt).await.unwrap();
    world.tidy(&*queue).await;
    for _ in 0..3 {
        as_of(&world, pushed);
        assert!(poll(&*other, 1).await.unwrap().is_empty());
    }
    assert!(world.server.meter().counts().fault("stale-list") > 0);
    as_of(&world, pushed);
    assert!(matches!(push(&*other).await.unwrap(), Pushed::Finished(_, Outcome::Completed)));
    world.server.off();
    world.tidy(&*world.worker().await).await;
    assert_eq!(world.keys("completed/"), [COMPLETED]);
}

#[tokio::test]
async fn a_held_task_is_not_handed_out() {
    let world = World::new().await;
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let pushed = Instant::now();
    pause(3_000).await;
    let delivery = claim(&*queue).await;
    for _ in 0..3 {
        as_of(&world, pushed);
        assert!(poll(&*other, 1).await.unwrap().is_empty());
    }
    assert!(world.server.meter().counts().fault("stale-list") > 0);
    ack(&*queue, &delivery.receipt).await.unwrap();
}

/// An id is not given a second life, and none is left out, because a listing does not show the first.
#[tokio::test]
async fn lives_are_counted_rightly() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    let pushed = Instant::now();
    pause(3_000).await;
    let delivery = claim(&*queue).await;
    ack(&*queue, &delivery.receipt).await.unwrap();
    as_of(&world, pushed);
    let other = world.worker().await;
    let again = other.push(vec![task().again()]).await.remove(0).unwrap();
    assert_eq!((matches!(again, Pushed::Created(_)), again.key().generation()), (true, 2));
}

#[tokio::test]
async fn a_queue_is_drained_through_listings_that_lag() {
    let world = World::new().await;
    let queue = world.worker().await;
    world.server.set_faults(Faults {
        seed: 5,
        list_lag: Duration::from_secs(3),
        ..Faults::default()
    });
    let tasks = |n| NewTask::from_json(&format!(r#"{{"id": "t{n}"}}"#)).unwrap();
    assert!(queue.push((0..40).map(tasks).collect()).await.iter().all(Result::is_ok));
    let world = &world;
    let workers = [world.worker().await, world.worker().await].map(|queue| async move {
        let (mut done, started, mut over) = (Vec::new(), Instant::now(), None);
        // All of them, and then for longer than listings lag: nothing may be done twice.
        while over.is_none_or(|over: Instant| over.elapsed() < Duration::from_secs(4)) {
            assert!(started.elapsed() < Duration::from_secs(120), "{} done", done.len());
            if over.is_none() && world.keys("completed/").len() == 40 {
                over = Some(Instant::now());
            }
            for delivery in poll(&*queue, 4).await.unwrap() {
                ack(&*queue, &delivery.receipt).await.unwrap();
                done.push((delivery.id().to_string(), delivery.attempt));
            }
            pause(100).await;
        }
        done
    });
    let done = futures::future::join_all(workers).await.concat();
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), 40, "all, each by one");
    assert_eq!((done.len(), world.keys("completed/").len()), (40, 40));
    assert!(done.iter().all(|(_, attempt)| *attempt == 1));
}

/// What somebody else put there, and no queue can have made, is left alone, and stops nobody.
#[tokio::test]
async fn foreign_keys_cost_only_themselves() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    for key in [
        "pending//x",
        "pending/./x/task.json",
        "pending/ca/\u{1}/task.json",
        "/odd",
        "completed//y",
    ] {
        world.server.put(&format!("{PREFIX}/{key}"), b"x");
    }
    let stats = queue.stats(dfq::queue::Detail::Exact).await.unwrap();
    assert_eq!((stats.pending, stats.completed), (1, 0));
    let delivery = claim(&*world.worker().await).await;
    ack(&*queue, &delivery.receipt).await.unwrap();
    queue.check(false).await.unwrap();
    assert_eq!(world.keys("pending//"), ["pending//x"]);
}
