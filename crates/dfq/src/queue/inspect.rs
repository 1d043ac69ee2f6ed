//! Looking, without changing any task.

use std::collections::HashSet;
use std::sync::Arc;

use super::core::Core;
use super::judge::{self, Judgement, Now};
use super::types::Place;
use super::walk::Spot;
use super::{Earlier, ListCursor, ListPage, TaskState, TaskView};
use crate::error::Result;
use crate::format;
use crate::layout::{self, Due};
use crate::model::{Outcome, TaskId, TaskKey};
use crate::store::Tree;

/// The most tasks on one page of a listing, and about how many bytes of payload.
const LIST_PAGE: usize = 1000;
const LIST_BYTES: usize = 16 * 1024 * 1024;

/// So many tasks are looked at before their sizes are.
const LIST_STRIDE: usize = 64;

impl<T: Tree> Core<T> {
    pub(super) async fn peek(&self, max: usize) -> Result<Vec<TaskView>> {
        let mut views: Vec<TaskView> = Vec::new();
        for from in self.random_spots() {
            let mut from = Some(from);
            while let Some(spot) = from.take().filter(|_| views.len() < max) {
                let (keys, next) = self.stretch(layout::PENDING, spot).await?;
                for some in keys.chunks(self.width()) {
                    let looking = some.iter().map(|key| self.view_pending(key)).collect();
                    let seen: Vec<TaskView> = self.in_width(looking).await?;
                    views.extend(seen.into_iter().filter(|view| {
                        matches!(view.state, TaskState::Ready | TaskState::Stale { .. })
                    }));
                    if views.len() >= max {
                        break;
                    }
                }
                from = next.filter(|_| self.goes_on_across_shards());
            }
        }
        views.truncate(max);
        Ok(views)
    }

