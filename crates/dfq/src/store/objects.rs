//! The raw seam: named contents, as a bucket has them, and as a directory or memory can have them too.
//!
//! Invariants that every implementation keeps:
//! - *A name appears with its whole content or not at all*, and so does a new content under an old name.
//! - *[`create`](Objects::create) has one winner*, and so has every version that is
//!   [swapped](Objects::swap).
//! - *Swap is strict.* A store that cannot keep the condition answers
//!   [`Unsupported`](crate::ErrorKind::Unsupported). It never writes unconditionally instead. Callers who prefer an
//!   unconditional write choose that themselves, in their own code.
//! - *An error means that nothing is known.* The call may have been carried out, or may be yet.
//! - *What was written is durable* when the call returns, as far as anything here is.
//!
//! An implementation makes each call once. [`Retrying`](super::retrying::Retrying) makes it again where
//! that may help. [`ObjectsExt`] is what any implementation can do besides. The task seam [`Tree`](super::Tree)
//! stands on this one for memory and buckets ([`KeyTree`](super::keys::KeyTree)). A directory has a `Tree` of its
//! own, because it can do better than keys and values.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Change, Created, Properties, Scan, Scanned, Stored, Updated};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Swapped};

/// Which of its contents a name has.
///
/// The text means something to its store only. Stores may answer the same version for the same bytes (an ETag is
/// a hash on most), so contents that are swapped must carry a nonce.
#[derive(Clone, Debug)]
pub struct Version {
    tag: String,
    generation: Option<String>,
    seen: Duration,
}

impl Version {
    /// The version that a store calls by this text; empty if the store does not tell versions apart.
    pub fn new(tag: impl Into<String>) -> Self {
        Self { tag: tag.into(), generation: None, seen: Duration::ZERO }
    }

    /// With a second text, where a store needs both (Google's generation beside the ETag).
    #[must_use]
    pub fn with_generation(mut self, generation: Option<String>) -> Self {
        self.generation = generation;
        self
    }

    /// With the monotonic time from before it was read. It is not part of what the version is.
    #[must_use]
    pub fn seen_at(mut self, seen: Duration) -> Self {
        self.seen = seen;
        self
    }

    /// What the store calls it.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The second text, if there is one.
    pub fn generation(&self) -> Option<&str> {
        self.generation.as_deref()
    }

    /// The monotonic time of this process from before it was read.
    pub fn seen(&self) -> Duration {
        self.seen
    }

    /// A short form, to tell it from others that are at hand.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        (&self.tag, &self.generation) == (&other.tag, &other.generation)
    }
}

impl Eq for Version {}

impl Hash for Version {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.tag, &self.generation).hash(state);
    }
}

/// What is known of a content without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes in the whole content.
    pub size: u64,
    /// The time of the last write, on the store's clock.
    pub modified: Timestamp,
    /// Which content it is.
    pub version: Version,
}

/// A content that was read, or the part of it that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What is known of the whole.
    pub head: Head,
}

/// The answer to a swap that was carried out or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The name has the new content. This is its version.
    Written(Version),
    /// The name does not have the expected version any more, and not these bytes: read it again. If an answer was
    /// lost on the way, they may have been written and superseded since. A caller to whom that matters looks for
    /// its nonce in what is there.
    Lost,
}

/// What is to be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum List {
    /// Every name that begins with the prefix, at any depth.
    Below {
        /// How the names begin; it may end anywhere.
        prefix: String,
        /// Only names after this one, which need not exist. It is a whole name, with the prefix.
        after: Option<String>,
    },
    /// What lies in one folder: its names, and the folders below it.
    Folder {
        /// The folder's path with a slash at its end; empty for the root.
        folder: String,
    },
}

impl List {
    /// Every name that begins with `prefix`.
    pub fn below(prefix: impl Into<String>) -> Self {
        Self::Below { prefix: prefix.into(), after: None }
    }

    /// What lies in a folder; its path ends in a slash, or is empty for the root.
    pub fn folder(folder: impl Into<String>) -> Self {
        Self::Folder { folder: folder.into() }
    }

    /// How every name in the listing begins.
    pub fn prefix(&self) -> &str {
        match self {
            Self::Below { prefix, .. } => prefix,
            Self::Folder { folder } => folder,
        }
    }
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The whole name.
    pub name: String,
    /// What is known of its content.
    pub head: Head,
}

/// Some of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The names, in the order of their bytes.
    pub files: Vec<Listed>,
    /// The folders, as whole paths with a slash at the end. Only [`List::Folder`] has any.
    pub folders: Vec<String>,
    /// Nothing comes after this part.
    pub end: bool,
}

/// A listing that keeps its place. In a directory, to begin again after a name costs the whole folder.
#[async_trait]
pub trait Listing: Send {
    /// About `limit` names more; perhaps none although more will come. After an error the same part can be
    /// asked for again.
    async fn next(&mut self, limit: usize) -> Result<Part>;

    /// After an error: leaves out the file or folder that could not be looked at, and says which; a folder ends in a
    /// slash. Nothing, if it was not one of these that failed.
    fn skip(&mut self) -> Option<String> {
        None
    }
}

