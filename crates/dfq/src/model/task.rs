//! What is to be done: the caller's JSON, kept byte for byte, and what the queue notes beside it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::id::{Generation, TaskId};
use crate::error::{Error, Result};
use crate::format;

/// The largest task: past this, put the data elsewhere and its address into the task.
pub const MAX_TASK_BYTES: usize = 16 * 1024 * 1024;

/// A JSON value as its author wrote it: same bytes, same order of members, same digits.
///
/// ```
/// use dfq::Payload;
/// let payload = Payload::from_json(r#"{"b":1, "a":12345678901234567890123}"#)?;
/// assert_eq!(payload.as_json(), r#"{"b":1, "a":12345678901234567890123}"#);
/// # Ok::<(), dfq::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload(Arc<str>);

impl Payload {
    /// Takes JSON text as it is, once it is known to be JSON. A `_dfq` member, which the queue's own
    /// files carry, is left out: a task file can be pushed again just as it lies there.
    pub fn from_json(text: &str) -> Result<Self> {
        Ok(split(text)?.0)
    }

    /// Writes any value as JSON.
    pub fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let text = serde_json::to_string(value)
            .map_err(|e| Error::invalid(format!("the payload cannot be written as JSON: {e}")))?;
        Self::from_json(&text)
    }

    pub(crate) fn trusted(text: &str) -> Self {
        Self(text.trim().into())
    }

    /// The JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// Reads the payload as `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.0)
            .map_err(|e| Error::invalid(format!("the payload does not have the wanted form: {e}")))
    }

    /// The text of the member `name`, if the payload is an object with such a string.
    pub fn string_member(&self, name: &str) -> Option<String> {
        let raw = format::member(&self.0, name)?;
        serde_json::from_str(raw).ok()
    }

    /// The whole number of the member `name`, if the payload is an object with such a number.
    pub fn integer_member(&self, name: &str) -> Option<i64> {
        format::member(&self.0, name)?.trim().parse().ok()
    }

    /// The payload with its task's id beside it, as one line of JSON: pushed anywhere, it is the same
    /// task again. Line breaks between its members become spaces; all else is kept.
    ///
    /// ```
    /// # use dfq::{Payload, TaskId};
    /// let payload = Payload::from_json(r#"{"n": 1.50}"#)?;
    /// let line = payload.with_id(&TaskId::new("a")?);
    /// assert_eq!(line, r#"{"n": 1.50,"_dfq":{"id":"a"}}"#);
    /// assert_eq!(Payload::from_json(&line)?, payload);
    /// # Ok::<(), dfq::Error>(())
    /// ```
    pub fn with_id(&self, id: &TaskId) -> String {
        format::with_id(self, id)
    }

    /// SHA-256 of the text, in hex: an id for those who want one payload pushed once.
    pub fn sha256(&self) -> String {
        format::hex(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Takes a payload in, if it is not too large.
fn split(text: &str) -> Result<(Payload, Option<TaskMeta>)> {
    if text.len() > MAX_TASK_BYTES {
        return Err(Error::invalid(format!(
            "a task of {} bytes is larger than the limit of {MAX_TASK_BYTES}; put the data elsewhere \
             and its address into the task",
            text.len()
        )));
    }
    format::split_payload(text)
}

/// A task on its way into the queue.
///
/// ```
/// use dfq::NewTask;
/// use std::time::Duration;
/// let task = NewTask::from_json(r#"{"id": "acme.com", "depth": 2}"#)?
///     .max_attempts(3)
///     .delay(Duration::from_secs(60));
/// # Ok::<(), dfq::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewTask {
    pub(crate) payload: Payload,
    pub(crate) id: Option<TaskId>,
    pub(crate) again: bool,
    pub(crate) delay: Option<Duration>,
    pub(crate) max_attempts: Option<u32>,
    /// It comes from another queue, where this was noted beside it.
    pub(crate) arrival: Option<Arrival>,
}

/// What a task brings along from the queue where it was before.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// The same as there, so that a task that has arrived before is known again.
    pub(crate) push_id: String,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) attempts_before: u32,
    pub(crate) carried: Carried,
    pub(crate) journey: Journey,
    /// Not to be handed out before this time.
    pub(crate) due: Option<Timestamp>,
}

