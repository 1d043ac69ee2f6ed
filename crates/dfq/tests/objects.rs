//! The raw seam over memory and folders, stopped at every call, and with answers that are lost.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real threads race")]

#[path = "objects/answers.rs"]
mod answers;
#[path = "objects/shown.rs"]
mod shown;
#[path = "objects/stopped.rs"]
mod stopped;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use dfq::Env;
use dfq::conformance::objects::ObjectsProvider;
use dfq::store::Objects;
use dfq::store::fs::fault::{FaultSys, Lacks};
use dfq::store::fs::{Filesystem, RealSys};
use dfq::store::memory::MemoryObjects;

fn memory() -> MemoryObjects {
    MemoryObjects::new("memory:".to_owned(), Env::system())
}

struct InMemory(MemoryObjects);

#[async_trait]
impl ObjectsProvider for InMemory {
    async fn open(&self) -> Arc<dyn Objects> {
        Arc::new(self.0.clone())
    }
}

/// A folder on a filesystem that is without something.
struct Folder {
    dir: tempfile::TempDir,
    lacks: Lacks,
    /// A network filesystem syncs what it writes at other times.
    local: bool,
}

impl Folder {
    fn new(parent: &Path, lacks: Lacks, local: bool) -> Self {
        Self { dir: tempfile::tempdir_in(parent).unwrap(), lacks, local }
    }

    fn store(&self) -> Filesystem<FaultSys<RealSys>> {
        let root = RealSys::open_root(self.dir.path()).unwrap();
        let sys = FaultSys::lacking(RealSys, self.lacks);
        let address = self.dir.path().display().to_string();
        Filesystem::with(sys, root, address, Env::system(), self.local)
    }
}

#[async_trait]
impl ObjectsProvider for Folder {
    async fn open(&self) -> Arc<dyn Objects> {
        Arc::new(self.store())
    }
}

fn target_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

const LIKE_NFS: Lacks = Lacks { unnamed: true, rename_new: true, links: false };
const LIKE_SMB: Lacks = Lacks { unnamed: true, links: true, rename_new: false };

mod in_memory {
    use super::*;

    async fn make() -> InMemory {
        InMemory(memory())
    }

    dfq::objects_tests!(make);
}

mod folder {
    use super::*;

    async fn make() -> Folder {
        Folder::new(&target_dir(), Lacks::default(), true)
    }

    dfq::objects_tests!(make);
}

mod tmpfs {
    use super::*;

    async fn make() -> Option<Folder> {
        let shm = Path::new("/dev/shm");
        tempfile::tempdir_in(shm).ok()?;
        Some(Folder::new(shm, Lacks::default(), true))
    }

    dfq::objects_tests!(make);
}

/// As NFS: no file without a name, and no rename that does not replace.
mod like_nfs {
    use super::*;

    async fn make() -> Folder {
        Folder::new(&target_dir(), LIKE_NFS, false)
    }

    dfq::objects_tests!(make);
}

/// As SMB: no hard links.
mod like_smb {
    use super::*;

    async fn make() -> Folder {
        Folder::new(&target_dir(), LIKE_SMB, false)
    }

    dfq::objects_tests!(make);
}

/// Where no means has one winner, swap is refused and nothing is written.
#[tokio::test]
async fn a_filesystem_without_any_means_cannot_swap() {
    let lacks = Lacks { unnamed: true, links: true, rename_new: true };
    let folder = Folder::new(&target_dir(), lacks, true);
    let (objects, name) = (folder.store(), dfq::conformance::objects::trial("x"));
    let refused = objects.swap(&name, None, b"first").await.unwrap_err();
    assert_eq!(refused.kind(), dfq::ErrorKind::Unsupported, "{refused}");
    assert_eq!(objects.load(&name).await.unwrap(), None);
}
