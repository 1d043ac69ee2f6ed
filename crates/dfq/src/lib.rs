//! A crash-safe work queue with no server: the queue **is** a directory or a bucket.
//!
//! Any number of processes may push and work at once. Each task is a readable file, a claim is one
//! atomic create, the leases of crashed workers are taken over, and every task ends in `completed/` or
//! in `failed/`.
//!
//! [`open`] is the way in, [`Queue`] the contract, [`worker::Worker`] does the polling, the heartbeats
//! and the stopping. What lies on disk is described in `FORMAT.md`.
//!
//! Queues in buckets and in SQS are Cargo features: `s3`, `gcs`, `azure`, `sqs`. None is on by default.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use dfq::{NewTask, Nack, OpenOptions, PollRequest, Pushed};
//!
//! # let dir = std::env::temp_dir().join(format!("dfq-lib-doc-{}", std::process::id()));
//! let queue = dfq::open(&dir, OpenOptions::create()).await?;
//! let page = || NewTask::from_json(r#"{"id": "page-1", "url": "https://example.com/"}"#);
//! assert!(matches!(queue.push(vec![page()?]).await.remove(0)?, Pushed::Created(_)));
//! assert!(matches!(queue.push(vec![page()?]).await.remove(0)?, Pushed::Pending(_)));
//!
//! let task = queue.poll(PollRequest::new(1)).await?.deliveries.remove(0);
//! assert_eq!(task.payload.string_member("url").as_deref(), Some("https://example.com/"));
//! match "200 OK" {
//!     "200 OK" => queue.ack(vec![task.receipt]).await.remove(0)?,
//!     error => {
//!         let nack = Nack { receipt: task.receipt, error: error.to_owned(), delay: None };
//!         queue.nack(vec![nack]).await.remove(0)?;
//!     }
//! }
//! assert!(matches!(queue.push(vec![page()?]).await.remove(0)?, Pushed::Finished(..)));
//! # std::fs::remove_dir_all(dir).unwrap();
//! # Ok::<(), dfq::Error>(()) }).unwrap();
//! ```

#![cfg_attr(
    not(all(
        feature = "s3",
        feature = "gcs",
        feature = "azure",
        feature = "sqs",
        feature = "doctor"
    )),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "what a left-out provider alone uses"
    )
)]

pub mod address;
pub mod clock;
pub mod config;
#[cfg(feature = "conformance")]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a suite of tests")]
#[allow(clippy::disallowed_methods, reason = "what is tested runs in an environment of its own")]
pub mod conformance;
#[cfg(feature = "doctor")]
pub mod doctor;
mod error;
mod format;
pub mod index;
mod layout;
pub mod meter;
pub mod model;
pub mod options;
#[cfg(not(feature = "planted"))]
mod planted;
#[cfg(feature = "planted")]
pub mod planted;
mod provider;
pub mod queue;
#[cfg(feature = "sqs")]
pub mod sqs;
pub mod store;
pub mod synced;
#[cfg(any(feature = "bucket", feature = "aws"))]
mod tls;
pub mod transfer;
pub mod worker;

use std::sync::Arc;

pub use address::Address;
pub use clock::Env;
pub use error::{Error, ErrorKind, Result};
pub use model::{NewTask, Outcome, Payload, Receipt, Settings, TaskId, TaskKey};
pub use options::OpenOptions;
pub use queue::{Delivery, Nack, PollRequest, Pushed, Queue, Release, TreeQueue};

/// Opens the queue at an address, which is made first if the options say so.
///
/// The address is a path, a text (`./jobs`, `s3://bucket/prefix`; without a scheme it is a path) or an
/// [`Address`]. Names from `dfq.toml` are [resolved](config::Config::resolve) first.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use dfq::{ErrorKind, OpenOptions, Settings};
/// use std::time::Duration;
///
/// # let dir = std::env::temp_dir().join(format!("dfq-open-doc-{}", std::process::id()));
/// let missing = dfq::open(&dir, OpenOptions::existing()).await.err().unwrap();
/// assert_eq!(missing.kind(), ErrorKind::NotFound);
///
/// let settings = Settings { lease: Duration::from_secs(60), ..Settings::default() };
/// let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
/// let queue = dfq::open(&dir, options).await?;
/// assert_eq!(queue.settings().lease, Duration::from_secs(60));
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), dfq::Error>(()) }).unwrap();
/// ```
pub async fn open<A>(address: A, options: OpenOptions) -> Result<Arc<dyn Queue>>
where
    A: TryInto<Address>,
    Error: From<A::Error>,
{
    provider::open(&address.try_into()?, options).await
}

/// The queues right below an address, such as those of a campaign: their names and addresses.
pub async fn queues_below(
    address: &Address,
    options: &OpenOptions,
) -> Result<Vec<(String, Address)>> {
    provider::queues_below(address, options).await
}
