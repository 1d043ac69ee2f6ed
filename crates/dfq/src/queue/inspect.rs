//! Looking, without changing any task.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::core::Core;
use super::cursor::Named;
use super::judge::{self, Judgement, Now, Seen};
use super::pages::Met;
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

/// Of so few tasks each is asked for its records.
const FEW: usize = 100;

/// So many tasks are looked at before their sizes are.
const LIST_STRIDE: usize = 64;

impl<T: Tree> Core<T> {
    pub(super) async fn peek(&self, max: usize) -> Result<Vec<TaskView>> {
        let mut views: Vec<TaskView> = Vec::new();
        for from in self.random_spots() {
            let mut from = Some(from);
            while let Some(spot) = from.take().filter(|_| views.len() < max) {
                let (mut met, next) = self.stretch_met(layout::PENDING, spot).await?;
                // What has no lease can be claimed; of the others that is not known.
                met.sort_by_key(Met::is_leased);
                let mut met = &met[..];
                while views.len() < max && !met.is_empty() {
                    let count = self.width().min(max - views.len()).min(met.len());
                    let (some, rest) = met.split_at(count);
                    met = rest;
                    let looking = some.iter().map(|met| self.view_met(met, false, true)).collect();
                    let seen: Vec<TaskView> = self.in_width(looking).await?;
                    views.extend(seen.into_iter().filter(|view| {
                        matches!(view.state, TaskState::Ready | TaskState::Stale { .. })
                    }));
                }
                from = next.filter(|_| self.goes_on_across_shards());
            }
        }
        Ok(views)
    }

