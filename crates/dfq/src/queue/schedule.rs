//! Delayed tasks: moved to `pending/` once due, by whoever polls.
//!
//! Moving one is an ordinary push: a second copy, or one whose life has ended meanwhile, is dropped. In a bucket the
//! workers share out what is due as they share out the shards; what its own worker has not moved soon, anybody
//! moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::claim::{TROUBLE_PAUSE, trouble_pause};
use super::core::Core;
use super::discover::Discovery;
use super::strategy::Finding;
use crate::error::Result;
use crate::layout::{self, Due};
use crate::model::TaskKey;
use crate::planted::{self, Planted};
use crate::store::{Created, Entry, EntryKind, Stamp, Tree};

/// The most tasks that one poll moves.
const MAX_MOVED: usize = 512;

/// How often one task is tried while others are at it too.
const MOST_TRIES: usize = 3;

/// How often the root, and `scheduled/`, are looked at where that takes requests and there is other
/// work to do.
const ROOT_EVERY: Duration = Duration::from_secs(5);
const SCHEDULE_EVERY: Duration = Duration::from_secs(15);

/// How long to wait after the store has failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// For how long a due task is left to the worker whose part it is in.
const LEFT_TO_OTHERS: SignedDuration = SignedDuration::from_secs(5);

/// Listing all due times takes no more than about one part in so many of the time.
const LISTING_SHARE: u32 = 20;

/// And yet they are listed again after this time: what seemed slow may have been a machine that slept.
const LISTED_AGAIN: Duration = Duration::from_secs(5);

/// What this process knows about `scheduled/`.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// There is no such folder, and there will be none until the root changes.
    absent: bool,
    /// The folder as it was when it was last listed.
    stamp: Option<Stamp>,
    /// On disk: the times that were there then and may still be, ascending.
    times: Vec<Due>,
    /// When it may be listed again.
    list_again: Duration,
    /// The first time that is not due.
    next: Option<Due>,
    /// When to look again at what was left alone.
    again: Option<Duration>,
    /// When it was last looked at.
    looked: Option<Duration>,
    /// Folders that would not go, of a due time or of one task, and the monotonic time to try them again.
    troubled: BTreeMap<String, Duration>,
}

impl Schedule {
    /// In how long the next of what is known is due.
    pub(super) fn next_in(&self, now: Timestamp) -> Option<Duration> {
        until(self.next, now)
    }

    /// For how long this folder is left alone after trouble.
    fn rests_for(&self, folder: &str, mono: Duration) -> Option<Duration> {
        let rest = self.troubled.get(folder)?.saturating_sub(mono);
        Some(rest).filter(|rest| !rest.is_zero())
    }
}

/// What a poll does before it looks for tasks.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    pub(super) paused: bool,
    /// For how long nothing else is due, if anything waits.
    pub(super) next_due: Option<Duration>,
    /// There was more to move than one poll should.
    pub(super) more: bool,
    /// Something is due that another worker should move, and for how long it is left to that one.
    pub(super) left_to_others: Option<Duration>,
    /// There are tasks that the search may have missed: due ones were moved, or some unlocked.
    pub(super) news: bool,
    /// Everything was looked at just now.
    pub(super) thorough: bool,
}

/// What came of moving due tasks.
#[derive(Default)]
struct Moved {
    tasks: usize,
    /// When to look again, if anything waits.
    again: Option<Duration>,
    /// For how long something is left to another worker.
    left_to_others: Option<Duration>,
}

impl Moved {
    fn look_again_in(&mut self, wait: Duration) {
        self.again = Some(self.again.map_or(wait, |again| again.min(wait)));
    }
}

impl<T: Tree> Core<T> {
    /// Notes pauses and unlocks, and moves what is due: all of it, if this is done `for_all` workers. Where looks
    /// cost, this is left out for a few seconds at a time unless it is to be thorough.
    pub(super) async fn keep_up(&self, thorough: bool, for_all: bool) -> Result<Upkeep> {
        let mut found = self.discovery.lock().await;
        self.apply_notes(&mut found);
        let now = match self.strategy.finding {
            Finding::Shards => self.now().await?,
            // What is due is not a matter of a second, and this costs nothing.
            Finding::Pages => self.now_for_onlookers().await,
        };
        let mono = self.env.monotonic();
        let thorough = thorough || self.strategy.looks.at_the_root_each_poll;
        let due = |last: Option<Duration>, every| {
            thorough || last.is_none_or(|last| mono.saturating_sub(last) >= every)
        };
        let (mut root_changed, at_root) = (false, found.paused || due(found.kept_up, ROOT_EVERY));
        if at_root {
            root_changed = self.look_at_root(&mut found, now).await?;
            found.kept_up = Some(mono);
        }
        if found.paused {
            return Ok(Upkeep { paused: true, thorough: true, ..Upkeep::default() });
        }
        let is_due = found.schedule.next.is_some_and(|next| next.at() <= now)
            || found.schedule.again.is_some_and(|again| again <= mono);
        let at_schedule = is_due || due(found.schedule.looked, SCHEDULE_EVERY);
        let moved = match at_schedule {
            true => self.promote_due(&mut found, now, root_changed, for_all).await?,
            false => {
                let again = found.schedule.again.map(|again| again.saturating_sub(mono));
                let again = again.into_iter().chain(found.schedule.next_in(now)).min();
                Moved { again, ..Moved::default() }
            }
        };
        if at_schedule {
            found.schedule.looked = Some(mono);
            found.schedule.again = moved.again.map(|wait| mono + wait);
        }
        Ok(Upkeep {
            paused: false,
            next_due: moved.again,
            more: moved.tasks >= MAX_MOVED,
            left_to_others: moved.left_to_others,
            news: moved.tasks > 0 || std::mem::take(&mut found.news),
            thorough: at_root && at_schedule,
        })
    }

