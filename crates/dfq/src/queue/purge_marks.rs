//! Purging in a bucket: what pages of keys show is not asked for again.
//!
//! Invariant: a record goes only while it is the very one that a page showed, or that was read; and lives of an id
//! get no gaps. A push publishes its task, then looks for the record of the life before. A purge removes a record,
//! then looks for the life after it. So one of the two sees the other. What was pushed while earlier lives of its id
//! were being removed is found by listing once more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;

use super::core::Core;
use super::lives::{Forgot, MOST_MENDED, mark_of};
use super::pages::Met;
use super::purge::{Age, down_from};
use super::{OUTCOMES, Purge};
use crate::error::{ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Generation, Outcome, Record, TaskId, TaskKey};
use crate::planted::{self, Planted};
use crate::store::objects::Swap;
use crate::store::{Tree, Version};

/// So many keys of one place are enough for one group of shards: more are not held in memory, unless one shard has
/// more.
const ENOUGH_KEYS: usize = 50_000;

/// A purge from its beginning to its end.
struct Run {
    purge: Purge,
    age: Age,
    /// Lives after the first that were scheduled at the beginning.
    scheduled: BTreeSet<TaskKey>,
    /// Records can be written on the condition that they are what a page showed.
    by_pages: AtomicBool,
}

/// A record as a page shows it.
struct Shown {
    outcome: Outcome,
    modified: Timestamp,
    length: u64,
    version: Version,
}

impl Shown {
    /// Somebody may remove something for its sake, or it is larger than what is read; it stays.
    fn stays(&self, age: Age) -> bool {
        self.modified >= age.written || self.length > layout::LONGEST_READ
    }
}

/// What pages show of a group of shards.
#[derive(Default)]
struct Group {
    /// What is in `pending/`, and whether that is a task; otherwise leases only.
    pending: BTreeMap<TaskKey, bool>,
    /// The records of each life, failed first: a completed one beats it, so a task of which that has gone never
    /// seems to have failed.
    records: BTreeMap<TaskKey, Vec<Shown>>,
    /// The shard after the last of them.
    stop: usize,
}

impl Group {
    /// Whether a life is going on here, or is over.
    fn has(&self, life: &TaskKey) -> bool {
        self.pending.get(life) == Some(&true) || self.records.contains_key(life)
    }

    /// A life and those before it, down to the first without a record.
    fn down_from<'a>(
        &'a self,
        last: &'a TaskKey,
    ) -> impl Iterator<Item = (TaskKey, &'a Vec<Shown>)> {
        down_from(last).map_while(|life| self.records.get(&life).map(|records| (life, records)))
    }

    /// A life that has lost the record of an earlier one, for each id that has such.
    fn lives_after_a_gap(&self) -> Vec<TaskKey> {
        let mut last: BTreeMap<&TaskId, Generation> = BTreeMap::new();
        let pending = self.pending.iter().filter(|(_, is_task)| **is_task).map(|(key, _)| key);
        for key in pending.chain(self.records.keys()).filter(|key| !key.is_verbatim()) {
            let last = last.entry(key.id()).or_default();
            *last = key.generation().max(*last);
        }
        let last = last.into_iter().map(|(id, last)| TaskKey::new(id.clone(), last));
        last.filter(|last| !down_from(last).all(|life| self.has(&life))).collect()
    }
}

/// The record of an id's last life, which may be old enough.
struct Candidate<'a> {
    last: &'a TaskKey,
    /// It was written anew, so only what it says can tell.
    read_first: bool,
}

/// The life after this one; there is none after what another program has named.
fn life_after(key: &TaskKey) -> Option<TaskKey> {
    (!key.is_verbatim()).then(|| TaskKey::new(key.id().clone(), key.generation() + 1))
}

impl<T: Tree> Core<T> {
    pub(super) async fn purge_by_marks(&self, purge: Purge, age: Age) -> Result<u64> {
        self.purge_in_groups(purge, age, ENOUGH_KEYS).await
    }

