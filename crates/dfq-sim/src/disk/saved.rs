//! What is on the disk for good, and what a power cut leaves.
//!
//! Invariant: beside what everybody sees, each node has a saved image, and the journal holds the entry changes that
//! lead from the saved images to the tree. A step is saved only together with all earlier steps that it rests on:
//! those of the same entry; those in a folder that it removes, which were needed to empty it; and for a folder that
//! changes its parent all earlier ones of that kind, so that no two folders end up in each other. So any set of
//! steps that is saved makes a whole tree, and a rename is saved with both its ends or not at all.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use jiff::Timestamp;

use super::Order;
use super::volume::{Body, Ino, ROOT, Told, Volume};
use dfq::store::fs::SysResult;

/// The image of a node on the disk.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    pub(super) body: Body,
    pub(super) modified: Timestamp,
}

/// A change that is not on the disk yet.
#[derive(Debug)]
pub(super) struct Step {
    made: Timestamp,
    stamp: Timestamp,
    pub(super) what: What,
}

/// What has changed.
#[derive(Debug)]
pub(super) enum What {
    /// An entry is new.
    Add { dir: Ino, name: String, ino: Ino },
    /// An entry has gone. `emptied` is it, if it is a folder.
    Remove { dir: Ino, name: String, ino: Ino, emptied: Option<Ino> },
    /// An entry has moved. `emptied` is a folder that it replaced; `carries` if it is a folder with a new parent.
    Move { from: (Ino, String), to: (Ino, String), ino: Ino, emptied: Option<Ino>, carries: bool },
    /// The time was set.
    Touch { ino: Ino },
}

impl What {
    /// All nodes that it speaks of.
    pub(super) fn mentions(&self) -> Vec<Ino> {
        match self {
            Self::Add { dir, ino, .. } | Self::Remove { dir, ino, .. } => vec![*dir, *ino],
            Self::Move { from, to, ino, .. } => vec![from.0, to.0, *ino],
            Self::Touch { ino } => vec![*ino],
        }
    }

    /// The entries that it changes.
    fn entries(&self) -> Vec<(Ino, &str)> {
        match self {
            Self::Add { dir, name, .. } | Self::Remove { dir, name, .. } => vec![(*dir, name)],
            Self::Move { from, to, .. } => vec![(from.0, &from.1), (to.0, &to.1)],
            Self::Touch { .. } => vec![],
        }
    }

    /// Whether a sync of this node has to save it.
    fn is_of(&self, ino: Ino) -> bool {
        match self {
            Self::Add { dir, .. } | Self::Remove { dir, .. } => *dir == ino,
            Self::Move { from, to, .. } => from.0 == ino || to.0 == ino,
            Self::Touch { ino: touched } => *touched == ino,
        }
    }

    fn emptied(&self) -> Option<Ino> {
        match self {
            Self::Remove { emptied, .. } | Self::Move { emptied, .. } => *emptied,
            Self::Add { .. } | Self::Touch { .. } => None,
        }
    }

    fn carries(&self) -> bool {
        matches!(self, Self::Move { carries: true, .. })
    }
}

/// What steps rest on, or cannot rest on any more.
#[derive(Default)]
struct Footing {
    entries: BTreeSet<(Ino, String)>,
    folders: BTreeSet<Ino>,
    carries: bool,
}

impl Footing {
    fn insert_entries(&mut self, what: &What) {
        self.entries.extend(what.entries().into_iter().map(|(dir, name)| (dir, name.to_owned())));
        self.carries |= what.carries();
    }

    fn has_entry_of(&self, what: &What) -> bool {
        let is_in = |(dir, name): (Ino, &str)| self.entries.contains(&(dir, name.to_owned()));
        what.entries().into_iter().any(is_in) || (self.carries && what.carries())
    }
}

impl Volume {
    /// Notes a change that is to reach the disk one day.
    pub(super) fn record(&mut self, what: What) {
        let step = Step { made: self.now, stamp: self.stamp(), what };
        if self.traits.order == Order::AtOnce {
            self.save(step);
            return;
        }
        self.journal.push(step);
        self.write_back();
    }

