//! One pass: lists both places, and has each id merged that has changed. Or only some ids, of which it is known that
//! they have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Side;
use super::hub::check_settings;
use super::look::{self, Shown};
use super::memory::{Memory, Print, print_of, print_of_path};
use super::node::{Identity, Neighbours, SILENT_PERIODS};
use crate::error::{Error, Result};
use crate::layout;
use crate::model::{Generation, TaskId, TaskKey};
use crate::queue::OUTCOMES;
use crate::queue::claim::signed;
use crate::queue::core::{Core, TreeQueue};
use crate::store::{Entry, Stamp, Tree};

/// How often records are listed, too. A node needs to know what has ended elsewhere only to know it again when it is
/// pushed.
const THOROUGH_EVERY: SignedDuration = SignedDuration::from_hours(6);

/// How often a large memory is written down.
const SAVE_EVERY: Duration = Duration::from_secs(600);

/// So many troubles are told of a pass.
const MOST_TOLD: usize = 100;

/// More ids than this are not named as left out; then all count as such.
const MOST_UNLOOKED: usize = 1_000;

/// More arrivals than this are left to a whole pass.
const MOST_ARRIVALS: usize = 256;

/// What came of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Ids that were looked at, because something had changed.
    pub looked_at: u64,
    /// Files written to the hub.
    pub up: u64,
    /// Files written to the folder.
    pub down: u64,
    /// Tasks, copies and records that went, here and there.
    pub removed: u64,
    /// Tasks that lost against another of the same id, and are kept in `conflicts/`.
    pub conflicts: u64,
    /// Tasks that got the number of another life.
    pub renumbered: u64,
    /// Files of floors that were taken over.
    pub floors: u64,
    /// Ids that could not be dealt with yet.
    pub left: u64,
    /// What is wrong, for a person to look at.
    pub troubles: Vec<String>,
    /// Records were listed in both places, too.
    pub thorough: bool,
    /// Names that the listings of the hub had.
    pub listed: u64,
}

impl Passed {
    /// Nothing had to be done.
    pub fn is_calm(&self) -> bool {
        let Self { up, down, removed, conflicts, renumbered, floors, left, .. } = self;
        [up, down, removed, conflicts, renumbered, floors, left].into_iter().all(|it| *it == 0)
    }
}

/// What came of arrivals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// This process wrote them itself.
    Nothing,
    /// They were merged.
    Merged(Passed),
    /// A whole pass is better.
    TooMuch,
}

/// How to merge.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeOptions {
    /// Go on though the folder was away for long, or is empty though it was a node's.
    pub sure: bool,
}

/// A node's folder and its hub.
pub struct Merge<H: Tree, T: Tree> {
    pub(super) here: Arc<Core<H>>,
    pub(super) there: Arc<Core<T>>,
    pub(super) memory: Memory,
    pub(super) identity: Identity,
    pub(super) passed: Passed,
    /// The hub's pause when it was last looked at.
    pub(super) pause_seen: Option<Option<String>>,
    pub(super) options: MergeOptions,
    /// When this node last told the hub of itself.
    pub(super) checked_in: Option<Duration>,
    /// What this process wrote here, by path, since the last whole pass.
    pub(super) own_writes: BTreeSet<String>,
    /// Files of floors in the hub that could not be read in this pass.
    pub(super) unread_floors: BTreeSet<String>,
    /// Something was put off in this pass.
    pub(super) unsettled: bool,
    /// What this pass has left out: how paths in `pending/` begin.
    unlooked: BTreeSet<String>,
    /// When the last pass of this process ended that came to its end.
    pub(super) merged: Option<Duration>,
    /// When the folder's clock was last seen to have jumped.
    pub(super) jumped: Option<Duration>,
    /// When this pass began, on the hub's clock, if that is known.
    pub(super) began_there: Option<Timestamp>,
    /// The folders of records here, as they were when all in them was known.
    stamps: BTreeMap<String, Stamp>,
    /// The files of floors in the hub, when they were last listed.
    floors_there: Vec<String>,
    /// What the memory was when it was last written down, and when that was.
    written: Option<Memory>,
    saved: Option<Duration>,
}

