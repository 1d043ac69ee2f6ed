//! Delayed tasks: moved to `pending/` once due, by whoever polls.
//!
//! Moving one is an ordinary push: a second copy, or one whose life has ended meanwhile, is dropped.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use super::claim::{TROUBLE_PAUSE, trouble_pause};
use super::core::Core;
use super::discover::Discovery;
use crate::error::Result;
use crate::format;
use crate::layout::{self, Due};
use crate::model::TaskKey;
use crate::store::{Created, Entry, EntryKind, Stamp, Tree};

/// The most tasks that one poll moves.
const MAX_MOVED: usize = 512;

/// How often the root, and `scheduled/`, are looked at where that takes requests and there is other
/// work to do.
const ROOT_EVERY: Duration = Duration::from_secs(5);
const SCHEDULE_EVERY: Duration = Duration::from_secs(15);

/// How long to wait after the store has failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// What this process knows about `scheduled/`.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// There is no such folder, and there will be none until the root changes.
    absent: bool,
    /// The folder as it was when nothing in it was due.
    stamp: Option<Stamp>,
    /// The first folder that was not due.
    next: Option<Due>,
    /// When it was last looked at.
    looked: Option<Duration>,
    /// Due folders that could not be emptied, and the monotonic time to try them again.
    troubled: HashMap<Due, Duration>,
}

/// What a poll does before it looks for tasks.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    pub(super) paused: bool,
    /// For how long nothing else is due, if anything waits.
    pub(super) next_due: Option<Duration>,
    /// There was more to move than one poll should.
    pub(super) more: bool,
    /// There are tasks that the search may have missed: due ones were moved, or some unlocked.
    pub(super) news: bool,
    /// Everything was looked at just now.
    pub(super) thorough: bool,
}

impl<T: Tree> Core<T> {
    /// Notes pauses and unlocks, and moves what is due. Where looks cost, this is left out for a few
    /// seconds at a time unless it is to be thorough.
    pub(super) async fn keep_up(&self, thorough: bool) -> Result<Upkeep> {
        let mut found = self.discovery.lock().await;
        self.apply_notes(&mut found);
        let now = self.now().await?;
        let mono = self.env.monotonic();
        let thorough = thorough || self.strategy.looks.at_the_root_each_poll;
        let due = |last: Option<Duration>, every| {
            thorough || last.is_none_or(|last| mono.saturating_sub(last) >= every)
        };
        let mut root_changed = false;
        if found.paused || due(found.kept_up, ROOT_EVERY) {
            root_changed = self.look_at_root(&mut found, now).await?;
            found.kept_up = Some(mono);
        }
        let mut upkeep = Upkeep { paused: found.paused, thorough, ..Upkeep::default() };
        let is_due = found.schedule.next.is_some_and(|next| next.at() <= now);
        if upkeep.paused {
            return Ok(upkeep);
        }
        if is_due || due(found.schedule.looked, SCHEDULE_EVERY) {
            upkeep = Upkeep { thorough, ..self.promote_due(&mut found, now, root_changed).await? };
            found.schedule.looked = Some(mono);
        } else {
            upkeep.next_due = until(found.schedule.next, now);
        }
        upkeep.news |= std::mem::take(&mut found.news);
        Ok(upkeep)
    }