    /// Moves what is due.
    async fn promote_due(
        &self,
        found: &mut Discovery<T::Cursor>,
        now: Timestamp,
        root_changed: bool,
        for_all: bool,
    ) -> Result<Moved> {
        match self.strategy.finding {
            Finding::Shards => {
                if root_changed {
                    found.schedule.absent = false;
                }
                match found.schedule.absent {
                    true => Ok(Moved::default()),
                    false => self.promote_by_folders(&mut found.schedule, now).await,
                }
            }
            Finding::Pages => self.promote_by_pages(found, now, for_all).await,
        }
    }

    /// The same on disk, folder by folder.
    async fn promote_by_folders(&self, schedule: &mut Schedule, now: Timestamp) -> Result<Moved> {
        let stamp = self.tree.stamp(layout::SCHEDULED, now).await?;
        schedule.absent = stamp == Some(Stamp::Missing);
        let mut moved = Moved::default();
        if stamp.is_none() || stamp != schedule.stamp {
            let mono = self.env.monotonic();
            if mono < schedule.list_again {
                moved.look_again_in(schedule.list_again - mono);
            } else {
                schedule.times = self.due_folders().await?;
                schedule.stamp = stamp;
                // Every push of a new time changes the folder. A long one is not listed for each of them.
                let listed = self.env.monotonic();
                let rest = listed.saturating_sub(mono).saturating_mul(LISTING_SHARE);
                schedule.list_again = listed + rest.min(LISTED_AGAIN);
            }
        }
        let due = schedule.times.partition_point(|due| due.at() <= now);
        schedule.next = schedule.times.get(due).copied();
        if let Some(wait) = schedule.next_in(now) {
            moved.look_again_in(wait);
        }
        let due = schedule.times[..due].to_vec();
        let now_mono = self.env.monotonic();
        schedule.troubled.retain(|_, until| *until > now_mono);
        let mut gone = BTreeSet::new();
        for time in due {
            let folder = layout::due_dir(time);
            if moved.tasks >= MAX_MOVED {
                moved.look_again_in(Duration::ZERO);
                break;
            }
            let mono = self.env.monotonic();
            if let Some(rest) = schedule.rests_for(&folder, mono) {
                moved.look_again_in(rest);
                continue;
            }
            let pause = match self.promote_folder(time, MAX_MOVED - moved.tasks).await {
                Ok((tasks, pause)) => {
                    moved.tasks += tasks;
                    pause
                }
                // One folder that cannot be read must not keep the others from being done.
                Err(error) if self.is_local(&error).await => {
                    tracing::warn!(%error, "due tasks left alone");
                    Some(trouble_pause(&error))
                }
                Err(error) => return Err(error),
            };
            match pause {
                Some(pause) => {
                    schedule.troubled.insert(folder, mono + pause);
                    moved.look_again_in(pause);
                }
                // A push may have come to it since it was listed: what is there still is looked at again.
                None => {
                    let stamp = self.tree.stamp(&folder, now).await?;
                    gone.extend((stamp == Some(Stamp::Missing)).then_some(time));
                }
            }
        }
        schedule.times.retain(|time| !gone.contains(time));
        Ok(moved)
    }

