//! Telling the queue what became of tasks, many at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::Id;

use super::heart::Heart;
use super::{Observer, Settled, Verdict};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Receipt;
use crate::queue::{Nack, Nacked, Queue, Release};

/// A task whose handler is done, but of which the queue does not know yet.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    /// Which of the worker's queues it is of.
    pub(super) queue: usize,
    pub(super) receipt: Receipt,
    pub(super) verdict: Verdict,
    /// Whether a handler had it.
    ran: bool,
    /// How often the store has refused to hear of it.
    tries: u32,
}

/// Tasks that this worker has.
#[derive(Debug, Default)]
pub(super) struct Running {
    handled: HashMap<Id, (usize, Receipt)>,
    unsettled: Vec<Finished>,
    /// The monotonic time at which to try again what the store refused.
    retry_at: Duration,
}

impl Running {
    pub(super) fn len(&self) -> usize {
        self.handled.len() + self.unsettled.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn add(&mut self, id: Id, queue: usize, receipt: Receipt) {
        self.handled.insert(id, (queue, receipt));
    }

    /// The same for one that no handler will get, for this reason: it is given back.
    pub(super) fn add_unrun(&mut self, queue: usize, receipt: Receipt, reason: &str) {
        let verdict = Verdict::Release { reason: Some(reason.to_owned()), delay: None };
        self.unsettled.push(Finished { queue, receipt, verdict, ran: false, tries: 0 });
    }

    pub(super) fn finished(&mut self, id: Id, verdict: Verdict) {
        if let Some((queue, receipt)) = self.handled.remove(&id) {
            self.unsettled.push(Finished { queue, receipt, verdict, ran: true, tries: 0 });
        }
    }

    /// What handlers did not come to the end of is given back, and what the store has refused is told
    /// once more without delay.
    pub(super) fn abandon(&mut self) {
        self.retry_at = Duration::ZERO;
        for (_, (queue, receipt)) in self.handled.drain() {
            let verdict =
                Verdict::Release { reason: Some("its worker stopped".into()), delay: None };
            self.unsettled.push(Finished { queue, receipt, verdict, ran: true, tries: 0 });
        }
    }

    pub(super) fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    pub(super) fn unsettled(&self) -> &[Finished] {
        &self.unsettled
    }

    /// What can be told now: what the store has refused before only when its time has come.
    pub(super) fn take_unsettled(&mut self, now: Duration) -> Vec<Finished> {
        let due = now >= self.retry_at;
        let (ready, later) = std::mem::take(&mut self.unsettled)
            .into_iter()
            .partition(|finished| due || finished.tries == 0);
        self.unsettled = later;
        ready
    }

    /// To be tried again: soon, then less and less often.
    pub(super) fn put_back(&mut self, finished: Finished, now: Duration) {
        self.retry_at = now + Duration::from_millis(100 << finished.tries.min(6));
        self.unsettled.push(finished);
    }

    pub(super) fn retry_in(&self, now: Duration) -> Duration {
        self.retry_at.saturating_sub(now)
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
    /// What the handler said could not be recorded, and cannot be. It is let go, and done again by others.
    Unrecorded,
}

/// How often the queue is told what it says that it can never take note of: it may be mended meanwhile.
const LASTING_TRIES: u32 = 5;

/// Tells the queue; answers with those that it could not take note of and that are still ours.
pub(super) async fn settle(
    queue: &Arc<dyn Queue>,
    all: Vec<Finished>,
    heart: &Heart,
    observer: &Observer,
) -> Vec<Finished> {
    let became = |finished: &Finished, became: Became| {
        heart.count(finished.queue, became);
        let Finished { receipt, verdict, .. } = finished;
        observer(&Settled { queue, receipt, verdict, became });
    };
    let counts_releases = !queue.capabilities().release;
    let mut kinds: [Vec<Finished>; 5] = Default::default();
    for finished in all {
        let kind = match &finished.verdict {
            _ if heart.is_lost(&finished.receipt) => {
                became(&finished, Became::Lost);
                continue;
            }
            Verdict::Ack => 0,
            Verdict::Retry { .. } => 1,
            Verdict::Fail { .. } => 2,
            Verdict::Release { .. } if counts_releases && !finished.ran => 4,
            Verdict::Release { .. } => 3,
        };
        kinds[kind].push(finished);
    }
    let mut again = Vec::new();
    for (kind, batch) in kinds.into_iter().enumerate() {
        if batch.is_empty() {
            continue;
        }
        let answers = tell(&**queue, kind, &batch).await;
        for (finished, answer) in batch.into_iter().zip(answers) {
            match answer {
                Ok(told) => became(&finished, told),
                Err(error) if is_lasting(&error) && finished.tries + 1 >= LASTING_TRIES => {
                    let key = finished.receipt.key();
                    tracing::error!(%key, %error, "the result cannot be recorded; the task is let go");
                    became(&finished, Became::Unrecorded);
                }
                Err(error) if is_still_ours(&error) => {
                    let key = finished.receipt.key();
                    tracing::warn!(%key, %error, "the result could not be recorded; trying again");
                    again.push(Finished { tries: finished.tries + 1, ..finished });
                }
                Err(error) => {
                    let key = finished.receipt.key();
                    tracing::warn!(%key, %error, "task was not ours any more");
                    became(&finished, Became::Lost);
                }
            }
        }
    }
    again
}

async fn tell(queue: &dyn Queue, kind: usize, batch: &[Finished]) -> Vec<Result<Became>> {
    let receipts = batch.iter().map(|finished| finished.receipt.clone());
    let with_verdicts = receipts.clone().zip(batch.iter().map(|finished| finished.verdict.clone()));
    match kind {
        0 => all(queue.ack(receipts.collect()).await, Became::Completed),
        1 => {
            let nacks = with_verdicts.filter_map(|(receipt, verdict)| match verdict {
                Verdict::Retry { error, delay } => Some(Nack { receipt, error, delay }),
                _ => None,
            });
            let answers = queue.nack(nacks.collect()).await.into_iter();
            answers.map(|answer| answer.map(became)).collect()
        }
        2 => {
            let failures = with_verdicts.filter_map(|(receipt, verdict)| match verdict {
                Verdict::Fail { reason } => Some((receipt, reason)),
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
        4 => all(queue.put_back(receipts.collect()).await, Became::Released),
        // Where nothing can be given back without counting, it is given back all the same.
        _ if !queue.capabilities().release => {
            let nacks = with_verdicts.filter_map(|(receipt, verdict)| match verdict {
                Verdict::Release { reason, delay } => Some(Nack {
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
        _ => {
            let releases = with_verdicts.filter_map(|(receipt, verdict)| match verdict {
                Verdict::Release { reason, delay } => Some(Release { receipt, delay, reason }),
                _ => None,
            });
            all(queue.release(releases.collect()).await, Became::Released)
        }
    }
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

/// It will not be otherwise in a while: something is wrong that only somebody else can mend.
fn is_lasting(error: &Error) -> bool {
    is_still_ours(error) && !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full)
}
