//! The heartbeat: a thread with a runtime of its own, so that nothing a handler does to the worker's
//! runtime can keep leases from being renewed. It also keeps the worker's record fresh.
//!
//! Invariants:
//! - A handler is cancelled when its lease ends by this process's own clock, whatever a request or a
//!   system call does: the loop waits for nothing that can hang.
//! - Each lease is renewed on its own, so a call that hangs costs one lease.
//! - A lease is renewed until its task's end is recorded, also while that is being written.
//! - A handler whose task an operator took away is told within [`LOOK_FOR_RECALLS`] and a renewal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::counts::Counts;
use super::{Became, Report};
use crate::clock::{Env, Running, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::meter::Meter;
use crate::model::Receipt;
use crate::planted::{self, Planted};
use crate::queue::{Answers, Queue, WorkerRecord};

/// How often a worker says that it is alive; where that takes a request, how often while it works, and while it has
/// nothing to do.
const RECORD_EVERY: Duration = Duration::from_secs(15);
const REMOTE_RECORD_EVERY: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(120));

/// How often a worker that holds tasks asks whether an operator has taken any away.
const LOOK_FOR_RECALLS: Duration = Duration::from_secs(5);

/// How long a renewal may take at first. After that it is begun anew, and may take twice as long.
const RENEWED_WITHIN: Duration = Duration::from_secs(10);

/// How long the last record may take. Nobody waits for it on a store that hangs.
const LAST_RECORD: Duration = Duration::from_secs(5);

/// A lease that is kept.
struct Kept {
    /// Which of the worker's queues it is of.
    queue: usize,
    cancelled: CancellationToken,
    /// When it is to be renewed, on the monotonic clock.
    renew_at: Duration,
    /// When it ends, on the same clock.
    until: Duration,
    /// A renewal is under way.
    renewing: bool,
    /// An operator has taken tasks away since it began, so it must not be the last word.
    recalled: bool,
    /// How many renewals in a row had no answer.
    silences: u32,
    /// How many went through.
    renewals: u32,
    /// Its handler is done: only the queue has yet to be told. Whether that can still be, it will say.
    handled: bool,
    /// It is handled, and its time is over, so it is not renewed any more.
    ended: bool,
}

/// What came of renewing some leases of one queue, begun at this time. Nothing, if it took too long.
struct Renewed {
    receipts: Vec<Receipt>,
    every: Duration,
    begun: Duration,
    answers: Option<Answers<Duration>>,
}

/// What is done for each queue now and then, beside renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    /// Writing the worker's record.
    Record,
    /// Asking whether an operator has taken tasks away.
    Ask,
}

/// When an errand for a queue was last begun. Never twice at a time: it may hang.
struct Due {
    queue: usize,
    errand: Errand,
    begun: Option<Duration>,
    under_way: bool,
}

struct Shared {
    /// The worker's queues, and how often a lease of each is renewed.
    queues: Vec<(Arc<dyn Queue>, Duration)>,
    env: Env,
    concurrency: usize,
    meter: Meter,
    started_at: Timestamp,
    kept: Mutex<BTreeMap<Receipt, Kept>>,
    lost: Mutex<BTreeSet<Receipt>>,
    /// By queue.
    counts: Vec<Counts>,
    stop: CancellationToken,
    /// A lease was added that may have to be renewed before the next one known.
    added: tokio::sync::Notify,
}

/// Renews leases until dropped.
pub(super) struct Heart {
    shared: Arc<Shared>,
    thread: Mutex<Option<Running<()>>>,
}

