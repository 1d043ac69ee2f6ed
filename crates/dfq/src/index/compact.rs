//! Compaction: the inbox is merged into the shards, by any number of compilers at once.
//!
//! ```text
//! choose a shard   by a random page of the inbox, so that compilers do not meet
//! lock it          advisory
//! list, read       the inbox of the shard, then the shard and its version
//! swap             the merged shard; lost: somebody else has merged, give up
//! remove           exactly the files that were merged
//! release          the lock
//! ```
//!
//! Invariant: a file of the inbox is removed only after a shard that holds all its rows, or later ones, is durable. So a
//! crash anywhere loses nothing, and the next compiler comes to the same bytes.
//!
//! The merged shard has no nonce in it, though [`swap`](crate::store::Objects::swap) asks for one. Decision 33 says why
//! that is safe here. It takes two things that are kept below: a shard is not swapped for its own bytes, and not
//! more than an hour after it was read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use super::blocks::{Blocks, Pin};
use super::inbox::{InboxFile, PAGE};
use super::lock::Lock;
use super::manifest::ShardCounts;
use super::merge::{Merged, Merger, Rows, merge_theirs};
use super::schema::{Manner, Schema};
use super::shard::Whole;
use super::usv::RowEnd;
use super::{Core, Index};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Shard};
use crate::planted::{self, Planted};
use crate::store::objects::{List, Swap, Version};

mod choose;

pub use choose::{CompactOptions, CompactReport, Progress};

/// How long deletions are kept.
const DELETIONS_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// What was put longer ago is not merged any more: a deletion of it may be forgotten soon.
const MERGED_WITHIN: Duration = Duration::from_secs(45 * 24 * 3600);

/// How long what was read of a shard may be relied on.
const RELIED_ON: Duration = Duration::from_secs(3600);

/// What is merged in one pass over a shard: bounds the memory.
const MOST_FILES: usize = 10_000;
const MOST_BYTES: u64 = 64 << 20;

/// How much of a shard is read at a time.
const PART: u64 = 8 << 20;

/// Files put aside at a time.
const ASIDE_AT_ONCE: usize = 16;

/// What came of one shard.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The inbox had nothing for it.
    Nothing,
    /// Somebody else is at it.
    Locked,
    /// Somebody else was faster.
    Lost,
    /// It was merged.
    Done(Done),
}

/// What was done for one shard.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) rows: u64,
    pub(super) files: u64,
    pub(super) bytes_written: u64,
    pub(super) set_aside: u64,
    pub(super) unreadable: Vec<String>,
    pub(super) counts: Option<ShardCounts>,
    /// There was more than one pass takes.
    more: bool,
}

/// A shard that was read and merged.
pub(super) struct Ready {
    merged: Merged,
    version: Option<Version>,
    read: Duration,
}

impl Core {
    /// Merges the inbox of one shard, pass by pass. `listed` is what a listing that is at hand has shown of it.
    /// `flat` lies beside it.
    pub(super) async fn compact_shard(
        &self,
        shard: Shard,
        mut listed: Option<Vec<InboxFile>>,
        flat: Vec<InboxFile>,
        locked: bool,
    ) -> Result<Outcome> {
        let mut lock = match locked {
            false => None,
            true => match self.lock(shard).await? {
                None => return Ok(Outcome::Locked),
                lock => lock,
            },
        };
        super::flaws::note_lock(self, shard, locked);
        let mut all = Done::default();
        let mut stays = BTreeSet::new();
        let outcome = loop {
            match self.pass(shard, &mut lock, listed.take(), &flat, &mut stays).await {
                Ok(Outcome::Done(done)) => {
                    let more = done.more;
                    all.add(done);
                    if !more {
                        break Ok(Outcome::Done(all));
                    }
                }
                Ok(Outcome::Nothing) if !stays.is_empty() || all.files > 0 => {
                    break Ok(Outcome::Done(all));
                }
                end => break end,
            }
        };
        if let Some(lock) = lock {
            self.release(lock).await;
        }
        outcome
    }

