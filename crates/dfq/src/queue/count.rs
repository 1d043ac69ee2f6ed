//! Counting tasks: all of them, or where that takes many requests a part, from which the rest is
//! estimated. Ids are spread over the shards by a hash, so one shard is as good as another.

use std::collections::HashSet;
use std::sync::Mutex;

use super::core::Core;
use super::strategy::Finding;
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
            paused: self.version_of(layout::PAUSED).await?.is_some(),
            exact: true,
            ..Stats::default()
        };
        let mut scheduled = HashSet::new();
        for due in self.due_folders().await? {
            let keys = self.scheduled_keys(due).await?;
            stats.scheduled += keys.len() as u64;
            scheduled.extend(keys.into_iter().filter(|key| key.generation() > 1));
        }
        match self.strategy.finding {
            Finding::Shards => self.count_shards(&mut stats, &scheduled, detail).await?,
            Finding::Pages => self.count_pages(&mut stats, &scheduled, detail).await?,
        }
        Ok(stats)
    }

    async fn count_shards(
        &self,
        stats: &mut Stats,
        scheduled: &HashSet<TaskKey>,
        detail: Detail,
    ) -> Result<()> {
        for shard in self.names().shards() {
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
        let places = [
            layout::PENDING,
            layout::outcome_dir(Outcome::Completed),
            layout::outcome_dir(Outcome::Failed),
        ];
        let counting = places.map(|place| self.count_place(place, detail));
        let mut counted = futures::future::try_join_all(counting).await?;
        if counted.iter().any(|count| matches!(count, Count::About(_))) {
            let numbers: Vec<u64> = counted.iter().map(Count::number).collect();
            (stats.pending, stats.completed, stats.failed) = (numbers[0], numbers[1], numbers[2]);
            stats.exact = false;
            stats.exact_requests = numbers.iter().map(|tasks| tasks / PAGE + 1).sum();
            return Ok(());
        }
        let mut keys = || counted.remove(0).keys();
        let (mut pending, completed, failed) = (keys(), keys(), keys());
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

    /// What a place holds: all of it, or where that takes more than one page and is not asked for, how
    /// much that is by a few shards.
    async fn count_place(&self, place: &str, detail: Detail) -> Result<Count> {
        let exact = detail != Detail::Counts || self.layout() == Layout::Flat;
        if exact {
            let all = Collected::new();
            self.each_key(place, &|key| all.add(key)).await?;
            return Ok(Count::Of(all.take()));
        }
        let (keys, next) = self.stretch(place, super::walk::Spot::START).await?;
        if next.is_none() {
            return Ok(Count::Of(keys));
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
        Ok(Count::About(counted * 256 / shards as u64))
    }
}

/// What a place holds.
enum Count {
    Of(Vec<TaskKey>),
    About(u64),
}

impl Count {
    fn number(&self) -> u64 {
        match self {
            Self::Of(keys) => keys.len() as u64,
            Self::About(tasks) => *tasks,
        }
    }

    fn keys(self) -> Vec<TaskKey> {
        match self {
            Self::Of(keys) => keys,
            Self::About(_) => Vec::new(),
        }
    }
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
