//! Telling the queue what became of tasks, many at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::heart::Heart;
use super::{STOPPED, Settled, TaskResult, Until, Worker};
use crate::clock::{Ended, Env};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Receipt;
use crate::planted::{self, Planted};
use crate::queue::{Nack, Nacked, Queue, Release};

/// A task whose handler is done, but of which the queue does not know yet.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    /// Which of the worker's queues it is of.
    pub(super) queue: usize,
    pub(super) receipt: Receipt,
    pub(super) result: TaskResult,
    /// Whether a handler had it.
    ran: bool,
    /// How often the store could not take note of it.
    tries: u32,
    /// How often it said that this will not change by itself.
    refusals: u32,
    /// When that was first, and how often its lease had been renewed until then.
    failing: Option<(Duration, u32)>,
    /// The store does not take note of this one, though it renews the lease all the time.
    unheard: bool,
    /// Not to be told before this monotonic time.
    retry_at: Duration,
}

impl Finished {
    fn new(queue: usize, receipt: Receipt, result: TaskResult, ran: bool) -> Self {
        let (tries, refusals, retry_at) = (0, 0, Duration::ZERO);
        let (failing, unheard) = (None, false);
        Self { queue, receipt, result, ran, tries, refusals, failing, unheard, retry_at }
    }

    /// The store could not take note of it, again.
    fn note_failure(&mut self, error: &Error, until: Until, now: Duration, renewals: u32) {
        self.tries += 1;
        self.refusals += u32::from(is_lasting(error, until));
        let (since, before) = *self.failing.get_or_insert((now, renewals));
        self.unheard = error.kind() == ErrorKind::Unavailable
            && self.tries >= UNHEARD_TRIES
            && renewals.saturating_sub(before) >= UNHEARD_RENEWALS
            && now.saturating_sub(since) >= UNHEARD_FOR;
    }

    /// How long to wait before it is told again, more or less.
    fn pause(&self) -> Duration {
        match self.refusals {
            0 => Duration::from_millis(100 << self.tries.min(6)),
            refusals => REFUSED_PAUSE.saturating_mul(1 << (refusals - 1).min(8)),
        }
    }
}

/// Tasks that this worker has.
#[derive(Debug, Default)]
pub(super) struct Running {
    handled: BTreeMap<u64, (usize, Receipt)>,
    unsettled: Vec<Finished>,
}

impl Running {
    pub(super) fn len(&self) -> usize {
        self.handled.len() + self.unsettled.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn add(&mut self, id: u64, queue: usize, receipt: Receipt) {
        self.handled.insert(id, (queue, receipt));
    }

    /// The same for one that no handler will get, for this reason: it is given back.
    pub(super) fn add_unrun(&mut self, queue: usize, receipt: Receipt, reason: &str) {
        let result = TaskResult::Release { reason: Some(reason.to_owned()), delay: None };
        self.unsettled.push(Finished::new(queue, receipt, result, false));
    }

    pub(super) fn finished(&mut self, id: u64, result: TaskResult) {
        if let Some((queue, receipt)) = self.handled.remove(&id) {
            self.unsettled.push(Finished::new(queue, receipt, result, true));
        }
    }

    /// What handlers did not come to the end of is given back.
    pub(super) fn abandon(&mut self) {
        for (_, (queue, receipt)) in std::mem::take(&mut self.handled) {
            let result = TaskResult::Release { reason: Some(STOPPED.into()), delay: None };
            self.unsettled.push(Finished::new(queue, receipt, result, true));
        }
    }

    pub(super) fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// What can be told now: what the store has refused before only when its time has come.
    pub(super) fn take_unsettled(&mut self, now: Duration) -> Vec<Finished> {
        let (ready, later) = std::mem::take(&mut self.unsettled)
            .into_iter()
            .partition(|finished| now >= finished.retry_at);
        self.unsettled = later;
        ready
    }

    /// To be tried again: soon, then less and less often. Those of a batch stay together.
    pub(super) fn retry_later(&mut self, batch: Vec<Finished>, env: &Env) {
        let (now, spread) = (env.monotonic(), 0.75 + 0.5 * env.fraction());
        for mut finished in batch {
            finished.retry_at = now + finished.pause().mul_f64(spread);
            self.unsettled.push(finished);
        }
    }

    /// When there is something to be told again, if there is.
    pub(super) fn retry_in(&self, now: Duration) -> Duration {
        let next = self.unsettled.iter().map(|finished| finished.retry_at).min();
        next.unwrap_or_default().saturating_sub(now)
    }
}

/// What became of a task that a worker had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// Done.
    Completed,
    /// To be tried again after this time.
    Retried(Duration),
    /// Given up.
    Failed,
    /// Given back.
    Released,
    /// Somebody else has it now, or has finished it.
    Lost,
    /// What the handler said could not be recorded, and cannot be. It is given back if that is possible,
    /// and done again.
    Unrecorded,
}

