//! Writing a shard anew, from all of its rows that can be read.

use super::rows::usable;
use super::shards::Looked;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Core;
use crate::index::compact::{Done, Ready};
use crate::index::merge::{Merger, Rows, merge_theirs};
use crate::index::schema::{Manner, Schema};
use crate::index::usv::RowEnd;
use crate::layout::{self, Shard};
use crate::store::objects::Version;

/// How often a shard that others change too is read again.
const ROUNDS: usize = 100;

/// How much is read at a time.
const PART: u64 = 8 << 20;

/// Rows on their way into a shard that is written anew.
struct Gathered<'a> {
    schema: &'a Schema,
    shard: Shard,
    rows: Rows,
    left_out: u64,
}

impl Gathered<'_> {
    fn add(&mut self, bytes: &[u8]) {
        for row in Core::split_rows(self.schema, bytes) {
            match usable(self.schema, self.shard, row) {
                None => self.rows.add(self.schema, row),
                Some(_) => self.left_out += 1,
            }
        }
    }
}

impl Core {
    /// Writes a shard anew; says what was done.
    pub(super) async fn repair_shard(&self, shard: Shard, looked: &Looked) -> Result<String> {
        let name = layout::index_shard(shard);
        let mut kept: Vec<String> = Vec::new();
        let mut stray: Vec<u8> = Vec::new();
        if looked.odd_plain
            && let Some(got) =
                self.parts_of(|range| self.objects.get(name.as_str(), Some(range))).await?
        {
            // Moved, so that nothing of it can be lost, whoever writes into it now.
            let aside = layout::set_aside(&name, &self.env.nonce());
            if self.objects.rename(name.as_str(), &aside).await? {
                kept.push(aside);
            }
            stray = got.0;
        }
        for _ in 0..ROUNDS {
            let read = self.env.monotonic();
            let there = self.parts_of(|range| self.objects.load_part(&name, range)).await?;
            // After the rows: whatever they have, its columns are there.
            let schema = self.reload().await?;
            self.check_named(&schema)?;
            let (bytes, version) = match there {
                Some((bytes, version)) => (bytes, Some(version)),
                None => (self.their_plain(shard, &schema).await?, None),
            };
            // Before anything is written over it.
            if version.is_some() && !bytes.is_empty() && kept.len() < 2 {
                let aside = layout::set_aside(&name, &self.env.nonce());
                self.objects.put(&aside, &bytes).await?;
                kept.push(aside);
            }
            let (rows, left_out) = (Rows::default(), 0);
            let mut gathered = Gathered { schema: &schema, shard, rows, left_out };
            gathered.add(&bytes);
            gathered.add(&stray);
            let left_out = gathered.left_out;
            let mut merged = match schema.manner {
                Manner::Ours => {
                    Merger::new(&schema, gathered.rows, None, bytes.len() as u64).finish()?
                }
                Manner::Theirs(_) => {
                    let end = match RowEnd::of(&bytes) {
                        Some(end) => end,
                        None => self.their_row_end(&schema).await?,
                    };
                    merge_theirs(&schema, &[], gathered.rows, end)?
                }
            };
            merged.changed = true;
            let rows = merged.counts.records + merged.counts.deletions;
            let mut done = Done::default();
            if self.write_shard(shard, Ready::new(merged, version, read), &mut done).await? {
                return Ok(format!(
                    "written anew with {rows} rows, {left_out} left out; what lay there is kept in {}",
                    kept.join(" and ")
                ));
            }
        }
        let message = format!("'{}' does not stay as it is", name.as_str());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// A shard of another program's that nothing was swapped of yet.
    async fn their_plain(&self, shard: Shard, schema: &Schema) -> Result<Vec<u8>> {
        if schema.manner == Manner::Ours {
            return Ok(Vec::new());
        }
        Ok(self.whole_shard(shard).await?.map(|whole| whole.bytes).unwrap_or_default())
    }

    /// A content, read part by part, and its version.
    async fn parts_of<F>(
        &self,
        read: impl Fn(std::ops::Range<u64>) -> F,
    ) -> Result<Option<(Vec<u8>, Version)>>
    where
        F: Future<Output = Result<Option<crate::store::objects::Got>>>,
    {
        'round: for _ in 0..ROUNDS {
            let Some(first) = read(0..PART).await? else { return Ok(None) };
            let mut bytes = first.bytes;
            while (bytes.len() as u64) < first.head.size {
                let at = bytes.len() as u64;
                let part = read(at..at + PART).await?;
                let part = part.filter(|part| part.head.version == first.head.version);
                match part.filter(|part| !part.bytes.is_empty()) {
                    Some(part) => bytes.extend(part.bytes),
                    None => continue 'round,
                }
            }
            return Ok(Some((bytes, first.head.version)));
        }
        Err(Error::new(ErrorKind::Unavailable, "a shard does not stay as it is"))
    }
}