impl<H: Tree, T: Tree> Merge<H, T> {
    /// A node's folder and its hub, which must be places of one synced queue.
    pub async fn new(here: &TreeQueue<H>, there: &TreeQueue<T>) -> Result<Self> {
        Self::with(here, there, MergeOptions::default()).await
    }

    /// The same with options.
    pub async fn with(
        here: &TreeQueue<H>,
        there: &TreeQueue<T>,
        options: MergeOptions,
    ) -> Result<Self> {
        let (here, there) = (Arc::clone(&here.core), Arc::clone(&there.core));
        check_settings(&here.settings, &there.settings, &there.tree.properties().address)?;
        here.merges.store(true, Ordering::Relaxed);
        let identity = here.identity().await?;
        let memory = Memory::load(&here, queue_id(&here), &identity.node).await;
        let merge = Self {
            written: Some(memory.clone()),
            memory,
            here,
            there,
            identity,
            passed: Passed::default(),
            pause_seen: None,
            options,
            checked_in: None,
            own_writes: BTreeSet::new(),
            unread_floors: BTreeSet::new(),
            unsettled: false,
            unlooked: BTreeSet::new(),
            merged: None,
            jumped: None,
            began_there: None,
            stamps: BTreeMap::new(),
            floors_there: Vec::new(),
            saved: None,
        };
        merge.check_hub()?;
        Ok(merge)
    }

    /// This node.
    pub fn node(&self) -> &str {
        &self.identity.node
    }

