//! Which of two files of the same name counts: the same one wherever this is asked.
//!
//! Invariant: each of these is a total order on what can be read, so that the least of any number of copies is the same
//! in whatever order they meet. White space at the end of a file does not count.

use std::cmp::{Ordering, Reverse};

use crate::format;
use crate::model::{Lease, Outcome, Payload, Record, TaskKey, TaskMeta};
use crate::planted::{self, Planted};

/// A task that can be read.
pub(super) struct Task<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) payload: Payload,
    pub(super) meta: TaskMeta,
}

impl<'a> Task<'a> {
    pub(super) fn read(key: &TaskKey, bytes: &'a [u8]) -> Option<Self> {
        let (payload, meta) = format::decode_task(bytes, key).ok()?;
        Some(Self { bytes, payload, meta })
    }

    /// By what its push is known once it is forgotten.
    pub(super) fn mark(&self) -> String {
        format::push_mark(&self.meta.push_id, self.payload.as_json().as_bytes())
    }

    fn rank(&self) -> impl Ord + use<'_, 'a> {
        (self.meta.created_at, &self.meta.push_id, self.bytes.trim_ascii_end())
    }
}

/// The task that counts.
pub(super) fn first_task<'t, 'a>(
    a: Option<&'t Task<'a>>,
    b: Option<&'t Task<'a>>,
) -> Option<&'t Task<'a>> {
    least(a, b, |a, b| a.rank().cmp(&b.rank()))
}

/// A record that can be read, and is not about to be removed by a purge.
pub(super) struct Ended<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) record: Record,
}

impl<'a> Ended<'a> {
    pub(super) fn read(outcome: Outcome, key: &TaskKey, bytes: &'a [u8]) -> Option<Self> {
        let record = format::decode_record(bytes, outcome, key).ok()?;
        let is_of_key = record.meta.id == *key.id() && record.meta.generation == key.generation();
        (is_of_key && !record.forgotten).then_some(Self { bytes, record })
    }

    /// A real end comes before one that says only that the task is elsewhere, and that before a mere mark.
    fn kind(&self) -> u8 {
        match (&self.record.payload, &self.record.moved_to) {
            (None, _) => 2,
            (_, Some(_)) => 1,
            _ => 0,
        }
    }

    fn rank(&self) -> impl Ord + use<'_, 'a> {
        let Record { finished_at, lease_id, .. } = &self.record;
        (self.kind(), finished_at, lease_id, self.bytes.trim_ascii_end())
    }

    /// Whether this is the end of that very task, or of one that asked for the same.
    pub(super) fn is_of(&self, task: &Task<'_>) -> bool {
        is_same_push(&self.record.meta, &task.meta)
            || self.record.payload.as_ref() == Some(&task.payload)
    }

    /// Whether both are ends of one push, or of two that asked for the same. A mere mark asked for nothing.
    pub(super) fn asked_the_same(&self, other: &Self) -> bool {
        is_same_push(&self.record.meta, &other.record.meta)
            || self.record.payload.is_none() && self.record.damaged.is_none()
            || self.record.payload.is_some() && self.record.payload == other.record.payload
    }
}

/// By what the push of an ended task is known once it is forgotten. Nothing, if the record does not tell.
pub(super) fn push_of(record: &Record) -> Option<String> {
    let Record { payload, damaged, meta, .. } = record;
    let asked = payload.as_ref().map(|payload| payload.as_json().as_bytes());
    let asked = asked.or(damaged.as_deref());
    match meta.push_id.is_empty() {
        true => asked.map(|asked| format::push_mark("", asked)),
        false => Some(format::push_mark(&meta.push_id, &[])),
    }
}

pub(super) fn is_same_push(a: &TaskMeta, b: &TaskMeta) -> bool {
    !a.push_id.is_empty() && a.push_id == b.push_id
}

/// The record that counts in its place.
pub(super) fn first_end<'t, 'a>(
    a: Option<&'t Ended<'a>>,
    b: Option<&'t Ended<'a>>,
) -> Option<&'t Ended<'a>> {
    least(a, b, |a, b| a.rank().cmp(&b.rank()))
}

/// A lease that can be read.
pub(super) struct Claimed<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) lease: Lease,
}

impl<'a> Claimed<'a> {
    pub(super) fn read(attempt: u32, bytes: &'a [u8]) -> Option<Self> {
        Some(Self { bytes, lease: format::decode_lease(bytes, attempt)? })
    }

    pub(super) fn is_same_claim(&self, other: &Self) -> bool {
        (self.lease.created_at, &self.lease.lease_id)
            == (other.lease.created_at, &other.lease.lease_id)
    }

    /// The first claim counts. Of copies of one claim the last counts: one with a state is the end of it, and `beat`
    /// grows with each write. No clock decides: its own may have been set back.
    fn rank(&self) -> impl Ord + use<'_, 'a> {
        let Lease { created_at, lease_id, state, beat, heartbeat_at, .. } = &self.lease;
        let by_clock = planted::is(Planted::MergeByHeartbeat);
        let last = match by_clock {
            true => (heartbeat_at.as_nanosecond(), 0),
            false => (i128::from(*beat), 1),
        };
        (created_at, lease_id, Reverse((state.is_some(), last)), self.bytes.trim_ascii_end())
    }
}

/// The lease that counts.
pub(super) fn first_claim<'t, 'a>(
    a: Option<&'t Claimed<'a>>,
    b: Option<&'t Claimed<'a>>,
) -> Option<&'t Claimed<'a>> {
    least(a, b, |a, b| a.rank().cmp(&b.rank()))
}

fn least<T>(a: Option<T>, b: Option<T>, order: impl Fn(&T, &T) -> Ordering) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if order(&b, &a) == Ordering::Less { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// Whether two files say the same.
pub(super) fn is_alike(a: &[u8], b: &[u8]) -> bool {
    a.trim_ascii_end() == b.trim_ascii_end()
}
