//! Synced queues: a folder on each machine, in which its workers work, and a bucket (or another folder) in the middle,
//! the *hub*. A supervisor on each machine merges its folder with the hub, so that all agree in the end, also after
//! days offline.
//!
//! Invariant: workers never wait for the network, and what is merged is decided by [`merge`](crate::queue::merge)
//! alone. What is here is when that is done, and what people are told of it.

mod prepare;
mod status;
mod supervisor;

pub use crate::queue::merge::{Conflict, LeftToOthers, Passed, TaskHere};
pub use prepare::{NewNode, adopt, leave};
pub use status::{
    LastPass, Status, conflicts, count_left_to_others, drop_conflict, status, task_here,
};
pub use supervisor::{Event, How, Supervisor, check_every};
