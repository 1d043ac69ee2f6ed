//! A worker at work: claim as many tasks as there is room for, run their handlers, settle what has
//! finished, wait for news; at the end let handlers finish, and give back the rest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinSet};

use super::heart::Heart;
use super::settle::{self, Running};
use super::{Job, Until, Verdict, Worker};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Delivery, Idle, PollRequest, Polled, Queue};

/// How long an idle worker waits before it looks again, where nobody tells it: from the first to the
/// second, doubling.
const IDLE_POLL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The most tasks asked for at a time.
const MAX_POLL: usize = 1000;

/// How long to wait after the store failed.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// Waits until one of the queues may have something.
async fn news(queues: &[Arc<dyn Queue>], at_most: Duration) {
    futures::future::select_all(queues.iter().map(|queue| queue.wait(at_most))).await;
}

/// A worker at work.
pub(super) struct Shift<'a> {
    worker: &'a Worker,
    pub(super) heart: Heart,
    jobs: JoinSet<Verdict>,
    running: Running,
    /// How many tasks so far.
    started: u64,
}

impl<'a> Shift<'a> {
    pub(super) fn new(worker: &'a Worker, heart: Heart) -> Self {
        Self { worker, heart, jobs: JoinSet::new(), running: Running::default(), started: 0 }
    }

    pub(super) async fn work(&mut self) -> Result<()> {
        let Worker { queues, env, stopper, until, .. } = self.worker;
        let mut idle_for = IDLE_POLL.0;
        while !stopper.gently.is_cancelled() {
            if !self.heart.beats() {
                let message = "the heartbeat thread has died, so leases cannot be kept";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            let before = self.started;
            let idle = self.claim().await?;
            if self.started > before {
                idle_for = IDLE_POLL.0;
            }
            let enough = self.started >= self.worker.limit;
            let done = self.running.is_empty()
                && !idle.more
                && match until {
                    Until::Stopped => enough,
                    Until::Idle => true,
                    Until::Drained => enough || (idle.next.is_none() && !idle.paused),
                };
            if done {
                return Ok(());
            }
            if idle.more && self.free() > 0 {
                self.settle_ready().await;
                tokio::task::yield_now().await;
                continue;
            }
            let jitter = idle_for.mul_f64(0.75 + 0.5 * env.fraction());
            let pause =
                idle.next.map_or(jitter, |next| next.min(jitter)).max(Duration::from_millis(1));
            let hungry = self.free() > 0;
            tokio::select! {
                biased;
                Some(joined) = self.jobs.join_next_with_id(), if !self.running.is_empty() => {
                    self.finish(joined).await;
                }
                () = stopper.gently.cancelled() => {}
                () = env.clock().sleep(self.running.retry_in(env.monotonic())), if self.running.has_unsettled() => {
                    self.settle_ready().await;
                }
                () = news(queues, pause), if hungry => idle_for = (idle_for * 2).min(IDLE_POLL.1),
            }
        }
        Ok(())
    }

    /// How many more tasks there is room for.
    fn free(&self) -> usize {
        let room = self.worker.concurrency.saturating_sub(self.running.len()).min(MAX_POLL);
        let left = self.worker.limit.saturating_sub(self.started);
        room.min(usize::try_from(left).unwrap_or(room))
    }

    /// Claims as many tasks as there is room for, from the first queue that has any.
    async fn claim(&mut self) -> Result<Idle> {
        let mut all = Idle::default();
        for index in 0..self.worker.queues.len() {
            let free = self.free();
            if free == 0 {
                break;
            }
            let asked = self.worker.env.monotonic();
            let Polled { deliveries, idle } = self.poll(index, free).await?;
            for delivery in deliveries {
                self.start(index, delivery, asked);
            }
            all.paused |= idle.paused;
            all.more |= idle.more;
            all.next = all.next.into_iter().chain(idle.next).min();
        }
        Ok(all)
    }

    /// Claims tasks. A store that fails for a while is waited for; a queue that cannot be used is not.
    async fn poll(&self, queue: usize, free: usize) -> Result<Polled> {
        let Worker { queues, request, env, .. } = self.worker;
        match queues[queue].poll(PollRequest { max: free, ..request.clone() }).await {
            Ok(polled) => Ok(polled),
            Err(error) => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Full => {
                    tracing::warn!(%error, "cannot poll now");
                    env.clock().sleep(TROUBLE_PAUSE).await;
                    // Nothing is known of what is there: whoever waits for the end must go on.
                    let idle = Idle { more: true, ..Idle::default() };
                    Ok(Polled { idle, ..Polled::default() })
                }
                _ => Err(error),
            },
        }
    }