    /// One pass over the inbox of a shard. `stays` is what was looked at already and is there still, because it cannot be
    /// read or must not be removed: it takes no room in a further pass, so it cannot keep that from the rest.
    async fn pass(
        &self,
        shard: Shard,
        lock: &mut Option<Lock>,
        listed: Option<Vec<InboxFile>>,
        flat: &[InboxFile],
        stays: &mut BTreeSet<String>,
    ) -> Result<Outcome> {
        let began = self.env.monotonic();
        self.keep(lock).await;
        let mut files = match listed {
            Some(files) => files,
            None => self.list_inbox(layout::inbox_of(Some(shard))).await?,
        };
        files.extend_from_slice(flat);
        files.retain(|file| !stays.contains(&file.path));
        let mut done = Done::default();
        if files.is_empty() {
            return Ok(Outcome::Nothing);
        }
        if self.schema().manner == Manner::Ours {
            self.set_aside_old(&mut files, &mut done, stays).await?;
        }
        let mut schema = self.schema();
        if schema.manner != Manner::Ours {
            // After the listing: whatever was put by then has its columns.
            schema = self.reload().await?;
        }
        self.check_named(&schema)?;
        let seeds: BTreeSet<String> =
            files.iter().filter(|file| file.is_seed()).map(|file| file.path.clone()).collect();
        files = self.claim_seeds(shard, &schema, files, &mut done.unreadable).await?;
        let all = files.len();
        bound(&mut files);
        let complete = files.len() == all;
        done.more = !complete;
        let taken = self.take(&schema, &files).await?;
        // Rows that fit are merged the same, whether or not there are more columns by now.
        schema = self.schema_for(taken.widest).await?;
        done.unreadable.extend(taken.unreadable);
        let mut goes = taken.files.iter().peekable();
        let left = files.iter().filter(|file| goes.next_if(|path| **path == file.path).is_none());
        stays.extend(left.map(|file| file.path.clone()));
        if taken.files.is_empty() && taken.seeds.is_empty() {
            let nothing = complete && done.set_aside == 0 && done.unreadable.is_empty();
            return Ok(if nothing { Outcome::Nothing } else { Outcome::Done(done) });
        }
        (done.rows, done.files) = (taken.read, (taken.files.len() + taken.seeds.len()) as u64);
        // Only if nothing was left in the inbox that a forgotten deletion might have beaten.
        let forget = if complete { Some(self.forgotten_before().await?) } else { None };
        let merged = self.read_and_merge(shard, lock, &schema, taken.rows, forget).await?;
        let Some(mut ready) = merged else {
            return Ok(Outcome::Lost);
        };
        if !planted::is(Planted::RowsReliedOn) {
            // What was read of the inbox is no younger.
            ready.read = began;
        }
        if planted::is(Planted::RemovedBeforeSwap) {
            self.remove_merged(&taken.files).await?;
        }
        if !self.write_shard(shard, ready, &mut done).await? {
            return Ok(Outcome::Lost);
        }
        self.removes_more(shard, &files).await?;
        self.remove_merged(&taken.files).await?;
        self.note_seen(shard, taken.seeds, &seeds).await;
        Ok(Outcome::Done(done))
    }

    async fn forgotten_before(&self) -> Result<u64> {
        if planted::is(Planted::DeletionsForgotten) {
            return Ok(u64::MAX);
        }
        let now = self.stamps.now(&*self.objects, &self.env).await?;
        let before = now.saturating_sub(DELETIONS_KEPT).unwrap_or(now);
        Ok(u64::try_from(before.as_millisecond()).unwrap_or(0))
    }

    /// Reads a shard part by part and merges it on the way; `None` if it changes meanwhile.
    pub(super) async fn read_and_merge(
        &self,
        shard: Shard,
        lock: &mut Option<Lock>,
        schema: &Schema,
        news: Rows,
        forget: Option<u64>,
    ) -> Result<Option<Ready>> {
        let read = self.env.monotonic();
        if schema.manner != Manner::Ours {
            return self.merge_theirs(shard, schema, news, read).await.map(Some);
        }
        let name = layout::index_shard(shard);
        let Some((first, _)) = self.shard_part(shard, 0..PART).await? else {
            let merged = Merger::new(schema, news, forget, 0).finish()?;
            return Ok(Some(Ready { merged, version: None, read }));
        };
        let (head, size) = (first.head.clone(), first.head.size);
        self.check_untouched(shard, &head).await?;
        let mut merger = Merger::new(schema, news, forget, size);
        let damaged = |error: Error| damaged(shard, &error);
        let mut at = first.bytes.len() as u64;
        merger.feed(&first.bytes).map_err(damaged)?;
        while at < size {
            self.keep(lock).await;
            let Some(part) = self.objects.load_part(&name, at..at + PART).await? else {
                return Ok(None);
            };
            if part.head.version != head.version || part.bytes.is_empty() {
                return Ok(None);
            }
            at += part.bytes.len() as u64;
            merger.feed(&part.bytes).map_err(damaged)?;
        }
        let merged = merger.finish().map_err(damaged)?;
        Ok(Some(Ready { merged, version: Some(head.version), read }))
    }

