//! Counting tasks: all of them, or where that takes many requests a part, from which the rest is
//! estimated. Ids are spread over the shards by a hash, so one shard is as good as another.
//!
//! Invariant: in a bucket, what the pages of keys show is not asked for again. They show which tasks have a lease;
//! what those wait for is read from a few of their leases.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::core::Core;
use super::pages::Met;
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

/// So many pages are listed for exact numbers without being asked to: a quarter of a cent.
const UNASKED_PAGES: u64 = 500;

/// So many tasks that have a lease are looked into, to tell what all of them wait for.
const READS: usize = 100;

impl<T: Tree> Core<T> {
    pub(super) async fn stats(&self, detail: Detail) -> Result<Stats> {
        // What we have finished ourselves should not be counted as pending.
        self.tree.flush().await?;
        let mut stats =
            Stats { paused: self.version_of(layout::PAUSED).await?.is_some(), ..Stats::default() };
        let scheduled = self.scheduled().await?;
        stats.scheduled = scheduled.len() as u64;
        let later = scheduled.into_iter().map(|(_, key)| key);
        let later = later.filter(|key| key.generation() > 1).collect();
        match self.strategy.finding {
            Finding::Shards => self.count_shards(&mut stats, &later, detail).await?,
            Finding::Pages => self.count_pages(&mut stats, &later, detail).await?,
        }
        Ok(stats)
    }

