//! What a substrate must be able to do, as two seams.
//!
//! [`Objects`] is raw: named contents, create-if-absent, a strict swap. [`Tree`] is the task seam, between the
//! protocol and a directory, a bucket or a simulation. Memory and buckets implement `Objects`, and
//! [`KeyTree`](keys::KeyTree) makes a `Tree` of that; a directory implements both. What can be said of any `Objects`
//! is a decorator beside them: [`retrying`], and `faulty` for tests.
//!
//! Invariant: a store knows no policy. It does not know what a lease means or when a task is done;
//! it creates if absent, replaces, reads, lists and removes, each in its own best native way, and
//! says truthfully which of two racing creates won. Paths are relative to the queue's root and come
//! from `layout` alone.

#[cfg(feature = "bucket")]
pub mod bucket;
#[cfg(any(test, feature = "conformance"))]
pub mod faulty;
pub mod fs;
pub mod keys;
pub mod memory;
pub mod objects;
pub mod retrying;
mod rubbish;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::error::{Error, ErrorKind, Result};
use crate::model::Generation;

pub use crate::layout::Swapped;
pub use objects::Objects;

/// A removal that was decided on so long ago is not sent any more, nor sent again: by then, a purge may have
/// freed the name for another object (decision 19).
pub(crate) const REMOVED_WITHIN: Duration = Duration::from_secs(60);

/// The answer to a create-if-absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was not there, and now it is: we won.
    New,
    /// It was there already; what is in it says who won. It may be us, if an answer was lost.
    Exists,
}

/// What tells one state of a folder from another; see [`Tree::stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// There is no such folder.
    Missing,
    /// A name was last added to it or removed from it at this time.
    At(Timestamp),
}

/// A file's content, and when the store says it was last written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The content.
    pub bytes: Vec<u8>,
    /// The time of the last write, on the store's clock.
    pub modified: Timestamp,
}

impl Stored {
    /// Tells this content from any other that the file has had: by its bytes and by its time.
    pub(crate) fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.bytes, self.modified.as_nanosecond()).hash(&mut hasher);
        hasher.finish()
    }
}

/// A part of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The part.
    pub bytes: Vec<u8>,
    /// How long the whole file is.
    pub size: u64,
}

/// What becomes of a file's content, if anything; see [`Tree::update`].
pub type Change<'a> = dyn Fn(&Stored) -> Option<Vec<u8>> + Send + Sync + 'a;

/// What came of an update; see [`Tree::update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Updated {
    /// There is no such file.
    Missing,
    /// It was left as it is.
    Left(Stored),
    /// It has this content now.
    Written(Vec<u8>),
}

/// What a name in a listing stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder, or in a bucket a common prefix.
    Folder,
    /// A file or object.
    File,
    /// Something we never make: a symbolic link, a device, a name that is no text.
    Other,
}

/// One name in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name within its folder.
    pub name: String,
    /// What it stands for.
    pub kind: EntryKind,
}

/// A part of a listing, in whatever order the store likes.
#[derive(Debug)]
pub struct Page<C> {
    /// The names.
    pub entries: Vec<Entry>,
    /// Where to go on, if there may be more.
    pub next: Option<C>,
}

/// A part of everything that lies below a folder; see [`Tree::scan`].
#[derive(Debug, Default)]
pub struct Scan {
    /// What lies below the folder, in the order of the bytes of its path.
    pub files: Vec<Scanned>,
    /// There is nothing after them.
    pub end: bool,
}

/// A file that a scan has met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The path below the folder.
    pub path: String,
    /// When it was last written.
    pub modified: Timestamp,
    /// Tells its content from others that it has had, as far as the store can: times may be too coarse.
    pub version: u64,
}

/// A task as the store has it, and whether it is still to be done; see [`Tree::read_task`].
#[derive(Clone, Debug)]
pub struct StoredTask {
    /// The task, if it is still there.
    pub task: Option<Stored>,
    /// The attempt after ours exists, as far as that was asked for.
    pub superseded: bool,
    /// One of the terminal records exists.
    pub finished: bool,
}

/// What an owner must know before it finishes; see [`Tree::probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The task is still there.
    pub task: bool,
    /// The attempt after ours exists.
    pub superseded: bool,
}