    /// Merges into a shard of another program's, which is read whole.
    async fn merge_theirs(
        &self,
        shard: Shard,
        schema: &Schema,
        news: Rows,
        read: Duration,
    ) -> Result<Ready> {
        let whole = self.whole_shard(shard).await?;
        let bytes = whole.as_ref().map_or(&[][..], |whole| &whole.bytes);
        let end = match RowEnd::of(bytes) {
            Some(end) => end,
            None => self.their_row_end(schema).await?,
        };
        let merged = merge_theirs(schema, bytes, news, end).map_err(|it| damaged(shard, &it))?;
        let version = match whole {
            // Nobody has swapped it yet.
            None | Some(Whole { plain: true, .. }) => None,
            Some(whole) => {
                self.check_untouched(shard, &whole.head).await?;
                Some(whole.head.version)
            }
        };
        Ok(Ready { merged, version, read })
    }

    /// Swaps the merged shard, and writes where its blocks begin; whether it is in the shard now.
    pub(super) async fn write_shard(
        &self,
        shard: Shard,
        ready: Ready,
        done: &mut Done,
    ) -> Result<bool> {
        let Ready { merged, version, read } = ready;
        let Merged { bytes, counts, blocks, changed } = merged;
        done.counts = Some(ShardCounts::new(counts, bytes.len() as u64));
        let name = layout::index_shard(shard);
        let is_ours = version.is_some() || self.objects.properties().remote;
        if !changed && is_ours {
            return self.keep_unchanged(shard, version, &blocks, bytes.len() as u64).await;
        }
        if bytes.len() as u64 > layout::LARGEST_SHARD {
            let (shard, most) = (shard.name(), layout::LARGEST_SHARD);
            let message = format!("shard {shard} would have more than {most} bytes");
            return Err(Error::new(ErrorKind::Full, message));
        }
        let relied_on = if planted::is(Planted::MergedLate) { Duration::MAX } else { RELIED_ON };
        if self.env.monotonic().saturating_sub(read) >= relied_on {
            return Ok(false);
        }
        self.prove_swap().await.map_err(not_here)?;
        let swapped = match super::flaws::insists(self, shard) {
            true => self.overwrite(&name, &bytes).await,
            false => self.objects.swap(&name, version.as_ref(), &bytes).await,
        };
        let written = match swapped {
            Ok(Swap::Written(version)) => version,
            Ok(Swap::Lost) => return Ok(planted::is(Planted::LostSwapWins)),
            Err(error) => return Err(not_here(error)),
        };
        done.bytes_written += bytes.len() as u64;
        self.write_blocks(shard, &blocks, &written, bytes.len() as u64).await;
        Ok(true)
    }

    /// Makes sure that a shard which is as it was read stays so: its writer may have died before it was durable, and the
    /// machine that holds it may have failed since.
    async fn keep_unchanged(
        &self,
        shard: Shard,
        read: Option<Version>,
        blocks: &Blocks,
        size: u64,
    ) -> Result<bool> {
        let is_durable = planted::is(Planted::UnchangedIsDurable);
        let Some(read) = read.filter(|_| !is_durable && !self.objects.properties().remote) else {
            return Ok(true);
        };
        let name = layout::index_shard(shard);
        self.objects.make_durable(&name).await?;
        let now = self.objects.load_part(&name, 0..0).await?.map(|got| got.head.version);
        if now.as_ref() != Some(&read) {
            return Ok(false);
        }
        if self.blocks_file(shard).await?.is_none_or(|(_, pin)| pin.version != read) {
            self.write_blocks(shard, blocks, &read, size).await;
        }
        Ok(true)
    }

    /// Writes where the blocks of a shard begin. A hint. In a folder it also tells whether somebody writes into the
    /// shard, and costs next to nothing.
    pub(super) async fn write_blocks(
        &self,
        shard: Shard,
        blocks: &Blocks,
        written: &Version,
        size: u64,
    ) {
        if !blocks.are_many() && self.objects.properties().remote {
            return;
        }
        let name = layout::index_shard(shard);
        // In a bucket the version is enough to tell that a shard is the one that was written.
        let pin = match self.objects.properties().remote {
            true => Pin::untimed(written, size),
            false => match self.objects.load_part(&name, 0..0).await {
                Ok(Some(got)) if got.head.version == *written => Pin::of(&got.head),
                _ => return,
            },
        };
        let path = layout::shard_blocks(shard);
        if let Err(error) = self.objects.put(&path, &blocks.to_bytes(&pin)).await {
            tracing::debug!(%error, path, "the block index was not written");
        }
    }

