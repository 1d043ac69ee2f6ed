//! Adding tasks: each appears whole under a name that was never used before, or not at all.
//!
//! An id that the caller chose may have been through the queue. Its records are looked for before
//! (they decide the generation) and again after the task has appeared: a life that began and ended
//! between the two looks has used the name up, and the new file is then cleaned away again. So it is if that
//! life was purged as well: then a floor tells.

use super::core::Core;
use super::floors::Lives;
use super::{Answers, Pushed};
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout::{self, Due};
use crate::model::{
    Arrival, Generation, Journey, Layout, NewTask, Outcome, Record, TaskId, TaskKey, TaskMeta,
};
use crate::planted::{self, Planted};
use crate::store::Tree;

/// How often an id is looked up again whose records are just being purged.
const LOOKED_AGAIN: usize = 16;

/// One task on its way in. `push_id` tells it from any other push of the same id.
pub(super) struct Push {
    pub(super) task: NewTask,
    pub(super) id: TaskId,
    push_id: String,
    /// The id was made for this push, so nobody else can have used it.
    pub(super) fresh: bool,
    /// The failed life that this push retries, which must still be the last.
    retries: Option<TaskKey>,
}

impl Push {
    /// It was in another queue, and may have been here before.
    pub(super) fn arrives(&self) -> bool {
        self.task.arrival.is_some()
    }

    /// The answer where a task is pending: this very push, whose answer was lost, or another. One that is
    /// damaged is another: a worker will set it aside, and until then the name is taken.
    pub(super) fn pending(&self, key: TaskKey, there: &[u8]) -> Result<Pushed> {
        match format::decode_task(there, &key) {
            _ if planted::is(Planted::PushNotReadBack) => Ok(Pushed::Pending(key)),
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
    pub(super) fn has_become(&self, record: &Record) -> bool {
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
pub(super) enum Plan {
    /// Publish this file under this key.
    Publish(TaskKey, (String, Vec<u8>)),
    /// Nothing: this is what is there already.
    Answered(Pushed),
}

/// What the records say about an id.
enum Before {
    /// It may be published under this key, after so many attempts in earlier lives, and with greater
    /// fencing tokens than this.
    Publish(TaskKey, u32, u64),
    /// There is nothing to publish.
    Answered(Pushed),
}

impl Before {
    /// A life after one that ended like this, and after all that were forgotten.
    fn after(next: TaskKey, record: Option<&Record>, lives: Lives) -> Self {
        let attempts = record.map_or(0, attempts_through);
        let fence = record.map_or(0, |record| record.meta.journey.fence);
        Self::Publish(next, attempts, fence.max(lives.fence))
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
        self.push_all(tasks.into_iter().map(|task| self.new_push(task)).collect()).await
    }

    async fn push_all(&self, pushes: Vec<Result<Push>>) -> Answers<Pushed> {
        let mut answers: Vec<Option<Result<Pushed>>> = Vec::with_capacity(pushes.len());
        let mut batch = Vec::new();
        let preparing = pushes.iter().map(|push| self.first_plan(push)).collect();
        for (index, plan) in self.each(preparing).await.into_iter().enumerate() {
            answers.push(match plan {
                Ok(Plan::Publish(key, file)) => {
                    batch.push((index, key, file));
                    None
                }
                Ok(Plan::Answered(pushed)) => Some(Ok(pushed)),
                Err(error) => Some(Err(error)),
            });
        }
        let (names, files): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|(index, key, file): (_, _, (String, Vec<u8>))| {
                ((index, key, file.0.clone()), file)
            })
            .unzip();
        let published = self.tree.publish(&files, self.durable()).await;
        drop(files);
        let confirm = |((index, key, dir), created): ((usize, TaskKey, String), _)| {
            let push = &pushes[index];
            async move {
                let answer = match (push, created) {
                    (Ok(push), Ok(created)) => self.confirm_push(push, (key, dir), created).await,
                    (_, Err(error)) => Err(error),
                    (Err(error), _) => Err(error.clone()),
                };
                (index, answer)
            }
        };
        let confirming = names.into_iter().zip(published).map(confirm).collect();
        for (index, answer) in self.each(confirming).await {
            answers[index] = Some(answer);
        }
        let unanswered = || Error::new(ErrorKind::Unavailable, "the push was not carried out");
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unanswered())));
        self.secure_answers(answers.collect()).await
    }

    /// What is in the queue already, and was pushed or finished by somebody else, is as durable as what we have
    /// pushed: whoever did that may not have come to the fsync.
    async fn secure_answers(&self, mut answers: Answers<Pushed>) -> Answers<Pushed> {
        let path = |answer: &Result<Pushed>| match answer {
            Ok(Pushed::Pending(key)) => Some(self.task_dir(key)),
            Ok(Pushed::Finished(key, outcome)) => Some(self.record_path(*outcome, key)),
            _ => None,
        };
        let relied_on: Vec<String> = answers.iter().filter_map(path).collect();
        let durable = self.durable() && !planted::is(Planted::AnswerNotSecured);
        if let Err(error) = self.tree.secure(&relied_on, durable).await {
            for answer in answers.iter_mut().filter(|answer| path(answer).is_some()) {
                *answer = Err(error.clone());
            }
        }
        answers
    }

