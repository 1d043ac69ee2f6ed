//! Push: tasks as messages, in batches that SQS takes.
//!
//! Invariant: each task gets an answer of its own, and one that is refused keeps no other out. A batch
//! has at most ten messages and no more bytes than the server takes. A request whose answer was lost is
//! sent again, so on a standard queue a task may be there twice; a FIFO queue knows it by its id.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use futures::future::BoxFuture;

use super::body::{self, Body, ESCAPE};
use super::client::{Answer, BATCH, Client, Entry, PIPELINE, Patience, Refused, pipelined};
use super::foreign::{self, Attributes};
use super::{Core, PROVIDER, whole_seconds};
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::meter::RequestKind;
use crate::model::{Arrival, Carried, Journey, NewTask, Payload, TaskId, TaskKey, TaskMeta};
use crate::queue::{Answers, Pushed};

/// The longest delay of a message.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

/// What a batch may hold: since 2025, and before.
pub(super) const MAX_BATCH_BYTES: usize = 1024 * 1024;
const OLD_MAX_BATCH_BYTES: usize = 256 * 1024;

/// A message on its way.
pub(super) struct Outgoing {
    pub(super) body: Body,
    pub(super) delay_seconds: u32,
    /// Group and deduplication id, which a FIFO queue asks for.
    pub(super) fifo: Option<(String, String)>,
    /// The attributes of a message that another program sent, which goes on as it came.
    pub(super) foreign: Option<Attributes>,
}

impl Outgoing {
    fn size(&self) -> usize {
        self.body.size() + self.foreign.as_ref().map_or(0, foreign::size)
    }
}

impl Core {
    pub(super) async fn push(&self, tasks: Vec<NewTask>) -> Answers<Pushed> {
        let mut answers = Vec::with_capacity(tasks.len());
        let mut out = Vec::with_capacity(tasks.len());
        for (at, task) in tasks.into_iter().enumerate() {
            answers.push(self.message_of(task).map(|(key, message)| {
                out.push((at, message));
                Pushed::Created(key)
            }));
        }
        self.silence_ends();
        let (indexes, messages): (Vec<usize>, Vec<Outgoing>) = out.into_iter().unzip();
        for (at, sent) in indexes.into_iter().zip(self.send(&self.url, &messages).await) {
            let Err(refused) = sent else { continue };
            if let Ok(pushed) = &answers[at] {
                answers[at] = Err(refused.error.context(format!("task '{}'", pushed.key().id())));
            }
        }
        answers
    }

    fn message_of(&self, task: NewTask) -> Result<(TaskKey, Outgoing)> {
        if task.max_attempts == Some(0) {
            return Err(Error::invalid("max_attempts must be at least 1"));
        }
        let chosen = task.chosen_id()?;
        let id = match chosen {
            Some(id) => id,
            None => TaskId::new(self.env.uuid_v7())?,
        };
        let now = self.env.clock().wall();
        let delay = task.wait(now).filter(|delay| !delay.is_zero());
        self.check_delay(&id, delay)?;
        let own_word = task.again || task.arrival.is_some();
        let arrival = task.arrival.unwrap_or_else(|| Arrival {
            push_id: self.env.nonce(),
            created_at: Some(now),
            attempts_before: 0,
            carried: Carried::default(),
            journey: Journey::default(),
            due: None,
        });
        let meta = TaskMeta {
            id: id.clone(),
            generation: 1,
            push_id: arrival.push_id,
            created_at: arrival.created_at,
            attempts_before: arrival.attempts_before,
            carried: arrival.carried,
            journey: arrival.journey,
            max_attempts: task.max_attempts,
            not_before: delay.and_then(|delay| now.checked_add(delay).ok()),
            node: None,
        };
        let body = Body::new(
            format::encode_task(&task.payload, &meta),
            self.strict.load(Ordering::Relaxed),
        )
        .map_err(|error| error.context(format!("task '{id}'")))?;
        if body.size() > self.message_limit {
            return Err(Error::invalid(format!(
                "task '{id}' takes {} bytes as a message, the limit of {} is {}; put the data \
                 elsewhere and its address into the task",
                body.size(),
                self.address,
                self.message_limit
            )));
        }
        // An id that is to be done again must not be taken for its own double, nor one that comes from
        // elsewhere for another of that name.
        let journey = format!("{}.{}", meta.push_id, meta.journey.moves);
        let double = if own_word { journey.as_str() } else { id.as_str() };
        let fifo = self.fifo.then(|| (self.group_of(&id, &task.payload), body::word(double)));
        let delay_seconds = delay.map_or(0, whole_seconds);
        Ok((TaskKey::new(id, 1), Outgoing { body, delay_seconds, fifo, foreign: None }))
    }

    fn check_delay(&self, id: &TaskId, delay: Option<Duration>) -> Result<()> {
        let Some(delay) = delay else { return Ok(()) };
        let refused = |why: &str| {
            Err(Error::new(ErrorKind::Unsupported, format!("task '{id}': {PROVIDER} {why}")))
        };
        match () {
            () if self.fifo => refused("cannot delay single tasks of a FIFO queue"),
            () if delay > MAX_DELAY => refused("can delay a task by at most 15 minutes"),
            () => Ok(()),
        }
    }

