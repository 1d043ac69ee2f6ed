//! What may be done in a place of a synced queue, and what must be done in another.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::TaskKey;
use crate::planted::{self, Planted};
use crate::queue::OUTCOMES;
use crate::queue::core::Core;
use crate::queue::merge::order::{Ended, Task, is_same_push, push_of};
use crate::queue::purge::down_from;
use crate::store::Tree;

impl<T: Tree> Core<T> {
    /// An error if this is the hub of a synced queue: who claims there and who claims in a node's folder would not see
    /// each other in time.
    pub(in crate::queue) fn check_claims(&self) -> Result<()> {
        match &self.settings.synced {
            Some(synced) if synced.hub => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} is the hub of a synced queue, in which nobody claims; work in a node's folder, which \
                     `dfq supervise` keeps in step with it",
                    self.tree.properties().address
                ),
            )),
            _ => Ok(()),
        }
    }

    /// An error if this is a node's folder: only the hub forgets, so that all nodes follow one.
    pub(in crate::queue) fn check_purges(&self) -> Result<()> {
        match self.as_node() {
            Some(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "this is a node of a synced queue, and only its hub forgets; run `dfq gc` with the address of the \
                 bucket",
            )),
            None => Ok(()),
        }
    }

    /// Whether damaged tasks are not for this process to end.
    pub(in crate::queue) fn leaves_damaged(&self) -> bool {
        let is_worker = self.as_node().is_some() && !self.merges.load(Ordering::Relaxed);
        is_worker && !planted::is(Planted::DamagedEndedByWorkers)
    }

    /// Whether something of a life, or of one before it, is still to be cleaned up.
    pub(in crate::queue) async fn has_remains(
        &self,
        key: &TaskKey,
        scheduled: &BTreeSet<TaskKey>,
    ) -> Result<bool> {
        for life in down_from(key) {
            if self.outcome(&life).await?.is_none() {
                return Ok(false);
            }
            if self.pending_task(&life).await?.is_some() || scheduled.contains(&life) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Which pushes ended with this life and those before it.
    pub(in crate::queue) async fn pushes_up_to(&self, key: &TaskKey) -> Result<Vec<String>> {
        let mut pushes = Vec::new();
        if planted::is(Planted::FloorsWithoutPushes) {
            return Ok(pushes);
        }
        for life in down_from(key) {
            let mut has_ended = false;
            for outcome in OUTCOMES {
                let path = self.record_path(outcome, &life);
                let Some(stored) = self.tree.read(&path).await? else { continue };
                has_ended = true;
                if let Ok(record) = format::decode_record(&stored.bytes, outcome, &life) {
                    pushes.extend(push_of(&record));
                }
            }
            if !has_ended {
                break;
            }
        }
        Ok(pushes)
    }

    /// Before a task's folder goes: does what [`Core::keep_if_another`] does for what is in it.
    pub(in crate::queue) async fn keep_loser(&self, key: &TaskKey, dir: &T::TaskDir) -> Result<()> {
        if self.as_node().is_none() {
            return Ok(());
        }
        match self.tree.read_task(dir, None, &self.record_paths(key)).await?.task {
            Some(task) => self.keep_if_another(key, &task.bytes).await,
            None => Ok(()),
        }
    }

    /// Before a delayed task here goes because one of its id is pending: keeps its bytes, if that asks for something
    /// else (R7).
    pub(in crate::queue) async fn keep_copy(
        &self,
        key: &TaskKey,
        from: &str,
        pending: &[u8],
    ) -> Result<()> {
        if self.as_node().is_none() || planted::is(Planted::MergeDropsLosers) {
            return Ok(());
        }
        let Some(stored) = self.tree.read(&layout::task_file(from)).await? else { return Ok(()) };
        let (copy, pending) = (Task::read(key, &stored.bytes), Task::read(key, pending));
        if let (Some(copy), Some(pending)) = (&copy, &pending)
            && (is_same_push(&copy.meta, &pending.meta) || copy.payload == pending.payload)
        {
            return Ok(());
        }
        let mark = copy.map_or_else(|| format::push_mark("", &stored.bytes), |copy| copy.mark());
        self.tree.create(&layout::conflict_path(key, &mark), &stored.bytes).await.map(|_| ())
    }

    /// Before a task here goes for a record's sake: keeps its bytes, if the record is of another push that asked for
    /// something else (R7).
    pub(in crate::queue) async fn keep_if_another(&self, key: &TaskKey, task: &[u8]) -> Result<()> {
        if self.as_node().is_none() || planted::is(Planted::MergeDropsLosers) {
            return Ok(());
        }
        let read = Task::read(key, task);
        for outcome in OUTCOMES {
            let Some(stored) = self.tree.read(&self.record_path(outcome, key)).await? else {
                continue;
            };
            let ended = Ended::read(outcome, key, &stored.bytes);
            if let (Some(task), Some(ended)) = (&read, &ended)
                && ended.is_of(task)
            {
                return Ok(());
            }
        }
        let mark = read.map_or_else(|| format::push_mark("", task), |task| task.mark());
        let path = crate::layout::conflict_path(key, &mark);
        self.tree.create(&path, task).await.map(|_| ())
    }
}