    fn new_push(&self, task: NewTask) -> Result<Push> {
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
        Ok(Push { task, id, fresh, push_id, retries: None })
    }

    async fn first_plan(&self, push: &Result<Push>) -> Result<Plan> {
        match push {
            Err(error) => Err(error.clone()),
            Ok(push) if self.is_blind(push) => self.plan(push, push.first_life()).await,
            Ok(push) => self.prepare(push).await,
        }
    }

    /// Published without looking for records before: if there are any, they are found afterwards, and
    /// the file goes again. Where looks cost, this halves them for ids that are new, as most are.
    pub(super) fn is_blind(&self, push: &Push) -> bool {
        let plain = !push.fresh && !push.task.again && !push.task.is_delayed();
        // What was here before and was moved away carries the very same nonce.
        let blind = !self.strategy.looks.before_a_push;
        plain && !push.arrives() && blind && self.layout() == Layout::Sharded
    }

    /// The file to publish and where, or what is there already.
    pub(super) async fn prepare(&self, push: &Push) -> Result<Plan> {
        let before = if push.fresh { push.first_life() } else { self.look_before(push).await? };
        self.plan(push, before).await
    }

    async fn plan(&self, push: &Push, before: Before) -> Result<Plan> {
        let (key, attempts_before, fence) = match before {
            Before::Publish(key, attempts, fence) => (key, attempts, fence),
            Before::Answered(pushed) => return Ok(Plan::Answered(pushed)),
        };
        let now = self.env.clock().wall();
        let mut dir = self.task_dir(&key);
        let mut not_before = None;
        if push.task.is_delayed() {
            if let Some(there) = self.pending_task(&key).await? {
                return Ok(Plan::Answered(push.pending(key, &there)?));
            }
            let store_now = self.now().await?;
            let delay = push.task.wait(store_now).unwrap_or_default();
            let due = Due::after(store_now, delay).ok_or_else(|| {
                Error::invalid(format!("a delay of {delay:?} is beyond all calendars"))
            })?;
            not_before = store_now.checked_add(delay).ok();
            dir = layout::scheduled_dir(due, &key);
        }
        let arrival = push.task.arrival.as_ref();
        let before_arrival = arrival.map_or(0, |arrival| arrival.attempts_before);
        let journey = arrival.map(|arrival| arrival.journey).unwrap_or_default();
        let meta = TaskMeta {
            id: key.id().clone(),
            generation: key.generation(),
            push_id: push.push_id.clone(),
            created_at: arrival.and_then(|arrival| arrival.created_at).or(Some(now)),
            attempts_before: attempts_before.max(before_arrival),
            carried: arrival.map(|arrival| arrival.carried).unwrap_or_default(),
            journey: Journey { fence: journey.fence.max(fence), ..journey },
            max_attempts: push.task.max_attempts,
            not_before,
            node: self.own_node().await,
        };
        Ok(Plan::Publish(key, (dir, format::encode_task(&push.task.payload, &meta))))
    }

    async fn look_before(&self, push: &Push) -> Result<Before> {
        let (id, again) = (&push.id, push.task.again);
        let (lives, record) = self.last_life(push).await?;
        let next = TaskKey::new(id.clone(), lives.next());
        if next.generation() > layout::MAX_GENERATION {
            // Its name would be foreign. Nobody comes here but by a record or a floor that somebody made up.
            return Err(Error::damaged(format!("task id '{id}' has no lives left")));
        }
        if let Some(failed) = &push.retries
            && !self.can_be_retried(failed, lives.last).await?
        {
            return Ok(Before::Answered(Pushed::Finished(failed.clone(), Outcome::Failed)));
        }
        let Some(last) = lives.last else {
            let foreign = self.foreign_key(id);
            if let Some(key) = &foreign
                && let Some(there) = self.pending_task(key).await?
            {
                return Ok(Before::Answered(push.pending(key.clone(), &there)?));
            }
            let record = match &foreign {
                Some(key) => self.record(key).await?,
                None => None,
            };
            return Ok(match (record, foreign) {
                // What was moved from here may come back, under a name of ours.
                (Some(record), _) if push.arrives() && record.moved_to.is_some() => {
                    Before::Publish(next, 0, record.meta.journey.fence.max(lives.fence))
                }
                (Some(record), Some(key)) if !again => {
                    Before::Answered(Pushed::Finished(key, record.outcome))
                }
                _ => Before::Publish(next, 0, lives.fence),
            });
        };
        let finished = TaskKey::new(id.clone(), last);
        if let Some(arrival) = &push.task.arrival {
            let last = (finished, record);
            return self.look_before_arrival(push, arrival, lives, last, next).await;
        }
        if !again {
            if self.pending_task(&next).await?.is_some() {
                return Ok(Before::Answered(Pushed::Pending(next)));
            }
            let outcome = match self.outcome(&finished).await? {
                Some(outcome) => outcome,
                None => Outcome::Completed, // purged in between
            };
            return Ok(Before::Answered(Pushed::Finished(finished, outcome)));
        }
        if planted::is(Planted::NameReuse) {
            self.remove_records(&finished).await?;
            return Ok(Before::after(finished, record.as_ref(), lives));
        }
        Ok(Before::after(next, record.as_ref(), lives))
    }

