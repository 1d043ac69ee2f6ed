//! System calls that stop, fail or tear at a point of the test's choosing.
//!
//! Every call that changes the tree is counted. A plan names one of them by its number: the process
//! "dies" before or after it (every later call fails, so nothing of it reaches the tree), or the call
//! fails with an errno and the process lives on, or its answer is lost. And others can be let in at a
//! chosen call, so that every order of two verbs can be tried. Modification times can be those of a
//! clock that a test puts forward.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::sys::{DirEntry, Meta, Sys, SysResult};
use crate::clock::{SkippingClock, lock};

/// What to do at which call, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies just before the call.
    StopBefore(usize),
    /// The process dies just after the call.
    StopAfter(usize),
    /// The process dies in the middle of it: of a write, half is done; other calls are not.
    Tear(usize),
    /// The call fails and does nothing.
    Fail(usize, Errno),
    /// The answer to the call is lost and it is made once more, as an NFS client does: who links or
    /// renames is then told that this cannot be done, although it has been. Of calls that are no
    /// different when repeated nothing is to be seen.
    Repeat(usize),
}

/// When others are let in.
#[derive(Debug, PartialEq, Eq)]
enum Moment {
    /// Before this call of those that change the tree.
    Change(usize),
    /// After a file of this name was read.
    Read(String),
}

type Others = Box<dyn FnOnce() + Send>;

/// Calls that answer otherwise when they are repeated. A new file is made once, by whatever client.
const REPEATED: [&str; 5] = ["link", "rename", "unlink", "mkdir", "rmdir"];

/// Calls that need room on the disk. A rename does as a rule not: there is a gap for the name.
const NEED_ROOM: [&str; 4] = ["mkdir", "create", "write", "link"];

/// But not this one: the file is empty, and no folder has its name.
const NEEDS_NO_ROOM: &str = "create unnamed";

/// What a dead process's calls answer.
pub const DEAD: Errno = Errno::OWNERDEAD;

#[derive(Default)]
struct State {
    plan: Option<Fault>,
    calls: Vec<String>,
    listed: usize,
    all_calls: usize,
    dead: bool,
    /// Changes below this folder fail with this errno.
    refused: Option<(String, Errno)>,
    /// The disk is full.
    full: bool,
    /// How many names were listed since the last other call, and the most there ever were.
    in_a_row: usize,
    most_in_a_row: usize,
    /// Files and folders that cannot be read, by their inodes.
    spoilt: BTreeMap<u64, Errno>,
    others: Option<(Moment, Others)>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at call {}", self.plan, self.calls.len())
    }
}

/// What a filesystem may be without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// `O_TMPFILE`.
    pub unnamed: bool,
    /// Hard links.
    pub links: bool,
    /// `RENAME_NOREPLACE`.
    pub rename_new: bool,
}

/// Calls that go through to `S`, or not.
#[derive(Clone, Debug)]
pub struct FaultSys<S> {
    inner: S,
    lacks: Lacks,
    clock: Option<SkippingClock>,
    state: Arc<Mutex<State>>,
}

impl<S> FaultSys<S> {
    /// All goes well until [`FaultSys::arm`].
    pub fn new(inner: S) -> Self {
        Self::lacking(inner, Lacks::default())
    }

    /// A filesystem that is without something.
    pub fn lacking(inner: S, lacks: Lacks) -> Self {
        Self { inner, lacks, clock: None, state: Arc::default() }
    }

    /// Files are as old as this clock says.
    #[must_use]
    pub fn with_clock(mut self, clock: SkippingClock) -> Self {
        self.clock = Some(clock);
        self
    }

    fn as_the_clock_says(&self, meta: Meta) -> Meta {
        let shown = |clock: &SkippingClock| clock.shown(meta.modified);
        Meta { modified: self.clock.as_ref().map_or(meta.modified, shown), ..meta }
    }

    /// From now on, counts calls from 0 and carries out `plan`.
    pub fn arm(&self, plan: Option<Fault>) {
        let mut state = lock(&self.state);
        state.plan = plan;
        state.calls.clear();
        state.all_calls = 0;
        state.listed = 0;
    }

    /// How many calls there were since [`FaultSys::arm`], also those that change nothing.
    pub fn all_calls(&self) -> usize {
        lock(&self.state).all_calls
    }

    /// How many names were listed since [`FaultSys::arm`].
    pub fn listed(&self) -> usize {
        lock(&self.state).listed
    }

    /// Makes every change that names something in `folder` fail, until told otherwise. One folder at a time: the
    /// last that was named.
    pub fn refuse(&self, folder: &str, errno: Option<Errno>) {
        lock(&self.state).refused = errno.map(|errno| (folder.to_owned(), errno));
    }

    /// From now on the disk is full, or not any more: whatever needs room fails.
    pub fn fill(&self, full: bool) {
        lock(&self.state).full = full;
    }

