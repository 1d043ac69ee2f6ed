//! Finding tasks to claim without listing the whole queue.
//!
//! A *round* looks at every part of `pending/` once and may span many polls. What is found is kept
//! until it has been tried, so that a listing is paid for once and its tasks are claimed for the cost
//! of a claim. Where folders are listed one by one, this module walks the shards in random order, a
//! page at a time; where a request lists across folders, `survey` does.
//!
//! A shard of which everything rests is *quiet*: until the first of it wakes, it costs one `stat` a
//! round, however much is in it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::claim::trouble_pause;
use super::core::Core;
use super::known::Listed;
use super::schedule::Schedule;
use super::strategy::Finding;
use super::survey::Survey;
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout::{self, Names, Shard};
use crate::model::{Layout, TaskKey};
use crate::store::{EntryKind, Page, Stamp, Tree};

/// Names taken from one listing at a time.
const PAGE: usize = 1024;

/// However quiet a shard seems, it is listed this often: a store's times may deceive us.
const QUIET_AT_MOST: Duration = Duration::from_secs(60);

/// How often `queue.json` is read again though nothing tells that it has changed.
const SETTINGS_EVERY: Duration = Duration::from_secs(300);

/// Notes kept for a poll that may never come.
const MAX_NOTES: usize = 10_000;

/// A task worth trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) key: TaskKey,
    /// The attempts made so far, as far as a listing has shown any.
    pub(super) leases: Vec<u32>,
    /// The last of them.
    pub(super) listed: Option<Listed>,
    /// The listing showed leases, and no task.
    pub(super) without_task: bool,
    /// Wanted in order to be moved elsewhere, whatever it waits for.
    pub(super) moving: bool,
}

impl Candidate {
    /// A task of which only the name is known.
    pub(super) fn new(key: TaskKey) -> Self {
        Self { key, leases: Vec::new(), listed: None, without_task: false, moving: false }
    }
}

/// What this process knows about where tasks are. All times are monotonic.
pub(super) struct Discovery<C> {
    layout: Layout,
    pub(super) ready: VecDeque<Candidate>,
    /// How many rounds have begun.
    pub(super) rounds: u64,
    route: Vec<Shard>,
    partial: Option<Listing<C>>,
    quiet: BTreeMap<Shard, Quiet>,
    pub(super) survey: Survey,
    pub(super) schedule: Schedule,
    root_stamp: Option<Stamp>,
    /// Tells the last unlock from any other, once it was looked for.
    unlocked: Option<Option<u64>>,
    /// Something was unlocked that may have been passed over.
    pub(super) news: bool,
    /// The root as it was when `queue.json` was last read, and when that was.
    settings_read: Option<(Option<Stamp>, Duration)>,
    /// When the root and `scheduled/` were last looked at.
    pub(super) kept_up: Option<Duration>,
    pub(super) paused: bool,
}

/// A shard whose listing is under way.
struct Listing<C> {
    shard: Shard,
    stamp: Option<Stamp>,
    /// Nothing of it was listed yet.
    begins: bool,
    next: Option<C>,
    /// When the first of what was passed over wakes; nothing once there was something to claim.
    wakes: Option<Duration>,
}

impl<C> Listing<C> {
    /// This page is all that there is of it, and shows nothing.
    fn is_empty(&self, page: &Page<C>) -> bool {
        self.begins && page.entries.is_empty() && page.next.is_none()
    }
}

#[derive(Clone, Copy)]
struct Quiet {
    stamp: Stamp,
    until: Duration,
    /// When the first of what rests there wakes, if anything does.
    wakes: Option<Duration>,
}

/// What other verbs learn about a task while a poll may be under way.
pub(super) enum Note {
    /// It is no more.
    Gone(TaskKey),
    /// It can be claimed; this was its last attempt.
    Wakes(TaskKey, u32),
    /// It can be claimed from this monotonic time on.
    Rests(TaskKey, Duration),
    /// Somebody here has paused the queue, or the like.
    Root,
    /// Too much has happened to note it singly.
    Everything,
}

