//! What the two places must have in common, and what is mirrored besides tasks: floors and the pause.

use std::collections::{BTreeMap, BTreeSet};

use super::Side;
use super::look::Shown;
use super::pass::Merge;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{self, Floor};
use crate::layout;
use crate::model::{Generation, Settings, TaskId, TaskKey};
use crate::queue::floors::REMEMBERED;
use crate::store::{Stored, Tree};

/// An error if two places are not of one queue.
pub(super) fn check_settings(here: &Settings, there: &Settings, hub: &str) -> Result<()> {
    let refuse = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let (Some(node), Some(middle)) = (&here.synced, &there.synced) else {
        let which = if here.synced.is_none() { "the folder" } else { hub };
        return refuse(format!(
            "{which} is not a synced queue; `dfq supervise --adopt` makes it one"
        ));
    };
    if node.hub {
        return refuse(
            "the folder is the hub of a synced queue; supervise a node's folder".to_owned(),
        );
    }
    if !middle.hub {
        return refuse(format!("{hub} is a node of a synced queue, not its hub"));
    }
    if node.queue_id != middle.queue_id {
        return refuse(format!(
            "the folder belongs to the synced queue '{}', and {hub} to '{}'",
            node.queue_id, middle.queue_id
        ));
    }
    check_alike(here, there, hub)
}

/// An error if two places ask different things of those who use them.
pub(crate) fn check_alike(here: &Settings, there: &Settings, hub: &str) -> Result<()> {
    let period = |settings: &Settings| settings.synced.as_ref().map(|synced| synced.period);
    let periods = period(here).zip(period(there));
    let differs = [
        ("format", here.format != there.format),
        ("layout", here.layout != there.layout),
        ("lease_seconds", here.lease != there.lease),
        ("max_attempts", here.max_attempts != there.max_attempts),
        ("max_lost", here.max_lost != there.max_lost),
        ("backoff", here.backoff != there.backoff),
        ("sync_seconds", periods.is_some_and(|(here, there)| here != there)),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(Error::invalid(format!(
            "{what} in queue.json is not the same in the folder and in {hub}; make them equal while nobody works"
        ))),
        None => Ok(()),
    }
}

impl<H: Tree, T: Tree> Merge<H, T> {
    /// Takes over what the hub's purges have forgotten. Answers the ids of which that is news.
    pub(super) async fn take_floors(
        &mut self,
        there: &Shown,
    ) -> Result<BTreeMap<TaskId, Generation>> {
        let mut news = BTreeMap::new();
        for path in &there.floors {
            if self.memory.has_floor(path) {
                continue;
            }
            let Some(stored) = self.there.tree.read(path).await? else { continue };
            let Some(floors) = format::decode_floors(&stored.bytes) else {
                self.unread_floors.insert(path.clone());
                self.passed.troubles.push(format!("'{path}' in the hub is not a file of floors"));
                continue;
            };
            // Under the same name: it is written once, wherever it is.
            self.here.tree.create(path, &stored.bytes).await?;
            for floor in floors {
                news.insert(floor.id, 0);
            }
            self.passed.floors += 1;
        }
        Ok(news)
    }

    /// Writes to the hub what purges have forgotten, if it has lost that itself.
    pub(super) async fn send_floors(&mut self, here: &Shown, there: &Shown) -> Result<()> {
        for path in here.floors.iter().filter(|path| !there.floors.contains(path)) {
            if let Some(stored) = self.here.tree.read(path).await? {
                self.there.tree.create(path, &stored.bytes).await?;
                self.passed.floors += 1;
            }
        }
        Ok(())
    }

