//! What somebody may do with a queue, where the store decides that by a policy.

/// What somebody is to do with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Makes the queue if it is not there, and pushes.
    Producer,
    /// Claims tasks and finishes them.
    Worker,
    /// Looks, and changes nothing.
    Viewer,
    /// Merges a node's folder with the hub of a synced queue.
    Supervisor,
}
