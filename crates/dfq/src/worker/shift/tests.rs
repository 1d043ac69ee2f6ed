//! What a worker hears of in one order and not in another, one thing after the other.

use super::super::settle::Told;
use super::*;
use crate::clock::Env;
use crate::meter::Meter;
use crate::model::NewTask;
use crate::options::OpenOptions;
use crate::queue::PollRequest;
use crate::queue::{Queue, TreeQueue};
use crate::store::memory::Memory;

/// A worker on a queue with one task, which its handler gives back at once.
async fn worker(until: Until) -> Worker {
    let store = Memory::new(Env::system());
    let queue: Arc<dyn Queue> =
        Arc::new(TreeQueue::open(store, OpenOptions::create()).await.unwrap());
    queue.push(vec![NewTask::from_json("{}").unwrap()]).await.remove(0).unwrap();
    let handler = |_: Job| async { TaskResult::Release { reason: None, delay: None } };
    Worker::new(queue, handler).until(until)
}

fn shift(worker: &Worker) -> Shift<'_> {
    let queues = vec![(Arc::clone(&worker.queues[0]), Duration::from_secs(60))];
    Shift::new(worker, Heart::start(queues, worker.env.clone(), 1, Meter::default()).unwrap())
}

impl Shift<'_> {
    /// Begins a poll, and waits for its answer without taking note of it.
    async fn polled(&mut self) -> CallResult {
        self.claim();
        self.calls.next().await.unwrap()
    }
}

#[tokio::test]
async fn a_poll_begun_before_a_task_was_given_back_does_not_say_that_nothing_is_left() {
    for until in [Until::Idle, Until::Drained] {
        let worker = worker(until).await;
        let mut shift = shift(&worker);
        let first = shift.polled().await;
        shift.finish_call(first).unwrap();
        let handled = shift.jobs.next().await.unwrap();
        shift.make_room(handled);
        // Both are under way, and the poll finds the task in our own hands.
        shift.settle_ready();
        let mut settling = std::mem::take(&mut shift.calls);
        let before = shift.polled().await;
        shift.finish_call(settling.next().await.unwrap()).unwrap();
        shift.finish_call(before).unwrap();
        assert!(shift.idle.is_none() && !shift.is_done(), "{until:?}");
        let after = shift.polled().await;
        shift.finish_call(after).unwrap();
        assert_eq!(shift.started, 2, "it is there");
    }
}

#[tokio::test]
async fn one_poll_after_the_last_settle_is_enough() {
    let worker = worker(Until::Idle).await;
    let mut shift = shift(&worker);
    let taken = worker.queues[0].poll(PollRequest::new(1)).await.unwrap();
    assert_eq!(taken.deliveries.len(), 1);
    let before = shift.polled().await;
    shift.settling = 1;
    shift.finish_call(CallResult::Settled { count: 1, told: Told::default() }).unwrap();
    shift.finish_call(before).unwrap();
    assert!(!shift.is_done());
    let after = shift.polled().await;
    shift.finish_call(after).unwrap();
    assert!(shift.is_done(), "the next answer is younger than the settle");
}

/// The end cannot be told before the last of them, and a poll is paid for.
#[tokio::test]
async fn only_the_last_of_many_settles_is_followed_by_a_poll() {
    let worker = worker(Until::Drained).await.concurrency(3);
    let mut shift = shift(&worker);
    let settled = || CallResult::Settled { count: 1, told: Told::default() };
    let taken = worker.queues[0].poll(PollRequest::new(1)).await.unwrap();
    assert_eq!(taken.deliveries.len(), 1);
    shift.settling = 3;
    let poll = shift.polled().await;
    shift.finish_call(settled()).unwrap();
    shift.finish_call(poll).unwrap();
    assert!(shift.idle.is_some(), "an answer that one settle has outdated, while others go on");
    shift.finish_call(settled()).unwrap();
    assert!(shift.idle.is_some(), "a settle that is not the last");
    shift.finish_call(settled()).unwrap();
    assert!(shift.idle.is_none() && !shift.is_done(), "the last one");
}

/// A handler may stop its own worker, and be through when the stop was last asked about.
#[tokio::test]
async fn nothing_is_claimed_after_a_stop() {
    let worker = worker(Until::Stopped).await;
    let mut shift = shift(&worker);
    worker.stopper().stop();
    shift.claim();
    assert!(shift.calls.is_empty());
}

/// A queue that is not sure has to be asked again, whatever it says of what is left.
#[tokio::test]
async fn a_worker_does_not_end_while_its_queue_is_unsure() {
    for until in [Until::Idle, Until::Drained] {
        let worker = worker(until).await;
        let mut shift = shift(&worker);
        for (unsure, done) in [(Some(Duration::from_secs(20)), false), (None, true)] {
            shift.idle = Some(Idle { unsure, ..Idle::default() });
            assert_eq!(shift.is_done(), done, "{until:?}");
        }
    }
}
