//! Does the steps of a plan, one after the other, each on the condition that its place is still as it was read.
//!
//! Invariant: a step that finds something else than what was planned for does nothing, and what comes after it for this
//! id is left to the next pass. So a step can be done again, late, or by two at once.

use super::Side;
use super::plan::Step;
use super::view::Content;
use crate::error::{ErrorKind, Result};
use crate::layout;
use crate::model::TaskKey;
use crate::planted::{self, Planted};
use crate::queue::core::Core;
use crate::queue::merge::order::is_alike;
use crate::store::objects::Swap;
use crate::store::{Created, Tree, Version, removed_until};

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It was done, or had been.
    Yes,
    /// Something has changed: the rest is for the next pass.
    Changed,
}

impl<T: Tree> Core<T> {
    /// Does a step in this place.
    pub(super) async fn take_step(&self, step: &Step) -> Result<Done> {
        match step {
            Step::Record { key, outcome, bytes, over, .. } => {
                let path = self.record_path(*outcome, key);
                self.write_merged(&path, bytes, over.as_ref()).await
            }
            Step::Keep { key, mark, bytes } => {
                let path = layout::conflict_path(key, mark);
                self.tree.create(&path, bytes).await.map(|_| Done::Yes)
            }
            Step::Task { key, bytes, over, .. } => {
                let dir = self.task_dir(key);
                self.write_task(&dir, bytes, over.as_ref()).await
            }
            Step::Schedule { due, key, bytes, over, .. } => {
                let dir = layout::scheduled_dir(*due, key);
                self.write_task(&dir, bytes, over.as_ref()).await
            }
            Step::Unschedule { due, key, .. } => {
                self.remove_task(&layout::scheduled_dir(*due, key), &[]).await?;
                self.prune_due(*due).await;
                Ok(Done::Yes)
            }
            Step::End { key, leases, .. } => {
                self.remove_task(&self.task_dir(key), leases).await?;
                Ok(Done::Yes)
            }
            Step::Forget { key, outcome, .. } => {
                self.tree.remove_file(&self.record_path(*outcome, key)).await?;
                Ok(Done::Yes)
            }
            Step::Lease { key, attempt, bytes, over, .. } => {
                self.write_lease(key, *attempt, bytes, over.as_ref()).await
            }
            // These are done with the verbs of the queue.
            Step::Renumber { .. } | Step::SetAside { .. } => Ok(Done::Changed),
        }
    }

    /// Writes a file that is not there, or is this version.
    async fn write_merged(&self, path: &str, bytes: &[u8], over: Option<&Version>) -> Result<Done> {
        let Some(over) = over else {
            return match self.tree.create(path, bytes).await? {
                Created::New => Ok(Done::Yes),
                Created::Exists => self.is_written(path, bytes).await,
            };
        };
        if !self.is_version(path, over).await? {
            return self.is_written(path, bytes).await;
        }
        if self.tree.properties().remote {
            // Written anew, the same bytes would have the same version: then there is nothing to lose.
            match self.tree.swap(&layout::merged(path), Some(over), bytes).await {
                Ok(Swap::Written(_)) => return Ok(Done::Yes),
                Ok(Swap::Lost) => return Ok(Done::Changed),
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        self.tree.replace(path, bytes).await?;
        Ok(Done::Yes)
    }

    async fn is_version(&self, path: &str, version: &Version) -> Result<bool> {
        Ok(self.tree.head(path).await?.is_some_and(|head| head.version == *version))
    }

    /// Whether a name has these bytes: then somebody else has done the step.
    async fn is_written(&self, path: &str, bytes: &[u8]) -> Result<Done> {
        let there = self.tree.read(path).await?;
        Ok(match there.is_some_and(|there| is_alike(&there.bytes, bytes)) {
            true => Done::Yes,
            false => Done::Changed,
        })
    }

    async fn write_task(&self, dir: &str, bytes: &[u8], over: Option<&Version>) -> Result<Done> {
        let path = layout::task_file(dir);
        if over.is_some() {
            return self.write_merged(&path, bytes, over).await;
        }
        let task = (dir.to_owned(), bytes.to_vec());
        let created = self.tree.publish(&[task], self.durable()).await.into_iter().next();
        match created.unwrap_or(Ok(Created::Exists))? {
            Created::New => Ok(Done::Yes),
            Created::Exists => self.is_written(&path, bytes).await,
        }
    }

    /// Removes a task and these leases, in this order.
    pub(super) async fn remove_task(&self, dir: &str, leases: &[u32]) -> Result<()> {
        if self.strategy.has_folders {
            return match self.tree.open(dir).await? {
                Some(task_dir) => self.tree.clean(&task_dir, true, leases).await,
                None => Ok(()),
            };
        }
        let until = removed_until(self.env.monotonic());
        self.tree.remove(&[layout::task_file(dir)], until).await?;
        let leases: Vec<_> = leases.iter().map(|it| layout::lease_file(dir, *it)).collect();
        match leases.is_empty() {
            true => Ok(()),
            false => self.tree.remove(&leases, until).await,
        }
    }

    async fn write_lease(
        &self,
        key: &TaskKey,
        attempt: u32,
        bytes: &[u8],
        over: Option<&Version>,
    ) -> Result<Done> {
        let dir = self.task_dir(key);
        let path = layout::lease_file(&dir, attempt);
        if !self.strategy.has_folders {
            return self.write_merged(&path, bytes, over).await;
        }
        // On disk a lease may be a name of a file that other leases are names of, so it is replaced by its name.
        let Some(task_dir) = self.tree.open(&dir).await? else { return Ok(Done::Changed) };
        match over {
            None => {
                let prepared = self.tree.prepare_lease(bytes).await?;
                match self.tree.create_lease(&task_dir, attempt, &prepared).await? {
                    Created::New => Ok(Done::Yes),
                    Created::Exists => self.is_written(&path, bytes).await,
                }
            }
            Some(over) => {
                if !self.is_version(&path, over).await? {
                    return self.is_written(&path, bytes).await;
                }
                self.tree.replace_lease(&task_dir, attempt, bytes).await?;
                Ok(Done::Yes)
            }
        }
    }

    /// After a task was created: looks whether its life is over by now, and if so takes it back, if it is still the
    /// one that was created (R6).
    pub(super) async fn take_back_if_over(
        &self,
        key: &TaskKey,
        bytes: &[u8],
        floor: bool,
    ) -> Result<bool> {
        if planted::is(Planted::MergeWithoutLook) {
            return Ok(false);
        }
        let over = floor || self.outcome(key).await?.is_some();
        if !over {
            return Ok(false);
        }
        let dir = self.task_dir(key);
        let there = self.tree.read(&layout::task_file(&dir)).await?;
        let is_own = there.is_some_and(|there| is_alike(&there.bytes, bytes));
        if is_own {
            self.remove_task(&dir, &[]).await?;
        }
        Ok(true)
    }
}

impl Step {
    /// Where it is done.
    pub(super) fn side(&self) -> Side {
        match self {
            Self::Record { side, .. }
            | Self::Task { side, .. }
            | Self::Schedule { side, .. }
            | Self::Unschedule { side, .. }
            | Self::End { side, .. }
            | Self::Forget { side, .. }
            | Self::Lease { side, .. } => *side,
            Self::Keep { .. } | Self::Renumber { .. } | Self::SetAside { .. } => Side::Here,
        }
    }
}

/// A file that is the same in both places, though not to the byte.
pub(super) fn says_the_same(a: &Content, b: &Content) -> bool {
    is_alike(&a.bytes, &b.bytes)
}