    pub(super) async fn get(&self, id: &TaskId) -> Result<Option<TaskView>> {
        let lives = self.lives_of(id).await?;
        let (last, next) = (lives.last, TaskKey::new(id.clone(), lives.next()));
        if let Some(view) = self.view_pending(&next).await? {
            return Ok(Some(view));
        }
        for due in self.dues_of(&next).await? {
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
        Ok(Some(self.as_pending(key, Some(task.bytes), &history).await))
    }

    /// A task that a listing has shown. What the listing shows of it is not asked for again; if it is to be
    /// `brief`, its file is not read either.
    /// Only if it is to be `sure` is a task without a lease asked for its records: it has some only if a push that
    /// met them was not allowed to take its copy back.
    pub(super) async fn view_met(
        &self,
        met: &Met,
        brief: bool,
        sure: bool,
    ) -> Result<Option<TaskView>> {
        if met.written.is_none() {
            return self.view_pending(&met.key).await;
        }
        let view = self.look_at_met(met, brief, sure || met.is_leased()).await;
        self.or_damaged(&met.key, view).await
    }

    async fn look_at_met(&self, met: &Met, brief: bool, sure: bool) -> Result<Option<TaskView>> {
        let key = &met.key;
        let Some(task_dir) = self.tree.open(&self.task_dir(key)).await? else { return Ok(None) };
        let task = async {
            match (brief, sure) {
                (true, false) => Ok((None, false)),
                (true, true) => Ok((None, self.outcome(key).await?.is_some())),
                (false, false) => {
                    let stored = self.tree.read(&layout::task_file(&self.task_dir(key))).await?;
                    let gone = stored.is_none();
                    Ok((stored.map(|stored| stored.bytes), gone))
                }
                (false, true) => {
                    let records = self.record_paths(key);
                    let stored = self.tree.read_task(&task_dir, None, &records).await?;
                    let gone = stored.finished || stored.task.is_none();
                    Ok((stored.task.map(|task| task.bytes), gone))
                }
            }
        };
        let attempts = met.attempts();
        let (task, history) = futures::join!(task, self.history_of(&task_dir, &attempts));
        let task: Result<(Option<Vec<u8>>, bool)> = task;
        let ((bytes, is_over), history) = (task?, history?);
        if is_over {
            return Ok(None);
        }
        let mut view = self.as_pending(key, bytes, &history).await;
        if brief {
            view.meta.created_at = met.written;
        }
        Ok(Some(view))
    }

    /// What a task that has a lease waits for, by the lease that counts; `None` if it has finished.
    pub(super) async fn state_of(&self, met: &Met, may_be_over: bool) -> Result<Option<TaskState>> {
        let looking = async {
            if may_be_over && self.outcome(&met.key).await?.is_some() {
                return Ok(None);
            }
            let dir = self.task_dir(&met.key);
            let Some(task_dir) = self.tree.open(&dir).await? else { return Ok(None) };
            let mut history = Vec::new();
            for attempt in met.attempts().into_iter().rev() {
                history.extend(self.history_of(&task_dir, &[attempt]).await?);
                if judge::current(&history).is_some() {
                    break;
                }
            }
            let state = self.state_by(&met.key, &history).await;
            Ok(Some(state).filter(|_| !history.is_empty()))
        };
        match looking.await {
            Err(error) if self.is_bad_itself(&error).await => Ok(Some(TaskState::Damaged)),
            state => state,
        }
    }

    /// What its leases say of a task.
    async fn state_by(&self, key: &TaskKey, history: &[Seen]) -> TaskState {
        let now = Now {
            store: self.now_for_onlookers().await,
            steady: true,
            watched: std::time::Duration::ZERO,
        };
        let worker_id = judge::current(history).map(|seen| seen.worker_id().to_owned());
        let worker_id = worker_id.unwrap_or_default();
        let elsewhere = self.elsewhere(key).await;
        match judge::judge(history, now, self.settings.lease, elsewhere.as_ref()) {
            Judgement::Free => TaskState::Ready,
            Judgement::Stale => TaskState::Stale { worker_id },
            Judgement::Held(until) => TaskState::Leased { worker_id, until },
            Judgement::Backoff(until) => TaskState::Backoff { until },
        }
    }

    /// A pending task by its leases and, if that was read, its file.
    async fn as_pending(
        &self,
        key: &TaskKey,
        bytes: Option<Vec<u8>>,
        history: &[Seen],
    ) -> TaskView {
        let mut state = self.state_by(key, history).await;
        // One that goes on has not ended in any way yet.
        let current = judge::current(history).map(|seen| seen.attempt);
        let over = match &state {
            TaskState::Leased { .. } => {
                history.iter().position(|seen| Some(seen.attempt) == current)
            }
            _ => None,
        };
        let over = over.unwrap_or(history.len());
        let (mut payload, mut meta, mut reason) = (None, format::bare_meta(key), None);
        match bytes.map(|bytes| format::decode_task(&bytes, key)) {
            Some(Ok((read, of))) => (payload, meta) = (Some(read), of),
            Some(Err(error)) => {
                state = TaskState::Damaged;
                reason = Some(format!("task.json cannot be read: {error}"));
            }
            None => {}
        }
        let earlier = judge::tally(&history[..over]).and(meta.carried);
        TaskView {
            key: key.clone(),
            state,
            payload,
            meta,
            attempts: judge::summaries(history),
            earlier,
            reason,
            finished_at: None,
        }
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
        let mut cursor = from.unwrap_or_else(|| ListCursor::at(Place::Pending));
        let place = cursor.place;
        if let (true, Some(spot)) = (cursor.rest.is_empty(), cursor.spot.take()) {
            let is_first = spot == Spot::START;
            self.tree.flush().await?;
            let (names, next) = self.names_in(place, spot).await?;
            let all = if next.is_none() { names.len() } else { usize::MAX };
            cursor.few &= !is_first || all.min(cursor.at_most) <= FEW;
            (cursor.rest, cursor.spot) = (names.into(), next);
        }
        if place == Place::Failed && cursor.scheduled.is_none() && !cursor.rest.is_empty() {
            cursor.scheduled = Some(Arc::new(self.scheduled_lives().await?));
        }
        let later = cursor.scheduled.clone().unwrap_or_default();
        let (mut tasks, mut looked, mut bytes) = (Vec::new(), 0, 0);
        let most = LIST_PAGE.min(cursor.at_most);
        let closely = (cursor.looks.is_some(), cursor.few);
        while !cursor.rest.is_empty() && looked < most && bytes < LIST_BYTES {
            let stride = cursor.rest.len().min(LIST_STRIDE).min(most - looked);
            let mut looking = Vec::with_capacity(stride);
            for named in cursor.rest.drain(..stride) {
                let look = spend(&named.met, &mut cursor.looks);
                looking.push(self.view_in(place, named, &later, closely, look));
            }
            let seen: Vec<TaskView> = self.in_width(looking).await?;
            let sizes = seen.iter().filter_map(|view| view.payload.as_ref());
            bytes += sizes.map(|payload| payload.as_json().len()).sum::<usize>();
            looked += stride;
            tasks.extend(seen);
        }
        let next = if !cursor.rest.is_empty() || cursor.spot.is_some() {
            Some(cursor)
        } else {
            match place {
                Place::Pending => Some(cursor.on_to(Place::Scheduled)),
                Place::Scheduled => Some(cursor.on_to(Place::Completed)),
                Place::Completed => Some(cursor.on_to(Place::Failed)),
                Place::Failed => None,
            }
        };
        Ok(ListPage { tasks, next })
    }

    /// A task that a listing of a place has named, if it is there.
    async fn view_in(
        &self,
        place: Place,
        named: Named,
        scheduled: &BTreeSet<TaskKey>,
        (brief, sure): (bool, bool),
        look: bool,
    ) -> Result<Option<TaskView>> {
        let key = &named.met.key;
        Ok(match (place, named.due) {
            _ if !look => Some(claimed(&named.met)),
            (_, Some(due)) => self.view_scheduled(due, key).await?,
            (Place::Pending | Place::Scheduled, None) => {
                self.view_met(&named.met, brief, sure).await?
            }
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
    async fn names_in(&self, place: Place, spot: Spot) -> Result<(Vec<Named>, Option<Spot>)> {
        let folder = match place {
            Place::Pending => layout::PENDING,
            Place::Completed => layout::outcome_dir(Outcome::Completed),
            Place::Failed => layout::outcome_dir(Outcome::Failed),
            Place::Scheduled => {
                let tasks = self.scheduled().await?.into_iter();
                let named = |(due, key)| Named { met: Met::named(key), due: Some(due) };
                return Ok((tasks.map(named).collect(), None));
            }
        };
        let (met, next) = self.stretch_met(folder, spot).await?;
        Ok((met.into_iter().map(|met| Named { met, due: None }).collect(), next))
    }
}

/// Whether a task is looked into: if it has a lease, only while there are looks left.
fn spend(met: &Met, looks: &mut Option<usize>) -> bool {
    let Some(left) = looks.as_mut().filter(|_| met.is_leased()) else { return true };
    let look = *left > 0;
    *left = left.saturating_sub(1);
    look
}

/// A task that was claimed at some time, of which no more is known.
fn claimed(met: &Met) -> TaskView {
    let mut meta = format::bare_meta(&met.key);
    meta.created_at = met.written;
    TaskView {
        key: met.key.clone(),
        state: TaskState::Claimed,
        payload: None,
        meta,
        attempts: Vec::new(),
        earlier: Earlier::default(),
        reason: None,
        finished_at: None,
    }
}
