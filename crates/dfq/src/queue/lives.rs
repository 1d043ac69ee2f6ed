//! The lives of an id: which there were, how they ended, and what is left of them.
//!
//! Invariant: records of an id have no gaps from the first life on that no purge has forgotten, so the last is
//! found without a list of all; and nothing of a task is removed before the record of its life is durable, and in
//! a bucket young.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;

use super::OUTCOMES;
use super::claim::signed;
use super::core::Core;
use super::strategy::Forgetting;
use crate::error::{ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Generation, Layout, Outcome, Record, TaskId, TaskKey};
use crate::planted::{self, Planted};
use crate::store::objects::Swap;
use crate::store::{Change, Stored, Tree, Updated, Version, removed_until};

/// In a bucket: how old a record may be for whose sake something is removed, which then takes a minute at
/// the most; and how old it must be for a purge to forget it.
const YOUNG_RECORD: Duration = Duration::from_secs(2 * 60);
pub(super) const RELIED_ON: Duration = Duration::from_secs(5 * 60);

/// So many lives of an id are put back at the most. A name that looks like a life far beyond the last is not ours.
pub(super) const MOST_MENDED: Generation = 4096;

/// What became of a record that was to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgot {
    /// It has gone.
    Removed,
    /// It is marked, but its removal took too long. The next purge goes on with it.
    Marked,
    /// It is not what the page showed; nothing was done.
    Changed,
    /// The store cannot write on the condition that it is what the page showed; nothing was done.
    Unsupported,
}

impl<T: Tree> Core<T> {
    /// The name that a program which does not encode names as we do gave this id, if it would differ
    /// from ours. Only flat trees can hold such.
    pub(super) fn foreign_key(&self, id: &TaskId) -> Option<TaskKey> {
        let flat = self.layout() == Layout::Flat;
        layout::parse_stem(id.as_str()).filter(|key| flat && key.is_verbatim())
    }

    /// The key under which an id is pending, or would be, and its last life that has a record.
    pub(super) async fn current_key(&self, id: &TaskId) -> Result<(TaskKey, Option<Generation>)> {
        let lives = self.lives_of(id).await?;
        if lives.last.is_none()
            && let Some(foreign) = self.foreign_key(id)
            && self.pending_task(&foreign).await?.is_some()
        {
            return Ok((foreign, None));
        }
        Ok((TaskKey::new(id.clone(), lives.next()), lives.last))
    }

    /// Which record a task has: completed beats failed.
    pub(super) async fn outcome(&self, key: &TaskKey) -> Result<Option<Outcome>> {
        Ok(self.record_file(key).await?.map(|(outcome, _)| outcome))
    }

    async fn record_file(&self, key: &TaskKey) -> Result<Option<(Outcome, Stored)>> {
        let [completed, failed] = self.record_paths(key);
        let both = futures::join!(self.tree.read(&completed), self.tree.read(&failed));
        let there = [both.0?, both.1?].into_iter();
        Ok(OUTCOMES.into_iter().zip(there).find_map(|(outcome, file)| Some((outcome, file?))))
    }

    /// A task's record. One that cannot be read says only that the task has finished.
    pub(super) async fn record(&self, key: &TaskKey) -> Result<Option<Record>> {
        let Some((outcome, stored)) = self.record_file(key).await? else { return Ok(None) };
        let bare = || {
            tracing::warn!(path = self.record_path(outcome, key), "record cannot be read");
            let mut bare = format::decode_record(b"{}", outcome, key)?;
            bare.payload = None;
            Ok(bare)
        };
        format::decode_record(&stored.bytes, outcome, key).or_else(|_| bare()).map(Some)
    }

    /// The bytes of a pending task.
    pub(super) async fn pending_task(&self, key: &TaskKey) -> Result<Option<Vec<u8>>> {
        let path = layout::task_file(&self.task_dir(key));
        Ok(self.tree.read(&path).await?.map(|stored| stored.bytes))
    }

