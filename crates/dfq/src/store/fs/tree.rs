//! The [`Tree`] verbs on a directory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::io::Errno;

use super::publish::parent;
use super::{Cursor, Filesystem, Inner, Means, PreparedLease, Slot, Sys};
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::model::Generation;
use crate::store::{
    Created, Entry, EntryKind, Page, Part, Probe, Properties, Stamp, Stored, StoredTask, Tree,
};

/// A folder that is empty now but takes this much was once full. On ext4 it would stay slow to list
/// for ever, so it is removed; the next push makes a new one.
const BLOATED_BYTES: u64 = 64 * 1024;

/// How often a listing of leases that has gaps is taken again. Gaps that stay were made by hand.
const LISTED_AGAIN: usize = 4;

impl<S: Sys> Inner<S> {
    fn read(&self, path: &str) -> Result<Option<Stored>> {
        match self.sys.read(&self.root, path, layout::read_limit(path)) {
            Ok((bytes, meta)) => Ok(Some(Stored { bytes, modified: meta.modified })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("read", path, errno)),
        }
    }

    /// The same within a task's folder. ESTALE: on NFS, another client has removed it.
    fn read_in(&self, slot: &Slot<S>, name: &str) -> Result<Option<Stored>> {
        match self.sys.read(&slot.dir, name, layout::read_limit(name)) {
            Ok((bytes, meta)) => Ok(Some(Stored { bytes, modified: meta.modified })),
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(errno) => Err(self.failed("read", &slot.shown(name), errno)),
        }
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.sys.exists(&self.root, path).map_err(|errno| self.failed("look at", path, errno))
    }

    fn exists_in(&self, slot: &Slot<S>, name: &str) -> Result<bool> {
        match self.sys.exists(&slot.dir, name) {
            Err(Errno::STALE) => Ok(false),
            answer => answer.map_err(|errno| self.failed("look at", &slot.shown(name), errno)),
        }
    }

    fn list(&self, dir: &str, from: Option<Cursor<S>>, limit: usize) -> Result<Page<Cursor<S>>> {
        let mut entries = Vec::new();
        let mut cursor = match from {
            Some(cursor) => cursor,
            None => match self.sys.list(&self.root, dir) {
                Ok(listing) => Cursor { listing },
                Err(Errno::NOENT) => return Ok(Page { entries, next: None }),
                Err(errno) => return Err(self.failed("list", dir, errno)),
            },
        };
        while entries.len() < limit {
            match self.sys.next(&mut cursor.listing) {
                None => return Ok(Page { entries, next: None }),
                Some(Ok(entry)) => {
                    let kind = if entry.name.is_some() { entry.kind } else { EntryKind::Other };
                    let name = entry.name.unwrap_or_else(|| "(a name that is no text)".to_owned());
                    entries.push(Entry { name, kind });
                }
                Some(Err(Errno::NOENT | Errno::STALE)) => return Ok(Page { entries, next: None }),
                Some(Err(errno)) => return Err(self.failed("list", dir, errno)),
            }
        }
        Ok(Page { entries, next: Some(cursor) })
    }

    /// Removes an empty folder that is of no further use. Fails harmlessly when it is not empty.
    fn prune(&self, dir: &str) {
        let Some((place, _)) = dir.split_once('/') else { return };
        let bloated =
            || self.sys.stat(&self.root, dir).is_ok_and(|meta| meta.size >= BLOATED_BYTES);
        if place == layout::SCHEDULED || bloated() {
            let _ = self.sys.rmdir(&self.root, dir);
        }
    }

    /// Attempts are numbered without gaps, so a listing that has one, or lacks the last, was taken
    /// while a file was being replaced: some filesystems then list it twice or not at all.
    fn leases(&self, slot: &Slot<S>) -> Result<Vec<u32>> {
        let mut attempts = self.list_leases(slot)?;
        for _ in 0..LISTED_AGAIN {
            let last = attempts.last().copied().unwrap_or(0);
            let whole = attempts.len() == last as usize
                && !self.exists_in(slot, &layout::lease_name(last.saturating_add(1)))?;
            if whole {
                break;
            }
            attempts = self.list_leases(slot)?;
        }
        Ok(attempts)
    }