    /// The group of a task in a FIFO queue: what its payload says, or else one of its own.
    pub(super) fn group_of(&self, id: &TaskId, payload: &Payload) -> String {
        let member = self.group_member.as_deref();
        let named = member.and_then(|member| format::member(payload.as_json(), member));
        let text = named.map(|raw| serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned()));
        body::word(text.as_deref().unwrap_or(id.as_str()))
    }

    /// Sends messages, each with an answer.
    pub(super) async fn send(&self, url: &str, all: &[Outgoing]) -> Vec<Result<(), Refused>> {
        // In a FIFO queue the order is what counts.
        let at_once = if self.fifo { 1 } else { PIPELINE };
        let packs = pack(all, self.batch_limit.load(Ordering::Relaxed));
        let calls = packs.into_iter().map(|pack| self.send_pack(url, pack)).collect();
        pipelined(calls, at_once).await
    }

    fn send_pack<'a>(
        &'a self,
        url: &'a str,
        pack: &'a [Outgoing],
    ) -> BoxFuture<'a, Vec<Result<(), Refused>>> {
        Box::pin(async move {
            let mut answers = send_batch(&self.client, url, pack).await;
            self.send_strictly(url, pack, &mut answers).await;
            let too_long = |answer: &Result<(), Refused>| {
                answer.as_ref().is_err_and(|refused| refused.code == "BatchRequestTooLong")
            };
            if pack.len() == 1 || !answers.iter().any(too_long) {
                return answers;
            }
            // A server with the old limit. From now on we keep to it.
            self.batch_limit.fetch_min(OLD_MAX_BATCH_BYTES, Ordering::Relaxed);
            let (first, second) = pack.split_at(pack.len() / 2);
            let mut answers = self.send_pack(url, first).await;
            answers.extend(self.send_pack(url, second).await);
            answers
        })
    }
}

impl Core {
    /// Some servers refuse more characters than SQS does. What was refused for that is sent once more
    /// with all of them escaped, and so is from now on all else.
    async fn send_strictly(
        &self,
        url: &str,
        pack: &[Outgoing],
        answers: &mut [Result<(), Refused>],
    ) {
        for (message, answer) in pack.iter().zip(answers) {
            let Err(refused) = answer else { continue };
            if refused.code != "InvalidMessageContents" || message.foreign.is_some() {
                continue;
            }
            let Ok(body) = message.body.strictly() else { continue };
            if body != message.body {
                self.strict.store(true, Ordering::Relaxed);
                let fifo = message.fifo.clone();
                let again = Outgoing { body, fifo, foreign: None, ..*message };
                *answer = send_batch(&self.client, url, &[again]).await.remove(0);
            }
        }
    }
}

/// Messages in batches, in order.
fn pack(all: &[Outgoing], limit: usize) -> Vec<&[Outgoing]> {
    let mut packs = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (at, message) in all.iter().enumerate() {
        let full = at - start == BATCH || size + message.size() > limit;
        if full && at > start {
            packs.push(&all[start..at]);
            (start, size) = (at, 0);
        }
        size += message.size();
    }
    if start < all.len() {
        packs.push(&all[start..]);
    }
    packs
}

async fn send_batch(client: &Client, url: &str, pack: &[Outgoing]) -> Vec<Result<(), Refused>> {
    let entry = |at: usize| {
        let Outgoing { body, delay_seconds, fifo, foreign } = &pack[at];
        let escape = body.escape.and_then(|spelling| foreign::text_value(spelling.name()));
        let escape = escape.map(|value| Attributes::from([(ESCAPE.to_owned(), value)]));
        let attributes = foreign.clone().or(escape).filter(|attributes| !attributes.is_empty());
        let (group, double) = fifo.clone().unzip();
        SendMessageBatchRequestEntry::builder()
            .id(at.to_string())
            .message_body(&body.text)
            .set_delay_seconds((*delay_seconds > 0).then_some(delay_seconds.cast_signed()))
            .set_message_attributes(attributes)
            .set_message_group_id(group)
            .set_message_deduplication_id(double)
            .build()
            .ok()
    };
    let patience = Patience::ORDINARY;
    let request = |open: Vec<usize>| async move {
        let entries: Vec<_> = open.into_iter().filter_map(entry).collect();
        let call = || {
            let batch = client.sdk.send_message_batch().queue_url(url);
            batch.set_entries(Some(entries.clone())).send()
        };
        let answer = client.call(RequestKind::Send, "send to", patience, call).await?;
        let refused = answer.said.failed().iter().map(Entry::new).collect();
        Ok(Answer { said: refused, unclear: answer.unclear })
    };
    client.batch("send to", pack.len(), patience, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(bytes: usize) -> Outgoing {
        let body = Body { text: "x".repeat(bytes), escape: None };
        Outgoing { body, delay_seconds: 0, fifo: None, foreign: None }
    }

    #[test]
    fn batches_keep_order_and_both_limits() {
        let sizes = |limit, bytes: &[usize]| -> Vec<Vec<usize>> {
            let all: Vec<_> = bytes.iter().copied().map(sized).collect();
            let packs = pack(&all, limit);
            packs.iter().map(|pack| pack.iter().map(|m| m.body.size()).collect()).collect()
        };
        assert!(sizes(100, &[]).is_empty());
        assert_eq!(sizes(100, &[1; 21]), [vec![1; 10], vec![1; 10], vec![1]]);
        assert_eq!(sizes(100, &[60, 40, 1, 100, 5]), [vec![60, 40], vec![1], vec![100], vec![5]]);
        assert_eq!(sizes(100, &[200, 3]), [vec![200], vec![3]], "its refusal is its own");
    }
}
