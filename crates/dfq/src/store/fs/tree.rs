//! The [`Folders`] and [`Tree`] verbs on a directory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::io::Errno;

use super::publish::parent;
use super::{Cursor, Filesystem, Inner, Means, PreparedLease, Sys, TaskDir};
use crate::error::{ErrorKind, Result};
use crate::layout;
use crate::planted::{self, Planted};
use crate::store::{
    Created, Entry, EntryKind, Folders, Page, Probe, Stamp, Stored, StoredTask, Tree,
};

/// A folder that is empty now but takes this much was once full. On ext4 it would stay slow to list
/// for ever, so it is removed; the next push makes a new one.
const BLOATED_BYTES: u64 = 64 * 1024;

/// How often a listing of leases that has gaps is taken again. Gaps that stay were made by hand.
const LISTED_AGAIN: usize = 4;

impl<S: Sys> Inner<S> {
    /// Reads a file in a task's folder. ESTALE: on NFS, another client has removed it.
    fn read_in(&self, task_dir: &TaskDir<S>, name: &str) -> Result<Option<Stored>> {
        match self.sys.read(&task_dir.dir, name, layout::read_limit(name)) {
            Ok((bytes, meta)) => Ok(Some(Stored { bytes, modified: meta.modified })),
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(errno) => Err(self.failed("read", &task_dir.shown(name), errno)),
        }
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.ask_before_looking_at(path);
        self.sys.exists(&self.root, path).map_err(|errno| self.failed("look at", path, errno))
    }

    fn exists_in(&self, task_dir: &TaskDir<S>, name: &str) -> Result<bool> {
        match self.sys.exists(&task_dir.dir, name) {
            Err(Errno::STALE) => Ok(false),
            answer => answer.map_err(|errno| self.failed("look at", &task_dir.shown(name), errno)),
        }
    }

