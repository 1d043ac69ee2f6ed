//! What is known of one claim.
//!
//! Invariant: it holds what its owner was told, and nothing that only others know.

use std::time::Duration;

use dfq::{Receipt, TaskKey};

use crate::history::{Claimed, QueueNo, Refused};
use crate::world::Pid;

/// A claim and all that became of it.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) queue: QueueNo,
    pub(super) pid: Pid,
    /// The poll.
    pub(super) asked: Duration,
    pub(super) told: Duration,
    pub(super) claimed: Claimed,
    /// When its lease appeared in the store.
    pub(super) lease_made: Option<Duration>,
    /// When its owner opened the queue.
    pub(super) opened: Duration,
    /// When its owner was told that it holds, and until when by its own clock.
    pub(super) holds: Vec<(Duration, Duration)>,
    /// When its owner began to let go of it, or was told that it is lost, or died.
    pub(super) let_go: Option<Duration>,
    pub(super) died: Option<Duration>,
    /// Verbs that ended it: when they were asked and answered, and how.
    pub(super) settled: Vec<Settled>,
    /// When a handler began, and ended.
    pub(super) handled: Vec<(Duration, Option<Duration>)>,
}

/// A verb that was to end a claim.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) verb: &'static str,
    pub(super) asked: Duration,
    pub(super) answer: Result<String, Refused>,
}

impl Claim {
    /// The life that it is of.
    pub(super) fn life(&self) -> (QueueNo, &TaskKey, &str) {
        (self.queue, &self.claimed.key, &self.claimed.push_id)
    }

    pub(super) fn attempt(&self) -> u32 {
        self.claimed.receipt.attempt()
    }

    /// Until when it held, by what its owner was told up to a time.
    pub(super) fn alive_at(&self, at: Duration) -> Duration {
        let told = self.holds.iter().filter(|(told, _)| *told <= at);
        told.map(|(_, until)| *until).max().unwrap_or(self.claimed.alive_until)
    }

    /// When its owner believed to have it: from when it was told, while each answer was followed by the next.
    pub(super) fn owned(&self) -> (Duration, Duration) {
        let mut end = self.claimed.alive_until;
        for (told, until) in &self.holds {
            if *told <= end {
                end = end.max(*until);
            }
        }
        let ends = [self.let_go, self.died].into_iter().flatten();
        (self.told, ends.fold(end, Duration::min))
    }

    pub(super) fn lease_id(&self) -> String {
        lease_id(&self.claimed.receipt)
    }

    pub(super) fn show(&self) -> String {
        let Claimed { receipt, n, .. } = &self.claimed;
        format!("{} (task {n}) handed to {} at {:?}", receipt, self.pid, self.told)
    }
}

pub(super) fn lease_id(receipt: &Receipt) -> String {
    receipt.to_string().rsplit('/').next().unwrap_or_default().to_owned()
}
