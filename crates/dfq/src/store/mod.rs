//! What a substrate must be able to do, as three seams, each on top of the one before.
//!
//! [`Objects`] is raw: named contents, create-if-absent, a strict swap. [`Folders`] adds what folders can do beside
//! that, and [`Tree`] the tasks and leases in them: this is the seam between the protocol and a directory, a bucket
//! or a simulation. Memory and buckets implement `Objects`, and [`KeyTree`](keys::KeyTree) makes a `Tree` of that;
//! a directory implements all three. [`ObjectsExt`] is what every `Objects` can do by that alone. What can be said
//! of any `Objects` is a decorator beside them: [`retrying`], and `faulty` for tests.
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
mod tree;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;

pub use crate::layout::Swapped;
use crate::planted::{self, Planted};
pub use objects::{Objects, ObjectsExt, Version};
pub use tree::{Folders, Tree};

/// A removal that was decided on so long ago is not sent any more, nor sent again: by then, a purge may have
/// freed the name for another object (decision 19).
const REMOVED_WITHIN: Duration = Duration::from_secs(60);

/// Until when what is decided on at this monotonic time may be removed.
pub(crate) fn removed_until(decided: Duration) -> Duration {
    match planted::is(Planted::RemovalWithoutDeadline) {
        true => Duration::MAX,
        false => decided.saturating_add(REMOVED_WITHIN),
    }
}

/// The answer to a create-if-absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was not there, and now it is: we won.
    New,
    /// It was there already; what is in it says who won. It may be us, if an answer was lost.
    Exists,
}

/// What tells one state of a folder from another; see [`Folders::stamp`].
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

impl From<objects::Got> for Stored {
    fn from(got: objects::Got) -> Self {
        Self { bytes: got.bytes, modified: got.head.modified }
    }
}

impl Stored {
    /// Tells this content from any other that the file has had: by its bytes and by its time.
    pub(crate) fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.bytes.hash(&mut hasher);
        if !planted::is(Planted::WatchedByContent) {
            self.modified.as_nanosecond().hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// What becomes of a file's content, if anything; see [`ObjectsExt::update`].
pub type Change<'a> = dyn Fn(&Stored) -> Option<Vec<u8>> + Send + Sync + 'a;

/// What came of an update; see [`ObjectsExt::update`].
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

/// A part of everything that lies below a folder; see [`ObjectsExt::scan`].
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
    /// Bytes in it.
    pub size: u64,
    /// Tells its content from others that it has had, as far as the store can: times may be too coarse.
    pub version: Version,
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
    /// under way at once, what need not be asked is not, and [`ObjectsExt::scan`] lists.
    pub remote: bool,
    /// The longest sensible time between heartbeats, however long the lease.
    pub heartbeat_every: Duration,
    /// [`Folders::changed`] tells of what other processes do here. If not, it has to be polled for.
    pub notices_changes: bool,
}
