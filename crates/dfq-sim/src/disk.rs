//! A model of one filesystem, shared by all processes of a simulation.
//!
//! Invariants:
//! - Each system call happens as one step, and answers what Linux would (see the conformance test).
//! - What was synced survives a power cut; what was not may be lost, each change on its own (see `saved`).
//! - The same calls in the same order, with the same seed and the same clock, have the same answers.
//! - The witness is told of every change of a name or content right after the call that made it, in order, while
//!   the disk is not locked: it may look at the disk. The simulation runs one process at a time; if two threads
//!   made calls at once, the witness could hear of them in another order.

mod calls;
mod handle;
mod listing;
mod mount;
mod room;
mod saved;
mod sys;
mod volume;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::Errno;

use dfq::store::fs::SysResult;

pub use handle::{Dir, File};
pub use listing::Listing;
pub use mount::Mount;
pub use sys::DiskSys;

use crate::seam::{Change, Witness};
use mount::View;
use volume::{ROOT, Told, Volume};

/// What a filesystem is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Modification times are rounded down to this.
    pub tick: Duration,
    /// Whether it has `O_TMPFILE`.
    pub has_unnamed: bool,
    /// Whether it has hard links.
    pub has_links: bool,
    /// Whether it has `RENAME_NOREPLACE`.
    pub has_rename_new: bool,
    /// How much fits; `None` if there is no limit.
    pub capacity: Option<Room>,
    /// What a power cut may leave of changes that were not synced.
    pub order: Order,
    /// After this time, changes are on the disk without a sync. `None` for never: then the memory of a long run
    /// without syncs grows without end.
    pub write_back: Option<Duration>,
}

impl Default for Traits {
    /// A Linux filesystem with all it has, and the weakest order.
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(4),
            has_unnamed: true,
            has_links: true,
            has_rename_new: true,
            capacity: None,
            order: Order::Any,
            write_back: Some(Duration::from_secs(30)),
        }
    }
}

/// Room on a disk: contents, 64 bytes for each name, and 4 KiB for each folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// In bytes.
    pub bytes: u64,
    /// In files and folders that have a name.
    pub inodes: u64,
}

/// Which changes of entries survive a power cut, of those that were not synced. Contents are always lost or kept
/// file by file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each on its own, unless it rests on one that was lost: all that POSIX promises.
    Any,
    /// All up to some point, as with the journals of ext4 and xfs.
    Journal,
    /// All: they are on the disk before the call returns, as with an NFS server that exports `sync`.
    AtOnce,
}

type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A filesystem. Clones are the same one.
#[derive(Clone)]
pub struct Disk {
    volume: Arc<Mutex<Volume>>,
    clock: Clock,
    witness: Arc<dyn Witness>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a disk after {} calls", self.calls())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mixes two numbers into one that looks like chance.
fn mix(a: u64, b: u64) -> u64 {
    let mut mixed = (a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// What people call an error of a system call.
fn errno_name(errno: Errno) -> String {
    let name = match errno {
        Errno::NOENT => "ENOENT",
        Errno::EXIST => "EEXIST",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::NOTDIR => "ENOTDIR",
        Errno::ISDIR => "EISDIR",
        Errno::INVAL => "EINVAL",
        Errno::NOSPC => "ENOSPC",
        Errno::STALE => "ESTALE",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::PERM => "EPERM",
        Errno::IO => "EIO",
        other => return other.to_string(),
    };
    name.to_owned()
}

impl Disk {
    /// An empty filesystem. The clock gives the times of files; it is asked before the disk is locked. The seed
    /// decides the order of listings, and what of changes is seen during one.
    pub fn new(
        traits: Traits,
        seed: u64,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
        witness: Arc<dyn Witness>,
    ) -> Self {
        let mut volume = Volume::new(traits, seed);
        volume.now = clock();
        Self { volume: Arc::new(Mutex::new(volume)), clock: Arc::new(clock), witness }
    }

    /// The root, open. It is the same on every mount.
    pub fn root(&self) -> Dir {
        let open = lock(&self.volume).nodes.get(&ROOT).map(|node| Arc::clone(&node.open));
        Dir { ino: ROOT, path: String::new(), _open: open }
    }

    /// All files that have a name, by their paths.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut volume = lock(&self.volume);
        volume.send_closed();
        let files = volume.files_below(ROOT);
        self.tell(volume);
        files.into_iter().map(|(path, bytes)| (path, bytes.to_vec())).collect()
    }

    /// How many calls were carried out.
    pub fn calls(&self) -> u64 {
        lock(&self.volume).calls
    }

    /// How many of them were of a kind that changes something.
    pub fn changes(&self) -> u64 {
        lock(&self.volume).changes
    }

    /// Makes the disk larger or smaller. What is there stays.
    pub fn set_capacity(&self, capacity: Option<Room>) {
        lock(&self.volume).traits.capacity = capacity;
    }

    /// What is taken of it.
    pub fn used(&self) -> Room {
        lock(&self.volume).used()
    }

    /// Puts everything on the disk, as `sync` does.
    pub fn sync(&self) {
        lock(&self.volume).sync_all();
    }

    /// The power goes and comes back. What was synced is there; of the rest, chance decides. Processes on this
    /// machine must not go on. Clients over the network may: their handles of what is left stay of use.
    pub fn power_cut(&self, chance: &mut impl FnMut() -> u64) {
        let now = (self.clock)();
        let mut volume = lock(&self.volume);
        volume.now = now;
        volume.send_closed();
        volume.cut(chance);
        self.tell(volume);
    }

    /// Carries out one call as one step.
    fn run<T>(
        &self,
        mount: &Mount,
        changes: bool,
        act: &mut impl FnMut(&mut View<'_>) -> SysResult<T>,
    ) -> SysResult<T> {
        let now = (self.clock)();
        let mut volume = lock(&self.volume);
        volume.now = now;
        volume.send_closed();
        volume.calls += 1;
        volume.changes += u64::from(changes);
        let mut cache = lock(&mount.cache);
        let mut view = View { volume: &mut volume, mount, cache: &mut cache, fresh: false };
        let mut answer = act(&mut view);
        if matches!(answer, Err(Errno::STALE)) {
            // Something that was remembered has gone. The client looks the path up anew, once.
            view.fresh = true;
            answer = act(&mut view);
        }
        drop(cache);
        self.tell(volume);
        answer
    }

    fn tell(&self, mut volume: MutexGuard<'_, Volume>) {
        let told = std::mem::take(&mut volume.told);
        drop(volume);
        for told in &told {
            self.witness.changed(match told {
                Told::Created(path, bytes) => Change::Created(path, bytes),
                Told::Replaced(path, bytes) => Change::Replaced(path, bytes),
                Told::Removed(path) => Change::Removed(path),
            });
        }
    }
}

#[cfg(test)]
mod tests;
