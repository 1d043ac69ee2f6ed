//! Poll and wait: messages come in, by as many requests as it takes.
//!
//! Invariant: a message that SQS has handed to this process is never dropped on the floor. A long poll
//! runs as a task of its own, so that whoever waits may stop waiting at any time; what it brings lies
//! ready for the next poll, and is given back when the queue is closed.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};

use super::body::Ticket;
use super::client::{BATCH, PIPELINE, Patience, REQUEST_TIMEOUT};
use super::foreign;
use super::hold::{Held, MAX_HELD};
use super::silence::{listening, longest_wait};
use super::{Core, PROVIDER, whole_seconds};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::RequestKind;
use crate::model::{TaskKey, check_lease};
use crate::queue::{Delivery, Earlier, Idle, PollRequest, Polled};

/// How soon to look again for what others hold, or what is not due: nobody tells when that will be.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// For how many seconds a message is held at least that a long poll brings. SQS waits whole seconds, which
/// are a large part of a shorter lease.
const MIN_AHEAD_SECONDS: u32 = 4;

/// How long to wait after a long poll failed.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// How many messages that cannot be read are remembered, to be reported once each.
const MAX_UNREADABLE: usize = 10_000;

/// What SQS is to say of each message: how often it was received, and for those that other programs sent, when
/// and in which group.
const SYSTEM_ATTRIBUTES: [MessageSystemAttributeName; 3] = [
    MessageSystemAttributeName::ApproximateReceiveCount,
    MessageSystemAttributeName::SentTimestamp,
    MessageSystemAttributeName::MessageGroupId,
];

/// What was received before anybody asked for it.
#[derive(Default)]
pub(super) struct Ahead {
    ready: Vec<Delivery>,
    /// A long poll is under way.
    asking: bool,
    /// Nothing is to be asked for any more.
    closed: bool,
    /// What the last poll wanted: how many, for how many seconds.
    wanted: Option<(usize, u32)>,
}

