//! The tree of one filesystem, as everybody who looks at the server itself sees it.
//!
//! Invariant: every entry of a folder leads to a node, and that node knows the entry among its names. A folder has
//! at most one name, and only the root, or a removed folder, has none. Numbers of nodes are never used again. Each
//! change of an entry is one step here, in the journal (see `saved`) and for the witness.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use rustix::io::Errno;

use dfq::store::EntryKind;
use dfq::store::fs::{Meta, SysResult};

use super::room::NAME_ROOM;
use super::saved::{Saved, Step, What};
use super::{Room, Traits};

/// The number of a node.
pub(super) type Ino = u64;

/// The root's number.
pub(super) const ROOT: Ino = 1;

/// A folder grows by whole blocks, and stays as large as it once was, as on ext4.
const BLOCK: u64 = 4096;

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum Body {
    File(Arc<Vec<u8>>),
    Folder(BTreeMap<String, Ino>),
}

impl Body {
    pub(super) fn entries(&self) -> Option<&BTreeMap<String, Ino>> {
        match self {
            Self::Folder(entries) => Some(entries),
            Self::File(_) => None,
        }
    }

    pub(super) fn bytes(&self) -> Option<&Arc<Vec<u8>>> {
        match self {
            Self::File(bytes) => Some(bytes),
            Self::Folder(_) => None,
        }
    }

    fn empty_like(&self) -> Self {
        match self {
            Self::File(_) => Self::File(Arc::default()),
            Self::Folder(_) => Self::Folder(BTreeMap::new()),
        }
    }
}

/// A file or folder.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) modified: Timestamp,
    /// Where it can be found: folder and name.
    pub(super) names: BTreeSet<(Ino, String)>,
    /// What a power cut leaves of it.
    pub(super) saved: Saved,
    /// Another one after every change of the body.
    pub(super) version: u64,
    /// The most entries that there ever were.
    pub(super) peak: usize,
    /// Made without a name, and has never had one: only then can a file with none get one.
    pub(super) linkable: bool,
    /// The mount that took the last name away: its own handles stay of use.
    pub(super) removed_by: Option<u64>,
    /// What a client over the network has written and not sent yet.
    pub(super) unsent: Vec<u8>,
    /// Every open handle holds a copy.
    pub(super) open: Arc<()>,
}

impl Node {
    pub(super) fn is_folder(&self) -> bool {
        matches!(self.body, Body::Folder(_))
    }

    pub(super) fn is_open(&self) -> bool {
        Arc::strong_count(&self.open) > 1
    }
}

/// A change that the witness is yet to be told.
#[derive(Debug)]
pub(super) enum Told {
    Created(String, Arc<Vec<u8>>),
    Replaced(String, Arc<Vec<u8>>),
    Removed(String),
}

/// The tree.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) traits: Traits,
    pub(super) nodes: BTreeMap<Ino, Node>,
    /// Entry changes that are not on the disk yet, in their order.
    pub(super) journal: Vec<Step>,
    /// Files with content that is not on the disk yet, and since when.
    pub(super) dirty: BTreeMap<Ino, Timestamp>,
    /// Files with content that a client has not sent yet, and which client.
    pub(super) unsent: BTreeMap<Ino, u64>,
    pub(super) told: Vec<Told>,
    pub(super) now: Timestamp,
    pub(super) calls: u64,
    pub(super) changes: u64,
    pub(super) versions: u64,
    pub(super) listings: u64,
    pub(super) seed: u64,
    next: Ino,
    pub(super) used: Room,
    /// Files without a name that take room for as long as somebody has them open.
    pub(super) orphans: BTreeSet<Ino>,
    sweep_at: usize,
}

impl Volume {
    pub(super) fn new(traits: Traits, seed: u64) -> Self {
        let now = Timestamp::UNIX_EPOCH;
        let mut volume = Self {
            traits,
            nodes: BTreeMap::new(),
            journal: Vec::new(),
            dirty: BTreeMap::new(),
            unsent: BTreeMap::new(),
            told: Vec::new(),
            now,
            calls: 0,
            changes: 0,
            versions: 0,
            listings: 0,
            seed,
            next: ROOT,
            used: Room { bytes: 0, inodes: 0 },
            orphans: BTreeSet::new(),
            sweep_at: 1024,
        };
        volume.new_node(Body::Folder(BTreeMap::new()));
        volume
    }

    /// The time that a change made now gets.
    pub(super) fn stamp(&self) -> Timestamp {
        let tick = i128::try_from(self.traits.tick.as_nanos()).unwrap_or(1).max(1);
        let nanos = self.now.as_nanosecond();
        Timestamp::from_nanosecond(nanos - nanos.rem_euclid(tick)).unwrap_or(self.now)
    }

