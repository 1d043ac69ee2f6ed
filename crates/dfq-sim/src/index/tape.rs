//! What was asked of an index and what it answered, and which rows left a process.
//!
//! Invariant: this is all that a user could know, at the true time; and nothing in it is taken from the library's own
//! reading of its files. A process does one thing at a time, and no key twice in one call.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dfq::index::Entry;
use dfq::store::objects::{Got, Head, List, Listing, Objects, Swap, Version};
use dfq::store::{Created, Properties, Swapped};
use dfq::{ErrorKind, Result};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::world::{Pid, World};

/// A record that was put, or a key that was deleted.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) pid: Pid,
    /// Which handle: what one process has opened is one, until it opens it anew.
    pub(super) handle: u64,
    pub(super) key: &'static str,
    pub(super) own: Option<Timestamp>,
    pub(super) deleted: bool,
    pub(super) fields: Map<String, Value>,
    pub(super) asked: Duration,
    /// When it was answered, and whether it was done.
    pub(super) told: Option<(Duration, bool)>,
}

/// A lookup, or a scan.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) handle: u64,
    /// `None` for all.
    pub(super) key: Option<&'static str>,
    pub(super) asked: Duration,
    pub(super) told: Duration,
    pub(super) found: Vec<Entry>,
}

/// A file that was sent to the inbox.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) pid: Pid,
    pub(super) at: Duration,
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<Read>,
    pub(super) sent: Vec<Sent>,
    /// Answers that say that something is damaged.
    pub(super) damaged: Vec<String>,
    /// Files in the inbox that are not ours.
    pub(super) litter: Vec<String>,
    pub(super) compactions: u64,
}

/// What was said.
#[derive(Debug, Default)]
pub(super) struct Tape(Mutex<Inner>);

impl Tape {
    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an answer that was an error.
    pub(super) fn failed(&self, error: &dfq::Error) {
        if error.kind() == ErrorKind::Damaged {
            self.inner().damaged.push(error.to_string());
        }
    }
}

/// The store as one process uses it, with what it sends to the inbox noted.
pub(super) struct Overheard {
    pub(super) inner: Arc<dyn Objects>,
    pub(super) tape: Arc<Tape>,
    pub(super) world: Arc<World>,
    pub(super) pid: Pid,
}

impl Overheard {
    fn note(&self, name: &str, bytes: &[u8]) {
        if name.starts_with("inbox/") {
            let (at, name, bytes) = (self.world.now(), name.to_owned(), bytes.to_vec());
            self.tape.inner().sent.push(Sent { pid: self.pid, at, name, bytes });
        }
    }
}

#[async_trait]
impl Objects for Overheard {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.inner.now().await
    }

    fn told_time(&self) -> Option<(Timestamp, Duration)> {
        self.inner.told_time()
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        self.inner.get(name, range).await
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        self.inner.head(name).await
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        self.note(name, bytes);
        self.inner.create(name, bytes).await
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.note(name, bytes);
        self.inner.put(name, bytes).await
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        self.inner.remove(names, until).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        self.inner.rename(from, to).await
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        self.inner.list(what)
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        self.inner.load(name).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        self.inner.load_part(name, range).await
    }

    async fn make_durable(&self, name: &Swapped) -> Result<()> {
        self.inner.make_durable(name).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        self.inner.swap(name, expected, bytes).await
    }
}
