//! Lookups.
//!
//! Invariant: a lookup sees every put that returned before it began. It lists the inbox and reads from it, *then* it
//! reads the shard: what a compiler took out of the inbox in between is in the shard by then. The parts of a shard that
//! are read are of one version; if it changes, the shard is read again.

use futures::StreamExt;

use super::blocks::{Blocks, Pin};
use super::find::{Found, Sorted};
use super::inbox::InboxFile;
use super::record::{Entry, check_key};
use super::schema::{Manner, Schema};
use super::{Core, Index, usv};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Shard};
use crate::planted::{self, Planted};
use crate::store::Version;
use crate::store::objects::Got;

/// How often a shard that changes under our eyes is read again.
const ROUNDS: usize = 100;

/// Files read at a time.
const AT_ONCE: usize = 16;

/// How much is read of each file of a key: enough for the key, the stamp, and most records whole.
const BEGINNING: u64 = 1 << 10;

impl Index {
    /// What the index says of a key: the record that counts, or nothing if there is none or it was deleted.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>> {
        check_key(key)?;
        let key = key.to_owned();
        self.run(|core| async move { core.get(&key).await }).await
    }
}

impl Core {
    async fn get(&self, key: &str) -> Result<Option<Entry>> {
        let schema = self.schema();
        let mut rows = match schema.manner {
            Manner::Ours if planted::is(Planted::GetReadsShardFirst) => {
                self.shard_row(key).await?.into_iter().collect()
            }
            Manner::Ours => Vec::new(),
            // First: what a compiler takes from there is in our own inbox by then.
            Manner::Theirs(_) => self.seed_rows(key, &schema).await?,
        };
        rows.extend(self.inbox_rows(key, &schema).await?);
        rows.extend(match schema.manner {
            Manner::Ours if planted::is(Planted::GetReadsShardFirst) => None,
            Manner::Ours => self.shard_row(key).await?,
            Manner::Theirs(_) => self.their_shard_row(key, &schema).await?,
        });
        let Some(row) = rows.into_iter().max_by(|one, other| schema.compare(one, other)) else {
            return Ok(None);
        };
        self.stamps.note_row(schema.updated_at(&row), &self.env);
        Ok(self.schema_for(usv::width(&row)).await?.entry(&row))
    }

    /// The columns, read again if a row has more than are known.
    pub(super) async fn schema_for(&self, width: usize) -> Result<std::sync::Arc<Schema>> {
        let schema = self.schema();
        match width > schema.columns.len() {
            true => self.reload().await,
            false => Ok(schema),
        }
    }

    /// The rows of a key that are in the inbox.
    async fn inbox_rows(&self, key: &str, schema: &Schema) -> Result<Vec<Vec<u8>>> {
        let shard = Shard::of_key(key);
        let (own, bundles) = futures::join!(
            self.list_inbox(layout::inbox_of_key(key)),
            self.list_inbox(layout::bundles_of(shard)),
        );
        let own: Vec<InboxFile> =
            own?.into_iter().filter(|file| Self::is_of_key(file, key)).collect();
        let mut rows = Vec::new();
        if schema.manner == Manner::Ours {
            rows.extend(self.own_rows(key, schema, own).await?);
        } else {
            // Some were another program's, and end as it pleases.
            rows.extend(self.take(schema, &own).await?.rows.take(key.as_bytes()));
        }
        let found = futures::stream::iter(bundles?)
            .map(|file| async move {
                let bundle = Sorted::Bundle(&file.path);
                Ok(match self.find_by_halves(&bundle, key.as_bytes()).await? {
                    Found::Row(row) => row.filter(|row| self.schema().fault(row).is_none()),
                    // Merged by now.
                    Found::NoFile | Found::Changed => None,
                })
            })
            .buffered(self.at_once(AT_ONCE));
        let found: Vec<Result<Option<Vec<u8>>>> = found.collect().await;
        for row in found {
            rows.extend(row?);
        }
        Ok(rows)
    }