    /// Whether the id has lived again since, or lives now.
    pub(super) async fn lives_again(
        &self,
        key: &TaskKey,
        scheduled: &BTreeSet<TaskKey>,
    ) -> Result<bool> {
        if key.is_verbatim() {
            return Ok(false);
        }
        self.lives(&TaskKey::new(key.id().clone(), key.generation() + 1), scheduled).await
    }

    /// Whether there is such a life: waiting, pending, or over.
    pub(super) async fn lives(
        &self,
        life: &TaskKey,
        scheduled: &BTreeSet<TaskKey>,
    ) -> Result<bool> {
        Ok(scheduled.contains(life)
            || self.pending_task(life).await?.is_some()
            || self.outcome(life).await?.is_some())
    }

    /// Lives of an id have no gaps: that is how the last is found. In a bucket a purge may have removed the
    /// records of the earlier ones while this one was being pushed, so they are put back, if only as marks.
    pub(super) async fn mend_lives(&self, key: &TaskKey) -> Result<()> {
        if self.strategy.forgetting == Forgetting::Floors
            || planted::is(Planted::PushWithoutMending)
        {
            return Ok(()); // a floor says so
        }
        for generation in (1..key.generation()).rev().take(MOST_MENDED as usize) {
            let earlier = TaskKey::new(key.id().clone(), generation);
            // One that is pending again has begun anew after the purge, and gets a record of its own.
            if self.is_there(&earlier).await? {
                return Ok(());
            }
            if generation + 1 == key.generation() && self.first_mended(key).await?.is_none() {
                return Ok(());
            }
            self.commit_one(&earlier, &mark_of(&earlier)).await?;
        }
        Ok(())
    }

    /// The same after a purge of the id, which may have removed any of them. So each is looked at, not only as far
    /// as the last that is there.
    pub(super) async fn mend_all_lives(&self, key: &TaskKey) -> Result<()> {
        let Some(first) = self.first_mended(key).await? else { return Ok(()) };
        for generation in first..key.generation() {
            let earlier = TaskKey::new(key.id().clone(), generation);
            // One that is pending again has begun anew since.
            if !self.is_there(&earlier).await? {
                self.commit_one(&earlier, &mark_of(&earlier)).await?;
            }
        }
        Ok(())
    }

    /// The first of the lives before this one that may have to be put back; none, if there are so many that this
    /// life cannot have followed them.
    async fn first_mended(&self, key: &TaskKey) -> Result<Option<Generation>> {
        if key.generation() <= MOST_MENDED {
            return Ok(Some(1));
        }
        let first = key.generation() - MOST_MENDED;
        let is_ours = self.is_there(&TaskKey::new(key.id().clone(), first)).await?;
        if !is_ours {
            tracing::warn!(%key, "thousands of lives before it have no record; they are left so");
        }
        Ok(is_ours.then_some(first))
    }

    /// Whether a life has a record, or is pending.
    async fn is_there(&self, life: &TaskKey) -> Result<bool> {
        Ok(self.outcome(life).await?.is_some() || self.pending_task(life).await?.is_some())
    }

    /// Removes what is left of a task that has a record, or has lost its file.
    pub(super) async fn clean_finished(&self, key: &TaskKey) -> Result<()> {
        match self.tree.open(&self.task_dir(key)).await? {
            Some(task_dir) => self.clean_task_dir(key, &task_dir).await,
            None => Ok(()),
        }
    }

    /// The same, and what went from its folder stays away, should the folder itself stay.
    pub(super) async fn clean_for_good(&self, key: &TaskKey) -> Result<()> {
        let Some(task_dir) = self.tree.open(&self.task_dir(key)).await? else { return Ok(()) };
        self.clean_task_dir(key, &task_dir).await?;
        match self.durable() && !planted::is(Planted::RemainsNotSynced) {
            true => self.tree.secure_leases(&task_dir).await,
            false => Ok(()),
        }
    }

