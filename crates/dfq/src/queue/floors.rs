//! Floors: what purges have forgotten, so that no life of an id is numbered as an earlier one was.
//!
//! Invariant: on disk, a record goes only when a floor says durably that the lives up to it are over, and a push
//! numbers above the floor. So a name that was freed is not used again: whoever has slept over a purge, such as
//! another purge or a push that had looked before, meets nothing new under an old name.
//!
//! A file of floors is written once, under a name of its own, and of all that is said of an id the greatest
//! counts. So nobody has to agree with anybody: purges that overlap write a file each, and whoever merges files
//! writes the new one before the old ones go. A reader who meets that lists again.
//!
//! In a bucket a purge works otherwise (decision 19), and there are none, unless it is the hub of a synced queue.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::core::Core;
use super::purge::Forgotten;
use super::strategy::Forgetting;
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{self, Floor, LONGEST_FLOOR};
use crate::layout::{self, Shard};
use crate::model::{Generation, TaskId, TaskKey};
use crate::planted::{self, Planted};
use crate::store::{EntryKind, Stamp, Tree};

/// How long a floor counts.
pub(super) const REMEMBERED: SignedDuration = SignedDuration::from_hours(92 * 24);

/// More files than this in a folder are merged, but for those that are larger than this and not too old to count.
const MOST_FILES: usize = 8;
const LARGE_FILE: u64 = 8 << 20;

/// A stretch of a file so short is read in one go.
const SHORT_STRETCH: u64 = 8 * 1024;

/// How often a folder that others are merging is listed again.
const LISTED_AGAIN: usize = 64;

/// What is known of the lives of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lives {
    /// The last that has a record.
    pub(super) last: Option<Generation>,
    /// The last that a purge has forgotten, or 0.
    pub(super) forgotten: Generation,
    /// No fencing token given out before the forgotten ones is greater.
    pub(super) fence: u64,
}

impl Lives {
    /// The life that is going on, or comes next.
    pub(super) fn next(self) -> Generation {
        match self.last {
            Some(last) if planted::is(Planted::PushLeavesAGap) => last + 2,
            None if planted::is(Planted::PushBelowTheFloor) => 1,
            last => last.unwrap_or(self.forgotten).saturating_add(1),
        }
    }
}

/// Floors, each id once, sorted.
#[derive(Default)]
struct Floors(BTreeMap<String, Floor>);

impl Floors {
    fn add(&mut self, floor: Floor) {
        let both = match self.0.remove(floor.id.as_str()) {
            Some(other) => other.and(floor),
            None => floor,
        };
        self.0.insert(both.id.as_str().to_owned(), both);
    }
}

/// The files of floors in a folder as they were when it was last changed.
pub(super) struct Listed {
    stamp: Stamp,
    names: Vec<String>,
}

impl<T: Tree> Core<T> {
    /// Which lives of an id there were.
    pub(super) async fn lives_of(&self, id: &TaskId) -> Result<Lives> {
        let mut forgotten = 0;
        loop {
            let paths = |life| self.record_paths(&TaskKey::new(id.clone(), forgotten + life));
            let last = self.tree.last_life(&paths).await?.map(|life| forgotten + life);
            // Asked for only now: what a purge has removed until then has its floor.
            let Some(floor) = self.floor(id).await? else {
                return Ok(Lives { last, ..Lives::default() });
            };
            if floor.generation <= forgotten {
                return Ok(Lives { last, forgotten, fence: floor.fence });
            }
            forgotten = floor.generation;
        }
    }

