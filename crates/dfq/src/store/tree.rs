//! The task seam: what the protocol needs of a store besides named contents.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{Created, Objects, ObjectsExt, Page, Probe, Stamp, Stored, StoredTask};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Generation;

/// Folders of names: they can be listed in any order, watched, and made durable together.
#[async_trait]
pub trait Folders: Objects + ObjectsExt {
    /// Where a listing goes on.
    type Cursor: Send + 'static;

    /// Two writes closer together than this may carry the same modification time.
    fn time_resolution(&self) -> Duration;

    /// Lists a folder in parts of about `limit` names, in whatever order is cheapest; a folder that is not there
    /// is empty.
    async fn list_folder(
        &self,
        dir: &str,
        from: Option<Self::Cursor>,
        limit: usize,
    ) -> Result<Page<Self::Cursor>>;
    /// Whether there is a file of this name; on a disk, anything of this name.
    async fn exists(&self, path: &str) -> Result<bool>;
    /// The highest generation for which a terminal record exists; `paths` names the two places where
    /// the record of a generation can be. Records of an id exist without gaps from the first on, so doubling and
    /// halving finds the last.
    async fn last_life(
        &self,
        paths: &(dyn for<'a> Fn(Generation) -> [String; 2] + Sync),
    ) -> Result<Option<Generation>> {
        let finished = async |generation: Generation| {
            let [completed, failed] = paths(generation);
            if self.properties().blocking {
                return Ok::<_, Error>(
                    self.exists(&completed).await? || self.exists(&failed).await?,
                );
            }
            let (completed, failed) = futures::join!(self.exists(&completed), self.exists(&failed));
            Ok(completed? || failed?)
        };
        if !finished(1).await? {
            return Ok(None);
        }
        let (mut lived, mut beyond): (Generation, Generation) = (1, 2);
        while finished(beyond).await? {
            lived = beyond;
            beyond = beyond.checked_mul(2).ok_or_else(|| {
                Error::damaged("a task id with more than two thousand million lives")
            })?;
        }
        while beyond - lived > 1 {
            let middle = lived + (beyond - lived) / 2;
            if finished(middle).await? { lived = middle } else { beyond = middle }
        }
        Ok(Some(lived))
    }
    /// Creates files with their whole content, each if absent, sharing the cost of making them durable. They
    /// are durable when this returns, also those that existed.
    async fn create_all(&self, files: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>>;
    /// Makes names that exist durable, whoever made them, where that is not so anyway. What they stand for was
    /// durable before it got its name.
    async fn secure(&self, _paths: &[String], _durable: bool) -> Result<()> {
        Ok(())
    }
    /// Writes a file whole, whether or not there is one. Readers see the old content or the new; after a power
    /// cut it may be either.
    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()>;
    /// Removes a file; that there is none is not an error.
    async fn remove_file(&self, path: &str) -> Result<()>;
    /// Removes a file that the caller has just written, with a nonce in it, unless it has become something else
    /// by then; whether it has gone. Nothing is sent after the monotonic time `until`. Only where
    /// [`Properties::remote`](super::Properties::remote) says so.
    async fn remove_if_unchanged(
        &self,
        path: &str,
        _written: &[u8],
        _until: Duration,
    ) -> Result<bool> {
        let provider = self.properties().provider;
        let message = format!("{provider} cannot remove '{path}' on a condition");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// When a name was last added to or removed from the folder, provided that any such change after `now` will
    /// change the answer; `None` if that cannot be told.
    async fn stamp(&self, dir: &str, now: Timestamp) -> Result<Option<Stamp>>;
    /// Removes a folder that is empty and of no further use, where folders are things of their own.
    async fn prune(&self, _dir: &str) -> Result<()> {
        Ok(())
    }
    /// Waits until something may have changed, if
    /// [`Properties::notices_changes`](super::Properties::notices_changes); else for ever.
    async fn changed(&self);
    /// Tells those who wait in [`Folders::changed`] to look again.
    async fn ring(&self);
}

/// Tasks and their leases. See the module's documentation for what an implementation must not do.
#[async_trait]
pub trait Tree: Folders {
    /// A task's folder, held from claim to ack: whatever happens to its name meanwhile, it stays the
    /// same folder.
    type TaskDir: Send + Sync + 'static;
    /// A lease's content, ready to be put into any number of task folders.
    type PreparedLease: Send + Sync + 'static;

    /// Publishes whole tasks under their folders' paths, each if absent, sharing the cost of making
    /// them durable.
    async fn publish(&self, tasks: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>>;
    /// Moves a whole task from one folder path to another, if that is absent. If it is not, or if
    /// there is nothing to move, nothing changes. Whatever is there then is durable.
    async fn promote(&self, from: &str, to: &str, durable: bool) -> Result<Created>;
    /// Opens a task's folder; `None` if there is none.
    async fn open(&self, dir: &str) -> Result<Option<Self::TaskDir>>;
    /// Prepares a lease.
    async fn prepare_lease(&self, bytes: &[u8]) -> Result<Self::PreparedLease>;
    /// Creates the lease of an attempt, if absent. A folder that is gone answers `Exists`.
    async fn create_lease(
        &self,
        dir: &Self::TaskDir,
        attempt: u32,
        prepared: &Self::PreparedLease,
    ) -> Result<Created>;
    /// Makes the lease of an attempt as young as if it had been written now, where that needs no room.
    async fn touch_lease(&self, _dir: &Self::TaskDir, _attempt: u32) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "a lease here is renewed by writing it"))
    }
    /// Makes the names of a task's leases durable, where that is not so anyway.
    async fn secure_leases(&self, _dir: &Self::TaskDir) -> Result<()> {
        Ok(())
    }
    /// Writes the lease of an attempt whole. A folder that is gone is `NotFound`.
    async fn replace_lease(&self, dir: &Self::TaskDir, attempt: u32, bytes: &[u8]) -> Result<()>;
    /// The numbers of all leases in a task's folder, ascending.
    async fn leases(&self, dir: &Self::TaskDir) -> Result<Vec<u32>>;
    /// Reads the lease of an attempt.
    async fn read_lease(&self, dir: &Self::TaskDir, attempt: u32) -> Result<Option<Stored>>;
    /// In one round trip: the task, whether the attempt after `after` exists, and whether one of
    /// `records` does.
    async fn read_task(
        &self,
        dir: &Self::TaskDir,
        after: Option<u32>,
        records: &[String; 2],
    ) -> Result<StoredTask>;
    /// Whether the task, and the attempt after `attempt`, exist; reads neither.
    async fn probe(&self, dir: &Self::TaskDir, attempt: u32) -> Result<Probe>;
    /// Removes what is left of a task: if it has `finished`, the task file first; once that is gone
    /// its leases (`leases` names those that are known, others may exist), then the folder. Without a
    /// record only a folder that has lost its task may be cleaned, and a task file that appears there
    /// meanwhile stays. Files that are not ours stay.
    async fn clean(&self, dir: &Self::TaskDir, finished: bool, leases: &[u32]) -> Result<()>;
    /// Cleans up after tasks that have finished, each with the leases that it has; perhaps later, together
    /// with others, but then by [`Tree::flush`] at the latest. Answers for each.
    async fn discard(&self, finished: Vec<(&Self::TaskDir, Vec<u32>)>) -> Vec<Result<()>> {
        clean_each(self, finished).await
    }
    /// Does what was put off.
    async fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// Cleans up after finished tasks one by one.
pub(super) async fn clean_each<T: Tree + ?Sized>(
    tree: &T,
    finished: Vec<(&T::TaskDir, Vec<u32>)>,
) -> Vec<Result<()>> {
    let mut answers = Vec::with_capacity(finished.len());
    for (dir, leases) in finished {
        answers.push(tree.clean(dir, true, &leases).await);
    }
    answers
}