    /// The same in a bucket, by pages of keys, which come in the order in which they are due.
    async fn promote_by_pages(
        &self,
        found: &mut Discovery<T::Cursor>,
        now: Timestamp,
        for_all: bool,
    ) -> Result<Moved> {
        // A process that is not a worker has no part of its own, so it moves all that is due.
        let for_all = for_all || !self.enrolled.load(Ordering::Relaxed);
        let Discovery { schedule, survey, .. } = found;
        let (mono, mut moved) = (self.env.monotonic(), Moved::default());
        let mut due = Vec::new();
        let mut after: Option<String> = None;
        schedule.next = None;
        'pages: loop {
            let (page, resume) = self.scheduled_page(after.as_deref()).await?;
            for (time, key) in page {
                if time.at() > now {
                    schedule.next = Some(time);
                    break 'pages;
                }
                let shard = usize::from(self.names().shard(&key).number());
                let left = LEFT_TO_OTHERS.saturating_sub(now.duration_since(time.at()));
                let theirs = Duration::try_from(left)
                    .ok()
                    .filter(|left| !(for_all || survey.is_own(shard) || left.is_zero()));
                let folder = layout::scheduled_dir(time, &key);
                match (schedule.rests_for(&folder, mono), theirs) {
                    (Some(wait), _) => moved.look_again_in(wait),
                    (None, Some(wait)) => {
                        moved.look_again_in(wait);
                        moved.left_to_others = moved.left_to_others.max(Some(wait));
                    }
                    (None, None) => due.push((time, key)),
                }
                if due.len() >= MAX_MOVED {
                    moved.look_again_in(Duration::ZERO);
                    break 'pages;
                }
            }
            after = resume;
            if after.is_none() {
                break;
            }
        }
        if let Some(wait) = schedule.next_in(now) {
            moved.look_again_in(wait);
        }
        schedule.troubled.retain(|_, until| *until > mono);
        // Whoever else is at it should not be at the same tasks.
        self.env.shuffle(&mut due);
        let moves = due.iter().map(|(time, key)| self.promote(*time, key)).collect();
        for ((time, key), answer) in due.iter().zip(self.each(moves).await) {
            match note_moved(key.id().as_str(), answer) {
                None => moved.tasks += 1,
                Some(pause) => {
                    schedule.troubled.insert(layout::scheduled_dir(*time, key), mono + pause);
                    moved.look_again_in(pause);
                }
            }
        }
        Ok(moved)
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
                match note_moved(&entry.name, answer) {
                    None => moved += 1,
                    again => pause = pause.into_iter().chain(again).min(),
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
        if self.strategy.looks.before_a_push {
            let Some(task_dir) = self.tree.open(&from).await? else { return Ok(true) };
            let stored = self.tree.read_task(&task_dir, None, &self.record_paths(key)).await?;
            let forgotten = self.is_forgotten(key).await?;
            if forgotten && !stored.finished && stored.task.is_some() && self.as_node().is_some() {
                return Ok(false); // whoever merges gives it another number
            }
            if let (true, Some(task)) = (stored.finished, &stored.task) {
                self.keep_if_another(key, &task.bytes).await?;
            }
            if stored.task.is_none() || stored.finished || forgotten {
                // Its life has ended meanwhile, or somebody is removing it.
                if stored.finished && !forgotten && !self.secure_records(key).await? {
                    return Ok(false); // forgotten since: it is looked at again
                }
                self.tree.clean(&task_dir, stored.finished || forgotten, &[]).await?;
                return self.has_gone(&from).await;
            }
        }
        if planted::is(Planted::PromoteRemovesFirst) {
            return self.promote_by_removing(&from, &to).await;
        }
        let mut tries = 0;
        while self.tree.promote(&from, &to, self.durable()).await? == Created::Exists {
            if !self.strategy.has_folders && !self.tree.exists(&layout::task_file(&from)).await? {
                return Ok(true); // somebody else was faster
            }
            if let Some(pending) = self.pending_task(key).await? {
                self.keep_copy(key, &from, &pending).await?;
                // Pending already, and durably so. Only now is the copy in excess, even if somebody moves it to
                // `pending/` at this moment: the task it was a copy of has then finished.
                self.remove_published(&from).await?;
                return self.has_gone(&from).await;
            }
            // What stood in the way is over, or went in this very moment, as when another copy was moved and its
            // life had ended.
            tries += 1;
            if tries == MOST_TRIES {
                return self.has_gone(&from).await;
            }
            self.clean_finished(key).await?;
        }
        match self.outcome(key).await? {
            // Done quickly; or its life had ended before.
            Some(_) => self.clean_finished(key).await?,
            // Another copy of it was done and forgotten since we looked.
            None if self.as_node().is_none() && self.is_forgotten(key).await? => {
                self.remove_published(&to).await?;
            }
            None => self.mend_lives(key).await?,
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

/// When to try a task again that would not go.
fn note_moved(name: &str, answer: Result<bool>) -> Option<Duration> {
    match answer {
        Ok(true) => None,
        Ok(false) => Some(TROUBLE_PAUSE),
        Err(error) => {
            tracing::warn!(name, %error, "cannot publish a due task");
            Some(FAILURE_PAUSE)
        }
    }
}

fn until(next: Option<Due>, now: Timestamp) -> Option<Duration> {
    let wait = next?.at().duration_since(now);
    Some(Duration::try_from(wait).unwrap_or(Duration::ZERO))
}
