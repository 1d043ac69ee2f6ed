//! A task here whose life a purge has forgotten while it was not known to the hub: it gets the number of another life
//! (R8).
//!
//! Invariant: it is claimed first, so that nobody here works on it under its old number; published under the new number
//! with the same push, by which it is known should this be cut short; and only then removed.

use std::sync::Arc;

use super::apply::Done;
use super::order::{Task, is_same_push};
use super::plan::Step;
use crate::error::Result;
use crate::format;
use crate::layout::{self, Due};
use crate::model::{TaskKey, TaskMeta};
use crate::queue::PollRequest;
use crate::queue::claim::Claim;
use crate::queue::core::Core;
use crate::queue::discover::Candidate;
use crate::store::{Created, Tree};

impl<T: Tree> Core<T> {
    pub(super) async fn renumber(
        self: &Arc<Self>,
        key: &TaskKey,
        due: Option<Due>,
    ) -> Result<Done> {
        let dir = due.map_or_else(|| self.task_dir(key), |due| layout::scheduled_dir(due, key));
        let Some(stored) = self.tree.read(&layout::task_file(&dir)).await? else {
            return Ok(Done::Yes);
        };
        let Some(task) = Task::read(key, &stored.bytes) else { return Ok(Done::Changed) };
        let mut claimed = None;
        if due.is_none() {
            let mut candidate = Candidate::new(key.clone());
            candidate.moving = true;
            let Some(attempt) = self.attempt(candidate) else { return Ok(Done::Changed) };
            let wanted = self.settings.lease;
            match self.claim(&attempt.candidate, wanted, &PollRequest::default()).await? {
                Claim::Won(delivery) => claimed = Some(delivery),
                Claim::Gone => return Ok(Done::Yes),
                // Somebody here is at it. What becomes of it is seen in the next pass.
                Claim::Held(_) | Claim::Rest(_) | Claim::NotForUs => return Ok(Done::Changed),
            }
        }
        let moved = self.publish_again(&task, key, due).await;
        if let Some(delivery) = claimed {
            self.let_go(&delivery.receipt);
        }
        moved?;
        self.remove_task(&dir, &[]).await?;
        if let Some(due) = due {
            self.prune_due(due).await;
        }
        Ok(Done::Yes)
    }

    /// Publishes a task under the number of the life that comes next, unless it has been.
    async fn publish_again(&self, task: &Task<'_>, key: &TaskKey, due: Option<Due>) -> Result<()> {
        let lives = self.lives_of(key.id()).await?;
        for generation in lives.forgotten + 1..=lives.last.unwrap_or(0) {
            let life = TaskKey::new(key.id().clone(), generation);
            if let Some(record) = self.record(&life).await?
                && is_same_push(&record.meta, &task.meta)
            {
                return Ok(()); // it was done under its new number
            }
        }
        let next = TaskKey::new(key.id().clone(), lives.next());
        let meta = TaskMeta { generation: next.generation(), ..task.meta.clone() };
        let bytes = format::encode_task(&task.payload, &meta);
        let dir = match due {
            Some(due) => layout::scheduled_dir(due, &next),
            None => self.task_dir(&next),
        };
        let published = self.tree.publish(&[(dir, bytes)], self.durable()).await;
        if published.into_iter().next().unwrap_or(Ok(Created::Exists))? == Created::New {
            return Ok(());
        }
        let there = self.pending_task(&next).await?;
        let there = there.as_ref().and_then(|bytes| Task::read(&next, bytes));
        let asks_the_same = there.as_ref().is_some_and(|there| {
            is_same_push(&there.meta, &task.meta) || there.payload == task.payload
        });
        if asks_the_same {
            return Ok(());
        }
        let (mark, bytes) = (task.mark(), task.bytes.to_vec());
        self.take_step(&Step::Keep { key: key.clone(), mark, bytes }).await.map(|_| ())
    }
}
