use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Env, ManualClock, SeededChance};
use crate::model::{NewTask, TaskId};
use crate::options::OpenOptions;
use crate::queue::{PollRequest, Queue, TreeQueue};
use crate::store::memory::Memory;

/// Somebody else has thousands of tasks and finishes them. Nobody tells us, and we never ask for them
/// again; so what was remembered of them has to go by itself.
#[tokio::test]
async fn what_others_have_finished_is_not_remembered() {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(3)));
    let store = Memory::new(env.clone());
    let options = OpenOptions { env, ..OpenOptions::create() };
    let owner = TreeQueue::open(store.clone(), options.clone()).await.unwrap();
    let other = TreeQueue::open(store, options).await.unwrap();
    let mut most = 0;
    for round in 0..5 {
        let task = |n| {
            let id = TaskId::new(format!("{round}-{n}")).unwrap();
            NewTask::from_json("{}").unwrap().id(id)
        };
        owner.push((0..3000).map(task).collect()).await;
        let held = owner.poll(PollRequest::new(3000)).await.unwrap().deliveries;
        assert_eq!(held.len(), 3000);
        assert!(other.poll(PollRequest::new(1)).await.unwrap().deliveries.is_empty());
        {
            let (resting, watched) = crate::clock::lock(&other.core.known).sizes();
            assert!(resting >= 3000, "{resting}");
            most = most.max(resting).max(watched);
        }
        for answer in owner.ack(held.into_iter().map(|held| held.receipt).collect()).await {
            answer.unwrap();
        }
        clock.advance(Duration::from_secs(60));
        other.poll(PollRequest::new(1)).await.unwrap();
    }
    assert!(most <= 3 * 3000, "{most} remembered of 3000 that there were at a time");
    clock.advance(other.settings().lease * 2);
    other.poll(PollRequest::new(1)).await.unwrap();
    let (resting, watched) = crate::clock::lock(&other.core.known).sizes();
    assert!(resting <= 1000 && watched <= 10_000, "{resting} {watched}");
}

/// The same for what was claimed here and never finished: its folders must not stay open.
#[tokio::test]
async fn what_was_claimed_and_dropped_is_let_go() {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(3)));
    let options = OpenOptions { env: env.clone(), ..OpenOptions::create() };
    let queue = TreeQueue::open(Memory::new(env), options).await.unwrap();
    queue.push((0..50).map(|_| NewTask::from_json("{}").unwrap()).collect()).await;
    let held = queue.poll(PollRequest::new(50)).await.unwrap().deliveries.len();
    assert_eq!((held, crate::clock::lock(&queue.core.held).len()), (50, 50));
    // They run out and are claimed once more; only those claims are remembered.
    for _ in 0..3 {
        clock.advance(queue.settings().lease * 2);
        while !queue.poll(PollRequest::new(50)).await.unwrap().deliveries.is_empty() {}
    }
    assert!(crate::clock::lock(&queue.core.held).len() <= 50);
}
