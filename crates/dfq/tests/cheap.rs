//! Polls that stay cheap, shown by counting system calls instead of time.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::time::Duration;

use dfq::model::{Durability, Layout};
use dfq::store::fs::RealSys;
use dfq::store::fs::fault::FaultSys;
use dfq::{Nack, PollRequest, Queue, Settings};
use support::{Site, ack_all, poll, task};

fn relaxed() -> Settings {
    Settings { durability: Durability::Relaxed, ..Settings::default() }
}

async fn push_many(queue: &dyn Queue, prefix: &str, count: usize) {
    for answer in queue.push((0..count).map(|n| task(&format!("{prefix}{n}"))).collect()).await {
        answer.unwrap();
    }
}

/// All calls that a verb makes, of whatever kind.
async fn calls<R>(sys: &FaultSys<RealSys>, verb: impl Future<Output = R>) -> (usize, R) {
    sys.arm(None);
    let answer = verb.await;
    (sys.all_calls(), answer)
}

/// In backoff, a task is looked at once by each process, however often it polls.
#[tokio::test]
async fn backoffs_are_paid_for_once() {
    let site = Site::new();
    let (queue, _) = site.faulty(relaxed()).await;
    push_many(&*queue, "t", 400).await;
    let held = queue.poll(PollRequest::new(400)).await.unwrap().deliveries;
    let nack =
        |receipt| Nack { receipt, error: "no".into(), delay: Some(Duration::from_secs(3600)) };
    for answer in queue.nack(held.into_iter().map(|held| nack(held.receipt)).collect()).await {
        answer.unwrap();
    }
    // So that folders are no longer taken for changing.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (other, sys) = site.faulty(relaxed()).await;
    let (first, got) = calls(&sys, poll(&*other)).await;
    assert!(got.is_empty() && first > 400 * 4, "{first} calls");
    // The second lists the shards once more and learns that everything there rests.
    let (second, _) = calls(&sys, poll(&*other)).await;
    assert!(second < 2 * 256 + 50, "{second} calls");
    let (third, got) = calls(&sys, poll(&*other)).await;
    // A look at each of the 256 shards, at the most, and a few for the queue.
    assert!(got.is_empty() && third < 300, "{third} calls");
}

/// The calls of a claim do not depend on how many other tasks there are, in whatever state.
#[tokio::test]
async fn a_claim_makes_the_same_calls_in_a_large_queue() {
    let site = Site::new();
    let (queue, sys) = site.faulty(relaxed()).await;
    let mut costs = Vec::new();
    for round in 0..4 {
        // Ten times as many in each round: done, scheduled, and left to do.
        let count = 2 * 10_usize.pow(round);
        push_many(&*queue, &format!("done{round}-"), count).await;
        while let held @ [_, ..] = &*poll(&*queue).await {
            ack_all(&*queue, held.to_vec()).await;
        }
        let later = |n| task(&format!("later{round}-{n}")).delay(Duration::from_secs(86_400));
        for answer in queue.push((0..count).map(later).collect()).await {
            answer.unwrap();
        }
        push_many(&*queue, &format!("left{round}-"), count).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The first poll lists a page, the next ones live on it.
        let warm = queue.poll(PollRequest::new(1)).await.unwrap().deliveries;
        let (cost, got) = calls(&sys, queue.poll(PollRequest::new(1))).await;
        assert_eq!(got.unwrap().deliveries.len(), 1);
        costs.push(cost);
        drop(warm);
    }
    let (least, most) = (costs.iter().min().unwrap(), costs.iter().max().unwrap());
    assert!(most - least <= 300, "{costs:?}: at the most one round of 256 shards apart");
    assert!(costs[3] <= costs[0] + 8, "{costs:?}");
}

/// Opens the folder, links the lease, reads the task, looks for its two records; and one look at the
/// root for the whole poll. What may be a network filesystem, as here, is asked about the root first, and about the
/// folder of each record, which is not there yet.
#[tokio::test]
async fn a_first_claim_asks_for_nothing_that_it_need_not_know() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings { layout: Layout::Flat, ..relaxed() }).await;
    push_many(&*queue, "t", 20).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The first lists, the second finds the root unchanged; a slow one may need a new lease file.
    let mut costs = Vec::new();
    for _ in 0..20 {
        let (cost, got) = calls(&sys, queue.poll(PollRequest::new(1))).await;
        assert_eq!(got.unwrap().deliveries.len(), 1);
        costs.push(cost);
    }
    assert_eq!(costs.iter().min(), Some(&13), "{costs:?}");
}

/// Where there are many due times, a push of another one does not make every waiting worker list them all.
#[tokio::test]
async fn many_due_times_are_not_listed_for_every_push() {
    const TIMES: usize = 2_000;
    let site = Site::new();
    let (queue, sys) = site.faulty(relaxed()).await;
    let at = |n: usize| task(&format!("d{n}")).delay(Duration::from_secs(3600 + 60 * n as u64));
    for answer in queue.push((0..TIMES).map(at).collect()).await {
        answer.unwrap();
    }
    poll(&*queue).await;
    let mut total = 0;
    for n in TIMES..TIMES + 20 {
        queue.push(vec![at(n)]).await.remove(0).unwrap();
        sys.arm(None);
        assert!(poll(&*queue).await.is_empty());
        total += sys.listed();
    }
    // Listing takes one part in twenty of the time at the most.
    assert!(total < 10 * TIMES, "{total} names listed in 20 polls");
    // And yet the new ones are known in the end.
    let polled = queue.poll(PollRequest::new(1)).await.unwrap();
    assert!(polled.idle.next.is_some());
}
