//! What operators do: cancel, unlock, pause, resume, purge. Each only adds; none deletes what somebody
//! may still be working on.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::claim::signed;
use super::core::Core;
use super::discover::Note;
use super::judge;
use super::lives::{RELIED_ON, mark_of};
use super::walk::Spot;
use super::{Answers, Cancelled, OUTCOMES, Paused, Purge, Purged, Unlocked, WorkerRecord};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout::{self, Due};
use crate::model::{Lease, LeaseState, Outcome, Record, TaskId, TaskKey};
use crate::store::{Created, Entry, EntryKind, NO_FOLDER, Stored, Tree};

/// A record younger than this may still be needed by a worker that stalled, whatever its lease.
const MIN_PURGE_AGE: Duration = Duration::from_secs(3600);

/// What the name of a folder ends in that is being removed.
const TRASH: &str = ".trash";

/// Folders below this depth are not ours, and are left alone.
const DEEPEST: usize = 6;

/// Half-made files older than this have nobody who will finish them.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// A worker that has been silent for so long is of interest to nobody.
const SILENT_WORKER_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Serialize)]
struct Mark<'a> {
    by: &'a str,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// How old a record must be to be purged.
#[derive(Clone, Copy)]
struct Age {
    /// The task ended before this.
    ended: Timestamp,
    /// And the record was not written since, for the first time or anew.
    written: Timestamp,
}

