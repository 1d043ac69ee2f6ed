//! What this process remembers of tasks that cannot be claimed yet.
//!
//! Such a task (in backoff, or somebody else's) *rests*: it is remembered until it is worth another
//! look, in some 20 bytes. It is a cache: to lose it costs looks, never correctness. All times are
//! monotonic ones.

use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::judge::Seen;
use super::pages::MetLease;
use crate::model::TaskKey;
use crate::planted::{self, Planted};

/// The most tasks remembered as resting: 36 MB. What is beyond it is looked at in every round.
const MAX_RESTING: usize = 1_800_000;

/// The most leases watched for a change at a time: about 6 MB. Any more are judged by the store's clock alone.
const MAX_WATCHED: usize = 100_000;

/// So long after it would have run out, a lease that nobody has asked for since is not watched any more.
const WATCHED_BEYOND: Duration = Duration::from_secs(60);

/// How often a task that somebody else has is looked at again, for it may be given back early: each
/// second, or less often when there are many, so that it costs a thousand looks a second at the most.
const LIVE_RECHECK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How often what is remembered of many tasks is swept.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// For how long a task that is being tried is left alone, should nothing come of it.
const WHILE_TRIED: Duration = Duration::from_secs(30);

/// For how long a listing may show what is no more.
const LISTED_FOR: Duration = Duration::from_secs(60);

/// For how long after everything was woken no lease is passed over for its youth.
const WIDE_AWAKE: Duration = Duration::from_secs(15);

/// The most tasks of which it is remembered that they are no more.
const MAX_OVER: usize = 500_000;

/// What is known by fingerprint. A tree takes more memory, and there may be millions of them. This hasher has no
/// random key, so that the same run has the same order.
#[allow(clippy::disallowed_types, reason = "its hasher has no random key")]
type ByFingerprint<V> = std::collections::HashMap<u64, V, BuildHasherDefault<DefaultHasher>>;

/// Tasks that cannot be claimed yet.
pub(super) struct Known {
    resting: ByFingerprint<Centis>,
    watched: ByFingerprint<Watched>,
    /// When those were last dropped that nobody asks for.
    watch_swept: Duration,
    /// The earliest time at which anything that was passed over in this round is worth another look.
    soonest: Option<Duration>,
    /// Tasks that are no more, and since when we know.
    over: ByFingerprint<Duration>,
    /// What [`Centis`] count from.
    epoch: Duration,
    /// So many remembered tasks are worth a sweep.
    sweep_at: usize,
    swept: Duration,
    /// When everything was last woken.
    all_woke: Duration,
}

/// A version of a lease file, since when it has been there, and until when it is worth watching.
struct Watched {
    version: u64,
    since: Duration,
    until: Duration,
}

/// A time in hundredths of a second, rounded up: enough for 497 days.
#[derive(Clone, Copy)]
struct Centis(u32);

impl Centis {
    fn since(epoch: Duration, time: Duration) -> Self {
        let centis = time.saturating_sub(epoch).as_millis().div_ceil(10);
        Self(u32::try_from(centis).unwrap_or(u32::MAX))
    }

    fn after(self, epoch: Duration) -> Duration {
        epoch + Duration::from_millis(u64::from(self.0) * 10)
    }
}