    /// Cleans up a folder that is open. The look is at this very folder: one that has no task now
    /// never will, whatever its name comes to stand for.
    pub(super) async fn clean_task_dir(&self, key: &TaskKey, task_dir: &T::TaskDir) -> Result<()> {
        // Where a task's folder is only a name, a new task may come to it: what was there before the look is all
        // that may go.
        let is_name = !self.strategy.has_folders;
        let leases = if is_name { self.tree.leases(task_dir).await? } else { Vec::new() };
        let stored = self.tree.read_task(task_dir, None, &self.record_paths(key)).await?;
        let nothing_left = is_name && leases.is_empty() && stored.task.is_none();
        if nothing_left || (stored.finished && !self.secure_records(key).await?) {
            return Ok(());
        }
        if stored.finished
            && let Some(task) = &stored.task
        {
            self.keep_if_another(key, &task.bytes).await?;
        }
        let goes = stored.finished || stored.task.is_none();
        if goes || planted::is(Planted::TidyRemovesLeases) {
            self.tree.clean(task_dir, stored.finished, &leases).await?;
        }
        Ok(())
    }

    /// Makes sure that the records of a task stay, whoever wrote them, for its file is about to go; `false`
    /// if they are there no more.
    ///
    /// On disk they must be durable. In a bucket a removal that comes late, or twice, must not meet a new
    /// task of that name, so no purge may forget this one meanwhile: an old record is written anew, and
    /// counts from its end all the same. One that a purge is about to remove is there no more.
    pub(super) async fn secure_records(&self, key: &TaskKey) -> Result<bool> {
        if self.strategy.forgetting == Forgetting::Marks {
            let since = self.now().await?.saturating_sub(signed(YOUNG_RECORD));
            let since = since.unwrap_or(Timestamp::MIN);
            let [a, b] = OUTCOMES.map(|outcome| self.renew_record(key, outcome, since));
            let (a, b) = futures::join!(a, b);
            return Ok(a? | b?);
        }
        let mut there = false;
        for path in self.record_paths(key) {
            // It may be large, and what it says does not matter.
            let exists = match self.tree.exists(&path).await {
                Err(error) if self.is_local(&error).await => true,
                exists => exists?,
            };
            if exists {
                there = true;
                let durable = self.durable() && !planted::is(Planted::OthersRecordNotSynced);
                self.tree.secure(&[path], durable).await?;
            }
        }
        Ok(there)
    }

    /// Writes a record anew, unless it was written since then; whether it is there.
    async fn renew_record(
        &self,
        key: &TaskKey,
        outcome: Outcome,
        since: Timestamp,
    ) -> Result<bool> {
        let nonce = self.env.nonce();
        let renewed = |stored: &Stored| {
            let old = stored.modified < since && !planted::is(Planted::RecordNotRenewed);
            let old = old && !format::is_forgotten(&stored.bytes);
            old.then(|| format::respaced(&stored.bytes, &nonce))
        };
        let stored = match self.rewrite_record(&self.record_path(outcome, key), &renewed).await? {
            Updated::Missing => return Ok(false),
            Updated::Written(_) => return Ok(true),
            Updated::Left(stored) => stored,
        };
        let forgotten = format::is_forgotten(&stored.bytes);
        if forgotten && stored.modified < since && !self.purge_denied.load(Ordering::Relaxed) {
            // A purge was cut short. Who may not finish it does not make the mark young again and again.
            match self.forget_record(key, outcome, since).await {
                Err(error) if error.kind() == ErrorKind::Denied => {
                    tracing::warn!(%key, %error, "a purge was cut short; the next one frees this task");
                    self.purge_denied.store(true, Ordering::Relaxed);
                }
                answer => _ = answer?,
            }
        }
        Ok(!forgotten || planted::is(Planted::ForgottenJustifies))
    }