    async fn purge_in_groups(&self, purge: Purge, age: Age, enough: usize) -> Result<u64> {
        // First what is scheduled, then what is pending, then records: that is how tasks move, so a later life that
        // is there now is met somewhere.
        let scheduled = self.scheduled().await?;
        let few_scheduled = scheduled.len() <= enough;
        let lives = scheduled.into_iter().map(|(_, key)| key).filter(|key| key.generation() > 1);
        let by_pages = AtomicBool::new(true);
        let run = Run { purge, age, scheduled: lives.collect(), by_pages };
        let (mut removed, mut begun, mut failed) = (0, false, None);
        let (mut first, shards) = (0, self.names().shards().len());
        let mut width = shards;
        while first < shards && failed.is_none() {
            let stop = first.saturating_add(width).min(shards);
            let group = self.group(first, stop, enough, &|_| true).await?;
            // The next group is as wide, so that little of `pending/` is listed in vain.
            width = group.stop - first;
            let candidates = self.candidates(&run, &group);
            if !purge.dry_run && !candidates.is_empty() && !begun {
                begun = true;
                run.by_pages.store(self.refuses_a_wrong_version().await?, Ordering::Relaxed);
            }
            let each = candidates.iter().map(|candidate| self.purge_shown(&run, &group, candidate));
            for records in self.each(each.collect()).await {
                match records {
                    Ok(records) => removed += records,
                    Err(error) => failed = Some(error),
                }
            }
            let lists_again = !planted::is(Planted::PurgeWithoutSecondListing);
            if !purge.dry_run && !candidates.is_empty() && lists_again {
                let ids: BTreeSet<_> = candidates.iter().map(|purged| purged.last.id()).collect();
                let wanted = |key: &TaskKey| ids.contains(key.id());
                // In the order in which tasks move, again.
                if few_scheduled {
                    self.mend_scheduled(&run, &wanted).await?;
                }
                self.mend_group(first, group.stop, &wanted).await?;
            }
            first = group.stop;
        }
        if begun && !few_scheduled {
            self.mend_scheduled(&run, &|_| true).await?;
        }
        failed.map_or(Ok(removed), Err)
    }

    /// Whether the store writes nothing if the version is not what it was said to be. Some do not look at it. There
    /// a record must have been read a moment ago, or much might have happened since.
    async fn refuses_a_wrong_version(&self) -> Result<bool> {
        let name = layout::trial_of_a_purge(&self.env.nonce());
        self.tree.create(name.as_str(), b"right").await?;
        let wrong = Version::new("\"00000000000000000000000000000000\"");
        let answer = self.tree.swap(&name, Some(&wrong), b"wrong").await;
        self.tree.remove_file(name.as_str()).await?;
        match answer {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            answer => Ok(answer? == Swap::Lost),
        }
    }

    /// What pages show of the shards from `first` on and before `stop`, or of fewer if that is `enough`.
    async fn group(
        &self,
        first: usize,
        stop: usize,
        enough: usize,
        wanted: &(dyn Fn(&TaskKey) -> bool + Sync),
    ) -> Result<Group> {
        let (pending, stop) = self.met_in(layout::PENDING, first, stop, enough, wanted).await?;
        let mut group = Group { stop, ..Group::default() };
        let mut ended = Vec::new();
        for outcome in OUTCOMES.into_iter().rev() {
            let place = layout::outcome_dir(outcome);
            let (met, stop) = self.met_in(place, first, group.stop, enough, wanted).await?;
            group.stop = stop;
            ended.push((outcome, met));
        }
        let is_in = |met: &Met| usize::from(self.names().shard(&met.key).number()) < group.stop;
        let pending = pending.into_iter().filter(is_in);
        group.pending = pending.map(|met| (met.key, met.written.is_some())).collect();
        for (outcome, met) in ended {
            for met in met.into_iter().filter(is_in) {
                let (Some(modified), Some((length, version))) = (met.written, met.record) else {
                    continue;
                };
                let shown = Shown { outcome, modified, length, version };
                group.records.entry(met.key).or_default().push(shown);
            }
        }
        Ok(group)
    }

