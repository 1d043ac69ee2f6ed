//! How a machine sees the disk: directly, or as a client of a network filesystem that remembers what it has seen.
//!
//! Invariant: a local mount remembers nothing. A network mount answers from memory only what it was told by the
//! server less than `lag` ago, or has itself brought about. As the Linux client does, it remembers attributes per
//! node, and names (also missing ones) per folder; the names of a folder count for as long as its attributes do, and
//! are dropped once those show a change. To open a folder asks for its attributes anew, and so does to list it; to
//! open a file asks the server for the name. What changes the tree is decided at the server. What is written to a
//! file gets there when the file is synced or closed, or when the same client looks at it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::Errno;

use dfq::store::EntryKind;
use dfq::store::fs::{Meta, SysResult};

use super::handle::Dir;
use super::volume::{Ino, Node, Volume};

/// A machine's view of the disk.
#[derive(Clone, Debug)]
pub struct Mount {
    pub(super) id: u64,
    /// How old an answer may be; `None` for a local mount.
    lag: Option<Duration>,
    pub(super) cache: Arc<Mutex<Cache>>,
}

impl Mount {
    /// The machine that has the disk.
    pub fn local() -> Self {
        Self { id: 0, lag: None, cache: Arc::default() }
    }

    /// A client over the network, with a number of its own (not 0), whose answers may be `lag` old. It has no
    /// unnamed files and no renames that do not replace. All processes of a machine share clones of one mount.
    pub fn network(id: u64, lag: Duration) -> Self {
        Self { id, lag: Some(lag), cache: Arc::default() }
    }

    /// Whether it is a client over the network.
    pub fn is_network(&self) -> bool {
        self.lag.is_some()
    }

    /// Forgets all it remembers, as a machine that starts anew.
    pub fn forget(&self) {
        super::lock(&self.cache).clear();
    }
}

/// What a mount remembers.
pub(super) type Cache = BTreeMap<Ino, Known>;

/// What it remembers of a node.
#[derive(Debug)]
pub(super) struct Known {
    meta: Meta,
    version: u64,
    fetched: Timestamp,
    names: BTreeMap<String, Option<Ino>>,
}

/// The last part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last<'p> {
    /// The folder itself.
    Here,
    Name(&'p str),
}

/// The disk as one mount sees it, for the time of one call.
pub(super) struct View<'a> {
    pub(super) volume: &'a mut Volume,
    pub(super) mount: &'a Mount,
    pub(super) cache: &'a mut Cache,
    /// Trust nothing remembered: the server has just said that something is stale.
    pub(super) fresh: bool,
}

