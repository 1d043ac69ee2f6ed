//! Counting tasks: all of them, or where that takes many requests a part, from which the rest is
//! estimated. Ids are spread over the shards by a hash, so one shard is as good as another.

use std::collections::HashSet;
use std::sync::Mutex;

use super::core::Core;
use super::types::PendingStates;
use super::{Detail, OUTCOMES, Stats, TaskState, TaskView};
use crate::clock::lock;
use crate::error::Result;
use crate::layout;
use crate::model::{Layout, Outcome, TaskKey};
use crate::store::Tree;

/// Requests spent on an estimate, about, for each place; and shards looked at, at least.
const SAMPLE: (u64, usize) = (4, 2);

/// Keys in one request.
const PAGE: u64 = 1000;

impl<T: Tree> Core<T> {
    pub(super) async fn stats(&self, detail: Detail) -> Result<Stats> {
        // What we have finished ourselves should not be counted as pending.
        self.tree.flush().await?;
        let mut stats = Stats {
            paused: self.tree.read(layout::PAUSED).await?.is_some(),
            exact: true,
            ..Stats::default()
        };
        let mut scheduled = HashSet::new();
        for due in self.due_folders().await? {
            let keys = self.scheduled_keys(due).await?;
            stats.scheduled += keys.len() as u64;
            scheduled.extend(keys.into_iter().filter(|key| key.generation() > 1));
        }
        if self.remote() {
            self.count_pages(&mut stats, &scheduled, detail).await?;
        } else {
            self.count_shards(&mut stats, &scheduled, detail).await?;
        }
        Ok(stats)
    }

    async fn count_shards(
        &self,
        stats: &mut Stats,
        scheduled: &HashSet<TaskKey>,
        detail: Detail,
    ) -> Result<()> {
        for shard in layout::shards(self.layout()) {
            let pending = self.keys_in(layout::PENDING, shard).await?;
            let [completed, failed] =
                OUTCOMES.map(|outcome| self.keys_in(layout::outcome_dir(outcome), shard));
            let (completed, failed) = (completed.await?, failed.await?);
            stats.pending += pending.len() as u64;
            stats.completed += completed.len() as u64;
            stats.failed += count_given_up(&failed, &pending, &completed, scheduled);
            if detail == Detail::States {
                self.count_states(stats, pending).await?;
            }
        }
        Ok(())
    }

    async fn count_states(&self, stats: &mut Stats, pending: Vec<TaskKey>) -> Result<()> {
        let states = stats.states.get_or_insert_default();
        let all = pending.len();
        let looking = pending.iter().map(|key| self.view_pending(key)).collect();
        let views: Vec<TaskView> = self.in_width(looking).await?;
        views.iter().for_each(|view| states.count(view));
        stats.pending -= (all - views.len()) as u64; // finished, not cleaned up yet
        Ok(())
    }

    async fn count_pages(
        &self,
        stats: &mut Stats,
        scheduled: &HashSet<TaskKey>,
        detail: Detail,
    ) -> Result<()> {
        if detail == Detail::Counts && self.layout() == Layout::Sharded {
            let [pending, completed, failed] = futures::future::try_join_all([
                self.estimate(layout::PENDING),
                self.estimate(layout::outcome_dir(Outcome::Completed)),
                self.estimate(layout::outcome_dir(Outcome::Failed)),
            ])
            .await?[..] else {
                return Ok(());
            };
            let estimates = [pending, completed, failed];
            if estimates.iter().any(|estimate| !estimate.exact) {
                (stats.pending, stats.completed) = (pending.tasks, completed.tasks);
                (stats.failed, stats.exact) = (failed.tasks, false);
                stats.exact_requests =
                    estimates.iter().map(|estimate| estimate.tasks / PAGE + 1).sum();
                return Ok(());
            }
        }
        let (pending, completed, failed) = (Collected::new(), Collected::new(), Collected::new());
        let places = [
            (layout::PENDING, &pending),
            (layout::outcome_dir(Outcome::Completed), &completed),
            (layout::outcome_dir(Outcome::Failed), &failed),
        ];
        let collecting = places
            .map(|(place, all)| async move { self.each_key(place, &|key| all.add(key)).await });
        futures::future::try_join_all(collecting).await?;
        let (mut pending, completed, failed) = (pending.take(), completed.take(), failed.take());
        stats.completed = completed.len() as u64;
        stats.failed = count_given_up(&failed, &pending, &completed, scheduled);
        // What has a record has finished; its remains are on their way out.
        let over: HashSet<&TaskKey> = completed.iter().chain(&failed).collect();
        pending.retain(|key| !over.contains(key));
        stats.pending = pending.len() as u64;
        if detail == Detail::States {
            self.count_states(stats, pending).await?;
        }
        Ok(())
    }

    /// How many tasks a place holds, from a page, or from a few shards.
    async fn estimate(&self, place: &str) -> Result<Estimate> {
        let (keys, next) = self.stretch(place, super::walk::Spot::START).await?;
        if next.is_none() {
            return Ok(Estimate { tasks: keys.len() as u64, exact: true });
        }
        let counted = Mutex::new(0_u64);
        let (mut pages, mut shards) = (0, 0);
        while pages < SAMPLE.0 || shards < SAMPLE.1 {
            let shard = self.env.below(256);
            let count = |_: &TaskKey| *lock(&counted) += 1;
            pages += self.each_key_between(place, shard, shard + 1, None, &count).await?;
            shards += 1;
        }
        let counted = *lock(&counted);
        Ok(Estimate { tasks: counted * 256 / shards as u64, exact: false })
    }
}

#[derive(Clone, Copy)]
struct Estimate {
    tasks: u64,
    exact: bool,
}

/// Tasks that several listings at once have met.
struct Collected(Mutex<Vec<TaskKey>>);

impl Collected {
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn add(&self, key: &TaskKey) {
        lock(&self.0).push(key.clone());
    }

    fn take(self) -> Vec<TaskKey> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// How many failed records are a task's last word: it has neither completed after all, nor lived again.
/// All lives of an id lie in one shard.
fn count_given_up(
    failed: &[TaskKey],
    pending: &[TaskKey],
    completed: &[TaskKey],
    scheduled: &HashSet<TaskKey>,
) -> u64 {
    if failed.is_empty() {
        return 0;
    }
    let lives = pending.iter().chain(completed).chain(failed);
    let later: HashSet<&TaskKey> =
        lives.chain(scheduled).filter(|key| key.generation() > 1).collect();
    let completed: HashSet<&TaskKey> = completed.iter().collect();
    let lives_again = |key: &TaskKey| {
        let next = TaskKey::new(key.id().clone(), key.generation() + 1);
        !key.is_verbatim() && later.contains(&next)
    };
    failed.iter().filter(|key| !completed.contains(key) && !lives_again(key)).count() as u64
}

impl PendingStates {
    fn count(&mut self, view: &TaskView) {
        match view.state {
            TaskState::Leased { .. } => self.leased += 1,
            TaskState::Stale { .. } => self.stale += 1,
            TaskState::Backoff { .. } => self.backoff += 1,
            TaskState::Damaged => self.damaged += 1,
            _ => self.ready += 1,
        }
        if let Some(created) = view.meta.created_at {
            self.oldest = Some(self.oldest.map_or(created, |oldest| oldest.min(created)));
        }
    }
}
