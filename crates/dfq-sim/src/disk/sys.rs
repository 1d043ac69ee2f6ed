//! The system calls of one process on the model.
//!
//! Invariant: every call enters the gate once before it is carried out, then happens as one step, and its answer is
//! told to the gate. A call that the gate fails changes nothing. The disk is not locked while a call is at the gate.

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use dfq::store::fs::{DirEntry, Meta, Sys, SysResult};

use super::handle::{Dir, File};
use super::listing::Listing;
use super::mount::{Mount, View};
use super::{Disk, errno_name};
use crate::seam::{Call, Fate, Gate};

/// Calls that may answer otherwise when they are made again. A new file is made once, by whatever client.
const REPEATED: [&str; 7] =
    ["link", "link_file", "rename", "rename_new", "unlink", "mkdir", "rmdir"];

/// The system calls of a process on a machine.
#[derive(Clone, Debug)]
pub struct DiskSys {
    /// What they act on.
    pub disk: Disk,
    /// How the machine sees it.
    pub mount: Mount,
    /// Where the process's calls come out.
    pub gate: Arc<dyn Gate>,
}

/// An answer in a few words.
struct Shown<'a, T>(&'a SysResult<T>);

/// What can be said of an answer in a few words.
trait Answer {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

impl<T: Answer> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(answer) => answer.show(f),
            Err(errno) => f.write_str(&errno_name(*errno)),
        }
    }
}

impl Answer for () {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ok")
    }
}

impl Answer for bool {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self { "yes" } else { "no" })
    }
}

impl Answer for u64 {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ok, #{self}")
    }
}

impl Answer for Dir {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ino.show(f)
    }
}

impl Answer for File {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ino.show(f)
    }
}

impl Answer for Listing {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ino.show(f)
    }
}

impl Answer for Meta {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, modified, size, inode } = self;
        write!(f, "{kind:?} #{inode}, {size} bytes, {modified}")
    }
}

impl Answer for (Vec<u8>, Meta) {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, #{}, {}", self.0.len(), self.1.inode, self.1.modified)
    }
}

impl Answer for Option<DirEntry> {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Some(entry) => write!(f, "{:?} {}", entry.kind, entry.name.as_deref().unwrap_or("?")),
            None => f.write_str("end"),
        }
    }
}

impl DiskSys {
    /// The calls of one process.
    pub fn new(disk: Disk, mount: Mount, gate: Arc<dyn Gate>) -> Self {
        Self { disk, mount, gate }
    }

    /// The queue's root, open.
    pub fn root(&self) -> Dir {
        self.disk.root()
    }

