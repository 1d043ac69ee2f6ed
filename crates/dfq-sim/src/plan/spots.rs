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
    /// Puts a file into the inbox of an index.
    InboxNew,
    /// Reads or lists in an inbox.
    InboxLook,
    /// Removes a file from an inbox.
    InboxGone,
    /// Reads a compacted shard.
    ShardLook,
    /// Swaps a compacted shard: gives a new version its name.
    ShardSwap,
    /// Swaps the columns of an index.
    ColumnsSwap,
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
        let is_inbox = below("inbox/");
        let is_shard = below("versions/shards/") || (below("shards/") && path.ends_with(".usv"));
        let in_bucket = matches!(call.verb, "swap" | "create");
        let is_version = match in_bucket {
            true => !below("versions/"),
            false => below("versions/") && creates,
        };
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
            (Self::InboxNew, is_inbox && creates),
            (Self::InboxLook, is_inbox && !call.changes),
            (Self::InboxGone, is_inbox && removes),
            (Self::ShardLook, is_shard && matches!(call.verb, "read" | "read_part" | "get")),
            (Self::ShardSwap, is_shard && is_version),
            (Self::ColumnsSwap, path.contains("datapackage.json") && is_version),
        ];
        kinds.into_iter().filter(|(_, is)| *is).map(|(spot, _)| spot).collect()
    }
}