impl Core {
    pub(super) async fn poll(&self, request: &PollRequest) -> Result<Polled> {
        if request.schema.is_some() {
            let message = format!(
                "{PROVIDER} cannot leave tasks of other schema versions to others: poll without a range"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let seconds = lease_seconds(request.lease.unwrap_or(self.settings.lease))?;
        self.sweep_held();
        if request.max == 0 {
            return Ok(Polled::default());
        }
        lock(&self.ahead).wanted = Some((request.max, seconds));
        let mut deliveries = self.take_ready(request.max).await;
        // One request first; when it brings all it can, the rest at once.
        let mut at_once = 1;
        while deliveries.len() < request.max {
            let missing = request.max - deliveries.len();
            let calls = missing.div_ceil(BATCH).min(at_once);
            let calls = (0..calls).map(|call| {
                let size = (missing - call * BATCH).min(BATCH);
                self.receive(size, seconds, 0)
            });
            let (mut short, mut trouble) = (false, None);
            for answer in futures::future::join_all(calls).await {
                match answer {
                    Ok(Received { all, good, .. }) => {
                        short |= !all;
                        deliveries.extend(good);
                    }
                    Err(error) => trouble = Some(error),
                }
            }
            match trouble {
                // What is here already must not be lost over it.
                Some(error) if deliveries.is_empty() => return Err(error),
                Some(_) => break,
                None if short => break,
                None => at_once = PIPELINE,
            }
        }
        let mut next = (deliveries.len() < request.max).then_some(LOOK_AGAIN);
        let mut unsure = Some(listening(seconds));
        if deliveries.is_empty() {
            // Is there anything to wait for?
            let counts = self.counts(&self.url).await?;
            if counts.visible > 0 {
                // A request that does not wait asks some of the servers, one that does asks all.
                deliveries = self.receive(request.max.min(BATCH), seconds, 1).await?.good;
            }
            let counted = counts.any() || !lock(&self.held).is_empty();
            unsure = unsure.filter(|_| !self.silence_proves(counted));
            next = next.filter(|_| counted);
        }
        Ok(Polled { deliveries, idle: Idle { next, unsure, ..Idle::default() } })
    }

    pub(super) async fn wait(self: &Arc<Self>, at_most: Duration) {
        let arrived = self.arrived.notified();
        tokio::pin!(arrived);
        arrived.as_mut().enable();
        let patience = self.ask_ahead(at_most);
        tokio::select! {
            biased;
            () = arrived => {}
            () = self.env.clock().sleep(patience) => {}
        }
    }

    /// Starts a long poll, unless one is under way. Answers for how long to wait for what it brings.
    fn ask_ahead(self: &Arc<Self>, at_most: Duration) -> Duration {
        let mut ahead = lock(&self.ahead);
        if !ahead.ready.is_empty() {
            return Duration::ZERO;
        }
        let lease = whole_seconds(self.settings.lease).min(MAX_HELD.as_secs() as u32);
        let (max, seconds) = ahead.wanted.unwrap_or((1, lease));
        let seconds = seconds.max(MIN_AHEAD_SECONDS);
        let longest = longest_wait(seconds);
        // Nor should it outlast the one who waits, who may be about to leave.
        let wait = u32::try_from(at_most.as_secs()).unwrap_or(u32::MAX).max(1).min(longest);
        if ahead.asking {
            return at_most;
        }
        if ahead.closed || !self.env.is_running() {
            return at_most.min(LOOK_AGAIN);
        }
        ahead.asking = true;
        let asking = Asking(Arc::clone(self));
        self.env.spawn(async move {
            let core = &asking.0;
            match core.receive(max.min(BATCH), seconds, wait).await {
                Ok(received) => {
                    if received.nothing && wait == longest {
                        core.silence_lasts();
                    }
                    lock(&core.ahead).ready.extend(received.good);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot wait for tasks now");
                    core.env.clock().sleep(TROUBLE_PAUSE).await;
                }
            }
        });
        at_most
    }

    /// Takes what lies ready, as far as it is still ours for a good while.
    async fn take_ready(&self, max: usize) -> Vec<Delivery> {
        let mut ready: Vec<Delivery> = {
            let ready = &mut lock(&self.ahead).ready;
            let keep = ready.len().saturating_sub(max);
            ready.drain(keep..).collect()
        };
        let mut fresh = Vec::with_capacity(ready.len());
        ready.retain(|delivery| {
            let held = lock(&self.held).get(&delivery.receipt).cloned();
            let young = held.and_then(|held| held.left_if_young(self.env.monotonic()));
            if let Some(valid_for) = young {
                fresh.push(Delivery { valid_for, lasts: valid_for, ..delivery.clone() });
            }
            young.is_none()
        });
        if ready.is_empty() {
            return fresh;
        }
        let receipts = ready.iter().map(|delivery| delivery.receipt.clone()).collect();
        for (delivery, renewed) in ready.into_iter().zip(self.renew(&self.client, receipts).await) {
            match renewed {
                Ok(valid_for) => fresh.push(Delivery { valid_for, lasts: valid_for, ..delivery }),
                Err(error) => tracing::warn!(key = %delivery.key, %error, "received too early"),
            }
        }
        fresh
    }

    /// Asks for nothing more, and gives back what nobody has asked for.
    pub(super) async fn close(&self) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let ready = {
                let mut ahead = lock(&self.ahead);
                ahead.closed = true;
                if ahead.asking { None } else { Some(std::mem::take(&mut ahead.ready)) }
            };
            let Some(ready) = ready else {
                arrived.await;
                continue;
            };
            let ready = ready.into_iter().map(|delivery| delivery.receipt).collect();
            for answer in self.release_unrun(ready).await {
                if let Err(error) = answer {
                    tracing::warn!(%error, "not given back; it comes back after its lease");
                }
            }
            lock(&self.ahead).closed = false;
            return;
        }
    }

    /// One request for up to `max` messages.
    async fn receive(&self, max: usize, seconds: u32, wait: u32) -> Result<Received> {
        let before = self.env.monotonic();
        let mut patience = Patience::ORDINARY;
        if wait > 0 {
            // Waiting is repeated by whoever waits.
            patience.each = REQUEST_TIMEOUT + Duration::from_secs(wait.into());
            patience.until = before + patience.each;
        }
        // A FIFO queue answers the same to the same question, so a lost answer is not lost.
        let attempt_id = self.fifo.then(|| self.env.nonce());
        let call = || {
            self.client
                .sdk
                .receive_message()
                .queue_url(&self.url)
                .max_number_of_messages(i32::try_from(max).unwrap_or(1))
                .visibility_timeout(seconds.cast_signed())
                .wait_time_seconds(wait.cast_signed())
                .set_message_system_attribute_names(Some(SYSTEM_ATTRIBUTES.to_vec()))
                .message_attribute_names("All")
                .set_receive_request_attempt_id(attempt_id.clone())
                .send()
        };
        let answer = self.client.call(RequestKind::Receive, "poll", patience, call).await?;
        let messages = answer.said.messages.unwrap_or_default();
        let (all, nothing) = (messages.len() >= max, messages.is_empty());
        if !nothing {
            self.silence_ends();
        }
        let mut good = Vec::with_capacity(messages.len());
        for message in messages {
            match self.deliver(&message, before, seconds) {
                Ok(delivery) => good.push(delivery),
                Err(error) => self.report(&message, &error),
            }
        }
        Ok(Received { all, nothing, good: self.set_aside_hopeless(good).await })
    }

