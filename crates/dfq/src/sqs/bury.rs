//! Giving up: a task's message moves to the dead-letter queue, with the reason in it.
//!
//! A message of another program moves as it came, with the reason in an attribute beside it.
//!
//! Invariant: a message is removed only once its copy has been taken by the dead-letter queue. A crash
//! in between leaves it in both, never in none.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::OnceCell;

use super::body::{self, Body};
use super::foreign::{Content, Foreign};
use super::hold::{Ended, LockedMessage, in_order};
use super::send::Outgoing;
use super::{Core, PROVIDER};
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::model::{AttemptSummary, LeaseState, Outcome, Payload, Receipt, Record, TaskMeta};
use crate::queue::Answers;

/// The longest reason kept: the end of it, which is where the point usually is.
const MAX_REASON_BYTES: usize = 16 * 1024;

/// Where tasks go that are given up.
#[derive(Debug, Default)]
pub(super) struct DeadLetters {
    /// The queue named in the configuration.
    pub(super) named: Option<String>,
    /// What SQS does by itself.
    pub(super) policy: Option<Policy>,
    /// The URL of the policy's queue, once it was needed.
    pub(super) found: OnceCell<String>,
    /// It was said that there is none.
    pub(super) missed: AtomicBool,
}

/// A queue's redrive policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// The dead-letter queue.
    pub(super) arn: String,
    /// A message that was received so often is moved there instead of being handed out again.
    pub(super) after: u32,
}

impl DeadLetters {
    /// Says once that what should be given up cannot be.
    pub(super) fn miss(&self, address: &str) {
        if !self.missed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %address,
                "there is no dead-letter queue: a task that keeps failing is tried until SQS forgets it"
            );
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.named.is_some() || self.policy.is_some()
    }

    /// Whether SQS itself moves a message that was received so often.
    pub(super) fn redriven_after(&self, attempt: u32) -> bool {
        self.policy.as_ref().is_some_and(|policy| attempt >= policy.after)
    }
}

impl Core {
    /// The dead-letter queue's URL.
    pub(super) async fn dead_letters(&self) -> Result<Option<&str>> {
        let DeadLetters { named, policy, found, .. } = &self.dead;
        Ok(match (named, policy) {
            (Some(url), _) => Some(url),
            (None, Some(policy)) => {
                Some(found.get_or_try_init(|| self.client.url_of_arn(&policy.arn)).await?)
            }
            (None, None) => None,
        })
    }

    pub(super) async fn fail(&self, failures: Vec<(Receipt, String)>) -> Answers<()> {
        let receipts: Vec<Receipt> = failures.iter().map(|(receipt, _)| receipt.clone()).collect();
        let again = |ended| (ended == Ended::Failed).then_some(());
        let (ours, mut answers) = self.lock_messages(&receipts, again).await;
        let mut hopeless = Vec::new();
        for locked in ours {
            let why = if !self.dead.exists() {
                "has no dead-letter queue here; name one, or give the queue a redrive policy"
            } else if locked.held.content.is_none() {
                "can give a task up only in the process that received it; nack it instead"
            } else {
                let reason = failures.iter().find(|(receipt, _)| *receipt == locked.receipt);
                hopeless.push((locked, reason.map(|(_, why)| why.clone()).unwrap_or_default()));
                continue;
            };
            let message =
                format!("cannot give up task '{}': {PROVIDER} {why}", locked.receipt.key());
            answers.insert(locked.receipt, Err(Error::new(ErrorKind::Unsupported, message)));
        }
        answers.extend(self.bury(hopeless).await);
        in_order(&receipts, &answers)
    }

