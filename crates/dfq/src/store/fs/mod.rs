//! A directory as the store: the default, for one host, NFSv4 and SMB.
//!
//! Invariants, and the calls that keep them:
//! - *A name appears with its whole content or not at all.* Tasks are staged as folders under `tmp/`
//!   and renamed into place; leases and records are files without a name (`O_TMPFILE`) that get one
//!   by `link`. Where `O_TMPFILE` does not exist, a named file under `tmp/` is linked; where `link`
//!   does not exist either, it is renamed with `RENAME_NOREPLACE`; where that is missing too, the
//!   store is refused.
//! - *Create-if-absent has one winner*: `link` and `RENAME_NOREPLACE` are atomic.
//! - *Durable means fsynced*: first the file, then (after it got its name) the folder that holds the
//!   name, and the folders above it when they are new. Batches start writing everything back before
//!   they wait for any of it.
//! - *A folder is the same folder from claim to ack*: it is held open, and used relative to that.
//!
//! What a crash can leave: entries under `tmp/` (nobody reads them; `purge` removes old ones), and a
//! task folder without `task.json` (whoever meets it removes it).

mod arrivals;
#[cfg(any(test, feature = "conformance"))]
pub mod fault;
mod fresh;
mod objects;
mod publish;
mod shown;
mod sys;
mod torn;
mod tree;
mod versions;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::{Env, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::planted::{self, Planted};
use crate::store::{Created, EntryKind, Properties};

pub use arrivals::{Arrivals, News};
pub use sys::{DirEntry, Meta, RealSys, Sys, SysResult};

/// How often a folder that was pruned under our hands is made again before we give up.
const PRUNED_RETRIES: usize = 8;

/// A directory as a queue's storage.
pub struct Filesystem<S: Sys = RealSys> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Sys> {
    sys: S,
    root: S::Dir,
    env: Env,
    /// Where the versions of swapped names were last seen to end.
    heads: versions::Heads,
    properties: Properties,
    /// How files come to be. Found out by trying, once.
    means: OnceLock<Means>,
    /// Folders known to exist and to be folders, and which they were.
    known: Mutex<BTreeMap<String, u64>>,
    /// A time with a fraction of a second was seen, so times here are fine enough to tell changes by.
    fine_times: AtomicBool,
    /// Makes names under `tmp/`: a nonce of this process, and a count.
    staging_prefix: String,
    staged: AtomicU64,
    watch: watch::Watch,
}

/// How a file gets its name together with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// `O_TMPFILE`, write, `link`.
    Unnamed,
    /// A file under `tmp/`, write, `link`, unlink.
    Linked,
    /// A file under `tmp/`, write, `rename` without replacing.
    Renamed,
}

/// A task's folder, held open.
pub struct TaskDir<S: Sys> {
    dir: S::Dir,
    path: String,
}

/// A lease's content, ready to be linked.
pub struct PreparedLease<S: Sys> {
    bytes: Vec<u8>,
    /// One file under `tmp/` for any number of further names; it is never written again. It keeps
    /// its own name meanwhile: a file that has lost its last one cannot get another.
    tmp: Option<String>,
    inner: Arc<Inner<S>>,
}

impl<S: Sys> Drop for PreparedLease<S> {
    fn drop(&mut self) {
        if let Some(tmp) = &self.tmp {
            let _ = self.inner.sys.unlink(&self.inner.root, tmp);
        }
    }
}

/// Where a listing goes on.
pub struct Cursor<S: Sys> {
    listing: S::Listing,
}

/// A new file that has its content but not yet its name.
enum Staged<F> {
    Unnamed(F),
    /// Under this name in `tmp/`. Closed before it gets its own: on NFS, others may see a file without
    /// its content until then.
    Named(String, Option<F>),
}

impl Filesystem<RealSys> {
    /// Opens the directory, which must exist.
    pub fn open(path: &Path, env: Env) -> Result<Self> {
        let root = RealSys::open_root(path);
        let root = root.map_err(|errno| failed("open", &path.display().to_string(), errno))?;
        // Whole, so that it still says where after a change of the working directory.
        let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let shown = whole.display().to_string();
        let notices = watch::is_local(&root);
        Ok(Self::with(RealSys, root, shown, env, notices))
    }