    /// What pages of one place show of the shards from `first` on, and the shard at which that ends: `stop`, or one
    /// before it if the shards until there have `enough` keys.
    async fn met_in(
        &self,
        place: &str,
        first: usize,
        stop: usize,
        enough: usize,
        wanted: &(dyn Fn(&TaskKey) -> bool + Sync),
    ) -> Result<(Vec<Met>, usize)> {
        let mut all = Vec::new();
        let mut in_shard = first;
        let mut after = self.names().before_shard(first);
        loop {
            let (page, resume) = self.page_of(place, after.as_deref()).await?;
            for met in page {
                let shard = usize::from(self.names().shard(&met.key).number());
                if shard >= stop {
                    return Ok((all, stop));
                }
                if shard > in_shard && all.len() >= enough {
                    return Ok((all, shard));
                }
                in_shard = shard;
                if wanted(&met.key) {
                    all.push(met);
                }
            }
            after = resume;
            if after.is_none() {
                return Ok((all, stop));
            }
        }
    }

    /// The last lives of ids that ended as they should have for this purge, and may be old enough.
    fn candidates<'a>(&self, run: &Run, group: &'a Group) -> Vec<Candidate<'a>> {
        let mut candidates = Vec::new();
        for (key, records) in &group.records {
            // The last is the one that counts.
            let Some(record) = records.last().filter(|last| last.outcome == run.purge.outcome)
            else {
                continue;
            };
            let lives_again = life_after(key)
                .is_some_and(|next| group.has(&next) || run.scheduled.contains(&next));
            if lives_again || record.stays(run.age) {
                continue;
            }
            let read_first = record.modified > run.age.ended;
            if !read_first || format::shows_rewritten(record.length) {
                candidates.push(Candidate { last: key, read_first });
            }
        }
        // Two purges at a time should not be at the same records.
        self.env.shuffle(&mut candidates);
        candidates
    }

    /// Removes every life of an id, if its last is old enough. The last goes first, so that what a crash leaves has
    /// no gaps: the next push finds the right generation.
    async fn purge_shown(
        &self,
        run: &Run,
        group: &Group,
        candidate: &Candidate<'_>,
    ) -> Result<u64> {
        let (last, outcome) = (candidate.last, run.purge.outcome);
        if candidate.read_first {
            let stored = self.old_record(outcome, last).await?;
            if stored.is_none_or(|stored| !run.age.is_reached(&stored, outcome, last)) {
                return Ok(0);
            }
        }
        let stays = |record: &Shown| record.stays(run.age);
        let lives = group.down_from(last).take_while(|(_, records)| !records.iter().any(stays));
        if run.purge.dry_run {
            return Ok(lives.map(|(_, records)| records.len() as u64).sum());
        }
        // Remains of any of them, which a crash has left, would be a task again without the record.
        let remains = group.down_from(last).any(|(life, _)| group.pending.contains_key(&life));
        if remains || last.is_verbatim() || !run.by_pages.load(Ordering::Relaxed) {
            return self.purge_id(run, last).await;
        }
        let (mut removed, mut lives) = (0, lives.collect::<Vec<_>>());
        if planted::is(Planted::PurgeFromTheFirst) {
            lives.reverse();
        }
        for (life, records) in lives {
            for record in records {
                match self.forget_shown(&life, record.outcome, &record.version).await? {
                    Forgot::Removed => removed += 1,
                    forgot if removed == 0 && forgot != Forgot::Marked => {
                        removed = self.purge_id(run, last).await?;
                        // It had not changed: this store calls it otherwise in its listings.
                        if removed > 0 || forgot == Forgot::Unsupported {
                            run.by_pages.store(false, Ordering::Relaxed);
                        }
                        return Ok(removed);
                    }
                    _ => return Ok(removed), // next time
                }
            }
            if life == *last && self.is_needed_by_the_next(last).await? {
                // Nobody knows any more what was in it. That there was such a life is all that the next one needs,
                // and a push that comes a moment later writes no more either.
                self.commit_one(last, &Record { outcome, ..mark_of(last) }).await?;
                return Ok(0);
            }
        }
        Ok(removed)
    }

    /// A push of the next life may have begun before the record of this one went, and relies on it; unless this
    /// one has begun anew.
    async fn is_needed_by_the_next(&self, last: &TaskKey) -> Result<bool> {
        let next = life_after(last).filter(|_| !planted::is(Planted::PurgeWithoutNextLook));
        let Some(next) = next else { return Ok(false) };
        Ok(self.tree.exists(&layout::task_file(&self.task_dir(&next))).await?
            && self.pending_task(last).await?.is_none())
    }

    /// Puts back what lives need that were pushed while earlier ones of their id were being removed.
    async fn mend_group(
        &self,
        first: usize,
        stop: usize,
        wanted: &(dyn Fn(&TaskKey) -> bool + Sync),
    ) -> Result<()> {
        let group = self.group(first, stop, usize::MAX, wanted).await?;
        let lives = group.lives_after_a_gap();
        for mended in self.each(lives.iter().map(|key| self.mend_all_lives(key)).collect()).await {
            mended?;
        }
        Ok(())
    }

    /// Puts back what lives need that were scheduled since the purge began.
    async fn mend_scheduled(
        &self,
        run: &Run,
        wanted: &(dyn Fn(&TaskKey) -> bool + Sync),
    ) -> Result<()> {
        let scheduled = self.scheduled_lives().await?;
        let new = scheduled.difference(&run.scheduled).filter(|key| wanted(key));
        for mended in self.each(new.map(|key| self.mend_all_lives(key)).collect()).await {
            mended?;
        }
        Ok(())
    }

    /// Removes every life of an id by looking at each, where pages do not tell enough: if there are remains of its
    /// tasks, or if the store cannot write on the condition that a record is what a page showed.
    async fn purge_id(&self, run: &Run, key: &TaskKey) -> Result<u64> {
        let Run { purge, age, scheduled, .. } = run;
        let path = self.record_path(purge.outcome, key);
        let Some(stored) = self.old_record(purge.outcome, key).await? else { return Ok(0) };
        if !age.is_reached(&stored, purge.outcome, key) || self.lives_again(key, scheduled).await? {
            return Ok(0);
        }
        if !self.counts_as(key, purge.outcome).await? {
            return Ok(0); // completed as well, which is what counts
        }
        let mut removed = 0;
        for life in down_from(key) {
            let Some(records) = self.purge_life(&life, *age).await? else {
                return Ok(removed); // next time
            };
            if records == 0 {
                break;
            }
            removed += records;
            // A push of the next life may have begun before the record went, and relies on it.
            if life == *key
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
        let lives = lives.rev().take(MOST_MENDED as usize).filter(|_| !key.is_verbatim());
        for life in lives {
            if self.lives(&life, scheduled).await? {
                self.mend_all_lives(&life).await?;
                break;
            }
        }
        Ok(removed)
    }

    /// Removes what there is of a life, and answers how many records that was; `None` if somebody is
    /// removing remains of it, and relies on its record.
    async fn purge_life(&self, life: &TaskKey, age: Age) -> Result<Option<u64>> {
        // Its remains, if a crash left any, would be a task again without the record.
        self.clean_finished(life).await?;
        let mut removed = 0;
        // Failed first: a completed record beats it, so the task never seems to have failed.
        for outcome in OUTCOMES.into_iter().rev() {
            if self.old_record(outcome, life).await?.is_none() {
                continue;
            }
            if !self.forget_record(life, outcome, age.written).await? {
                return Ok(None);
            }
            removed += 1;
        }
        Ok(Some(removed))
    }
}

#[cfg(test)]
mod tests;
