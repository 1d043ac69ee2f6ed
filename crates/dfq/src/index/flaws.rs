//! What planted bugs do instead of what a rule demands, where that takes more than a line; see `planted`.
//!
//! Invariant: nothing here does anything unless a simulation has planted that very bug.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::Core;
use super::inbox::InboxFile;
use super::schema::{Column, Schema};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Shard, Swapped};
use crate::planted::{self, Planted};
use crate::store::objects::Swap;

/// How often what others write too is written over.
const ROUNDS: usize = 50;

thread_local! {
    /// Which worker thinks that it has the lock of which shard.
    static LOCKED: RefCell<BTreeSet<(String, String)>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes whether a compactor has taken a lock.
pub(super) fn note_lock(core: &Core, shard: Shard, locked: bool) {
    if planted::is(Planted::LockIsProof) {
        let of = (core.worker_id.clone(), shard.name());
        LOCKED.with_borrow_mut(|all| if locked { all.insert(of) } else { all.remove(&of) });
    }
}

/// Whether a compactor writes a shard whatever that has become.
pub(super) fn insists(core: &Core, shard: Shard) -> bool {
    let locked = || LOCKED.with_borrow(|all| all.contains(&(core.worker_id.clone(), shard.name())));
    planted::is(Planted::ShardOverwritten) || (planted::is(Planted::LockIsProof) && locked())
}

/// A name that all puts of a key have for some days.
pub(super) fn one_name(name: &str) -> String {
    let ulid = name.len().saturating_sub(layout::ULID_CHARS + ".usv".len());
    let (begin, end) = name.split_at((ulid + 4).min(name.len()));
    let zeros = end.len().saturating_sub(".usv".len());
    format!("{begin}{}.usv", "0".repeat(zeros))
}

impl Core {
    /// Swaps a content whatever is there.
    pub(super) async fn overwrite(&self, name: &Swapped, bytes: &[u8]) -> Result<Swap> {
        for _ in 0..ROUNDS {
            let there = self.objects.load_part(name, 0..0).await?;
            let version = there.map(|there| there.head.version);
            match self.objects.swap(name, version.as_ref(), bytes).await? {
                Swap::Lost => {}
                written => return Ok(written),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "a flaw that comes to no end"))
    }

    /// Writes columns whatever others have added.
    pub(super) async fn overwrites_columns(&self, bytes: &[u8]) -> Result<bool> {
        let planted = planted::is(Planted::ColumnsOverwritten);
        Ok(planted && self.overwrite(&layout::index_schema(), bytes).await? != Swap::Lost)
    }

    /// Adds columns for this process alone.
    pub(super) fn columns_here(&self, lacks: &[Column]) -> Result<Arc<Schema>> {
        let mut schema = Schema::clone(&self.schema());
        schema.add(lacks)?;
        self.know(schema);
        Ok(self.schema())
    }

    /// Adds the columns of this process for all to see, too late.
    pub(super) async fn publishes_columns(&self) -> Result<()> {
        if planted::is(Planted::ColumnsAddedLate) {
            let columns = self.schema().fields().to_vec();
            self.grow(&columns).await?;
        }
        Ok(())
    }

    /// Removes more from the inbox than was merged.
    pub(super) async fn removes_more(&self, shard: Shard, files: &[InboxFile]) -> Result<()> {
        let files = match planted::is(Planted::RemovesWhatItLists) {
            true => self.list_inbox(layout::inbox_of(Some(shard))).await?,
            false if planted::is(Planted::UnreadableRemoved) => files.to_vec(),
            false => return Ok(()),
        };
        let paths: Vec<String> = files.into_iter().map(|file| file.path).collect();
        self.objects.remove(&paths, std::time::Duration::MAX).await
    }
}
