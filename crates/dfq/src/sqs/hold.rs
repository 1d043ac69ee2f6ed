//! Holding messages: heartbeat, ack and nack.
//!
//! Invariant: an owner acts only while it owns, by its own monotonic clock, counted from *before* the
//! request that gave it the message, less a margin; what it asks for is over before the lease is. What
//! a server makes of old or doubled receipts differs from one to the next, so nothing relies on it:
//! what this process has settled it remembers, and whatever is late does not leave it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
};
use futures::FutureExt;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::body::Ticket;
use super::client::{Answer, BATCH, Client, Entry, PIPELINE, Patience, Refused, pipelined};
use super::foreign::Content;
use super::{Core, whole_seconds};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::RequestKind;
use crate::model::Receipt;
use crate::queue::{Answers, Nack, Nacked};

/// How long SQS lets anybody have a message, renewals included.
pub(super) const MAX_HELD: Duration = Duration::from_secs(12 * 3600);

/// A message that this process holds, or held not long ago.
pub(super) struct Held {
    pub(super) handle: String,
    /// Before the request that received it.
    pub(super) received: Duration,
    /// The length of its lease.
    pub(super) seconds: u32,
    /// The task; not known if another process received it.
    pub(super) content: Option<Content>,
    /// Locked while a verb is at it: a heartbeat in flight ends before an ack begins.
    pub(super) state: Arc<Mutex<State>>,
}

pub(super) struct State {
    /// When the lease is over, on this process's monotonic clock.
    ends: Duration,
    ended: Option<Ended>,
}

/// How this process let go of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Completed,
    Failed,
    GivenBack,
}

/// What this process has settled, not too long ago.
#[derive(Default)]
pub(super) struct SettledReceipts {
    ended: BTreeMap<Receipt, Ended>,
    order: VecDeque<Receipt>,
}

/// How much of it is remembered.
const MAX_SETTLED: usize = 10_000;