    /// Saves what is old enough, as every system does by itself.
    fn write_back(&mut self) {
        let Some(after) = self.traits.write_back else { return };
        let is_old = |made: Timestamp| made + after <= self.now;
        let old = self.journal.iter().take_while(|step| is_old(step.made)).count();
        if old == 0 {
            return; // and no file is older than the step that made it
        }
        let files: Vec<Ino> =
            self.dirty.iter().filter(|(_, since)| is_old(**since)).map(|(ino, _)| *ino).collect();
        let young = self.journal.split_off(old);
        for step in mem::replace(&mut self.journal, young) {
            self.save(step);
        }
        for ino in files {
            self.save_data(ino);
        }
    }

    /// Carries out a step on the saved images.
    fn save(&mut self, step: Step) {
        match step.what {
            What::Add { dir, name, ino } => self.save_entry(dir, name, Some(ino), step.stamp),
            What::Remove { dir, name, .. } => self.save_entry(dir, name, None, step.stamp),
            What::Move { from, to, ino, .. } => {
                self.save_entry(from.0, from.1, None, step.stamp);
                self.save_entry(to.0, to.1, Some(ino), step.stamp);
            }
            What::Touch { ino } => {
                if let Some(node) = self.nodes.get_mut(&ino) {
                    node.saved.modified = step.stamp;
                }
            }
        }
    }

    fn save_entry(&mut self, dir: Ino, name: String, ino: Option<Ino>, stamp: Timestamp) {
        let Some(folder) = self.nodes.get_mut(&dir) else { return };
        folder.saved.modified = stamp;
        if let Body::Folder(entries) = &mut folder.saved.body {
            match ino {
                Some(ino) => _ = entries.insert(name, ino),
                None => _ = entries.remove(&name),
            }
        }
    }

    fn save_data(&mut self, ino: Ino) {
        self.dirty.remove(&ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.saved = Saved { body: node.body.clone(), modified: node.modified };
        }
    }

    /// `fsync` of a file: its content and its time, and no name of it.
    pub(super) fn sync_file(&mut self, ino: Ino) -> SysResult<()> {
        self.node(ino)?;
        self.save_data(ino);
        // Touches on their way would come later than this, and older.
        self.journal.retain(|step| !matches!(step.what, What::Touch { ino: at } if at == ino));
        Ok(())
    }

    /// `fsync` of a folder: all changes of its entries, and what they rest on.
    pub(super) fn sync_folder(&mut self, ino: Ino) -> SysResult<()> {
        self.node(ino)?;
        let journal = mem::take(&mut self.journal);
        let chosen = match self.traits.order {
            Order::Any => rest_of(&journal, ino),
            Order::Journal | Order::AtOnce => {
                let last = journal.iter().rposition(|step| step.what.is_of(ino));
                (0..journal.len()).map(|at| last.is_some_and(|last| at <= last)).collect()
            }
        };
        for (step, chosen) in journal.into_iter().zip(chosen) {
            if chosen {
                self.save(step);
            } else {
                self.journal.push(step);
            }
        }
        Ok(())
    }

    /// Everything is on the disk.
    pub(super) fn sync_all(&mut self) {
        for step in mem::take(&mut self.journal) {
            self.save(step);
        }
        for ino in mem::take(&mut self.dirty).into_keys() {
            self.save_data(ino);
        }
    }

    /// The power goes, and comes back: what is saved is there, and of the rest whatever chance has let through.
    pub(super) fn cut(&mut self, chance: &mut impl FnMut() -> u64) {
        let before = self.files_below(ROOT);
        let journal = mem::take(&mut self.journal);
        let survives = match self.traits.order {
            Order::Any | Order::AtOnce => survivors(&journal, chance),
            Order::Journal => {
                let kept = chance() % (journal.len() as u64 + 1);
                (0..journal.len() as u64).map(|at| at < kept).collect()
            }
        };
        for (step, _) in journal.into_iter().zip(survives).filter(|(_, survives)| *survives) {
            self.save(step);
        }
        self.rebuild(chance);
        self.dirty.retain(|ino, _| self.nodes.contains_key(ino));
        self.count_room();
        self.tell_difference(&before);
    }