impl Age {
    fn is_reached(self, stored: &Stored, outcome: Outcome, key: &TaskKey) -> bool {
        let record = format::decode_record(&stored.bytes, outcome, key).ok();
        // What a purge that was cut short has left is none the younger for it.
        let forgotten = record.as_ref().is_some_and(|record| record.forgotten);
        let ended = record.and_then(|record| record.finished_at).unwrap_or(stored.modified);
        stored.modified < self.written && (forgotten || ended.min(stored.modified) <= self.ended)
    }
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
        let mark = self.mark(None);
        if let Err(error) = self.tree.replace(layout::UNLOCKED, &format::line(&mark)).await {
            tracing::warn!(%error, "workers were not told; they will see it at their next heartbeat");
        }
        self.tree.ring().await;
    }

    pub(super) async fn recalled(&self) -> Result<bool> {
        let mark = self.tree.read(layout::UNLOCKED).await?.map(|stored| stored.version());
        // What the first look finds is no news.
        let before = lock(&self.recall).replace(mark);
        Ok(before.is_some_and(|before| before != mark))
    }

    async fn cancel_one(&self, id: &TaskId, reason: &str) -> Result<Cancelled> {
        let (key, last) = self.current_key(id).await?;
        if let Some(cancelled) = self.cancel_at(&key, &self.task_dir(&key), reason).await? {
            return cancelled;
        }
        for due in self.due_folders().await? {
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
        let Some(slot) = self.tree.open(dir).await? else { return Ok(None) };
        let look = self.tree.look(&slot, None, &self.record_paths(key)).await?;
        let Some(task) = look.task else { return Ok(None) };
        let decoded = format::decode_task(&task.bytes, key);
        let damaged = decoded.is_err().then_some(task.bytes);
        let (payload, meta) = match decoded {
            Ok((payload, meta)) => (Some(payload), meta),
            Err(_) => (None, format::bare_meta(key)),
        };
        let history = self.history(&slot).await?;
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
        if !look.finished {
            self.commit_one(key, &record).await?;
        }
        let there = self.record(key).await?;
        if !self.secure_records(key).await? {
            return Ok(None); // a purge has forgotten it
        }
        self.tree.clean(&slot, true, &[]).await?;
        Ok(Some(match there {
            Some(there) if there.lease_id != record.lease_id => {
                Err(self.already_over(key, there.outcome))
            }
            _ => Ok(Cancelled { held_by }),
        }))
    }

    /// All times at which something is scheduled.
    pub(super) async fn due_folders(&self) -> Result<Vec<Due>> {
        let mut due = Vec::new();
        self.each_entry(layout::SCHEDULED, |entry| match Due::parse(&entry.name) {
            Some(time) if entry.kind == EntryKind::Folder => due.push(time),
            _ => tracing::warn!(name = entry.name, "not a time in scheduled/"),
        })
        .await?;
        due.sort_unstable();
        Ok(due)
    }

    /// Calls `visit` for every name in a folder.
    pub(super) async fn each_entry(&self, dir: &str, mut visit: impl FnMut(&Entry)) -> Result<()> {
        let mut cursor = None;
        loop {
            let page = self.tree.list(dir, cursor, 4096).await?;
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
        let slot = self.tree.open(&self.task_dir(&key)).await?.ok_or_else(missing)?;
        let look = self.tree.look(&slot, None, &self.record_paths(&key)).await?;
        if look.task.is_none() || look.finished {
            return Err(missing());
        }
        let history = self.history(&slot).await?;
        let (Some(top), Some(current)) = (history.last(), judge::current(&history)) else {
            return Ok(Unlocked::WasFree);
        };
        let now = self.now().await?;
        let ended = current.lease.as_ref().filter(|lease| lease.state.is_some());
        if ended.is_some_and(|lease| lease.not_before.is_none_or(|until| until <= now)) {
            return Ok(Unlocked::WasFree);
        }
        let lease = Lease {
            worker_id: self.worker_id.clone(),
            lease_id: Some(self.env.nonce()),
            attempt: top.attempt.saturating_add(1),
            created_at: now,
            heartbeat_at: now,
            expires_at: now,
            host: Some(self.host.clone()),
            pid: Some(self.pid),
            state: Some(LeaseState::Released),
            error: Some("unlocked by an operator".to_owned()),
            not_before: None,
            moving: false,
        };
        let draft = self.tree.draft(&format::encode_lease(&lease)).await?;
        let created = self.tree.create_lease(&slot, lease.attempt, &draft).await?;
        let there = self.tree.read_lease(&slot, lease.attempt).await?;
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
        self.tree.remove(layout::PAUSED).await?;
        self.note(Note::Root);
        self.tree.ring().await;
        Ok(())
    }

    pub(super) async fn paused(&self) -> Result<Option<Paused>> {
        let mark = self.tree.read(layout::PAUSED).await?;
        // A mark that somebody made by hand pauses too, whatever is in it.
        Ok(mark.map(|mark| serde_json::from_slice(&mark.bytes).unwrap_or_default()))
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
        let mut workers = Vec::with_capacity(names.len());
        for name in names {
            let Some(stored) = self.tree.read(&layout::worker_path(&name)).await? else { continue };
            match serde_json::from_slice::<WorkerRecord>(&stored.bytes) {
                Ok(mut record) => {
                    record.seen_at = Some(stored.modified);
                    workers.push(record);
                }
                Err(error) => tracing::warn!(name, %error, "worker record cannot be read"),
            }
        }
        Ok(workers)
    }

    pub(super) async fn purge(&self, purge: Purge) -> Result<Purged> {
        let least = MIN_PURGE_AGE.max(self.settings.lease.saturating_mul(10));
        if purge.older_than < least {
            return Err(Error::invalid(format!(
                "records are kept for at least {} min in this queue: a worker that stalled must \
                 still find out that its task is done",
                least.as_secs().div_ceil(60)
            )));
        }
        let now = self.now().await?;
        let ago = |age| now.saturating_sub(signed(age)).unwrap_or(Timestamp::MIN);
        let age = Age { ended: ago(purge.older_than), written: ago(RELIED_ON) };
        let mut purged = Purged::default();
        let scheduled = self.scheduled_lives().await?;
        let mut from = Some(Spot::START);
        while let Some(mark) = from {
            let (keys, next) = self.stretch(layout::outcome_dir(purge.outcome), mark).await?;
            let purging =
                keys.iter().map(|key| self.purge_id(key, purge, age, &scheduled)).collect();
            for records in self.each(purging).await {
                purged.records += records?;
            }
            from = next;
        }
        if !purge.dry_run {
            // What was scheduled meanwhile may rely on records that have gone.
            for key in self.scheduled_lives().await? {
                self.mend_lives(&key).await?;
            }
        }
        purged.leftovers = self.purge_leftovers(now, purge.dry_run).await?;
        Ok(purged)
    }

    /// Removes every life of an id, if this is the record of its last and is old enough. The last goes
    /// first, so that what a crash leaves has no gaps: the next push finds the right generation.
    async fn purge_id(
        &self,
        key: &TaskKey,
        purge: Purge,
        age: Age,
        scheduled: &HashSet<TaskKey>,
    ) -> Result<u64> {
        let path = self.record_path(purge.outcome, key);
        let Some(stored) = self.tree.read(&path).await? else { return Ok(0) };
        if !age.is_reached(&stored, purge.outcome, key) || self.lives_again(key, scheduled).await? {
            return Ok(0);
        }
        if self.outcome(key).await? != Some(purge.outcome) {
            return Ok(0); // completed as well, which is what counts
        }
        let mut removed = 0;
        for generation in (1..=key.generation()).rev() {
            let life = match generation == key.generation() {
                true => key.clone(),
                false => TaskKey::new(key.id().clone(), generation),
            };
            let Some(records) = self.purge_life(&life, age, purge.dry_run).await? else {
                return Ok(removed); // next time
            };
            if records == 0 {
                break;
            }
            removed += records;
            // A push of the next life may have begun before the record went, and relies on it.
            if !purge.dry_run
                && life == *key
                && self.lives_again(key, scheduled).await?
                && self.pending_task(key).await?.is_none()
            {
                self.tree.create(&path, &stored.bytes).await?;
                return Ok(0);
            }
        }
        // Or while the earlier ones went, any of which it may have taken for the last. It has not found
        // all that it should have put back.
        let lives = (2..=key.generation() + 1).map(|life| TaskKey::new(key.id().clone(), life));
        for life in lives.rev().filter(|_| !purge.dry_run && !key.is_verbatim()) {
            if self.lives(&life, scheduled).await? {
                for generation in 1..life.generation() {
                    let earlier = TaskKey::new(key.id().clone(), generation);
                    // One that is pending again has begun anew since.
                    if self.outcome(&earlier).await?.is_none()
                        && self.pending_task(&earlier).await?.is_none()
                    {
                        self.commit_one(&earlier, &mark_of(&earlier)).await?;
                    }
                }
                break;
            }
        }
        Ok(removed)
    }

    /// Removes what there is of a life, and answers how many records that was; `None` if somebody is
    /// removing remains of it, and relies on its record.
    async fn purge_life(&self, life: &TaskKey, age: Age, dry_run: bool) -> Result<Option<u64>> {
        if !dry_run {
            // Its remains, if a crash left any, would be a task again without the record.
            self.clean_finished(life).await?;
        }
        let mut removed = 0;
        // Failed first: a completed record beats it, so the task never seems to have failed.
        for outcome in OUTCOMES.into_iter().rev() {
            let path = self.record_path(outcome, life);
            let Some(stored) = self.tree.read(&path).await? else { continue };
            let relied_on = match (self.remote(), dry_run) {
                (true, false) => !self.forget_record(life, outcome, age.written).await?,
                (true, true) => stored.modified >= age.written,
                (false, _) => false,
            };
            if relied_on {
                return Ok(None);
            }
            if !self.remote() && !dry_run {
                self.tree.remove(&path).await?;
            }
            removed += 1;
        }
        Ok(Some(removed))
    }

    /// Whether the id has lived again since, or lives now.
    pub(super) async fn lives_again(
        &self,
        key: &TaskKey,
        scheduled: &HashSet<TaskKey>,
    ) -> Result<bool> {
        if key.is_verbatim() {
            return Ok(false);
        }
        self.lives(&TaskKey::new(key.id().clone(), key.generation() + 1), scheduled).await
    }

    /// Whether there is such a life: waiting, pending, or over.
    async fn lives(&self, life: &TaskKey, scheduled: &HashSet<TaskKey>) -> Result<bool> {
        Ok(scheduled.contains(life)
            || self.pending_task(life).await?.is_some()
            || self.outcome(life).await?.is_some())
    }

    /// Scheduled tasks that are not in their first life.
    pub(super) async fn scheduled_lives(&self) -> Result<HashSet<TaskKey>> {
        let mut lives = HashSet::new();
        for due in self.due_folders().await? {
            let keys = self.scheduled_keys(due).await?.into_iter();
            lives.extend(keys.filter(|key| key.generation() > 1));
        }
        Ok(lives)
    }

    /// When a name was last added to or removed from a folder, where the store can tell.
    async fn changed_at(&self, folder: &str, now: Timestamp) -> Result<Option<Timestamp>> {
        let stamp = self.tree.stamp(folder, now).await?.filter(|stamp| *stamp != NO_FOLDER);
        Ok(stamp.and_then(|nanos| Timestamp::from_nanosecond(i128::from(nanos)).ok()))
    }

    /// Removes the files in a folder and in those right below it, such as a killed doctor leaves.
    async fn empty(&self, folder: &str) -> Result<()> {
        let (mut folders, mut at) = (vec![folder.to_owned()], 0);
        while at < folders.len() {
            let folder = folders[at].clone();
            at += 1;
            let mut inside = Vec::new();
            self.each_entry(&folder, |entry| inside.push(entry.clone())).await?;
            for Entry { name, kind } in inside {
                let path = format!("{folder}/{name}");
                match kind {
                    EntryKind::Folder if path.matches('/').count() < DEEPEST => folders.push(path),
                    EntryKind::Folder => {}
                    _ => self.tree.remove(&path).await?,
                }
            }
        }
        for folder in folders.into_iter().skip(1).rev() {
            if let Some(slot) = self.tree.open(&folder).await? {
                self.tree.clean(&slot, false, &[]).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn purge_leftovers(&self, now: Timestamp, dry_run: bool) -> Result<u64> {
        let older = |modified: Timestamp, age| now.duration_since(modified) > signed(age);
        let mut removed = 0;
        let mut staged = Vec::new();
        self.each_entry(layout::TMP, |entry| staged.push(entry.clone())).await?;
        for entry in staged {
            let path = format!("{}/{}", layout::TMP, entry.name);
            let (file, folder) = match entry.kind {
                EntryKind::File => (path.clone(), None),
                EntryKind::Folder => (format!("{path}/{}", layout::TASK), Some(path)),
                EntryKind::Other => continue,
            };
            let modified = match (self.tree.read(&file).await?, &folder) {
                (Some(stored), _) => Some(stored.modified),
                // Killed before it came to writing the task.
                (None, Some(folder)) => self.changed_at(folder, now).await?,
                (None, None) => None,
            };
            if modified.is_none_or(|modified| !older(modified, LEFTOVER_AGE)) {
                continue;
            }
            removed += 1;
            match folder {
                _ if dry_run => {}
                None => self.tree.remove(&file).await?,
                Some(folder) => {
                    // Renamed first: should its pusher wake up after all, it finds nothing to publish.
                    let trash = match folder.ends_with(TRASH) {
                        true => folder,
                        false => {
                            let trash = format!("{folder}{TRASH}");
                            self.tree.promote(&folder, &trash, false).await?;
                            trash
                        }
                    };
                    self.empty(&trash).await?;
                    if let Some(slot) = self.tree.open(&trash).await? {
                        self.tree.clean(&slot, true, &[]).await?;
                    }
                }
            }
        }
        for worker in self.workers().await? {
            if worker.seen_at.is_some_and(|seen| older(seen, SILENT_WORKER_AGE)) {
                removed += 1;
                if !dry_run {
                    self.tree.remove(&layout::worker_path(&worker.worker_id)).await?;
                }
            }
        }
        Ok(removed)
    }
}
