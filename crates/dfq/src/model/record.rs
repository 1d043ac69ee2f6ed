//! How a task ended. One record per life of a task: in `completed/`, or in `failed/`.

use jiff::Timestamp;

use super::lease::LeaseState;
use super::task::{Payload, TaskMeta};

/// The two ends of a task's life, each a folder of its own. A completed record beats a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Done.
    Completed,
    /// Given up, cancelled, or unreadable.
    Failed,
}

/// One attempt, as records and views tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSummary {
    /// Its number.
    pub attempt: u32,
    /// Who made it.
    pub worker_id: String,
    /// When it began, on the store's clock.
    pub created_at: Timestamp,
    /// Its last sign of life.
    pub heartbeat_at: Timestamp,
    /// How it ended; nothing means that it was lost, or goes on.
    pub state: Option<LeaseState>,
    /// Why.
    pub error: Option<String>,
}

/// A terminal record: the task, and how it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which end.
    pub outcome: Outcome,
    /// The payload; nothing if the task file could not be read.
    pub payload: Option<Payload>,
    /// What the task file noted.
    pub meta: TaskMeta,
    /// The lease that finished it: the nonce by which a worker knows its own record again.
    pub lease_id: Option<String>,
    /// Who finished it.
    pub worker_id: Option<String>,
    /// When, on the store's clock. Files of other programs do not say.
    pub finished_at: Option<Timestamp>,
    /// Why it failed.
    pub reason: Option<String>,
    /// An operator ended it.
    pub cancelled: bool,
    /// A purge is about to remove it: nothing else may be removed for its sake.
    pub forgotten: bool,
    /// It lives on in the queue at this address.
    pub moved_to: Option<String>,
    /// The bytes of a task file that could not be read, kept as they were.
    pub damaged: Option<Vec<u8>>,
    /// Every attempt there was.
    pub attempts: Vec<AttemptSummary>,
}