    /// Makes what is saved what everybody sees.
    fn rebuild(&mut self, chance: &mut impl FnMut() -> u64) {
        let mut old = mem::take(&mut self.nodes);
        let mut ahead = vec![(ROOT, None)];
        while let Some((ino, name)) = ahead.pop() {
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.names.extend(name); // a file with several
                continue;
            }
            let Some(mut node) = old.remove(&ino) else { continue };
            node.names = name.into_iter().collect();
            node.removed_by = None;
            node.linkable = false;
            // Who has it open has survived, over a network, and sends again what the server had not synced.
            let is_dirty = self.dirty.contains_key(&ino);
            let sent_again = is_dirty && node.is_open();
            if let (Body::File(seen), Body::File(saved)) = (&node.body, &node.saved.body)
                && is_dirty
                && !sent_again
            {
                node.saved.body = Body::File(torn(seen, saved, chance));
                node.saved.modified = node.modified;
            }
            if let Body::Folder(entries) = &node.saved.body {
                let below = entries.iter().map(|(name, below)| (*below, Some((ino, name.clone()))));
                ahead.extend(below);
                node.peak = entries.len();
            }
            if !sent_again {
                self.dirty.remove(&ino);
                node.body = node.saved.body.clone();
                node.modified = node.saved.modified;
            }
            self.versions += 1;
            node.version = self.versions;
            self.nodes.insert(ino, node);
        }
    }

    fn tell_difference(&mut self, before: &std::collections::BTreeMap<String, Arc<Vec<u8>>>) {
        let after = self.files_below(ROOT);
        let gone = before.keys().filter(|path| !after.contains_key(*path));
        self.told.extend(gone.map(|path| Told::Removed(path.clone())));
        for (path, bytes) in &after {
            let bytes = Arc::clone(bytes);
            match before.get(path) {
                None => self.told.push(Told::Created(path.clone(), bytes)),
                Some(old) if *old != bytes => self.told.push(Told::Replaced(path.clone(), bytes)),
                Some(_) => {}
            }
        }
    }
}

/// Which steps a sync of this folder saves: its own, and what those rest on.
fn rest_of(journal: &[Step], ino: Ino) -> Vec<bool> {
    let mut needed = Footing::default();
    needed.folders.insert(ino);
    let mut chosen: Vec<bool> = Vec::with_capacity(journal.len());
    for Step { what, .. } in journal.iter().rev() {
        let of_folder = needed.folders.iter().any(|folder| what.is_of(*folder));
        chosen.push(of_folder || needed.has_entry_of(what));
        if chosen.last() == Some(&true) {
            needed.insert_entries(what);
            needed.folders.extend(what.emptied());
        }
    }
    chosen.reverse();
    chosen
}

/// Which steps get through a power cut. Most cuts leave a part of them; some leave all, and some none.
fn survivors(journal: &[Step], chance: &mut impl FnMut() -> u64) -> Vec<bool> {
    let in_eight = [0, 1, 4, 6, 7, 8][(chance() % 6) as usize];
    let mut lost = Footing::default();
    let survives = |Step { what, .. }: &Step| {
        let rests_on_lost = lost.has_entry_of(what)
            || what.emptied().is_some_and(|emptied| lost.folders.contains(&emptied));
        let survives = chance() % 8 < in_eight && !rests_on_lost;
        if !survives {
            lost.insert_entries(what);
            lost.folders.extend(what.entries().into_iter().map(|(dir, _)| dir));
        }
        survives
    };
    journal.iter().map(survives).collect()
}

/// What is left of a content that was not synced. What was synced before is always there: files only grow.
fn torn(
    seen: &Arc<Vec<u8>>,
    saved: &Arc<Vec<u8>>,
    chance: &mut impl FnMut() -> u64,
) -> Arc<Vec<u8>> {
    let tail = seen.len().saturating_sub(saved.len());
    match chance() % 4 {
        0 => Arc::clone(seen),
        1 => Arc::clone(saved),
        2 => {
            let kept = saved.len() + (chance() % (tail as u64 + 1)) as usize;
            Arc::new(seen[..kept].to_vec())
        }
        _ => {
            let mut bytes = saved.to_vec();
            bytes.resize(seen.len(), 0); // the length got through, the content did not
            Arc::new(bytes)
        }
    }
}
