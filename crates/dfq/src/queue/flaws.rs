//! What planted bugs do instead of what a rule demands, where that takes more than a line; see `planted`.
//!
//! Invariant: nothing here is called, and no look is overlooked, unless a simulation has planted that very bug.

use jiff::Timestamp;

use super::Answers;
use super::claim::Claim;
use super::core::Core;
use super::drafts::Wanted;
use super::judge::{self, Seen};
use crate::error::Result;
use crate::format;
use crate::layout;
use crate::model::{LeaseState, TaskKey, TaskMeta};
use crate::planted::{self, Planted};
use crate::store::{Created, StoredTask, Tree, removed_until};

/// What a claimer has seen after it created its lease, but for what it does not look at.
pub(super) fn overlooked(stored: StoredTask) -> StoredTask {
    StoredTask {
        finished: stored.finished && !planted::is(Planted::NoLookForRecords),
        superseded: stored.superseded && !planted::is(Planted::NoLookForHigher),
        ..stored
    }
}

/// No fencing token given out before this life is greater.
pub(super) fn fence_before(meta: &TaskMeta) -> u64 {
    if planted::is(Planted::FenceForgetsJourney) { 0 } else { meta.journey.fence }
}

impl<T: Tree> Core<T> {
    pub(super) async fn remove_lease(&self, key: &TaskKey, attempt: u32) -> Result<()> {
        self.tree.remove_file(&layout::lease_file(&self.task_dir(key), attempt)).await
    }

    /// Deletes the last lease, and creates its name again.
    pub(super) async fn take_over_by_deleting(
        &self,
        key: &TaskKey,
        task_dir: T::TaskDir,
        wanted: Wanted,
        history: &[Seen],
    ) -> Result<Claim> {
        self.remove_lease(key, wanted.attempt).await?;
        let earlier = history.split_last().map_or(history, |(_, earlier)| earlier);
        self.take_over(key, task_dir, wanted, earlier).await
    }

    /// Writes into the lease that was judged, which is another's.
    pub(super) async fn release_for_the_owner(
        &self,
        task_dir: &T::TaskDir,
        history: &[Seen],
    ) -> Result<()> {
        let judged = judge::current(history).and_then(|seen| seen.lease.clone());
        let Some(mut lease) = judged.filter(|lease| lease.state.is_none()) else { return Ok(()) };
        lease.state = Some(LeaseState::Released);
        self.tree.replace_lease(task_dir, lease.attempt, &format::encode_lease(&lease)).await
    }

    /// Writes records over whatever is there.
    pub(super) async fn put_records(&self, records: &[(String, Vec<u8>)]) -> Answers<Created> {
        let put = |(path, bytes): &(String, Vec<u8>)| {
            let (path, bytes) = (path.clone(), bytes.clone());
            async move { self.tree.put(&path, &bytes).await.map(|()| Created::New) }
        };
        self.each(records.iter().map(put).collect()).await
    }

    /// Frees the names of a life that is over.
    pub(super) async fn remove_records(&self, key: &TaskKey) -> Result<()> {
        for path in self.record_paths(key) {
            self.tree.remove_file(&path).await?;
        }
        Ok(())
    }

    /// Removes a record without a mark, unless it was written since then; whether it was.
    pub(super) async fn remove_unmarked(&self, path: String, since: Timestamp) -> Result<bool> {
        let until = removed_until(self.env.monotonic());
        let stored = self.tree.read(&path).await?;
        let old = stored.is_some_and(|stored| stored.modified < since);
        if old {
            self.tree.remove(&[path], until).await?;
        }
        Ok(old)
    }

    /// Takes a due task away, then publishes it.
    pub(super) async fn promote_by_removing(&self, from: &str, to: &str) -> Result<bool> {
        let Some(stored) = self.tree.read(&layout::task_file(from)).await? else {
            return Ok(true);
        };
        self.remove_published(from).await?;
        let published = self.tree.publish(&[(to.to_owned(), stored.bytes)], self.durable()).await;
        published.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(true)
    }
}