    /// The most names that were listed in a row, with no other call in between.
    pub fn most_listed_in_a_row(&self) -> usize {
        lock(&self.state).most_in_a_row
    }

    /// Makes every read of the file, or listing of the folder, with this inode fail, until told otherwise.
    pub fn spoil(&self, inode: u64, errno: Option<Errno>) {
        let spoilt = &mut lock(&self.state).spoilt;
        match errno {
            Some(errno) => _ = spoilt.insert(inode, errno),
            None => _ = spoilt.remove(&inode),
        }
    }

    /// Runs `others` just before the changing call with this number, counted from now.
    pub fn before_change(&self, at: usize, others: impl FnOnce() + Send + 'static) {
        self.arm(None);
        lock(&self.state).others = Some((Moment::Change(at), Box::new(others)));
    }

    /// Runs `others` once a file of this name was read.
    pub fn after_read(&self, name: &str, others: impl FnOnce() + Send + 'static) {
        lock(&self.state).others = Some((Moment::Read(name.to_owned()), Box::new(others)));
    }

    /// The others are still waiting for their moment; they need not wait any longer.
    pub fn still_waiting(&self) -> bool {
        lock(&self.state).others.take().is_some()
    }

    fn let_in(&self, moment: &Moment) {
        let mut state = lock(&self.state);
        let due = state.others.take_if(|(when, _)| when == moment);
        drop(state);
        if let Some((_, others)) = due {
            others();
        }
    }

    /// The changing calls since [`FaultSys::arm`], in words.
    pub fn calls(&self) -> Vec<String> {
        lock(&self.state).calls.clone()
    }

    fn alive(&self) -> SysResult<()> {
        let mut state = lock(&self.state);
        state.all_calls += 1;
        state.in_a_row = 0;
        if state.dead { Err(DEAD) } else { Ok(()) }
    }

    fn change<T>(
        &self,
        what: impl FnOnce() -> String,
        call: impl Fn() -> SysResult<T>,
        half: impl FnOnce(),
    ) -> SysResult<T> {
        let number = lock(&self.state).calls.len();
        self.let_in(&Moment::Change(number));
        let mut state = lock(&self.state);
        if state.dead {
            return Err(DEAD);
        }
        let number = state.calls.len();
        let what = what();
        let repeats = REPEATED.iter().any(|verb| what.starts_with(verb));
        let refused = state.refused.as_ref().filter(|(folder, _)| what.contains(folder.as_str()));
        let needs_room = NEED_ROOM.iter().any(|verb| what.starts_with(verb));
        let no_room = state.full && needs_room && !what.starts_with(NEEDS_NO_ROOM);
        let refused = refused.map(|(_, errno)| *errno).or(no_room.then_some(Errno::NOSPC));
        state.calls.push(what);
        state.all_calls += 1;
        state.in_a_row = 0;
        if let Some(errno) = refused {
            return Err(errno);
        }
        match state.plan {
            Some(Fault::StopBefore(at)) if at == number => {
                state.dead = true;
                Err(DEAD)
            }
            Some(Fault::Tear(at)) if at == number => {
                state.dead = true;
                drop(state);
                half();
                Err(DEAD)
            }
            Some(Fault::StopAfter(at)) if at == number => {
                state.dead = true;
                drop(state);
                let _ = call();
                Err(DEAD)
            }
            Some(Fault::Fail(at, errno)) if at == number => Err(errno),
            Some(Fault::Repeat(at)) if at == number && repeats => {
                drop(state);
                call()?;
                call()
            }
            _ => {
                drop(state);
                let _still = self.clock.as_ref().map(SkippingClock::stands_still);
                call()
            }
        }
    }
}

fn without<T>(lacks: bool, call: impl FnOnce() -> SysResult<T>) -> SysResult<T> {
    if lacks { Err(Errno::OPNOTSUPP) } else { call() }
}

impl<S: Sys> Sys for FaultSys<S> {
    type Dir = S::Dir;
    type File = S::File;
    type Listing = S::Listing;

    fn open_dir(&self, at: &S::Dir, path: &str) -> SysResult<S::Dir> {
        self.alive()?;
        self.inner.open_dir(at, path)
    }

    fn hold_dir(&self, at: &S::Dir, path: &str) -> SysResult<S::Dir> {
        self.alive()?;
        self.inner.hold_dir(at, path)
    }

    fn read(&self, at: &S::Dir, path: &str, limit: u64) -> SysResult<(Vec<u8>, Meta)> {
        self.alive()?;
        let read = self.inner.read(at, path, limit);
        self.let_in(&Moment::Read(path.to_owned()));
        let (bytes, meta) = read?;
        match lock(&self.state).spoilt.get(&meta.inode) {
            Some(errno) => Err(*errno),
            None => Ok((bytes, self.as_the_clock_says(meta))),
        }
    }

