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

#[cfg(any(test, feature = "conformance"))]
pub mod fault;
mod publish;
mod sys;
mod tree;
mod watch;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::{Env, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::store::{Created, EntryKind, Properties};

pub use sys::{DirEntry, Meta, RealSys, Sys, SysResult};

/// A directory as a queue's storage.
pub struct Filesystem<S: Sys = RealSys> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Sys> {
    sys: S,
    root: S::Dir,
    properties: Properties,
    /// How files come to be. Found out by trying, once.
    means: OnceLock<Means>,
    /// Folders known to exist and to be folders.
    known: Mutex<HashSet<String>>,
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
pub struct Slot<S: Sys> {
    dir: S::Dir,
    path: String,
}

/// A lease's content, ready to be linked.
pub struct Draft<S: Sys> {
    bytes: Vec<u8>,
    /// One file for any number of names. It is never written again once it has one.
    unnamed: Option<S::File>,
}

/// Where a listing goes on.
pub struct Cursor<S: Sys> {
    listing: S::Listing,
}

/// A new file that has its content but not yet its name.
struct Staged<F> {
    file: F,
    /// Its name under `tmp/`, if it needed one.
    tmp: Option<String>,
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
        std::fs::create_dir_all(path).map_err(|e| {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
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
            concurrency: 1,
            time_resolution: sys::TICK,
            heartbeat_every: Duration::from_secs(60),
            notices_changes,
        };
        let inner = Inner {
            sys,
            root,
            staging_prefix: env.nonce(),
            properties,
            means: OnceLock::new(),
            known: Mutex::default(),
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

/// An error of a system call, in terms of what the caller should do.
fn failed(verb: &str, path: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT => ErrorKind::Full,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
        Errno::NOTDIR | Errno::LOOP | Errno::ISDIR => ErrorKind::Damaged,
        Errno::NOENT => ErrorKind::NotFound,
        _ => ErrorKind::Unavailable,
    };
    let why = match errno {
        Errno::NOTDIR => "there is something that is not a folder".to_owned(),
        Errno::LOOP => "there is a symbolic link where a file or folder should be".to_owned(),
        Errno::ISDIR => "it is not a regular file".to_owned(),
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
    fn tmp_name(&self) -> String {
        let count = self.staged.fetch_add(1, Ordering::Relaxed);
        format!("{}/{}-{count}", layout::TMP, self.staging_prefix)
    }

    /// Makes a folder and those above it, unless they are known to exist. With `durable`, its entry
    /// is on the disk: also if somebody else has just made it and may not have come to that.
    fn ensure_dir(&self, path: &str, durable: bool) -> Result<()> {
        if lock(&self.known).contains(path) {
            return Ok(());
        }
        match self.sys.stat(&self.root, path) {
            Ok(meta) if meta.kind == EntryKind::Folder => {}
            Ok(_) => return Err(failed("use", path, Errno::NOTDIR)),
            Err(Errno::NOENT) => {
                if let Some((parent, _)) = path.rsplit_once('/') {
                    self.ensure_dir(parent, durable)?;
                }
                match self.sys.mkdir(&self.root, path) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(failed("create", path, errno)),
                }
            }
            Err(errno) => return Err(failed("look at", path, errno)),
        }
        if durable {
            let parent = path.rsplit_once('/').map_or(".", |(parent, _)| parent);
            let synced = self.sys.sync_dir(&self.root, parent);
            synced.map_err(|errno| failed("sync", parent, errno))?;
        }
        lock(&self.known).insert(path.to_owned());
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
            Err(errno) => return Err(failed("write to", layout::TMP, errno)),
        };
        Ok(*self.means.get_or_init(|| means))
    }

    fn named_means(&self) -> Result<Means> {
        let write_error = |errno| failed("write to", layout::TMP, errno);
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

    /// Writes a new file, for a name in the folder `dir`, which exists.
    fn stage(&self, dir: &str, bytes: &[u8]) -> SysResult<Staged<S::File>> {
        if self.means.get() == Some(&Means::Unnamed) {
            let file = self.sys.create_unnamed(&self.root, dir)?;
            self.sys.write(&file, bytes)?;
            return Ok(Staged { file, tmp: None });
        }
        let tmp = self.tmp_name();
        let file = self.sys.create(&self.root, &tmp)?;
        if let Err(errno) = self.sys.write(&file, bytes) {
            let _ = self.sys.unlink(&self.root, &tmp);
            return Err(errno);
        }
        let tmp = Some(tmp);
        Ok(Staged { file, tmp })
    }

    /// Gives a staged file its name, if absent.
    fn place(&self, staged: &Staged<S::File>, at: &S::Dir, path: &str) -> SysResult<Created> {
        let placed = match (&staged.tmp, self.means.get()) {
            (None, _) => self.sys.link_file(&staged.file, at, path),
            (Some(tmp), Some(Means::Renamed)) => self.sys.rename_new(&self.root, tmp, at, path),
            (Some(tmp), _) => self.sys.link(tmp, at, path, &self.root),
        };
        match placed {
            Ok(()) => Ok(Created::New),
            Err(Errno::EXIST) => Ok(Created::Exists),
            Err(errno) => Err(errno),
        }
    }

    /// Takes away what staging left under `tmp/`.
    fn unstage(&self, staged: &Staged<S::File>) {
        if let Some(tmp) = &staged.tmp {
            let _ = self.sys.unlink(&self.root, tmp);
        }
    }

    /// Writes a file whole over whatever has its name. No fsync: what is replaced may be lost.
    fn overwrite(&self, at: &S::Dir, path: &str, bytes: &[u8]) -> SysResult<()> {
        let tmp = self.tmp_name();
        let file = self.sys.create(&self.root, &tmp)?;
        let done =
            self.sys.write(&file, bytes).and_then(|()| self.sys.rename(&self.root, &tmp, at, path));
        if done.is_err() {
            let _ = self.sys.unlink(&self.root, &tmp);
        }
        done
    }
}