    async fn count_shards(
        &self,
        stats: &mut Stats,
        scheduled: &BTreeSet<TaskKey>,
        detail: Detail,
    ) -> Result<()> {
        for shard in self.names().shards() {
            let pending = self.keys_in(layout::PENDING, shard).await?;
            let [completed, failed] =
                OUTCOMES.map(|outcome| self.keys_in(layout::outcome_dir(outcome), shard));
            let (completed, failed) = (completed.await?, failed.await?);
            stats.pending += pending.len() as u64;
            stats.completed += completed.len() as u64;
            stats.failed += count_given_up(
                failed.iter(),
                pending.iter().chain(&completed),
                completed.iter(),
                scheduled,
            );
            if detail != Detail::Counts {
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
        for view in &views {
            states.add(&view.state, 1);
            states.see(view.meta.created_at);
        }
        stats.pending -= (all - views.len()) as u64; // finished, not cleaned up yet
        Ok(())
    }

    async fn count_pages(
        &self,
        stats: &mut Stats,
        scheduled: &BTreeSet<TaskKey>,
        detail: Detail,
    ) -> Result<()> {
        let [mut pending, completed, failed] = self.count_places(detail).await?;
        pending.met.retain(|met| met.written.is_some());
        let is_known = completed.is_all() && failed.is_all();
        if is_known {
            // What has a record has finished; its remains are on their way out.
            let over: BTreeSet<&TaskKey> = completed.keys().chain(failed.keys()).collect();
            pending.met.retain(|met| !over.contains(&met.key));
        }
        (stats.pending, stats.completed) = (pending.number(), completed.number());
        stats.failed = match is_known && pending.is_all() {
            true => {
                let lives = pending.keys().chain(completed.keys());
                count_given_up(failed.keys(), lives, completed.keys(), scheduled)
            }
            false => failed.number(),
        };
        if detail != Detail::Counts {
            let (states, gone) = self.states_of(&pending, detail, is_known).await?;
            stats.pending -= gone;
            let sampled = detail != Detail::Exact && pending.leased() > READS;
            stats.estimates.states = !pending.is_all() || sampled;
            stats.estimates.pending = gone > 0 && stats.estimates.states;
            stats.states = Some(states);
        }
        stats.estimates.pending |= !pending.is_all();
        stats.estimates.completed = !completed.is_all();
        // Without all the others it is not known which of them live again.
        stats.estimates.failed = !is_known || !pending.is_all();
        if !stats.is_exact() {
            let all = [&pending, &completed, &failed];
            stats.exact_requests = all.map(|count| count.number() / PAGE + 1).iter().sum();
            stats.exact_reads = pending.scaled(pending.leased() as u64);
        }
        Ok(())
    }

    /// What the three places hold: all of it if that was asked for or costs next to nothing, else a part.
    async fn count_places(&self, detail: Detail) -> Result<[Count; 3]> {
        let places = [
            layout::PENDING,
            layout::outcome_dir(Outcome::Completed),
            layout::outcome_dir(Outcome::Failed),
        ];
        let [pending, completed, failed] = places;
        if detail != Detail::Exact {
            let (pending, completed, failed) = futures::try_join!(
                self.sample(pending),
                self.sample(completed),
                self.sample(failed)
            )?;
            let counts = [pending, completed, failed];
            let pages: u64 = counts.iter().map(|count| count.number() / PAGE).sum();
            let is_part = counts.iter().any(|count| !count.is_all());
            if !is_part || detail == Detail::Counts || pages > UNASKED_PAGES {
                return Ok(counts);
            }
        }
        let (pending, completed, failed) =
            futures::try_join!(self.all_of(pending), self.all_of(completed), self.all_of(failed))?;
        Ok([pending, completed, failed])
    }

    async fn all_of(&self, place: &str) -> Result<Count> {
        let met = Mutex::new(Vec::new());
        self.each_met(place, &|task| lock(&met).push(task)).await?;
        let met = std::mem::take(&mut *lock(&met));
        Ok(Count { met, shards: None })
    }

    /// What a place holds, or a few shards of it if that takes more than one page.
    async fn sample(&self, place: &str) -> Result<Count> {
        if self.layout() == Layout::Flat {
            return self.all_of(place).await; // there are no parts of it
        }
        let (met, next) = self.stretch_met(place, super::walk::Spot::START).await?;
        if next.is_none() {
            return Ok(Count { met, shards: None });
        }
        let met = Mutex::new(Vec::new());
        let (mut pages, mut shards) = (0, 0);
        while pages < SAMPLE.0 || shards < SAMPLE.1 {
            let shard = self.env.below(256);
            let add = |task| lock(&met).push(task);
            pages += self.each_met_between(place, shard, shard + 1, None, &add).await?;
            shards += 1;
        }
        let met = std::mem::take(&mut *lock(&met));
        Ok(Count { met, shards: Some(shards as u64) })
    }

    /// What pending tasks wait for; and how many turned out to have finished. Those that have a lease are one figure,
    /// which is split by looking into a few of them; into all for exact numbers.
    async fn states_of(
        &self,
        pending: &Count,
        detail: Detail,
        finished_are_known: bool,
    ) -> Result<(PendingStates, u64)> {
        let mut leased: Vec<&Met> = pending.met.iter().filter(|met| met.is_leased()).collect();
        let all = leased.len() as u64;
        if detail != Detail::Exact && leased.len() > READS {
            self.env.shuffle(&mut leased);
            leased.truncate(READS);
        }
        let looking = leased.iter().map(|met| self.state_of(met, !finished_are_known)).collect();
        let seen: Vec<TaskState> = self.in_width(looking).await?;
        let ready = pending.scaled(pending.met.len() as u64 - all);
        let mut states = PendingStates { ready, ..PendingStates::default() };
        pending.met.iter().for_each(|met| states.see(met.written));
        let mut found = PendingStates::default();
        seen.iter().for_each(|state| found.add(state, 1));
        let looked = leased.len() as u64;
        let share = |count: u64| {
            pending.scaled((count * all + looked / 2).checked_div(looked).unwrap_or(0))
        };
        states.ready += share(found.ready);
        states.leased = share(found.leased);
        states.stale = share(found.stale);
        states.backoff = share(found.backoff);
        states.damaged = share(found.damaged);
        Ok((states, share(looked - seen.len() as u64)))
    }
}

/// What a place holds, or a part of it.
struct Count {
    met: Vec<Met>,
    /// In so many of the 256 shards; `None` if in all.
    shards: Option<u64>,
}

impl Count {
    fn is_all(&self) -> bool {
        self.shards.is_none()
    }

    /// How many there are of what was found so often.
    fn scaled(&self, found: u64) -> u64 {
        self.shards.map_or(found, |shards| found * 256 / shards)
    }

    fn number(&self) -> u64 {
        self.scaled(self.met.len() as u64)
    }

    fn leased(&self) -> usize {
        self.met.iter().filter(|met| met.is_leased()).count()
    }

    fn keys(&self) -> impl Iterator<Item = &TaskKey> + Clone {
        self.met.iter().map(|met| &met.key)
    }
}

/// How many failed records are a task's last word: it has neither completed after all, nor lived again.
/// All lives of an id lie in one shard.
fn count_given_up<'a>(
    failed: impl Iterator<Item = &'a TaskKey> + Clone,
    others: impl Iterator<Item = &'a TaskKey>,
    completed: impl Iterator<Item = &'a TaskKey>,
    scheduled: &'a BTreeSet<TaskKey>,
) -> u64 {
    if failed.clone().next().is_none() {
        return 0;
    }
    let lives = others.chain(failed.clone()).chain(scheduled);
    let later: BTreeSet<&TaskKey> = lives.filter(|key| key.generation() > 1).collect();
    let completed: BTreeSet<&TaskKey> = completed.collect();
    let lives_again = |key: &TaskKey| {
        let next = TaskKey::new(key.id().clone(), key.generation() + 1);
        !key.is_verbatim() && later.contains(&next)
    };
    failed.filter(|key| !completed.contains(key) && !lives_again(key)).count() as u64
}

impl PendingStates {
    fn add(&mut self, state: &TaskState, count: u64) {
        match state {
            TaskState::Leased { .. } => self.leased += count,
            TaskState::Stale { .. } => self.stale += count,
            TaskState::Backoff { .. } => self.backoff += count,
            TaskState::Damaged => self.damaged += count,
            _ => self.ready += count,
        }
    }

    /// One of them was pushed then.
    fn see(&mut self, pushed: Option<jiff::Timestamp>) {
        self.oldest = self.oldest.into_iter().chain(pushed).min();
    }
}
