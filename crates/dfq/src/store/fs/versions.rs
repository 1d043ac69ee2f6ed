//! Swapping on a filesystem: every version is a file under its number, and the highest number is the content.
//!
//! ```text
//! versions/<name>/1  2  3 …
//! ```
//!
//! Invariants, and the steps that keep them:
//! 1. *The folder is born holding `1`, and is never removed.* It is staged and renamed into place.
//! 2. *The content is the highest version.* A reader starts at the highest name of a fresh listing (or at a hint
//!    that is under an hour old), probes upwards, and reads the last one that is there. If the next one exists by
//!    then, or what was read is a mark, it starts again.
//! 3. *Each version has one writer.* The new content is written, fsynced and linked as `n+1`; a writer that
//!    finds the name taken has lost. More than an hour after the read it is not linked any more.
//! 4. *A number is not used again while anybody may rely on it.* A superseded version becomes a *mark*: a
//!    small file is renamed over it. Marks go after a day, lowest first, and never the last 64. So a writer that
//!    was stalled for longer than that may link into a freed name. It finds out, because then version `n`, which
//!    is lower, has been freed too: it takes its link back and has lost. If `n` is a mark, its own version was
//!    superseded in the ordinary way: it has won.
//!
//! A name may be shown besides: the content is then also found under its plain name, where tools look (`shown`).
//!
//! What a crash can leave: something in `tmp/`, a version that is superseded and not marked, or marks that are old.
//! The next writers clean that up.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::Errno;

use super::publish::parent;
use super::{Inner, Meta, Staged, Sys, SysResult};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Swapped};
use crate::planted::{self, Planted};
use crate::store::Created;
use crate::store::objects::{Got, Head, Swap, Version};

/// How long what was read may be relied on: much shorter than marks are kept.
const RELIED_ON: Duration = Duration::from_secs(3600);

/// How long marks are kept, and how many versions below the highest at the least.
const MARKS_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
const MARKS_KEPT: u64 = 64;

/// What is in a mark. It is not empty: some network filesystems keep other things in the times of empty files.
pub(super) const MARK: &[u8] = b"superseded\n";

/// How often a reader that is overtaken starts again.
const ROUNDS: usize = 1000;

/// How often a folder is listed in which there seems to be nothing. A listing may miss a version that is replaced by a
/// mark and the next one that comes, both at that moment.
const LISTINGS: usize = 10;

/// How many names the hints are kept of.
const MOST_HINTS: usize = 10_000;

/// The name of the first version.
const FIRST: &str = "1";

/// Where the versions of names were last seen to end, and when; to lose this costs a listing.
pub(super) type Heads = Mutex<BTreeMap<String, (u64, Duration)>>;

fn tag(number: u64, inode: u64) -> String {
    format!("{number}.{inode}")
}

fn parse_tag(version: &Version) -> Result<(u64, u64)> {
    let parsed = version.tag().split_once('.').and_then(|(number, inode)| {
        Some((layout::parse_version_name(number)?, inode.parse().ok()?))
    });
    parsed.ok_or_else(|| {
        Error::invalid(format!("'{}' is not the version of a swapped name", version.tag()))
    })
}

/// What became of a new version.
enum Placed {
    Mine,
    Theirs,
}