    /// Removes a record, unless it was written since then; whether it was. From its first step on nobody
    /// removes anything else for its sake, see [`Core::secure_records`].
    pub(super) async fn forget_record(
        &self,
        key: &TaskKey,
        outcome: Outcome,
        since: Timestamp,
    ) -> Result<bool> {
        let mark = self.mark_to_forget(key, outcome);
        let forget = |stored: &Stored| (stored.modified < since).then(|| mark.clone());
        let path = self.record_path(outcome, key);
        // From before the record was looked at: that is when its removal is decided on.
        let until = removed_until(self.env.monotonic());
        if planted::is(Planted::PurgeWithoutMark) {
            return self.remove_unmarked(path, since).await;
        }
        match self.rewrite_record(&path, &forget).await? {
            Updated::Written(mark) => self.tree.remove_if_unchanged(&path, &mark, until).await,
            Updated::Missing | Updated::Left(_) => Ok(false),
        }
    }

    /// Removes a record that is old, as a page of keys has shown, if it is still what the page showed. Otherwise as
    /// [`Core::forget_record`].
    pub(super) async fn forget_shown(
        &self,
        key: &TaskKey,
        outcome: Outcome,
        shown: &Version,
    ) -> Result<Forgot> {
        let mark = self.mark_to_forget(key, outcome);
        let path = self.record_path(outcome, key);
        // From before the write, whose condition proves that the record is still that old: that is when its removal
        // is decided on, however long ago the page was listed.
        let until = removed_until(self.env.monotonic());
        if planted::is(Planted::PurgeWithoutMark) {
            return self.tree.remove(&[path], until).await.map(|()| Forgot::Removed);
        }
        if planted::is(Planted::PurgeWithoutCondition) {
            self.tree.put(&path, &mark).await?;
            let gone = self.tree.remove_if_unchanged(&path, &mark, until).await?;
            return Ok(if gone { Forgot::Removed } else { Forgot::Marked });
        }
        let name = layout::record_that_a_purge_swaps(&path);
        match self.tree.swap(&name, Some(shown), &mark).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Forgot::Unsupported),
            Err(error) => Err(error),
            Ok(Swap::Lost) => Ok(Forgot::Changed),
            Ok(Swap::Written(_)) => {
                match self.tree.remove_if_unchanged(&path, &mark, until).await? {
                    true => Ok(Forgot::Removed),
                    false => Ok(Forgot::Marked),
                }
            }
        }
    }

    /// What a purge writes over a record before it removes it.
    fn mark_to_forget(&self, key: &TaskKey, outcome: Outcome) -> Vec<u8> {
        format::encode_record(&Record {
            outcome,
            lease_id: Some(self.env.nonce()),
            reason: Some("it is being purged".to_owned()),
            forgotten: true,
            ..mark_of(key)
        })
    }

    /// Writes a record on the condition that it is still what was read. Some servers support no such condition.
    /// There we choose to write without it, because records could never be purged otherwise: then a purge, a
    /// removal and a push must come within one round trip of each other to lose a task (decision 19).
    async fn rewrite_record(&self, path: &str, change: &Change<'_>) -> Result<Updated> {
        match self.tree.update(path, change).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            answer => return answer,
        }
        let Some(stored) = self.tree.read(path).await? else { return Ok(Updated::Missing) };
        let Some(bytes) = change(&stored) else { return Ok(Updated::Left(stored)) };
        self.tree.replace(path, &bytes).await?;
        Ok(Updated::Written(bytes))
    }
}

/// A record that says only that there was such a life.
pub(super) fn mark_of(key: &TaskKey) -> Record {
    Record {
        outcome: Outcome::Completed,
        payload: None,
        meta: format::bare_meta(key),
        lease_id: None,
        worker_id: None,
        finished_at: None,
        reason: Some("purged; a later life of this id began meanwhile".to_owned()),
        cancelled: false,
        forgotten: false,
        moved_to: None,
        damaged: None,
        attempts: Vec::new(),
    }
}