    pub(super) fn node(&self, ino: Ino) -> SysResult<&Node> {
        self.nodes.get(&ino).ok_or(Errno::NOENT)
    }

    pub(super) fn node_mut(&mut self, ino: Ino) -> SysResult<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    pub(super) fn is_folder(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(Node::is_folder)
    }

    /// Whether it can be reached by a name.
    pub(super) fn is_named(&self, ino: Ino) -> bool {
        ino == ROOT || self.nodes.get(&ino).is_some_and(|node| !node.names.is_empty())
    }

    /// What a folder has under a name.
    pub(super) fn entry(&self, dir: Ino, name: &str) -> SysResult<Option<Ino>> {
        let entries = self.node(dir)?.body.entries().ok_or(Errno::NOTDIR)?;
        Ok(entries.get(name).copied())
    }

    pub(super) fn meta(&self, ino: Ino) -> SysResult<Meta> {
        let node = self.node(ino)?;
        let (kind, size) = match &node.body {
            Body::File(bytes) => (EntryKind::File, bytes.len() as u64),
            Body::Folder(_) => {
                let names = node.peak as u64 * NAME_ROOM;
                (EntryKind::Folder, names.div_ceil(BLOCK).max(1) * BLOCK)
            }
        };
        Ok(Meta { kind, modified: node.modified, size, inode: ino })
    }

    /// The path of a node below the root, by its first name; `None` if it has none.
    pub(super) fn path_of(&self, ino: Ino) -> Option<String> {
        let (mut parts, mut at) = (Vec::new(), ino);
        while at != ROOT {
            let (parent, name) = self.nodes.get(&at)?.names.first()?;
            parts.push(name.as_str());
            at = *parent;
        }
        parts.reverse();
        Some(parts.join("/"))
    }

    /// Whether `ino` is `below` or a folder that leads to it.
    pub(super) fn leads_to(&self, ino: Ino, below: Ino) -> bool {
        let mut at = below;
        loop {
            if at == ino {
                return true;
            }
            let Some((parent, _)) = self.nodes.get(&at).and_then(|node| node.names.first()) else {
                return false;
            };
            at = *parent;
        }
    }

    /// A node without a name.
    pub(super) fn new_node(&mut self, body: Body) -> Ino {
        if self.nodes.len() >= self.sweep_at {
            self.sweep();
            self.sweep_at = self.nodes.len() * 2 + 1024;
        }
        let (ino, modified) = (self.next, self.stamp());
        self.next += 1;
        self.versions += 1;
        let saved = Saved { body: body.empty_like(), modified };
        let node = Node {
            body,
            modified,
            names: BTreeSet::new(),
            saved,
            version: self.versions,
            peak: 0,
            linkable: false,
            removed_by: None,
            unsent: Vec::new(),
            open: Arc::default(),
        };
        self.nodes.insert(ino, node);
        ino
    }

    /// A file without a name.
    pub(super) fn new_unnamed(&mut self) -> SysResult<Ino> {
        let ino = self.new_node(Body::File(Arc::default()));
        self.node_mut(ino)?.linkable = true;
        self.orphans.insert(ino);
        Ok(ino)
    }

    /// Makes an entry.
    pub(super) fn add(&mut self, dir: Ino, name: &str, ino: Ino) -> SysResult<()> {
        let room = self.room_of_name(ino);
        self.need(room)?;
        self.enter(dir, name, ino)?;
        self.used.bytes += room.bytes;
        self.used.inodes += room.inodes;
        self.record(What::Add { dir, name: name.to_owned(), ino });
        self.tell_created(dir, name, ino, false);
        Ok(())
    }

    /// Takes an entry away.
    pub(super) fn remove(&mut self, dir: Ino, name: &str, by: u64) -> SysResult<()> {
        let ino = self.entry(dir, name)?.ok_or(Errno::NOENT)?;
        self.leave(dir, name, ino, by)?;
        let emptied = self.is_folder(ino).then_some(ino);
        self.record(What::Remove { dir, name: name.to_owned(), ino, emptied });
        self.free_name(ino);
        if emptied.is_none() {
            self.tell_removed(dir, name);
        }
        Ok(())
    }

