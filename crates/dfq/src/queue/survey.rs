//! Finding tasks where one request lists across folders: a bucket.
//!
//! A page of keys shows tasks, their leases and the age of both, so most of what cannot be claimed is
//! passed over without a request of its own. A round covers each of the 256 shards once. The workers
//! that are alive share the shards out among themselves: each begins with a part of its own and goes
//! through it in order; whoever is done *steals*, a few shards at a time, from a random place. Who
//! finds a task taken leaves the rest of that shard's tasks, because somebody is at it.
//!
//! All this only saves requests. Two workers that find the same task are told apart by its lease.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;

use super::core::Core;
use super::discover::{Candidate, Discovery};
use super::known::Listed;
use super::pages::{self, Met};
use crate::clock::lock;
use crate::error::Result;
use crate::layout::{self, Shard};
use crate::store::{Scanned, Tree};

/// Keys in a page: what a request gives at the most.
const PAGE: usize = 1000;

/// A thief takes whole shards, until it has so many tasks.
const LOOT: usize = 256;

/// With so few candidates left, more are looked for in the background.
const LOW_WATER: usize = 64;

/// A lease that was written less than this ago is taken for somebody's without being read, as long as
/// there is anything else to do.
const YOUNG: Duration = Duration::from_secs(3);

/// The most of them that are kept.
const MAX_YOUNG: usize = 1000;

/// How often the list of workers is read, and how often by one that has just begun, which may not have
/// seen those who began with it.
const CENSUS_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A worker whose record is older than this is not counted on.
const SILENT_AFTER: Duration = Duration::from_secs(200);

/// Leases without their task that are older than this are nobody's any more.
const GARBAGE_AFTER: Duration = Duration::from_secs(60);

/// How far a round has come.
pub(super) struct Survey {
    /// Shards still to be looked at in this round.
    left: [bool; 256],
    /// The part of the shards that is ours: the first, and the one after the last.
    own: (usize, usize),
    /// Where the listing of a shard goes on.
    partial: Option<(Shard, String)>,
    /// How many tasks this round has met.
    met: usize,
    /// Tasks whose leases are so young that they are probably somebody's.
    young: Vec<Candidate>,
    /// When the workers were last counted, and how often that was.
    census: Option<Duration>,
    censuses: u32,
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            left: [false; 256],
            own: (0, 256),
            partial: None,
            met: 0,
            young: Vec::new(),
            census: None,
            censuses: 0,
        }
    }
}

/// What to list next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leg {
    after: Option<String>,
    /// The shard that it begins with, and the one to stop before.
    first: usize,
    stop: usize,
    stealing: bool,
}

impl Survey {
    pub(super) fn in_round(&self) -> bool {
        self.partial.is_some() || self.left.contains(&true)
    }

    /// Somebody is at this shard: it is left for the end of the round.
    fn is_contested(&mut self, shard: Shard) {
        self.left[usize::from(shard.number())] = true;
    }

    /// Where to list next: on with a shard, then through our own part, then anywhere.
    fn next_leg(&self, chance: usize) -> Option<Leg> {
        let (from, to) = self.own;
        if let Some((shard, after)) = &self.partial {
            let first = usize::from(shard.number());
            let own = (from..to).contains(&first);
            let stop = if own { to } else { first + 1 };
            return Some(Leg { after: Some(after.clone()), first, stop, stealing: !own });
        }
        let own = (from..to).find(|shard| self.left[*shard]);
        let (first, stealing) = match own {
            Some(first) => (first, false),
            None => ((0..256).map(|n| (n + chance) % 256).find(|shard| self.left[*shard])?, true),
        };
        let stop = if stealing { 256 } else { to };
        Some(Leg { after: None, first, stop, stealing })
    }
}

/// The part of the shards of one of `count` workers.
fn part(rank: usize, count: usize) -> (usize, usize) {
    let from = rank * 256 / count;
    (from, ((rank + 1) * 256 / count).max(from + 1))
}

impl<T: Tree> Core<T> {
    pub(super) async fn begin_survey(&self, found: &mut Discovery<T::Cursor>) -> Result<()> {
        self.count_workers(&mut found.survey).await?;
        let survey = &mut found.survey;
        survey.partial = None;
        survey.young.clear();
        survey.met = 0;
        survey.left = [false; 256];
        for shard in layout::shards(self.layout()) {
            survey.left[usize::from(shard.number())] = true;
        }
        Ok(())
    }

