//! A worker at work: claim as many tasks as there is room for, run their handlers, settle what has
//! finished, wait for news; at the end let handlers finish, and give back the rest.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use super::calls::{CallResult, PolledQueue, poll_all, tell_all};
use super::heart::Heart;
use super::settle::{Running, result_of};
use super::trouble::Trouble;
use super::{Job, STOPPED, TaskResult, Until, Worker};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Delivery, Idle};

/// How many calls to a remote queue are under way at once, and how many of them polls. Each is a batch
/// with many requests.
const REMOTE_LANES: usize = 16;
const REMOTE_POLLS: usize = 8;

/// The most tasks asked for at a time.
const MAX_POLL: usize = 1000;

/// So many results in a row that cannot be recorded end a worker: what it does is done for nothing.
const MAX_UNRECORDED: usize = 3;

/// How long the queues may take at the end to hear what became of tasks, and how long after a hard stop.
const LAST_WORDS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// An idle worker waits for at least this part of what it may wait.
const LEAST_WAIT: f64 = 0.75;

/// When something known wakes, a look of another worker is relied on only if it is younger than this. Whoever looked so
/// lately knows of it, too.
const WOKEN: Duration = Duration::from_secs(2);

/// Waits until one of the queues may have something, and no longer than `pause`. Each listens for `listen`,
/// which may go on after that.
async fn news(worker: &Worker, listen: Duration, pause: Duration) {
    let waits = worker.queues.iter().map(|queue| queue.wait(listen));
    tokio::select! {
        biased;
        _ = futures::future::select_all(waits) => {}
        () = worker.env.clock().sleep(pause), if pause < listen => {}
    }
}

/// A handler under way, by the number of its task. It ends with its worker.
struct Handling {
    id: u64,
    running: crate::clock::Running<TaskResult>,
}

impl Future for Handling {
    type Output = (u64, TaskResult);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id;
        Pin::new(&mut self.running).poll(cx).map(|ended| (id, ended.unwrap_or_else(result_of)))
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// A worker at work.
pub(super) struct Shift<'a> {
    worker: &'a Worker,
    pub(super) heart: Arc<Heart>,
    jobs: FuturesUnordered<Handling>,
    running: Running,
    /// How many tasks so far.
    started: u64,
    /// Calls to the queues that are under way. Where a call blocks or waits for a disk there is one
    /// at a time, which then takes all that has come together; where it is a request there are many.
    calls: FuturesUnordered<BoxFuture<'a, CallResult>>,
    lanes: usize,
    /// Polls under way, and the tasks that they ask for.
    polls: usize,
    asked_for: usize,
    /// Tasks whose results the queue is being told.
    settling: usize,
    /// How many calls have settled something so far.
    settles: u64,
    /// How many results in a row could not be recorded, by queue.
    unrecorded: Vec<usize>,
    /// What is told now is told for the last time.
    last: bool,
    /// How polls go, by queue.
    troubles: Vec<Trouble>,
    /// What the last poll said.
    idle: Option<Idle>,
    idle_for: Duration,
    /// When to look again, while there is nothing to do.
    look_at: Option<Duration>,
    /// How old another worker's look may be for the next poll to rely on it.
    relies_within: Option<Duration>,
}

impl<'a> Shift<'a> {
    pub(super) fn new(worker: &'a Worker, heart: Heart) -> Self {
        let remote = worker.queues.iter().all(|queue| queue.capabilities().remote);
        Self {
            worker,
            heart: Arc::new(heart),
            jobs: FuturesUnordered::new(),
            running: Running::default(),
            started: 0,
            calls: FuturesUnordered::new(),
            lanes: if remote { REMOTE_LANES } else { 1 },
            polls: 0,
            asked_for: 0,
            settling: 0,
            settles: 0,
            unrecorded: vec![0; worker.queues.len()],
            last: false,
            troubles: worker.queues.iter().map(|_| Trouble::default()).collect(),
            idle: None,
            idle_for: worker.idle.0,
            look_at: None,
            relies_within: None,
        }
    }

