//! Forgetting what finished long ago, and removing what killed processes have left.
//!
//! Invariant: a name that a purge frees is not used again while anybody may act on what it knew of it. On disk a
//! floor sees to that (`floors`), in a bucket a condition and a delay (decision 19). What somebody may still be
//! working on is not touched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::claim::signed;
use super::core::Core;
use super::lives::RELIED_ON;
use super::strategy::{Finding, Forgetting};
use super::{OUTCOMES, Purge, Purged};
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout::{self, Shard};
use crate::model::{Outcome, TaskKey};
use crate::planted::{self, Planted};
use crate::store::{Entry, EntryKind, Stamp, Stored, Tree, removed_until};

/// A record younger than this may still be needed by a worker that stalled, whatever its lease.
const MIN_PURGE_AGE: Duration = Duration::from_secs(3600);

/// Records forgotten together, by one file of floors.
const TOGETHER: usize = 1024;

/// What the name of a folder ends in that is being removed.
const TRASH: &str = ".trash";

/// Folders below this depth are not ours, and are left alone.
const DEEPEST: usize = 6;

/// Half-made files older than this have nobody who will finish them.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// A worker that has been silent for so long is of interest to nobody.
const SILENT_WORKER_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// How old a record must be to be purged.
#[derive(Clone, Copy)]
pub(super) struct Age {
    /// The task ended before this.
    pub(super) ended: Timestamp,
    /// And the record was not written since, for the first time or anew.
    pub(super) written: Timestamp,
}

impl Age {
    pub(super) fn is_reached(self, stored: &Stored, outcome: Outcome, key: &TaskKey) -> bool {
        let record = format::decode_record(&stored.bytes, outcome, key).ok();
        // What a purge that was cut short has left does not count as young.
        let forgotten = record.as_ref().is_some_and(|record| record.forgotten);
        let ended = record.and_then(|record| record.finished_at).unwrap_or(stored.modified);
        stored.modified < self.written && (forgotten || ended.min(stored.modified) <= self.ended)
    }
}

/// A life that a purge forgets, with all before it.
pub(super) struct Forgotten {
    pub(super) key: TaskKey,
    /// The fencing token that came before it.
    pub(super) fence: u64,
    /// In a synced queue: which pushes these lives were.
    pub(super) pushes: Vec<String>,
}

impl<T: Tree> Core<T> {
    pub(super) async fn purge(&self, purge: Purge) -> Result<Purged> {
        self.check_purges()?;
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
        let relied_on = match planted::is(Planted::PurgeOfYoungRecords) {
            true => Duration::ZERO,
            false => RELIED_ON,
        };
        let age = Age { ended: ago(purge.older_than), written: ago(relied_on) };
        let records = match self.strategy.forgetting {
            Forgetting::Marks => self.purge_by_marks(purge, age).await?,
            Forgetting::Floors => self.purge_by_floors(purge, age, now).await?,
        };
        Ok(Purged { records, leftovers: self.purge_leftovers(now, purge.dry_run).await? })
    }