    /// Renames; what is there is replaced.
    pub(super) fn shift(&mut self, from: (Ino, &str), to: (Ino, &str), by: u64) -> SysResult<()> {
        let ino = self.entry(from.0, from.1)?.ok_or(Errno::NOENT)?;
        let over = self.entry(to.0, to.1)?;
        let below = self.files_below(ino);
        let old_path = self.path_in(from.0, from.1);
        self.leave(from.0, from.1, ino, by)?;
        if let Some(over) = over {
            self.leave(to.0, to.1, over, by)?;
            self.free_name(over);
        }
        self.enter(to.0, to.1, ino)?;
        let is_folder = self.is_folder(ino);
        self.record(What::Move {
            from: (from.0, from.1.to_owned()),
            to: (to.0, to.1.to_owned()),
            ino,
            emptied: over.filter(|over| self.is_folder(*over)),
            carries: is_folder && from.0 != to.0,
        });
        if !is_folder {
            self.tell_removed(from.0, from.1);
            self.tell_created(to.0, to.1, ino, over.is_some());
        } else if let (Some(old), Some(new)) = (old_path, self.path_in(to.0, to.1)) {
            for (path, bytes) in below {
                self.told.push(Told::Removed(format!("{old}/{path}")));
                self.told.push(Told::Created(format!("{new}/{path}"), bytes));
            }
        }
        Ok(())
    }

    fn enter(&mut self, dir: Ino, name: &str, ino: Ino) -> SysResult<()> {
        let node = self.node_mut(ino)?;
        node.names.insert((dir, name.to_owned()));
        node.linkable = false;
        node.removed_by = None;
        self.orphans.remove(&ino);
        let folder = self.changed(dir)?;
        if let Body::Folder(entries) = &mut folder.body {
            entries.insert(name.to_owned(), ino);
            folder.peak = folder.peak.max(entries.len());
        }
        Ok(())
    }

    fn leave(&mut self, dir: Ino, name: &str, ino: Ino, by: u64) -> SysResult<()> {
        let folder = self.changed(dir)?;
        if let Body::Folder(entries) = &mut folder.body {
            entries.remove(name);
        }
        let node = self.node_mut(ino)?;
        node.names.remove(&(dir, name.to_owned()));
        node.removed_by = Some(by);
        Ok(())
    }

    /// A node whose body changes now.
    fn changed(&mut self, ino: Ino) -> SysResult<&mut Node> {
        self.versions += 1;
        let (version, modified) = (self.versions, self.stamp());
        let node = self.node_mut(ino)?;
        node.version = version;
        node.modified = modified;
        Ok(node)
    }

    /// Writes to the end of a file: as much as there is room for.
    pub(super) fn append(&mut self, ino: Ino, bytes: &[u8]) -> SysResult<()> {
        let fits = match self.room_left() {
            Some(left) => usize::try_from(left.bytes).unwrap_or(usize::MAX).min(bytes.len()),
            None => bytes.len(),
        };
        if fits > 0 {
            let node = self.changed(ino)?;
            let Body::File(content) = &mut node.body else { return Err(Errno::BADF) };
            Arc::make_mut(content).extend_from_slice(&bytes[..fits]);
            let (content, names) = (Arc::clone(content), node.names.clone());
            self.used.bytes += fits as u64;
            self.dirty.entry(ino).or_insert(self.now);
            for (dir, name) in names {
                if let Some(path) = self.path_in(dir, &name) {
                    self.told.push(Told::Replaced(path, Arc::clone(&content)));
                }
            }
        }
        if fits == bytes.len() { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Sets the time of the last change to now.
    pub(super) fn touch(&mut self, ino: Ino) -> SysResult<()> {
        let modified = self.stamp();
        self.node_mut(ino)?.modified = modified;
        self.record(What::Touch { ino });
        Ok(())
    }

    // What others are told.

    pub(super) fn path_in(&self, dir: Ino, name: &str) -> Option<String> {
        let dir = self.path_of(dir)?;
        Some(if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") })
    }

    fn tell_created(&mut self, dir: Ino, name: &str, ino: Ino, replaced: bool) {
        let bytes = self.nodes.get(&ino).and_then(|node| node.body.bytes()).cloned();
        if let (Some(bytes), Some(path)) = (bytes, self.path_in(dir, name)) {
            let told = if replaced { Told::Replaced } else { Told::Created };
            self.told.push(told(path, bytes));
        }
    }

    fn tell_removed(&mut self, dir: Ino, name: &str) {
        if let Some(path) = self.path_in(dir, name) {
            self.told.push(Told::Removed(path));
        }
    }

    /// All files below a folder, by their paths from there.
    pub(super) fn files_below(&self, ino: Ino) -> BTreeMap<String, Arc<Vec<u8>>> {
        let (mut files, mut folders) = (BTreeMap::new(), vec![(String::new(), ino)]);
        while let Some((path, at)) = folders.pop() {
            let entries = self.nodes.get(&at).and_then(|node| node.body.entries());
            for (name, ino) in entries.into_iter().flatten() {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                match self.nodes.get(ino).map(|node| &node.body) {
                    Some(Body::File(bytes)) => _ = files.insert(path, Arc::clone(bytes)),
                    _ => folders.push((path, *ino)),
                }
            }
        }
        files
    }
}
