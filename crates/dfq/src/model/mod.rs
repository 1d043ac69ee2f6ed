//! The nouns: task, lease, record, receipt, settings. Pure values, no I/O, no bytes.
//!
//! Every other module speaks of these and nothing else, so that the same words mean the same thing
//! in the library, on the command line and on disk.

mod diagnosis;
mod id;
mod lease;
mod receipt;
mod record;
mod role;
mod settings;
mod task;

pub use diagnosis::{Diagnosis, Verdict};
pub use id::{Generation, MAX_ENCODED_ID_BYTES, TaskId, TaskKey};
pub(crate) use lease::WORKER_STOPPED;
pub use lease::{Lease, LeaseState};
pub use receipt::Receipt;
pub use record::{AttemptSummary, Outcome, Record};
pub use role::Role;
pub use settings::{
    Backoff, Durability, FEATURES, FORMAT_VERSION, Layout, Settings, Shared, Synced,
};
pub(crate) use settings::{SYNCED, check_lease};
pub(crate) use task::Arrival;
pub use task::{Carried, Journey, MAX_TASK_BYTES, NewTask, Payload, TaskMeta};