    /// Moves what is due.
    async fn promote_due(
        &self,
        found: &mut Discovery<T::Cursor>,
        now: Timestamp,
        root_changed: bool,
    ) -> Result<Upkeep> {
        if root_changed {
            found.schedule.absent = false;
        }
        if found.schedule.absent {
            return Ok(Upkeep::default());
        }
        let stamp = self.tree.stamp(layout::SCHEDULED, now).await?;
        let schedule = &mut found.schedule;
        schedule.absent = stamp == Some(Stamp::Missing);
        let unchanged = stamp.is_some() && stamp == schedule.stamp;
        if unchanged && schedule.next.is_none_or(|next| next.at() > now) {
            return Ok(Upkeep { next_due: until(schedule.next, now), ..Upkeep::default() });
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
                again = Some(Duration::ZERO);
                break;
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
                Err(error) if self.is_local(&error).await => {
                    tracing::warn!(%error, "due tasks left alone");
                    Some(trouble_pause(&error))
                }
                Err(error) => return Err(error),
            };
            if let Some(pause) = pause {
                schedule.troubled.insert(*folder, mono + pause);
                again = again.into_iter().chain([pause]).min();
            }
        }
        Ok(Upkeep {
            next_due: again,
            more: moved >= MAX_MOVED,
            news: moved > 0,
            ..Upkeep::default()
        })
    }

    /// Removes the folder of a time for which nothing is scheduled any more: draining the queue would
    /// wait for it. A caller that took the last task away calls this. A poll leaves times to come alone: a push makes the folder
    /// before it fills it, and polls come often.
    pub(super) async fn prune_due(&self, due: Due) {
        let _ = self.tree.prune(&layout::due_dir(due)).await;
    }

    /// Moves about `limit` tasks; answers how many, and when to try again what would not go.
    async fn promote_folder(&self, due: Due, limit: usize) -> Result<(usize, Option<Duration>)> {
        let dir = layout::due_dir(due);
        let (mut moved, mut pause) = (0, None);
        let mut cursor = None;
        loop {
            let mut page = self.tree.list_folder(&dir, cursor, 256).await?;
            // Whoever else is at it should not be at the same tasks.
            self.env.shuffle(&mut page.entries);
            let moves = page.entries.iter().map(|entry| self.promote_entry(due, entry)).collect();
            for (entry, answer) in page.entries.iter().zip(self.each(moves).await) {
                match answer {
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
        if cursor.is_none() && pause.is_none() {
            self.prune_due(due).await;
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
    pub(super) async fn promote(&self, due: Due, key: &TaskKey) -> Result<bool> {
        let (from, to) = (layout::scheduled_dir(due, key), self.task_dir(key));
        let Some(task_dir) = self.tree.open(&from).await? else { return Ok(true) };
        let stored = self.tree.read_task(&task_dir, None, &self.record_paths(key)).await?;
        let forgotten = self.is_forgotten(key).await?;
        let Some(task) = stored.task.filter(|_| !stored.finished && !forgotten) else {
            // Its life has ended meanwhile, or somebody is removing it.
            if stored.finished && !forgotten && !self.secure_records(key).await? {
                return Ok(false); // forgotten since: it is looked at again
            }
            self.tree.clean(&task_dir, stored.finished || forgotten, &[]).await?;
            return self.has_gone(&from).await;
        };
        let mut created = self.tree.promote(&from, &to, self.durable()).await?;
        if created == Created::Exists && self.pending_task(key).await?.is_none() {
            self.clean_finished(key).await?;
            created = self.tree.promote(&from, &to, self.durable()).await?;
        }
        if created == Created::Exists {
            // Pending already, and durably so. Only now is the copy in excess, even if somebody moves it to
            // `pending/` at this moment: the task it was a copy of has then finished.
            if self.pending_task(key).await?.is_some() {
                self.remove_published(&from).await?;
            }
            return self.has_gone(&from).await;
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

    /// Whether nothing is left in a scheduled task's folder. Where a folder is a mere name, to open it says
    /// nothing, and some stores list it for a while when it is empty.
    async fn has_gone(&self, from: &str) -> Result<bool> {
        Ok(self.tree.open(from).await?.is_none()
            || (!self.strategy.has_folders
                && self.tree.list_folder(from, None, 1).await?.entries.is_empty()))
    }
}

fn until(next: Option<Due>, now: Timestamp) -> Option<Duration> {
    let wait = next?.at().duration_since(now);
    Some(Duration::try_from(wait).unwrap_or(Duration::ZERO))
}