    /// Removes files of floors that the hub has merged into others. What they say stands in those here, too, or is so
    /// old that nothing rests on it any more.
    pub(super) async fn drop_merged_floors(&self, here: &Shown, there: &Shown) -> Result<()> {
        let listed: BTreeSet<&String> = there.floors.iter().collect();
        let gone: Vec<&String> = here.floors.iter().filter(|it| !listed.contains(it)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let now = self.now_there().await?;
        let scheduled = self.here.scheduled_lives().await?;
        for path in gone {
            let Some(floors) = self.floors_in(path).await? else { continue };
            let shard = path.rsplit_once('/').map_or("", |(shard, _)| shard);
            let mut said: BTreeMap<TaskId, Generation> = BTreeMap::new();
            for other in
                listed.iter().filter(|it| it.rsplit_once('/').is_some_and(|it| it.0 == shard))
            {
                for floor in self.floors_in(other).await?.into_iter().flatten() {
                    let life = said.entry(floor.id).or_default();
                    *life = floor.generation.max(*life);
                }
            }
            let mut is_needed = false;
            for floor in floors {
                let is_said = said.get(&floor.id).is_some_and(|life| *life >= floor.generation);
                let last = TaskKey::new(floor.id, floor.generation);
                let is_old = now.duration_since(floor.at) > REMEMBERED;
                if !is_said && (!is_old || self.here.lives_again(&last, &scheduled).await?) {
                    is_needed = true;
                }
            }
            if !is_needed {
                self.here.tree.remove_file(path).await?;
            }
        }
        Ok(())
    }

    async fn floors_in(&self, path: &str) -> Result<Option<Vec<Floor>>> {
        let stored = self.here.tree.read(path).await?;
        Ok(stored.and_then(|stored| format::decode_floors(&stored.bytes)))
    }

    /// Mirrors the hub's pause, and takes back only what was mirrored. A pause of this node's own stays.
    pub(super) async fn mirror_pause(&mut self, there: &Shown) -> Result<()> {
        if self.pause_seen.as_ref() == Some(&there.paused) {
            return Ok(());
        }
        let mirrored = layout::mirrored_pause();
        let there_now = match &there.paused {
            Some(_) => self.there.tree.read(layout::PAUSED).await?,
            None => None,
        };
        let ours = self.here.tree.read(layout::PAUSED).await?;
        let mark = self.here.tree.read(&mirrored).await?;
        match there_now {
            Some(pause) => {
                let own = ours.as_ref().map_or(&[][..], |ours| &ours.bytes);
                // The mark first, durably: a pause without one would be this node's own. While one pause follows another,
                // the mark has both.
                if own.is_empty() || is_marked(mark.as_ref(), own) {
                    let both = [&pause.bytes, own].concat();
                    self.here.tree.put(&mirrored, &both).await?;
                    self.here.tree.put(layout::PAUSED, &pause.bytes).await?;
                    self.here.tree.put(&mirrored, &pause.bytes).await?;
                }
            }
            None => {
                if let Some(mark) = mark {
                    if ours.is_some_and(|ours| is_marked(Some(&mark), &ours.bytes)) {
                        self.here.tree.remove_file(layout::PAUSED).await?;
                        self.here.tree.ring().await;
                    }
                    self.here.tree.remove_file(&mirrored).await?;
                }
            }
        }
        self.pause_seen = Some(there.paused.clone());
        Ok(())
    }

    /// Names of a place that nobody here could have made.
    pub(super) fn report_strange(&mut self, side: Side, shown: &Shown) {
        let place = if side == Side::Here { "the folder" } else { "the hub" };
        for name in &shown.strange {
            self.passed.troubles.push(format!("'{name}' in {place} is not ours; it is left alone"));
        }
        self.report_unread(side, &shown.unread);
    }

    /// Folders of a place that cannot be read. What is in them is merged in a later pass.
    pub(super) fn report_unread(&mut self, side: Side, unread: &[(String, Error)]) {
        let place = if side == Side::Here { "the folder" } else { "the hub" };
        for (folder, error) in unread {
            self.unsettled = true;
            self.note_unread(folder);
            self.passed.troubles.push(format!("'{folder}' in {place} is left out: {error}"));
        }
    }
}

/// Whether a pause here was taken over from the hub.
fn is_marked(mark: Option<&Stored>, pause: &[u8]) -> bool {
    mark.is_some_and(|mark| mark.bytes.starts_with(pause) || mark.bytes.ends_with(pause))
}
