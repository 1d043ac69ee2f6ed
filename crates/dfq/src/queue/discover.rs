//! Finding tasks to claim without listing the whole queue.
//!
//! A *round* visits every shard once, in random order, a page at a time; it may span many polls. What
//! a page holds is shuffled and kept until it has been tried, so that the listing of a large shard is
//! paid for once and its tasks are claimed for the cost of a claim.
//!
//! What cannot be claimed yet (in backoff, or somebody else's) *rests*: it is remembered until it is
//! worth another look, in some 20 bytes. A shard of which everything rests is *quiet*: until the first of
//! it wakes, it costs one `stat` a round, however much is in it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;

use super::core::Core;
use super::judge::Seen;
use super::schedule::Schedule;
use crate::clock::lock;
use crate::error::{ErrorKind, Result};
use crate::layout::{self, Shard};
use crate::model::{Layout, TaskKey};
use crate::store::{EntryKind, Page, Tree};

/// Names taken from one listing at a time.
const PAGE: usize = 1024;

/// The most tasks remembered as resting: 36 MB. What is beyond it is looked at in every round.
const MAX_RESTING: usize = 1_800_000;

/// The most leases watched for a change at a time.
const MAX_WATCHED: usize = 10_000;

/// How often a task that somebody else has is looked at again, for it may be given back early: each
/// second, or less often when there are many, so that it costs a thousand looks a second at the most.
const LIVE_RECHECK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// However quiet a shard seems, it is listed this often: a store's times may deceive us.
const QUIET_AT_MOST: Duration = Duration::from_secs(60);

/// Notes kept for a poll that may never come.
const MAX_NOTES: usize = 10_000;

/// What this process knows about where tasks are. All times are monotonic.
pub(super) struct Discovery<C> {
    layout: Layout,
    ready: Vec<TaskKey>,
    route: Vec<Shard>,
    partial: Option<Listing<C>>,
    quiet: HashMap<Shard, Quiet>,
    resting: HashMap<u64, Centis>,
    watched: HashMap<u64, (u64, Duration)>,
    /// The earliest time at which anything that was passed over is worth another look.
    pub(super) soonest: Option<Duration>,
    pub(super) schedule: Schedule,
    root_stamp: Option<u64>,
    /// Tells the last unlock from any other.
    unlocked: Option<u64>,
    /// What [`Centis`] count from.
    epoch: Duration,
    /// So many remembered tasks are worth a sweep.
    sweep_at: usize,
    pub(super) paused: bool,
}

/// A shard whose listing is under way.
struct Listing<C> {
    shard: Shard,
    stamp: Option<u64>,
    next: Option<C>,
    /// When the first of what was passed over wakes; nothing once there was something to claim.
    wakes: Option<Duration>,
}

#[derive(Clone, Copy)]
struct Quiet {
    stamp: u64,
    until: Duration,
    /// When the first of what rests there wakes, if anything does.
    wakes: Option<Duration>,
}

/// What other verbs learn about a task while a poll may be under way.
pub(super) enum Note {
    /// It is no more.
    Gone(TaskKey),
    /// It can be claimed.
    Wakes(TaskKey),
    /// It can be claimed from this monotonic time on.
    Rests(TaskKey, Duration),
    /// Too much has happened to note it singly.
    Everything,
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

fn earlier(a: Option<Duration>, b: Duration) -> Option<Duration> {
    Some(a.map_or(b, |a| a.min(b)))
}

impl<C> Discovery<C> {
    pub(super) fn new(layout: Layout, now: Duration) -> Self {
        Self {
            layout,
            epoch: now,
            sweep_at: 1000,
            unlocked: None,
            ready: Vec::new(),
            route: Vec::new(),
            partial: None,
            quiet: HashMap::new(),
            resting: HashMap::new(),
            watched: HashMap::new(),
            soonest: None,
            schedule: Schedule::default(),
            root_stamp: None,
            paused: false,
        }
    }

    /// A round is under way.
    pub(super) fn in_round(&self) -> bool {
        !self.ready.is_empty() || !self.route.is_empty() || self.partial.is_some()
    }

    /// Not to be tried before `until`.
    pub(super) fn rest(&mut self, key: &TaskKey, until: Duration) {
        if self.resting.len() < MAX_RESTING {
            self.resting.insert(fingerprint(key), Centis::since(self.epoch, until));
        }
        self.soonest = earlier(self.soonest, until);
    }

