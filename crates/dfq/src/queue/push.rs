//! Adding tasks: each appears whole under a name that was never used before, or not at all.
//!
//! An id that the caller chose may have been through the queue. Its records are looked for before
//! (they decide the generation) and again after the task has appeared: a life that began and ended
//! between the two looks has used the name up, and the new file is then cleaned away again.

use super::core::Core;
use super::{Answers, Pushed};
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout::{self, Due};
use crate::model::{Arrival, Journey, Layout, NewTask, Outcome, Record, TaskId, TaskKey, TaskMeta};
use crate::store::{Created, Tree};

/// How often a name that was used up under our hands is tried anew.
const MAX_ROUNDS: usize = 16;

/// A task on its way in.
struct Draft {
    task: NewTask,
    id: TaskId,
    push_id: String,
    /// The id was made for this push, so nobody else can have used it.
    fresh: bool,
}

impl Draft {
    /// It was in another queue, and may have been here before.
    fn arrives(&self) -> bool {
        self.task.arrival.is_some()
    }

    /// The answer where a task is pending: this very push, whose answer was lost, or another. One that is
    /// damaged is another: a worker will set it aside, and until then the name is taken.
    fn pending(&self, key: TaskKey, there: &[u8]) -> Result<Pushed> {
        match format::decode_task(there, &key) {
            Ok((_, meta)) if meta.push_id == self.push_id => {
                let moves = self.task.arrival.as_ref().map_or(0, |arrival| arrival.journey.moves);
                if meta.journey.moves < moves {
                    // Whoever moves it from here believes that it is where we come from.
                    return Err(Error::invalid(format!(
                        "task '{key}' is there already, as it was before it came here: both queues are \
                         the same, or it is just being moved from there"
                    )));
                }
                Ok(Pushed::Created(key))
            }
            _ => Ok(Pushed::Pending(key)),
        }
    }

    /// Whether this is the record of this very push: it was done quickly, or had been here before.
    fn has_become(&self, record: &Record) -> bool {
        match &self.task.arrival {
            None => record.meta.push_id == self.push_id,
            Some(arrival) => arrival.has_been(record),
        }
    }

    fn first_life(&self) -> Before {
        Before::Publish(TaskKey::new(self.id.clone(), 1), 0, 0)
    }
}

/// What there is to do about a push.
enum Plan {
    /// Publish this file under this key.
    Publish(TaskKey, (String, Vec<u8>)),
    /// Nothing: this is what is there already.
    Settled(Pushed),
}

/// What the records say about an id.
enum Before {
    /// It may be published under this key, after so many attempts in earlier lives, and with greater
    /// fencing tokens than this.
    Publish(TaskKey, u32, u64),
    /// There is nothing to publish.
    Settled(Pushed),
}

impl Before {
    /// A life after one that ended like this.
    fn after(next: TaskKey, record: Option<&Record>) -> Self {
        let attempts = record.map_or(0, attempts_through);
        Self::Publish(next, attempts, record.map_or(0, |record| record.meta.journey.fence))
    }
}

impl Arrival {
    /// Whether this record tells of the very task that arrives, and no earlier stage of it.
    fn has_been(&self, record: &Record) -> bool {
        let same = record.meta.push_id == self.push_id;
        same && (record.moved_to.is_none() || record.meta.journey.moves >= self.journey.moves)
    }
}