impl<C> Discovery<C> {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            ready: VecDeque::new(),
            rounds: 0,
            route: Vec::new(),
            partial: None,
            quiet: BTreeMap::new(),
            survey: Survey::default(),
            schedule: Schedule::default(),
            root_stamp: None,
            unlocked: None,
            news: false,
            settings_read: None,
            kept_up: None,
            paused: false,
        }
    }

    /// A round is under way.
    pub(super) fn in_round(&self) -> bool {
        !self.ready.is_empty()
            || !self.route.is_empty()
            || self.partial.is_some()
            || self.survey.in_round()
    }

    /// A shard must not stay quiet beyond the time at which this task wakes.
    fn wakes(&mut self, key: &TaskKey, at: Duration) {
        let shard = Names(self.layout).shard(key);
        if self.quiet.get(&shard).is_some_and(|quiet| quiet.until > at) {
            self.quiet.remove(&shard);
        }
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

    pub(super) fn apply_notes(&self, found: &mut Discovery<T::Cursor>) {
        let notes = std::mem::take(&mut *lock(&self.notes));
        let mut known = lock(&self.known);
        for note in notes {
            match note {
                Note::Gone(key) => match self.strategy.finding {
                    Finding::Shards => known.forget(&key),
                    Finding::Pages => known.is_gone(&key, self.env.monotonic()),
                },
                Note::Wakes(key, attempt) => {
                    known.forget(&key);
                    found.wakes(&key, Duration::ZERO);
                    if self.strategy.finding == Finding::Pages {
                        let leases = vec![attempt];
                        found.ready.push_front(Candidate { leases, ..Candidate::new(key) });
                    }
                }
                Note::Rests(key, until) => {
                    known.forget(&key);
                    known.rest(&key, until);
                    found.wakes(&key, until);
                }
                Note::Root => found.kept_up = None,
                Note::Everything => {
                    known.wake_all(self.env.monotonic());
                    found.quiet.clear();
                }
            }
        }
    }

    /// Forgets what rests if an operator has unlocked something, and notes whether the queue is
    /// paused. Both change the root folder; so do a new `queue.json` and the first delayed task. Answers
    /// whether it did.
    pub(super) async fn look_at_root(
        &self,
        found: &mut Discovery<T::Cursor>,
        now: Timestamp,
    ) -> Result<bool> {
        let stamp = self.tree.stamp(".", now).await?;
        let changed = stamp.is_none() || stamp != found.root_stamp;
        // It was read when the queue was opened. A stamp of `None` may hide a change until the next look.
        let now = self.env.monotonic();
        let (read, read_at) = *found.settings_read.get_or_insert((stamp, now));
        let may_have_changed = stamp.is_some() && stamp != read;
        if may_have_changed || now.saturating_sub(read_at) >= SETTINGS_EVERY {
            self.check_compatible().await?;
            found.settings_read = Some((stamp, now));
        }
        if changed {
            let marks = [layout::PAUSED, layout::UNLOCKED].map(|path| self.version_of(path));
            let [paused, unlocked] = marks;
            let (paused, unlocked) = futures::join!(paused, unlocked);
            found.paused = paused?.is_some();
            let unlocked = unlocked?;
            lock(&self.recall).get_or_insert(unlocked);
            // What the first look finds is no news.
            if found.unlocked.replace(unlocked).is_some_and(|before| before != unlocked) {
                found.news = true;
                lock(&self.known).wake_all(self.env.monotonic());
                found.quiet.clear();
            }
            found.root_stamp = stamp;
        }
        Ok(changed)
    }

    /// Stops a worker once the queue requires what this version does not know. All else in
    /// `queue.json` counts as it was when the queue was opened.
    async fn check_compatible(&self) -> Result<()> {
        let stored = match self.tree.read(layout::SETTINGS).await {
            Err(error) if self.is_local(&error).await => {
                tracing::warn!(%error, "queue.json cannot be read now");
                return Ok(());
            }
            stored => stored?,
        };
        match stored.map_or(Ok(()), |stored| format::check_compatible(&stored.bytes)) {
            Err(error) if error.kind() == ErrorKind::Incompatible => {
                Err(error.context(&self.tree.properties().address))
            }
            Err(error) => {
                tracing::warn!(%error, "queue.json cannot be read now");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Starts a new round over all that there is.
    pub(super) async fn begin_round(&self, found: &mut Discovery<T::Cursor>) -> Result<()> {
        self.sweep_held();
        lock(&self.known).begin_round(self.env.monotonic());
        match self.strategy.finding {
            Finding::Shards => self.begin_walk(found).await?,
            Finding::Pages => self.begin_survey(found).await?,
        }
        found.rounds += 1;
        Ok(())
    }

    async fn begin_walk(&self, found: &mut Discovery<T::Cursor>) -> Result<()> {
        found.partial = None;
        found.route = match self.layout() {
            Layout::Flat => Names(Layout::Flat).shards(),
            Layout::Sharded => {
                let mut shards = Vec::new();
                let mut cursor = None;
                loop {
                    let page = self.tree.list_folder(layout::PENDING, cursor, PAGE).await?;
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

    /// The next task worth trying in this round; `None` when nothing is left of what was found. Whether there is
    /// more [`Core::survey_on`] says.
    pub(super) async fn next_candidate(
        &self,
        found: &mut Discovery<T::Cursor>,
    ) -> Result<Option<Candidate>> {
        match self.strategy.finding {
            Finding::Shards => {
                let now = self.now().await?;
                self.walk_on(found, now).await
            }
            Finding::Pages => match found.ready.is_empty() {
                true => Ok(None),
                false => {
                    let turn = found.survey.sieve.take_turn().filter(|one| self.is_awake(one));
                    Ok(turn.or_else(|| self.next_ready(found)))
                }
            },
        }
    }

    /// The next task worth trying, from the next shard that has one.
    async fn walk_on(
        &self,
        found: &mut Discovery<T::Cursor>,
        store_now: Timestamp,
    ) -> Result<Option<Candidate>> {
        loop {
            if let Some(candidate) = self.next_ready(found) {
                return Ok(Some(candidate));
            }
            let mut listing = match found.partial.take() {
                Some(listing) => listing,
                None => match found.route.pop() {
                    None => return Ok(None),
                    Some(shard) => match self.visit(found, shard, store_now).await {
                        Ok(Some(listing)) => listing,
                        Ok(None) => continue,
                        Err(error) => {
                            self.leave_shard(error).await?;
                            continue;
                        }
                    },
                },
            };
            let dir = self.names().shard_dir(layout::PENDING, listing.shard);
            match self.tree.list_folder(&dir, listing.next.take(), PAGE).await {
                Ok(page) => {
                    if listing.is_empty(&page) {
                        // It may have been large once, and slow to list ever since.
                        let _ = self.tree.prune(&dir).await;
                    }
                    self.note_page(found, listing, page);
                }
                Err(error) => self.leave_shard(error).await?,
            }
        }
    }

    /// One shard that cannot be read must not keep the others from being done.
    async fn leave_shard(&self, error: Error) -> Result<()> {
        if self.layout() == Layout::Flat || !self.is_local(&error).await {
            return Err(error);
        }
        tracing::warn!(%error, "shard left alone");
        // There may be something in it: nobody should think that this was all.
        lock(&self.known).wakes_at(self.env.monotonic() + trouble_pause(&error));
        Ok(())
    }

    /// The next task that was found and does not rest.
    fn next_ready(&self, found: &mut Discovery<T::Cursor>) -> Option<Candidate> {
        self.avoid_contested(found);
        while let Some(candidate) = found.ready.pop_front() {
            if self.is_awake(&candidate) {
                return Some(candidate);
            }
        }
        None
    }

    /// Since it was listed it has neither come to its end, nor been found to rest.
    fn is_awake(&self, candidate: &Candidate) -> bool {
        let (mut known, now) = (lock(&self.known), self.env.monotonic());
        !known.is_over(&candidate.key) && known.resting_until(&candidate.key, now).is_none()
    }

    /// Starts on a shard, unless it is quiet.
    async fn visit(
        &self,
        found: &mut Discovery<T::Cursor>,
        shard: Shard,
        store_now: Timestamp,
    ) -> Result<Option<Listing<T::Cursor>>> {
        let dir = self.names().shard_dir(layout::PENDING, shard);
        // Taken before the listing, so that what arrives during it changes the next one.
        let stamp = self.tree.stamp(&dir, store_now).await?;
        if let Some(quiet) = found.quiet.get(&shard).copied() {
            if stamp == Some(quiet.stamp) && self.env.monotonic() < quiet.until {
                if let Some(wakes) = quiet.wakes {
                    lock(&self.known).wakes_at(wakes);
                }
                return Ok(None);
            }
            found.quiet.remove(&shard);
        }
        let (next, wakes) = (None, Some(Duration::MAX));
        Ok(Some(Listing { shard, stamp, begins: true, next, wakes }))
    }

    fn note_page(
        &self,
        found: &mut Discovery<T::Cursor>,
        mut listing: Listing<T::Cursor>,
        page: Page<T::Cursor>,
    ) {
        let now = self.env.monotonic();
        let mut known = lock(&self.known);
        for entry in page.entries {
            let key = self.names().parse_task_dir(listing.shard, &entry.name);
            let Some(key) = key.filter(|_| entry.kind == EntryKind::Folder) else {
                tracing::warn!(name = entry.name, "not a task in pending/");
                continue;
            };
            match known.resting_until(&key, now) {
                Some(until) => listing.wakes = listing.wakes.map(|wakes| wakes.min(until)),
                None => {
                    listing.wakes = None;
                    found.ready.push_back(Candidate::new(key));
                }
            }
        }
        self.env.shuffle(found.ready.make_contiguous());
        (listing.next, listing.begins) = (page.next, false);
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