    /// What purges have forgotten of an id.
    pub(super) async fn floor(&self, id: &TaskId) -> Result<Option<Floor>> {
        if self.strategy.forgetting == Forgetting::Marks {
            return Ok(None);
        }
        let shard = self.names().shard(&TaskKey::new(id.clone(), 1));
        'again: for _ in 0..LISTED_AGAIN {
            let mut found = Floors::default();
            for name in self.floor_files(shard).await? {
                let path = self.names().floor_path(shard, &name);
                match self.find_floor(&path, id).await {
                    Ok(floor) => floor.into_iter().for_each(|floor| found.add(floor)),
                    // Merged into another since it was listed.
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        lock(&self.floors).remove(&shard);
                        continue 'again;
                    }
                    Err(error) if error.kind() == ErrorKind::Damaged => {
                        tracing::warn!(%error, "an id that was purged may count as new");
                    }
                    Err(error) => return Err(error),
                }
            }
            return Ok(found.0.into_values().next());
        }
        let message = "purges change 'floors' all the time; try again";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The names of a shard's files of floors.
    async fn floor_files(&self, shard: Shard) -> Result<Vec<String>> {
        let dir = self.names().shard_dir(layout::FLOORS, shard);
        // First without a look at the clock, which takes a file: most queues have no floors, and some readers may
        // not write.
        if self.tree.stamp(&dir, Timestamp::MAX).await? == Some(Stamp::Missing) {
            return Ok(Vec::new());
        }
        let stamp = self.tree.stamp(&dir, self.now_for_onlookers().await).await?;
        if let Some(listed) = lock(&self.floors).get(&shard)
            && stamp == Some(listed.stamp)
        {
            return Ok(listed.names.clone());
        }
        let mut names = self.list_floors(&dir).await?;
        for _ in 0..LISTED_AGAIN {
            // A listing that a merge comes across may show neither the old nor the new. What it has missed
            // is there by the time of the next.
            let again = self.list_floors(&dir).await?;
            if names == again {
                break;
            }
            names = again;
        }
        if let Some(stamp) = stamp {
            lock(&self.floors).insert(shard, Listed { stamp, names: names.clone() });
        }
        Ok(names)
    }

    async fn list_floors(&self, dir: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.each_entry(dir, |entry| {
            let ours = entry.kind == EntryKind::File && layout::is_floor_name(&entry.name);
            names.extend(ours.then(|| entry.name.clone()));
        })
        .await?;
        names.sort_unstable();
        Ok(names)
    }

    /// Looks an id up in a file, by halving: lines are sorted.
    async fn find_floor(&self, path: &str, id: &TaskId) -> Result<Option<Floor>> {
        let gone = || Error::not_found(format!("'{path}' has gone"));
        let part = async |from: u64, length: usize| {
            let range = from..from.saturating_add(length as u64);
            self.tree.get(path, Some(range)).await?.ok_or_else(gone)
        };
        // A short file takes one look.
        let mut read = part(0, SHORT_STRETCH as usize + LONGEST_FLOOR).await?;
        let (mut low, mut high) = (0, read.head.size);
        loop {
            let middle = low + (high - low) / 2;
            let is_short = high - low <= SHORT_STRETCH;
            if !is_short {
                read = part(middle, 2 * LONGEST_FLOOR).await?;
            } else if low > 0 || high < read.head.size {
                read = part(low, SHORT_STRETCH as usize + LONGEST_FLOOR).await?;
            }
            // The first line is whole only where the stretch begins.
            let lines = read.bytes.split_inclusive(|byte| *byte == b'\n');
            let skipped = usize::from(!is_short);
            let mut floors = lines.skip(skipped).filter_map(format::decode_floor);
            if is_short {
                return Ok(floors.find(|floor| floor.id == *id));
            }
            match floors.next() {
                Some(floor) if floor.id == *id => return Ok(Some(floor)),
                Some(floor) if floor.id.as_str() < id.as_str() => low = middle,
                Some(_) => high = middle,
                // Behind the last line; or garbage, of which nothing can be said.
                None if read.head.size.saturating_sub(middle) <= 2 * LONGEST_FLOOR as u64 => {
                    high = middle;
                }
                None => return Err(Error::damaged(format!("'{path}' is not a file of floors"))),
            }
        }
    }

    /// Says, durably, that these lives and all before them are over. They must be of one shard.
    pub(super) async fn raise_floors(
        &self,
        shard: Shard,
        lives: &[Forgotten],
        now: Timestamp,
    ) -> Result<()> {
        let mut floors = Floors::default();
        for Forgotten { key, fence, pushes } in lives.iter().filter(|it| !it.key.is_verbatim()) {
            let (id, generation, pushes) = (key.id().clone(), key.generation(), pushes.clone());
            floors.add(Floor { id, generation, fence: *fence, at: now, pushes });
        }
        self.write_floors(shard, floors).await
    }

    async fn write_floors(&self, shard: Shard, Floors(floors): Floors) -> Result<()> {
        if floors.is_empty() || planted::is(Planted::PurgeWithoutFloors) {
            return Ok(());
        }
        let name = layout::floor_name(&self.env.nonce());
        let path = self.names().floor_path(shard, &name);
        let file = (path, format::encode_floors(floors.values()));
        let durable = self.durable() && !planted::is(Planted::FloorNotSynced);
        self.tree.create_all(&[file], durable).await.into_iter().try_for_each(|it| it.map(drop))
    }

    /// Files of floors that are not in order, and what is the matter with each.
    pub(super) async fn check_floors(&self, shard: Shard) -> Result<Vec<(String, String)>> {
        let dir = self.names().shard_dir(layout::FLOORS, shard);
        let mut problems = Vec::new();
        for name in self.list_floors(&dir).await? {
            let path = self.names().floor_path(shard, &name);
            let what = match self.tree.read(&path).await {
                Ok(None) => continue,
                Ok(Some(stored)) => match format::decode_floors(&stored.bytes) {
                    Some(floors) if floors.is_sorted_by(|a, b| a.id.as_str() < b.id.as_str()) => {
                        continue;
                    }
                    _ => "not a file of floors; what was purged there may be pushed as if it were new"
                        .to_owned(),
                },
                Err(error) => error.to_string(),
            };
            problems.push((path, what));
        }
        Ok(problems)
    }

    /// Merges the files of a shard, if there are many, and drops what is too old to count.
    pub(super) async fn merge_floors(&self, shard: Shard, now: Timestamp) -> Result<()> {
        let dir = self.names().shard_dir(layout::FLOORS, shard);
        let names = self.list_floors(&dir).await?;
        if names.len() <= MOST_FILES {
            return Ok(());
        }
        let (mut merged, mut floors) = (Vec::new(), Floors::default());
        let mut old = Vec::new();
        for name in names {
            let path = self.names().floor_path(shard, &name);
            let Some(head) = self.tree.head(&path).await? else { continue };
            // All that a file says is older than the file.
            if head.size > LARGE_FILE && now.duration_since(head.modified) <= REMEMBERED {
                continue;
            }
            let Some(stored) = self.tree.read(&path).await? else { continue };
            let Some(inside) = format::decode_floors(&stored.bytes) else { continue };
            merged.push(path);
            for floor in inside {
                match now.duration_since(floor.at) <= REMEMBERED {
                    true => floors.add(floor),
                    false => old.push(floor),
                }
            }
        }
        if merged.len() < 2 {
            return Ok(());
        }
        // A life that is still there is found by the floor below it, however old that is.
        let scheduled = match old.is_empty() {
            true => BTreeSet::new(),
            false => self.scheduled_lives().await?,
        };
        for floor in old {
            let last = TaskKey::new(floor.id.clone(), floor.generation);
            if self.lives_again(&last, &scheduled).await? {
                floors.add(Floor { at: now, ..floor });
            }
        }
        self.write_floors(shard, floors).await?;
        for path in merged {
            self.tree.remove_file(&path).await?;
        }
        Ok(())
    }
}
