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
use super::schema::Schema;
use super::{Core, Index, usv};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, InboxName, Shard};
use crate::planted::{self, Planted};
use crate::store::Version;

/// How often a shard that changes under our eyes is read again.
const ROUNDS: usize = 100;

/// Files read at a time.
const AT_ONCE: usize = 16;

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
        let early = planted::is(Planted::GetReadsShardFirst);
        let mut best: Option<Vec<u8>> = if early { self.shard_row(key).await? } else { None };
        for row in self.inbox_rows(key).await? {
            if best.as_ref().is_none_or(|best| schema.compare(&row, best).is_gt()) {
                best = Some(row);
            }
        }
        if !early
            && let Some(row) = self.shard_row(key).await?
            && best.as_ref().is_none_or(|best| schema.compare(&row, best).is_gt())
        {
            best = Some(row);
        }
        let Some(row) = best else { return Ok(None) };
        self.stamps.note_row(&row, &self.env);
        Ok(self.schema_for(&row).await?.entry(&row))
    }

    /// The columns, read again if a row has more than are known.
    pub(super) async fn schema_for(&self, row: &[u8]) -> Result<std::sync::Arc<Schema>> {
        let schema = self.schema();
        match usv::width(row) > schema.columns.len() {
            true => self.reload().await,
            false => Ok(schema),
        }
    }

    /// The rows of a key that are in the inbox.
    async fn inbox_rows(&self, key: &str) -> Result<Vec<Vec<u8>>> {
        let shard = Shard::of_key(key);
        let (own, bundles) = futures::join!(
            self.list_inbox(layout::inbox_of_key(key)),
            self.list_inbox(layout::bundles_of(shard)),
        );
        let is_key = |file: &InboxFile| matches!(&file.name, InboxName::Record { key: named, .. } if named == key);
        let files: Vec<InboxFile> = own?.into_iter().filter(is_key).chain(bundles?).collect();
        let rows = futures::stream::iter(files)
            .map(|file| async move {
                let bundle = Sorted::Bundle(&file.path);
                match self.find_by_halves(&bundle, key.as_bytes()).await? {
                    Found::Row(row) => Ok(row.filter(|row| self.schema().fault(row).is_none())),
                    // Merged by now.
                    Found::NoFile => Ok(None),
                    Found::Changed => Ok(None),
                }
            })
            .buffered(self.at_once(AT_ONCE));
        let rows: Vec<Result<Option<Vec<u8>>>> = rows.collect().await;
        rows.into_iter().filter_map(Result::transpose).collect()
    }

    /// The row of a key in its shard.
    async fn shard_row(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let shard = Shard::of_key(key);
        let name = layout::index_shard(shard);
        for _ in 0..ROUNDS {
            let found = match self.blocks_of(shard).await? {
                Some((blocks, version, size)) => {
                    let key = key.as_bytes();
                    let found = self.find_in_block(&name, &blocks, &version, size, key).await?;
                    match found {
                        // The hint is old.
                        Found::Changed => self.find_by_halves(&Sorted::Shard(&name), key).await?,
                        found => found,
                    }
                }
                None => self.find_by_halves(&Sorted::Shard(&name), key.as_bytes()).await?,
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