/// Named contents. See the module's documentation for what an implementation must keep true.
///
/// Names are relative to the queue's root, come from `layout` alone, and have no slash at either end.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// What this store is and can do.
    fn properties(&self) -> &Properties;

    /// The store's own time: the modification time of something just written.
    async fn now(&self) -> Result<Timestamp>;

    /// What the store's clock showed when it last answered, and the monotonic time of this process then, if its
    /// answers tell that. Only for showing: it costs nothing and is not exact.
    fn told_time(&self) -> Option<(Timestamp, Duration)> {
        None
    }

    /// Reads a content or the part of it in `range`, as far as there is one; `None` if there is no such name.
    /// What is larger than 64 MiB (tasks and records) or 1 MiB (all else) is read in parts only, and is otherwise
    /// [`Damaged`](crate::ErrorKind::Damaged).
    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>>;

    /// Describes a content; `None` if there is no such name.
    async fn head(&self, name: &str) -> Result<Option<Head>>;

    /// Creates a name with its whole content, if there is none. `Exists` may mean that an earlier call whose
    /// answer was lost has created it; what is there will tell.
    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created>;

    /// Writes a content whole, whether or not there is one.
    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Removes names; those that are missing are fine. A store whose removal may arrive late begins none after
    /// the monotonic time `until`, because by then the name may have another use (decision 19).
    async fn remove(&self, names: &[String], until: Duration) -> Result<()>;

    /// Moves whatever a name holds by then to a name that nobody else uses, in one step; whether there was anything to
    /// move. Only where a store can do that: a bucket cannot, and answers
    /// [`Unsupported`](crate::ErrorKind::Unsupported).
    async fn rename(&self, from: &str, _to: &str) -> Result<bool> {
        let provider = self.properties().provider;
        let message = format!("{provider} cannot give '{from}' another name");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Lists names in the order of their bytes. Whether names that are swapped appear is up to the store: callers of
    /// swap know their names.
    fn list(&self, what: List) -> Box<dyn Listing>;

    /// Reads a content that is swapped.
    async fn load(&self, name: &Swapped) -> Result<Option<Got>>;

    /// Reads a part of a content that is swapped, as far as there is one. Two parts belong together only if they have
    /// the same version, which is for the caller to see to.
    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>>;

    /// Makes durable what could be read of a content that is swapped, where its writer may have died before it came to
    /// that. For callers who let go of something because of what they have read.
    async fn make_durable(&self, _name: &Swapped) -> Result<()> {
        Ok(())
    }

    /// Writes a content if the name still has the version `expected`, or, if that is `None`, if there is no
    /// such name. One caller wins each version.
    ///
    /// The bytes must be unlike any other that the name ever had; a nonce does that. By them the caller's own
    /// write is recognised when its answer was lost, and no writer mistakes a later content for an earlier one.
    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap>;
}

#[async_trait]
impl<O: Objects + ?Sized> Objects for Arc<O> {
    fn properties(&self) -> &Properties {
        (**self).properties()
    }

    async fn now(&self) -> Result<Timestamp> {
        (**self).now().await
    }

    fn told_time(&self) -> Option<(Timestamp, Duration)> {
        (**self).told_time()
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        (**self).get(name, range).await
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        (**self).head(name).await
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        (**self).create(name, bytes).await
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        (**self).put(name, bytes).await
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        (**self).remove(names, until).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        (**self).rename(from, to).await
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        (**self).list(what)
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        (**self).load(name).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        (**self).load_part(name, range).await
    }

    async fn make_durable(&self, name: &Swapped) -> Result<()> {
        (**self).make_durable(name).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        (**self).swap(name, expected, bytes).await
    }
}

/// How often a content that others write too is read again before it is written.
const ROUNDS: u32 = 12;

/// What every [`Objects`] can do by its own methods.
#[async_trait]
pub trait ObjectsExt: Objects {
    /// Reads a content; `None` if the name is missing.
    async fn read(&self, name: &str) -> Result<Option<Stored>> {
        Ok(self.get(name, None).await?.map(Stored::from))
    }

    /// Lists about `limit` names below a folder, at any depth, after the path `after`.
    async fn scan(&self, dir: &str, after: Option<&str>, limit: usize) -> Result<Scan> {
        let prefix = format!("{dir}/");
        let after = after.map(|after| format!("{prefix}{after}"));
        let part = self.list(List::Below { prefix: prefix.clone(), after }).next(limit).await?;
        let files = part.files.into_iter().filter_map(|file| {
            let path = file.name.strip_prefix(&prefix)?.to_owned();
            let Head { size, modified, version } = file.head;
            Some(Scanned { path, modified, size, version })
        });
        Ok(Scan { files: files.collect(), end: part.end })
    }

    /// Writes a terminal record that is still as it was read, and if it is not reads it again. `change` says what
    /// becomes of it, with a nonce in it so that nobody takes it for anything else, or that it is left
    /// alone. A store that cannot keep the condition answers `Unsupported` and writes nothing. Only where
    /// [`Properties::remote`] says so: a directory keeps what is swapped elsewhere.
    async fn update(&self, path: &str, change: &Change<'_>) -> Result<Updated> {
        let Properties { provider, remote, .. } = self.properties();
        if !remote {
            let message = format!("{provider} cannot update '{path}'");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let name = layout::record_that_a_purge_swaps(path);
        for _ in 0..ROUNDS {
            let Some(got) = self.load(&name).await? else { return Ok(Updated::Missing) };
            let version = got.head.version.clone();
            let seen = Stored::from(got);
            let Some(bytes) = change(&seen) else { return Ok(Updated::Left(seen)) };
            match self.swap(&name, Some(&version), &bytes).await? {
                Swap::Written(_) => return Ok(Updated::Written(bytes)),
                Swap::Lost => {}
            }
        }
        let address = &self.properties().address;
        let message = format!("'{path}' in {address} does not stay as it is");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

impl<O: Objects + ?Sized> ObjectsExt for O {}
