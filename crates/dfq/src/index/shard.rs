//! Reading a compacted shard, wherever it lies and whoever wrote it.
//!
//! Invariant: a shard is searched by its order only if dfq wrote it. One that another program wrote is read whole: nothing
//! says that it is sorted. In a directory such a shard lies under its plain name until dfq writes the first version of its
//! own. In an index of ours a file that lies only there is refused: somebody has put it there.

use std::ops::Range;

use super::merge::Rows;
use super::schema::{Manner, Schema};
use super::{Core, usv};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Shard};
use crate::store::objects::{Got, Head};

/// How often a shard that changes under our eyes is read again.
const ROUNDS: usize = 100;

/// How much is read at a time.
const PART: u64 = 8 << 20;

/// A whole shard.
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    pub(super) head: Head,
    /// It lies under its plain name only.
    pub(super) plain: bool,
}

impl Core {
    /// A part of a shard, and whether it lies under its plain name only.
    pub(super) async fn shard_part(
        &self,
        shard: Shard,
        range: Range<u64>,
    ) -> Result<Option<(Got, bool)>> {
        let name = layout::index_shard(shard);
        let load = || self.objects.load_part(&name, range.clone());
        if let Some(got) = load().await? {
            return Ok(Some((got, false)));
        }
        if self.objects.properties().remote {
            return Ok(None);
        }
        let Some(plain) = self.objects.get(name.as_str(), Some(range.clone())).await? else {
            return Ok(None);
        };
        // The first version may just have been written.
        if let Some(got) = load().await? {
            return Ok(Some((got, false)));
        }
        match self.schema().manner {
            Manner::Theirs(_) => Ok(Some((plain, true))),
            Manner::Ours => Err(Error::damaged(format!(
                "'{}' was not written here by dfq; see `dfq index check`",
                name.as_str()
            ))),
        }
    }

    /// All of a shard; none if there is no such file. Of one version.
    pub(super) async fn whole_shard(&self, shard: Shard) -> Result<Option<Whole>> {
        'round: for _ in 0..ROUNDS {
            let Some((first, plain)) = self.shard_part(shard, 0..PART).await? else {
                return Ok(None);
            };
            let Got { mut bytes, head } = first;
            while (bytes.len() as u64) < head.size {
                let at = bytes.len() as u64;
                match self.shard_part(shard, at..at + PART).await? {
                    Some((part, _)) if part.head.version == head.version => match part.bytes {
                        empty if empty.is_empty() => continue 'round,
                        some => bytes.extend(some),
                    },
                    _ => continue 'round,
                }
            }
            return Ok(Some(Whole { bytes, head, plain }));
        }
        let name = layout::index_shard(shard);
        let message = format!("'{}' does not stay as it is", name.as_str());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// All rows of another program's shard, each key once.
    pub(super) async fn their_rows(&self, shard: Shard, schema: &Schema) -> Result<Rows> {
        let mut rows = Rows::default();
        let Some(whole) = self.whole_shard(shard).await? else { return Ok(rows) };
        if !whole.plain {
            self.check_untouched(shard, &whole.head).await?;
        }
        for row in usv::foreign_rows(&whole.bytes, schema.columns.len()) {
            rows.add(schema, row);
        }
        Ok(rows)
    }
}
