//! The lease files of a task as they are found, and the judgement on them.
//!
//! `judge` decides; here is what it is told: what was read, what the store's clock shows, and for how long this
//! process has watched the lease that counts.

use std::time::Duration;

use jiff::Timestamp;

use super::core::Core;
use super::discover::Candidate;
use super::judge::{self, Judgement, Now, Seen};
use crate::clock::lock;
use crate::error::Result;
use crate::model::TaskKey;
use crate::planted::{self, Planted};
use crate::store::Tree;

impl<T: Tree> Core<T> {
    /// The leases of a task whose first exists already. Where looks cost, the first alone: somebody
    /// has just created it.
    pub(super) async fn history_after_collision(&self, task_dir: &T::TaskDir) -> Result<Vec<Seen>> {
        match self.strategy.looks.all_leases_after_a_collision {
            true => self.history(task_dir).await,
            false => self.history_of(task_dir, &[1]).await,
        }
    }

    /// Every lease file of a task, ascending.
    pub(super) async fn history(&self, task_dir: &T::TaskDir) -> Result<Vec<Seen>> {
        self.history_of(task_dir, &self.tree.leases(task_dir).await?).await
    }

    /// The lease files of these attempts, ascending, as far as they are there.
    pub(super) async fn history_of(
        &self,
        task_dir: &T::TaskDir,
        attempts: &[u32],
    ) -> Result<Vec<Seen>> {
        let read = |attempt: u32| async move {
            let stored = self.tree.read_lease(task_dir, attempt).await?;
            Ok(stored.map(|stored| Seen::new(attempt, &stored)))
        };
        let reading = attempts.iter().copied().map(read).collect();
        let mut history: Vec<Seen> = self.in_width(reading).await?;
        history.sort_unstable_by_key(|seen| seen.attempt);
        Ok(history)
    }

    /// The judgement, and the monotonic time at which the store's clock was read for it.
    pub(super) async fn judge(
        &self,
        candidate: &Candidate,
        history: &[Seen],
    ) -> Result<(Judgement, (Timestamp, Duration))> {
        let (judgement, when) = self.judge_now(&candidate.key, history).await?;
        match judgement {
            // It goes on waiting where it is taken.
            Judgement::Backoff(_) if candidate.moving => Ok((Judgement::Free, when)),
            Judgement::Stale if !planted::is(Planted::NoFreshClock) => {
                // Before anything is taken over, the clock is read afresh: it may have jumped since.
                self.sample_clock().await?;
                self.judge_now(&candidate.key, history).await
            }
            judgement => Ok((judgement, when)),
        }
    }

    pub(super) async fn judge_now(
        &self,
        key: &TaskKey,
        history: &[Seen],
    ) -> Result<(Judgement, (Timestamp, Duration))> {
        let store = self.now().await?;
        let mono = self.env.monotonic();
        let mut now = Now { store, steady: true, watched: Duration::ZERO };
        if let Some(current) = judge::current(history) {
            let length = current.length(self.settings.lease);
            let length = Duration::try_from(length).unwrap_or(Duration::ZERO);
            let length = length + self.as_node().map_or(Duration::ZERO, |synced| synced.period * 2);
            now.steady = lock(&self.clock).steady_for(length, mono);
            // A backoff is watched only where its end on the store's clock cannot be believed.
            let waits = match current.modified > store {
                true => Duration::try_from(current.waits()).unwrap_or(Duration::ZERO),
                false => Duration::ZERO,
            };
            now.watched = lock(&self.known).watched_for(key, current, length.max(waits), mono);
        }
        let mut elsewhere = self.elsewhere(key).await;
        if let Some(elsewhere) = &mut elsewhere {
            elsewhere.left = self.left_after_an_attempt(key).await?;
        }
        let judgement = judge::judge(history, now, self.settings.lease, elsewhere.as_ref());
        Ok((judgement, (store, mono)))
    }

    /// A time on the store's clock, as a monotonic one.
    pub(super) fn monotonic_at(
        &self,
        at: Timestamp,
        (store, mono): (Timestamp, Duration),
    ) -> Duration {
        let wait = Duration::try_from(at.duration_since(store)).unwrap_or(Duration::ZERO);
        mono.saturating_add(wait)
    }
}