    fn list_leases(&self, slot: &Slot<S>) -> Result<Vec<u32>> {
        let mut listing = match self.sys.list(&slot.dir, ".") {
            Ok(listing) => listing,
            Err(Errno::NOENT | Errno::STALE) => return Ok(Vec::new()),
            Err(errno) => return Err(self.failed("list", &slot.path, errno)),
        };
        let mut attempts = Vec::new();
        while let Some(entry) = self.sys.next(&mut listing) {
            let entry = entry.map_err(|errno| self.failed("list", &slot.path, errno))?;
            attempts.extend(entry.name.as_deref().and_then(layout::parse_lease_name));
        }
        attempts.sort_unstable();
        attempts.dedup();
        Ok(attempts)
    }

    fn unlink_in(&self, slot: &Slot<S>, name: &str) -> Result<()> {
        match self.sys.unlink(&slot.dir, name) {
            Ok(()) | Err(Errno::NOENT | Errno::STALE) => Ok(()),
            Err(errno) => Err(self.failed("remove", &slot.shown(name), errno)),
        }
    }

    fn clean(&self, slot: &Slot<S>, finished: bool, leases: &[u32]) -> Result<()> {
        let in_slot = |name: &str| self.unlink_in(slot, name);
        if finished {
            in_slot(layout::TASK)?;
        }
        for attempt in leases {
            in_slot(&layout::lease_name(*attempt))?;
        }
        let remove = || self.sys.rmdir(&self.root, &slot.path);
        let mut removed = remove();
        if matches!(removed, Err(Errno::NOTEMPTY | Errno::EXIST)) {
            // A lease that we did not know of; or a file that is not ours, which stays.
            for attempt in self.leases(slot)? {
                in_slot(&layout::lease_name(attempt))?;
            }
            removed = remove();
        }
        match removed {
            Ok(()) | Err(Errno::NOENT | Errno::STALE | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.failed("remove", &slot.path, errno)),
        }
    }

    /// The filesystem's clock: the time of an empty file without a name; where there is no such thing, of a
    /// small one in `tmp/`. On a full disk the settings are touched: not something in `tmp/`, for that
    /// wakes every worker.
    pub(super) fn now(&self) -> Result<Timestamp> {
        let now = match self.time_of_a_new_file() {
            Err(error) if error.kind() == ErrorKind::Full => {
                // A tree that another program has made may be without.
                let touched = [layout::SETTINGS, "."].into_iter().find_map(|path| {
                    let touched = self.sys.touch(&self.root, path);
                    touched.and_then(|()| self.sys.stat(&self.root, path)).ok()
                });
                touched.ok_or(error)?.modified
            }
            answer => answer?,
        };
        if now.subsec_nanosecond() != 0 {
            self.fine_times.store(true, Ordering::Relaxed);
        }
        Ok(now)
    }

    fn time_of_a_new_file(&self) -> Result<Timestamp> {
        let error = |errno| self.failed("write to", layout::TMP, errno);
        if self.means()? == Means::Unnamed {
            let file = self.in_tmp(|| self.sys.create_unnamed(&self.root, layout::TMP));
            let meta = file.and_then(|file| self.sys.file_meta(&file));
            return Ok(meta.map_err(error)?.modified);
        }
        // Written to: some network filesystems keep other things in the times of a file that is empty.
        let staged = self.stage(layout::TMP, b"\n").map_err(error)?;
        let meta = staged.file().map_or(Err(Errno::IO), |file| self.sys.file_meta(file));
        self.unstage(&staged);
        Ok(meta.map_err(error)?.modified)
    }

    fn create_lease(
        &self,
        slot: &Slot<S>,
        attempt: u32,
        prepared: &PreparedLease<S>,
    ) -> Result<Created> {
        let name = layout::lease_name(attempt);
        let linked = match &prepared.tmp {
            Some(tmp) => self.sys.link(tmp, &slot.dir, &name, &self.root),
            None => Err(Errno::NOENT),
        };
        let placed = match linked {
            Ok(()) => Ok(Created::New),
            Err(Errno::EXIST) => Ok(Created::Exists),
            // Perhaps it is the prepared file that is gone, not the folder: with a new file we shall know.
            Err(Errno::NOENT) => self.stage(layout::TMP, &prepared.bytes).and_then(|mut staged| {
                let placed = self.name_staged(&mut staged, &slot.dir, &name);
                self.unstage(&staged);
                placed
            }),
            Err(errno) => Err(errno),
        };
        match placed {
            Ok(created) => Ok(created),
            Err(Errno::NOENT | Errno::STALE) => Ok(Created::Exists),
            Err(errno) => Err(self.failed("create", &slot.shown(&name), errno)),
        }
    }