    /// Finds our place among the workers that are alive. Who is no worker begins anywhere.
    async fn count_workers(&self, survey: &mut Survey) -> Result<()> {
        if !self.enrolled.load(Ordering::Relaxed) {
            if !survey.in_round() {
                survey.own = (self.env.below(256), 256);
            }
            return Ok(());
        }
        let mono = self.env.monotonic();
        let (soon, seldom) = CENSUS_EVERY;
        let every = if survey.censuses < 3 { soon } else { seldom };
        if survey.census.is_some_and(|at| mono.saturating_sub(at) < every) {
            return Ok(());
        }
        survey.census = Some(mono);
        survey.censuses = survey.censuses.saturating_add(1);
        let now = self.now().await?;
        let (mut workers, mut after) = (vec![layout::rank_of(&self.worker_id)], None);
        loop {
            let page = self.tree.scan(layout::WORKERS, after.as_deref(), PAGE).await?;
            for Scanned { path, modified, .. } in &page.files {
                let silent = now.duration_since(*modified) > super::claim::signed(SILENT_AFTER);
                let worker = layout::parse_worker_name(path).filter(|_| !silent);
                workers.extend(worker.map(|worker| layout::rank_of(&worker)));
            }
            after = page.files.last().map(|file| file.path.clone()).filter(|_| !page.end);
            if after.is_none() {
                break;
            }
        }
        workers.sort_unstable();
        workers.dedup();
        let rank = workers.binary_search(&layout::rank_of(&self.worker_id)).unwrap_or(0);
        survey.own = part(rank, workers.len());
        Ok(())
    }

    /// Lists the next part of this round, unless others have found something meanwhile. Answers
    /// whether there was anything left to list.
    pub(super) async fn survey_on(&self) -> Result<bool> {
        // One at a time: who comes second finds what the first has found.
        let _alone = self.surveying.lock().await;
        let (leg, round) = {
            let mut found = self.discovery.lock().await;
            if found.ready.len() >= self.low_water() {
                return Ok(true);
            }
            if found.survey.in_round() {
                self.count_workers(&mut found.survey).await?;
            }
            // As long as nothing was found there is nobody to keep out of the way of.
            let survey = &found.survey;
            let chance = if survey.met == 0 { survey.own.1 } else { self.env.below(256) };
            match survey.next_leg(chance) {
                Some(leg) => (leg, found.rounds),
                None => return Ok(!found.ready.is_empty()),
            }
        };
        let after = leg.after.clone().or_else(|| layout::before_shard(self.layout(), leg.first));
        let page = self.tree.scan(layout::PENDING, after.as_deref(), PAGE).await?;
        let now = self.now().await?;
        let (met, resume) = pages::group(self.layout(), &page);
        let mut found = self.discovery.lock().await;
        if found.rounds != round {
            return Ok(true); // it shows how things were before this round began
        }
        found.survey.met += met.len();
        let (covered, kept) = self.take_leg(&mut found.survey, &leg, met, resume);
        tracing::debug!(?leg, covered, tasks = kept.len(), "listed");
        let Discovery { survey, ready, .. } = &mut *found;
        ready.extend(self.claimable(kept, now, &mut survey.young));
        if survey.young.len() > MAX_YOUNG {
            survey.young.truncate(MAX_YOUNG);
            lock(&self.known).wakes_at(self.env.monotonic() + YOUNG);
        }
        Ok(true)
    }

    /// So few candidates that it is time to look for more.
    pub(super) fn low_water(&self) -> usize {
        LOW_WATER
    }

    /// Notes what a page has shown, and chooses from it.
    fn take_leg(
        &self,
        survey: &mut Survey,
        leg: &Leg,
        met: Vec<Met>,
        resume: Option<String>,
    ) -> (usize, Vec<Met>) {
        let shard_of = |met: &Met| usize::from(layout::shard(self.layout(), &met.key).number());
        let mut kept: Vec<Met> = Vec::with_capacity(met.len());
        let (mut stop, mut loot, mut beyond, mut last) = (leg.stop, 0, false, None);
        for met in met {
            let shard = shard_of(&met);
            let enough = leg.stealing && loot >= LOOT && last.is_some_and(|last| last != shard);
            if shard >= stop || enough {
                (stop, beyond) = (stop.min(shard), true);
                break;
            }
            last = Some(shard);
            // What this round has seen already is not looked at twice.
            let goes_on = leg.after.is_some() && shard == leg.first;
            if survey.left[shard] || goes_on {
                loot += usize::from(met.leases.is_empty());
                kept.push(met);
            }
        }
        let ended = resume.is_none();
        // The last shard of a page that is not the last may go on in the next.
        let last = last.filter(|_| !beyond);
        survey.partial = match (resume, last) {
            (Some(resume), Some(last)) if !beyond => {
                stop = last;
                layout::shards(self.layout()).get(last).map(|shard| (*shard, resume))
            }
            (Some(resume), None) if !beyond => {
                // A page of nothing but strangers.
                stop = leg.first;
                layout::shards(self.layout()).get(leg.first).map(|shard| (*shard, resume))
            }
            _ => None,
        };
        if ended && !beyond {
            stop = 256; // there is nothing further on
        }
        // A shard that is gone on with was taken off the list before: if it is on it, it is contested.
        let goes_on = leg.after.is_some();
        for shard in leg.first + usize::from(goes_on)..stop.min(256) {
            survey.left[shard] = false;
        }
        if let Some((shard, _)) = &survey.partial
            && !(goes_on && usize::from(shard.number()) == leg.first)
        {
            survey.left[usize::from(shard.number())] = false;
        }
        (stop.saturating_sub(leg.first), kept)
    }