    fn deliver(&self, message: &Message, before: Duration, seconds: u32) -> Result<Delivery> {
        let nothing = || Error::invalid("it has no receipt");
        let handle = message.receipt_handle().ok_or_else(nothing)?;
        let content = foreign::read(message)?;
        let (payload, meta) = (content.payload.clone(), content.meta.clone());
        let count = message
            .attributes()
            .and_then(|all| all.get(&MessageSystemAttributeName::ApproximateReceiveCount));
        let received = count.and_then(|count| count.parse().ok()).unwrap_or(1).max(1);
        let attempt = meta.carried.attempts().saturating_add(received);
        let key = TaskKey::new(meta.id.clone(), meta.generation);
        let ticket = Ticket { seconds, origin: self.origin.clone(), handle: handle.to_owned() };
        let receipt = ticket.receipt(key.clone(), received);
        let held = Held::new(ticket.handle, before, seconds, Some(content));
        let (valid_for, lasts) = (held.left_at(self.env.monotonic()), held.left_at(before));
        lock(&self.held).insert(receipt.clone(), Arc::new(held));
        Ok(Delivery {
            key,
            payload,
            attempt,
            earlier: Earlier::default().and(meta.carried),
            fence: (meta.journey.fence)
                .saturating_add(u64::from(meta.attempts_before) + u64::from(received)),
            meta,
            receipt,
            valid_for,
            lasts,
            until: before.saturating_add(lasts),
        })
    }

    /// Where SQS has no redrive policy, tasks that came too often end here: they may kill their workers.
    async fn set_aside_hopeless(&self, deliveries: Vec<Delivery>) -> Vec<Delivery> {
        if self.dead.policy.is_some() || !self.dead.exists() {
            return deliveries;
        }
        let (mut good, mut failures) = (Vec::new(), Vec::new());
        for delivery in deliveries {
            let own = delivery.meta.max_attempts.unwrap_or(self.settings.max_attempts);
            // Those that were made elsewhere have had their say there.
            if delivery.receipt.attempt <= own.max(self.settings.max_lost) {
                good.push(delivery);
                continue;
            }
            let times = delivery.receipt.attempt - 1;
            let reason = format!("it was handed out {times} times, and its workers went silent");
            failures.push((delivery.receipt, reason));
        }
        for answer in self.fail(failures).await {
            if let Err(error) = answer {
                tracing::warn!(%error, "a hopeless task stays in the queue");
            }
        }
        good
    }

    /// Says once what came and cannot be read. It stays where it is, for the redrive policy.
    fn report(&self, message: &Message, error: &Error) {
        let id = message.message_id().unwrap_or_default();
        let mut known = lock(&self.unreadable);
        if known.len() >= MAX_UNREADABLE {
            known.clear();
        }
        if known.insert(id.to_owned()) {
            let address = &self.address;
            tracing::warn!(id, %address, %error, "a message that cannot be read is left to the redrive policy");
        }
    }
}

/// A long poll under way, until it is dropped.
struct Asking(Arc<Core>);

impl Drop for Asking {
    fn drop(&mut self) {
        lock(&self.0.ahead).asking = false;
        self.0.arrived.notify_waiters();
    }
}

/// What one request brought.
struct Received {
    /// As many as were asked for.
    all: bool,
    /// Not one message, of whatever kind.
    nothing: bool,
    good: Vec<Delivery>,
}

/// The seconds of a lease, as SQS counts them.
pub(super) fn lease_seconds(lease: Duration) -> Result<u32> {
    check_lease(lease)?;
    if lease > MAX_HELD {
        let message = format!("{PROVIDER} cannot lease a task for {lease:?}, at most for 12 hours");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(whole_seconds(lease))
}
