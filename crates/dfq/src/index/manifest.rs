//! `manifest.json`: how much there is.
//!
//! Invariant: statistics, and the last writer wins. Nothing is decided by them; `check` counts for certain.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Core;
use super::merge::Counts;
use crate::error::{ErrorKind, Result};
use crate::layout::{self, Shard};
use crate::store::ObjectsExt as _;

/// What is in one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardCounts {
    pub(crate) records: u64,
    pub(crate) deletions: u64,
    pub(crate) bytes: u64,
}

impl ShardCounts {
    pub(crate) fn new(counts: Counts, bytes: u64) -> Self {
        Self { records: counts.records, deletions: counts.deletions, bytes }
    }
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// On the store's clock, as far as it is known.
    pub(crate) updated_at: Timestamp,
    pub(crate) columns: usize,
    pub(crate) records: u64,
    pub(crate) deletions: u64,
    pub(crate) bytes: u64,
    pub(crate) shards: BTreeMap<String, ShardCounts>,
}

impl Manifest {
    fn reckon(&mut self) {
        let sum = |of: fn(&ShardCounts) -> u64| self.shards.values().map(of).sum();
        (self.records, self.deletions) = (sum(|it| it.records), sum(|it| it.deletions));
        self.bytes = sum(|it| it.bytes);
    }
}

impl Core {
    /// The statistics; none if there is no such file, or not one of ours.
    pub(super) async fn manifest(&self) -> Result<Option<Manifest>> {
        match self.objects.read(layout::MANIFEST).await {
            Ok(there) => Ok(there.and_then(|there| serde_json::from_slice(&there.bytes).ok())),
            // Too large to be one.
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes what is in shards that were compacted, and that there are such shards, if that or the columns are not what they were. What fails is left to
    /// the next compaction: these are only statistics.
    pub(super) async fn note_counts(&self, counts: BTreeMap<Shard, ShardCounts>) {
        if counts.is_empty() {
            return;
        }
        self.name_shards_of(&counts).await;
        if let Err(error) = self.write_counts(counts, false).await {
            tracing::debug!(%error, "the statistics were not written");
        }
    }

    /// Names shards in `datapackage.json` that have anything.
    pub(super) async fn name_shards_of(&self, counts: &BTreeMap<Shard, ShardCounts>) {
        let written = counts.iter().filter(|(_, counts)| counts.bytes > 0);
        let written: Vec<Shard> = written.map(|(shard, _)| *shard).collect();
        self.name_shards(&written).await;
    }

    /// Writes the statistics of these shards, or of all there are.
    pub(super) async fn write_counts(
        &self,
        counts: BTreeMap<Shard, ShardCounts>,
        all: bool,
    ) -> Result<()> {
        let there = self.manifest().await?;
        let mut manifest = there.clone().unwrap_or_default();
        if all {
            manifest.shards.clear();
        }
        manifest.shards.extend(counts.into_iter().map(|(shard, counts)| (shard.name(), counts)));
        manifest.columns = self.schema().columns.len();
        manifest.reckon();
        if there.as_ref() == Some(&manifest) {
            return Ok(());
        }
        manifest.updated_at = self.stamps.now(&*self.objects, &self.env).await?;
        let mut bytes = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
        bytes.push(b'\n');
        self.objects.put(layout::MANIFEST, &bytes).await
    }
}