    pub(super) async fn work(&mut self) -> Result<()> {
        let Worker { env, stopper, .. } = self.worker;
        while !stopper.gently.is_cancelled() {
            if !self.heart.beats() {
                let message = "the heartbeat thread has died, so leases cannot be kept";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            self.settle_ready();
            if self.idle.is_none() {
                self.look_at = None;
                self.claim();
            }
            if self.is_done() {
                return Ok(());
            }
            // Those who began to wait together come back one by one, and nobody waits for longer than `idle_for`.
            let jitter = self.idle_for.mul_f64(LEAST_WAIT + (1.0 - LEAST_WAIT) * env.fraction());
            let next = self.idle.as_ref().and_then(|idle| idle.next);
            let unsure = self.idle.as_ref().and_then(|idle| idle.unsure);
            // Before the end, listen for as long as the queues need to be sure.
            let unsure = unsure.filter(|_| self.awaits_end());
            let rest = unsure.unwrap_or(jitter);
            let pause = next.map_or(rest, |next| next.min(rest)).max(Duration::from_millis(1));
            // What happens meanwhile does not make the wait begin anew.
            let now = env.monotonic();
            let look_at = match self.idle.is_some() {
                true => *self.look_at.get_or_insert(now + pause),
                false => now + pause,
            };
            let pause = look_at.saturating_sub(now).max(Duration::from_millis(1));
            let listen = unsure.map_or(pause, |unsure| unsure.max(pause));
            let waits = self.idle.is_some() && self.free() > 0;
            tokio::select! {
                biased;
                // First, so that nothing is started that a poll brings together with the stop.
                () = stopper.gently.cancelled() => {}
                Some(handled) = self.jobs.next(), if !self.jobs.is_empty() => {
                    self.make_room(handled);
                }
                Some(call) = self.calls.next(), if !self.calls.is_empty() => self.finish_call(call)?,
                () = env.clock().sleep(self.running.retry_in(env.monotonic())), if self.retries() => {}
                () = news(self.worker, listen, pause), if waits => {
                    self.idle = None;
                    // A worker that was told of something looks itself. So does one that ends if nothing is left.
                    let others_will_do = env.monotonic() >= look_at && !self.awaits_end();
                    let woken = next.is_some_and(|next| next < rest);
                    let within = if woken { WOKEN } else { self.idle_for };
                    self.relies_within = others_will_do.then_some(within);
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
        // Nothing is known of what is in a queue that cannot be polled, or that is not sure itself.
        let known = !self.troubles.iter().any(Trouble::is_there) && idle.unsure.is_none();
        !idle.more
            && match self.worker.until {
                Until::Stopped => enough,
                Until::Idle => enough || known,
                Until::Drained => enough || (known && idle.next.is_none() && !idle.paused),
            }
    }

    /// Whether there is a result to be told once more, and a call to be had for it.
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
        let now = self.worker.env.monotonic();
        let awake = |queue: &usize| self.troubles[*queue].rests_for(now).is_zero();
        let queues: Vec<usize> = (0..self.worker.queues.len()).filter(awake).collect();
        if queues.is_empty() {
            // Waited for by the shift, not by a call: what is to be recorded meanwhile needs its place.
            self.idle = Some(Idle { next: self.rested_in(now), ..Idle::default() });
            return;
        }
        self.asked_for += wanted;
        self.polls += 1;
        let (worker, settles) = (self.worker, self.settles);
        let relies_within = self.relies_within.take().filter(|_| !self.awaits_end());
        self.calls.push(Box::pin(async move {
            let answers = poll_all(worker, queues, wanted, relies_within).await;
            CallResult::Claimed { settles, wanted, answers }
        }));
    }

    /// When the first of the queues that are left alone may be polled again.
    fn rested_in(&self, now: Duration) -> Option<Duration> {
        let rests = self.troubles.iter().map(|trouble| trouble.rests_for(now));
        rests.filter(|rest| !rest.is_zero()).min()
    }

    /// Takes note of what came of a call.
    fn finish_call(&mut self, call: CallResult) -> Result<()> {
        match call {
            CallResult::Settled { count, told } => {
                self.settling -= count;
                self.settles += u64::from(count > told.again.len());
                self.running.retry_later(told.again, &self.worker.env);
                if self.awaits_end() {
                    self.idle = None; // whether that was all is to be seen
                }
                self.count_unrecorded(&told.recorded, told.unrecorded)
            }
            CallResult::Claimed { settles, wanted, answers } => {
                self.asked_for -= wanted;
                self.polls -= 1;
                let (mut idle, before, mut ended) = (Idle::default(), self.started, Ok(()));
                let Worker { env, until, .. } = self.worker;
                for PolledQueue { queue, asked, answer } in answers {
                    let polled = match answer {
                        Ok(polled) => polled,
                        // What came from the other queues must not be lost.
                        Err(error) => {
                            let noted = self.troubles[queue].failed(asked, error, *until, env);
                            ended = ended.and(noted);
                            continue;
                        }
                    };
                    self.troubles[queue].went_well();
                    for delivery in polled.deliveries {
                        self.start(queue, delivery, asked);
                    }
                    idle.paused |= polled.idle.paused;
                    idle.more |= polled.idle.more;
                    idle.next = idle.next.into_iter().chain(polled.idle.next).min();
                    idle.unsure = idle.unsure.max(polled.idle.unsure);
                }
                idle.next = idle.next.into_iter().chain(self.rested_in(env.monotonic())).min();
                if self.started > before {
                    self.idle_for = self.worker.idle.0;
                }
                // What was given back meanwhile may look held in an answer that is older.
                let outdated = self.settles > settles && self.awaits_end();
                self.idle = Some(idle).filter(|idle| !idle.more && !outdated);
                self.look_at = None;
                ended
            }
        }
    }

    /// Ends the worker once it is plain that nothing it does can be recorded.
    fn count_unrecorded(
        &mut self,
        recorded: &BTreeSet<usize>,
        unrecorded: Vec<(usize, Error)>,
    ) -> Result<()> {
        for queue in recorded {
            self.unrecorded[*queue] = 0;
        }
        for (queue, error) in unrecorded {
            self.unrecorded[queue] += 1;
            if error.kind() == ErrorKind::Full || self.unrecorded[queue] >= MAX_UNRECORDED {
                return Err(error.context("results cannot be recorded"));
            }
        }
        Ok(())
    }

    /// Whether the next poll may be what ends a worker that stops by itself. While something runs or is
    /// being settled it is not: when that is over, there is another.
    fn awaits_end(&self) -> bool {
        self.running.is_empty() && self.settling == 0 && self.worker.until != Until::Stopped
    }

    /// Runs the handler for a task that was claimed by a poll begun at `asked`.
    fn start(&mut self, queue: usize, delivery: Delivery, asked: Duration) {
        let receipt = delivery.receipt.clone();
        let until = asked + delivery.lasts;
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
        let running = self.worker.env.spawn(async move {
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
                result = handled => result,
                () = overdue => TaskResult::Release { reason: Some(STOPPED.to_owned()), delay: None },
            }
        });
        self.running.add(self.started, queue, receipt);
        self.jobs.push(Handling { id: self.started, running });
    }

    fn collect(&mut self, (id, result): (u64, TaskResult)) {
        self.running.finished(id, result);
    }

    /// The same, and asks for more if there was no room before. Where a poll takes requests, one that
    /// found too little is not repeated for every task that ends.
    fn make_room(&mut self, handled: (u64, TaskResult)) {
        let had_room = self.free() > 0 && self.lanes > 1;
        self.collect(handled);
        self.idle = self.idle.take().filter(|_| had_room);
    }

    /// Settles all that has finished by now in one go: it costs little more than settling one.
    fn settle_ready(&mut self) {
        while let Some(Some(handled)) = self.jobs.next().now_or_never() {
            self.make_room(handled);
        }
        if self.calls.len() >= self.lanes {
            return;
        }
        // At the end nothing is left for later.
        let now = if self.last { Duration::MAX } else { self.worker.env.monotonic() };
        let unsettled = self.running.take_unsettled(now);
        if unsettled.is_empty() {
            return;
        }
        self.settling += unsettled.len();
        let (worker, heart) = (self.worker, Arc::clone(&self.heart));
        self.calls.push(Box::pin(tell_all(worker, heart, unsettled, self.last)));
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
                Some(handled) = self.jobs.next(), if !self.jobs.is_empty() => {
                    self.collect(handled);
                }
                Some(call) = self.calls.next(), if !self.calls.is_empty() => self.finish_late_call(call),
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
                biased;
                Some(handled) = self.jobs.next() => self.collect(handled),
                () = &mut patience => break,
            }
        }
        self.running.abandon();
        self.last = true;
        // What is under way may have claimed something. But a store that does not answer keeps nobody.
        let worker = self.worker;
        tokio::select! {
            biased;
            () = self.give_back() => {}
            () = too_long(worker) => tracing::error!("the store does not answer; not waiting for it"),
        }
        self.heart.leave_behind();
    }

