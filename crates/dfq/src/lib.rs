//! A work queue with no server: the queue **is** a directory.
//!
//! See [`Queue`] for the contract, [`open`] for the way in.

pub mod clock;
#[cfg(feature = "conformance")]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a suite of tests")]
pub mod conformance;
mod error;
mod format;
mod layout;
pub mod model;
pub mod queue;
pub mod store;
pub mod worker;

use std::path::Path;
use std::sync::Arc;

pub use clock::Env;
pub use error::{Error, ErrorKind, Result};
pub use model::{NewTask, Outcome, Payload, Receipt, Settings, TaskId, TaskKey};
pub use queue::{Delivery, Nack, OpenOptions, PollRequest, Pushed, Queue, Release, TreeQueue};
use store::fs::Filesystem;

/// Opens the queue in a directory.
pub async fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Arc<dyn Queue>> {
    let path = path.as_ref();
    let tree = if options.create.is_some() {
        Filesystem::create(path, options.env.clone())?
    } else {
        Filesystem::open(path, options.env.clone())?
    };
    Ok(Arc::new(TreeQueue::open(tree, options).await?))
}
