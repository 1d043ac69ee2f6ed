//! Leaving for another queue: certain tasks are claimed, whatever they wait for, and end with a record
//! that says where they have gone.
//!
//! The claim is the ordinary one, so nobody works on a task that is being moved, and one that somebody
//! works on is not moved. Its lease says what it is for, so that it counts for nothing; should the mover
//! die, it runs out like any other. A scheduled task is published before its time to be claimed: `claim`
//! does not hand such a one out before it is due.

use std::sync::Arc;
use std::time::Duration;

use super::claim::Claim;
use super::core::Core;
use super::discover::Candidate;
use super::judge;
use super::walk::Spot;
use super::{Answers, MoveClaim, PollRequest, TaskState, TaskView};
use crate::clock::lock;
use crate::error::Result;
use crate::layout::{self, Due};
use crate::model::TaskKey;
use crate::store::Tree;

impl<T: Tree> Core<T> {
    pub(super) async fn claim_to_move(
        self: &Arc<Self>,
        tasks: Vec<TaskView>,
        lease: Duration,
    ) -> Answers<MoveClaim> {
        // Whoever takes may never poll, and would gather notes for it without end.
        self.apply_notes(&mut *self.discovery.lock().await);
        // How finely the store's times can be told apart is known once its clock was read.
        let possible = match self.now().await {
            Ok(_) => self.check_length(lease).await,
            Err(error) => Err(error),
        };
        match possible {
            Ok(()) => {
                self.each(tasks.iter().map(|task| self.claim_one_to_move(task, lease)).collect())
                    .await
            }
            Err(error) => tasks.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn claim_one_to_move(
        self: &Arc<Self>,
        task: &TaskView,
        lease: Duration,
    ) -> Result<MoveClaim> {
        let key = &task.key;
        if let TaskState::Scheduled { due } = task.state {
            // Gone from there or not: if it is pending, it can be had.
            self.promote(Due::at_time(due), key).await?;
        }
        let mut candidate = Candidate::new(key.clone());
        candidate.moving = true;
        candidate.leases = task.attempts.iter().map(|attempt| attempt.attempt).collect();
        let Some(attempt) = self.attempt(candidate) else {
            return Ok(MoveClaim::Held { for_now: Duration::ZERO, moving: true });
        };
        match self.claim(&attempt.candidate, lease, &PollRequest::default()).await? {
            Claim::Won(delivery) => {
                lock(&self.known).rest(key, self.env.monotonic() + lease);
                let (mut secured, failed) =
                    self.secure_claims(vec![*delivery], Duration::MAX).await;
                match (secured.pop(), failed) {
                    (Some(ours), _) => Ok(MoveClaim::Ours(Box::new(ours))),
                    (None, Some(error)) => Err(error),
                    (None, None) => Ok(MoveClaim::Gone),
                }
            }
            Claim::Held(until) | Claim::Rest(until) => Ok(MoveClaim::Held {
                for_now: until.saturating_sub(self.env.monotonic()),
                moving: self.is_being_moved(key).await?,
            }),
            Claim::Gone | Claim::NotForUs => Ok(MoveClaim::Gone),
        }
    }

    /// Cleans away what is left in `pending/` of tasks that have finished, and times for which nothing is
    /// scheduled any more.
    pub(super) async fn tidy(&self) -> Result<()> {
        let mut from = Some(Spot::START);
        while let Some(spot) = from {
            let (keys, next) = self.stretch(layout::PENDING, spot).await?;
            let cleaning = keys.iter().map(|key| self.clean_finished(key)).collect();
            self.each(cleaning).await.into_iter().collect::<Result<Vec<()>>>()?;
            from = next;
        }
        if self.strategy.has_folders {
            for due in self.due_folders().await? {
                self.prune_due(due).await;
            }
        }
        Ok(())
    }

    async fn is_being_moved(&self, key: &TaskKey) -> Result<bool> {
        let Some(task_dir) = self.tree.open(&self.task_dir(key)).await? else { return Ok(false) };
        let history = self.history(&task_dir).await?;
        let current = judge::current(&history).and_then(|seen| seen.lease.as_ref());
        Ok(current.is_some_and(|lease| lease.moving))
    }
}