    async fn purge_by_floors(&self, purge: Purge, age: Age, now: Timestamp) -> Result<u64> {
        let mut removed = 0;
        for shard in self.names().shards() {
            let place = layout::outcome_dir(purge.outcome);
            let dir = self.names().shard_dir(place, shard);
            let mut cursor = None;
            loop {
                let page = self.tree.list_folder(&dir, cursor, TOGETHER).await?;
                let files = page.entries.iter().filter(|entry| entry.kind == EntryKind::File);
                let key = |entry: &Entry| self.names().parse_record_name(shard, &entry.name);
                let old = self.old_records(files.filter_map(key), purge.outcome, age).await?;
                if purge.dry_run {
                    removed += self.count_lives(&old, purge.outcome, age).await?;
                } else if !old.is_empty() {
                    removed += self.forget_lives(shard, &old, age, now).await?;
                    match self.merge_floors(shard, now).await {
                        // Another time.
                        Err(error) if error.kind() == ErrorKind::Full => {}
                        merged => merged?,
                    }
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            if !purge.dry_run {
                self.tree.prune(&dir).await?;
            }
        }
        Ok(removed)
    }

    /// Which of these records are old enough, and what a floor says of each.
    async fn old_records(
        &self,
        keys: impl Iterator<Item = TaskKey>,
        outcome: Outcome,
        age: Age,
    ) -> Result<Vec<Forgotten>> {
        let mut old = Vec::new();
        let scheduled = match self.settings.synced {
            Some(_) => self.scheduled().await?.into_iter().map(|(_, key)| key).collect(),
            None => BTreeSet::new(),
        };
        for key in keys {
            let stored = self.old_record(outcome, &key).await?;
            // If there are both records, it has completed.
            if let Some(stored) = stored.filter(|stored| age.is_reached(stored, outcome, &key))
                && self.counts_as(&key, outcome).await?
            {
                let record = format::decode_record(&stored.bytes, outcome, &key);
                let fence = record.map_or(0, |record| record.meta.journey.fence);
                // A place that others are merged with says which pushes it has forgotten.
                let pushes = match self.settings.synced {
                    Some(_) if self.has_remains(&key, &scheduled).await? => continue,
                    Some(_) => self.pushes_up_to(&key).await?,
                    None => Vec::new(),
                };
                old.push(Forgotten { key, fence, pushes });
            }
        }
        Ok(old)
    }

    /// Whether this is how a task ended; if it has another record that cannot be read, it is left alone.
    pub(super) async fn counts_as(&self, key: &TaskKey, outcome: Outcome) -> Result<bool> {
        match self.outcome(key).await {
            Err(error) if self.is_bad_itself(&error).await => {
                tracing::warn!(%error, "record left alone");
                Ok(false)
            }
            counts => Ok(counts? == Some(outcome)),
        }
    }

    /// A record that a purge looks at; one that cannot be read is left alone.
    pub(super) async fn old_record(
        &self,
        outcome: Outcome,
        key: &TaskKey,
    ) -> Result<Option<Stored>> {
        match self.tree.read(&self.record_path(outcome, key)).await {
            Err(error) if self.is_bad_itself(&error).await => {
                tracing::warn!(%error, "record left alone");
                Ok(None)
            }
            stored => stored,
        }
    }

    /// Forgets lives that are over and all before them. On a full disk there may be no room to say so. Then one
    /// goes before that is said, which makes room; but none that a later life has followed, whose number
    /// rests on it.
    async fn forget_lives(
        &self,
        shard: Shard,
        lives: &[Forgotten],
        age: Age,
        now: Timestamp,
    ) -> Result<u64> {
        let (mut removed, mut rest, mut scheduled) = (0, lives.iter(), None);
        if planted::is(Planted::FloorsAfterwards) {
            removed += self.remove_lives(lives, age).await?;
        }
        while let Err(error) = self.raise_floors(shard, lives, now).await {
            // Other nodes would not hear of what goes without a floor.
            if error.kind() != ErrorKind::Full || self.settings.synced.is_some() {
                return Err(error);
            }
            let Some(one) = rest.next() else {
                if removed == 0 {
                    return Err(error);
                }
                tracing::warn!(%error, "forgotten without a floor; the ids begin at their first life again");
                return Ok(removed);
            };
            if scheduled.is_none() {
                scheduled = Some(self.scheduled_lives().await?);
            }
            let scheduled = scheduled.get_or_insert_default();
            if !self.lives_again(&one.key, scheduled).await? {
                removed += self.remove_lives(std::slice::from_ref(one), age).await?;
            }
        }
        Ok(removed + self.remove_lives(lives, age).await?)
    }

    /// Removes the records of these lives and of all before them, and what is left of their tasks; answers how many
    /// records that were. The remains, if a crash left any, would be a task again without the record. So they go
    /// first, for good: a power cut does not bring them back once the record has gone.
    async fn remove_lives(&self, lives: &[Forgotten], age: Age) -> Result<u64> {
        let (mut removed, mut cleaned) = (0, BTreeMap::new());
        for Forgotten { key: last, .. } in lives {
            for life in down_from(last) {
                // Those below it are, too.
                if cleaned.contains_key(&life) {
                    break;
                }
                match self.clean_for_good(&life).await {
                    Err(error) if self.is_bad_itself(&error).await => {
                        tracing::warn!(%error, "record kept, for what is left of its task");
                        break;
                    }
                    cleaned => cleaned?,
                }
                // Looked at again: another purge may have come between.
                let old = self.records_of_age(&life, age).await?;
                if old.is_empty() {
                    break;
                }
                cleaned.insert(life, old);
                if cleaned.len() >= TOGETHER {
                    removed += self.remove_records_of(std::mem::take(&mut cleaned)).await?;
                }
            }
        }
        Ok(removed + self.remove_records_of(cleaned).await?)
    }

    /// Removes records, once it is durable that nothing is left of their tasks; answers how many.
    async fn remove_records_of(&self, lives: BTreeMap<TaskKey, Vec<Outcome>>) -> Result<u64> {
        let task_dirs: Vec<String> = lives.keys().map(|life| self.task_dir(life)).collect();
        let durable = self.durable() && !planted::is(Planted::RemainsNotSynced);
        self.tree.secure(&task_dirs, durable).await?;
        let mut removed = 0;
        // From the last life down: without a floor, a life that is missing would hide those above it.
        for (life, outcomes) in lives.iter().rev() {
            for outcome in outcomes {
                self.tree.remove_file(&self.record_path(*outcome, life)).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// How many records would go with these lives, but for those that are counted by themselves.
    async fn count_lives(&self, lives: &[Forgotten], counted: Outcome, age: Age) -> Result<u64> {
        let mut count = 0;
        for Forgotten { key: last, .. } in lives {
            for life in down_from(last) {
                let records = self.records_of_age(&life, age).await?;
                if records.is_empty() || (life != *last && records.contains(&counted)) {
                    break;
                }
                count += records.len() as u64;
            }
        }
        Ok(count)
    }

    /// Which records a life has that are old enough. Failed first: a completed one beats it, so a task of which
    /// that has gone never seems to have failed.
    async fn records_of_age(&self, life: &TaskKey, age: Age) -> Result<Vec<Outcome>> {
        let mut records = Vec::new();
        for outcome in OUTCOMES.into_iter().rev() {
            let stored = self.old_record(outcome, life).await?;
            let old = stored.is_some_and(|stored| age.is_reached(&stored, outcome, life));
            records.extend(old.then_some(outcome));
        }
        Ok(records)
    }

    /// When a file was written, or a name last added to or removed from a folder, where the store can tell.
    async fn changed_at(&self, path: &str, now: Timestamp) -> Result<Option<Timestamp>> {
        Ok(match self.tree.stamp(path, now).await? {
            Some(Stamp::At(time)) => Some(time),
            Some(Stamp::Missing) | None => None,
        })
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
                let path = layout::below(&folder, &name);
                match kind {
                    EntryKind::Folder if path.matches('/').count() < DEEPEST => folders.push(path),
                    EntryKind::Folder => {}
                    _ => self.tree.remove_file(&path).await?,
                }
            }
        }
        for folder in folders.into_iter().skip(1).rev() {
            if let Some(task_dir) = self.tree.open(&folder).await? {
                self.tree.clean(&task_dir, false, &[]).await?;
            }
        }
        Ok(())
    }

    /// Removes what killed processes have left in a bucket: pages tell how old it is.
    async fn purge_listed_leftovers(&self, now: Timestamp, dry_run: bool) -> Result<u64> {
        let mut removed = 0;
        for (place, age) in [(layout::TMP, LEFTOVER_AGE), (layout::WORKERS, SILENT_WORKER_AGE)] {
            let is_ours = |path: &str| match place {
                layout::WORKERS => layout::parse_worker_name(path).is_some(),
                _ => path.matches('/').count() < DEEPEST,
            };
            let mut after: Option<String> = None;
            loop {
                let page = self.tree.scan(place, after.as_deref(), TOGETHER).await?;
                let until = removed_until(self.env.monotonic());
                let old = page.files.iter().filter(|file| {
                    is_ours(&file.path) && now.duration_since(file.modified) > signed(age)
                });
                let old: Vec<_> = old.map(|file| layout::below(place, &file.path)).collect();
                removed += old.len() as u64;
                if !dry_run {
                    self.tree.remove(&old, until).await?;
                }
                after = page.files.last().map(|file| file.path.clone()).filter(|_| !page.end);
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(removed)
    }

    pub(super) async fn purge_leftovers(&self, now: Timestamp, dry_run: bool) -> Result<u64> {
        if self.strategy.finding == Finding::Pages {
            return self.purge_listed_leftovers(now, dry_run).await;
        }
        let older = |modified: Timestamp, age| now.duration_since(modified) > signed(age);
        let mut removed = 0;
        let mut staged = Vec::new();
        self.each_entry(layout::TMP, |entry| staged.push(entry.clone())).await?;
        for entry in staged {
            let path = layout::below(layout::TMP, &entry.name);
            let (file, folder) = match entry.kind {
                EntryKind::File => (path.clone(), None),
                EntryKind::Folder => (layout::task_file(&path), Some(path)),
                EntryKind::Other => continue,
            };
            let modified = match (self.changed_at(&file, now).await?, &folder) {
                // Killed before it came to writing the task.
                (None, Some(folder)) => self.changed_at(folder, now).await?,
                (modified, _) => modified,
            };
            if modified.is_none_or(|modified| !older(modified, LEFTOVER_AGE)) {
                continue;
            }
            removed += 1;
            match folder {
                _ if dry_run => {}
                None => self.tree.remove_file(&file).await?,
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
                    if let Some(task_dir) = self.tree.open(&trash).await? {
                        self.tree.clean(&task_dir, true, &[]).await?;
                    }
                }
            }
        }
        for worker in self.workers().await? {
            if worker.seen_at.is_some_and(|seen| older(seen, SILENT_WORKER_AGE)) {
                removed += 1;
                if !dry_run {
                    self.tree.remove_file(&layout::worker_path(&worker.worker_id)).await?;
                }
            }
        }
        Ok(removed)
    }
}

/// A life, and those before it.
pub(super) fn down_from(last: &TaskKey) -> impl Iterator<Item = TaskKey> + '_ {
    let earlier = (1..last.generation()).rev();
    let earlier = earlier.map(|generation| TaskKey::new(last.id().clone(), generation));
    std::iter::once(last.clone()).chain(earlier)
}
