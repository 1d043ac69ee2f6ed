//! The conformance suite over every provider that this crate has.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dfq::clock::{ManualClock, SeededChance, SkippingClock, SystemChance};
use dfq::conformance::Provider;
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

/// A queue in a folder.
struct Folder {
    dir: tempfile::TempDir,
    layout: Layout,
    /// The filesystem's times have no fraction, as on ext4 with small inodes.
    whole_seconds: bool,
    /// What its filesystem is without.
    lacks: Lacks,
    /// Passes time without waiting for it; none where the machine's own clocks are the point.
    clock: Option<SkippingClock>,
}

impl Folder {
    /// Just as a program opens it, in real time.
    fn plain(parent: &Path) -> Self {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let whole_seconds = dir.path().metadata().unwrap().mtime_nsec() == 0;
        let (layout, lacks) = (Layout::Sharded, Lacks::default());
        Self { dir, whole_seconds, layout, lacks, clock: None }
    }

    /// On a clock that can be put forward.
    fn skipping(parent: &Path, layout: Layout, lacks: Lacks) -> Self {
        Self { layout, lacks, clock: Some(SkippingClock::default()), ..Self::plain(parent) }
    }
}

#[async_trait]
impl Provider for Folder {
    async fn worker(&self, settings: &Settings) -> Arc<dyn Queue> {
        let create = Some(Settings { layout: self.layout, ..settings.clone() });
        let path = self.dir.path().join("a queue");
        let Some(clock) = &self.clock else {
            let options = OpenOptions { create, ..OpenOptions::default() };
            return dfq::open(path, options).await.unwrap();
        };
        let env = Env::new(Arc::new(clock.clone()), Arc::new(SystemChance));
        std::fs::create_dir_all(&path).unwrap();
        let root = RealSys::open_root(&path).unwrap();
        let sys = FaultSys::lacking(RealSys, self.lacks).with_clock(clock.clone());
        let tree = Filesystem::with(sys, root, path.display().to_string(), env.clone(), true);
        let options = OpenOptions { env, create, ..OpenOptions::default() };
        Arc::new(TreeQueue::open(tree, options).await.unwrap())
    }

    #[allow(clippy::disallowed_methods, reason = "the store's clock is the machine's")]
    async fn pass(&self, time: Duration) {
        match &self.clock {
            Some(clock) => clock.skip(time, Duration::ZERO),
            None => tokio::time::sleep(time).await,
        }
    }

    fn lease(&self) -> Duration {
        match &self.clock {
            Some(_) => Duration::from_secs(600),
            // Where times are whole seconds, no shorter leases are allowed.
            None if self.whole_seconds => Duration::from_secs(10),
            None => Duration::from_secs(3),
        }
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
        Folder::skipping(&target_dir(), Layout::Sharded, Lacks::default())
    }

    dfq::conformance_tests!(make);
}

mod flat_folder {
    use super::*;

    async fn make() -> Folder {
        Folder::skipping(&target_dir(), Layout::Flat, Lacks::default())
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
        Folder::skipping(parent, Layout::Sharded, Lacks::default())
    }

    dfq::conformance_tests!(make);
}

/// Another filesystem, where one is mounted for the purpose (`./test` does if it may), as a program
/// opens it: in real time.
mod extra_mount {
    use super::*;

    async fn make() -> Folder {
        let mount = std::env::var_os("DFQ_TEST_MOUNT").map_or_else(target_dir, PathBuf::from);
        Folder::plain(&mount)
    }

    dfq::conformance_tests!(make);
}

/// A filesystem whose times are whole seconds, where one is mounted for the purpose.
mod whole_seconds {
    use super::*;

    async fn make() -> Option<Folder> {
        let mount = std::env::var_os("DFQ_TEST_SECONDS_MOUNT")?;
        Some(Folder::plain(Path::new(&mount)))
    }

    dfq::conformance_tests!(make);
}

/// As NFS: no file without a name, and no rename that does not replace.
mod like_nfs {
    use super::*;

    async fn make() -> Folder {
        let lacks = Lacks { unnamed: true, rename_new: true, links: false };
        Folder::skipping(&target_dir(), Layout::Sharded, lacks)
    }

    dfq::conformance_tests!(make);
}

/// As SMB: no hard links.
mod like_smb {
    use super::*;

    async fn make() -> Folder {
        let lacks = Lacks { unnamed: true, links: true, rename_new: false };
        Folder::skipping(&target_dir(), Layout::Sharded, lacks)
    }

    dfq::conformance_tests!(make);
}

#[tokio::test]
async fn a_filesystem_without_any_means_is_refused() {
    let lacks = Lacks { unnamed: true, links: true, rename_new: true };
    let folder = Folder::skipping(&target_dir(), Layout::Sharded, lacks);
    std::fs::create_dir_all(folder.dir.path().join("a queue/pending")).unwrap();
    let queue = folder.worker(&Settings::default()).await;
    let refused = queue.poll(dfq::PollRequest::new(1)).await.unwrap_err();
    assert_eq!(refused.kind(), dfq::ErrorKind::Unsupported, "{refused}");
}