    /// The lives of an id; and the record of the last, if the next one goes on from there.
    async fn last_life(&self, push: &Push) -> Result<(Lives, Option<Record>)> {
        let mut lives = self.lives_of(&push.id).await?;
        let goes_on = push.task.again || push.arrives();
        for _ in 0..LOOKED_AGAIN {
            let Some(last) = lives.last.filter(|_| goes_on) else { break };
            let record = self.record(&TaskKey::new(push.id.clone(), last)).await?;
            if record.is_some() {
                return Ok((lives, record));
            }
            // Purged between the two looks.
            lives = self.lives_of(&push.id).await?;
        }
        Ok((lives, None))
    }

    /// The same for a task that comes from another queue: it may have been here before, and have gone on
    /// from here, or come back.
    async fn look_before_arrival(
        &self,
        push: &Push,
        arrival: &Arrival,
        lives: Lives,
        (finished, last): (TaskKey, Option<Record>),
        next: TaskKey,
    ) -> Result<Before> {
        let mut life = Some((finished.clone(), last.clone()));
        while let Some((key, record)) = life {
            if record.is_some_and(|record| arrival.has_been(&record)) {
                return Ok(Before::Answered(Pushed::Created(key)));
            }
            let earlier = key.generation() - 1;
            life = match earlier > lives.forgotten {
                false => None,
                true => {
                    let earlier = TaskKey::new(key.id().clone(), earlier);
                    let record = self.record(&earlier).await?;
                    Some((earlier, record))
                }
            };
        }
        let left_us = last.as_ref().is_none_or(|record| record.moved_to.is_some());
        // If the next life is pending, creating it tells whose it is.
        if left_us || push.task.again || self.pending_task(&next).await?.is_some() {
            return Ok(Before::after(next, last.as_ref(), lives));
        }
        let outcome = last.map_or(Outcome::Completed, |record| record.outcome);
        Ok(Before::Answered(Pushed::Finished(finished, outcome)))
    }

    pub(super) async fn retry(&self, ids: Vec<TaskId>) -> Answers<Pushed> {
        self.each(ids.into_iter().map(|id| self.retry_one(id)).collect()).await
    }

    /// Names the life that it retries, and begins again if that is not the last any more when it is pushed: the next
    /// may have completed.
    async fn retry_one(&self, id: TaskId) -> Result<Pushed> {
        let unanswered = || Err(Error::new(ErrorKind::Unavailable, "the push was not carried out"));
        for _ in 0..LOOKED_AGAIN {
            let push = self.new_retry(&id).await;
            match self.push_all(vec![push]).await.pop().unwrap_or_else(unanswered)? {
                Pushed::Finished(..) => {}
                pushed => return Ok(pushed),
            }
        }
        let message = format!("task '{id}' fails and is retried all the time; try again");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    async fn new_retry(&self, id: &TaskId) -> Result<Push> {
        let missing = || Error::not_found(format!("task '{id}' has not failed"));
        let key = match (self.lives_of(id).await?.last, self.foreign_key(id)) {
            (Some(last), _) => TaskKey::new(id.clone(), last),
            (None, Some(foreign)) => foreign,
            (None, None) => return Err(missing()),
        };
        let record = self.record(&key).await?.ok_or_else(missing)?;
        if record.outcome != Outcome::Failed && !planted::is(Planted::RetryOfCompleted) {
            let message = format!("task '{id}' has completed; push it again to do it again");
            return Err(Error::new(ErrorKind::AlreadyCompleted, message));
        }
        let Some(payload) = record.payload else {
            return Err(Error::invalid(format!(
                "task '{id}' cannot be retried: its file was unreadable; push it anew"
            )));
        };
        let mut task = NewTask::new(payload).id(id.clone()).again();
        task.max_attempts = record.meta.max_attempts;
        Ok(Push { retries: Some(key), ..self.new_push(task)? })
    }

    /// Whether this life has failed, and is the last.
    async fn can_be_retried(&self, key: &TaskKey, last: Option<Generation>) -> Result<bool> {
        let is_last = last == (!key.is_verbatim()).then(|| key.generation());
        Ok(planted::is(Planted::RetryOfCompleted)
            || (is_last && self.outcome(key).await? == Some(Outcome::Failed)))
    }
}

/// Attempts made in this life and all before it, or at least as many: a cancel may not have seen one
/// that was just being made.
fn attempts_through(record: &Record) -> u32 {
    let here = record.attempts.iter().map(|attempt| attempt.attempt).max().unwrap_or(0);
    record.meta.attempts_before.saturating_add(here).saturating_add(u32::from(record.cancelled))
}