    /// The row that counts among a key's own files. Only its beginning is read of each, which tells its stamp, and the
    /// rest of the one that counts.
    async fn own_rows(
        &self,
        key: &str,
        schema: &Schema,
        files: Vec<InboxFile>,
    ) -> Result<Option<Vec<u8>>> {
        let mut reads = Vec::with_capacity(files.len());
        for file in &files {
            reads.push(async move {
                let got = self.objects.get(&file.path, Some(0..BEGINNING)).await;
                got.map(|got| got.map(|got| (file, got)))
            });
        }
        let mut begun = futures::stream::iter(reads).buffered(self.at_once(AT_ONCE));
        let mut best: Option<Vec<u8>> = None;
        let mut longest: Option<(Vec<u8>, &InboxFile)> = None;
        while let Some(got) = begun.next().await {
            let Some((file, Got { mut bytes, head })) = got? else { continue };
            let whole = bytes.len() as u64 >= head.size;
            if whole && bytes.pop() != Some(usv::END) {
                continue;
            }
            let is_one = !bytes.contains(&usv::END);
            if !is_one || usv::key_of(&bytes) != key.as_bytes() || schema.fault(&bytes).is_some() {
                continue;
            }
            if whole {
                keep_greater(schema, &mut best, bytes);
            } else if longest.as_ref().is_none_or(|(row, _)| schema.compare(&bytes, row).is_gt()) {
                longest = Some((bytes, file));
            }
        }
        let Some((begun, file)) = longest else { return Ok(best) };
        if best.as_ref().is_some_and(|best| schema.compare(best, &begun).is_gt()) {
            return Ok(best);
        }
        let mut taken = self.take(schema, std::slice::from_ref(file)).await?;
        if !taken.unreadable.is_empty() {
            // What follows it does not tell, for of those only the beginnings were looked at.
            taken = self.take(schema, &files).await?;
        }
        if let Some(row) = taken.rows.take(key.as_bytes()) {
            keep_greater(schema, &mut best, row);
        }
        Ok(best)
    }

    /// The row of a key in its shard.
    async fn shard_row(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let shard = Shard::of_key(key);
        let name = layout::index_shard(shard);
        for _ in 0..ROUNDS {
            let found = match self.blocks_of(shard).await? {
                Some((blocks, version, size)) => {
                    let key = key.as_bytes();
                    let found = self.find_in_block(shard, &blocks, &version, size, key).await?;
                    match found {
                        // The hint is old.
                        Found::Changed => self.find_by_halves(&Sorted::Shard(shard), key).await?,
                        found => found,
                    }
                }
                None => self.find_by_halves(&Sorted::Shard(shard), key.as_bytes()).await?,
            };
            match found {
                Found::NoFile => return Ok(None),
                Found::Changed => {}
                Found::Row(row) => return Ok(row),
            }
        }
        let message = format!("'{}' does not stay as it is", name.as_str());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The row of a key in a shard of another program's. It is read whole, unless dfq wrote it and says where its blocks
    /// begin.
    async fn their_shard_row(&self, key: &str, schema: &Schema) -> Result<Option<Vec<u8>>> {
        let shard = Shard::of_key(key);
        if let Some((blocks, version, size)) = self.blocks_of(shard).await? {
            let range = blocks.range_of(key.as_bytes(), size);
            let length = range.end - range.start;
            let part = self.shard_part(shard, range).await?;
            let part = part.map(|(got, _)| got).filter(|got| got.head.version == version);
            if let Some(got) = part.filter(|got| got.bytes.len() as u64 == length) {
                let rows = usv::foreign_rows(&got.bytes, schema.columns.len());
                let row = rows.into_iter().find(|row| usv::key_of(row) == key.as_bytes());
                return Ok(row.map(<[u8]>::to_vec));
            }
        }
        Ok(self.their_rows(shard, schema).await?.take(key.as_bytes()))
    }

    /// Where the blocks of a shard begin, as far as that is of use. In a folder, that nobody has written into it.
    async fn blocks_of(&self, shard: Shard) -> Result<Option<(Blocks, Version, u64)>> {
        let Some((blocks, pin)) = self.blocks_file(shard).await? else { return Ok(None) };
        if !self.objects.properties().remote {
            let name = layout::index_shard(shard);
            let head = self.objects.load_part(&name, 0..0).await?.map(|got| got.head);
            let Some(head) = head else { return Ok(None) };
            if head.version != pin.version && !planted::is(Planted::BlocksNotPinned) {
                return Ok(None);
            }
            if pin != Pin::of(&head) && !planted::is(Planted::BlocksNotPinned) {
                return Err(super::compact::touched(shard));
            }
        }
        Ok(blocks.are_many().then_some((blocks, pin.version, pin.size)))
    }
}

fn keep_greater(schema: &Schema, best: &mut Option<Vec<u8>>, row: Vec<u8>) {
    if best.as_ref().is_none_or(|best| schema.compare(&row, best).is_gt()) {
        *best = Some(row);
    }
}