/// How often the queue is told what it says that it can never take note of, and the first pause between, which
/// doubles: 45 seconds in all, more or less. A policy or a mount that is being mended takes a while.
const LASTING_TRIES: u32 = 5;
const REFUSED_PAUSE: Duration = Duration::from_secs(3);

/// A store that is down is waited for. But if it has renewed the lease so often since it first could not take note of
/// the result, and has been told so often, for so long, then that one place is broken, and nobody else would ever get
/// the task.
const UNHEARD_TRIES: u32 = 10;
const UNHEARD_RENEWALS: u32 = 3;
const UNHEARD_FOR: Duration = Duration::from_secs(10 * 60);

/// How long a task waits whose result could not be recorded: who does it again at once fares no better. So long
/// at first, then twice as long with each attempt, up to about an hour.
const UNRECORDED_PAUSE: Duration = Duration::from_secs(60);
const UNRECORDED_DOUBLINGS: u32 = 6;

/// What came of telling a queue.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Could not be noted now, and are still ours.
    pub(super) again: Vec<Finished>,
    /// The queues that have taken note of something.
    pub(super) recorded: BTreeSet<usize>,
    /// Let go, because they cannot be recorded: the queue, and why.
    pub(super) unrecorded: Vec<(usize, Error)>,
}

impl Told {
    pub(super) fn add(&mut self, other: Self) {
        self.again.extend(other.again);
        self.recorded.extend(other.recorded);
        self.unrecorded.extend(other.unrecorded);
    }
}

/// Tells the queue, for the `last` time or not.
pub(super) async fn settle(
    worker: &Worker,
    index: usize,
    all: Vec<Finished>,
    heart: &Heart,
    last: bool,
) -> Told {
    let queue = &worker.queues[index];
    let became = |finished: &Finished, became: Became| {
        heart.forget(&finished.receipt);
        heart.count(finished.queue, became);
        let Finished { receipt, result, .. } = finished;
        (worker.observer)(&Settled { queue, receipt, result, became });
    };
    let counts_releases = !queue.capabilities().release;
    let mut batches: BTreeMap<Telling, Vec<Finished>> = BTreeMap::new();
    for finished in all {
        let telling = match &finished.result {
            _ if heart.is_lost(&finished.receipt) => {
                became(&finished, Became::Lost);
                continue;
            }
            TaskResult::Ack => Telling::Ack,
            TaskResult::Retry { .. } => Telling::Nack,
            TaskResult::Fail { .. } => Telling::Fail,
            TaskResult::Release { .. } if counts_releases && !finished.ran => Telling::ReleaseUnrun,
            TaskResult::Release { .. } => Telling::Release,
        };
        batches.entry(telling).or_default().push(finished);
    }
    let mut told = Told::default();
    let mut hopeless = Vec::new();
    for (telling, batch) in batches {
        let answers = tell(&**queue, telling, &batch).await;
        for (mut finished, answer) in batch.into_iter().zip(answers) {
            let error = match answer {
                Ok(noted) => {
                    told.recorded.insert(index);
                    became(&finished, noted);
                    continue;
                }
                Err(error) => error,
            };
            let key = finished.receipt.key().clone();
            if !is_still_ours(&error) {
                tracing::warn!(%key, %error, "task was not ours any more");
                became(&finished, Became::Lost);
                continue;
            }
            let renewals = heart.renewals(&finished.receipt);
            finished.note_failure(&error, worker.until, worker.env.monotonic(), renewals);
            let hopeless_now = finished.refusals >= LASTING_TRIES || finished.unheard;
            if last || (hopeless_now && !planted::is(Planted::EndlessAck)) {
                hopeless.push((finished, error));
            } else {
                tracing::warn!(%key, %error, "the result could not be recorded; trying again");
                told.again.push(finished);
            }
        }
    }
    give_back(&**queue, &hopeless).await;
    for (finished, error) in hopeless {
        became(&finished, Became::Unrecorded);
        told.unrecorded.push((finished.queue, error));
    }
    told
}

/// Gives back what cannot be recorded, so that it does not look as if its worker had died. One try: the lease
/// runs out in any case.
async fn give_back(queue: &dyn Queue, hopeless: &[(Finished, Error)]) {
    for (finished, error) in hopeless {
        let key = finished.receipt.key();
        tracing::error!(%key, %error, "the result cannot be recorded; the task will be done again");
    }
    // A queue that does not answer at all will not answer now either. And a release that was refused is not repeated.
    let worth_it = |finished: &Finished, error: &Error| {
        let refused = matches!(finished.result, TaskResult::Release { .. });
        let answers = finished.unheard || error.kind() != ErrorKind::Unavailable;
        !refused && answers && queue.capabilities().release
    };
    let releases = hopeless.iter().filter(|(finished, error)| worth_it(finished, error));
    let doublings = |finished: &Finished| {
        (finished.receipt.attempt.saturating_sub(1)).min(UNRECORDED_DOUBLINGS)
    };
    let release = |(finished, error): &(Finished, Error)| Release {
        receipt: finished.receipt.clone(),
        delay: Some(UNRECORDED_PAUSE * (1 << doublings(finished))),
        reason: Some(format!("its result could not be recorded: {error}")),
    };
    let releases: Vec<_> = releases.map(release).collect();
    if releases.is_empty() {
        return;
    }
    for answer in queue.release(releases).await {
        if let Err(error) = answer {
            tracing::warn!(%error, "nor can the task be given back; its lease will run out");
        }
    }
}