impl<S: Sys> Inner<S> {
    /// The content of a swapped name, or the part of it in `range`.
    pub(super) fn load(&self, name: &Swapped, range: Option<Range<u64>>) -> Result<Option<Got>> {
        let dir = layout::versions_dir(name);
        let error = |errno| self.failed("read", &dir, errno);
        let seen = self.env.monotonic();
        let mut hint = self.hint(&dir, seen);
        let mut listings = 0;
        for _ in 0..ROUNDS {
            // Opened anew each time: NFS may remember that a name was missing in a folder that stays open. And if it
            // seems to be missing itself, the same may be so of the folder above.
            let opened = match planted::is(Planted::BirthOverlooked) {
                true => self.sys.open_dir(&self.root, &dir),
                false => self.surely(&dir, S::open_dir),
            };
            let folder = match opened {
                Ok(folder) => folder,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(error(errno)),
            };
            let start = match hint.take() {
                Some(start) => start,
                None => match self.highest(&dir).map_err(error)? {
                    Some(highest) => highest,
                    None if listings < LISTINGS && !planted::is(Planted::ListingBelieved) => {
                        listings += 1;
                        continue;
                    }
                    None => {
                        let shown = layout::below(&self.properties.address, &dir);
                        return Err(Error::damaged(format!("{shown} holds no version")));
                    }
                },
            };
            let number = self.probe_upwards(&folder, start).map_err(error)?;
            match self.read_version(name, &folder, number, range.clone()) {
                Ok(Some((bytes, meta))) => {
                    let next = (number + 1).to_string();
                    let is_last = planted::is(Planted::HeadNotProbed)
                        || !self.sys.exists(&folder, &next).map_err(error)?;
                    if is_last {
                        self.remember(&dir, number, seen);
                        let version = Version::new(tag(number, meta.inode)).seen_at(seen);
                        let head = Head { size: meta.size, modified: meta.modified, version };
                        return Ok(Some(Got { bytes, head }));
                    }
                }
                Ok(None) | Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => return Err(error(errno)),
            }
        }
        let message = format!("'{dir}' in {} does not stay as it is", self.properties.address);
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Reads a version, or a part of it; `None` if it is a mark.
    fn read_version(
        &self,
        name: &Swapped,
        folder: &S::Dir,
        number: u64,
        range: Option<Range<u64>>,
    ) -> SysResult<Option<(Vec<u8>, Meta)>> {
        let file = number.to_string();
        let (bytes, meta) = match range {
            None => self.sys.read(folder, &file, layout::read_limit(name.as_str()))?,
            Some(range) => {
                let length = range.end.saturating_sub(range.start).min(layout::LONGEST_READ);
                let length = usize::try_from(length).unwrap_or(0);
                let part = self.sys.read_part(folder, &file, range.start, length)?;
                if part.1.size != MARK.len() as u64 {
                    return Ok(Some(part));
                }
                // As long as a mark: only the whole tells.
                let whole = self.sys.read(folder, &file, part.1.size)?;
                return Ok((whole.0 != MARK && whole.1 == part.1).then_some(part));
            }
        };
        Ok((bytes != MARK).then_some((bytes, meta)))
    }

    fn highest(&self, dir: &str) -> SysResult<Option<u64>> {
        Ok(self.versions(dir)?.last().copied())
    }

    /// The numbers of all versions that have a name, ascending.
    pub(super) fn versions(&self, dir: &str) -> SysResult<Vec<u64>> {
        let mut listing = self.sys.list(&self.root, dir)?;
        let mut numbers = Vec::new();
        while let Some(entry) = self.sys.next(&mut listing) {
            numbers.extend(entry?.name.as_deref().and_then(layout::parse_version_name));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn probe_upwards(&self, folder: &S::Dir, start: u64) -> SysResult<u64> {
        let mut number = start;
        if planted::is(Planted::HeadNotProbed) {
            return Ok(number);
        }
        while self.sys.exists(folder, &(number + 1).to_string())? {
            number += 1;
        }
        Ok(number)
    }

    fn hint(&self, dir: &str, now: Duration) -> Option<u64> {
        let (number, at) = lock(&self.heads).get(dir).copied()?;
        (now.saturating_sub(at) < RELIED_ON).then_some(number)
    }

    fn remember(&self, dir: &str, number: u64, at: Duration) {
        let mut heads = lock(&self.heads);
        if heads.len() >= MOST_HINTS {
            heads.clear();
        }
        heads.insert(dir.to_owned(), (number, at));
    }

    /// See [`Objects::swap`](crate::store::Objects::swap).
    pub(super) fn swap(
        &self,
        name: &Swapped,
        expected: Option<&Version>,
        bytes: &[u8],
    ) -> Result<Swap> {
        if bytes == MARK {
            return Err(Error::invalid("a content that is swapped needs a nonce in it"));
        }
        self.means()?; // where no means works, neither does this
        match expected {
            None => self.give_birth(name, bytes),
            Some(version) => self.supersede(name, version, bytes),
        }
    }

    /// Step 1.
    fn give_birth(&self, name: &Swapped, bytes: &[u8]) -> Result<Swap> {
        let dir = layout::versions_dir(name);
        let error = |errno| self.failed("create", &dir, errno);
        if self.sys.exists(&self.root, &dir).map_err(error)? {
            return Ok(Swap::Lost);
        }
        let seen = self.env.monotonic();
        self.ensure_dir(layout::TMP, false)?;
        let staged = self.stage_folder(FIRST, bytes, true)?;
        let mine = self.sys.file_meta(&staged.file).map_err(error)?.inode;
        let moved = self.move_in(staged, &dir, true)?;
        self.sync_names(parent(&dir))?;
        if moved == Created::Exists {
            // It may be our own doing, if an answer was lost. The bytes tell, because they hold a nonce. The inode
            // would not: ours is free by now, and a mark of others may have it.
            let first = layout::below(&dir, FIRST);
            let there = self.sys.read(&self.root, &first, layout::read_limit(name.as_str()));
            match there {
                Ok((there, _)) if there == bytes => {}
                Ok(_) | Err(Errno::NOENT | Errno::STALE) => return Ok(Swap::Lost),
                Err(errno) => return Err(error(errno)),
            }
        }
        self.remember(&dir, 1, seen);
        self.show(name, None);
        Ok(Swap::Written(Version::new(tag(1, mine)).seen_at(seen)))
    }

    /// Makes the names of versions durable, and the folder's own: somebody else may have made it, and may not have come
    /// to that.
    fn sync_versions(&self, dir: &str) -> Result<()> {
        let error = |errno| self.failed("sync", dir, errno);
        let inode = self.sys.sync_dir(&self.root, dir).map_err(error)?;
        if lock(&self.known).get(dir) == Some(&inode) || planted::is(Planted::BirthNotSynced) {
            return Ok(());
        }
        self.sync_names(parent(dir))?;
        lock(&self.known).insert(dir.to_owned(), inode);
        Ok(())
    }

    /// See [`Objects::make_durable`](crate::store::Objects::make_durable).
    pub(super) fn make_durable(&self, name: &Swapped) -> Result<()> {
        let dir = layout::versions_dir(name);
        match self.sys.exists(&self.root, &dir) {
            Ok(true) => self.sync_versions(&dir),
            Ok(false) => Ok(()),
            Err(errno) => Err(self.failed("look at", &dir, errno)),
        }
    }

    fn is_inode(&self, at: &S::Dir, path: &str, inode: u64) -> SysResult<bool> {
        match self.sys.stat(at, path) {
            Ok(meta) => Ok(meta.inode == inode),
            Err(Errno::NOENT | Errno::STALE) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Steps 3 and 4.
    fn supersede(&self, name: &Swapped, expected: &Version, bytes: &[u8]) -> Result<Swap> {
        let dir = layout::versions_dir(name);
        let error = |errno| self.failed("write", &dir, errno);
        let (number, inode) = parse_tag(expected)?;
        let next = (number + 1).to_string();
        let folder = match self.sys.open_dir(&self.root, &dir) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(Swap::Lost),
            Err(errno) => return Err(error(errno)),
        };
        // What is lost already need not be written; and nothing is written beside a version that never was.
        let intact = self.is_inode(&folder, &number.to_string(), inode).map_err(error)?;
        if !intact || self.sys.exists(&folder, &next).map_err(error)? {
            return Ok(Swap::Lost);
        }
        let in_time = || {
            planted::is(Planted::MergedLate)
                || self.env.monotonic().saturating_sub(expected.seen()) < RELIED_ON
        };
        let seen = self.env.monotonic();
        let mut staged = self.stage(&dir, bytes).map_err(error)?;
        let written = self.write_version(&mut staged, &folder, &next, &in_time);
        self.unstage(&staged);
        let Some((Placed::Mine, mine, now)) = written.map_err(error)? else {
            return Ok(Swap::Lost);
        };
        if !planted::is(Planted::VersionNameNotSynced) {
            self.sync_versions(&dir)?;
        }
        if planted::is(Planted::NoLookBack) {
            return Ok(Swap::Written(Version::new(tag(number + 1, mine)).seen_at(seen)));
        }
        let shown = match self.sys.stat(&folder, &number.to_string()) {
            Ok(meta) if meta.inode == inode => {
                let shown = self.show(name, Some(inode));
                if shown {
                    self.mark(&folder, number);
                }
                shown
            }
            // A mark: others have gone on from our version. As long as what was read may be relied on, no
            // number from there on has been freed.
            Ok(_) if in_time() => self.show(name, Some(inode)),
            Ok(_) => {
                let message = format!(
                    "'{dir}': the write took too long, so it is not known whether it counts"
                );
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            // Freed, and so was the next: that it could be linked means nothing.
            Err(Errno::NOENT | Errno::STALE) => {
                if self.is_inode(&folder, &next, mine).map_err(error)? {
                    let _ = self.sys.unlink(&folder, &next);
                }
                return Ok(Swap::Lost);
            }
            Err(errno) => return Err(error(errno)),
        };
        self.remember(&dir, number + 1, seen);
        if shown && number % MARKS_KEPT == 0 {
            self.tidy(&folder, &dir, number + 1, now);
        }
        Ok(Swap::Written(Version::new(tag(number + 1, mine)).seen_at(seen)))
    }

    /// Makes a staged file durable and gives it the name of a version, unless it is too late for that. Answers
    /// its inode too, and the store's time.
    fn write_version(
        &self,
        staged: &mut Staged<S::File>,
        folder: &S::Dir,
        name: &str,
        in_time: &dyn Fn() -> bool,
    ) -> SysResult<Option<(Placed, u64, Timestamp)>> {
        let file = staged.file().ok_or(Errno::IO)?;
        if !planted::is(Planted::VersionNotSynced) {
            self.sys.sync_file(file)?;
        }
        let meta = self.sys.file_meta(file)?;
        if !in_time() {
            return Ok(None);
        }
        let placed = match self.name_staged(staged, folder, name) {
            Ok(Created::New) => Placed::Mine,
            // The name may be ours all the same, if an answer was lost.
            Ok(Created::Exists) => match self.is_inode(folder, name, meta.inode)? {
                true => Placed::Mine,
                false => Placed::Theirs,
            },
            Err(Errno::NOENT) if self.is_inode(folder, name, meta.inode)? => Placed::Mine,
            Err(errno) => return Err(errno),
        };
        Ok(Some((placed, meta.inode, meta.modified)))
    }

    /// Replaces a superseded version by a mark. If this fails, the next tidying does it.
    fn mark(&self, folder: &S::Dir, number: u64) {
        if planted::is(Planted::VersionsUnlinked) {
            let _ = self.sys.unlink(folder, &number.to_string());
            return;
        }
        if let Err(errno) = self.overwrite(folder, &number.to_string(), MARK) {
            tracing::debug!(number, %errno, "a superseded version was not marked");
        }
    }

    /// Frees old marks, the lowest first, and marks what crashes have left unmarked. Any failure leaves the rest to
    /// the next time.
    fn tidy(&self, folder: &S::Dir, dir: &str, head: u64, now: Timestamp) {
        let Ok(numbers) = self.versions(dir) else { return };
        let superseded = || numbers.iter().copied().filter(|number| *number < head);
        for number in superseded().take_while(|number| number + MARKS_KEPT < head) {
            let Ok((is_mark, written)) = self.look_at(folder, number) else { return };
            if !is_mark {
                self.mark(folder, number);
            }
            if !is_mark || written + MARKS_KEPT_FOR >= now {
                break;
            }
            if self.sys.unlink(folder, &number.to_string()).is_err() {
                return;
            }
        }
        // Since the last tidying; what is older was seen to then, or is once it is the lowest.
        for number in superseded().filter(|number| number + 2 * MARKS_KEPT >= head) {
            if self.look_at(folder, number).is_ok_and(|(is_mark, _)| !is_mark) {
                self.mark(folder, number);
            }
        }
    }

    /// Whether a version is a mark, and when it was written.
    fn look_at(&self, folder: &S::Dir, number: u64) -> SysResult<(bool, Timestamp)> {
        let (name, long) = (number.to_string(), MARK.len() as u64);
        let meta = self.sys.stat(folder, &name)?;
        let is_mark = meta.size == long && self.sys.read(folder, &name, long)?.0 == MARK;
        Ok((is_mark, meta.modified))
    }
}