    /// In a folder a shard's file can be written into, under its version as under its plain name. That is noticed by its
    /// time.
    pub(super) async fn check_untouched(
        &self,
        shard: Shard,
        head: &crate::store::objects::Head,
    ) -> Result<()> {
        if self.objects.properties().remote {
            return Ok(());
        }
        let Some((_, pin)) = self.blocks_file(shard).await? else { return Ok(()) };
        if pin.version == head.version && pin != Pin::of(head) {
            return Err(touched(shard));
        }
        Ok(())
    }

    /// Takes what was put too long ago out of the files to be merged, and out of the inbox.
    async fn set_aside_old(
        &self,
        files: &mut Vec<InboxFile>,
        done: &mut Done,
        stays: &mut BTreeSet<String>,
    ) -> Result<()> {
        if planted::is(Planted::OldFilesMerged) {
            return Ok(());
        }
        let now = self.stamps.now(&*self.objects, &self.env).await?;
        let before = now.saturating_sub(MERGED_WITHIN).unwrap_or(now);
        let before = u64::try_from(before.as_millisecond()).unwrap_or(0);
        let is_old = |file: &InboxFile| file.put_at().is_some_and(|put_at| put_at < before);
        let (old, young) = std::mem::take(files).into_iter().partition(is_old);
        *files = young;
        let old: Vec<InboxFile> = old;
        let mut moving = Vec::with_capacity(old.len());
        for file in &old {
            moving.push(async move { (&file.path, self.set_aside(&file.path).await) });
        }
        let mut moved = futures::stream::iter(moving).buffered(self.at_once(ASIDE_AT_ONCE));
        while let Some((path, moved)) = moved.next().await {
            match moved {
                Ok(()) => done.set_aside += 1,
                // Too large to be one of ours.
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    done.unreadable.push(error.to_string());
                    stays.insert(path.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) async fn set_aside(&self, path: &str) -> Result<()> {
        let Some(got) = self.objects.get(path, None).await? else { return Ok(()) };
        self.objects.put(&layout::aside_of(path), &got.bytes).await?;
        self.objects.remove(&[path.to_owned()], Duration::MAX).await
    }

    /// Their names are never used again, so it does not matter when a removal arrives.
    async fn remove_merged(&self, files: &[String]) -> Result<()> {
        for some in files.chunks(PAGE) {
            self.objects.remove(some, Duration::MAX).await?;
        }
        Ok(())
    }
}

impl Ready {
    /// A shard that was merged from what had this version, read at this monotonic time.
    pub(super) fn new(merged: Merged, version: Option<Version>, read: Duration) -> Self {
        Self { merged, version, read }
    }
}

impl Done {
    fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.files += other.files;
        self.bytes_written += other.bytes_written;
        self.set_aside += other.set_aside;
        self.unreadable.extend(other.unreadable);
        self.counts = other.counts.or(self.counts.take());
    }
}

/// As many files as one pass takes.
fn bound(files: &mut Vec<InboxFile>) {
    let mut bytes = 0;
    let fits = files.iter().take(MOST_FILES).take_while(|file| {
        bytes += file.size;
        bytes <= MOST_BYTES
    });
    let count = fits.count().max(1);
    files.truncate(count);
}

/// Says so if the store has no swap.
fn not_here(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unsupported => error.context(
            "this index cannot be compacted here: the store has no working conditional write (If-Match), and without \
             it compilers would undo each other's work",
        ),
        _ => error,
    }
}

/// The error for a shard that does not look like one of ours.
pub(super) fn damaged(shard: Shard, error: &Error) -> Error {
    let name = layout::index_shard(shard);
    Error::damaged(format!(
        "'{}' was not written by dfq, or was changed since: {error}; see `dfq index check`",
        name.as_str()
    ))
}

/// The error for a shard that somebody has written into.
pub(super) fn touched(shard: Shard) -> Error {
    let name = layout::index_shard(shard);
    Error::damaged(format!(
        "'{}' was changed since dfq wrote it; see `dfq index check`",
        name.as_str()
    ))
}