    /// Somebody has it until about `until`.
    pub(super) fn rest_while_held(&mut self, key: &TaskKey, until: Duration, now: Duration) {
        let (often, seldom) = LIVE_RECHECK;
        let recheck = now + often.max(Duration::from_millis(self.watched.len() as u64)).min(seldom);
        // One that has run out by its own word is still held while the clock is not to be trusted.
        self.rest(key, if until > now { until.min(recheck) } else { recheck });
    }

    /// Drops what was remembered of tasks that others have finished since: nobody will ask for it.
    fn sweep(&mut self, now: Duration) {
        if self.resting.len() >= self.sweep_at {
            let epoch = self.epoch;
            self.resting.retain(|_, until| until.after(epoch) > now);
            self.watched.retain(|task, _| self.resting.contains_key(task));
            self.sweep_at = (self.resting.len() * 2).max(1000);
        }
    }

    /// Is no more.
    pub(super) fn forget(&mut self, key: &TaskKey) {
        let fingerprint = fingerprint(key);
        self.resting.remove(&fingerprint);
        self.watched.remove(&fingerprint);
    }

    fn take_note(&mut self, note: Note) {
        let (Note::Gone(key) | Note::Wakes(key) | Note::Rests(key, _)) = &note else {
            self.resting.clear();
            self.quiet.clear();
            return;
        };
        self.forget(key);
        let wakes = match &note {
            Note::Wakes(_) => Some(Duration::ZERO),
            Note::Rests(_, until) => Some(*until),
            _ => None,
        };
        // Its shard may be quiet for longer than that.
        let shard = layout::shard(self.layout, key);
        if wakes
            .is_some_and(|wakes| self.quiet.get(&shard).is_some_and(|quiet| quiet.until > wakes))
        {
            self.quiet.remove(&shard);
        }
        if let Note::Rests(key, until) = &note {
            self.rest(key, *until);
        }
    }

    /// For how long this process has seen this very version of a lease file.
    pub(super) fn watched_for(&mut self, key: &TaskKey, current: &Seen, now: Duration) -> Duration {
        if self.watched.len() >= MAX_WATCHED {
            self.watched.clear();
        }
        let seen = self.watched.entry(fingerprint(key)).or_insert((current.version, now));
        if seen.0 != current.version {
            *seen = (current.version, now);
        }
        now.saturating_sub(seen.1)
    }

    /// The same for those who do not understand its schema.
    pub(super) fn rest_for_schema(&mut self, key: &TaskKey, schema: (i64, i64), until: Duration) {
        if self.resting.len() < MAX_RESTING {
            let fingerprint = fingerprint(&(key, schema));
            self.resting.insert(fingerprint, Centis::since(self.epoch, until));
        }
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

    fn resting_until(&mut self, key: &TaskKey, now: Duration) -> Option<Duration> {
        let fingerprint = fingerprint(key);
        let until = self.resting.get(&fingerprint)?.after(self.epoch);
        if until > now {
            return Some(until);
        }
        self.resting.remove(&fingerprint);
        None
    }
}

impl<T: Tree> Core<T> {
    /// Leaves word for the next poll, without waiting for one under way.
    pub(super) fn note(&self, note: Note) {
        let mut notes = lock(&self.notes);
        if notes.len() >= MAX_NOTES {
            notes.clear();
            notes.push(Note::Everything);
        }
        notes.push(note);
    }

    pub(super) fn take_notes(&self, found: &mut Discovery<T::Cursor>) {
        for note in std::mem::take(&mut *lock(&self.notes)) {
            found.take_note(note);
        }
    }

    /// Forgets what rests if an operator has unlocked something, and notes whether the queue is
    /// paused. Both change the root folder; so does the first delayed task. Answers whether it did.
    pub(super) async fn look_at_root(
        &self,
        found: &mut Discovery<T::Cursor>,
        now: Timestamp,
    ) -> Result<bool> {
        let stamp = self.tree.stamp(".", now).await?;
        let changed = stamp.is_none() || stamp != found.root_stamp;
        if changed {
            found.paused = self.tree.read(layout::PAUSED).await?.is_some();
            let unlocked = self.tree.read(layout::UNLOCKED).await?;
            let unlocked = unlocked.map(|stored| stored.version());
            if unlocked != found.unlocked {
                found.unlocked = unlocked;
                found.resting.clear();
                found.quiet.clear();
            }
            found.root_stamp = stamp;
        }
        Ok(changed)
    }