    /// Where the records of an id end. They have no gaps, so doubling and halving finds it.
    fn last_life(&self, paths: &dyn Fn(Generation) -> [String; 2]) -> Result<Option<Generation>> {
        let finished = |generation| {
            let [completed, failed] = paths(generation);
            Ok::<_, Error>(self.exists(&completed)? || self.exists(&failed)?)
        };
        if !finished(1)? {
            return Ok(None);
        }
        let (mut there, mut missing) = (1_u32, 2_u32);
        while finished(missing)? {
            there = missing;
            missing = missing.checked_mul(2).ok_or_else(|| {
                Error::damaged("a task id with more than two thousand million lives")
            })?;
        }
        while missing - there > 1 {
            let middle = there + (missing - there) / 2;
            if finished(middle)? { there = middle } else { missing = middle }
        }
        Ok(Some(there))
    }
}

impl<S: Sys> Slot<S> {
    /// The path of a file in the folder, for messages.
    fn shown(&self, name: &str) -> String {
        layout::below(&self.path, name)
    }
}

#[async_trait]
impl<S: Sys> Tree for Filesystem<S> {
    type Slot = Slot<S>;
    type PreparedLease = PreparedLease<S>;
    type Cursor = Cursor<S>;

    fn properties(&self) -> &Properties {
        &self.inner.properties
    }

    fn time_resolution(&self) -> Duration {
        self.inner.time_resolution()
    }

    async fn read(&self, path: &str) -> Result<Option<Stored>> {
        self.inner.read(path)
    }

    async fn read_part(&self, path: &str, from: u64, length: usize) -> Result<Option<Part>> {
        match self.inner.sys.read_part(&self.inner.root, path, from, length) {
            Ok((bytes, meta)) => Ok(Some(Part { bytes, size: meta.size })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.inner.failed("read", path, errno)),
        }
    }

    async fn secure(&self, paths: &[String], durable: bool) -> Result<()> {
        let dirs: BTreeSet<&str> = paths.iter().map(|path| parent(path)).collect();
        for dir in dirs.into_iter().filter(|_| durable) {
            match self.inner.sync_names(dir) {
                // Nothing was ever there, or it has gone on.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                synced => synced?,
            }
        }
        Ok(())
    }