impl SettledReceipts {
    fn add(&mut self, receipt: &Receipt, ended: Ended) {
        if self.ended.insert(receipt.clone(), ended).is_none() {
            self.order.push_back(receipt.clone());
        }
        if self.order.len() > MAX_SETTLED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

/// A message that is ours to act on.
pub(super) struct LockedMessage {
    pub(super) receipt: Receipt,
    pub(super) held: Arc<Held>,
    state: OwnedMutexGuard<State>,
}

impl Held {
    pub(super) fn new(
        handle: String,
        received: Duration,
        seconds: u32,
        content: Option<Content>,
    ) -> Self {
        let ends = received + Duration::from_secs(seconds.into());
        let state = Arc::new(Mutex::new(State { ends, ended: None }));
        Self { handle, received, seconds, content, state }
    }

    /// For how long it is ours, if it was never renewed.
    pub(super) fn left_at(&self, now: Duration) -> Duration {
        let ends = self.received + Duration::from_secs(self.seconds.into());
        ends.saturating_sub(self.margin() + now)
    }

    /// The same for one that has lain around, unless so much has gone by that it must be renewed before
    /// anybody counts on it.
    pub(super) fn left_if_young(&self, now: Duration) -> Option<Duration> {
        let left = self.left_at(now);
        (left >= Duration::from_secs(self.seconds.into()).mul_f64(0.6)).then_some(left)
    }

    /// How long before its end a lease counts as over.
    fn margin(&self) -> Duration {
        (Duration::from_secs(self.seconds.into()) / 10).min(Duration::from_secs(10))
    }
}

/// Why a receipt cannot be acted on.
enum NotOurs {
    /// By this process itself.
    Settled(Ended),
    Lost(Error),
}

fn already_settled(receipt: &Receipt, ended: Ended) -> Error {
    let key = receipt.key();
    match ended {
        Ended::GivenBack => Error::claim_lost(format!("task '{key}' was given back already")),
        Ended::Completed | Ended::Failed => Error::new(
            ErrorKind::AlreadyCompleted,
            format!("task '{key}' was finished with this receipt already"),
        ),
    }
}

fn ran_out(receipt: &Receipt) -> Error {
    Error::claim_lost(format!("the lease of task '{}' ran out", receipt.key()))
}

/// What was asked for, in the order asked.
pub(super) fn in_order<T: Clone>(
    asked: &[Receipt],
    answers: &BTreeMap<Receipt, Result<T>>,
) -> Answers<T> {
    let unanswered = || Err(Error::new(ErrorKind::Unavailable, "it was not carried out"));
    let answer = |receipt| answers.get(receipt).cloned().unwrap_or_else(unanswered);
    asked.iter().map(answer).collect()
}

impl Core {
    /// Locks the messages of these receipts, each once and in one order for all callers, so that nobody
    /// waits for himself or for somebody who waits for him. The rest are answers: those that are not
    /// ours, and those that were settled before, for which `before` may have a good word.
    pub(super) async fn lock_messages<T>(
        &self,
        receipts: &[Receipt],
        before: impl Fn(Ended) -> Option<T>,
    ) -> (Vec<LockedMessage>, BTreeMap<Receipt, Result<T>>) {
        let (mut ours, mut answers) = (Vec::new(), BTreeMap::new());
        for receipt in receipts.iter().collect::<BTreeSet<_>>() {
            match self.lock_message(receipt).await {
                Ok(locked) => ours.push(locked),
                Err(NotOurs::Lost(error)) => _ = answers.insert(receipt.clone(), Err(error)),
                Err(NotOurs::Settled(ended)) => {
                    let answer = before(ended).ok_or_else(|| already_settled(receipt, ended));
                    answers.insert(receipt.clone(), answer);
                }
            }
        }
        (ours, answers)
    }

    async fn lock_message(&self, receipt: &Receipt) -> Result<LockedMessage, NotOurs> {
        let held = self.held(receipt).await?;
        let state = Arc::clone(&held.state).lock_owned().await;
        if let Some(ended) = state.ended {
            return Err(NotOurs::Settled(ended));
        }
        if self.env.monotonic() + held.margin() >= state.ends {
            lock(&self.held).remove(receipt);
            return Err(NotOurs::Lost(ran_out(receipt)));
        }
        Ok(LockedMessage { receipt: receipt.clone(), held, state })
    }

    /// The message of a receipt: one that this process received, or one that another process received
    /// and handed us the receipt of.
    async fn held(&self, receipt: &Receipt) -> Result<Arc<Held>, NotOurs> {
        if let Some(held) = lock(&self.held).get(receipt) {
            return Ok(Arc::clone(held));
        }
        if let Some(ended) = lock(&self.settled).ended.get(receipt) {
            return Err(NotOurs::Settled(*ended));
        }
        let Some(Ticket { seconds, origin, handle }) = Ticket::of(receipt) else {
            let message = format!("task '{}' is not ours: not a receipt of SQS", receipt.key());
            return Err(NotOurs::Lost(Error::claim_lost(message)));
        };
        if origin == self.origin {
            // We had it. Whatever the server would say, it is over.
            return Err(NotOurs::Lost(ran_out(receipt)));
        }
        // Renewed at once: how much of the lease is left nobody here knows, and if nothing is, most
        // servers refuse.
        let held = Arc::new(Held::new(handle.clone(), self.env.monotonic(), seconds, None));
        let wanted = [(handle, seconds)];
        for answer in hide(&self.client, &self.url, &wanted, Patience::ORDINARY).await {
            answer.map_err(|refused| NotOurs::Lost(not_ours(receipt, refused)))?;
        }
        let mut all = lock(&self.held);
        Ok(Arc::clone(all.entry(receipt.clone()).or_insert(held)))
    }

    /// Takes note of what was settled.
    pub(super) fn end(&self, locked: &mut LockedMessage, ended: Ended) {
        locked.state.ended = Some(ended);
        lock(&self.settled).add(&locked.receipt, ended);
        lock(&self.held).remove(&locked.receipt);
    }

    /// Forgets messages whose leases have run out.
    pub(super) fn sweep_held(&self) {
        let now = self.env.monotonic();
        lock(&self.held).retain(|_, held| match held.state.try_lock() {
            Ok(state) => now < state.ends,
            Err(_) => true,
        });
    }

    fn forget_if_lost<T>(&self, receipt: &Receipt, answer: &Result<T>) {
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::ClaimLost) {
            lock(&self.held).remove(receipt);
        }
    }

    pub(super) async fn renew(&self, client: &Client, receipts: Vec<Receipt>) -> Answers<Duration> {
        let (ours, mut answers) = self.lock_messages(&receipts, |_| None).await;
        let now = self.env.monotonic();
        let (mut due, mut seconds) = (Vec::new(), Vec::new());
        for locked in ours {
            let left = (locked.held.received + MAX_HELD).saturating_sub(now).as_secs();
            match u32::try_from(left).unwrap_or(u32::MAX).min(locked.held.seconds) {
                0 => {
                    let message = format!(
                        "task '{}' has been held for 12 hours, the longest that SQS allows",
                        locked.receipt.key()
                    );
                    answers.insert(locked.receipt, Err(Error::claim_lost(message)));
                }
                length => {
                    due.push(locked);
                    seconds.push(length);
                }
            }
        }
        for (at, answer) in self.hide(client, &due, &seconds).await.into_iter().enumerate() {
            let locked = &mut due[at];
            let after = self.env.monotonic();
            let answer = answer.and_then(|()| {
                if after >= locked.state.ends {
                    // Too late: somebody else may have received it before it was renewed.
                    return Err(ran_out(&locked.receipt));
                }
                locked.state.ends = now + Duration::from_secs(seconds[at].into());
                Ok(locked.state.ends.saturating_sub(locked.held.margin() + after))
            });
            self.forget_if_lost(&locked.receipt, &answer);
            answers.insert(locked.receipt.clone(), answer);
        }
        in_order(&receipts, &answers)
    }

    pub(super) async fn ack(&self, receipts: Vec<Receipt>) -> Answers<()> {
        let again = |ended| (ended == Ended::Completed).then_some(());
        let (mut ours, mut answers) = self.lock_messages(&receipts, again).await;
        for (at, answer) in self.remove(&ours).await.into_iter().enumerate() {
            let locked = &mut ours[at];
            if answer.is_ok() {
                self.end(locked, Ended::Completed);
            }
            self.forget_if_lost(&locked.receipt, &answer);
            answers.insert(locked.receipt.clone(), answer);
        }
        in_order(&receipts, &answers)
    }

    pub(super) async fn nack(&self, nacks: Vec<Nack>) -> Answers<Nacked> {
        let receipts: Vec<Receipt> = nacks.iter().map(|nack| nack.receipt.clone()).collect();
        let mut asked: BTreeMap<Receipt, Nack> =
            nacks.into_iter().map(|nack| (nack.receipt.clone(), nack)).collect();
        let (ours, mut answers) = self.lock_messages(&receipts, |_| None).await;
        let (mut back, mut seconds, mut fates) = (Vec::new(), Vec::new(), Vec::new());
        let mut hopeless = Vec::new();
        for locked in ours {
            let Some(nack) = asked.remove(&locked.receipt) else { continue };
            let meta = locked.held.content.as_ref().map(|content| &content.meta);
            let own = meta.and_then(|meta| meta.max_attempts);
            let carried = meta.map_or(0, |meta| meta.carried.failed);
            let attempt = locked.receipt.attempt.saturating_add(carried);
            let enough = attempt >= own.unwrap_or(self.settings.max_attempts);
            let redriven = self.dead.redriven_after(locked.receipt.attempt);
            if enough && locked.held.content.is_some() && self.dead.exists() {
                hopeless.push((locked, nack.error));
                continue;
            }
            if enough && !self.dead.exists() {
                self.dead.miss(&self.address);
            }
            let wait = if redriven {
                Duration::ZERO
            } else {
                let backoff = || self.settings.backoff.wait(attempt, self.env.fraction());
                let left = (locked.held.received + MAX_HELD).saturating_sub(self.env.monotonic());
                nack.delay.unwrap_or_else(backoff).min(left)
            };
            let wait = whole_seconds(wait).min(MAX_HELD.as_secs() as u32);
            fates.push(match redriven {
                true => Nacked::GivenUp,
                false => Nacked::Again(Duration::from_secs(wait.into())),
            });
            seconds.push(wait);
            back.push(locked);
        }
        let hidden = self.hide(&self.client, &back, &seconds).await;
        self.silence_ends();
        for ((mut locked, fate), hidden) in back.into_iter().zip(fates).zip(hidden) {
            if hidden.is_ok() {
                self.end(&mut locked, Ended::GivenBack);
            }
            let answer = hidden.map(|()| fate);
            self.forget_if_lost(&locked.receipt, &answer);
            answers.insert(locked.receipt, answer);
        }
        for (receipt, buried) in self.bury(hopeless).await {
            answers.insert(receipt, buried.map(|()| Nacked::GivenUp));
        }
        in_order(&receipts, &answers)
    }

    /// Makes messages visible again. Whether it was tried often enough is not asked: nobody tried it.
    /// But SQS counts receives, and asks nobody.
    pub(super) async fn release_unrun(&self, receipts: Vec<Receipt>) -> Answers<()> {
        let (mut ours, mut answers) = self.lock_messages(&receipts, |_| None).await;
        let hidden = self.hide(&self.client, &ours, &vec![0; ours.len()]).await;
        self.silence_ends();
        for (locked, answer) in ours.iter_mut().zip(hidden) {
            if answer.is_ok() {
                self.end(locked, Ended::GivenBack);
                if self.dead.redriven_after(locked.receipt.attempt) {
                    let key = locked.receipt.key();
                    tracing::warn!(%key, "given back unrun, but its redrive policy makes it a dead letter");
                }
            }
            self.forget_if_lost(&locked.receipt, &answer);
            answers.insert(locked.receipt.clone(), answer);
        }
        in_order(&receipts, &answers)
    }

    /// Removes messages that are done with.
    pub(super) async fn remove(&self, ours: &[LockedMessage]) -> Answers<()> {
        let call = |chunk| {
            let handles =
                Vec::from_iter(<[LockedMessage]>::iter(chunk).map(|locked| &*locked.held.handle));
            let patience = patience(chunk);
            async move { remove(&self.client, &self.url, &handles, patience).await }.boxed()
        };
        let answers = pipelined(ours.chunks(BATCH).map(call).collect(), PIPELINE).await;
        let answer = |(locked, answer): (&LockedMessage, Result<(), Refused>)| match answer {
            // While it was ours nobody else could have: it was our own earlier try.
            Err(refused) if refused.unclear && is_lost(&refused) => Ok(()),
            answer => answer.map_err(|refused| not_ours(&locked.receipt, refused)),
        };
        ours.iter().zip(answers).map(answer).collect()
    }

    /// Hides messages for so many seconds from now.
    pub(super) async fn hide(
        &self,
        client: &Client,
        ours: &[LockedMessage],
        seconds: &[u32],
    ) -> Answers<()> {
        let call = |(chunk, seconds): (&[LockedMessage], &[u32])| {
            let handles = chunk.iter().map(|locked| locked.held.handle.clone());
            let wanted = Vec::from_iter(handles.zip(seconds.iter().copied()));
            let patience = patience(chunk);
            async move { hide(client, &self.url, &wanted, patience).await }.boxed()
        };
        let chunks = ours.chunks(BATCH).zip(seconds.chunks(BATCH));
        let answers = pipelined(chunks.map(call).collect(), PIPELINE).await;
        let answer = |(locked, answer): (&LockedMessage, Result<(), Refused>)| {
            answer.map_err(|refused| not_ours(&locked.receipt, refused))
        };
        ours.iter().zip(answers).map(answer).collect()
    }
}

fn patience(ours: &[LockedMessage]) -> Patience {
    Patience::until(ours.iter().map(|locked| locked.state.ends).min().unwrap_or_default())
}

/// The server says that the receipt is none, or none any more.
fn is_lost(refused: &Refused) -> bool {
    matches!(refused.error.kind(), ErrorKind::ClaimLost | ErrorKind::Invalid)
}

fn not_ours(receipt: &Receipt, refused: Refused) -> Error {
    if !is_lost(&refused) {
        return refused.error;
    }
    Error::claim_lost(format!("task '{}' is not ours: {}", receipt.key(), refused.error))
}

async fn remove(
    client: &Client,
    url: &str,
    handles: &[&str],
    patience: Patience,
) -> Vec<Result<(), Refused>> {
    let entry = |at: usize| {
        let entry = DeleteMessageBatchRequestEntry::builder().id(at.to_string());
        entry.receipt_handle(handles[at]).build().ok()
    };
    let request = |open: Vec<usize>| async move {
        let entries: Vec<_> = open.into_iter().filter_map(entry).collect();
        let call = || {
            let batch = client.sdk.delete_message_batch().queue_url(url);
            batch.set_entries(Some(entries.clone())).send()
        };
        let answer = client.call(RequestKind::Remove, "ack in", patience, call).await?;
        let refused = answer.said.failed().iter().map(Entry::new).collect();
        Ok(Answer { said: refused, unclear: answer.unclear })
    };
    client.batch("ack in", handles.len(), patience, request).await
}

async fn hide(
    client: &Client,
    url: &str,
    wanted: &[(String, u32)],
    patience: Patience,
) -> Vec<Result<(), Refused>> {
    let entry = |at: usize| {
        let (handle, seconds) = &wanted[at];
        let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(at.to_string());
        entry.receipt_handle(handle).visibility_timeout(seconds.cast_signed()).build().ok()
    };
    let request = |open: Vec<usize>| async move {
        let entries: Vec<_> = open.into_iter().filter_map(entry).collect();
        let call = || {
            let batch = client.sdk.change_message_visibility_batch().queue_url(url);
            batch.set_entries(Some(entries.clone())).send()
        };
        let answer = client.call(RequestKind::Hide, "change a lease in", patience, call).await?;
        let refused = answer.said.failed().iter().map(Entry::new).collect();
        Ok(Answer { said: refused, unclear: answer.unclear })
    };
    client.batch("change a lease in", wanted.len(), patience, request).await
}