    /// What is worth trying, by what a listing has shown at `now`; `young` takes what is so only if
    /// there is nothing else.
    fn claimable(
        &self,
        met: Vec<Met>,
        now: Timestamp,
        young: &mut Vec<Candidate>,
    ) -> VecDeque<Candidate> {
        let mono = self.env.monotonic();
        let mut known = lock(&self.known);
        let mut shards: Vec<(Shard, Vec<Candidate>)> = Vec::new();
        for Met { key, leases, task, .. } in met {
            if known.is_over(&key) {
                continue;
            }
            let has_rested = known.has_rested(&key, mono);
            if known.resting_until(&key, mono).is_some() {
                continue;
            }
            let (mut listed, mut is_young) = (None, false);
            if let Some(top) = leases.iter().max_by_key(|lease| lease.attempt) {
                let as_listed = Listed::new(&key, top);
                if known.resting_as_listed(&as_listed, mono).is_some() {
                    continue;
                }
                let age = now.duration_since(top.modified);
                let age = Duration::try_from(age).unwrap_or(Duration::ZERO);
                if !task && age < GARBAGE_AFTER {
                    continue; // whoever has finished it is about to remove them
                }
                listed = Some(as_listed);
                is_young = task && age < YOUNG && !has_rested;
            }
            let shard = layout::shard(self.layout(), &key);
            let leases = leases.into_iter().map(|lease| lease.attempt).collect();
            let candidate =
                Candidate { leases, listed, without_task: !task, ..Candidate::new(key) };
            if is_young {
                young.push(candidate);
                continue;
            }
            match shards.last_mut() {
                Some((last, candidates)) if *last == shard => candidates.push(candidate),
                _ => shards.push((shard, vec![candidate])),
            }
        }
        drop(known);
        for (_, candidates) in &mut shards {
            self.env.shuffle(candidates);
        }
        shards.into_iter().flat_map(|(_, candidates)| candidates).collect()
    }

    /// There was nothing else to do: leases that were passed over for their youth are read after all,
    /// each once, for their tasks may have been given back. Answers whether there were any.
    pub(super) async fn take_young(&self) -> bool {
        let mut found = self.discovery.lock().await;
        let young = std::mem::take(&mut found.survey.young);
        found.ready.extend(young);
        !found.ready.is_empty()
    }

    /// Somebody else was faster: they are at this shard, so its other tasks are left to them. Noted for
    /// whoever takes the next candidate; a claim under way must wait for nobody.
    pub(super) fn collided(&self, candidate: &Candidate) {
        lock(&self.contested).push(layout::shard(self.layout(), &candidate.key));
    }

    /// Leaves the shards that others are at for the end of the round.
    pub(super) fn avoid_contested(&self, found: &mut Discovery<T::Cursor>) {
        for shard in std::mem::take(&mut *lock(&self.contested)) {
            let before = found.ready.len();
            found.ready.retain(|other| layout::shard(self.layout(), &other.key) != shard);
            if found.ready.len() < before {
                found.survey.is_contested(shard);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_shards_once() {
        for count in 1..=256 {
            let parts: Vec<_> = (0..count).map(|rank| part(rank, count)).collect();
            assert_eq!(parts[0].0, 0);
            assert_eq!(parts[count - 1].1, 256);
            assert!(parts.windows(2).all(|two| two[0].1 == two[1].0), "{count}");
        }
        assert!((0..1000).all(|rank| part(rank, 1000).1 <= 256), "more workers than shards");
    }

    #[test]
    fn own_shards_come_first() {
        let mut survey = Survey { left: [true; 256], own: (64, 128), ..Survey::default() };
        let leg = survey.next_leg(7).unwrap();
        assert_eq!((leg.first, leg.stop, leg.stealing), (64, 128, false));
        survey.left[64..128].fill(false);
        let leg = survey.next_leg(100).unwrap();
        assert_eq!((leg.first, leg.stop, leg.stealing), (128, 256, true));
        survey.left.fill(false);
        assert_eq!(survey.next_leg(0), None);
        survey.is_contested(Shard::FIRST);
        assert_eq!(survey.next_leg(200).map(|leg| leg.first), Some(0));
    }
}