    /// Runs the handler for a task that was claimed by a poll begun at `asked`.
    fn start(&mut self, queue: usize, delivery: Delivery, asked: Duration) {
        let receipt = delivery.receipt.clone();
        if self.worker.env.monotonic() >= asked + delivery.valid_for {
            // The runtime was kept busy for so long that the lease may have run out meanwhile.
            let reason = Some("its worker was too slow to start it".to_owned());
            self.running.add_finished(queue, receipt, Verdict::Release { reason, delay: None });
            return;
        }
        self.started += 1;
        let cancelled = self.heart.keep(queue, &receipt, asked);
        let owner = Arc::clone(&self.worker.queues[queue]);
        let job = Job { delivery, queue: owner, cancelled: cancelled.clone() };
        let handler = Arc::clone(&self.worker.handler);
        let (env, cleanup) = (self.worker.env.clone(), self.worker.cleanup);
        let task = self.jobs.spawn(async move {
            // In here from the first line on, so that a handler that panics takes nobody with it.
            let handled = handler(job);
            let overdue = async {
                cancelled.cancelled().await;
                if !cleanup.is_zero() {
                    env.clock().sleep(cleanup).await;
                }
            };
            // Dropping the handler is what cancels it; the token is for those who cannot be dropped.
            tokio::select! {
                biased;
                verdict = handled => verdict,
                () = overdue => Verdict::Release { reason: None, delay: None },
            }
        });
        self.running.add(task.id(), queue, receipt);
    }

    async fn finish(&mut self, joined: std::result::Result<(Id, Verdict), tokio::task::JoinError>) {
        self.collect(joined);
        self.settle_ready().await;
    }

    fn collect(&mut self, joined: std::result::Result<(Id, Verdict), tokio::task::JoinError>) {
        let (id, verdict) = match joined {
            Ok((id, verdict)) => (id, verdict),
            Err(error) => (error.id(), verdict_of(error)),
        };
        self.running.finished(id, verdict);
    }

    /// Settles all that has finished by now in one go: it costs little more than settling one.
    async fn settle_ready(&mut self) {
        while let Some(joined) = self.jobs.try_join_next_with_id() {
            self.collect(joined);
        }
        let unsettled = self.running.take_unsettled();
        // Not renewed while it is being settled; if that fails it must be, as if nothing had happened.
        let kept: Vec<_> = unsettled.iter().map(|done| self.heart.forget(&done.receipt)).collect();
        let kept: HashMap<_, _> =
            unsettled.iter().map(|done| done.receipt.clone()).zip(kept).collect();
        let Worker { queues, observer, env, .. } = self.worker;
        let mut of_queue: Vec<Vec<_>> = queues.iter().map(|_| Vec::new()).collect();
        for done in unsettled {
            of_queue[done.queue].push(done);
        }
        for (queue, finished) in queues.iter().zip(of_queue) {
            for refused in settle::settle(queue, finished, &self.heart, &**observer).await {
                if let Some(Some(kept)) = kept.get(&refused.receipt) {
                    self.heart.resume(&refused.receipt, kept.clone());
                }
                self.running.put_back(refused, env.monotonic());
            }
        }
    }

    /// Lets handlers finish, then gives back what is left.
    pub(super) async fn wind_down(&mut self) {
        let Worker { env, stopper, grace, cleanup, .. } = self.worker;
        let over = env.clock().sleep(*grace);
        tokio::pin!(over);
        while !self.running.is_empty() {
            tokio::select! {
                biased;
                Some(joined) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => {
                    self.finish(joined).await;
                }
                () = env.clock().sleep(self.running.retry_in(env.monotonic())), if self.running.has_unsettled() => {
                    self.settle_ready().await;
                }
                () = stopper.hard.cancelled() => break,
                () = &mut over => break,
            }
        }
        self.heart.cancel_all();
        // Handlers are dropped at their next await; one that never comes to it must not keep its task.
        let patience = env.clock().sleep(*cleanup + Duration::from_secs(1));
        tokio::pin!(patience);
        while !self.jobs.is_empty() {
            tokio::select! {
                Some(joined) = self.jobs.join_next_with_id() => self.collect(joined),
                () = &mut patience => break,
            }
        }
        self.running.abandon();
        self.settle_ready().await;
        for key in self.running.unsettled() {
            tracing::error!(%key, "the queue could not be told; the task is redone after its lease");
        }
    }
}

fn verdict_of(error: tokio::task::JoinError) -> Verdict {
    let error = match error.try_into_panic() {
        Err(_) => "the handler was aborted".to_owned(),
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("the handler panicked: {}", text.unwrap_or_else(|| "(no message)".to_owned()))
        }
    };
    Verdict::Retry { error, delay: None }
}
