//! Calls to a worker's queues: polls, and telling them what became of tasks.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use super::heart::Heart;
use super::settle::{self, Finished, Told};
use crate::error::Result;
use crate::queue::{PollRequest, Polled};

/// What came of a call to the queues.
pub(super) enum CallResult {
    /// A poll for so many tasks, begun when so many calls had settled something.
    Claimed { settles: u64, wanted: usize, answers: Vec<PolledQueue> },
    /// So many results were told, and this came of it. The leases of those to be told again are kept on.
    Settled { count: usize, told: Told },
}

/// What a poll of one of the worker's queues brought, begun at `asked`.
pub(super) struct PolledQueue {
    pub(super) queue: usize,
    pub(super) asked: Duration,
    pub(super) answer: Result<Polled>,
}

/// Claims up to `wanted` tasks, from the first of these queues that has any. A look of other workers that is younger
/// than `relies_within` will do.
pub(super) async fn poll_all(
    worker: &Worker,
    queues: Vec<usize>,
    wanted: usize,
    relies_within: Option<Duration>,
) -> Vec<PolledQueue> {
    let (mut answers, mut free) = (Vec::new(), wanted);
    for queue in queues {
        if free == 0 {
            break;
        }
        let asked = worker.env.monotonic();
        let request = PollRequest { max: free, relies_within, ..worker.request.clone() };
        let answer = worker.queues[queue].poll(request).await;
        let claimed = answer.as_ref().map_or(0, |polled| polled.deliveries.len());
        free = free.saturating_sub(claimed);
        answers.push(PolledQueue { queue, asked, answer });
    }
    answers
}

/// Tells the queues what became of tasks.
pub(super) async fn tell_all(
    worker: &Worker,
    heart: Arc<Heart>,
    unsettled: Vec<Finished>,
    last: bool,
) -> CallResult {
    let count = unsettled.len();
    let mut of_queue: Vec<Vec<_>> = worker.queues.iter().map(|_| Vec::new()).collect();
    for done in unsettled {
        heart.handled(&done.receipt);
        of_queue[done.queue].push(done);
    }
    let mut told = Told::default();
    for (index, finished) in of_queue.into_iter().enumerate() {
        told.add(settle::settle(worker, index, finished, &heart, last).await);
    }
    CallResult::Settled { count, told }
}
