//! The floor: nothing but the system calls that the layout demands for a task, one task at a time.
//!
//! Every path is made before the clock starts, and every answer is taken for granted: no listing, no
//! look for a record or a higher lease, nothing shared by a batch. A task's folder is held open from
//! claim to ack, as the contract has it. What is written is as long as what the library writes.

use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io;

use super::ours::Samples;

/// A tree of the queue's shape, and the open directory at its root.
pub(crate) struct Bare {
    root: OwnedFd,
    samples: Samples,
    durable: bool,
    made: usize,
}

/// Every path that a task has in its life.
pub(crate) struct Paths {
    staged: String,
    staged_task: String,
    pending_shard: String,
    pending: String,
    completed_shard: String,
    record: String,
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);
const FOLDER: OFlags = READ.union(OFlags::DIRECTORY);
const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);
const UNNAMED: OFlags = OFlags::WRONLY.union(OFlags::TMPFILE).union(OFlags::CLOEXEC);

impl Bare {
    /// A new tree with all its shards.
    pub(crate) fn new(dir: &Path, samples: Samples, durable: bool) -> Self {
        std::fs::create_dir(dir).unwrap();
        let root = fs::openat(CWD, dir, FOLDER, Mode::empty()).unwrap();
        for place in ["tmp", "pending", "completed"] {
            fs::mkdirat(&root, place, Mode::RWXU).unwrap();
        }
        for shard in 0..256 {
            for place in ["pending", "completed"] {
                fs::mkdirat(&root, format!("{place}/{shard:02x}"), Mode::RWXU).unwrap();
            }
        }
        Self { root, samples, durable, made: 0 }
    }

    /// Names for so many tasks, shaped like the library's and spread over the shards as evenly.
    pub(crate) fn names(&mut self, count: usize) -> Vec<Paths> {
        let from = self.made;
        self.made += count;
        (from..self.made).map(|n| Paths::new(n, n.wrapping_mul(0x9E37_79B1) >> 8 & 255)).collect()
    }

    /// A folder with the task in it, moved into place whole.
    pub(crate) fn push(&self, at: &Paths) {
        fs::mkdirat(&self.root, &*at.staged, Mode::RWXU).unwrap();
        let file = fs::openat(&self.root, &*at.staged_task, NEW, Mode::RWXU).unwrap();
        io::write(&file, &self.samples.task).unwrap();
        if self.durable {
            fs::fsync(&file).unwrap();
            self.sync(&at.staged);
        }
        let (from, to) = (&*at.staged, &*at.pending);
        fs::renameat_with(&self.root, from, &self.root, to, RenameFlags::NOREPLACE).unwrap();
        if self.durable {
            self.sync(&at.pending_shard);
        }
    }

    /// A lease, which appears whole; then the task is read. The folder stays open.
    pub(crate) fn claim(&self, at: &Paths) -> OwnedFd {
        let folder = fs::openat(&self.root, &*at.pending, FOLDER, Mode::empty()).unwrap();
        let lease = fs::openat(&self.root, "tmp", UNNAMED, Mode::RWXU).unwrap();
        io::write(&lease, &self.samples.lease).unwrap();
        fs::linkat(&lease, "", &folder, "lease.json", AtFlags::EMPTY_PATH).unwrap();
        let task = fs::openat(&folder, "task.json", READ, Mode::empty()).unwrap();
        let mut bytes = [0_u8; 4096];
        assert_eq!(io::read(&task, &mut bytes).unwrap(), self.samples.task.len());
        folder
    }

    /// A record, which appears whole; then the task, its lease and its folder go.
    pub(crate) fn ack(&self, at: &Paths, folder: OwnedFd) {
        let record = fs::openat(&self.root, &*at.completed_shard, UNNAMED, Mode::RWXU).unwrap();
        io::write(&record, &self.samples.record).unwrap();
        if self.durable {
            fs::fsync(&record).unwrap();
        }
        fs::linkat(&record, "", &self.root, &*at.record, AtFlags::EMPTY_PATH).unwrap();
        if self.durable {
            self.sync(&at.completed_shard);
        }
        fs::unlinkat(&folder, "task.json", AtFlags::empty()).unwrap();
        fs::unlinkat(&folder, "lease.json", AtFlags::empty()).unwrap();
        fs::unlinkat(&self.root, &*at.pending, AtFlags::REMOVEDIR).unwrap();
    }

    fn sync(&self, dir: &str) {
        fs::fsync(fs::openat(&self.root, dir, FOLDER, Mode::empty()).unwrap()).unwrap();
    }
}

impl Paths {
    fn new(n: usize, shard: usize) -> Self {
        let staged = format!("tmp/0123456789abcdef0123456789abcdef-{n}");
        let pending_shard = format!("pending/{shard:02x}");
        let completed_shard = format!("completed/{shard:02x}");
        let stem = format!("01a2b3c4-d5e6-7000-8000-{n:012x}");
        let pending = format!("{pending_shard}/{stem}");
        Self {
            staged_task: format!("{staged}/task.json"),
            record: format!("{completed_shard}/{stem}.json"),
            staged,
            pending_shard,
            pending,
            completed_shard,
        }
    }

    /// Claims go from shard to shard, as the library's do: neighbours share what the kernel caches.
    pub(crate) fn in_shard_order(mut names: Vec<Self>) -> Vec<Self> {
        names.sort_by(|a, b| a.pending.cmp(&b.pending));
        names
    }
}