    fn read_part(
        &self,
        at: &S::Dir,
        path: &str,
        from: u64,
        length: usize,
    ) -> SysResult<(Vec<u8>, Meta)> {
        self.alive()?;
        let read = self.inner.read_part(at, path, from, length);
        read.map(|(bytes, meta)| (bytes, self.as_the_clock_says(meta)))
    }

    fn stat(&self, at: &S::Dir, path: &str) -> SysResult<Meta> {
        self.alive()?;
        self.inner.stat(at, path).map(|meta| self.as_the_clock_says(meta))
    }

    fn file_meta(&self, file: &S::File) -> SysResult<Meta> {
        self.alive()?;
        self.inner.file_meta(file).map(|meta| self.as_the_clock_says(meta))
    }

    fn exists(&self, at: &S::Dir, path: &str) -> SysResult<bool> {
        self.alive()?;
        self.inner.exists(at, path)
    }

    fn list(&self, at: &S::Dir, path: &str) -> SysResult<S::Listing> {
        self.alive()?;
        let spoilt = lock(&self.state).spoilt.clone();
        if !spoilt.is_empty()
            && let Some(errno) = spoilt.get(&self.inner.stat(at, path)?.inode)
        {
            return Err(*errno);
        }
        self.inner.list(at, path)
    }

    fn next(&self, listing: &mut S::Listing) -> Option<SysResult<DirEntry>> {
        let mut state = lock(&self.state);
        state.in_a_row += 1;
        state.listed += 1;
        state.most_in_a_row = state.most_in_a_row.max(state.in_a_row);
        drop(state);
        self.inner.next(listing)
    }

    fn mkdir(&self, at: &S::Dir, path: &str) -> SysResult<()> {
        self.change(|| format!("mkdir {path}"), || self.inner.mkdir(at, path), || {})
    }

    fn create(&self, at: &S::Dir, path: &str) -> SysResult<S::File> {
        self.change(|| format!("create {path}"), || self.inner.create(at, path), || {})
    }

    fn create_unnamed(&self, at: &S::Dir, dir: &str) -> SysResult<S::File> {
        self.change(
            || format!("create unnamed in {dir}"),
            || without(self.lacks.unnamed, || self.inner.create_unnamed(at, dir)),
            || {},
        )
    }

    fn write(&self, file: &S::File, bytes: &[u8]) -> SysResult<()> {
        self.change(
            || format!("write {} bytes", bytes.len()),
            || self.inner.write(file, bytes),
            || {
                let _ = self.inner.write(file, &bytes[..bytes.len() / 2]);
            },
        )
    }

    fn start_sync(&self, file: &S::File) {
        if self.alive().is_ok() {
            self.inner.start_sync(file);
        }
    }

    fn sync_file(&self, file: &S::File) -> SysResult<()> {
        self.change(|| "sync file".to_owned(), || self.inner.sync_file(file), || {})
    }

    fn sync_dir(&self, at: &S::Dir, path: &str) -> SysResult<u64> {
        self.change(|| format!("sync {path}"), || self.inner.sync_dir(at, path), || {})
    }

    fn link_file(&self, file: &S::File, at: &S::Dir, path: &str) -> SysResult<()> {
        self.change(
            || format!("link {path}"),
            || without(self.lacks.links, || self.inner.link_file(file, at, path)),
            || {},
        )
    }

    fn link(&self, from: &str, at: &S::Dir, path: &str, root: &S::Dir) -> SysResult<()> {
        self.change(
            || format!("link {from} to {path}"),
            || without(self.lacks.links, || self.inner.link(from, at, path, root)),
            || {},
        )
    }

    fn rename(&self, at: &S::Dir, from: &str, to_at: &S::Dir, to: &str) -> SysResult<()> {
        self.change(
            || format!("rename {from} over {to}"),
            || self.inner.rename(at, from, to_at, to),
            || {},
        )
    }

    fn rename_new(&self, at: &S::Dir, from: &str, to_at: &S::Dir, to: &str) -> SysResult<()> {
        self.change(
            || format!("rename {from} to {to}"),
            || without(self.lacks.rename_new, || self.inner.rename_new(at, from, to_at, to)),
            || {},
        )
    }

    fn unlink(&self, at: &S::Dir, path: &str) -> SysResult<()> {
        self.change(|| format!("unlink {path}"), || self.inner.unlink(at, path), || {})
    }

    fn rmdir(&self, at: &S::Dir, path: &str) -> SysResult<()> {
        self.change(|| format!("rmdir {path}"), || self.inner.rmdir(at, path), || {})
    }

    fn touch(&self, at: &S::Dir, path: &str) -> SysResult<()> {
        self.change(|| format!("touch {path}"), || self.inner.touch(at, path), || {})
    }
}
