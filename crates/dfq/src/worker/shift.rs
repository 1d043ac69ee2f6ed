//! A worker at work: claim as many tasks as there is room for, run their handlers, settle what has
//! finished, wait for news; at the end let handlers finish, and give back the rest.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::task::{Id, JoinSet};

use super::heart::{Heart, Kept};
use super::settle::{self, Finished, Running};
use super::{Became, Job, Until, Verdict, Worker};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Delivery, Idle, PollRequest, Polled, Queue};

/// How many calls to a remote queue are under way at once, and how many of them polls. Each is a batch
/// with many requests.
const REMOTE_LANES: usize = 16;
const REMOTE_POLLS: usize = 8;

/// The most tasks asked for at a time.
const MAX_POLL: usize = 1000;

/// How long to wait after the store failed: from the first, doubling, to the second, more or less, so that
/// not everybody comes back at once.
const TROUBLE_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// So many polls in a row that were refused end a worker, and so many that found no room end one that ends
/// by itself.
const LASTING_TRIES: u32 = 5;

/// Waits until one of the queues may have something.
async fn news(queues: &[Arc<dyn Queue>], at_most: Duration) {
    futures::future::select_all(queues.iter().map(|queue| queue.wait(at_most))).await;
}

/// What came of a call to the queues.
enum Came {
    /// A poll, begun at `asked` for so many tasks, when so many calls had settled something.
    Claimed { asked: Duration, settles: u64, wanted: usize, answer: Result<Vec<Haul>> },
    /// So many verdicts were told; these the queue could not take note of. Their leases are kept on.
    Settled { told: usize, refused: Vec<(Finished, Option<Kept>)> },
}

/// What a poll of one of the worker's queues brought.
struct Haul {
    queue: usize,
    polled: Polled,
}

/// A worker at work.
pub(super) struct Shift<'a> {
    worker: &'a Worker,
    pub(super) heart: Arc<Heart>,
    jobs: JoinSet<Verdict>,
    running: Running,
    /// How many tasks so far.
    started: u64,
    /// Calls to the queues that are under way. Where a call blocks or waits for a disk there is one
    /// at a time, which then takes all that has come together; where it is a request there are many.
    calls: FuturesUnordered<BoxFuture<'a, Came>>,
    lanes: usize,
    /// Polls under way, and the tasks that they ask for.
    polls: usize,
    asked_for: usize,
    /// Tasks whose verdicts the queue is being told.
    settling: usize,
    /// How many calls have settled something so far.
    settles: u64,
    /// What the last poll said.
    idle: Option<Idle>,
    idle_for: Duration,
}

impl<'a> Shift<'a> {
    pub(super) fn new(worker: &'a Worker, heart: Heart) -> Self {
        let remote = worker.queues.iter().all(|queue| queue.capabilities().remote);
        Self {
            worker,
            heart: Arc::new(heart),
            jobs: JoinSet::new(),
            running: Running::default(),
            started: 0,
            calls: FuturesUnordered::new(),
            lanes: if remote { REMOTE_LANES } else { 1 },
            polls: 0,
            asked_for: 0,
            settling: 0,
            settles: 0,
            idle: None,
            idle_for: worker.idle.0,
        }
    }

