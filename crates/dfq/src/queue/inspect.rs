//! Looking, without changing any task.

use std::collections::HashSet;
use std::sync::Arc;

use super::core::Core;
use super::judge::{self, Now, Verdict};
use super::types::{PendingStates, Place};
use super::{Detail, ListCursor, ListPage, OUTCOMES, Stats, TaskState, TaskView};
use crate::error::Result;
use crate::format;
use crate::layout::{self, Due, Shard};
use crate::model::{Outcome, TaskId, TaskKey};
use crate::store::{EntryKind, Tree};

/// The most tasks on one page of a listing.
const LIST_PAGE: usize = 1000;

impl<T: Tree> Core<T> {
    pub(super) async fn peek(&self, max: usize) -> Result<Vec<TaskView>> {
        let mut shards = layout::shards(self.layout());
        self.env.shuffle(&mut shards);
        let mut views = Vec::new();
        for shard in shards {
            for key in self.keys_in(layout::PENDING, shard).await? {
                if views.len() >= max {
                    return Ok(views);
                }
                let view = self.view_pending(&key).await?;
                views.extend(view.filter(|view| {
                    matches!(view.state, TaskState::Ready | TaskState::Stale { .. })
                }));
            }
        }
        Ok(views)
    }

    /// The tasks whose folders or records lie in a shard.
    async fn keys_in(&self, place: &str, shard: Shard) -> Result<Vec<TaskKey>> {
        let dir = layout::shard_dir(self.layout(), place, shard);
        let mut keys = Vec::new();
        self.each_entry(&dir, |entry| {
            keys.extend(match (place, entry.kind) {
                (layout::PENDING, EntryKind::Folder) => {
                    layout::parse_task_dir(self.layout(), shard, &entry.name)
                }
                (layout::PENDING, _) => None,
                (_, EntryKind::File) => {
                    layout::parse_record_name(self.layout(), shard, &entry.name)
                }
                _ => None,
            });
        })
        .await?;
        Ok(keys)
    }

    pub(super) async fn get(&self, id: &TaskId) -> Result<Option<TaskView>> {
        let last = self.last_life(id).await?;
        let next = TaskKey::new(id.clone(), last.map_or(1, |last| last + 1));
        if let Some(view) = self.view_pending(&next).await? {
            return Ok(Some(view));
        }
        for due in self.due_folders().await? {
            if let Some(view) = self.view_scheduled(due, &next).await? {
                return Ok(Some(view));
            }
        }
        // It may have come due between the two looks.
        if let Some(view) = self.view_pending(&next).await? {
            return Ok(Some(view));
        }
        if let Some(last) = last {
            return self.view_finished(&TaskKey::new(id.clone(), last)).await;
        }
        if let Some(foreign) = self.foreign_key(id) {
            return match self.view_pending(&foreign).await? {
                Some(view) => Ok(Some(view)),
                None => self.view_finished(&foreign).await,
            };
        }
        Ok(None)
    }

    async fn view_pending(&self, key: &TaskKey) -> Result<Option<TaskView>> {
        let Some(slot) = self.tree.open(&self.task_dir(key)).await? else { return Ok(None) };
        let look = self.tree.look(&slot, None, &self.record_paths(key)).await?;
        let Some(task) = look.task.filter(|_| !look.finished) else { return Ok(None) };
        let history = self.history(&slot).await?;
        let now = Now {
            store: self.now_for_onlookers().await,
            steady: true,
            watched: std::time::Duration::ZERO,
        };
        let worker_id = judge::current(&history).map(|seen| seen.worker_id().to_owned());
        let worker_id = worker_id.unwrap_or_default();
        let mut state = match judge::judge(&history, now, self.settings.lease) {
            Verdict::Free => TaskState::Ready,
            Verdict::Stale => TaskState::Stale { worker_id },
            Verdict::Held(until) => TaskState::Leased { worker_id, until },
            Verdict::Backoff(until) => TaskState::Backoff { until },
        };
        let decoded = format::decode_task(&task.bytes, key);
        let reason =
            decoded.as_ref().err().map(|error| format!("task.json cannot be read: {error}"));
        if decoded.is_err() {
            state = TaskState::Damaged;
        }
        let (payload, meta) = match decoded {
            Ok((payload, meta)) => (Some(payload), meta),
            Err(_) => (None, format::bare_meta(key)),
        };
        Ok(Some(TaskView {
            key: key.clone(),
            state,
            payload,
            meta,
            attempts: judge::summaries(&history),
            reason,
            finished_at: None,
        }))
    }

    async fn view_scheduled(&self, due: Due, key: &TaskKey) -> Result<Option<TaskView>> {
        let path = format!("{}/{}", layout::scheduled_dir(due, key), layout::TASK);
        let Some(stored) = self.tree.read(&path).await? else { return Ok(None) };
        let decoded = format::decode_task(&stored.bytes, key).ok();
        let (payload, meta) = decoded.unzip();
        Ok(Some(TaskView {
            key: key.clone(),
            state: TaskState::Scheduled { due: due.at() },
            payload,
            meta: meta.unwrap_or_else(|| format::bare_meta(key)),
            attempts: Vec::new(),
            reason: None,
            finished_at: None,
        }))
    }

