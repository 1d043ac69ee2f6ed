//! How much there is in an index.
//!
//! Invariant: it costs the manifest and a listing of the inbox, never a look at each shard. The numbers of records are
//! those of the last compactions, and not counted anew.

use jiff::Timestamp;
use serde::Serialize;

use super::{Core, Index};
use crate::error::Result;
use crate::layout;
use crate::store::objects::List;

/// How many files of the inbox are counted, before the number is only said to be greater.
const MOST_COUNTED: u64 = 100_000;

/// Names in one part of a listing.
const PAGE: usize = 1000;

/// What is in an index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IndexStats {
    /// Records in the shards, when each was last compacted.
    pub records: u64,
    /// Deletions that are kept there.
    pub deletions: u64,
    /// Shards that have anything.
    pub shards: u64,
    /// Bytes in the shards.
    pub bytes: u64,
    /// Columns, with the key and those that dfq keeps.
    pub columns: usize,
    /// When a compaction last changed any of these; none if there was none.
    pub compacted_at: Option<Timestamp>,
    /// Files in the inbox, which wait to be compacted.
    pub inbox_files: u64,
    /// Bytes in them.
    pub inbox_bytes: u64,
    /// There are more in the inbox than were counted.
    pub inbox_has_more: bool,
    /// Files under `aside/`: too old to be merged, or not written by dfq.
    pub aside_files: u64,
    /// Files that only a folder has: versions that were superseded, and marks in their place.
    pub old_files: u64,
    /// Bytes in them.
    pub old_bytes: u64,
}

impl Index {
    /// How much there is. The records are those of the last compactions; what waits in the inbox is counted in files.
    pub async fn stats(&self) -> Result<IndexStats> {
        self.run(|core| async move { core.stats().await }).await
    }
}

/// Files and bytes below a name, and whether there are more.
struct Sum {
    files: u64,
    bytes: u64,
    more: bool,
}

impl Core {
    async fn stats(&self) -> Result<IndexStats> {
        let manifest = self.manifest().await?;
        let inbox = self.sum(&layout::inbox_of(None)).await?;
        let aside = self.sum(&layout::below(layout::ASIDE, "")).await?;
        let mut stats = IndexStats {
            columns: self.reload().await?.columns.len(),
            inbox_files: inbox.files,
            inbox_bytes: inbox.bytes,
            inbox_has_more: inbox.more,
            aside_files: aside.files,
            ..IndexStats::default()
        };
        if !self.objects.properties().remote {
            let versions = self.sum(&layout::below(layout::VERSIONS, "")).await?;
            let highest = self.highest_versions().await?;
            stats.old_files = versions.files.saturating_sub(highest.files);
            stats.old_bytes = versions.bytes.saturating_sub(highest.bytes);
        }
        if let Some(manifest) = manifest {
            stats.records = manifest.records;
            stats.deletions = manifest.deletions;
            stats.bytes = manifest.bytes;
            stats.shards = manifest.shards.values().filter(|shard| shard.bytes > 0).count() as u64;
            stats.compacted_at = Some(manifest.updated_at);
        }
        Ok(stats)
    }

    async fn sum(&self, prefix: &str) -> Result<Sum> {
        let mut listing = self.objects.list(List::below(prefix));
        let mut sum = Sum { files: 0, bytes: 0, more: false };
        loop {
            let part = listing.next(PAGE).await?;
            sum.files += part.files.len() as u64;
            sum.bytes += part.files.iter().map(|file| file.head.size).sum::<u64>();
            if part.end || sum.files >= MOST_COUNTED {
                sum.more = !part.end;
                return Ok(sum);
            }
        }
    }

    /// The versions that count, in a folder.
    async fn highest_versions(&self) -> Result<Sum> {
        let names = layout::all_shards().map(layout::index_shard);
        let mut sum = Sum { files: 0, bytes: 0, more: false };
        for name in names.chain([layout::index_schema()]) {
            if let Some(got) = self.objects.load_part(&name, 0..0).await? {
                sum.files += 1;
                sum.bytes += got.head.size;
            }
        }
        Ok(sum)
    }
}