    /// Moves messages to the dead-letter queue.
    pub(super) async fn bury(
        &self,
        hopeless: Vec<(LockedMessage, String)>,
    ) -> Vec<(Receipt, Result<()>)> {
        if hopeless.is_empty() {
            return Vec::new();
        }
        let copies: Vec<Outgoing> =
            hopeless.iter().filter_map(|(locked, reason)| self.copy(locked, reason)).collect();
        let sent: Answers<()> = match self.dead_letters().await {
            Ok(Some(url)) if copies.len() == hopeless.len() => {
                let sent = self.send(url, &copies).await.into_iter();
                let what = "the dead-letter queue did not take it";
                sent.map(|sent| sent.map_err(|refused| refused.error.context(what))).collect()
            }
            Err(error) => hopeless.iter().map(|_| Err(error.clone())).collect(),
            Ok(_) => {
                let message = "there is nothing to put into a dead-letter queue, or no such queue";
                let nothing = Error::new(ErrorKind::Unsupported, message);
                hopeless.iter().map(|_| Err(nothing.clone())).collect()
            }
        };
        let (mut moved, mut left, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for ((locked, _), sent) in hopeless.into_iter().zip(sent) {
            match sent {
                Ok(()) => moved.push(locked),
                // We may not, but SQS will by itself.
                Err(error) if self.dead.redriven_after(locked.receipt.attempt) => {
                    tracing::warn!(key = %locked.receipt.key(), %error, "left to the redrive policy");
                    left.push(locked);
                }
                Err(error) => answers.push((locked.receipt, Err(error))),
            }
        }
        let removed = self.remove(&moved).await;
        let hidden = self.hide(&self.client, &left, &vec![0; left.len()]).await;
        for (mut locked, done) in
            moved.into_iter().chain(left).zip(removed.into_iter().chain(hidden))
        {
            if done.is_ok() {
                self.end(&mut locked, Ended::Failed);
            }
            answers.push((locked.receipt, done));
        }
        answers
    }

    /// A failed task as it lies in the dead-letter queue: the same text as a record of the tree, which
    /// can be pushed or moved back as it is.
    fn copy(&self, locked: &LockedMessage, reason: &str) -> Option<Outgoing> {
        let Content { payload, meta, foreign } = locked.held.content.as_ref()?;
        if let Some(foreign) = foreign {
            return Some(self.foreign_copy(foreign, payload, meta, reason));
        }
        let strict = self.strict.load(Ordering::Relaxed);
        let text = |reason: &str| {
            let record = self.record(locked, payload, meta, reason);
            Body::new(format::encode_record(&record), strict).ok()
        };
        let body = text(end_of(reason, MAX_REASON_BYTES))
            .filter(|body| body.size() <= self.message_limit)
            .or_else(|| text("").filter(|body| body.size() <= self.message_limit))
            .or_else(|| Body::new(format::encode_task(payload, meta), strict).ok())?;
        let fifo = self.fifo.then(|| {
            // Never the same twice: a task that was moved back and failed again is no double.
            (self.group_of(&meta.id, payload), body::word(&self.env.nonce()))
        });
        Some(Outgoing { body, delay_seconds: 0, fifo, foreign: None })
    }

    /// The same of a message that another program sent.
    fn foreign_copy(
        &self,
        foreign: &Foreign,
        payload: &Payload,
        meta: &TaskMeta,
        reason: &str,
    ) -> Outgoing {
        let reason = end_of(reason, MAX_REASON_BYTES);
        let attributes = foreign.last_attributes(&meta.id, reason, self.message_limit);
        let group = || foreign.group.clone().unwrap_or_else(|| self.group_of(&meta.id, payload));
        Outgoing {
            body: Body { text: foreign.text.clone(), escape: None },
            delay_seconds: 0,
            fifo: self.fifo.then(|| (group(), body::word(&self.env.nonce()))),
            foreign: Some(attributes),
        }
    }

    fn record(
        &self,
        locked: &LockedMessage,
        payload: &Payload,
        meta: &TaskMeta,
        reason: &str,
    ) -> Record {
        let now = self.env.clock().wall();
        let held = self.env.monotonic().saturating_sub(locked.held.received);
        let reason = Some(reason).filter(|reason| !reason.is_empty()).map(str::to_owned);
        let attempt = AttemptSummary {
            attempt: locked.receipt.attempt,
            worker_id: self.worker_id.clone(),
            created_at: now.checked_sub(held).unwrap_or(now),
            heartbeat_at: now,
            state: Some(LeaseState::Failed),
            error: None,
        };
        Record {
            outcome: Outcome::Failed,
            payload: Some(payload.clone()),
            meta: meta.clone(),
            lease_id: None,
            worker_id: Some(self.worker_id.clone()),
            finished_at: Some(now),
            reason,
            cancelled: false,
            forgotten: false,
            moved_to: None,
            damaged: None,
            attempts: vec![attempt],
        }
    }
}

fn end_of(text: &str, bytes: usize) -> &str {
    let from = text.len().saturating_sub(bytes);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}