    pub(super) async fn get(&self, id: &TaskId) -> Result<Option<TaskView>> {
        let lives = self.lives_of(id).await?;
        let (last, next) = (lives.last, TaskKey::new(id.clone(), lives.next()));
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

    pub(super) async fn view_pending(&self, key: &TaskKey) -> Result<Option<TaskView>> {
        let view = self.look_at_pending(key).await;
        self.or_damaged(key, view).await
    }

    /// One that cannot be looked at must not hide the others.
    async fn or_damaged(
        &self,
        key: &TaskKey,
        view: Result<Option<TaskView>>,
    ) -> Result<Option<TaskView>> {
        match view {
            Err(error) if self.is_bad_itself(&error).await => Ok(Some(TaskView {
                key: key.clone(),
                state: TaskState::Damaged,
                payload: None,
                meta: format::bare_meta(key),
                attempts: Vec::new(),
                earlier: Earlier::default(),
                reason: Some(error.to_string()),
                finished_at: None,
            })),
            view => view,
        }
    }

    async fn look_at_pending(&self, key: &TaskKey) -> Result<Option<TaskView>> {
        let Some(task_dir) = self.tree.open(&self.task_dir(key)).await? else { return Ok(None) };
        let stored = self.tree.read_task(&task_dir, None, &self.record_paths(key)).await?;
        let Some(task) = stored.task.filter(|_| !stored.finished) else { return Ok(None) };
        let history = self.history(&task_dir).await?;
        let now = Now {
            store: self.now_for_onlookers().await,
            steady: true,
            watched: std::time::Duration::ZERO,
        };
        let worker_id = judge::current(&history).map(|seen| seen.worker_id().to_owned());
        let worker_id = worker_id.unwrap_or_default();
        let mut state = match judge::judge(&history, now, self.settings.lease) {
            Judgement::Free => TaskState::Ready,
            Judgement::Stale => TaskState::Stale { worker_id },
            Judgement::Held(until) => TaskState::Leased { worker_id, until },
            Judgement::Backoff(until) => TaskState::Backoff { until },
        };
        // One that goes on has not ended in any way yet.
        let current = judge::current(&history).map(|seen| seen.attempt);
        let over = match &state {
            TaskState::Leased { .. } => {
                history.iter().position(|seen| Some(seen.attempt) == current)
            }
            _ => None,
        };
        let over = over.unwrap_or(history.len());
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
        let earlier = judge::tally(&history[..over]).and(meta.carried);
        Ok(Some(TaskView {
            key: key.clone(),
            state,
            payload,
            meta,
            attempts: judge::summaries(&history),
            earlier,
            reason,
            finished_at: None,
        }))
    }

    async fn view_scheduled(&self, due: Due, key: &TaskKey) -> Result<Option<TaskView>> {
        let view = self.look_at_scheduled(due, key).await;
        self.or_damaged(key, view).await
    }

    async fn look_at_scheduled(&self, due: Due, key: &TaskKey) -> Result<Option<TaskView>> {
        let path = layout::task_file(&layout::scheduled_dir(due, key));
        let Some(stored) = self.tree.read(&path).await? else { return Ok(None) };
        let decoded = format::decode_task(&stored.bytes, key).ok();
        let (payload, meta) = decoded.unzip();
        let meta = meta.unwrap_or_else(|| format::bare_meta(key));
        Ok(Some(TaskView {
            key: key.clone(),
            state: TaskState::Scheduled { due: due.at() },
            payload,
            earlier: Earlier::default().and(meta.carried),
            meta,
            attempts: Vec::new(),
            reason: None,
            finished_at: None,
        }))
    }

    async fn view_finished(&self, key: &TaskKey) -> Result<Option<TaskView>> {
        let view = self.look_at_finished(key).await;
        self.or_damaged(key, view).await
    }

    async fn look_at_finished(&self, key: &TaskKey) -> Result<Option<TaskView>> {
        let Some(record) = self.record(key).await? else { return Ok(None) };
        Ok(Some(TaskView {
            key: key.clone(),
            state: match record.outcome {
                Outcome::Completed => TaskState::Completed,
                Outcome::Failed => TaskState::Failed,
            },
            payload: record.payload,
            earlier: Earlier::default(),
            meta: record.meta,
            attempts: record.attempts,
            reason: record.moved_to.map(|to| format!("moved to {to}")).or(record.reason),
            finished_at: record.finished_at,
        }))
    }

    /// As much of one place at a time as a page holds.
    pub(super) async fn list(&self, from: Option<ListCursor>) -> Result<ListPage> {
        let cursor = from.unwrap_or_else(|| ListCursor::at(Place::Pending));
        let ListCursor { place, spot, mut rest, mut scheduled } = cursor;
        let mut next_spot = spot;
        if let (true, Some(spot)) = (rest.is_empty(), next_spot.take()) {
            self.tree.flush().await?;
            let (names, next) = self.names_in(place, spot).await?;
            (rest, next_spot) = (names.into(), next);
        }
        if place == Place::Failed && scheduled.is_none() && !rest.is_empty() {
            scheduled = Some(Arc::new(self.scheduled_lives().await?));
        }
        let none = HashSet::new();
        let later = scheduled.as_deref().unwrap_or(&none);
        let (mut tasks, mut looked, mut bytes) = (Vec::new(), 0, 0);
        while !rest.is_empty() && looked < LIST_PAGE && bytes < LIST_BYTES {
            let some: Vec<_> =
                rest.drain(..rest.len().min(LIST_STRIDE).min(LIST_PAGE - looked)).collect();
            let looking = some.iter().map(|(key, due)| self.view_in(place, key, *due, later));
            let seen: Vec<TaskView> = self.in_width(looking.collect()).await?;
            let sizes = seen.iter().filter_map(|view| view.payload.as_ref());
            bytes += sizes.map(|payload| payload.as_json().len()).sum::<usize>();
            looked += some.len();
            tasks.extend(seen);
        }
        let next = if !rest.is_empty() || next_spot.is_some() {
            Some(ListCursor { place, spot: next_spot, rest, scheduled })
        } else {
            match place {
                Place::Pending => Some(ListCursor::at(Place::Scheduled)),
                Place::Scheduled => Some(ListCursor::at(Place::Completed)),
                Place::Completed => Some(ListCursor::at(Place::Failed)),
                Place::Failed => None,
            }
        };
        Ok(ListPage { tasks, next })
    }

    /// A task that a listing of a place has named, if it is there.
    async fn view_in(
        &self,
        place: Place,
        key: &TaskKey,
        due: Option<Due>,
        scheduled: &HashSet<TaskKey>,
    ) -> Result<Option<TaskView>> {
        Ok(match (place, due) {
            (_, Some(due)) => self.view_scheduled(due, key).await?,
            (Place::Pending | Place::Scheduled, None) => self.view_pending(key).await?,
            (Place::Completed, None) => self.view_finished(key).await?,
            (Place::Failed, None) if self.lives_again(key, scheduled).await? => None,
            (Place::Failed, None) => {
                // A task with both records has completed, and is listed there.
                let view = self.view_finished(key).await?;
                view.filter(|view| view.state == TaskState::Failed)
            }
        })
    }

    /// The next tasks of a place, or all of `scheduled/` with the times that they are due.
    async fn names_in(
        &self,
        place: Place,
        spot: Spot,
    ) -> Result<(Vec<(TaskKey, Option<Due>)>, Option<Spot>)> {
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
                return Ok((names, None));
            }
        };
        let (keys, next) = self.stretch(folder, spot).await?;
        Ok((keys.into_iter().map(|key| (key, None)).collect(), next))
    }

    pub(super) async fn scheduled_keys(&self, due: Due) -> Result<Vec<TaskKey>> {
        let mut keys = Vec::new();
        self.each_entry(&layout::due_dir(due), |entry| {
            keys.extend(layout::parse_canonical_stem(&entry.name))
        })
        .await?;
        Ok(keys)
    }
}
