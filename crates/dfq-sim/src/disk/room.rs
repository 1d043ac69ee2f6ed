//! How much room is taken, and what is forgotten.
//!
//! Invariant: a name takes 64 bytes, a folder 4 KiB, and a content its length for as long as it has a name or is
//! open. A rename needs no room, and neither does an empty file without a name.

use std::collections::BTreeSet;

use rustix::io::Errno;

use dfq::store::fs::SysResult;

use super::Room;
use super::volume::{Ino, Node, ROOT, Volume};

/// What a folder takes, and each name in one.
const FOLDER_ROOM: u64 = 4096;
pub(super) const NAME_ROOM: u64 = 64;

impl Volume {
    /// What a further name for it takes. The bytes of a file are counted as they are written.
    pub(super) fn room_of_name(&self, ino: Ino) -> Room {
        let first = !self.is_named(ino);
        let folder = if self.is_folder(ino) { FOLDER_ROOM } else { 0 };
        Room { bytes: NAME_ROOM + folder, inodes: u64::from(first) }
    }

    pub(super) fn room_left(&mut self) -> Option<Room> {
        self.free_closed();
        let capacity = self.traits.capacity?;
        Some(Room {
            bytes: capacity.bytes.saturating_sub(self.used.bytes),
            inodes: capacity.inodes.saturating_sub(self.used.inodes),
        })
    }

    /// Counts off files that had lost their last name, and are not open any more.
    fn free_closed(&mut self) {
        let is_open = |ino: &Ino| self.nodes.get(ino).is_some_and(Node::is_open);
        let closed: Vec<Ino> = self.orphans.iter().copied().filter(|ino| !is_open(ino)).collect();
        for ino in closed {
            self.orphans.remove(&ino);
            let bytes = self.nodes.get(&ino).and_then(|node| node.body.bytes());
            let size = bytes.map_or(0, |bytes| bytes.len() as u64);
            self.used.bytes = self.used.bytes.saturating_sub(size);
        }
    }

    /// What is taken.
    pub(super) fn used(&mut self) -> Room {
        self.free_closed();
        self.used
    }

    pub(super) fn need(&mut self, room: Room) -> SysResult<()> {
        match self.room_left() {
            Some(left) if left.bytes < room.bytes || left.inodes < room.inodes => Err(Errno::NOSPC),
            _ => Ok(()),
        }
    }

    /// A name of this node has gone.
    pub(super) fn free_name(&mut self, ino: Ino) {
        let room = self.room_of_name(ino);
        self.used.bytes = self.used.bytes.saturating_sub(room.bytes);
        self.used.inodes = self.used.inodes.saturating_sub(room.inodes);
        if !self.is_named(ino) {
            self.orphans.insert(ino);
        }
    }

    /// Counts anew what is taken.
    pub(super) fn count_room(&mut self) {
        let mut used = Room { bytes: 0, inodes: 0 };
        for (ino, node) in &self.nodes {
            let folder = if node.is_folder() && *ino != ROOT { FOLDER_ROOM } else { 0 };
            let data = node.body.bytes().map_or(0, |bytes| bytes.len() as u64);
            used.bytes += folder + data + NAME_ROOM * node.names.len() as u64;
            used.inodes += u64::from(!node.names.is_empty());
        }
        self.used = used;
        self.orphans.clear();
    }

    /// Forgets nodes that nothing can lead to: no name, no handle, nothing on the disk and no step on its way there.
    pub(super) fn sweep(&mut self) {
        let is_held = |(ino, node): (&Ino, &Node)| {
            (*ino == ROOT || node.is_open() || !node.names.is_empty()).then_some(*ino)
        };
        let mut ahead: Vec<Ino> = self.nodes.iter().filter_map(is_held).collect();
        ahead.extend(self.journal.iter().flat_map(|step| step.what.mentions()));
        let mut kept = BTreeSet::new();
        while let Some(ino) = ahead.pop() {
            if kept.insert(ino)
                && let Some(entries) = self.nodes.get(&ino).and_then(|n| n.saved.body.entries())
            {
                ahead.extend(entries.values());
            }
        }
        self.free_closed(); // while it is still known how large they were
        self.nodes.retain(|ino, _| kept.contains(ino));
        self.dirty.retain(|ino, _| kept.contains(ino));
        self.unsent.retain(|ino, _| kept.contains(ino));
        self.orphans.retain(|ino| kept.contains(ino));
    }
}
