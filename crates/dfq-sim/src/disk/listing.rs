//! Reading a folder, entry by entry, while others change it.
//!
//! Invariant: an entry that is there all the time, and leads to the same file, is seen exactly once. One that comes
//! or goes meanwhile may be seen or not. One that is replaced may be missed, or seen twice: both happen on real
//! filesystems. The order is arbitrary, and the seed decides it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use dfq::store::EntryKind;
use dfq::store::fs::{DirEntry, SysResult};

use super::mix;
use super::volume::{Ino, Volume};

/// A folder being read.
#[derive(Debug)]
pub struct Listing {
    pub(super) ino: Ino,
    pub(super) path: String,
    /// Decides what chance decides in this listing.
    salt: u64,
    /// The folder's version at the last look.
    version: u64,
    /// What comes next is at the end.
    ahead: Vec<Seen>,
    /// What was handed out, and which node it was.
    passed: BTreeMap<String, Ino>,
    pub(super) _open: Option<Arc<()>>,
}

#[derive(Clone, Debug)]
struct Seen {
    name: String,
    ino: Ino,
    kind: EntryKind,
}

impl Listing {
    pub(super) fn new(volume: &mut Volume, ino: Ino, path: String) -> SysResult<Self> {
        volume.listings += 1;
        let salt = mix(volume.seed, volume.listings);
        let node = volume.node(ino)?;
        let (version, open) = (node.version, Some(Arc::clone(&node.open)));
        let ahead = in_order(volume, ino, volume.entries_of(ino));
        let passed = BTreeMap::new();
        Ok(Self { ino, path, salt, version, ahead, passed, _open: open })
    }

    pub(super) fn next(&mut self, volume: &Volume) -> Option<SysResult<DirEntry>> {
        let version = volume.nodes.get(&self.ino).map_or(0, |node| node.version);
        if version != self.version {
            self.version = version;
            self.look_again(volume);
        }
        let seen = self.ahead.pop()?;
        self.passed.insert(seen.name.clone(), seen.ino);
        Some(Ok(DirEntry { name: Some(seen.name), kind: seen.kind }))
    }

    /// The folder has changed: chance decides what of that is seen.
    fn look_again(&mut self, volume: &Volume) {
        let coin = |name: &str| mix_name(mix(self.salt, self.version), name) & 1 == 0;
        let mut old: BTreeMap<String, Seen> =
            std::mem::take(&mut self.ahead).into_iter().map(|it| (it.name.clone(), it)).collect();
        let mut seen = Vec::new();
        for entry in volume.entries_of(self.ino) {
            let was_ahead = old.remove(&entry.name);
            let stayed = was_ahead.as_ref().is_some_and(|was| was.ino == entry.ino)
                || self.passed.get(&entry.name) == Some(&entry.ino);
            let wanted = if stayed { was_ahead.is_some() } else { coin(&entry.name) };
            if wanted {
                seen.push(entry);
            }
        }
        // Gone, but read before that perhaps.
        seen.extend(old.into_values().filter(|gone| coin(&gone.name)));
        self.ahead = in_order(volume, self.ino, seen);
    }
}

/// Sorts by a hash, the first last.
fn in_order(volume: &Volume, ino: Ino, mut seen: Vec<Seen>) -> Vec<Seen> {
    let salt = mix(volume.seed, ino);
    seen.sort_by_cached_key(|it| Reverse((mix_name(salt, &it.name), it.name.clone())));
    seen
}

fn mix_name(salt: u64, name: &str) -> u64 {
    name.bytes().fold(salt, |hash, byte| mix(hash, u64::from(byte)))
}

impl Volume {
    fn entries_of(&self, ino: Ino) -> Vec<Seen> {
        let entries = self.nodes.get(&ino).and_then(|node| node.body.entries());
        let seen = |(name, ino): (&String, &Ino)| {
            let kind = if self.is_folder(*ino) { EntryKind::Folder } else { EntryKind::File };
            Seen { name: name.clone(), ino: *ino, kind }
        };
        entries.into_iter().flatten().map(seen).collect()
    }
}
