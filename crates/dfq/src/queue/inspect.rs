//! Looking, without changing any task.

use super::core::Core;
use super::judge::{self, Now, Verdict};
use super::types::{PendingStates, Place};
use super::{Detail, ListCursor, ListPage, OUTCOMES, Problem, Stats, TaskState, TaskView};
use crate::error::Result;
use crate::format;
use crate::layout::{self, Due, Shard};
use crate::model::{Layout, Outcome, TaskId, TaskKey};
use crate::store::{EntryKind, Tree};

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

    /// One shard of one place at a time.
    pub(super) async fn list(&self, from: Option<ListCursor>) -> Result<ListPage> {
        let shards = layout::shards(self.layout());
        let start = ListCursor { place: Place::Pending, shard: shards[0] };
        let here = from.unwrap_or(start);
        let mut tasks = Vec::new();
        match here.place {
            Place::Pending => {
                for key in self.keys_in(layout::PENDING, here.shard).await? {
                    tasks.extend(self.view_pending(&key).await?);
                }
            }
            Place::Scheduled => {
                for due in self.due_folders().await? {
                    for key in self.scheduled_keys(due).await? {
                        tasks.extend(self.view_scheduled(due, &key).await?);
                    }
                }
            }
            Place::Completed | Place::Failed => {
                let outcome = match here.place {
                    Place::Completed => Outcome::Completed,
                    _ => Outcome::Failed,
                };
                for key in self.keys_in(layout::outcome_dir(outcome), here.shard).await? {
                    // A task with both records has completed, and is listed there.
                    let view = self.view_finished(&key).await?;
                    let here = |view: &TaskView| {
                        (view.state == TaskState::Completed) == (outcome == Outcome::Completed)
                    };
                    tasks.extend(view.filter(here));
                }
            }
        }
        let next_shard = shards.get(usize::from(here.shard.number()) + 1).copied();
        let next = match (here.place, next_shard) {
            (Place::Scheduled, _) => Some((Place::Completed, shards[0])),
            (place, Some(shard)) => Some((place, shard)),
            (Place::Pending, None) => Some((Place::Scheduled, shards[0])),
            (Place::Completed, None) => Some((Place::Failed, shards[0])),
            (Place::Failed, None) => None,
        };
        let next = next.map(|(place, shard)| ListCursor { place, shard });
        Ok(ListPage { tasks, next })
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
        for shard in layout::shards(self.layout()) {
            let pending = self.keys_in(layout::PENDING, shard).await?;
            stats.pending += pending.len() as u64;
            if detail == Detail::States {
                for key in pending {
                    match self.view_pending(&key).await? {
                        Some(view) => states.count(&view),
                        None => stats.pending -= 1, // finished, not cleaned up yet
                    }
                }
            }
            for outcome in OUTCOMES {
                let count = self.keys_in(layout::outcome_dir(outcome), shard).await?.len() as u64;
                match outcome {
                    Outcome::Completed => stats.completed += count,
                    Outcome::Failed => stats.failed += count,
                }
            }
        }
        for due in self.due_folders().await? {
            stats.scheduled += self.scheduled_keys(due).await?.len() as u64;
        }
        stats.states = (detail == Detail::States).then_some(states);
        Ok(stats)
    }

    pub(super) async fn check(&self) -> Result<Vec<Problem>> {
        let mut problems = Vec::new();
        let ours = [
            layout::SETTINGS,
            layout::PAUSED,
            layout::UNLOCKED,
            layout::PENDING,
            layout::SCHEDULED,
            "completed",
            "failed",
            layout::WORKERS,
            layout::TMP,
        ];
        self.each_entry(".", |entry| {
            if !ours.contains(&entry.name.as_str()) {
                problem(&mut problems, &entry.name, "not a part of the queue");
            }
        })
        .await?;
        for place in [layout::PENDING, "completed", "failed"] {
            if self.layout() == Layout::Sharded {
                self.each_entry(place, |entry| {
                    if Shard::parse(&entry.name).is_none() || entry.kind != EntryKind::Folder {
                        problem(&mut problems, &format!("{place}/{}", entry.name), "not a shard");
                    }
                })
                .await?;
            }
            for shard in layout::shards(self.layout()) {
                self.check_shard(place, shard, &mut problems).await?;
            }
        }
        Ok(problems)
    }

    async fn check_shard(
        &self,
        place: &str,
        shard: Shard,
        problems: &mut Vec<Problem>,
    ) -> Result<()> {
        let dir = layout::shard_dir(self.layout(), place, shard);
        let mut keys = Vec::new();
        let visited = self
            .each_entry(&dir, |entry| {
                let (key, wanted) = match place {
                    layout::PENDING => (
                        layout::parse_task_dir(self.layout(), shard, &entry.name),
                        EntryKind::Folder,
                    ),
                    _ => (
                        layout::parse_record_name(self.layout(), shard, &entry.name),
                        EntryKind::File,
                    ),
                };
                match key.filter(|_| entry.kind == wanted) {
                    Some(key) => keys.push(key),
                    None => problem(
                        problems,
                        &format!("{dir}/{}", entry.name),
                        "does not belong here: no task that we named, or in the wrong folder",
                    ),
                }
            })
            .await;
        if let Err(error) = visited {
            problem(problems, &dir, &error.to_string());
            return Ok(());
        }
        for key in keys {
            if place == layout::PENDING {
                self.check_task(&key, problems).await?;
            } else {
                let outcome =
                    if place == "completed" { Outcome::Completed } else { Outcome::Failed };
                let path = self.record_path(outcome, &key);
                let Some(stored) = self.tree.read(&path).await? else { continue };
                if let Err(error) = format::decode_record(&stored.bytes, outcome, &key) {
                    problem(problems, &path, &format!("cannot be read: {error}"));
                }
            }
        }
        Ok(())
    }

    async fn check_task(&self, key: &TaskKey, problems: &mut Vec<Problem>) -> Result<()> {
        let dir = self.task_dir(key);
        let slot = match self.tree.open(&dir).await {
            Ok(Some(slot)) => slot,
            Ok(None) => return Ok(()),
            Err(error) => {
                problem(problems, &dir, &error.to_string());
                return Ok(());
            }
        };
        let look = match self.tree.look(&slot, None, &self.record_paths(key)).await {
            Ok(look) => look,
            Err(error) => {
                problem(problems, &dir, &error.to_string());
                return Ok(());
            }
        };
        match &look.task {
            None => problem(problems, &dir, "has no task.json; the next worker removes it"),
            Some(_) if look.finished => {
                problem(problems, &dir, "has finished; the next worker removes it");
            }
            Some(task) => {
                if let Err(error) = format::decode_task(&task.bytes, key) {
                    let what = format!("{error}; the next worker sets it aside in failed/");
                    problem(problems, &format!("{dir}/{}", layout::TASK), &what);
                }
            }
        }
        for seen in self.history(&slot).await?.iter().filter(|seen| seen.lease.is_none()) {
            let path = format!("{dir}/{}", layout::lease_name(seen.attempt));
            problem(problems, &path, "cannot be read; it is judged by its age");
        }
        Ok(())
    }
}

fn problem(problems: &mut Vec<Problem>, path: &str, what: &str) {
    problems.push(Problem { path: path.to_owned(), what: what.to_owned() });
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