    fn list(&self, dir: &str, from: Option<Cursor<S>>, limit: usize) -> Result<Page<Cursor<S>>> {
        let mut entries = Vec::new();
        let mut cursor = match from {
            Some(cursor) => cursor,
            None => match self.surely(dir, S::list) {
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
    fn leases(&self, task_dir: &TaskDir<S>) -> Result<Vec<u32>> {
        let mut attempts = self.list_leases(task_dir)?;
        for _ in 0..LISTED_AGAIN {
            let last = attempts.last().copied().unwrap_or(0);
            let whole = attempts.len() == last as usize
                && !self.exists_in(task_dir, &layout::lease_name(last.saturating_add(1)))?;
            if whole {
                break;
            }
            attempts = self.list_leases(task_dir)?;
        }
        Ok(attempts)
    }

    fn list_leases(&self, task_dir: &TaskDir<S>) -> Result<Vec<u32>> {
        let mut listing = match self.sys.list(&task_dir.dir, ".") {
            Ok(listing) => listing,
            Err(Errno::NOENT | Errno::STALE) => return Ok(Vec::new()),
            Err(errno) => return Err(self.failed("list", &task_dir.path, errno)),
        };
        let mut attempts = Vec::new();
        while let Some(entry) = self.sys.next(&mut listing) {
            let entry = entry.map_err(|errno| self.failed("list", &task_dir.path, errno))?;
            attempts.extend(entry.name.as_deref().and_then(layout::parse_lease_name));
        }
        attempts.sort_unstable();
        attempts.dedup();
        Ok(attempts)
    }

    fn unlink_in(&self, task_dir: &TaskDir<S>, name: &str) -> Result<()> {
        match self.sys.unlink(&task_dir.dir, name) {
            Ok(()) | Err(Errno::NOENT | Errno::STALE) => Ok(()),
            Err(errno) => Err(self.failed("remove", &task_dir.shown(name), errno)),
        }
    }

    fn clean(&self, task_dir: &TaskDir<S>, finished: bool, leases: &[u32]) -> Result<()> {
        let unlink = |name: &str| self.unlink_in(task_dir, name);
        if planted::is(Planted::LeasesBeforeTask) {
            self.leases(task_dir)?
                .into_iter()
                .try_for_each(|it| unlink(&layout::lease_name(it)))?;
        }
        if finished {
            unlink(layout::TASK)?;
        }
        for attempt in leases {
            unlink(&layout::lease_name(*attempt))?;
        }
        let remove = || self.sys.rmdir(&self.root, &task_dir.path);
        let mut removed = remove();
        if matches!(removed, Err(Errno::NOTEMPTY | Errno::EXIST)) {
            // A lease that we did not know of; or a file that is not ours, which stays.
            for attempt in self.leases(task_dir)? {
                unlink(&layout::lease_name(attempt))?;
            }
            removed = remove();
        }
        match removed {
            Ok(()) | Err(Errno::NOENT | Errno::STALE | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.failed("remove", &task_dir.path, errno)),
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
        task_dir: &TaskDir<S>,
        attempt: u32,
        prepared: &PreparedLease<S>,
    ) -> Result<Created> {
        let name = layout::lease_name(attempt);
        if planted::is(Planted::CreateReplaces) {
            let replaced = self.overwrite(&task_dir.dir, &name, &prepared.bytes);
            return Ok(replaced.map_or(Created::Exists, |()| Created::New));
        }
        let linked = match &prepared.tmp {
            Some(tmp) => self.sys.link(tmp, &task_dir.dir, &name, &self.root),
            None => Err(Errno::NOENT),
        };
        let placed = match linked {
            Ok(()) => Ok(Created::New),
            Err(Errno::EXIST) => Ok(Created::Exists),
            // Perhaps it is the prepared file that is gone, not the folder: with a new file we shall know.
            Err(Errno::NOENT) => self.stage(layout::TMP, &prepared.bytes).and_then(|mut staged| {
                let placed = self.name_staged(&mut staged, &task_dir.dir, &name);
                self.unstage(&staged);
                placed
            }),
            Err(errno) => Err(errno),
        };
        match placed {
            Ok(created) => Ok(created),
            Err(Errno::NOENT | Errno::STALE) => Ok(Created::Exists),
            Err(errno) => Err(self.failed("create", &task_dir.shown(&name), errno)),
        }
    }
}

impl<S: Sys> TaskDir<S> {
    /// The path of a file in the folder, for messages.
    fn shown(&self, name: &str) -> String {
        layout::below(&self.path, name)
    }
}

#[async_trait]
impl<S: Sys> Folders for Filesystem<S> {
    type Cursor = Cursor<S>;

    fn time_resolution(&self) -> Duration {
        self.inner.time_resolution()
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

    async fn exists(&self, path: &str) -> Result<bool> {
        self.inner.exists(path)
    }

    async fn create_all(&self, files: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>> {
        self.inner.commit(files, durable)
    }

    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let inner = &self.inner;
        inner.ensure_dir(layout::TMP, false)?;
        if let Some((dir, _)) = path.rsplit_once('/') {
            inner.ensure_dir(dir, false)?;
        }
        match inner.overwrite(&inner.root, path, bytes) {
            // Nothing there to rename: it has been, and the answer was lost?
            Err(Errno::NOENT)
                if inner.get(path, None)?.is_some_and(|there| there.bytes == bytes) =>
            {
                Ok(())
            }
            answer => answer.map_err(|errno| inner.failed("write", path, errno)),
        }
    }

    async fn remove_file(&self, path: &str) -> Result<()> {
        self.inner.remove(&[path.to_owned()])
    }

    async fn list_folder(
        &self,
        dir: &str,
        from: Option<Cursor<S>>,
        limit: usize,
    ) -> Result<Page<Cursor<S>>> {
        self.inner.list(dir, from, limit)
    }

    async fn stamp(&self, dir: &str, now: Timestamp) -> Result<Option<Stamp>> {
        let inner = &self.inner;
        // By others something is only found later. By these it is decided which life comes next, and whether the queue
        // is paused.
        let decides = dir == "." || dir.starts_with(layout::FLOORS);
        if decides {
            inner.ask_about(dir);
        }
        let looked = match decides {
            true => inner.sys.stat(&inner.root, dir),
            false => inner.surely(dir, S::stat),
        };
        match looked {
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
}

#[async_trait]
impl<S: Sys> Tree for Filesystem<S> {
    type TaskDir = TaskDir<S>;
    type PreparedLease = PreparedLease<S>;

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

    async fn open(&self, dir: &str) -> Result<Option<TaskDir<S>>> {
        match self.inner.sys.hold_dir(&self.inner.root, dir) {
            Ok(opened) => {
                let path = dir.to_owned();
                Ok(Some(TaskDir { dir: opened, path }))
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

    async fn touch_lease(&self, task_dir: &TaskDir<S>, attempt: u32) -> Result<()> {
        let name = layout::lease_name(attempt);
        let touched = self.inner.sys.touch(&task_dir.dir, &name);
        touched.map_err(|errno| self.inner.failed("touch", &task_dir.shown(&name), errno))
    }

    async fn secure_leases(&self, task_dir: &TaskDir<S>) -> Result<()> {
        match self.inner.sys.sync_dir(&task_dir.dir, ".") {
            // The task was finished, and its folder removed: so is every token of it.
            Ok(_) | Err(Errno::NOENT | Errno::STALE) => Ok(()),
            Err(errno) => Err(self.inner.failed("sync", &task_dir.path, errno)),
        }
    }

    async fn create_lease(
        &self,
        task_dir: &TaskDir<S>,
        attempt: u32,
        prepared: &PreparedLease<S>,
    ) -> Result<Created> {
        self.inner.create_lease(task_dir, attempt, prepared)
    }

    async fn replace_lease(&self, task_dir: &TaskDir<S>, attempt: u32, bytes: &[u8]) -> Result<()> {
        let name = layout::lease_name(attempt);
        let inner = &self.inner;
        inner.ensure_dir(layout::TMP, false)?;
        let written = inner.overwrite(&task_dir.dir, &name, bytes);
        written.map_err(|errno| self.inner.failed("write", &task_dir.shown(&name), errno))
    }

    async fn leases(&self, task_dir: &TaskDir<S>) -> Result<Vec<u32>> {
        self.inner.leases(task_dir)
    }

    async fn read_lease(&self, task_dir: &TaskDir<S>, attempt: u32) -> Result<Option<Stored>> {
        let name = layout::lease_name(attempt);
        let read = self.inner.read_in(task_dir, &name);
        let Err(error) = read else { return read };
        match self.inner.sys.stat(&task_dir.dir, &name) {
            // Nothing that we wrote. It holds its number all the same, and is judged by its age.
            Ok(meta) if meta.size > layout::read_limit(&name) => {
                Ok(Some(Stored { bytes: Vec::new(), modified: meta.modified }))
            }
            _ => Err(error),
        }
    }

    async fn read_task(
        &self,
        task_dir: &TaskDir<S>,
        after: Option<u32>,
        records: &[String; 2],
    ) -> Result<StoredTask> {
        let inner = &self.inner;
        let task = inner.read_in(task_dir, layout::TASK)?;
        let superseded = match after {
            Some(attempt) => inner.exists_in(task_dir, &layout::lease_name(attempt + 1))?,
            None => false,
        };
        let [completed, failed] = records;
        let finished = inner.exists(completed)? || inner.exists(failed)?;
        Ok(StoredTask { task, superseded, finished })
    }

    async fn probe(&self, task_dir: &TaskDir<S>, attempt: u32) -> Result<Probe> {
        let inner = &self.inner;
        Ok(Probe {
            task: inner.exists_in(task_dir, layout::TASK)?,
            superseded: inner.exists_in(task_dir, &layout::lease_name(attempt + 1))?,
        })
    }

    async fn clean(&self, task_dir: &TaskDir<S>, finished: bool, leases: &[u32]) -> Result<()> {
        self.inner.clean(task_dir, finished, leases)
    }
}
