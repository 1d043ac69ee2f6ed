//! What the queue's records say about how it went.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use dfq::queue::{Detail, ListCursor, Place, TaskView};
use dfq::{Queue, TaskId};

use super::crew::Killed;
use crate::output::{self, thousands};

/// Counted from the records alone.
pub(super) struct Proof {
    pub(super) completed: u64,
    pub(super) failed: u64,
    /// Pushed, and neither completed nor failed nor waiting.
    pub(super) lost: u64,
    /// With more than one record of completion.
    pub(super) twice: u64,
    /// Begun by the worker that was killed, completed by another.
    pub(super) taken_over: Vec<TaskId>,
    /// Still waiting, or in a place where nothing should be.
    left: u64,
}

impl Proof {
    pub(super) async fn read(queue: &dyn Queue, ids: &[TaskId], killed: &Killed) -> Result<Self> {
        let mut records: BTreeMap<TaskId, u64> = BTreeMap::new();
        let mut taken_over = Vec::new();
        let mut cursor = Some(ListCursor::at(Place::Completed));
        while let Some(from) = cursor.take().filter(|from| from.place() == Place::Completed) {
            let page = queue.list(Some(from)).await?;
            for view in &page.tasks {
                *records.entry(view.key.id().clone()).or_default() += 1;
                if was_taken_over(view, killed) {
                    taken_over.push(view.key.id().clone());
                }
            }
            cursor = page.next;
        }
        let stats = queue.stats(Detail::Counts).await?;
        let problems = queue.check(false).await?.len() as u64;
        let missing = ids.iter().filter(|id| !records.contains_key(*id)).count() as u64;
        let left = stats.pending + stats.scheduled;
        Ok(Self {
            completed: records.len() as u64,
            failed: stats.failed,
            lost: missing.saturating_sub(stats.failed + left),
            twice: records.values().filter(|number| **number > 1).count() as u64,
            taken_over,
            left: left + problems,
        })
    }

    /// Whether all is as promised: everything completed once, and the dead worker's tasks by others.
    pub(super) fn holds(&self, killed: &Killed) -> bool {
        let all_taken = killed.tasks.iter().all(|id| self.taken_over.contains(id));
        self.failed + self.lost + self.twice + self.left == 0 && all_taken
    }

    pub(super) fn lines(&self, tasks: u64, killed: &Killed, elapsed: Duration) -> Vec<String> {
        let number = thousands;
        let mut lines = vec![
            String::new(),
            format!(
                "{} pushed, {} completed, {} failed, in {:.1} s",
                output::count(tasks, "task"),
                number(self.completed),
                number(self.failed),
                elapsed.as_secs_f64()
            ),
            format!(
                "{} in the hands of the worker that was killed, {} taken over and completed by others",
                output::count(killed.tasks.len() as u64, "task"),
                number(self.taken_over.len() as u64)
            ),
        ];
        lines.push(if self.holds(killed) {
            "nothing lost, nothing completed twice: every task has exactly one record".to_owned()
        } else {
            format!(
                "NOT as promised: {} lost, {} completed twice, {} left over",
                number(self.lost),
                number(self.twice),
                number(self.left)
            )
        });
        lines
    }
}

fn was_taken_over(view: &TaskView, killed: &Killed) -> bool {
    let by_killed = |worker: &str| worker == killed.worker_id;
    let had_it = view.attempts.iter().any(|attempt| by_killed(&attempt.worker_id));
    let last = view.attempts.last();
    killed.tasks.contains(view.key.id())
        && had_it
        && last.is_some_and(|last| !by_killed(&last.worker_id))
}
