//! Which node does a task, so that two seldom do the same.
//!
//! Invariant: this only ever delays a claim, and never for longer than two periods at a time. Whatever is known wrongly
//! here costs a wait, or a task that is done twice, which may happen in a synced queue anyway.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::node::{Neighbours, SILENT_PERIODS, node_of};
use crate::clock::lock;
use crate::error::Result;
use crate::format;
use crate::layout;
use crate::model::TaskKey;
use crate::queue::claim::signed;
use crate::queue::core::Core;
use crate::store::Tree;

/// For so many periods a task is left to the node that it hashes to.
const LEFT_PERIODS: u32 = 2;

/// A worker with work of its own node's takes one in so many of others' tasks that it meets.
const MET_FOR_ONE: usize = 8;

impl<T: Tree> Core<T> {
    /// For how long what becomes ready here is left to another node, the one that it hashes to. Nothing, if that is
    /// this one, or if nobody else was heard of lately.
    pub(in crate::queue) async fn left_after_an_attempt(&self, key: &TaskKey) -> Result<Duration> {
        let Some(node) = self.own_node().await else { return Ok(Duration::ZERO) };
        let period = self.period();
        let Neighbours { nodes, began, .. } = self.neighbours().await;
        let (Some(began), true) = (began, nodes.len() > 1) else { return Ok(Duration::ZERO) };
        let is_offline = self.now().await?.duration_since(began) > signed(period * SILENT_PERIODS);
        match is_offline || node_of(key.id(), &nodes) == Some(&node) {
            true => Ok(Duration::ZERO),
            false => Ok(period * LEFT_PERIODS),
        }
    }

    /// For how long a task is left to another node yet. What was pushed here and never went up is nobody else's.
    pub(in crate::queue) async fn left_to_another_node(
        &self,
        key: &TaskKey,
    ) -> Result<Option<Duration>> {
        let left = self.left_after_an_attempt(key).await?;
        if left.is_zero() {
            return Ok(None);
        }
        let path = layout::task_file(&self.task_dir(key));
        let Some(task) = self.tree.get(&path, None).await? else { return Ok(None) };
        let meta = format::decode_task(&task.bytes, key).ok().map(|(_, meta)| meta);
        let written = task.head.modified;
        let pushed_on = meta.as_ref().and_then(|meta| meta.node.clone());
        let neighbours = self.neighbours().await;
        let went_up = neighbours.sent.is_some_and(|sent| written <= sent);
        if !went_up && pushed_on.is_some() && pushed_on == self.own_node().await {
            return Ok(None);
        }
        let now = self.now().await?;
        // A delayed task keeps the time of its file when it becomes due, and that is at the next whole minute.
        let due = meta.and_then(|meta| meta.not_before).filter(|due| *due <= now);
        let came = due.and_then(|due| due.checked_add(SignedDuration::from_mins(1)).ok());
        let mut since = came.map_or(written, |came| came.max(written));
        // What was written before the clock was set looks as old as the clock was wrong.
        since = since.max(neighbours.clock_set.filter(|set| *set <= now).unwrap_or(since));
        Ok(rest(left, since, now).or_else(|| self.own_work_first(left)))
    }

    /// For how long another node's task is left that has waited long enough. Of a backlog each node does its own part
    /// first, so that they do not meet; but not that alone: the other node may have no workers.
    fn own_work_first(&self, left: Duration) -> Option<Duration> {
        let has_work = lock(&self.nodes).has_work(left, self.env.monotonic());
        (has_work && self.env.below(MET_FOR_ONE) != 0).then(|| self.period())
    }

    /// Notes that a task was claimed.
    pub(in crate::queue) fn note_work(&self, key: &TaskKey) {
        if self.as_node().is_some() {
            lock(&self.nodes).note_work(key.id(), self.env.monotonic());
        }
    }
}

/// What is left of a time that began then. A beginning in the future counts as now: the clock was set back.
fn rest(time: Duration, began: Timestamp, now: Timestamp) -> Option<Duration> {
    let rest = signed(time) - now.duration_since(began);
    let rest = rest.clamp(SignedDuration::ZERO, signed(time));
    Duration::try_from(rest).ok().filter(|rest| !rest.is_zero())
}
