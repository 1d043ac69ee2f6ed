//! The conformance suite over every provider that this crate has.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dfq::clock::{ManualClock, SeededChance, SkippingClock, SystemChance};
use dfq::conformance::Provider;
use dfq::conformance::faulty::open_faulty;
use dfq::model::Layout;
use dfq::store::fs::fault::{FaultSys, Lacks};
use dfq::store::fs::{Filesystem, RealSys};
use dfq::store::memory::Memory;
use dfq::{Env, OpenOptions, Queue, Settings, TreeQueue};

struct InMemory {
    clock: ManualClock,
    env: Env,
    store: Memory,
}

#[async_trait]
impl Provider for InMemory {
    async fn worker(&self, settings: &Settings) -> Arc<dyn Queue> {
        let create = Some(settings.clone());
        let options = OpenOptions { env: self.env.clone(), create, ..OpenOptions::default() };
        Arc::new(TreeQueue::open(self.store.clone(), options).await.unwrap())
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(600)
    }
}

/// A queue in a folder, on a clock that can be put forward.
struct Folder {
    dir: tempfile::TempDir,
    layout: Layout,
    /// How far apart the filesystem's times are: a second on ext4 with small inodes.
    tick: Duration,
    /// What its filesystem is without.
    lacks: Lacks,
    clock: SkippingClock,
}

impl Folder {
    fn new(parent: &Path, layout: Layout, lacks: Lacks) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let whole_seconds = dir.path().metadata().unwrap().mtime_nsec() == 0;
        let tick = if whole_seconds { Duration::from_secs(1) } else { Duration::ZERO };
        Self { dir, layout, tick, lacks, clock: SkippingClock::default() }
    }
}

#[async_trait]
impl Provider for Folder {
    async fn worker(&self, settings: &Settings) -> Arc<dyn Queue> {
        let create = Some(Settings { layout: self.layout, ..settings.clone() });
        let path = self.dir.path().join("a queue");
        let env = Env::new(Arc::new(self.clock.clone()), Arc::new(SystemChance));
        std::fs::create_dir_all(&path).unwrap();
        let root = RealSys::open_root(&path).unwrap();
        let sys = FaultSys::lacking(RealSys, self.lacks).with_clock(self.clock.clone());
        let tree = Filesystem::with(sys, root, path.display().to_string(), env.clone(), true);
        let options = OpenOptions { env, create, ..OpenOptions::default() };
        Arc::new(open_faulty(tree, options).await.unwrap())
    }

    async fn pass(&self, time: Duration) {
        // Where times are whole seconds they stay so.
        let time = match self.tick.is_zero() {
            true => time,
            false => Duration::from_secs(time.as_millis().div_ceil(1000) as u64),
        };
        self.clock.skip(time, self.tick);
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(600)
    }
}

fn target_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

mod memory {
    use super::*;

    async fn make() -> InMemory {
        let clock = ManualClock::default();
        let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(7)));
        InMemory { clock, store: Memory::new(env.clone()), env }
    }

    dfq::conformance_tests!(make);
}

mod folder {
    use super::*;

    async fn make() -> Folder {
        Folder::new(&target_dir(), Layout::Sharded, Lacks::default())
    }

    dfq::conformance_tests!(make);
}

mod flat_folder {
    use super::*;

    async fn make() -> Folder {
        Folder::new(&target_dir(), Layout::Flat, Lacks::default())
    }

    dfq::conformance_tests!(make);
}

mod tmpfs {
    use super::*;

    async fn make() -> Folder {
        // Where there is no such mount, an ordinary folder is tested once more.
        let shm = Path::new("/dev/shm");
        let usable = tempfile::tempdir_in(shm).is_ok();
        let parent = if usable { shm } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
        Folder::new(parent, Layout::Sharded, Lacks::default())
    }

    dfq::conformance_tests!(make);
}

/// Another filesystem, where one is mounted for the purpose (`./test` does if it may).
mod extra_mount {
    use super::*;

    async fn make() -> Folder {
        let mount = std::env::var_os("DFQ_TEST_MOUNT").map_or_else(target_dir, PathBuf::from);
        Folder::new(&mount, Layout::Sharded, Lacks::default())
    }

    dfq::conformance_tests!(make);
}

/// A filesystem whose times are whole seconds, where one is mounted for the purpose.
mod whole_seconds {
    use super::*;

    async fn make() -> Option<Folder> {
        let mount = std::env::var_os("DFQ_TEST_SECONDS_MOUNT")?;
        Some(Folder::new(Path::new(&mount), Layout::Sharded, Lacks::default()))
    }

    dfq::conformance_tests!(make);
}

/// As NFS: no file without a name, and no rename that does not replace.
mod like_nfs {
    use super::*;

    async fn make() -> Folder {
        let lacks = Lacks { unnamed: true, rename_new: true, links: false };
        Folder::new(&target_dir(), Layout::Sharded, lacks)
    }

    dfq::conformance_tests!(make);
}

/// As SMB: no hard links.
mod like_smb {
    use super::*;

    async fn make() -> Folder {
        let lacks = Lacks { unnamed: true, links: true, rename_new: false };
        Folder::new(&target_dir(), Layout::Sharded, lacks)
    }

    dfq::conformance_tests!(make);
}

#[tokio::test]
async fn a_filesystem_without_any_means_is_refused() {
    let lacks = Lacks { unnamed: true, links: true, rename_new: true };
    let folder = Folder::new(&target_dir(), Layout::Sharded, lacks);
    std::fs::create_dir_all(folder.dir.path().join("a queue/pending")).unwrap();
    let queue = folder.worker(&Settings::default()).await;
    let refused = queue.poll(dfq::PollRequest::new(1)).await.unwrap_err();
    assert_eq!(refused.kind(), dfq::ErrorKind::Unsupported, "{refused}");
}
