//! Delayed tasks: moved to `pending/` once due, by whoever polls.
//!
//! Moving one is an ordinary push: a second copy, or one whose life has ended meanwhile, is dropped.

use std::time::Duration;

use jiff::Timestamp;

use super::core::Core;
use super::discover::Discovery;
use crate::error::Result;
use crate::format;
use crate::layout::{self, Due};
use crate::model::TaskKey;
use crate::store::{Created, EntryKind, Tree};

/// The most tasks that one poll moves.
const MAX_MOVED: usize = 512;

/// What this process knows about `scheduled/`.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    stamp: Option<u64>,
    /// The first folder that was not due.
    next: Option<Due>,
    /// When the last unlock was, as far as is known.
    pub(super) unlocked: Option<u64>,
}

impl<T: Tree> Core<T> {
    /// Moves what is due. Answers for how long nothing else will be, if anything waits, and whether
    /// there was more to move than one poll should.
    pub(super) async fn promote_due(
        &self,
        found: &mut Discovery<T::Cursor>,
        now: Timestamp,
    ) -> Result<(Option<Duration>, bool)> {
        let stamp = self.tree.stamp(layout::SCHEDULED, now).await?;
        let schedule = &mut found.schedule;
        let unchanged = stamp.is_some() && stamp == schedule.stamp;
        if unchanged && schedule.next.is_none_or(|next| next.at() > now) {
            return Ok((until(schedule.next, now), false));
        }
        let mut due = Vec::new();
        schedule.next = None;
        let mut cursor = None;
        loop {
            let page = self.tree.list(layout::SCHEDULED, cursor, 4096).await?;
            for entry in page.entries.iter().filter(|entry| entry.kind == EntryKind::Folder) {
                match Due::parse(&entry.name) {
                    None => tracing::warn!(name = entry.name, "not a time in scheduled/"),
                    Some(time) if time.at() <= now => due.push(time),
                    Some(time) => {
                        schedule.next = Some(schedule.next.map_or(time, |next| next.min(time)));
                    }
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        due.sort_unstable();
        let mut moved = 0;
        for time in due {
            if moved >= MAX_MOVED {
                found.schedule.stamp = None;
                return Ok((Some(Duration::ZERO), true));
            }
            moved += self.promote_folder(time, MAX_MOVED - moved).await?;
        }
        // What was moved has changed the folder since its stamp was taken: the next poll looks again.
        found.schedule.stamp = stamp;
        Ok((until(found.schedule.next, now), false))
    }

    async fn promote_folder(&self, due: Due, limit: usize) -> Result<usize> {
        let dir = format!("{}/{}", layout::SCHEDULED, due.name());
        let mut moved = 0;
        loop {
            let page = self.tree.list(&dir, None, limit - moved).await?;
            let mut here = 0;
            for entry in page.entries.iter().filter(|entry| entry.kind == EntryKind::Folder) {
                match layout::parse_stem(&entry.name) {
                    None => tracing::warn!(name = entry.name, "not a task in scheduled/"),
                    Some(key) => match self.promote(due, &key).await {
                        Ok(()) => here += 1,
                        Err(error) => tracing::warn!(%key, %error, "cannot publish a due task"),
                    },
                }
            }
            moved += here;
            // An empty listing lets the store remove the folder.
            if here == 0 || moved >= limit {
                return Ok(moved);
            }
        }
    }

    async fn promote(&self, due: Due, key: &TaskKey) -> Result<()> {
        let (from, to) = (layout::scheduled_dir(due, key), self.task_dir(key));
        let Some(slot) = self.tree.open(&from).await? else { return Ok(()) };
        let look = self.tree.look(&slot, 0, &self.record_paths(key)).await?;
        let Some(task) = look.task.filter(|_| !look.finished) else {
            // Its life has ended meanwhile, or somebody is removing it.
            return self.tree.clean(&slot, look.finished, &[]).await;
        };
        let mut created = self.tree.promote(&from, &to, self.durable()).await?;
        if created == Created::Exists && self.pending_task(key).await?.is_none() {
            self.clean_finished(key).await?;
            created = self.tree.promote(&from, &to, self.durable()).await?;
        }
        if created == Created::Exists {
            // Pending already. Only now is the copy in excess.
            if self.pending_task(key).await?.is_some() {
                self.drop_copy(&from).await?;
            }
            return Ok(());
        }
        let pushed = format::decode_task(&task.bytes, key).map(|(_, meta)| meta.push_id).ok();
        match self.record(key).await? {
            Some(record) if Some(&record.meta.push_id) != pushed.as_ref() => {
                self.clean_finished(key).await
            }
            _ => Ok(()),
        }
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