/// What a store is and can do.
#[derive(Clone, Debug)]
pub struct Properties {
    /// The provider's name, for messages.
    pub provider: &'static str,
    /// Where the queue is, for messages.
    pub address: String,
    /// Calls block the thread instead of waiting asynchronously.
    pub blocking: bool,
    /// Every call is a request, which takes a round trip and may cost money: many are worth having
    /// under way at once, what need not be asked is not, and [`Tree::scan`] lists.
    pub remote: bool,
    /// The longest sensible time between heartbeats, however long the lease.
    pub heartbeat_every: Duration,
    /// [`Tree::changed`] tells of what other processes do here. If not, it has to be polled for.
    pub notices_changes: bool,
}

/// A queue's storage. See the module's documentation for what an implementation must not do.
#[async_trait]
pub trait Tree: Send + Sync + 'static {
    /// A task's folder, held from claim to ack: whatever happens to its name meanwhile, it stays the
    /// same folder.
    type Slot: Send + Sync + 'static;
    /// A lease's content, ready to be put into any number of task folders.
    type PreparedLease: Send + Sync + 'static;
    /// Where a listing goes on.
    type Cursor: Send + 'static;

    /// What this store is and can do.
    fn properties(&self) -> &Properties;
    /// Two writes closer together than this may carry the same modification time.
    fn time_resolution(&self) -> Duration;

    /// Reads a file; `None` if there is none.
    async fn read(&self, path: &str) -> Result<Option<Stored>>;
    /// Reads a part of a file, of about this length; `None` if there is no such file.
    async fn read_part(&self, path: &str, from: u64, length: usize) -> Result<Option<Part>> {
        let Some(stored) = self.read(path).await? else { return Ok(None) };
        let (from, size) = (usize::try_from(from).unwrap_or(usize::MAX), stored.bytes.len());
        let from = from.min(size);
        let part = &stored.bytes[from..from.saturating_add(length).min(size)];
        Ok(Some(Part { bytes: part.to_vec(), size: size as u64 }))
    }
    /// Creates a file with its whole content, if there is none, and makes it durable.
    async fn create(&self, path: &str, bytes: &[u8]) -> Result<Created>;
    /// Makes names that exist durable, whoever made them, where that is not so anyway. What they stand for was
    /// durable before it got its name.
    async fn secure(&self, _paths: &[String], _durable: bool) -> Result<()> {
        Ok(())
    }
    /// Writes a file whole, whether or not there is one. Readers see the old content or the new.
    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()>;
    /// Removes a file; that there is none is no error.
    async fn remove(&self, path: &str) -> Result<()>;
    /// Lists a folder in parts of about `limit` names; a folder that is not there is empty.
    async fn list(
        &self,
        dir: &str,
        from: Option<Self::Cursor>,
        limit: usize,
    ) -> Result<Page<Self::Cursor>>;
    /// Lists what lies below a folder at any depth, about `limit` files after the path `after` in one
    /// request. Only where [`Properties::remote`] says so.
    async fn scan(&self, dir: &str, _after: Option<&str>, _limit: usize) -> Result<Scan> {
        let provider = self.properties().provider;
        let message = format!("{provider} cannot list '{dir}' in one go");
        Err(Error::new(ErrorKind::Unsupported, message))
    }
    /// Writes a file that is still as it was read, and if it is not reads it again. `change` says what
    /// becomes of it, with a nonce in it so that nobody takes it for anything else, or that it is left
    /// alone. A store that cannot keep the condition answers `Unsupported` and writes nothing. Only where
    /// [`Properties::remote`] says so.
    async fn update(&self, path: &str, _change: &Change<'_>) -> Result<Updated> {
        let provider = self.properties().provider;
        let message = format!("{provider} cannot update '{path}'");
        Err(Error::new(ErrorKind::Unsupported, message))
    }
    /// Removes a file that the caller has just written, with a nonce in it, unless it has become something else
    /// by then; whether it has gone. Nothing is sent after the monotonic time `until`. Only where
    /// [`Properties::remote`] says so.
    async fn remove_if_unchanged(
        &self,
        path: &str,
        _written: &[u8],
        _until: Duration,
    ) -> Result<bool> {
        let provider = self.properties().provider;
        let message = format!("{provider} cannot remove '{path}' on a condition");
        Err(Error::new(ErrorKind::Unsupported, message))
    }
    /// The highest generation for which a terminal record exists; `paths` names the two places where
    /// the record of a generation can be. Records of an id exist without gaps from the first on.
    async fn last_life(
        &self,
        paths: &(dyn for<'a> Fn(Generation) -> [String; 2] + Sync),
    ) -> Result<Option<Generation>>;

    /// The store's own time: the modification time of something just written.
    async fn now(&self) -> Result<Timestamp>;
    /// When a name was last added to or removed from the folder, provided that any such change after `now` will
    /// change the answer; `None` if that cannot be told.
    async fn stamp(&self, dir: &str, now: Timestamp) -> Result<Option<Stamp>>;
    /// Removes a folder that is empty and of no further use, where folders are things of their own.
    async fn prune(&self, _dir: &str) -> Result<()> {
        Ok(())
    }
    /// Waits until something may have changed, if [`Properties::notices_changes`]; else for ever.
    async fn changed(&self);
    /// Tells those who wait in [`Tree::changed`] to look again.
    async fn ring(&self);

    /// Publishes whole tasks under their folders' paths, each if absent, sharing the cost of making
    /// them durable.
    async fn publish(&self, tasks: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>>;
    /// Moves a whole task from one folder path to another, if that is absent. If it is not, or if
    /// there is nothing to move, nothing changes. Whatever is there then is durable.
    async fn promote(&self, from: &str, to: &str, durable: bool) -> Result<Created>;
    /// Opens a task's folder; `None` if there is none.
    async fn open(&self, dir: &str) -> Result<Option<Self::Slot>>;
    /// Prepares a lease.
    async fn prepare_lease(&self, bytes: &[u8]) -> Result<Self::PreparedLease>;
    /// Creates the lease of an attempt, if absent. A folder that is gone answers `Exists`.
    async fn create_lease(
        &self,
        slot: &Self::Slot,
        attempt: u32,
        prepared: &Self::PreparedLease,
    ) -> Result<Created>;
    /// Makes the lease of an attempt as young as if it had been written now, where that needs no room.
    async fn touch_lease(&self, _slot: &Self::Slot, _attempt: u32) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "a lease here is renewed by writing it"))
    }
    /// Makes the names of a task's leases durable, where that is not so anyway.
    async fn secure_leases(&self, _slot: &Self::Slot) -> Result<()> {
        Ok(())
    }
    /// Writes the lease of an attempt whole. A folder that is gone is `NotFound`.
    async fn replace_lease(&self, slot: &Self::Slot, attempt: u32, bytes: &[u8]) -> Result<()>;
    /// The numbers of all leases in a task's folder, ascending.
    async fn leases(&self, slot: &Self::Slot) -> Result<Vec<u32>>;
    /// Reads the lease of an attempt.
    async fn read_lease(&self, slot: &Self::Slot, attempt: u32) -> Result<Option<Stored>>;
    /// In one round trip: the task, whether the attempt after `after` exists, and whether one of
    /// `records` does.
    async fn read_task(
        &self,
        slot: &Self::Slot,
        after: Option<u32>,
        records: &[String; 2],
    ) -> Result<StoredTask>;
    /// The same without reading: whether the task, and the attempt after `attempt`, exist.
    async fn probe(&self, slot: &Self::Slot, attempt: u32) -> Result<Probe>;
    /// Creates terminal records, each if absent, sharing the cost of making them durable. They are
    /// durable when this returns, also those that existed.
    async fn commit(&self, records: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>>;
    /// Removes what is left of a task: if it has `finished`, the task file first; once that is gone
    /// its leases (`leases` names those that are known, others may exist), then the folder. Without a
    /// record only a folder that has lost its task may be cleaned, and a task file that appears there
    /// meanwhile stays. Files that are not ours stay.
    async fn clean(&self, slot: &Self::Slot, finished: bool, leases: &[u32]) -> Result<()>;
    /// The same for tasks that have finished, each with the leases that it has; perhaps later, together
    /// with others, but then by [`Tree::flush`] at the latest. Answers for each.
    async fn discard(&self, finished: Vec<(&Self::Slot, Vec<u32>)>) -> Vec<Result<()>> {
        let mut answers = Vec::with_capacity(finished.len());
        for (slot, leases) in finished {
            answers.push(self.clean(slot, true, &leases).await);
        }
        answers
    }
    /// Does what was put off.
    async fn flush(&self) -> Result<()> {
        Ok(())
    }
}
