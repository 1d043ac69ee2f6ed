//! Going through a whole place, part by part, in the way that costs least where it is.
//!
//! A directory is read a shard at a time. A bucket is listed a thousand keys at a time, whatever shards
//! they lie in, and several stretches at once when there is much of it.

use super::core::Core;
use super::pages::{self, Met};
use super::strategy::Finding;
use crate::error::Result;
use crate::layout::{self, Shard};
use crate::model::{Layout, TaskKey};
use crate::store::{EntryKind, Scanned, Tree};

/// Keys in one request.
const PAGE: usize = 1000;

/// Stretches listed at the same time.
const LANES: usize = 16;

/// How far a walk has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The shard to go on with.
    shard: usize,
    /// And where in it.
    after: Option<String>,
}

impl Spot {
    /// Before everything.
    pub(crate) const START: Self = Self { shard: 0, after: None };
}

impl<T: Tree> Core<T> {
    /// Whether a walk from the first shard on costs less than one shard at a time.
    pub(super) fn goes_on_across_shards(&self) -> bool {
        self.strategy.finding == Finding::Pages
    }

    /// Where to begin so as to see everything, in random order; where listings go on across shards,
    /// at the beginning.
    pub(super) fn random_spots(&self) -> Vec<Spot> {
        if self.goes_on_across_shards() {
            return vec![Spot::START];
        }
        let shards = 0..self.names().shards().len();
        let mut spots: Vec<_> = shards.map(|shard| Spot { shard, after: None }).collect();
        self.env.shuffle(&mut spots);
        spots
    }

    /// The next tasks of a place, and where to go on.
    pub(super) async fn stretch(
        &self,
        place: &str,
        from: Spot,
    ) -> Result<(Vec<TaskKey>, Option<Spot>)> {
        let (met, next) = self.stretch_met(place, from).await?;
        Ok((met.into_iter().map(|met| met.key).collect(), next))
    }

    /// The next tasks of a place with all that the listing shows of them. Where shards are read one by one, that
    /// is their names.
    pub(super) async fn stretch_met(
        &self,
        place: &str,
        from: Spot,
    ) -> Result<(Vec<Met>, Option<Spot>)> {
        if !self.goes_on_across_shards() {
            let shards = self.names().shards();
            let Some(shard) = shards.get(from.shard) else { return Ok((Vec::new(), None)) };
            let keys = self.keys_in(place, *shard).await?;
            let next = Spot { shard: from.shard + 1, after: None };
            let met = keys.into_iter().map(Met::named).collect();
            return Ok((met, Some(next).filter(|next| next.shard < shards.len())));
        }
        let after = from.after.or_else(|| self.names().before_shard(from.shard));
        let (met, resume) = self.page_of(place, after.as_deref()).await?;
        Ok((met, resume.map(|after| Spot { shard: from.shard, after: Some(after) })))
    }

    /// A page of keys as tasks, and the path after which to go on.
    pub(super) async fn page_of(
        &self,
        place: &str,
        after: Option<&str>,
    ) -> Result<(Vec<Met>, Option<String>)> {
        let page = self.tree.scan(place, after, PAGE).await?;
        if place == layout::PENDING {
            return Ok(pages::group(self.layout(), &page));
        }
        let resume = page.files.last().map(|file| file.path.clone()).filter(|_| !page.end);
        let met = |file: &Scanned| {
            let key = self.names().parse_record_path(&file.path)?;
            let record = Some((file.size, file.version.clone()));
            Some(Met { written: Some(file.modified), record, ..Met::named(key) })
        };
        Ok((page.files.iter().filter_map(met).collect(), resume))
    }

    /// The tasks whose folders or records lie in a shard.
    pub(super) async fn keys_in(&self, place: &str, shard: Shard) -> Result<Vec<TaskKey>> {
        let dir = self.names().shard_dir(place, shard);
        let mut keys = Vec::new();
        self.each_entry(&dir, |entry| {
            keys.extend(match (place, entry.kind) {
                (layout::PENDING, EntryKind::Folder) => {
                    self.names().parse_task_dir(shard, &entry.name)
                }
                (layout::PENDING, _) => None,
                (_, EntryKind::File) => self.names().parse_record_name(shard, &entry.name),
                _ => None,
            });
        })
        .await?;
        Ok(keys)
    }

    /// Calls `visit` with every task of a place; for stores that list in pages.
    pub(super) async fn each_met(&self, place: &str, visit: &(dyn Fn(Met) + Sync)) -> Result<()> {
        let (met, resume) = self.page_of(place, None).await?;
        let last = met.last().map_or(0, |met| usize::from(self.names().shard(&met.key).number()));
        met.into_iter().for_each(visit);
        let Some(resume) = resume else { return Ok(()) };
        let first = self.each_met_between(place, last, last + 1, Some(resume), visit);
        if self.layout() == Layout::Flat {
            return first.await.map(drop); // all of it is one stretch
        }
        let lanes = (0..LANES).map(|lane| {
            let bounds = |lane: usize| last + 1 + (255 - last) * lane / LANES;
            self.each_met_between(place, bounds(lane), bounds(lane + 1), None, visit)
        });
        let rest = futures::future::try_join_all(lanes.collect::<Vec<_>>());
        futures::try_join!(first, rest)?;
        Ok(())
    }

    /// Calls `visit` with every task in the shards from `first` on and before `stop`; answers how many pages that took.
    pub(super) async fn each_met_between(
        &self,
        place: &str,
        first: usize,
        stop: usize,
        mut after: Option<String>,
        visit: &(dyn Fn(Met) + Sync),
    ) -> Result<u64> {
        let mut pages = 0;
        if first >= stop {
            return Ok(pages);
        }
        after = after.or_else(|| self.names().before_shard(first));
        loop {
            let (met, resume) = self.page_of(place, after.as_deref()).await?;
            pages += 1;
            for met in met {
                if usize::from(self.names().shard(&met.key).number()) >= stop {
                    return Ok(pages);
                }
                visit(met);
            }
            after = resume;
            if after.is_none() {
                return Ok(pages);
            }
        }
    }
}