    /// Starts a new round over all shards that there are.
    pub(super) async fn begin_round(&self, found: &mut Discovery<T::Cursor>) -> Result<()> {
        self.sweep_held();
        found.sweep(self.env.monotonic());
        found.soonest = None;
        found.partial = None;
        found.route = match self.layout() {
            Layout::Flat => layout::shards(Layout::Flat),
            Layout::Sharded => {
                let mut shards = Vec::new();
                let mut cursor = None;
                loop {
                    let page = self.tree.list(layout::PENDING, cursor, PAGE).await?;
                    for entry in page.entries {
                        match (Shard::parse(&entry.name), entry.kind) {
                            (Some(shard), EntryKind::Folder) => shards.push(shard),
                            _ => tracing::warn!(name = entry.name, "not a shard in pending/"),
                        }
                    }
                    cursor = page.next;
                    if cursor.is_none() {
                        break shards;
                    }
                }
            }
        };
        self.env.shuffle(&mut found.route);
        Ok(())
    }

    /// The next task worth trying in this round; `None` when the round is over.
    pub(super) async fn next_candidate(
        &self,
        found: &mut Discovery<T::Cursor>,
        store_now: Timestamp,
    ) -> Result<Option<TaskKey>> {
        loop {
            let now = self.env.monotonic();
            while let Some(key) = found.ready.pop() {
                match found.resting_until(&key, now) {
                    None => return Ok(Some(key)),
                    Some(until) => found.soonest = earlier(found.soonest, until),
                }
            }
            let mut listing = match found.partial.take() {
                Some(listing) => listing,
                None => match found.route.pop() {
                    None => return Ok(None),
                    Some(shard) => match self.visit(found, shard, store_now).await? {
                        Some(listing) => listing,
                        None => continue,
                    },
                },
            };
            let dir = layout::shard_dir(self.layout(), layout::PENDING, listing.shard);
            match self.tree.list(&dir, listing.next.take(), PAGE).await {
                Ok(page) => self.take_page(found, listing, page),
                // One shard that cannot be read must not keep the others from being done.
                Err(error)
                    if self.layout() == Layout::Sharded
                        && matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Denied) =>
                {
                    tracing::warn!(%error, "shard left alone");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts on a shard, unless it is quiet.
    async fn visit(
        &self,
        found: &mut Discovery<T::Cursor>,
        shard: Shard,
        store_now: Timestamp,
    ) -> Result<Option<Listing<T::Cursor>>> {
        let dir = layout::shard_dir(self.layout(), layout::PENDING, shard);
        // Taken before the listing, so that what arrives during it changes the next one.
        let stamp = self.tree.stamp(&dir, store_now).await?;
        if let Some(quiet) = found.quiet.get(&shard).copied() {
            if stamp == Some(quiet.stamp) && self.env.monotonic() < quiet.until {
                if let Some(wakes) = quiet.wakes {
                    found.soonest = earlier(found.soonest, wakes);
                }
                return Ok(None);
            }
            found.quiet.remove(&shard);
        }
        let (next, wakes) = (None, Some(Duration::MAX));
        Ok(Some(Listing { shard, stamp, next, wakes }))
    }

    fn take_page(
        &self,
        found: &mut Discovery<T::Cursor>,
        mut listing: Listing<T::Cursor>,
        page: Page<T::Cursor>,
    ) {
        let now = self.env.monotonic();
        for entry in page.entries {
            let key = layout::parse_task_dir(self.layout(), listing.shard, &entry.name);
            let Some(key) = key.filter(|_| entry.kind == EntryKind::Folder) else {
                tracing::warn!(name = entry.name, "not a task in pending/");
                continue;
            };
            match found.resting_until(&key, now) {
                Some(until) => {
                    found.soonest = earlier(found.soonest, until);
                    listing.wakes = listing.wakes.map(|wakes| wakes.min(until));
                }
                None => {
                    listing.wakes = None;
                    found.ready.push(key);
                }
            }
        }
        self.env.shuffle(&mut found.ready);
        listing.next = page.next;
        if listing.next.is_some() {
            found.partial = Some(listing);
        } else if let (Some(until), Some(stamp)) = (listing.wakes, listing.stamp) {
            let wakes = Some(until).filter(|until| *until != Duration::MAX);
            let until = until.min(now + QUIET_AT_MOST);
            found.quiet.insert(listing.shard, Quiet { stamp, until, wakes });
        }
    }
}

#[cfg(test)]
mod tests;