/// The verb by which a queue is told of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Telling {
    Ack,
    Nack,
    Fail,
    Release,
    /// Given back by a queue that would count a release, though nobody has worked on it.
    ReleaseUnrun,
}

async fn tell(queue: &dyn Queue, telling: Telling, batch: &[Finished]) -> Vec<Result<Became>> {
    let receipts = batch.iter().map(|finished| finished.receipt.clone());
    let with_results = receipts.clone().zip(batch.iter().map(|finished| finished.result.clone()));
    match telling {
        Telling::Ack => all(queue.ack(receipts.collect()).await, Became::Completed),
        Telling::Nack => {
            let nacks = with_results.filter_map(|(receipt, result)| match result {
                TaskResult::Retry { error, delay } => Some(Nack { receipt, error, delay }),
                _ => None,
            });
            let answers = queue.nack(nacks.collect()).await.into_iter();
            answers.map(|answer| answer.map(became)).collect()
        }
        Telling::Fail => {
            let failures = with_results.filter_map(|(receipt, result)| match result {
                TaskResult::Fail { reason } => Some((receipt, reason)),
                _ => None,
            });
            let failures: Vec<_> = failures.collect();
            let mut told = all(queue.fail(failures.clone()).await, Became::Failed);
            // Where there is nowhere to put what is given up, it can only be tried again.
            for (answer, (receipt, error)) in told.iter_mut().zip(failures) {
                if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
                    let nacked = queue.nack(vec![Nack { receipt, error, delay: None }]).await;
                    *answer = nacked.into_iter().next().unwrap_or_else(not_told).map(became);
                }
            }
            told
        }
        // Nobody tried it, so it cannot have been tried once too often.
        Telling::ReleaseUnrun => {
            all(queue.release_unrun(receipts.collect()).await, Became::Released)
        }
        // Where nothing can be given back without counting, it is given back all the same.
        Telling::Release if !queue.capabilities().release => {
            let nacks = with_results.filter_map(|(receipt, result)| match result {
                TaskResult::Release { reason, delay } => Some(Nack {
                    receipt,
                    error: reason.unwrap_or_else(|| "given back".to_owned()),
                    delay: Some(delay.unwrap_or_default()),
                }),
                _ => None,
            });
            let answers = queue.nack(nacks.collect()).await.into_iter();
            let told = |nacked| match nacked {
                Nacked::Again(_) => Became::Released,
                Nacked::GivenUp => Became::Failed,
            };
            answers.map(|answer| answer.map(told)).collect()
        }
        Telling::Release => {
            let releases = with_results.filter_map(|(receipt, result)| match result {
                TaskResult::Release { reason, delay } => Some(Release { receipt, delay, reason }),
                _ => None,
            });
            all(queue.release(releases.collect()).await, Became::Released)
        }
    }
}

/// What a handler says that did not come to its end.
pub(super) fn result_of(ended: Ended) -> TaskResult {
    let error = match ended {
        Ended::Dropped => "the handler was aborted".to_owned(),
        Ended::Panicked(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("the handler panicked: {}", text.unwrap_or_else(|| "(no message)".to_owned()))
        }
    };
    TaskResult::Retry { error, delay: None }
}

fn became(nacked: Nacked) -> Became {
    match nacked {
        Nacked::Again(wait) => Became::Retried(wait),
        Nacked::GivenUp => Became::Failed,
    }
}

fn not_told<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unavailable, "the queue did not answer"))
}

fn all(answers: Vec<Result<()>>, told: Became) -> Vec<Result<Became>> {
    answers.into_iter().map(|answer| answer.map(|()| told)).collect()
}

/// The store could not, but the task is still ours.
fn is_still_ours(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted | ErrorKind::Invalid)
}

/// It will not be otherwise in a while: something is wrong that only somebody else can mend. For room on a disk
/// a worker can wait, but not one that is to end by itself.
fn is_lasting(error: &Error, until: Until) -> bool {
    match error.kind() {
        ErrorKind::Unavailable => false,
        ErrorKind::Full => until != Until::Stopped,
        _ => is_still_ours(error),
    }
}