    /// Creates the directory if it is missing, and opens it.
    pub fn create(path: &Path, env: Env) -> Result<Self> {
        make_durably(path).map_err(|e| {
            let not_a_folder = e.kind() == std::io::ErrorKind::NotADirectory;
            let fallback = if not_a_folder { Errno::NOTDIR } else { Errno::IO };
            let errno = Errno::from_io_error(&e).unwrap_or(fallback);
            failed("create", &path.display().to_string(), errno)
        })?;
        Self::open(path, env)
    }
}

impl<S: Sys> Filesystem<S> {
    /// A store on the calls of `sys`, below the open directory `root`.
    pub fn with(sys: S, root: S::Dir, address: String, env: Env, notices_changes: bool) -> Self {
        let properties = Properties {
            provider: "filesystem",
            address,
            blocking: true,
            remote: false,
            heartbeat_every: Duration::from_secs(60),
            notices_changes,
        };
        let inner = Inner {
            sys,
            root,
            staging_prefix: env.nonce(),
            env,
            heads: versions::Heads::default(),
            properties,
            means: OnceLock::new(),
            known: Mutex::default(),
            fine_times: AtomicBool::new(false),
            staged: AtomicU64::new(0),
            watch: watch::Watch::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The system calls, for a test that wants a word with them.
    pub fn sys(&self) -> &S {
        &self.inner.sys
    }
}

/// Makes a folder and those above it, each on the disk before anything is put into it.
pub fn make_durably(path: &Path) -> std::io::Result<()> {
    make_folders(path, &mut |folder| std::fs::File::open(folder)?.sync_all())
}

fn make_folders(
    path: &Path,
    sync: &mut dyn FnMut(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // One look: between two, somebody else may make it.
    match std::fs::metadata(path) {
        Ok(there) if there.is_dir() => return Ok(()),
        Ok(_) => return Err(std::io::ErrorKind::NotADirectory.into()),
        Err(_) => {}
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    make_folders(parent, sync)?;
    match std::fs::create_dir(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists || !path.is_dir() => return Err(e),
        _ => {}
    }
    sync(parent)
}

/// An error of a system call, in terms of what the caller should do.
fn failed(verb: &str, path: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT => ErrorKind::Full,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
        Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::FBIG | Errno::INVAL => {
            ErrorKind::Damaged
        }
        Errno::NOENT => ErrorKind::NotFound,
        _ => ErrorKind::Unavailable,
    };
    let why = match errno {
        Errno::NOTDIR => "there is something that is not a folder".to_owned(),
        Errno::LOOP => "there is a symbolic link where a file or folder should be".to_owned(),
        Errno::ISDIR | Errno::NXIO => "it is not a regular file".to_owned(),
        Errno::FBIG => {
            "it is too large to be read (64 MiB for tasks and records, 1 MiB for all else)"
                .to_owned()
        }
        Errno::MFILE => "too many open files; raise the limit (ulimit -n)".to_owned(),
        other => {
            let text = std::io::Error::from(other).to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    };
    Error::new(kind, format!("cannot {verb} '{path}': {why}"))
}

/// The filesystem cannot do this at all.
fn unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM | Errno::ISDIR)
}

impl<S: Sys> Inner<S> {
    /// The error of a call on something below the root.
    fn failed(&self, verb: &str, path: &str, errno: Errno) -> Error {
        let address = &self.properties.address;
        match path {
            "." => failed(verb, address, errno),
            _ => failed(verb, &layout::below(address, path), errno),
        }
    }

    fn tmp_name(&self) -> String {
        let count = self.staged.fetch_add(1, Ordering::Relaxed);
        layout::below(layout::TMP, &format!("{}-{count}", self.staging_prefix))
    }

    /// Makes a folder and those above it, unless they are known to exist. With `durable`, its entry
    /// is on the disk: also if somebody else has just made it and may not have come to that. But not that
    /// of a due time, which may be removed until there is something in it: see [`Self::sync_names`].
    fn ensure_dir(&self, path: &str, durable: bool) -> Result<()> {
        if lock(&self.known).contains_key(path) {
            return Ok(());
        }
        let stat = || self.sys.stat(&self.root, path);
        let mut meta = stat();
        for _ in 0..PRUNED_RETRIES {
            if meta != Err(Errno::NOENT) {
                break;
            }
            if let Some((parent, _)) = path.rsplit_once('/') {
                self.ensure_dir(parent, durable)?;
            }
            match self.sys.mkdir(&self.root, path) {
                Ok(()) | Err(Errno::EXIST) => meta = stat(),
                Err(errno) => return Err(self.failed("create", path, errno)),
            }
        }
        let meta = meta.map_err(|errno| self.failed("look at", path, errno))?;
        if meta.kind != EntryKind::Folder {
            return Err(self.failed("use", path, Errno::NOTDIR));
        }
        // Folders of due times come and go: remembering them would take memory without end.
        let is_scheduled = path.starts_with(layout::SCHEDULED);
        let syncs = durable && !planted::is(Planted::NewFolderNotSynced);
        if syncs && !(is_scheduled && path.contains('/')) {
            self.sync_parent(path)?;
        }
        if !is_scheduled {
            lock(&self.known).insert(path.to_owned(), meta.inode);
        }
        Ok(())
    }

    fn sync_parent(&self, path: &str) -> Result<u64> {
        let parent = path.rsplit_once('/').map_or(".", |(parent, _)| parent);
        let synced = self.sys.sync_dir(&self.root, parent);
        synced.map_err(|errno| self.failed("sync", parent, errno))
    }

    /// Makes the names in a folder durable, and the folder itself, unless it is the one we know: it may have
    /// been removed while empty, and made anew by somebody who has not come to sync it.
    fn sync_names(&self, dir: &str) -> Result<()> {
        let inode = match self.sys.sync_dir(&self.root, dir) {
            Ok(inode) => inode,
            // Folders are pruned only when empty: what we made has gone on from there meanwhile. Whoever
            // moved it may not have come to sync that; what came before the removal is synced with it.
            Err(Errno::NOENT) => return self.sync_parent(dir).map(drop),
            Err(errno) => return Err(self.failed("sync", dir, errno)),
        };
        let is_known = lock(&self.known).get(dir) == Some(&inode);
        if is_known || planted::is(Planted::NewFolderNotSynced) {
            return Ok(());
        }
        self.sync_parent(dir)?;
        if let Some(known) = lock(&self.known).get_mut(dir) {
            *known = inode;
        }
        Ok(())
    }

    /// A folder that was known has gone: somebody pruned it while it was empty.
    fn forget_dir(&self, path: &str) {
        let mut known = lock(&self.known);
        known.remove(path);
        if let Some((parent, _)) = path.rsplit_once('/') {
            known.remove(parent);
        }
    }

    fn means(&self) -> Result<Means> {
        if let Some(means) = self.means.get() {
            return Ok(*means);
        }
        self.ensure_dir(layout::TMP, false)?;
        let name = self.tmp_name();
        let linked = self
            .sys
            .create_unnamed(&self.root, layout::TMP)
            .and_then(|file| self.sys.link_file(&file, &self.root, &name));
        let means = match linked {
            Ok(()) => {
                let _ = self.sys.unlink(&self.root, &name);
                Means::Unnamed
            }
            Err(errno) if unsupported(errno) || errno == Errno::NOENT => self.named_means()?,
            Err(errno) => return Err(self.failed("write to", layout::TMP, errno)),
        };
        Ok(*self.means.get_or_init(|| means))
    }

    fn named_means(&self) -> Result<Means> {
        let write_error = |errno| self.failed("write to", layout::TMP, errno);
        let (name, linked) = (self.tmp_name(), self.tmp_name());
        drop(self.sys.create(&self.root, &name).map_err(write_error)?);
        let answer = match self.sys.link(&name, &self.root, &linked, &self.root) {
            Ok(()) => Ok(Means::Linked),
            Err(_) => match self.sys.rename_new(&self.root, &name, &self.root, &linked) {
                Ok(()) => Ok(Means::Renamed),
                Err(errno) => Err(errno),
            },
        };
        let _ = self.sys.unlink(&self.root, &name);
        let _ = self.sys.unlink(&self.root, &linked);
        answer.map_err(|_| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the filesystem of '{}' has neither hard links nor renames that do not replace; \
                     two workers could claim the same task there",
                    self.properties.address
                ),
            )
        })
    }

    /// Does something under `tmp/`, which somebody may have removed.
    fn in_tmp<R>(&self, mut make: impl FnMut() -> SysResult<R>) -> SysResult<R> {
        match make() {
            Err(Errno::NOENT) => {
                self.forget_dir(layout::TMP);
                self.ensure_dir(layout::TMP, false).map_err(|_| Errno::NOENT)?;
                make()
            }
            answer => answer,
        }
    }

    /// Writes a new file, for a name in the folder `dir`.
    fn stage(&self, dir: &str, bytes: &[u8]) -> SysResult<Staged<S::File>> {
        if self.means.get() == Some(&Means::Unnamed) {
            let create = || self.sys.create_unnamed(&self.root, dir);
            let file = if dir == layout::TMP { self.in_tmp(create)? } else { create()? };
            self.sys.write(&file, bytes)?;
            return Ok(Staged::Unnamed(file));
        }
        let (tmp, file) = self.stage_named(bytes)?;
        Ok(Staged::Named(tmp, Some(file)))
    }

    fn stage_named(&self, bytes: &[u8]) -> SysResult<(String, S::File)> {
        let tmp = self.tmp_name();
        let file = self.in_tmp(|| self.sys.create(&self.root, &tmp))?;
        let mut written = self.sys.write(&file, bytes);
        if written.is_ok() && !self.properties.notices_changes {
            // On a network filesystem an error may show only now, and closing cannot report it.
            written = self.sys.sync_file(&file);
        }
        match written {
            Ok(()) => Ok((tmp, file)),
            Err(errno) => {
                let _ = self.sys.unlink(&self.root, &tmp);
                Err(errno)
            }
        }
    }

    /// Gives a staged file its name, if absent.
    fn name_staged(
        &self,
        staged: &mut Staged<S::File>,
        at: &S::Dir,
        path: &str,
    ) -> SysResult<Created> {
        let placed = match staged {
            Staged::Unnamed(file) => self.sys.link_file(file, at, path),
            Staged::Named(tmp, file) => {
                drop(file.take());
                match self.means.get() {
                    Some(Means::Renamed) => self.sys.rename_new(&self.root, tmp, at, path),
                    _ => self.sys.link(tmp, at, path, &self.root),
                }
            }
        };
        match placed {
            Ok(()) => Ok(Created::New),
            Err(Errno::EXIST) => Ok(Created::Exists),
            Err(errno) => Err(errno),
        }
    }

    /// Takes away what staging left under `tmp/`.
    fn unstage(&self, staged: &Staged<S::File>) {
        if let Staged::Named(tmp, _) = staged {
            let _ = self.sys.unlink(&self.root, tmp);
        }
    }

    /// Writes a file whole over whatever has its name. No fsync: what is replaced may be lost. `NOENT`
    /// means that the folder it was for is gone.
    fn overwrite(&self, at: &S::Dir, path: &str, bytes: &[u8]) -> SysResult<()> {
        let (tmp, file) = self.stage_named(bytes).map_err(|errno| match errno {
            Errno::NOENT => Errno::IO,
            other => other,
        })?;
        drop(file);
        if planted::is(Planted::ReplaceRemovesFirst) {
            let _ = self.sys.unlink(at, path);
        }
        let renamed = self.sys.rename(&self.root, &tmp, at, path);
        if renamed.is_err() {
            let _ = self.sys.unlink(&self.root, &tmp);
        }
        renamed
    }

    fn time_resolution(&self) -> Duration {
        if self.fine_times.load(Ordering::Relaxed) { sys::TICK } else { sys::COARSE }
    }
}

impl<F> Staged<F> {
    fn file(&self) -> Option<&F> {
        match self {
            Self::Unnamed(file) => Some(file),
            Self::Named(_, file) => file.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests;
