//! Finding tasks where one request lists across folders: a bucket.
//!
//! A page of keys shows tasks, their leases and the age of both, so most of what cannot be claimed is
//! passed over without a request of its own. A round covers each of the 256 shards once. The workers
//! that are alive share the shards out among themselves: each begins with a part of its own and goes
//! through it in order; whoever is done *steals*, a few shards at a time, from a random place. Of every
//! shard one task is tried ahead of the others: who finds it taken leaves the rest of that shard alone
//! for a moment, because somebody is at it.
//!
//! All this only saves requests. Two workers that find the same task are told apart by its lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::core::Core;
use super::discover::{Candidate, Discovery};
use super::pages::{self, Met};
use super::sieve::Sieve;
use super::strategy::Finding;
use crate::clock::lock;
use crate::error::Result;
use crate::layout::{self, Shard};
use crate::model::Layout;
use crate::store::{Scanned, Tree};

/// Keys in a page: what a request gives at the most.
const PAGE: usize = 1000;

/// A thief takes whole shards, until it has so many tasks.
const LOOT: usize = 256;

/// For how long a shard is left to whoever was met there.
const GIVE_WAY: Duration = Duration::from_secs(1);

/// With no more tasks than this on the last page, the next round begins with the first shard: a single
/// page may then show all that there is.
const FEW: usize = 250;

/// With so few candidates left, more of our own part are looked for in the background.
const LOW_WATER: usize = 64;

/// How soon the list of workers is read again by one that has just begun, which may not have seen those
/// who began with it. Each time after twice as long, up to the latter.
const CENSUS_EVERY: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

/// A worker whose record is older than this is not counted on.
const SILENT_AFTER: Duration = Duration::from_secs(300);

/// Whether a shard is to be visited in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    Done,
    Due,
    /// Once more, when whoever is at it has had some time.
    Again,
}

/// How far a round has come.
pub(super) struct Survey {
    /// What is still to be looked at in this round.
    shards: [Visit; 256],
    /// Until when those are left alone that others are at.
    give_way: Duration,
    /// The part of the shards that is ours: the first, and the one after the last.
    own: (usize, usize),
    /// Where the listing of a shard goes on.
    partial: Option<(Shard, String)>,
    /// Whether this round has met any task.
    met: bool,
    /// There was not much on the last page.
    few: bool,
    /// There was not much before this round, either: it goes through the shards from the first on.
    from_the_first: bool,
    pub(super) sieve: Sieve,
    /// When the workers were last counted, and how long to wait before they are again.
    census: Option<Duration>,
    census_every: Duration,
    /// How many there were.
    workers: usize,
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            shards: [Visit::Done; 256],
            give_way: Duration::ZERO,
            own: (0, 256),
            partial: None,
            met: false,
            few: false,
            from_the_first: false,
            sieve: Sieve::default(),
            census: None,
            census_every: CENSUS_EVERY.0,
            workers: 0,
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

/// What came of looking for more.
pub(super) enum Surveyed {
    /// There is, or may be, something to try.
    More,
    /// Others are at all that is left; until then it is theirs.
    Contested(Duration),
    /// The round is over.
    All,
}

impl Survey {
    pub(super) fn in_round(&self) -> bool {
        self.partial.is_some()
            || self.sieve.has_leased()
            || self.shards.iter().any(|shard| *shard != Visit::Done)
    }

    /// All of this round was listed.
    pub(super) fn is_listed(&self) -> bool {
        self.partial.is_none() && self.shards.iter().all(|shard| *shard == Visit::Done)
    }

    /// How many workers there are; 0 if they were not counted lately.
    pub(super) fn workers(&self, now: Duration) -> usize {
        let lately = self.census.is_some_and(|at| now.saturating_sub(at) <= SILENT_AFTER);
        if lately { self.workers } else { 0 }
    }

    /// Somebody is at this shard: it is left to them for a while, and all such shards together.
    fn is_contested(&mut self, shard: Shard, until: Duration) {
        self.shards[usize::from(shard.number())] = Visit::Again;
        self.give_way = until;
    }

    fn is_due(&self, shard: usize, now: Duration) -> bool {
        match self.shards[shard] {
            Visit::Done => false,
            Visit::Due => true,
            Visit::Again => self.give_way <= now,
        }
    }

    pub(super) fn is_own(&self, shard: usize) -> bool {
        (self.own.0..self.own.1).contains(&shard)
    }