    async fn view_finished(&self, key: &TaskKey) -> Result<Option<TaskView>> {
        let Some(record) = self.record(key).await? else { return Ok(None) };
        Ok(Some(TaskView {
            key: key.clone(),
            state: match record.outcome {
                Outcome::Completed => TaskState::Completed,
                Outcome::Failed => TaskState::Failed,
            },
            payload: record.payload,
            meta: record.meta,
            attempts: record.attempts,
            reason: record.reason,
            finished_at: record.finished_at,
        }))
    }

    /// One shard of one place at a time, or as much of it as a page holds.
    pub(super) async fn list(&self, from: Option<ListCursor>) -> Result<ListPage> {
        let ListCursor { place, shard, mut rest, mut scheduled } =
            from.unwrap_or_else(|| ListCursor::at(Place::Pending));
        if rest.is_empty() {
            rest = self.names_in(place, shard).await?;
        }
        let left = rest.split_off(rest.len().min(LIST_PAGE));
        if place == Place::Failed && scheduled.is_none() && !rest.is_empty() {
            scheduled = Some(Arc::new(self.scheduled_lives().await?));
        }
        let (mut tasks, none) = (Vec::with_capacity(rest.len()), HashSet::new());
        for (key, due) in rest {
            tasks.extend(match (place, due) {
                (_, Some(due)) => self.view_scheduled(due, &key).await?,
                (Place::Pending | Place::Scheduled, None) => self.view_pending(&key).await?,
                (Place::Completed, None) => self.view_finished(&key).await?,
                (Place::Failed, None) => {
                    if self.lives_again(&key, scheduled.as_deref().unwrap_or(&none)).await? {
                        continue;
                    }
                    // A task with both records has completed, and is listed there.
                    let view = self.view_finished(&key).await?;
                    view.filter(|view| view.state == TaskState::Failed)
                }
            });
        }
        if !left.is_empty() {
            let next = Some(ListCursor { place, shard, rest: left, scheduled });
            return Ok(ListPage { tasks, next });
        }
        let shards = layout::shards(self.layout());
        let next_shard = shards.get(usize::from(shard.number()) + 1).copied();
        let next = match (place, next_shard) {
            (Place::Pending, None) => Some(ListCursor::at(Place::Scheduled)),
            (Place::Scheduled, _) => Some(ListCursor::at(Place::Completed)),
            (Place::Completed, None) => Some(ListCursor::at(Place::Failed)),
            (Place::Failed, None) => None,
            (place, Some(shard)) => Some(ListCursor { place, shard, rest: Vec::new(), scheduled }),
        };
        Ok(ListPage { tasks, next })
    }

    /// The tasks of a shard, or of all of `scheduled/`, with the time that those are due.
    async fn names_in(&self, place: Place, shard: Shard) -> Result<Vec<(TaskKey, Option<Due>)>> {
        let folder = match place {
            Place::Pending => layout::PENDING,
            Place::Completed => layout::outcome_dir(Outcome::Completed),
            Place::Failed => layout::outcome_dir(Outcome::Failed),
            Place::Scheduled => {
                let mut names = Vec::new();
                for due in self.due_folders().await? {
                    let keys = self.scheduled_keys(due).await?;
                    names.extend(keys.into_iter().map(|key| (key, Some(due))));
                }
                return Ok(names);
            }
        };
        let keys = self.keys_in(folder, shard).await?;
        Ok(keys.into_iter().map(|key| (key, None)).collect())
    }

    pub(super) async fn scheduled_keys(&self, due: Due) -> Result<Vec<TaskKey>> {
        let mut keys = Vec::new();
        let dir = format!("{}/{}", layout::SCHEDULED, due.name());
        self.each_entry(&dir, |entry| keys.extend(layout::parse_canonical_stem(&entry.name)))
            .await?;
        Ok(keys)
    }

    pub(super) async fn stats(&self, detail: Detail) -> Result<Stats> {
        let mut stats =
            Stats { paused: self.tree.read(layout::PAUSED).await?.is_some(), ..Stats::default() };
        let mut states = PendingStates::default();
        let mut scheduled = HashSet::new();
        for due in self.due_folders().await? {
            let keys = self.scheduled_keys(due).await?;
            stats.scheduled += keys.len() as u64;
            scheduled.extend(keys.into_iter().filter(|key| key.generation() > 1));
        }
        for shard in layout::shards(self.layout()) {
            let pending = self.keys_in(layout::PENDING, shard).await?;
            let [completed, failed] =
                OUTCOMES.map(|outcome| self.keys_in(layout::outcome_dir(outcome), shard));
            let (completed, failed) = (completed.await?, failed.await?);
            stats.pending += pending.len() as u64;
            stats.completed += completed.len() as u64;
            stats.failed += count_given_up(&failed, &pending, &completed, &scheduled);
            if detail == Detail::States {
                for key in pending {
                    match self.view_pending(&key).await? {
                        Some(view) => states.count(&view),
                        None => stats.pending -= 1, // finished, not cleaned up yet
                    }
                }
            }
        }
        stats.states = (detail == Detail::States).then_some(states);
        Ok(stats)
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
