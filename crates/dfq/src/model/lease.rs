//! One attempt at a task: who has it, until when, and how it ended.
//!
//! Attempts are numbered from 1 and each has a file of its own, created once by whoever wins it. The
//! *current* lease is the highest-numbered one that was not withdrawn. Its life:
//!
//! ```text
//!            heartbeat (owner only, only while it still owns)
//!              ┌──┐
//!   created ──►│active├── nack ──► failed ───── not_before passed ──► next attempt may be created
//!              └──┘├──── release ► released ── not_before passed ──► next attempt may be created
//!                  ├──── withdraw► withdrawn ─ as if it had never been
//!                  └──── expires_at passed, file unchanged for its length ► next attempt: a takeover
//! ```
//!
//! Nobody ever writes into another's lease or deletes one while its task lives.

use jiff::{SignedDuration, Timestamp};

/// How an attempt that is over, yet did not finish the task, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// The handler failed. Counts towards `max_attempts`.
    Failed,
    /// Given back, by the worker or by an operator's unlock. Not held against the task.
    Released,
    /// The claimer found that it should not have claimed. Transparent: as if it had never been.
    Withdrawn,
}

/// Why a lease was released whose worker stopped.
pub(crate) const WORKER_STOPPED: &str = "its worker stopped";

/// A lease file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub worker_id: String,
    /// A nonce that proves ownership. Files of other programs have none.
    pub lease_id: Option<String>,
    /// Which attempt.
    pub attempt: u32,
    /// When it was claimed, on the store's clock.
    pub created_at: Timestamp,
    /// When it was last renewed, on the store's clock.
    pub heartbeat_at: Timestamp,
    /// Until when it holds, on the store's clock.
    pub expires_at: Timestamp,
    /// The holder's machine.
    pub host: Option<String>,
    /// The holder's process there.
    pub pid: Option<u32>,
    /// Present once the attempt is over.
    pub state: Option<LeaseState>,
    /// Why it is over.
    pub error: Option<String>,
    /// Not to be tried again before this time.
    pub not_before: Option<Timestamp>,
    /// It was claimed in order to be moved to another queue, not to be worked on: no attempt, however it
    /// ends.
    pub moving: bool,
    /// In a queue that is merged with another place: the node on which it was claimed.
    pub node: Option<String>,
    /// And how often its owner has written it. By this, not by any clock, copies of it are told apart.
    pub beat: u64,
}

/// No lease is believed to be longer than this: a file that claims more was edited or comes from a
/// clock gone mad.
pub(crate) const MAX_LEASE: SignedDuration = SignedDuration::from_hours(24);

impl Lease {
    /// What its owner writes next, but for what is to change.
    #[must_use]
    pub(crate) fn next(&self) -> Self {
        let beat = self.beat + u64::from(self.node.is_some());
        Self { beat, ..self.clone() }
    }

    /// For how long a renewal holds.
    pub fn length(&self) -> SignedDuration {
        self.expires_at.duration_since(self.heartbeat_at).clamp(SignedDuration::ZERO, MAX_LEASE)
    }
}
