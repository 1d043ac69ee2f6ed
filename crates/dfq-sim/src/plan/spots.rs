//! Kinds of calls at which something can go wrong.
//!
//! Invariant: whether a call is of a kind is told by its verb and its name alone, on a disk and in a bucket alike.

use crate::seam::Call;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spot {
    /// Creates a lease.
    Claim,
    /// Writes a lease that is there.
    Beat,
    /// Creates or writes a record.
    Record,
    /// Puts a task where it can be claimed.
    Publish,
    /// Puts a task where it waits for its time.
    Schedule,
    /// Removes a task.
    TaskGone,
    /// Removes a lease.
    LeaseGone,
    /// Removes a record.
    RecordGone,
    /// Writes a file of floors.
    Floor,
    /// Makes something durable.
    Sync,
    /// Looks at a task or a lease.
    Look,
    /// Looks for a record.
    RecordLook,
}

/// At which of them, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before it.
    Before(Spot, u32),
    /// Before the call after it.
    After(Spot, u32),
}

impl When {
    /// Which kind, and which of them.
    pub fn spot(self) -> (Spot, u32) {
        match self {
            Self::Before(spot, nth) | Self::After(spot, nth) => (spot, nth),
        }
    }
}

impl Spot {
    /// All kinds that a call is of.
    pub fn all_of(call: &Call) -> Vec<Self> {
        let path = call.path.rsplit(" -> ").next().unwrap_or_default();
        let below = |folder: &str| path.starts_with(folder);
        let is_lease = below("pending/") && path.contains("/lease");
        let is_record = below("completed/") || below("failed/");
        let creates = matches!(call.verb, "link" | "link_file" | "rename_new" | "create");
        let replaces = matches!(call.verb, "rename" | "put" | "swap");
        let removes = matches!(call.verb, "unlink" | "delete");
        let kinds = [
            (Self::Claim, is_lease && creates),
            (Self::Beat, is_lease && replaces),
            (Self::Record, is_record && (creates || replaces)),
            (Self::Publish, below("pending/") && !is_lease && (creates || replaces)),
            (Self::Schedule, below("scheduled/") && creates),
            (Self::TaskGone, removes && path.contains("/task.json")),
            (Self::LeaseGone, removes && path.contains("/lease")),
            (Self::RecordGone, removes && is_record),
            (Self::Floor, below("floors/") && (creates || replaces)),
            (Self::Sync, matches!(call.verb, "sync_file" | "sync_dir")),
            (Self::Look, below("pending/") && !call.changes && path.ends_with(".json")),
            (Self::RecordLook, is_record && !call.changes),
        ];
        kinds.into_iter().filter(|(_, is)| *is).map(|(spot, _)| spot).collect()
    }
}