    async fn create(&self, path: &str, bytes: &[u8]) -> Result<Created> {
        let answers = self.inner.commit(&[(path.to_owned(), bytes.to_vec())], true);
        answers.into_iter().next().unwrap_or(Ok(Created::Exists))
    }

    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let inner = &self.inner;
        inner.ensure_dir(layout::TMP, false)?;
        if let Some((dir, _)) = path.rsplit_once('/') {
            inner.ensure_dir(dir, false)?;
        }
        match inner.overwrite(&inner.root, path, bytes) {
            // Nothing there to rename: it has been, and the answer was lost?
            Err(Errno::NOENT) if inner.read(path)?.is_some_and(|there| there.bytes == bytes) => {
                Ok(())
            }
            answer => answer.map_err(|errno| inner.failed("write", path, errno)),
        }
    }

    async fn remove(&self, path: &str) -> Result<()> {
        match self.inner.sys.unlink(&self.inner.root, path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.inner.failed("remove", path, errno)),
        }
    }

    async fn list(
        &self,
        dir: &str,
        from: Option<Cursor<S>>,
        limit: usize,
    ) -> Result<Page<Cursor<S>>> {
        self.inner.list(dir, from, limit)
    }

    async fn last_life(
        &self,
        paths: &(dyn for<'a> Fn(Generation) -> [String; 2] + Sync),
    ) -> Result<Option<Generation>> {
        self.inner.last_life(paths)
    }

    async fn now(&self) -> Result<Timestamp> {
        self.inner.now()
    }

    async fn stamp(&self, dir: &str, now: Timestamp) -> Result<Option<Stamp>> {
        match self.inner.sys.stat(&self.inner.root, dir) {
            // A folder changed within the current tick can change again without showing it.
            Ok(meta) if meta.modified + self.inner.time_resolution() * 2 >= now => Ok(None),
            Ok(meta) => Ok(Some(Stamp::At(meta.modified))),
            Err(Errno::NOENT) => Ok(Some(Stamp::Missing)),
            Err(errno) => Err(self.inner.failed("look at", dir, errno)),
        }
    }

    async fn prune(&self, dir: &str) -> Result<()> {
        self.inner.prune(dir);
        Ok(())
    }

    async fn changed(&self) {
        self.inner.watch.changed(&self.inner.properties).await;
    }

    async fn ring(&self) {
        let _ = self.inner.sys.touch(&self.inner.root, layout::TMP);
    }

    async fn publish(&self, tasks: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>> {
        self.inner.publish(tasks, durable)
    }

    async fn promote(&self, from: &str, to: &str, durable: bool) -> Result<Created> {
        let moved = self.inner.rename_folder(from, to, durable)?;
        if durable {
            self.inner.sync_names(to.rsplit_once('/').map_or(".", |(dir, _)| dir))?;
        }
        Ok(moved.unwrap_or(Created::Exists))
    }

    async fn open(&self, dir: &str) -> Result<Option<Slot<S>>> {
        match self.inner.sys.hold_dir(&self.inner.root, dir) {
            Ok(opened) => {
                let path = dir.to_owned();
                Ok(Some(Slot { dir: opened, path }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.inner.failed("open", dir, errno)),
        }
    }

    async fn prepare_lease(&self, bytes: &[u8]) -> Result<PreparedLease<S>> {
        let tmp = match self.inner.means()? {
            Means::Unnamed | Means::Linked => {
                let staged = self.inner.stage_named(bytes);
                Some(staged.map_err(|errno| self.inner.failed("write to", layout::TMP, errno))?.0)
            }
            Means::Renamed => None,
        };
        Ok(PreparedLease { bytes: bytes.to_vec(), tmp, inner: Arc::clone(&self.inner) })
    }

    async fn touch_lease(&self, slot: &Slot<S>, attempt: u32) -> Result<()> {
        let name = layout::lease_name(attempt);
        let touched = self.inner.sys.touch(&slot.dir, &name);
        touched.map_err(|errno| self.inner.failed("touch", &slot.shown(&name), errno))
    }

    async fn secure_leases(&self, slot: &Slot<S>) -> Result<()> {
        match self.inner.sys.sync_dir(&slot.dir, ".") {
            // The task was finished, and its folder removed: so is every token of it.
            Ok(_) | Err(Errno::NOENT | Errno::STALE) => Ok(()),
            Err(errno) => Err(self.inner.failed("sync", &slot.path, errno)),
        }
    }

    async fn create_lease(
        &self,
        slot: &Slot<S>,
        attempt: u32,
        prepared: &PreparedLease<S>,
    ) -> Result<Created> {
        self.inner.create_lease(slot, attempt, prepared)
    }

    async fn replace_lease(&self, slot: &Slot<S>, attempt: u32, bytes: &[u8]) -> Result<()> {
        let name = layout::lease_name(attempt);
        let inner = &self.inner;
        inner.ensure_dir(layout::TMP, false)?;
        let written = inner.overwrite(&slot.dir, &name, bytes);
        written.map_err(|errno| self.inner.failed("write", &slot.shown(&name), errno))
    }

    async fn leases(&self, slot: &Slot<S>) -> Result<Vec<u32>> {
        self.inner.leases(slot)
    }

    async fn read_lease(&self, slot: &Slot<S>, attempt: u32) -> Result<Option<Stored>> {
        let name = layout::lease_name(attempt);
        let read = self.inner.read_in(slot, &name);
        let Err(error) = read else { return read };
        match self.inner.sys.stat(&slot.dir, &name) {
            // Nothing that we wrote. It holds its number all the same, and is judged by its age.
            Ok(meta) if meta.size > layout::read_limit(&name) => {
                Ok(Some(Stored { bytes: Vec::new(), modified: meta.modified }))
            }
            _ => Err(error),
        }
    }

    async fn read_task(
        &self,
        slot: &Slot<S>,
        after: Option<u32>,
        records: &[String; 2],
    ) -> Result<StoredTask> {
        let inner = &self.inner;
        let task = inner.read_in(slot, layout::TASK)?;
        let superseded = match after {
            Some(attempt) => inner.exists_in(slot, &layout::lease_name(attempt + 1))?,
            None => false,
        };
        let [completed, failed] = records;
        let finished = inner.exists(completed)? || inner.exists(failed)?;
        Ok(StoredTask { task, superseded, finished })
    }

    async fn probe(&self, slot: &Slot<S>, attempt: u32) -> Result<Probe> {
        let inner = &self.inner;
        Ok(Probe {
            task: inner.exists_in(slot, layout::TASK)?,
            superseded: inner.exists_in(slot, &layout::lease_name(attempt + 1))?,
        })
    }

    async fn commit(&self, records: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>> {
        self.inner.commit(records, durable)
    }

    async fn clean(&self, slot: &Slot<S>, finished: bool, leases: &[u32]) -> Result<()> {
        self.inner.clean(slot, finished, leases)
    }
}
