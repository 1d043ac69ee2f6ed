//! What a node knows of a task beyond what any queue knows, for people who ask why it is not done.
//!
//! Invariant: no task is changed, and the hub is not asked.

use std::time::Duration;

use super::look::{self, Shown};
use super::node::node_of;
use crate::error::Result;
use crate::layout::{self, Due};
use crate::model::TaskKey;
use crate::queue::{TaskState, TaskView, TreeQueue, judge};
use crate::store::Tree;

/// So many names are listed, and so many tasks read, to count those that are left to others.
const MOST_LISTED: usize = 20_000;
const MOST_READ: usize = 1_000;

/// Tasks that are left to other nodes for now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftToOthers {
    /// So many were found.
    pub tasks: u64,
    /// There may be more: not all were looked at.
    pub at_least: bool,
}

/// What a node knows of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskHere {
    /// Workers here leave it to another node for so long.
    pub left_for: Option<Duration>,
    /// That node.
    pub left_to: Option<String>,
    /// The node whose worker has it, or had it last, if that is another one.
    pub claimed_at: Option<String>,
    /// So many tasks of its id have lost against another, and are kept here.
    pub conflicts: u64,
    /// It was pushed here, and no other node can know of it.
    pub never_went_up: bool,
}

impl<T: Tree> TreeQueue<T> {
    /// What this node knows of a task. Of a place that is not a node: nothing.
    pub async fn task_here(&self, view: &TaskView) -> Result<TaskHere> {
        let (core, key) = (&self.core, &view.key);
        let Some(elsewhere) = core.elsewhere(key).await else { return Ok(TaskHere::default()) };
        let mut here = TaskHere::default();
        if matches!(view.state, TaskState::Ready | TaskState::Stale { .. }) {
            here.left_for = core.left_to_another_node(key).await?;
        }
        if here.left_for.is_some() {
            let nodes = core.neighbours().await.nodes;
            here.left_to = node_of(key.id(), &nodes).cloned();
        }
        if matches!(view.state, TaskState::Leased { .. } | TaskState::Stale { .. })
            && let Some(task_dir) = core.tree.open(&core.task_dir(key)).await?
        {
            let history = core.history(&task_dir).await?;
            let lease = judge::current(&history).and_then(|seen| seen.lease.as_ref());
            let node = lease.and_then(|lease| lease.node.clone());
            here.claimed_at = node.filter(|node| *node != elsewhere.node);
        }
        self.each_conflict(|lost, _| here.conflicts += u64::from(lost.id() == key.id())).await?;
        let file = match &view.state {
            TaskState::Completed | TaskState::Failed => None,
            TaskState::Scheduled { due } => Some(layout::scheduled_dir(Due::at_time(*due), key)),
            _ => Some(core.task_dir(key)),
        };
        if let Some(dir) = file.filter(|_| view.meta.node.as_ref() == Some(&elsewhere.node)) {
            let written = core.tree.head(&layout::task_file(&dir)).await?.map(|it| it.modified);
            let sent = core.neighbours().await.sent;
            here.never_went_up = written.is_some_and(|it| sent.is_none_or(|sent| it > sent));
        }
        Ok(here)
    }

    /// How many tasks nobody has claimed because workers here leave them to other nodes for now, as far as that is
    /// found in a bounded time.
    pub async fn count_left_to_others(&self) -> Result<LeftToOthers> {
        let (mut shown, mut left) = (Shown::default(), LeftToOthers::default());
        let prefix = layout::below(layout::PENDING, "");
        left.at_least = !look::list_some(&self.core, &prefix, MOST_LISTED, &mut shown).await?;
        let mut looked = 0;
        for (id, met) in shown.ids {
            for (generation, files) in met.pending {
                let key = TaskKey::new(id.clone(), generation);
                let is_free = files.task.is_some() && files.leases.is_empty();
                if !is_free || self.core.left_after_an_attempt(&key).await?.is_zero() {
                    continue;
                }
                if looked == MOST_READ {
                    return Ok(LeftToOthers { at_least: true, ..left });
                }
                looked += 1;
                left.tasks += u64::from(self.core.left_to_another_node(&key).await?.is_some());
            }
        }
        Ok(left)
    }
}