impl NewTask {
    /// A task with this payload. Its id is the one a task file carries, or else the payload's own
    /// string member `id`, or else a fresh UUIDv7.
    pub fn new(payload: Payload) -> Self {
        Self { payload, id: None, again: false, delay: None, max_attempts: None, arrival: None }
    }

    /// A task as it was in another queue, after so many attempts there.
    pub(crate) fn arriving(
        payload: Payload,
        meta: TaskMeta,
        carried: Carried,
        journey: Journey,
        due: Option<Timestamp>,
    ) -> Self {
        // Other programs' files tell no push from another; these tell at least no two tasks apart that
        // are alike.
        let made_up = || format!("as-{}", &payload.sha256()[..32]);
        let push_id = if meta.push_id.is_empty() { made_up() } else { meta.push_id };
        let TaskMeta { created_at, attempts_before, .. } = meta;
        Self {
            id: Some(meta.id),
            max_attempts: meta.max_attempts,
            arrival: Some(Arrival { push_id, created_at, attempts_before, carried, journey, due }),
            ..Self::new(payload)
        }
    }

    /// A task from JSON text, which is kept as it is.
    pub fn from_json(text: &str) -> Result<Self> {
        let (payload, meta) = split(text)?;
        let mut task = Self::new(payload);
        task.id = meta.map(|meta| meta.id);
        Ok(task)
    }

    /// A task from any value that can be written as JSON.
    pub fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        Ok(Self::new(Payload::from_value(value)?))
    }

    /// For how long it is to wait, if at all, on a clock that shows `now`.
    pub(crate) fn wait(&self, now: Timestamp) -> Option<Duration> {
        let due = self.arrival.as_ref().and_then(|arrival| arrival.due);
        let left = |due: Timestamp| Duration::try_from(due.duration_since(now)).unwrap_or_default();
        due.map(left).or(self.delay).filter(|_| self.is_delayed())
    }

    /// Whether it is to wait.
    pub(crate) fn is_delayed(&self) -> bool {
        let due = self.arrival.as_ref().and_then(|arrival| arrival.due);
        due.is_some() || self.delay.is_some_and(|delay| !delay.is_zero())
    }

    /// What is to be done.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The id that it will have, unless that is left to chance. An error if it cannot be one.
    pub fn chosen_id(&self) -> Result<Option<TaskId>> {
        match &self.id {
            Some(id) => Ok(Some(id.clone())),
            None => self.payload.string_member("id").map(TaskId::new).transpose(),
        }
    }

    /// Gives the task this id.
    #[must_use]
    pub fn id(mut self, id: TaskId) -> Self {
        self.id = Some(id);
        self
    }

    /// Starts the next life of an id that has finished before, instead of leaving it at that.
    #[must_use]
    pub fn again(mut self) -> Self {
        self.again = true;
        self
    }

    /// Hands the task out no earlier than after this time. Due times are kept to the second up to
    /// ten minutes ahead and to the minute beyond, rounded up.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// How many failures of its handler this task may have, instead of the queue's own limit.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = Some(max_attempts);
        self
    }
}

/// Attempts at a task that were made in another queue, and count in this one too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// The handler failed.
    pub failed: u32,
    /// The lease ran out.
    pub lost: u32,
}

impl Carried {
    /// All of them.
    pub fn attempts(self) -> u32 {
        self.failed.saturating_add(self.lost)
    }
}

/// A task's way through queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Journey {
    /// How often it has gone from one queue to another: tells a task that comes back from what is left of
    /// it at an earlier stage.
    pub moves: u32,
    /// No fencing token that was given out on the way is greater.
    pub fence: u64,
}

/// What the queue notes in a task file beside the payload: the member `_dfq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskMeta {
    /// The id.
    pub id: TaskId,
    /// Which life of the id.
    pub generation: Generation,
    /// A nonce: tells the push that made this file from any other push of the same id.
    pub push_id: String,
    /// When it was pushed, by the clock of the machine that did.
    pub created_at: Option<Timestamp>,
    /// Attempts made in earlier lives, as far as their records tell.
    pub attempts_before: u32,
    /// Attempts made at this life before it came here from another queue.
    pub carried: Carried,
    /// How it came here from other queues, if it did.
    pub journey: Journey,
    /// This task's own limit of handler failures.
    pub max_attempts: Option<u32>,
    /// The time before which it was not to be handed out.
    pub not_before: Option<Timestamp>,
    /// In a synced queue: the node on which it was pushed.
    pub node: Option<String>,
}