impl Heart {
    pub(super) fn start(
        queues: Vec<(Arc<dyn Queue>, Duration)>,
        env: Env,
        concurrency: usize,
        meter: Meter,
    ) -> Result<Self> {
        let started_at = env.clock().wall();
        let counts = queues.iter().map(|_| Counts::default()).collect();
        let shared = Arc::new(Shared {
            queues,
            env,
            concurrency,
            meter,
            started_at,
            kept: Mutex::default(),
            lost: Mutex::default(),
            counts,
            stop: CancellationToken::new(),
            added: tokio::sync::Notify::new(),
        });
        let beating = Arc::clone(&shared);
        let beat = async move { beating.beat().await };
        let thread = shared.env.spawn_thread("dfq-heart", beat)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether leases are being renewed.
    pub(super) fn beats(&self) -> bool {
        lock(&self.thread).as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Renews this lease from now on; the token is cancelled when it is lost. It was given after
    /// `since`, and holds until `until`.
    pub(super) fn keep(
        &self,
        queue: usize,
        receipt: &Receipt,
        since: Duration,
        until: Duration,
    ) -> CancellationToken {
        let cancelled = CancellationToken::new();
        let kept = Kept {
            queue,
            cancelled: cancelled.clone(),
            renew_at: since + self.shared.queues[queue].1,
            until,
            renewing: false,
            recalled: false,
            silences: 0,
            renewals: 0,
            handled: false,
            ended: false,
        };
        lock(&self.shared.kept).insert(receipt.clone(), kept);
        self.shared.added.notify_one();
        cancelled
    }

    /// The handler is done. The lease is renewed all the same until the queue has been told.
    pub(super) fn handled(&self, receipt: &Receipt) {
        if let Some(kept) = lock(&self.shared.kept).get_mut(receipt) {
            kept.handled = true;
        }
    }

    /// How often this lease was renewed.
    pub(super) fn renewals(&self, receipt: &Receipt) -> u32 {
        lock(&self.shared.kept).get(receipt).map_or(0, |kept| kept.renewals)
    }

    /// Renews this lease no more.
    pub(super) fn forget(&self, receipt: &Receipt) {
        lock(&self.shared.kept).remove(receipt);
    }

    /// Whether the lease was found to be lost; asked once.
    pub(super) fn is_lost(&self, receipt: &Receipt) -> bool {
        lock(&self.shared.lost).remove(receipt)
    }

    /// Cancels all handlers, without giving up their leases.
    pub(super) fn cancel_all(&self) {
        for kept in lock(&self.shared.kept).values() {
            kept.cancelled.cancel();
        }
    }

    /// The worker ends before the queues could be told of these: their leases run out.
    pub(super) fn leave_behind(&self) {
        for (receipt, kept) in std::mem::take(&mut *lock(&self.shared.kept)) {
            let key = receipt.key();
            tracing::error!(%key, "the result could not be recorded; the task is done again later");
            self.count(kept.queue, Became::Unrecorded);
        }
    }

    pub(super) fn count(&self, queue: usize, became: Became) {
        self.shared.counts[queue].count(became);
    }

    pub(super) fn report(&self) -> Report {
        let all = self.shared.counts.iter().map(Counts::report);
        all.fold(Report::default(), |sum, one| Report {
            completed: sum.completed + one.completed,
            retried: sum.retried + one.retried,
            failed: sum.failed + one.failed,
            released: sum.released + one.released,
            lost: sum.lost + one.lost,
            unrecorded: sum.unrecorded + one.unrecorded,
        })
    }

    /// Stops, and writes the worker's last record.
    pub(super) async fn stop(&self) {
        self.shared.stop.cancel();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.await;
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    async fn beat(&self) {
        let mut renewals = FuturesUnordered::new();
        let mut errands = FuturesUnordered::new();
        let mut dues: Vec<Due> = self.errands().collect();
        while !self.stop.is_cancelled() {
            let now = self.env.monotonic();
            self.end_leases(now);
            renewals.extend(self.renewals_due(now));
            for (index, due) in dues.iter_mut().enumerate() {
                if !due.under_way && now >= self.due_at(due) && self.is_needed(due) {
                    due.under_way = true;
                    due.begun = Some(now);
                    errands.push(self.run(due.queue, due.errand).map(move |()| index));
                }
            }
            let pause = self.next_event(&dues).map(|at| at.saturating_sub(self.env.monotonic()));
            let pause = pause.unwrap_or(RECORD_EVERY).max(Duration::from_millis(1));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                Some(renewed) = renewals.next(), if !renewals.is_empty() => self.note_renewed(renewed),
                Some(index) = errands.next(), if !errands.is_empty() => {
                    dues[index].under_way = false;
                }
                () = self.added.notified() => {}
                () = self.env.clock().sleep(pause) => {}
            }
        }
        let stopped_at = Some(self.env.clock().wall());
        let records = (0..self.queues.len()).map(|queue| self.record(queue, stopped_at));
        tokio::select! {
            biased;
            _ = futures::future::join_all(records) => {}
            () = self.env.clock().sleep(LAST_RECORD) => {}
        }
    }

    /// All errands, due at once.
    fn errands(&self) -> impl Iterator<Item = Due> {
        let due = |queue, errand| Due { queue, errand, begun: None, under_way: false };
        let queues = 0..self.queues.len();
        queues.flat_map(move |queue| [due(queue, Errand::Record), due(queue, Errand::Ask)])
    }

    fn due_at(&self, due: &Due) -> Duration {
        let every = match due.errand {
            Errand::Record => self.record_every(due.queue),
            Errand::Ask => LOOK_FOR_RECALLS,
        };
        due.begun.map_or(Duration::ZERO, |begun| begun + every)
    }

    fn record_every(&self, queue: usize) -> Duration {
        match self.queues[queue].0.capabilities().remote {
            false => RECORD_EVERY,
            true if self.holds(queue) => REMOTE_RECORD_EVERY.0,
            true => REMOTE_RECORD_EVERY.1,
        }
    }

    fn holds(&self, queue: usize) -> bool {
        lock(&self.kept).values().any(|kept| kept.queue == queue)
    }

    /// Who holds nothing need not ask whether it was taken away.
    fn is_needed(&self, due: &Due) -> bool {
        due.errand == Errand::Record || self.holds(due.queue)
    }

    async fn run(&self, queue: usize, errand: Errand) {
        match errand {
            Errand::Record => self.record(queue, None).await,
            Errand::Ask => self.ask_for_recalls(queue).await,
        }
    }

    /// When there is something to do, unless something comes sooner. What is under way need not be begun, so it
    /// does not count.
    fn next_event(&self, dues: &[Due]) -> Option<Duration> {
        let errands = dues.iter().filter(|due| !due.under_way && self.is_needed(due));
        let errands = errands.map(|due| self.due_at(due)).min();
        let kept = lock(&self.kept);
        let leases = kept.values().filter(|kept| !kept.ended).map(|kept| match kept.renewing {
            true => kept.until,
            false => kept.until.min(kept.renew_at),
        });
        leases.chain(errands).min()
    }

    /// Cancels the handlers of leases that have ended: others may have their tasks from now on.
    fn end_leases(&self, now: Duration) {
        let mut kept = lock(&self.kept);
        let told = !planted::is(Planted::HandlerNotTold);
        for kept in kept.values_mut().filter(|kept| kept.handled || !told) {
            kept.ended |= now >= kept.until;
        }
        let ended = |kept: &Kept| told && !kept.handled && now >= kept.until;
        for (receipt, lease) in kept.extract_if(.., |_, kept| ended(kept)) {
            let key = receipt.key();
            tracing::warn!(%key, "the lease ended before it could be renewed; its handler is cancelled");
            lease.cancelled.cancel();
            lock(&self.lost).insert(receipt);
        }
    }

    /// Begins to renew what is due.
    fn renewals_due(&self, now: Duration) -> Vec<BoxFuture<'_, Renewed>> {
        let mut due: Vec<Vec<(Receipt, u32)>> = self.queues.iter().map(|_| Vec::new()).collect();
        for (receipt, kept) in lock(&self.kept).iter_mut() {
            if !kept.renewing && !kept.ended && now >= kept.renew_at {
                (kept.renewing, kept.recalled) = (true, false);
                due[kept.queue].push((receipt.clone(), kept.silences));
            }
        }
        let mut renewals = Vec::new();
        for (due, (queue, every)) in due.iter().zip(&self.queues) {
            let together = queue.capabilities().heartbeats_together.max(1);
            for part in due.chunks(together) {
                renewals.push(self.renew(Arc::clone(queue), *every, part.to_vec(), now).boxed());
            }
        }
        renewals
    }

    /// Renews leases, and gives up in time for several more tries before they end.
    async fn renew(
        &self,
        queue: Arc<dyn Queue>,
        every: Duration,
        due: Vec<(Receipt, u32)>,
        begun: Duration,
    ) -> Renewed {
        let (receipts, silences): (Vec<_>, Vec<_>) = due.into_iter().unzip();
        let patience = silences.into_iter().max().unwrap_or(0).min(16);
        let limit = (every / 3).min(RENEWED_WITHIN).saturating_mul(1 << patience);
        let answers = tokio::select! {
            biased;
            answers = queue.heartbeat(receipts.clone()) => Some(answers),
            () = self.env.clock().sleep(limit) => None,
        };
        Renewed { receipts, every, begun, answers }
    }

    /// What became of renewals.
    fn note_renewed(&self, renewed: Renewed) {
        let Renewed { receipts, every, begun, answers } = renewed;
        let no_answer = || Error::new(ErrorKind::Unavailable, "the store does not answer");
        let silence = answers.is_none();
        let answers =
            answers.unwrap_or_else(|| receipts.iter().map(|_| Err(no_answer())).collect());
        let now = self.env.monotonic();
        let mut kept = lock(&self.kept);
        for (receipt, answer) in receipts.into_iter().zip(answers) {
            // Finished meanwhile: whatever the answer says, it is about a task that is done with.
            let Some(lease) = kept.get_mut(&receipt) else { continue };
            lease.renewing = false;
            let key = receipt.key();
            match answer {
                Ok(valid) => {
                    (lease.silences, lease.ended) = (0, false);
                    lease.renewals = lease.renewals.saturating_add(1);
                    lease.renew_at = if lease.recalled { now } else { begun + every };
                    lease.until = lease.until.max(begun + valid);
                }
                Err(error) if is_lost(&error) && lease.handled => _ = kept.remove(&receipt),
                Err(error) if is_lost(&error) => {
                    tracing::warn!(%key, %error, "lease lost; its handler is cancelled");
                    lease.cancelled.cancel();
                    kept.remove(&receipt);
                    lock(&self.lost).insert(receipt);
                }
                Err(error) => {
                    tracing::warn!(%key, %error, "heartbeat failed; trying again");
                    // A tenth of the way: often enough to get through before the lease runs out.
                    lease.silences += u32::from(silence);
                    lease.renew_at = now + every / 10;
                }
            }
        }
    }

    /// Looks whether an operator has taken tasks away. Which, the next renewal of each tells.
    async fn ask_for_recalls(&self, index: usize) {
        match self.queues[index].0.recalled().await {
            Ok(false) => {}
            Ok(true) => {
                let now = self.env.monotonic();
                let mut kept = lock(&self.kept);
                for kept in kept.values_mut().filter(|kept| kept.queue == index) {
                    kept.renew_at = kept.renew_at.min(now);
                    kept.recalled = true;
                }
            }
            Err(error) => tracing::debug!(%error, "not known whether tasks were taken away"),
        }
    }

    /// How many tasks of a queue handlers have.
    fn running(&self, queue: usize) -> usize {
        let kept = lock(&self.kept);
        kept.values().filter(|kept| kept.queue == queue && !kept.handled).count()
    }

    async fn record(&self, index: usize, stopped_at: Option<Timestamp>) {
        let queue = &self.queues[index].0;
        let report = self.counts[index].report();
        let record = WorkerRecord {
            worker_id: queue.worker_id().to_owned(),
            host: self.env.host().name.clone(),
            pid: self.env.host().pid,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            seen_at: None,
            stopped_at,
            concurrency: self.concurrency,
            running: self.running(index),
            completed: report.completed,
            retried: report.retried,
            failed: report.failed,
            released: report.released,
            lost: report.lost,
            every_s: Some(self.record_every(index).as_secs()),
            requests: self.meter.counts(),
        };
        match queue.put_worker(record).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => tracing::warn!(%error, "cannot write the worker's record"),
        }
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted)
}
