//! Delayed tasks: moved to `pending/` once due, by whoever polls.
//!
//! Moving one is an ordinary push: a second copy, or one whose life has ended meanwhile, is dropped.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use super::core::Core;
use super::discover::Discovery;
use crate::error::{ErrorKind, Result};
use crate::format;
use crate::layout::{self, Due};
use crate::model::TaskKey;
use crate::store::{Created, Entry, EntryKind, NO_FOLDER, Tree};

/// The most tasks that one poll moves.
const MAX_MOVED: usize = 512;

/// How long a due folder that holds something else than tasks is left alone.
const TROUBLE_PAUSE: Duration = Duration::from_secs(600);

/// How long to wait after the store has failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// What this process knows about `scheduled/`.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// There is no such folder, and there will be none until the root changes.
    absent: bool,
    /// The folder as it was when nothing in it was due.
    stamp: Option<u64>,
    /// The first folder that was not due.
    next: Option<Due>,
    /// Due folders that could not be emptied, and the monotonic time to try them again.
    troubled: HashMap<Due, Duration>,
}

impl<T: Tree> Core<T> {
    /// Moves what is due. Answers for how long nothing else will be, if anything waits, and whether
    /// there was more to move than one poll should.
    pub(super) async fn promote_due(
        &self,
        found: &mut Discovery<T::Cursor>,
        now: Timestamp,
        root_changed: bool,
    ) -> Result<(Option<Duration>, bool)> {
        if root_changed {
            found.schedule.absent = false;
        }
        if found.schedule.absent {
            return Ok((None, false));
        }
        let stamp = self.tree.stamp(layout::SCHEDULED, now).await?;
        let schedule = &mut found.schedule;
        schedule.absent = stamp == Some(NO_FOLDER);
        let unchanged = stamp.is_some() && stamp == schedule.stamp;
        if unchanged && schedule.next.is_none_or(|next| next.at() > now) {
            return Ok((until(schedule.next, now), false));
        }
        let all = self.due_folders().await?;
        let first_later = all.partition_point(|due| due.at() <= now);
        schedule.next = all.get(first_later).copied();
        let due = &all[..first_later];
        schedule.troubled.retain(|folder, _| due.contains(folder));
        // A move does not change `scheduled/` itself, so only a look that met nothing due can be
        // relied on until the folder changes.
        schedule.stamp = stamp.filter(|_| due.is_empty());
        let mut moved = 0;
        let mut again = until(schedule.next, now);
        for folder in due {
            if moved >= MAX_MOVED {
                return Ok((Some(Duration::ZERO), true));
            }
            let mono = self.env.monotonic();
            let retry_at = schedule.troubled.get(folder).copied().unwrap_or_default();
            if retry_at > mono {
                again = again.into_iter().chain([retry_at - mono]).min();
                continue;
            }
            let pause = match self.promote_folder(*folder, MAX_MOVED - moved).await {
                Ok((gone, pause)) => {
                    moved += gone;
                    pause
                }
                // One folder that cannot be read must not keep the others from being done.
                Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Denied) => {
                    tracing::warn!(%error, "due tasks left alone");
                    Some(TROUBLE_PAUSE)
                }
                Err(error) => return Err(error),
            };
            if let Some(pause) = pause {
                schedule.troubled.insert(*folder, mono + pause);
                again = again.into_iter().chain([pause]).min();
            }
        }
        Ok((again, moved >= MAX_MOVED))
    }

    /// Moves about `limit` tasks; answers how many, and when to try again what would not go.
    async fn promote_folder(&self, due: Due, limit: usize) -> Result<(usize, Option<Duration>)> {
        let dir = format!("{}/{}", layout::SCHEDULED, due.name());
        let (mut moved, mut pause) = (0, None);
        let mut cursor = None;
        loop {
            let mut page = self.tree.list(&dir, cursor, 256).await?;
            // Whoever else is at it should not be at the same tasks.
            self.env.shuffle(&mut page.entries);
            for entry in &page.entries {
                match self.promote_entry(due, entry).await {
                    Ok(true) => moved += 1,
                    Ok(false) => pause = pause.or(Some(TROUBLE_PAUSE)),
                    Err(error) => {
                        tracing::warn!(name = entry.name, %error, "cannot publish a due task");
                        pause = Some(FAILURE_PAUSE);
                    }
                }
            }
            cursor = page.next;
            if cursor.is_none() || moved >= limit {
                break;
            }
        }
        if cursor.is_none() && pause.is_none() && moved > 0 {
            // Found empty, the store removes it.
            self.tree.list(&dir, None, 1).await?;
        }
        Ok((moved, pause))
    }

    async fn promote_entry(&self, due: Due, entry: &Entry) -> Result<bool> {
        let folder = entry.kind == EntryKind::Folder;
        match layout::parse_canonical_stem(&entry.name).filter(|_| folder) {
            Some(key) => self.promote(due, &key).await,
            None => {
                tracing::warn!(name = entry.name, "not a task in scheduled/");
                Ok(false)
            }
        }
    }

    /// Moves one task; answers whether it has gone from its folder.
    async fn promote(&self, due: Due, key: &TaskKey) -> Result<bool> {
        let (from, to) = (layout::scheduled_dir(due, key), self.task_dir(key));
        let Some(slot) = self.tree.open(&from).await? else { return Ok(true) };
        let look = self.tree.look(&slot, None, &self.record_paths(key)).await?;
        let Some(task) = look.task.filter(|_| !look.finished) else {
            // Its life has ended meanwhile, or somebody is removing it.
            if look.finished {
                self.secure_records(key).await?;
            }
            self.tree.clean(&slot, look.finished, &[]).await?;
            return Ok(self.tree.open(&from).await?.is_none());
        };
        let mut created = self.tree.promote(&from, &to, self.durable()).await?;
        if created == Created::Exists && self.pending_task(key).await?.is_none() {
            self.clean_finished(key).await?;
            created = self.tree.promote(&from, &to, self.durable()).await?;
        }
        if created == Created::Exists {
            // Pending already, and durably so. Only now is the copy in excess.
            if self.pending_task(key).await?.is_some() {
                self.drop_copy(&from).await?;
            }
            return Ok(self.tree.open(&from).await?.is_none());
        }
        let pushed = format::decode_task(&task.bytes, key).map(|(_, meta)| meta.push_id).ok();
        match self.record(key).await? {
            Some(record) if Some(&record.meta.push_id) != pushed.as_ref() => {
                self.clean_finished(key).await?;
            }
            _ => self.mend_lives(key).await?,
        }
        Ok(true)
    }

    /// Removes a scheduled copy, if it is still there under its own name. Even if somebody moves it
    /// to `pending/` at this moment it is in excess: the task it was a copy of has then finished.
    async fn drop_copy(&self, from: &str) -> Result<()> {
        match self.tree.open(from).await? {
            Some(slot) => self.tree.clean(&slot, true, &[]).await,
            None => Ok(()),
        }
    }
}

fn until(next: Option<Due>, now: Timestamp) -> Option<Duration> {
    let wait = next?.at().duration_since(now);
    Some(Duration::try_from(wait).unwrap_or(Duration::ZERO))
}
