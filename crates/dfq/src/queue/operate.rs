//! What operators do: cancel, unlock, pause, resume. Each only adds; none deletes what somebody may still be
//! working on.

use std::sync::atomic::Ordering;

use serde::Serialize;

use super::core::Core;
use super::discover::Note;
use super::judge;
use super::{Answers, Cancelled, Paused, Unlocked, WorkerRecord};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Lease, LeaseState, Outcome, Record, TaskId, TaskKey};
use crate::planted::{self, Planted};
use crate::store::{Created, Entry, Stamp, Tree};

#[derive(Serialize)]
struct Mark<'a> {
    by: &'a str,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl<T: Tree> Core<T> {
    pub(super) async fn cancel(&self, ids: Vec<TaskId>, reason: String) -> Answers<Cancelled> {
        let answers = self.each(ids.iter().map(|id| self.cancel_one(id, &reason)).collect()).await;
        if answers.iter().flatten().any(|cancelled| cancelled.held_by.is_some()) {
            self.tell_holders().await;
        }
        answers
    }

    /// Tells all who hold tasks, and all who remember what they cannot claim, to look again.
    async fn tell_holders(&self) {
        if planted::is(Planted::HoldersNotTold) {
            return;
        }
        let mark = self.mark(None);
        if let Err(error) = self.tree.replace(layout::UNLOCKED, &format::line(&mark)).await {
            tracing::warn!(%error, "workers were not told; they will see it at their next heartbeat");
        }
        self.tree.ring().await;
    }

    /// Tells a mark in the root from any other of that name. What it says does not count, so one that cannot be
    /// read counts as well.
    pub(super) async fn version_of(&self, path: &str) -> Result<Option<u64>> {
        match self.tree.read(path).await {
            Ok(stored) => Ok(stored.map(|stored| stored.version())),
            Err(error) if self.is_bad_itself(&error).await => {
                match self.tree.stamp(path, jiff::Timestamp::MAX).await {
                    Ok(Some(Stamp::Missing)) => Ok(None),
                    Ok(stamp) => {
                        tracing::warn!(%error, "it counts all the same, because it is there");
                        Ok(Some(match stamp {
                            Some(Stamp::At(time)) => time.as_nanosecond() as u64,
                            _ => 0,
                        }))
                    }
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn recalled(&self) -> Result<bool> {
        let mark = self.version_of(layout::UNLOCKED).await?;
        // Before a process holds anything it has polled, and then it has looked.
        let before = lock(&self.recall).replace(mark);
        let changed = before != Some(mark);
        if changed {
            self.recalls.fetch_add(1, Ordering::Relaxed);
        }
        Ok(changed)
    }

    async fn cancel_one(&self, id: &TaskId, reason: &str) -> Result<Cancelled> {
        let (key, last) = self.current_key(id).await?;
        if let Some(cancelled) = self.cancel_at(&key, &self.task_dir(&key), reason).await? {
            return cancelled;
        }
        for due in self.dues_of(&key).await? {
            let dir = layout::scheduled_dir(due, &key);
            if let Some(cancelled) = self.cancel_at(&key, &dir, reason).await? {
                self.prune_due(due).await;
                return cancelled;
            }
        }
        // It may have come due between the two looks.
        if let Some(cancelled) = self.cancel_at(&key, &self.task_dir(&key), reason).await? {
            return cancelled;
        }
        match last {
            None => Err(Error::not_found(format!("there is no task '{id}'"))),
            Some(last) => {
                let finished = TaskKey::new(id.clone(), last);
                let outcome = self.outcome(&finished).await?.unwrap_or(Outcome::Completed);
                Err(self.already_over(&finished, outcome))
            }
        }
    }

    /// Cancels the task in this folder; `None` if there is none.
    async fn cancel_at(
        &self,
        key: &TaskKey,
        dir: &str,
        reason: &str,
    ) -> Result<Option<Result<Cancelled>>> {
        let Some(task_dir) = self.tree.open(dir).await? else { return Ok(None) };
        let stored = self.tree.read_task(&task_dir, None, &self.record_paths(key)).await?;
        let Some(task) = stored.task else { return Ok(None) };
        let decoded = format::decode_task(&task.bytes, key);
        let damaged = decoded.is_err().then_some(task.bytes);
        let (payload, meta) = match decoded {
            Ok((payload, meta)) => (Some(payload), meta),
            Err(_) => (None, format::bare_meta(key)),
        };
        let history = self.history(&task_dir).await?;
        let holder = judge::current(&history).filter(|current| current.state().is_none());
        let held_by = holder.map(|holder| holder.worker_id().to_owned());
        let record = Record {
            outcome: Outcome::Failed,
            payload,
            meta,
            lease_id: Some(self.env.nonce()),
            worker_id: Some(self.worker_id.clone()),
            finished_at: Some(self.now().await?),
            reason: Some(reason.to_owned()),
            cancelled: true,
            forgotten: false,
            moved_to: None,
            damaged,
            attempts: judge::summaries(&history),
        };
        if !stored.finished {
            self.commit_one(key, &record).await?;
        }
        let there = self.record(key).await?;
        if !self.secure_records(key).await? {
            return Ok(None); // a purge has forgotten it
        }
        self.keep_loser(key, &task_dir).await?;
        self.tree.clean(&task_dir, true, &[]).await?;
        Ok(Some(match there {
            Some(_) if planted::is(Planted::CancelNotReadBack) => Ok(Cancelled { held_by }),
            Some(there) if there.lease_id != record.lease_id => {
                Err(self.already_over(key, there.outcome))
            }
            _ => Ok(Cancelled { held_by }),
        }))
    }

    /// Calls `visit` for every name in a folder.
    pub(super) async fn each_entry(&self, dir: &str, mut visit: impl FnMut(&Entry)) -> Result<()> {
        let mut cursor = None;
        loop {
            let page = self.tree.list_folder(dir, cursor, 4096).await?;
            page.entries.iter().for_each(&mut visit);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) async fn unlock(&self, ids: Vec<TaskId>) -> Answers<Unlocked> {
        let answers = self.each(ids.iter().map(|id| self.unlock_one(id)).collect()).await;
        self.tell_holders().await;
        answers
    }

    async fn unlock_one(&self, id: &TaskId) -> Result<Unlocked> {
        let (key, _) = self.current_key(id).await?;
        let missing = || Error::not_found(format!("task '{id}' is not pending"));
        let task_dir = self.tree.open(&self.task_dir(&key)).await?.ok_or_else(missing)?;
        let stored = self.tree.read_task(&task_dir, None, &self.record_paths(&key)).await?;
        if stored.task.is_none() || stored.finished {
            return Err(missing());
        }
        let history = self.history(&task_dir).await?;
        let (Some(top), Some(current)) = (history.last(), judge::current(&history)) else {
            return Ok(Unlocked::WasFree);
        };
        let now = self.now().await?;
        let ended = current.lease.as_ref().filter(|lease| lease.state.is_some());
        if ended.is_some_and(|lease| lease.not_before.is_none_or(|until| until <= now)) {
            return Ok(Unlocked::WasFree);
        }
        if planted::is(Planted::UnlockDeletes) {
            self.remove_lease(&key, current.attempt).await?;
            return Ok(Unlocked::From(current.worker_id().to_owned()));
        }
        let lease = Lease {
            worker_id: self.worker_id.clone(),
            lease_id: Some(self.env.nonce()),
            attempt: top.attempt.saturating_add(1),
            created_at: now,
            heartbeat_at: now,
            expires_at: now,
            host: Some(self.env.host().name.clone()),
            pid: Some(self.env.host().pid),
            state: Some(LeaseState::Released),
            error: Some("unlocked by an operator".to_owned()),
            not_before: None,
            moving: false,
            node: self.node().await?,
            beat: 0,
        };
        let prepared = self.tree.prepare_lease(&format::encode_lease(&lease)).await?;
        let created = self.tree.create_lease(&task_dir, lease.attempt, &prepared).await?;
        let there = self.tree.read_lease(&task_dir, lease.attempt).await?;
        let there = there.and_then(|stored| format::decode_lease(&stored.bytes, lease.attempt));
        let ours = there.is_some_and(|there| there.lease_id == lease.lease_id);
        if created == Created::Exists && !ours {
            let message = format!("task '{id}' changed hands just now; try again");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        self.note(Note::Wakes(key, lease.attempt));
        Ok(Unlocked::From(current.worker_id().to_owned()))
    }

    fn mark(&self, reason: Option<String>) -> Mark<'_> {
        Mark { by: &self.worker_id, at: format!("{:.6}", self.env.clock().wall()), reason }
    }

    pub(super) async fn pause(&self, reason: Option<String>) -> Result<()> {
        let mark = self.mark(reason);
        self.tree.replace(layout::PAUSED, &format::line(&mark)).await?;
        self.note(Note::Root);
        Ok(())
    }

    pub(super) async fn resume(&self) -> Result<()> {
        self.tree.remove_file(layout::PAUSED).await?;
        self.note(Note::Root);
        self.tree.ring().await;
        Ok(())
    }

    pub(super) async fn paused(&self) -> Result<Option<Paused>> {
        let mark = match self.tree.read(layout::PAUSED).await {
            Err(_) => self.version_of(layout::PAUSED).await?.map(|_| Vec::new()),
            mark => mark?.map(|mark| mark.bytes),
        };
        // A mark that somebody made by hand pauses too, whatever is in it.
        Ok(mark.map(|mark| serde_json::from_slice(&mark).unwrap_or_default()))
    }

    pub(super) async fn put_worker(&self, record: &WorkerRecord) -> Result<()> {
        self.enrolled.store(record.stopped_at.is_none(), Ordering::Relaxed);
        self.tree.replace(&layout::worker_path(&record.worker_id), &format::line(record)).await
    }

    pub(super) async fn workers(&self) -> Result<Vec<WorkerRecord>> {
        let mut names = Vec::new();
        self.each_entry(layout::WORKERS, |entry| {
            names.extend(layout::parse_worker_name(&entry.name))
        })
        .await?;
        names.sort_unstable();
        let reading = names.iter().map(|name| self.read_worker(name)).collect();
        self.in_width(reading).await
    }

    /// A worker's record, unless it cannot be read: that must not hide the others.
    async fn read_worker(&self, name: &str) -> Result<Option<WorkerRecord>> {
        let stored = match self.tree.read(&layout::worker_path(name)).await {
            Ok(stored) => stored,
            Err(error) if self.is_bad_itself(&error).await => {
                tracing::warn!(%error, "worker left out");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Some(stored) = stored else { return Ok(None) };
        match serde_json::from_slice::<WorkerRecord>(&stored.bytes) {
            Ok(record) => Ok(Some(WorkerRecord { seen_at: Some(stored.modified), ..record })),
            Err(error) => {
                tracing::warn!(name, %error, "worker record cannot be read");
                Ok(None)
            }
        }
    }
}
