//! The second look of a push, once its task has appeared or its name was found to be taken.
//!
//! Invariant: a push is answered `created` only if nobody can take its task for what is left of an earlier one.
//! That is so if its name has no record, and no floor says that it was used and forgotten.

use super::Pushed;
use super::core::Core;
use super::push::{Plan, Push};
use super::strategy::Forgetting;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::TaskKey;
use crate::planted::{self, Planted};
use crate::store::{Created, Tree};

/// How often a name that was used up under our hands is tried anew.
const MAX_ROUNDS: usize = 16;

impl<T: Tree> Core<T> {
    /// Looks again after the task's name was created in this folder, or found to exist.
    pub(super) async fn confirm_push(
        &self,
        push: &Push,
        (key, dir): (TaskKey, String),
        created: Created,
    ) -> Result<Pushed> {
        let (mut key, mut dir, mut created) = (key, dir, created);
        for round in 0..MAX_ROUNDS {
            let blind = round == 0 && self.is_blind(push);
            match self.confirm_once(push, (&key, &dir), created, blind).await? {
                Some(pushed) => return Ok(pushed),
                None => match self.prepare(push).await? {
                    Plan::Answered(pushed) => return Ok(pushed),
                    Plan::Publish(next, file) => {
                        dir = file.0.clone();
                        let mut answers = self.tree.publish(&[file], self.durable()).await;
                        created = answers.pop().unwrap_or(Ok(Created::Exists))?;
                        key = next;
                    }
                },
            }
        }
        let message = format!(
            "task '{}' cannot be pushed: '{dir}' is in the way; look whether it holds files that are not ours",
            push.id,
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// What became of the push, or `None` if its name was used up and another must be tried.
    async fn confirm_once(
        &self,
        push: &Push,
        (key, dir): (&TaskKey, &str),
        created: Created,
        blind: bool,
    ) -> Result<Option<Pushed>> {
        let is_created = Ok(Some(Pushed::Created(key.clone())));
        if push.fresh && created == Created::New {
            return is_created;
        }
        let looks = created == Created::Exists || !planted::is(Planted::PushWithoutRecordLook);
        if looks && let Some(record) = self.record(key).await? {
            if push.has_become(&record) {
                return is_created; // done already, and quickly
            }
            match created {
                Created::New => match self.unpublish(key, dir).await {
                    Ok(false) => return is_created,
                    answer => if_allowed(answer.map(drop))?,
                },
                Created::Exists => if_allowed(self.clean_finished(key).await)?,
            }
            // There may be later lives.
            if push.task.again || blind || push.arrives() {
                return Ok(None);
            }
            return Ok(Some(Pushed::Finished(key.clone(), record.outcome)));
        }
        if created == Created::New || push.task.is_delayed() {
            self.mend_lives(key).await?;
        }
        if created == Created::New {
            if !planted::is(Planted::PushWithoutSecondLook) && self.is_forgotten(key).await? {
                return self.unpublish_forgotten(push, key, dir).await;
            }
            return is_created;
        }
        if push.task.is_delayed() && planted::is(Planted::DelayedNotReadBack) {
            return Ok(Some(Pushed::Pending(key.clone())));
        }
        // A delayed one stands where it exists, or has become due since.
        let mut there = None;
        if push.task.is_delayed() {
            there = self.tree.read(&layout::task_file(dir)).await?.map(|stored| stored.bytes);
        }
        if there.is_none() {
            there = self.pending_task(key).await?;
        }
        let Some(bytes) = there else {
            if self.record(key).await?.is_some_and(|record| push.has_become(&record)) {
                return is_created; // done since we looked
            }
            // A folder without its task: a finished one that nobody has cleaned up yet.
            if_allowed(self.clean_finished(key).await)?;
            return Ok(None);
        };
        if format::decode_task(&bytes, key).is_err() && self.differs_in_case(&bytes, key) {
            return Err(Error::invalid(format!(
                "task '{key}' differs only in case from one that is pending, and this filesystem does \
                 not tell them apart"
            )));
        }
        match push.pending(key.clone(), &bytes)? {
            // Ours, and the answer was lost. It may have come late, after our look for records: so look as after any
            // task that has just appeared.
            Pushed::Created(_) if !planted::is(Planted::LatePushBelieved) => {
                Box::pin(self.confirm_once(push, (key, dir), Created::New, blind)).await
            }
            pushed => Ok(Some(pushed)),
        }
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

    /// Removes what was published in this folder under a name that is used up; `false` if a purge frees the
    /// name at this moment, so that it can stay. A claimer that has put a lease beside it finds the record too,
    /// and removes its lease.
    async fn unpublish(&self, key: &TaskKey, dir: &str) -> Result<bool> {
        if self.strategy.forgetting == Forgetting::Marks {
            if !self.secure_records(key).await? {
                return Ok(false);
            }
            self.tree.remove_file(&layout::task_file(dir)).await?;
            return Ok(true);
        }
        // On disk, names that were used up stay so.
        self.secure_records(key).await?;
        self.remove_published(dir).await?;
        Ok(true)
    }

    /// Removes a task from the folder in which it was published, if it is still there.
    pub(super) async fn remove_published(&self, dir: &str) -> Result<()> {
        match self.tree.open(dir).await? {
            Some(task_dir) => self.tree.clean(&task_dir, true, &[]).await,
            None => Ok(()),
        }
    }

    /// Whether a purge has forgotten this life.
    pub(super) async fn is_forgotten(&self, key: &TaskKey) -> Result<bool> {
        let floor = self.floor(key.id()).await?;
        Ok(floor.is_some_and(|floor| key.generation() <= floor.generation))
    }

    /// Since we looked, the name of what we have just published was used and forgotten. Who met our task may
    /// have taken it for what is left of that one, and be removing it, even if it has a lease. So it goes, and is
    /// pushed anew, unless it was done.
    async fn unpublish_forgotten(
        &self,
        push: &Push,
        key: &TaskKey,
        dir: &str,
    ) -> Result<Option<Pushed>> {
        if_allowed(self.remove_published(dir).await)?;
        let done = self.record(key).await?.is_some_and(|record| push.has_become(&record));
        Ok(done.then(|| Pushed::Created(key.clone())))
    }
}

/// Those who only push need not be allowed to remove anything: a worker will.
fn if_allowed(cleaned: Result<()>) -> Result<()> {
    cleaned.or_else(|error| match error.kind() {
        ErrorKind::Denied => {
            tracing::debug!(%error, "left to the workers");
            Ok(())
        }
        _ => Err(error),
    })
}