impl<T: Tree> Core<T> {
    pub(super) async fn push(&self, tasks: Vec<NewTask>) -> Answers<Pushed> {
        let drafts: Vec<_> = tasks.into_iter().map(|task| self.draft(task)).collect();
        let mut answers: Vec<Option<Result<Pushed>>> = Vec::with_capacity(drafts.len());
        let mut batch = Vec::new();
        let preparing = drafts.iter().map(|draft| self.first_plan(draft)).collect();
        for (index, plan) in self.each(preparing).await.into_iter().enumerate() {
            answers.push(match plan {
                Ok(Plan::Publish(key, file)) => {
                    batch.push((index, key, file));
                    None
                }
                Ok(Plan::Settled(settled)) => Some(Ok(settled)),
                Err(error) => Some(Err(error)),
            });
        }
        let files: Vec<_> = batch.iter_mut().map(|(_, _, file)| std::mem::take(file)).collect();
        let published = self.tree.publish(&files, self.durable()).await;
        let settle = |((index, key, _), created): ((usize, TaskKey, _), _)| {
            let draft = &drafts[index];
            async move {
                let answer = match (draft, created) {
                    (Ok(draft), Ok(created)) => self.settle(draft, key, created).await,
                    (_, Err(error)) => Err(error),
                    (Err(error), _) => Err(error.clone()),
                };
                (index, answer)
            }
        };
        let settling = batch.into_iter().zip(published).map(settle).collect();
        for (index, answer) in self.each(settling).await {
            answers[index] = Some(answer);
        }
        let unanswered = || Error::new(ErrorKind::Unavailable, "the push was not carried out");
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unanswered()))).collect()
    }

    fn draft(&self, task: NewTask) -> Result<Draft> {
        let chosen = task.chosen_id()?;
        if task.max_attempts == Some(0) {
            return Err(Error::invalid("max_attempts must be at least 1"));
        }
        let fresh = chosen.is_none();
        let id = match chosen {
            Some(id) => id,
            None => TaskId::new(self.env.uuid_v7())?,
        };
        let push_id = match &task.arrival {
            Some(arrival) => arrival.push_id.clone(),
            None => self.env.nonce(),
        };
        Ok(Draft { task, id, fresh, push_id })
    }

    async fn first_plan(&self, draft: &Result<Draft>) -> Result<Plan> {
        match draft {
            Err(error) => Err(error.clone()),
            Ok(draft) if self.is_blind(draft) => self.plan(draft, draft.first_life()).await,
            Ok(draft) => self.prepare(draft).await,
        }
    }

    /// Published without looking for records before: if there are any, they are found afterwards, and
    /// the file goes again. Where looks cost, this halves them for ids that are new, as most are.
    fn is_blind(&self, draft: &Draft) -> bool {
        let plain = !draft.fresh && !draft.task.again && !draft.task.is_delayed();
        // What was here before and was moved away carries the very same nonce.
        plain && !draft.arrives() && self.remote() && self.layout() == Layout::Sharded
    }

    /// The file to publish and where, or what is there already.
    async fn prepare(&self, draft: &Draft) -> Result<Plan> {
        let before = if draft.fresh { draft.first_life() } else { self.look_before(draft).await? };
        self.plan(draft, before).await
    }

    async fn plan(&self, draft: &Draft, before: Before) -> Result<Plan> {
        let (key, attempts_before, fence) = match before {
            Before::Publish(key, attempts, fence) => (key, attempts, fence),
            Before::Settled(pushed) => return Ok(Plan::Settled(pushed)),
        };
        let now = self.env.clock().wall();
        let mut dir = self.task_dir(&key);
        let mut not_before = None;
        if draft.task.is_delayed() {
            if let Some(there) = self.pending_task(&key).await? {
                return Ok(Plan::Settled(draft.pending(key, &there)?));
            }
            let store_now = self.now().await?;
            let delay = draft.task.wait(store_now).unwrap_or_default();
            let due = Due::after(store_now, delay).ok_or_else(|| {
                Error::invalid(format!("a delay of {delay:?} is beyond all calendars"))
            })?;
            not_before = store_now.checked_add(delay).ok();
            dir = layout::scheduled_dir(due, &key);
        }
        let arrival = draft.task.arrival.as_ref();
        let before_arrival = arrival.map_or(0, |arrival| arrival.attempts_before);
        let journey = arrival.map(|arrival| arrival.journey).unwrap_or_default();
        let meta = TaskMeta {
            id: key.id().clone(),
            generation: key.generation(),
            push_id: draft.push_id.clone(),
            created_at: arrival.and_then(|arrival| arrival.created_at).or(Some(now)),
            attempts_before: attempts_before.max(before_arrival),
            carried: arrival.map(|arrival| arrival.carried).unwrap_or_default(),
            journey: Journey { fence: journey.fence.max(fence), ..journey },
            max_attempts: draft.task.max_attempts,
            not_before,
        };
        Ok(Plan::Publish(key, (dir, format::encode_task(&draft.task.payload, &meta))))
    }

    async fn look_before(&self, draft: &Draft) -> Result<Before> {
        let (id, again) = (&draft.id, draft.task.again);
        let Some(last) = self.last_life(id).await? else {
            let foreign = self.foreign_key(id);
            if let Some(key) = &foreign
                && let Some(there) = self.pending_task(key).await?
            {
                return Ok(Before::Settled(draft.pending(key.clone(), &there)?));
            }
            let record = match &foreign {
                Some(key) => self.record(key).await?,
                None => None,
            };
            return Ok(match (record, foreign) {
                // What was moved from here may come back, under a name of ours.
                (Some(record), _) if draft.arrives() && record.moved_to.is_some() => {
                    Before::Publish(TaskKey::new(id.clone(), 1), 0, record.meta.journey.fence)
                }
                (Some(record), Some(key)) if !again => {
                    Before::Settled(Pushed::Finished(key, record.outcome))
                }
                _ => Before::Publish(TaskKey::new(id.clone(), 1), 0, 0),
            });
        };
        let finished = TaskKey::new(id.clone(), last);
        let next = TaskKey::new(id.clone(), last + 1);
        if let Some(arrival) = &draft.task.arrival {
            return self.look_before_arrival(draft, arrival, finished, next).await;
        }
        if !again {
            if self.pending_task(&next).await?.is_some() {
                return Ok(Before::Settled(Pushed::Pending(next)));
            }
            let outcome = match self.outcome(&finished).await? {
                Some(outcome) => outcome,
                None => Outcome::Completed, // purged in between
            };
            return Ok(Before::Settled(Pushed::Finished(finished, outcome)));
        }
        Ok(Before::after(next, self.record(&finished).await?.as_ref()))
    }

    /// The same for a task that comes from another queue: it may have been here before, and have gone on
    /// from here, or come back.
    async fn look_before_arrival(
        &self,
        draft: &Draft,
        arrival: &Arrival,
        finished: TaskKey,
        next: TaskKey,
    ) -> Result<Before> {
        let last = self.record(&finished).await?;
        let mut life = Some((finished.clone(), last.clone()));
        while let Some((key, record)) = life {
            if record.is_some_and(|record| arrival.has_been(&record)) {
                return Ok(Before::Settled(Pushed::Created(key)));
            }
            life = match key.generation() {
                1 => None,
                this => {
                    let earlier = TaskKey::new(key.id().clone(), this - 1);
                    let record = self.record(&earlier).await?;
                    Some((earlier, record))
                }
            };
        }
        let left_us = last.as_ref().is_none_or(|record| record.moved_to.is_some());
        // If the next life is pending, creating it tells whose it is.
        if left_us || draft.task.again || self.pending_task(&next).await?.is_some() {
            return Ok(Before::after(next, last.as_ref()));
        }
        let outcome = last.map_or(Outcome::Completed, |record| record.outcome);
        Ok(Before::Settled(Pushed::Finished(finished, outcome)))
    }

    /// Looks again after the task's name was created, or found to exist.
    async fn settle(&self, draft: &Draft, key: TaskKey, created: Created) -> Result<Pushed> {
        let (mut key, mut created) = (key, created);
        for round in 0..MAX_ROUNDS {
            let blind = round == 0 && self.is_blind(draft);
            match self.settle_once(draft, &key, created, blind).await? {
                Some(pushed) => return Ok(pushed),
                None => match self.prepare(draft).await? {
                    Plan::Settled(pushed) => return Ok(pushed),
                    Plan::Publish(next, file) => {
                        let mut answers = self.tree.publish(&[file], self.durable()).await;
                        created = answers.pop().unwrap_or(Ok(Created::Exists))?;
                        key = next;
                    }
                },
            }
        }
        let message = format!(
            "task '{}' cannot be pushed: '{}' is in the way; look whether it holds files that are not \
             ours",
            draft.id,
            self.task_dir(&key)
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// What became of the push, or `None` if its name was used up and another must be tried.
    async fn settle_once(
        &self,
        draft: &Draft,
        key: &TaskKey,
        created: Created,
        blind: bool,
    ) -> Result<Option<Pushed>> {
        if draft.fresh && created == Created::New {
            return Ok(Some(Pushed::Created(key.clone())));
        }
        if draft.task.is_delayed() {
            // Moving it to `pending/` is a push again, which looks for itself.
            self.mend_lives(key).await?;
            return Ok(Some(match created {
                Created::New => Pushed::Created(key.clone()),
                Created::Exists if self.is_scheduled_by(draft, key).await? => {
                    Pushed::Created(key.clone())
                }
                Created::Exists => Pushed::Pending(key.clone()),
            }));
        }
        if let Some(record) = self.record(key).await? {
            if draft.has_become(&record) {
                return Ok(Some(Pushed::Created(key.clone()))); // done already, and quickly
            }
            if created == Created::New && self.remote() {
                match self.take_back(key).await {
                    Ok(false) => return Ok(Some(Pushed::Created(key.clone()))),
                    answer => if_allowed(answer.map(drop))?,
                }
            } else {
                if_allowed(self.clean_finished(key).await)?;
            }
            // There may be later lives.
            if draft.task.again || blind || draft.arrives() {
                return Ok(None);
            }
            return Ok(Some(Pushed::Finished(key.clone(), record.outcome)));
        }
        if created == Created::New {
            self.mend_lives(key).await?;
            return Ok(Some(Pushed::Created(key.clone())));
        }
        let Some(bytes) = self.pending_task(key).await? else {
            if self.record(key).await?.is_some_and(|record| draft.has_become(&record)) {
                return Ok(Some(Pushed::Created(key.clone()))); // done since we looked
            }
            // A folder without its task: a finished one that nobody has cleaned up yet.
            if_allowed(self.clean_finished(key).await)?;
            return Ok(None);
        };
        if format::decode_task(&bytes, key).is_err() && self.differs_in_case(&bytes, key) {
            return Err(Error::invalid(format!(
                "task '{key}' differs only in case from one that is pending, and this filesystem \
                 does not tell them apart"
            )));
        }
        draft.pending(key.clone(), &bytes).map(Some)
    }

    /// Whether a scheduled task that exists is this very push, whose answer was lost.
    async fn is_scheduled_by(&self, draft: &Draft, key: &TaskKey) -> Result<bool> {
        let now = self.now().await?;
        let likely = draft.task.wait(now).and_then(|wait| Due::after(now, wait));
        for due in likely.into_iter().chain(self.due_folders().await?) {
            let path = format!("{}/{}", layout::scheduled_dir(due, key), layout::TASK);
            if let Some(stored) = self.tree.read(&path).await?
                && matches!(draft.pending(key.clone(), &stored.bytes)?, Pushed::Created(_))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn differs_in_case(&self, bytes: &[u8], key: &TaskKey) -> bool {
        let text = std::str::from_utf8(bytes).ok();
        let meta =
            text.and_then(|text| format::split_payload(text).ok()).and_then(|(_, meta)| meta);
        meta.is_some_and(|meta| {
            let (there, ours) = (meta.id.as_str(), key.id().as_str());
            there != ours && there.to_lowercase() == ours.to_lowercase()
        })
    }

    /// Removes a file that was published under a name that is used up; `false` if a purge frees the name
    /// at this moment, so that it can stay. Who has put a lease beside it finds the record as we have, and
    /// removes that.
    async fn take_back(&self, key: &TaskKey) -> Result<bool> {
        if !self.secure_records(key).await? {
            return Ok(false);
        }
        self.tree.remove(&format!("{}/{}", self.task_dir(key), layout::TASK)).await?;
        Ok(true)
    }

    pub(super) async fn retry(&self, ids: Vec<TaskId>) -> Answers<Pushed> {
        self.each(ids.into_iter().map(|id| self.retry_one(id)).collect()).await
    }

    async fn retry_one(&self, id: TaskId) -> Result<Pushed> {
        let missing = || Error::not_found(format!("task '{id}' has not failed"));
        let key = match (self.last_life(&id).await?, self.foreign_key(&id)) {
            (Some(last), _) => TaskKey::new(id.clone(), last),
            (None, Some(foreign)) => foreign,
            (None, None) => return Err(missing()),
        };
        let record = self.record(&key).await?.ok_or_else(missing)?;
        if record.outcome != Outcome::Failed {
            let message = format!("task '{id}' has completed; push it again to do it again");
            return Err(Error::new(ErrorKind::AlreadyCompleted, message));
        }
        let Some(payload) = record.payload else {
            return Err(Error::invalid(format!(
                "task '{id}' cannot be retried: its file was unreadable; push it anew"
            )));
        };
        let mut task = NewTask::new(payload).id(id).again();
        task.max_attempts = record.meta.max_attempts;
        let unanswered = || Err(Error::new(ErrorKind::Unavailable, "the push was not carried out"));
        self.push(vec![task]).await.pop().unwrap_or_else(unanswered)
    }
}

/// Who only pushes need not be allowed to remove anything: a worker will.
fn if_allowed(cleaned: Result<()>) -> Result<()> {
    cleaned.or_else(|error| match error.kind() {
        ErrorKind::Denied => {
            tracing::debug!(%error, "left to the workers");
            Ok(())
        }
        _ => Err(error),
    })
}

/// Attempts made in this life and all before it, or at least as many: a cancel may not have seen one
/// that was just being made.
fn attempts_through(record: &Record) -> u32 {
    let here = record.attempts.iter().map(|attempt| attempt.attempt).max().unwrap_or(0);
    record.meta.attempts_before.saturating_add(here).saturating_add(u32::from(record.cancelled))
}