fn fingerprint(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// A task's leases as a listing showed them: which attempts, and which versions of them. The last may be
/// withdrawn, so that one before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed(u64);

impl Listed {
    pub(super) fn new(key: &TaskKey, leases: &[MetLease]) -> Self {
        let each =
            |lease: &MetLease| (lease.attempt, lease.modified.as_nanosecond(), lease.version);
        Self(fingerprint(&(key, leases.iter().map(each).collect::<Vec<_>>())))
    }
}

impl Known {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            resting: ByFingerprint::default(),
            watched: ByFingerprint::default(),
            watch_swept: now,
            soonest: None,
            over: ByFingerprint::default(),
            epoch: now,
            sweep_at: 1000,
            swept: now,
            all_woke: Duration::ZERO,
        }
    }

    /// Something known wakes at this time.
    pub(super) fn wakes_at(&mut self, time: Duration) {
        self.soonest = Some(self.soonest.map_or(time, |soonest| soonest.min(time)));
    }

    /// When the first of what was passed over in this round wakes.
    pub(super) fn soonest(&self) -> Option<Duration> {
        self.soonest
    }

    /// A round begins: what is passed over counts from here on. Drops what was remembered of tasks
    /// that others have finished since, for nobody will ask for it.
    pub(super) fn begin_round(&mut self, now: Duration) {
        self.soonest = None;
        self.over.retain(|_, since| now.saturating_sub(*since) < LISTED_FOR);
        if now.saturating_sub(self.watch_swept) >= SWEEP_EVERY {
            self.watch_swept = now;
            self.watched.retain(|_, watched| watched.until > now);
        }
        let a_while = now.saturating_sub(self.swept) >= SWEEP_EVERY && self.resting.len() >= 1000;
        if a_while || self.resting.len() >= self.sweep_at {
            self.swept = now;
            let epoch = self.epoch;
            self.resting.retain(|_, until| until.after(epoch) > now);
            self.sweep_at = (self.resting.len() * 2).max(1000);
        }
    }

    /// Not to be tried before `until`.
    pub(super) fn rest(&mut self, key: &TaskKey, until: Duration) {
        self.remember(fingerprint(key), until);
        self.wakes_at(until);
    }

    fn remember(&mut self, task: u64, until: Duration) {
        if self.resting.len() < MAX_RESTING && !planted::is(Planted::NothingRests) {
            self.resting.insert(task, Centis::since(self.epoch, until));
        }
    }

    /// Is being tried: a listing that is under way at the same time must not bring it up again. What
    /// comes of it replaces this.
    pub(super) fn is_tried(&mut self, key: &TaskKey, now: Duration) {
        self.remember(fingerprint(key), now + WHILE_TRIED);
    }

    /// Somebody has it until about `until`.
    pub(super) fn rest_while_held(&mut self, key: &TaskKey, until: Duration, now: Duration) {
        let (often, seldom) = LIVE_RECHECK;
        let many = Duration::from_millis(self.watched.len() as u64);
        let recheck = now + often.max(many).min(seldom);
        // One that has run out by its own word is still held while the clock is not to be trusted.
        self.rest(key, if until > now { until.min(recheck) } else { recheck });
    }

    /// Not to be tried before `until`, unless the listing shows another lease than this by then.
    pub(super) fn rest_as_listed(
        &mut self,
        key: &TaskKey,
        listed: &Listed,
        until: Duration,
        now: Duration,
    ) {
        self.resting.remove(&fingerprint(key));
        // One that has run out by its own word is still held while the clock is not to be trusted.
        let until = until.max(now + LIVE_RECHECK.0);
        self.remember(listed.0, until);
        self.wakes_at(until);
    }

    /// Until when a task with this lease rests, if it does.
    pub(super) fn resting_as_listed(&mut self, listed: &Listed, now: Duration) -> Option<Duration> {
        self.resting(listed.0, now)
    }

    /// Until when a task rests, if it does.
    pub(super) fn resting_until(&mut self, key: &TaskKey, now: Duration) -> Option<Duration> {
        self.resting(fingerprint(key), now)
    }

    /// A task has rested, and is worth a look however young its lease; asked before
    /// [`Known::resting_until`], which forgets it.
    pub(super) fn has_rested(&self, key: &TaskKey, now: Duration) -> bool {
        let until = self.resting.get(&fingerprint(key));
        now < self.all_woke + WIDE_AWAKE
            || until.is_some_and(|until| until.after(self.epoch) <= now)
    }

    fn resting(&mut self, fingerprint: u64, now: Duration) -> Option<Duration> {
        let until = self.resting.get(&fingerprint)?.after(self.epoch);
        if until > now {
            self.wakes_at(until);
            return Some(until);
        }
        self.resting.remove(&fingerprint);
        None
    }

    /// Not for those who understand only this range of schemas, until `until`.
    pub(super) fn rest_for_schema(&mut self, key: &TaskKey, schema: (i64, i64), until: Duration) {
        self.remember(fingerprint(&(key, schema)), until);
    }

    /// Whether a task is known to be of another schema.
    pub(super) fn rests_for_schema(
        &self,
        key: &TaskKey,
        schema: (i64, i64),
        now: Duration,
    ) -> bool {
        let until = self.resting.get(&fingerprint(&(key, schema)));
        until.is_some_and(|until| until.after(self.epoch) > now)
    }

    /// Is no more, though a listing may show it for a while.
    pub(super) fn is_gone(&mut self, key: &TaskKey, now: Duration) {
        self.forget(key);
        if self.over.len() >= MAX_OVER {
            self.over.clear(); // to lose it costs looks
        }
        self.over.insert(fingerprint(key), now);
    }

    /// Whether we know that a task is no more.
    pub(super) fn is_over(&self, key: &TaskKey) -> bool {
        self.over.contains_key(&fingerprint(key))
    }

    /// Not worth remembering.
    pub(super) fn forget(&mut self, key: &TaskKey) {
        let fingerprint = fingerprint(key);
        self.resting.remove(&fingerprint);
        self.watched.remove(&fingerprint);
    }

    /// Everything is worth another look.
    pub(super) fn wake_all(&mut self, now: Duration) {
        self.resting.clear();
        self.all_woke = now;
    }

    /// For how long this process has seen this very version of a lease file, of a lease of this length. Where there
    /// are too many, those that are being watched go on being watched, so that some of them are found to be stale.
    pub(super) fn watched_for(
        &mut self,
        key: &TaskKey,
        current: &Seen,
        length: Duration,
        now: Duration,
    ) -> Duration {
        let (key, version) = (fingerprint(key), current.version);
        let until = now.saturating_add(length).saturating_add(WATCHED_BEYOND);
        let watched = self.watched.get(&key).filter(|watched| watched.version == version);
        let since = watched.map_or(now, |watched| watched.since);
        if self.watched.len() < MAX_WATCHED || self.watched.contains_key(&key) {
            self.watched.insert(key, Watched { version, since, until });
        }
        now.saturating_sub(since)
    }

    /// How many tasks are remembered.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.resting.len(), self.watched.len())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::model::TaskId;
    use crate::store::Stored;

    const LENGTH: Duration = Duration::from_secs(600);

    fn key(n: usize) -> TaskKey {
        TaskKey::new(TaskId::new(format!("t{n}")).unwrap(), 1)
    }

    fn lease() -> Seen {
        Seen::new(1, &Stored { bytes: Vec::new(), modified: Timestamp::UNIX_EPOCH })
    }

    /// The store's clock may stand still, so that nothing else tells that they are stale.
    #[test]
    fn more_leases_than_can_be_watched_do_not_keep_any_from_being_watched() {
        let (mut known, lease) = (Known::new(Duration::ZERO), lease());
        let mut look = |n, now| {
            known.begin_round(now);
            known.watched_for(&key(n), &lease, LENGTH, now)
        };
        let minutes = |n: u32| Duration::from_secs(60) * n;
        for n in 0..MAX_WATCHED + 1000 {
            assert_eq!(look(n, Duration::ZERO), Duration::ZERO);
        }
        assert_eq!(look(1, minutes(9)), minutes(9));
        assert_eq!(look(MAX_WATCHED + 1, minutes(9)), Duration::ZERO, "there was no room");
        // Nobody has asked for the others for long: their tasks are gone.
        assert_eq!(look(MAX_WATCHED + 1, minutes(12)), Duration::ZERO);
        assert_eq!(look(MAX_WATCHED + 1, minutes(15)), minutes(3));
        assert_eq!(look(1, minutes(15)), minutes(15));
        assert_eq!(known.sizes().1, 2);
    }
}