    /// Merges both places once. A `thorough` pass lists records, too; it is one anyway if none was for hours.
    pub async fn pass(&mut self, thorough: bool) -> Result<Passed> {
        let began = self.here.sample_clock().await?;
        let mono = self.here.env.monotonic();
        self.note_jump().await?;
        let thorough = thorough || self.memory.is_thorough_due(began, THOROUGH_EVERY);
        self.passed = Passed { thorough, ..Passed::default() };
        self.own_writes.clear();
        self.unread_floors.clear();
        self.unsettled = false;
        self.unlooked.clear();
        let there = look::list(&self.there).await?;
        self.compare_clocks(began, mono).await?;
        self.check_absence().await?;
        self.passed.listed = there.names as u64;
        if there.settings.is_none() {
            let address = &self.there.tree.properties().address;
            return Err(Error::not_found(format!("{address} has no queue.json any more")));
        }
        self.check_in(&there).await?;
        self.mirror_pause(&there).await?;
        // The ids to be looked at, each with the last life that is known to have a record there.
        let mut ids = self.take_floors(&there).await?;
        let here = look::list(&self.here).await?;
        self.report_strange(Side::Here, &here);
        self.report_strange(Side::There, &there);
        let mut shown = BTreeSet::new();
        let records_there = match thorough {
            true => Some(self.find_records_there(&mut ids, &mut shown).await?),
            false => None,
        };
        let stamps = self.find_records_here(records_there, &mut ids, &mut shown).await?;
        if thorough {
            self.memory.set_records(shown);
        }
        let mut alike = BTreeSet::new();
        for id in here.ids.keys().chain(there.ids.keys()) {
            let print = print_of(id, &here.met(id), &there.met(id));
            match self.memory.has_task(print) {
                true => _ = alike.insert(print),
                false => _ = ids.entry(id.clone()).or_default(),
            }
        }
        self.leave_hidden(&mut ids, &here, &there);
        let results = self.merge_ids(ids, (&here, &there)).await?;
        if results.failed.is_empty() {
            alike.extend(results.alike);
            // What was put off is looked for again.
            let is_settled = self.passed.left == 0 && !self.unsettled;
            self.stamps = if is_settled { stamps } else { BTreeMap::new() };
            self.memory.set_tasks(alike);
            let unread = &self.unread_floors;
            let read = there.floors.iter().filter(|path| !unread.contains(*path)).cloned();
            self.memory.set_floors(read);
            if thorough {
                self.drop_merged_floors(&here, &there).await?;
                self.memory.set_thorough(began);
            }
            self.remember().await?;
            self.tell_neighbours(&there, began).await?;
            self.merged = Some(self.here.env.monotonic());
            // It was said of what there was when it was said.
            self.options.sure = false;
        }
        self.floors_there = there.floors;
        let troubles = &mut self.passed.troubles;
        if let Some(more) = troubles.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
            troubles.truncate(MOST_TOLD);
            troubles.push(format!("{more} more are not shown"));
        }
        Ok(self.passed.clone())
    }

    /// Merges what has arrived here under these paths: folders of tasks, and records. Nothing, if it was this process
    /// that wrote them; and nothing for so many that a whole pass is better, which the answer then says.
    pub async fn merge_arrived(&mut self, paths: &[String]) -> Result<Arrived> {
        let mut ids = BTreeSet::new();
        for path in paths {
            if !self.own_writes.remove(path) {
                ids.extend(self.here.names().parse_any_path(path).map(|key| key.id().clone()));
            }
        }
        if ids.is_empty() {
            return Ok(Arrived::Nothing);
        }
        if ids.len() > MOST_ARRIVALS || self.checked_in.is_none() {
            return Ok(Arrived::TooMuch);
        }
        self.passed = Passed::default();
        let is_scheduled = |path: &String| path.starts_with(layout::SCHEDULED);
        let mut prefixes: BTreeSet<String> =
            ids.iter().map(|id| self.here.names().pending_prefix(id)).collect();
        prefixes
            .extend(paths.iter().any(is_scheduled).then(|| layout::below(layout::SCHEDULED, "")));
        let (mut here, mut there) = (Shown::default(), Shown::default());
        for prefix in prefixes {
            look::list_part(&self.here, &prefix, &mut here).await?;
            look::list_part(&self.there, &prefix, &mut there).await?;
        }
        self.passed.listed = there.names as u64;
        there.floors = self.floors_there.clone();
        let mut ids = ids.into_iter().map(|id| (id, 0)).collect();
        self.leave_hidden(&mut ids, &here, &there);
        let results = self.merge_ids(ids, (&here, &there)).await?;
        match results.failed.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(Arrived::Merged(self.passed.clone())),
        }
    }

    /// Leaves ids for a later pass of which something may lie in a folder that could not be read.
    fn leave_hidden(
        &mut self,
        ids: &mut BTreeMap<TaskId, Generation>,
        here: &Shown,
        there: &Shown,
    ) {
        let hides = |id: &TaskId| {
            here.hides(&self.here, id, &there.met(id))
                || there.hides(&self.there, id, &here.met(id))
        };
        let hidden: Vec<TaskId> = ids.keys().filter(|id| hides(id)).cloned().collect();
        for id in &hidden {
            ids.remove(id);
            self.note_unlooked(id);
        }
        self.passed.left += hidden.len() as u64;
    }

    /// This pass has not looked at an id, or not to its end.
    pub(super) fn note_unlooked(&mut self, id: &TaskId) {
        self.unlooked.insert(self.here.task_dir(&TaskKey::new(id.clone(), 1)));
    }

    /// This pass has not looked into a folder.
    pub(super) fn note_unread(&mut self, folder: &str) {
        if folder.is_empty() || folder.starts_with(layout::PENDING) {
            self.unlooked.insert(folder.to_owned());
        }
    }

    /// Ids with records here that the hub may not have, in a thorough pass by what it has shown. Answers how the folders
    /// of records are.
    async fn find_records_here(
        &mut self,
        there: Option<BTreeSet<Print>>,
        ids: &mut BTreeMap<TaskId, Generation>,
        shown: &mut BTreeSet<Print>,
    ) -> Result<BTreeMap<String, Stamp>> {
        let mut stamps = BTreeMap::new();
        for outcome in OUTCOMES {
            let mut dirs = Vec::new();
            let place = layout::outcome_dir(outcome);
            let is_shard = |name: &str| layout::Shard::parse(name).is_some();
            let note = |entry: &Entry| {
                dirs.extend(is_shard(&entry.name).then(|| layout::below(place, &entry.name)));
            };
            self.here.each_entry(place, note).await?;
            for dir in dirs {
                let now = self.here.now().await?;
                let stamp = self.here.tree.stamp(&dir, now).await?;
                if let Some(stamp) = stamp {
                    stamps.insert(dir.clone(), stamp);
                }
                let unchanged = stamp.is_some() && self.stamps.get(&dir) == stamp.as_ref();
                if stamp == Some(Stamp::Missing) || (unchanged && there.is_none()) {
                    continue;
                }
                let mut odd = Shown::default();
                let records = look::list_records(&self.here, outcome, &dir, &mut odd).await?;
                self.report_strange(Side::Here, &odd);
                for record in records {
                    let (path, tag) = (&record.path, &record.tag);
                    // The hub may have lost what it had.
                    if there.as_ref().is_some_and(|there| !there.contains(&print_of_path(path))) {
                        self.memory.forget_record(path, tag);
                    }
                    if !self.memory.has_shown_record(path, tag, Side::Here, shown) {
                        ids.entry(record.key.id().clone()).or_default();
                    }
                }
            }
        }
        Ok(stamps)
    }

    /// Ids with records there that the folder may not have. Answers which there are.
    async fn find_records_there(
        &mut self,
        ids: &mut BTreeMap<TaskId, Generation>,
        shown: &mut BTreeSet<Print>,
    ) -> Result<BTreeSet<Print>> {
        let mut all = BTreeSet::new();
        for outcome in OUTCOMES {
            let dir = layout::outcome_dir(outcome);
            let mut odd = Shown::default();
            let records = look::list_records(&self.there, outcome, dir, &mut odd).await?;
            self.report_strange(Side::There, &odd);
            for record in records {
                let (path, tag) = (&record.path, &record.tag);
                all.insert(print_of_path(path));
                let here = self.here.tree.head(path).await?;
                let known = here.is_some_and(|it| self.memory.has_record(path, &it.version));
                // Another node may have replaced it by one that counts more.
                if !self.memory.has_shown_record(path, tag, Side::There, shown) || !known {
                    let last = ids.entry(record.key.id().clone()).or_default();
                    *last = record.key.generation().max(*last);
                }
            }
        }
        Ok(all)
    }

    /// Writes the memory down, if it has changed; one that is large only now and then.
    async fn remember(&mut self) -> Result<()> {
        let rested = self.saved.map(|last| self.here.env.monotonic().saturating_sub(last));
        match self.memory.is_large() && rested.is_some_and(|rested| rested < SAVE_EVERY) {
            true => Ok(()),
            false => self.save().await,
        }
    }

    /// Writes the memory down, if it has changed.
    pub async fn save(&mut self) -> Result<()> {
        if self.written.as_ref() != Some(&self.memory) {
            let node = self.identity.node.clone();
            self.memory.save(&self.here, queue_id(&self.here), &node).await?;
            self.written = Some(self.memory.clone());
            self.saved = Some(self.here.env.monotonic());
        }
        Ok(())
    }

    /// Tells the workers here who else is there, and when this pass began.
    async fn tell_neighbours(&mut self, there: &Shown, began: Timestamp) -> Result<()> {
        let newest = there.nodes.iter().map(|(_, seen)| *seen).max();
        let silent = signed(self.here.period() * SILENT_PERIODS);
        let is_near =
            |seen: Timestamp| newest.is_some_and(|newest| newest.duration_since(seen) <= silent);
        let near = there.nodes.iter().filter(|(_, seen)| is_near(*seen)).map(|(node, _)| node);
        let mut nodes: BTreeSet<String> = near.cloned().collect();
        nodes.insert(self.identity.node.clone());
        let (nodes, began) = (nodes.into_iter().collect(), Some(began));
        let unlooked = match self.unlooked.len() > MOST_UNLOOKED {
            true => vec![layout::below(layout::PENDING, "")],
            false => self.unlooked.iter().cloned().collect(),
        };
        let (began_there, known) = (self.began_there, self.here.neighbours().await);
        let told = Neighbours { nodes, began, began_there, unlooked, ..known };
        self.here.put_neighbours(&told).await
    }
}

pub(super) fn queue_id<T: Tree>(core: &Core<T>) -> &str {
    core.settings.synced.as_ref().map_or("", |synced| &synced.queue_id)
}