    fn ask<T: Answer>(
        &self,
        verb: &'static str,
        path: String,
        act: impl FnMut(&mut View<'_>) -> SysResult<T>,
    ) -> SysResult<T> {
        self.pass(Call { verb, path, changes: false }, act)
    }

    fn change<T: Answer>(
        &self,
        verb: &'static str,
        path: String,
        act: impl FnMut(&mut View<'_>) -> SysResult<T>,
    ) -> SysResult<T> {
        self.pass(Call { verb, path, changes: true }, act)
    }

    fn pass<T: Answer>(
        &self,
        call: Call,
        mut act: impl FnMut(&mut View<'_>) -> SysResult<T>,
    ) -> SysResult<T> {
        let answer = match self.gate.enter(&call) {
            Fate::Failed(Errno::OWNERDEAD) => return Err(Errno::OWNERDEAD),
            Fate::Failed(errno) => Err(errno),
            Fate::Repeated if REPEATED.contains(&call.verb) => {
                let _lost = self.disk.run(&self.mount, call.changes, &mut act);
                self.disk.run(&self.mount, call.changes, &mut act)
            }
            Fate::Done | Fate::Repeated => self.disk.run(&self.mount, call.changes, &mut act),
        };
        self.gate.answered(&call, &Shown(&answer));
        answer
    }
}

impl Sys for DiskSys {
    type Dir = Dir;
    type File = File;
    type Listing = Listing;

    fn open_dir(&self, at: &Dir, path: &str) -> SysResult<Dir> {
        self.ask("open_dir", at.join(path), |view| view.open_dir(at, path, true))
    }

    fn hold_dir(&self, at: &Dir, path: &str) -> SysResult<Dir> {
        self.ask("hold_dir", at.join(path), |view| view.open_dir(at, path, false))
    }

    fn read(&self, at: &Dir, path: &str, limit: u64) -> SysResult<(Vec<u8>, Meta)> {
        self.ask("read", at.join(path), |view| view.read(at, path, limit))
    }

    fn read_part(
        &self,
        at: &Dir,
        path: &str,
        from: u64,
        length: usize,
    ) -> SysResult<(Vec<u8>, Meta)> {
        self.ask("read_part", at.join(path), |view| view.read_part(at, path, from, length))
    }

    fn stat(&self, at: &Dir, path: &str) -> SysResult<Meta> {
        self.ask("stat", at.join(path), |view| view.stat(at, path))
    }

    fn file_meta(&self, file: &File) -> SysResult<Meta> {
        self.ask("file_meta", file.path.clone(), |view| view.file_meta(file))
    }

    fn exists(&self, at: &Dir, path: &str) -> SysResult<bool> {
        self.ask("exists", at.join(path), |view| view.exists(at, path))
    }

    fn list(&self, at: &Dir, path: &str) -> SysResult<Listing> {
        self.ask("list", at.join(path), |view| view.list(at, path))
    }

    fn next(&self, listing: &mut Listing) -> Option<SysResult<DirEntry>> {
        let path = listing.path.clone();
        self.ask("next", path, |view| view.next(listing).transpose()).transpose()
    }

    fn mkdir(&self, at: &Dir, path: &str) -> SysResult<()> {
        self.change("mkdir", at.join(path), |view| view.mkdir(at, path))
    }

    fn create(&self, at: &Dir, path: &str) -> SysResult<File> {
        self.change("create", at.join(path), |view| view.create(at, path))
    }

    fn create_unnamed(&self, at: &Dir, dir: &str) -> SysResult<File> {
        self.change("create_unnamed", at.join(dir), |view| view.create_unnamed(at, dir))
    }

    fn write(&self, file: &File, bytes: &[u8]) -> SysResult<()> {
        self.change("write", file.path.clone(), |view| view.write(file, bytes))
    }

    fn start_sync(&self, _: &File) {
        // Only a hint. What is not waited for may be lost.
    }

    fn sync_file(&self, file: &File) -> SysResult<()> {
        self.change("sync_file", file.path.clone(), |view| view.sync_file(file))
    }

    fn sync_dir(&self, at: &Dir, path: &str) -> SysResult<u64> {
        self.change("sync_dir", at.join(path), |view| view.sync_dir(at, path))
    }

    fn link_file(&self, file: &File, at: &Dir, path: &str) -> SysResult<()> {
        self.change("link_file", at.join(path), |view| view.link_file(file, at, path))
    }

    fn link(&self, from: &str, at: &Dir, path: &str, root: &Dir) -> SysResult<()> {
        let shown = format!("{} -> {}", root.join(from), at.join(path));
        self.change("link", shown, |view| view.link(from, at, path, root))
    }

    fn rename(&self, at: &Dir, from: &str, to_at: &Dir, to: &str) -> SysResult<()> {
        let shown = format!("{} -> {}", at.join(from), to_at.join(to));
        self.change("rename", shown, |view| view.rename((at, from), (to_at, to), false))
    }

    fn rename_new(&self, at: &Dir, from: &str, to_at: &Dir, to: &str) -> SysResult<()> {
        let shown = format!("{} -> {}", at.join(from), to_at.join(to));
        self.change("rename_new", shown, |view| view.rename((at, from), (to_at, to), true))
    }

    fn unlink(&self, at: &Dir, path: &str) -> SysResult<()> {
        self.change("unlink", at.join(path), |view| view.unlink(at, path))
    }

    fn rmdir(&self, at: &Dir, path: &str) -> SysResult<()> {
        self.change("rmdir", at.join(path), |view| view.rmdir(at, path))
    }

    fn touch(&self, at: &Dir, path: &str) -> SysResult<()> {
        self.change("touch", at.join(path), |view| view.touch(at, path))
    }
}