impl View<'_> {
    /// Whether the server still knows a node, as far as this mount's handles of it go.
    fn is_served(&self, ino: Ino) -> bool {
        let is_ours =
            || self.volume.nodes.get(&ino).is_some_and(|it| it.removed_by == Some(self.mount.id));
        self.volume.is_named(ino) || is_ours()
    }

    /// Fails if what a handle is of has been removed by others; then nothing is remembered of it any more.
    pub(super) fn reach(&mut self, ino: Ino) -> SysResult<()> {
        if self.mount.is_network() && !self.is_served(ino) {
            self.cache.remove(&ino);
            return Err(Errno::STALE);
        }
        Ok(())
    }

    /// Asks the server for attributes.
    fn fetch(&mut self, ino: Ino) -> SysResult<Meta> {
        self.reach(ino)?;
        if self.volume.unsent.get(&ino) == Some(&self.mount.id) {
            self.volume.send(ino)?;
        }
        let meta = self.volume.meta(ino)?;
        if self.mount.is_network() {
            let (version, fetched) = (self.volume.node(ino)?.version, self.volume.now);
            let known = self.cache.entry(ino).or_insert_with(|| {
                let names = BTreeMap::new();
                Known { meta, version, fetched, names }
            });
            if known.version != version {
                known.names.clear();
            }
            (known.meta, known.version, known.fetched) = (meta, version, fetched);
        }
        Ok(meta)
    }

    /// What is remembered of a node and not too old.
    fn known(&self, ino: Ino) -> Option<&Known> {
        let lag = self.mount.lag.filter(|_| !self.fresh)?;
        self.cache.get(&ino).filter(|known| self.volume.now < known.fetched + lag)
    }

    /// Attributes, from memory or from the server.
    pub(super) fn attributes(&mut self, ino: Ino, anew: bool) -> SysResult<Meta> {
        let unsent = self.volume.unsent.get(&ino) == Some(&self.mount.id);
        match self.known(ino) {
            Some(known) if !anew && !unsent => Ok(known.meta),
            _ => self.fetch(ino),
        }
    }

    /// What a folder has under a name, from memory or from the server.
    pub(super) fn lookup(&mut self, dir: Ino, name: &str) -> SysResult<Option<Ino>> {
        if self.mount.is_network() && self.attributes(dir, false)?.kind != EntryKind::Folder {
            return Err(Errno::NOTDIR);
        }
        if let Some(found) = self.known(dir).and_then(|known| known.names.get(name)) {
            return Ok(*found);
        }
        self.lookup_anew(dir, name)
    }

    /// What a folder has under a name, from the server.
    pub(super) fn lookup_anew(&mut self, dir: Ino, name: &str) -> SysResult<Option<Ino>> {
        self.reach(dir)?;
        let found = self.volume.entry(dir, name)?;
        if let Some(known) = self.cache.get_mut(&dir) {
            known.names.insert(name.to_owned(), found);
        }
        if let Some(found) = found.filter(|_| self.mount.is_network()) {
            self.fetch(found)?;
        }
        Ok(found)
    }

    /// The folder that the last part of a path is in. A slash at the end of a path is not modelled.
    pub(super) fn walk<'p>(&mut self, at: &Dir, path: &'p str) -> SysResult<(Ino, Last<'p>)> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != ".").peekable();
        let ends_here = path.ends_with("/.");
        let mut dir = at.ino;
        while let Some(part) = parts.next() {
            if parts.peek().is_none() && !ends_here {
                return Ok((dir, Last::Name(part)));
            }
            dir = self.lookup(dir, part)?.ok_or(Errno::NOENT)?;
            if self.attributes(dir, false)?.kind != EntryKind::Folder {
                return Err(Errno::NOTDIR);
            }
        }
        Ok((dir, Last::Here))
    }

    /// What a path leads to.
    pub(super) fn resolve(&mut self, at: &Dir, path: &str) -> SysResult<Ino> {
        match self.walk(at, path)? {
            (dir, Last::Here) => Ok(dir),
            (dir, Last::Name(name)) => self.lookup(dir, name)?.ok_or(Errno::NOENT),
        }
    }

    /// Carries out a change of entries at the server, and remembers what came of it.
    pub(super) fn change<T>(
        &mut self,
        entries: &[(Ino, &str)],
        change: impl FnOnce(&mut Volume) -> SysResult<T>,
    ) -> SysResult<T> {
        for (dir, _) in entries {
            self.reach(*dir)?;
        }
        let version = |volume: &Volume, dir: &Ino| volume.nodes.get(dir).map(|it| it.version);
        let before: Vec<_> = entries.iter().map(|(dir, _)| version(self.volume, dir)).collect();
        let answer = change(self.volume);
        if !self.mount.is_network() {
            return answer;
        }
        for ((dir, name), before) in entries.iter().zip(before) {
            let Some(known) = self.cache.get_mut(dir) else { continue };
            // Nobody else has changed it since we looked: what we remember of the other names still holds.
            if answer.is_ok() && Some(known.version) == before {
                known.version = version(self.volume, dir).unwrap_or(0);
            }
            known.names.remove(*name);
        }
        if answer.is_ok() {
            for (dir, name) in entries {
                self.fetch(*dir)?;
                self.lookup_anew(*dir, name)?;
            }
        }
        answer
    }
}

impl Volume {
    /// Takes what a client wrote, to be sent later.
    pub(super) fn buffer(&mut self, ino: Ino, bytes: &[u8], by: u64) -> SysResult<()> {
        self.node_mut(ino)?.unsent.extend_from_slice(bytes);
        self.unsent.insert(ino, by);
        Ok(())
    }

    /// What a client has written comes to the server.
    pub(super) fn send(&mut self, ino: Ino) -> SysResult<()> {
        self.unsent.remove(&ino);
        let bytes = std::mem::take(&mut self.node_mut(ino)?.unsent);
        self.append(ino, &bytes)
    }

    /// Files that have been closed since the last call were sent then. Nobody has looked since, so now is soon
    /// enough. If there is no room for them, nobody is told.
    pub(super) fn send_closed(&mut self) {
        let is_open = |ino: &Ino| self.nodes.get(ino).is_some_and(Node::is_open);
        let closed: Vec<Ino> = self.unsent.keys().copied().filter(|ino| !is_open(ino)).collect();
        for ino in closed {
            if self.is_named(ino) {
                let _ = self.send(ino);
            } else {
                self.unsent.remove(&ino); // nobody can ever read it
            }
        }
    }
}