    pub(super) async fn work(&mut self) -> Result<()> {
        let Worker { queues, env, stopper, .. } = self.worker;
        while !stopper.gently.is_cancelled() {
            if !self.heart.beats() {
                let message = "the heartbeat thread has died, so leases cannot be kept";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            self.settle_ready();
            if self.idle.is_none() {
                self.claim();
            }
            if self.is_done() {
                return Ok(());
            }
            let jitter = self.idle_for.mul_f64(0.75 + 0.5 * env.fraction());
            let next = self.idle.as_ref().and_then(|idle| idle.next);
            let pause = next.map_or(jitter, |next| next.min(jitter)).max(Duration::from_millis(1));
            let waits = self.idle.is_some() && self.free() > 0;
            tokio::select! {
                biased;
                // First, so that nothing is started that a poll brings together with the stop.
                () = stopper.gently.cancelled() => {}
                Some(joined) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => {
                    self.make_room(joined);
                }
                Some(came) = self.calls.next(), if !self.calls.is_empty() => self.take(came)?,
                () = env.clock().sleep(self.running.retry_in(env.monotonic())), if self.retries() => {}
                () = news(queues, pause), if waits => {
                    self.idle = None;
                    self.idle_for = (self.idle_for * 2).min(self.worker.idle.1);
                }
            }
        }
        Ok(())
    }

    /// Whether this is where a worker that stops by itself does so.
    fn is_done(&self) -> bool {
        let quiet = self.running.is_empty() && self.calls.is_empty();
        let enough = self.started >= self.worker.limit;
        let Some(idle) = self.idle.as_ref().filter(|_| quiet) else { return quiet && enough };
        !idle.more
            && match self.worker.until {
                Until::Stopped => enough,
                Until::Idle => true,
                Until::Drained => enough || (idle.next.is_none() && !idle.paused),
            }
    }

    /// Whether there is a verdict to be told once more, and a call to be had for it.
    fn retries(&self) -> bool {
        self.running.has_unsettled() && self.calls.len() < self.lanes
    }

    /// How many more tasks there is room for. While the queue is told of one, its place is another's
    /// already, unless that takes so long that they pile up.
    fn free(&self) -> usize {
        let told_late = self.settling.saturating_sub(self.worker.concurrency);
        let taken = self.running.len() + told_late + self.asked_for;
        let room = self.worker.concurrency.saturating_sub(taken).min(MAX_POLL);
        let promised = self.started.saturating_add(self.asked_for as u64);
        let left = self.worker.limit.saturating_sub(promised);
        room.min(usize::try_from(left).unwrap_or(room))
    }

    /// Claims as many tasks as there is room for, from the first queue that has any. Not after a stop:
    /// the handler whose place has just become free may have asked for it.
    fn claim(&mut self) {
        let wanted = self.free();
        let stopped = self.worker.stopper.gently.is_cancelled();
        let busy = self.calls.len() >= self.lanes || self.polls >= REMOTE_POLLS;
        if wanted == 0 || stopped || busy {
            return;
        }
        self.asked_for += wanted;
        self.polls += 1;
        let (worker, settles) = (self.worker, self.settles);
        self.calls.push(Box::pin(async move {
            let asked = worker.env.monotonic();
            let answer = poll_all(worker, wanted).await;
            Came::Claimed { asked, settles, wanted, answer }
        }));
    }

    /// Takes note of what came of a call.
    fn take(&mut self, came: Came) -> Result<()> {
        match came {
            Came::Settled { told, refused } => {
                self.settling -= told;
                self.settles += u64::from(told > refused.len());
                for (finished, kept) in refused {
                    if let Some(kept) = kept {
                        self.heart.resume(&finished.receipt, kept);
                    }
                    self.running.put_back(finished, self.worker.env.monotonic());
                }
                if self.awaits_end() {
                    self.idle = None; // whether that was all is to be seen
                }
                Ok(())
            }
            Came::Claimed { asked, settles, wanted, answer } => {
                self.asked_for -= wanted;
                self.polls -= 1;
                let (mut idle, before) = (Idle::default(), self.started);
                for Haul { queue, polled } in answer? {
                    for delivery in polled.deliveries {
                        self.start(queue, delivery, asked);
                    }
                    idle.paused |= polled.idle.paused;
                    idle.more |= polled.idle.more;
                    idle.next = idle.next.into_iter().chain(polled.idle.next).min();
                }
                if self.started > before {
                    self.idle_for = self.worker.idle.0;
                }
                // What was given back meanwhile may look held in an answer that is older.
                let outdated = self.settles > settles && self.awaits_end();
                self.idle = Some(idle).filter(|idle| !idle.more && !outdated);
                Ok(())
            }
        }
    }

    /// Whether the next poll may be what ends a worker that stops by itself. While something runs or is
    /// being settled it is not: when that is over, there is another.
    fn awaits_end(&self) -> bool {
        self.running.is_empty() && self.settling == 0 && self.worker.until != Until::Stopped
    }

    /// Runs the handler for a task that was claimed by a poll begun at `asked`.
    fn start(&mut self, queue: usize, delivery: Delivery, asked: Duration) {
        let receipt = delivery.receipt.clone();
        let until = asked + delivery.valid_for;
        if self.worker.env.monotonic() >= until {
            // The runtime was kept busy for so long that the lease may have run out meanwhile.
            self.running.add_unrun(queue, receipt, "its worker was too slow to start it");
            return;
        }
        self.started += 1;
        let cancelled = self.heart.keep(queue, &receipt, asked, until);
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

    fn collect(&mut self, joined: std::result::Result<(Id, Verdict), tokio::task::JoinError>) {
        let (id, verdict) = match joined {
            Ok((id, verdict)) => (id, verdict),
            Err(error) => (error.id(), verdict_of(error)),
        };
        self.running.finished(id, verdict);
    }

    /// The same, and asks for more if there was no room before. Where a poll takes requests, one that
    /// found too little is not repeated for every task that ends.
    fn make_room(&mut self, joined: std::result::Result<(Id, Verdict), tokio::task::JoinError>) {
        let had_room = self.free() > 0 && self.lanes > 1;
        self.collect(joined);
        self.idle = self.idle.take().filter(|_| had_room);
    }

    /// Settles all that has finished by now in one go: it costs little more than settling one.
    fn settle_ready(&mut self) {
        while let Some(joined) = self.jobs.try_join_next_with_id() {
            self.make_room(joined);
        }
        if self.calls.len() >= self.lanes {
            return;
        }
        let unsettled = self.running.take_unsettled(self.worker.env.monotonic());
        if unsettled.is_empty() {
            return;
        }
        self.settling += unsettled.len();
        let (worker, heart) = (self.worker, Arc::clone(&self.heart));
        self.calls.push(Box::pin(tell_all(worker, heart, unsettled)));
    }

    /// Lets handlers finish, then gives back what is left.
    pub(super) async fn wind_down(&mut self) {
        let Worker { env, stopper, grace, cleanup, .. } = self.worker;
        let over = env.clock().sleep(*grace);
        tokio::pin!(over);
        while !self.running.is_empty() || !self.calls.is_empty() {
            self.settle_ready();
            tokio::select! {
                biased;
                Some(joined) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => {
                    self.collect(joined);
                }
                Some(came) = self.calls.next(), if !self.calls.is_empty() => self.take_back(came),
                () = env.clock().sleep(self.running.retry_in(env.monotonic())), if self.retries() => {}
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
        // What is under way may have claimed something.
        while let Some(came) = self.calls.next().await {
            self.take_back(came);
        }
        self.running.abandon();
        self.settle_ready();
        while let Some(came) = self.calls.next().await {
            self.take_back(came);
        }
        for finished in self.running.unsettled() {
            let key = finished.receipt.key();
            tracing::error!(%key, "the result could not be recorded; the task is done again later");
            self.heart.count(finished.queue, Became::Unrecorded);
        }
        for queue in &self.worker.queues {
            queue.close().await;
        }
    }

    /// Takes note of a call that came to its end after the stop: what was claimed is given back.
    fn take_back(&mut self, came: Came) {
        match came {
            Came::Claimed { wanted, answer, .. } => {
                self.asked_for -= wanted;
                self.polls -= 1;
                for Haul { queue, polled } in answer.unwrap_or_default() {
                    for delivery in polled.deliveries {
                        self.running.add_unrun(queue, delivery.receipt, "its worker stopped");
                    }
                }
            }
            // Settling never fails as a whole.
            settled @ Came::Settled { .. } => _ = self.take(settled),
        }
    }
}

/// Claims up to `wanted` tasks, from the first queue that has any.
async fn poll_all(worker: &Worker, wanted: usize) -> Result<Vec<Haul>> {
    let (mut hauls, mut free): (Vec<Haul>, usize) = (Vec::new(), wanted);
    for queue in 0..worker.queues.len() {
        if free == 0 {
            break;
        }
        match poll(worker, queue, free).await {
            Ok(polled) => {
                free = free.saturating_sub(polled.deliveries.len());
                hauls.push(Haul { queue, polled });
            }
            // What was claimed from those before must not be lost.
            Err(error) if hauls.iter().any(|haul| !haul.polled.deliveries.is_empty()) => {
                tracing::warn!(%error, "cannot poll");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(hauls)
}

/// Claims tasks. A store that fails for a while is waited for; a queue that cannot be used is not.
async fn poll(worker: &Worker, queue: usize, free: usize) -> Result<Polled> {
    let Worker { queues, request, env, troubles, .. } = worker;
    match queues[queue].poll(PollRequest { max: free, ..request.clone() }).await {
        Ok(polled) => {
            troubles.store(0, Ordering::Relaxed);
            worker.polled.store(true, Ordering::Relaxed);
            Ok(polled)
        }
        Err(error) => match error.kind() {
            kind @ (ErrorKind::Unavailable | ErrorKind::Full | ErrorKind::Denied) => {
                let before = troubles.fetch_add(1, Ordering::Relaxed);
                let lasting = match kind {
                    ErrorKind::Full => worker.until != Until::Stopped,
                    ErrorKind::Denied => true,
                    _ => false,
                };
                // What was never allowed will not be; what was, is refused now and then for a moment.
                let never = kind == ErrorKind::Denied && !worker.polled.load(Ordering::Relaxed);
                if never || (lasting && before + 1 >= LASTING_TRIES) {
                    return Err(error);
                }
                let pause =
                    TROUBLE_PAUSE.0.saturating_mul(1 << before.min(16)).min(TROUBLE_PAUSE.1);
                let pause = pause.mul_f64(0.5 + env.fraction());
                tracing::warn!(%error, "cannot poll now; trying again in {:.0} s", pause.as_secs_f64());
                tokio::select! {
                    () = env.clock().sleep(pause) => {}
                    () = worker.stopper.stopping() => {}
                }
                // Nothing is known of what is there: whoever waits for the end must go on.
                let idle = Idle { more: true, ..Idle::default() };
                Ok(Polled { idle, ..Polled::default() })
            }
            _ => Err(error),
        },
    }
}

/// Tells the queues what became of tasks.
async fn tell_all(worker: &Worker, heart: Arc<Heart>, unsettled: Vec<Finished>) -> Came {
    // Not renewed while it is being settled; if that fails it must be, as if nothing had happened.
    let keep = |done: &Finished| (done.receipt.clone(), heart.forget(&done.receipt));
    let mut kept: HashMap<_, _> = unsettled.iter().map(keep).collect();
    let told = unsettled.len();
    let mut of_queue: Vec<Vec<_>> = worker.queues.iter().map(|_| Vec::new()).collect();
    for done in unsettled {
        of_queue[done.queue].push(done);
    }
    let mut refused = Vec::new();
    for (queue, finished) in worker.queues.iter().zip(of_queue) {
        for finished in settle::settle(queue, finished, &heart, &*worker.observer).await {
            let kept = kept.remove(&finished.receipt).flatten();
            refused.push((finished, kept));
        }
    }
    Came::Settled { told, refused }
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

#[cfg(test)]
mod tests;