    /// A place shortly before the end of somebody else's part. Everybody goes through theirs in order, so
    /// that is where most is left.
    fn near_an_end(&self, chance: usize) -> usize {
        let part = self.own.1 - self.own.0;
        let others = (256 / part - 1).max(1);
        self.own.1 + (1 + chance % others) * part + 256 - part.div_ceil(8)
    }

    /// With fewer candidates than this it is time to look for more. What is our own keeps; what others
    /// are about to take is looked at when it is wanted.
    pub(super) fn low_water(&self, now: Duration) -> usize {
        match self.next_leg(0, now) {
            Some(leg) if !leg.stealing => LOW_WATER,
            _ => 1,
        }
    }

    /// Where to list next: on with a shard, then through our own part, then anywhere; or from the first
    /// shard on, if there is little.
    fn next_leg(&self, chance: usize, now: Duration) -> Option<Leg> {
        if let Some((shard, after)) = &self.partial {
            let first = usize::from(shard.number());
            let own = self.is_own(first);
            let stop = if own { self.own.1 } else { 256 };
            return Some(Leg { after: Some(after.clone()), first, stop, stealing: !own });
        }
        let mut own = self.own.0..self.own.1;
        if let Some(first) = own.find(|shard| !self.from_the_first && self.is_due(*shard, now)) {
            return Some(Leg { after: None, first, stop: self.own.1, stealing: false });
        }
        let from = if self.from_the_first { 0 } else { chance };
        let first = (0..256).map(|n| (n + from) % 256).find(|shard| self.is_due(*shard, now))?;
        Some(Leg { after: None, first, stop: 256, stealing: true })
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
        survey.sieve.clear();
        survey.from_the_first = survey.few;
        survey.met = false;
        survey.shards = [Visit::Done; 256];
        for shard in self.names().shards() {
            survey.shards[usize::from(shard.number())] = Visit::Due;
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
        if let Some(last) = survey.census {
            // Where nothing was found there is nothing to share out.
            if !survey.met || mono.saturating_sub(last) < survey.census_every {
                return Ok(());
            }
            survey.census_every = (survey.census_every * 2).min(CENSUS_EVERY.1);
        }
        survey.census = Some(mono);
        let now = self.now_for_onlookers().await;
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
        survey.workers = workers.len();
        Ok(())
    }

    /// Lists the next part of this round, unless others have found something meanwhile. Where shards are walked
    /// through there is nothing to list ahead.
    pub(super) async fn survey_on(&self) -> Result<Surveyed> {
        if self.strategy.finding == Finding::Shards {
            return Ok(Surveyed::All); // all was listed on the way
        }
        // One at a time: who comes second finds what the first has found.
        let _alone = self.surveying.lock().await;
        let (leg, round) = {
            let mut found = self.discovery.lock().await;
            let now = self.env.monotonic();
            if found.ready.len() >= found.survey.low_water(now) {
                return Ok(Surveyed::More);
            }
            if found.survey.in_round() {
                self.count_workers(&mut found.survey).await?;
            }
            // As long as nothing was found there is nobody to keep out of the way of.
            let survey = &found.survey;
            let chance = match survey.met {
                false => survey.own.1,
                true => survey.near_an_end(self.env.below(256)),
            };
            match survey.next_leg(chance, now) {
                Some(leg) => (leg, found.rounds),
                None if !found.ready.is_empty() => return Ok(Surveyed::More),
                None if survey.sieve.has_leased() => {
                    drop(found);
                    self.sift().await?;
                    return Ok(Surveyed::More);
                }
                None if survey.in_round() => return Ok(Surveyed::Contested(survey.give_way)),
                None => return Ok(Surveyed::All),
            }
        };
        let after = leg.after.clone().or_else(|| self.names().before_shard(leg.first));
        let page = self.tree.scan(layout::PENDING, after.as_deref(), PAGE).await?;
        let (met, resume) = pages::group(self.layout(), &page);
        // An empty page says the same at any time.
        let now = match met.is_empty() {
            true => self.now_for_onlookers().await,
            false => self.now().await?,
        };
        let mut found = self.discovery.lock().await;
        if found.rounds != round {
            return Ok(Surveyed::More); // it shows how things were before this round began
        }
        found.survey.met |= !met.is_empty();
        found.survey.few = page.end && met.len() <= FEW;
        if found.survey.from_the_first && !found.survey.few {
            // It has become much. Everybody has seen the same, and should do something else.
            found.survey.from_the_first = false;
            return Ok(Surveyed::More);
        }
        let (covered, kept) = self.choose_from_page(&mut found.survey, &leg, met, resume);
        tracing::debug!(?leg, covered, tasks = kept.len(), "listed");
        let Discovery { survey, ready, .. } = &mut *found;
        ready.extend(self.claimable(kept, now, survey));
        Ok(Surveyed::More)
    }

    /// Notes what a page has shown, and chooses from it.
    fn choose_from_page(
        &self,
        survey: &mut Survey,
        leg: &Leg,
        met: Vec<Met>,
        resume: Option<String>,
    ) -> (usize, Vec<Met>) {
        let shard_of = |met: &Met| usize::from(self.names().shard(&met.key).number());
        let (now, ended) = (self.env.monotonic(), resume.is_none());
        let mut kept: Vec<Met> = Vec::with_capacity(met.len());
        let (mut stealing, mut loot, mut last, mut beyond) = (leg.stealing, 0, None, None);
        // What this round has seen already is not looked at twice.
        let goes_on = |shard| leg.after.is_some() && shard == leg.first;
        let wanted: Vec<bool> =
            (0..256).map(|shard| goes_on(shard) || survey.is_due(shard, now)).collect();
        for met in met {
            let shard = shard_of(&met);
            if last != Some(shard) {
                // Whoever finds nothing of its own sees on the same page what others have.
                let own_is_over = shard >= leg.stop && !stealing;
                stealing |= own_is_over;
                if (own_is_over && loot > 0) || (stealing && loot >= LOOT) {
                    beyond = Some(shard);
                    break;
                }
            }
            last = Some(shard);
            if wanted[shard] {
                loot += usize::from(met.leases.is_empty());
                kept.push(met);
            }
        }
        // The last shard of a page may go on in the next; so may strangers, of which we know no shard.
        let last = last.unwrap_or(leg.first);
        survey.partial = match resume {
            Some(resume) if beyond.is_none() && wanted[last] => {
                self.names().shards().get(last).map(|shard| (*shard, resume))
            }
            _ => None,
        };
        let stop = beyond.unwrap_or(if ended { 256 } else { last + 1 });
        // A shard that is gone on with was taken off the list before: if it is on it, it is contested.
        for shard in (leg.first..stop).filter(|shard| wanted[*shard] && !goes_on(*shard)) {
            survey.shards[shard] = Visit::Done;
        }
        (stop.saturating_sub(leg.first), kept)
    }

    /// Somebody else was faster: they are at this shard, so its other tasks are left to them. Noted for
    /// whoever takes the next candidate; a claim under way must wait for nobody.
    pub(super) fn collided(&self, candidate: &Candidate) {
        // Where all tasks lie in one place there is nowhere else to go. A walk through shards is random anyway.
        if self.layout() == Layout::Sharded && self.strategy.finding == Finding::Pages {
            lock(&self.contested).push(self.names().shard(&candidate.key));
        }
    }

    /// Looks for more in the background, so that nobody has to wait for a listing.
    pub(super) fn refill(self: &Arc<Self>, found: &Discovery<T::Cursor>) {
        let now = self.env.monotonic();
        let low = found.survey.in_round() && found.ready.len() < found.survey.low_water(now);
        if low && self.surveying.try_lock().is_ok() && self.env.is_running() {
            let core = Arc::clone(self);
            self.env.spawn(async move {
                if let Err(error) = core.survey_on().await {
                    tracing::debug!(%error, "the next poll will list again");
                }
            });
        }
    }

    /// Leaves the shards that others are at to them for a moment.
    pub(super) fn avoid_contested(&self, found: &mut Discovery<T::Cursor>) {
        // A store that tells of changes is at hand (a test's): to look again at once costs nothing.
        let at_hand = self.tree.properties().notices_changes;
        let until = self.env.monotonic() + if at_hand { Duration::ZERO } else { GIVE_WAY };
        for shard in std::mem::take(&mut *lock(&self.contested)) {
            let before = found.ready.len();
            found.ready.retain(|other| self.names().shard(&other.key) != shard);
            if found.ready.len() < before {
                found.survey.is_contested(shard, until);
            }
        }
    }
}

#[cfg(test)]
mod tests;
