//! Finding one key's row in sorted rows, by reading parts of them.
//!
//! Invariant: all parts come from one version of the file; if it changes, the search is given up and begun again.

use std::ops::Range;

use memchr::memchr;

use super::blocks::{Blocks, Pin};
use super::{Core, usv};
use crate::error::Result;
use crate::layout::{self, Shard};
use crate::store::objects::Got;
use crate::store::{ObjectsExt as _, Version};

/// What is read at once without looking for a smaller part.
pub(super) const AT_ONCE: u64 = 16 << 10;

/// How much is read to find out on which side of it a key lies.
const PROBE: u64 = 2 << 10;

/// A file of sorted rows.
pub(super) enum Sorted<'a> {
    /// A compacted shard.
    Shard(Shard),
    /// One that never changes.
    Bundle(&'a str),
}

/// What a search has come to.
pub(super) enum Found {
    /// There is no such file.
    NoFile,
    /// The file has changed meanwhile.
    Changed,
    /// The row, if there is one.
    Row(Option<Vec<u8>>),
}

impl Core {
    pub(super) async fn part(&self, of: &Sorted<'_>, range: Range<u64>) -> Result<Option<Got>> {
        match of {
            Sorted::Shard(shard) => Ok(self.shard_part(*shard, range).await?.map(|(got, _)| got)),
            Sorted::Bundle(path) => self.objects.get(path, Some(range)).await,
        }
    }

    /// The block index of a shard, whichever version it belongs to.
    pub(super) async fn blocks_file(&self, shard: Shard) -> Result<Option<(Blocks, Pin)>> {
        let there = self.objects.read(&layout::shard_blocks(shard)).await?;
        Ok(there.and_then(|there| Blocks::parse(&there.bytes)))
    }

    /// Finds a key by halving: reads little at a time, however long the file is.
    pub(super) async fn find_by_halves(&self, of: &Sorted<'_>, key: &[u8]) -> Result<Found> {
        let Some(first) = self.part(of, 0..AT_ONCE).await? else { return Ok(Found::NoFile) };
        let (version, size) = (first.head.version, first.head.size);
        if first.bytes.len() as u64 >= size {
            return Ok(Found::Row(find_in(&first.bytes, key)));
        }
        let pinned = |got: Option<Got>| {
            got.filter(|got| got.head.version == version && !got.bytes.is_empty())
        };
        let (mut low, mut high) = (0, size);
        // Both are where rows begin; the key's row, if there is one, lies between them.
        while high - low > AT_ONCE {
            let middle = low + (high - low) / 2;
            let mut bytes: Vec<u8> = Vec::new();
            // The first whole key after the middle.
            let next = loop {
                let at = middle + bytes.len() as u64;
                if at >= high {
                    break None;
                }
                let range = at..high.min(at + PROBE.max(bytes.len() as u64));
                let Some(got) = pinned(self.part(of, range).await?) else {
                    return Ok(Found::Changed);
                };
                bytes.extend(got.bytes);
                if let Some(found) = key_after_end(&bytes) {
                    break Some(found);
                }
            };
            match next {
                Some((begin, found)) if found.as_slice() <= key => low = middle + begin,
                Some((begin, _)) if middle + begin < high => high = middle + begin,
                // One row reaches from the middle to the end.
                _ => break,
            }
        }
        let mut bytes = Vec::new();
        while low + (bytes.len() as u64) < high {
            let range = low + bytes.len() as u64..high;
            let Some(got) = pinned(self.part(of, range).await?) else {
                return Ok(Found::Changed);
            };
            bytes.extend(got.bytes);
        }
        Ok(Found::Row(find_in(&bytes, key)))
    }

    /// Finds a key in one block of a shard.
    pub(super) async fn find_in_block(
        &self,
        shard: Shard,
        blocks: &Blocks,
        version: &Version,
        size: u64,
        key: &[u8],
    ) -> Result<Found> {
        let range = blocks.range_of(key, size);
        let Some(got) = self.part(&Sorted::Shard(shard), range.clone()).await? else {
            return Ok(Found::NoFile);
        };
        if got.head.version != *version || got.bytes.len() as u64 != range.end - range.start {
            return Ok(Found::Changed);
        }
        Ok(Found::Row(find_in(&got.bytes, key)))
    }
}

/// Where the first row after the first end begins, and its key, if both are there.
fn key_after_end(bytes: &[u8]) -> Option<(u64, Vec<u8>)> {
    let begin = memchr(usv::END, bytes)? + 1;
    let row = &bytes[begin..];
    let end = row.iter().position(|byte| matches!(*byte, usv::FIELD | usv::END))?;
    Some((begin as u64, row[..end].to_vec()))
}

/// The row of a key among whole rows.
fn find_in(bytes: &[u8], key: &[u8]) -> Option<Vec<u8>> {
    usv::rows(bytes).find(|row| usv::key_of(row) == key).map(<[u8]>::to_vec)
}