    /// Tells the queues for the last time, and takes leave of them.
    async fn give_back(&mut self) {
        while self.running.has_unsettled() || !self.calls.is_empty() {
            self.settle_ready();
            if let Some(call) = self.calls.next().await {
                self.finish_late_call(call);
            }
        }
        futures::future::join_all(self.worker.queues.iter().map(|queue| queue.close())).await;
    }

    /// Takes note of a call that came to its end after the stop: what was claimed is given back.
    fn finish_late_call(&mut self, call: CallResult) {
        match call {
            CallResult::Claimed { wanted, answers, .. } => {
                self.asked_for -= wanted;
                self.polls -= 1;
                for PolledQueue { queue, answer, .. } in answers {
                    for delivery in answer.map(|polled| polled.deliveries).unwrap_or_default() {
                        self.running.add_unrun(queue, delivery.receipt, STOPPED);
                    }
                }
            }
            // The worker is ending anyway.
            settled @ CallResult::Settled { .. } => _ = self.finish_call(settled),
        }
    }
}

/// Completes when the end of a worker has taken long enough.
async fn too_long(worker: &Worker) {
    let Worker { env, stopper, .. } = worker;
    let hard = async {
        stopper.hard.cancelled().await;
        env.clock().sleep(LAST_WORDS.1).await;
    };
    tokio::select! {
        biased;
        () = hard => {}
        () = env.clock().sleep(LAST_WORDS.0) => {}
    }
}

#[cfg(test)]
mod tests;
