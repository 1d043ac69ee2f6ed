//! Putting whole things in place, many at a time: tasks by renaming a staged folder, records by
//! linking a staged file. Both share the waiting for the disk across the batch.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::{Inner, PRUNED_RETRIES, Staged, Sys};
use crate::error::Result;
use crate::layout;
use crate::planted::{self, Planted};
use crate::store::Created;

/// The folder that a path's last name is in.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(parent, _)| parent)
}

/// Files of a batch that are open at the same time: well below the usual limit of a process.
const CHUNK: usize = 128;

/// A folder under `tmp/` with one file in it.
pub(super) struct StagedFolder<F> {
    dir: String,
    /// The file's name in the folder.
    name: &'static str,
    pub(super) file: F,
}

impl<S: Sys> Inner<S> {
    pub(super) fn publish(
        &self,
        tasks: &[(String, Vec<u8>)],
        durable: bool,
    ) -> Vec<Result<Created>> {
        if let Err(error) = self.ensure_dir(layout::TMP, durable) {
            return tasks.iter().map(|_| Err(error.clone())).collect();
        }
        tasks.chunks(CHUNK).flat_map(|chunk| self.publish_chunk(chunk, durable)).collect()
    }

    fn publish_chunk(&self, tasks: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>> {
        if planted::is(Planted::TornTask) {
            return tasks.iter().map(|(to, bytes)| self.publish_torn(to, bytes)).collect();
        }
        let staged: Vec<_> = tasks
            .iter()
            .map(|(_, bytes)| self.stage_folder(layout::TASK, bytes, durable))
            .collect();
        let moved: Vec<_> = staged
            .into_iter()
            .zip(tasks)
            .map(|(staged, (to, _))| self.move_in(staged?, to, durable))
            .collect();
        self.sync_parents(tasks, moved, durable && !planted::is(Planted::PushNameNotSynced))
    }

    pub(super) fn stage_folder(
        &self,
        name: &'static str,
        bytes: &[u8],
        durable: bool,
    ) -> Result<StagedFolder<S::File>> {
        let dir = self.tmp_name();
        let path = layout::below(&dir, name);
        match self.in_tmp(|| self.sys.mkdir(&self.root, &dir)) {
            // Nobody else makes this name: it was made, and the answer was lost.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.failed("create", &dir, errno)),
        }
        let written = self.sys.create(&self.root, &path).and_then(|file| {
            self.sys.write(&file, bytes)?;
            Ok(file)
        });
        match written {
            Ok(file) => {
                if durable {
                    self.sys.start_sync(&file);
                }
                Ok(StagedFolder { dir, name, file })
            }
            Err(errno) => {
                self.unstage_folder(&dir, name);
                Err(self.failed("write", &path, errno))
            }
        }
    }

    fn unstage_folder(&self, dir: &str, name: &str) {
        let _ = self.sys.unlink(&self.root, &layout::below(dir, name));
        let _ = self.sys.rmdir(&self.root, dir);
    }

    pub(super) fn move_in(
        &self,
        staged: StagedFolder<S::File>,
        to: &str,
        durable: bool,
    ) -> Result<Created> {
        let StagedFolder { dir, name, file } = staged;
        let synced = if durable {
            let file_synced = match planted::is(Planted::PushNotSynced) {
                true => Ok(()),
                false => self.sys.sync_file(&file),
            };
            match planted::is(Planted::PushFolderNotSynced) {
                true => file_synced,
                false => file_synced.and_then(|()| self.sys.sync_dir(&self.root, &dir)).map(drop),
            }
        } else if self.properties.notices_changes {
            Ok(())
        } else {
            self.sys.sync_file(&file)
        };
        // Closed before it can be seen: NFS writes a file out then.
        drop(file);
        let moved = match synced {
            Ok(()) => self.rename_folder(&dir, to, durable),
            Err(errno) => Err(self.failed("sync", &dir, errno)),
        };
        if !matches!(moved, Ok(Some(Created::New))) {
            self.unstage_folder(&dir, name);
        }
        // Nothing left to move: it was moved, and the answer was lost. What is there will tell.
        Ok(moved?.unwrap_or(Created::Exists))
    }

    /// Renames a task's folder to a path where there must be none; `None` if there is no such folder.
    pub(super) fn rename_folder(
        &self,
        from: &str,
        to: &str,
        durable: bool,
    ) -> Result<Option<Created>> {
        for _ in 0..PRUNED_RETRIES {
            self.ensure_dir(parent(to), durable)?;
            let renamed = match self.sys.rename_new(&self.root, from, &self.root, to) {
                // No such flag here. Plain rename never replaces a folder that has something in it,
                // and one without a task is a finished one on its way out.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.sys.rename(&self.root, from, &self.root, to)
                }
                answer => answer,
            };
            match renamed {
                Ok(()) => return Ok(Some(Created::New)),
                Err(Errno::EXIST | Errno::NOTEMPTY) => return Ok(Some(Created::Exists)),
                Err(Errno::NOENT) if self.sys.exists(&self.root, from) == Ok(false) => {
                    return Ok(None);
                }
                Err(Errno::NOENT) => self.forget_dir(parent(to)),
                Err(errno) => return Err(self.failed("publish", to, errno)),
            }
        }
        Err(self.failed("publish", to, Errno::NOENT))
    }

    pub(super) fn commit(
        &self,
        records: &[(String, Vec<u8>)],
        durable: bool,
    ) -> Vec<Result<Created>> {
        records.chunks(CHUNK).flat_map(|chunk| self.commit_chunk(chunk, durable)).collect()
    }

    fn commit_chunk(&self, records: &[(String, Vec<u8>)], durable: bool) -> Vec<Result<Created>> {
        if planted::is(Planted::TornRecord) {
            return records.iter().map(|(path, bytes)| self.create_torn(path, bytes)).collect();
        }
        let staged: Vec<_> =
            records.iter().map(|(path, bytes)| self.stage_record(path, bytes, durable)).collect();
        let placed = staged
            .into_iter()
            .zip(records)
            .map(|(staged, (path, bytes))| self.name_record(staged?, path, bytes, durable))
            .collect();
        self.sync_parents(records, placed, durable && !planted::is(Planted::RecordNameNotSynced))
    }

    fn stage_record(&self, path: &str, bytes: &[u8], durable: bool) -> Result<Staged<S::File>> {
        self.means()?;
        let dir = parent(path);
        for _ in 0..PRUNED_RETRIES {
            self.ensure_dir(dir, durable)?;
            match self.stage(dir, bytes) {
                Ok(staged) => {
                    if let Some(file) = staged.file().filter(|_| durable) {
                        self.sys.start_sync(file);
                    }
                    return Ok(staged);
                }
                Err(Errno::NOENT) => self.forget_dir(dir),
                Err(errno) => return Err(self.failed("write", path, errno)),
            }
        }
        Err(self.failed("write", path, Errno::NOENT))
    }

    fn name_record(
        &self,
        mut staged: Staged<S::File>,
        path: &str,
        bytes: &[u8],
        durable: bool,
    ) -> Result<Created> {
        for _ in 0..PRUNED_RETRIES {
            let synced = match staged.file() {
                _ if planted::is(Planted::RecordNotSynced) => Ok(()),
                Some(file) if durable => self.sys.sync_file(file),
                _ => Ok(()),
            };
            let placed = synced.and_then(|()| self.name_staged(&mut staged, &self.root, path));
            self.unstage(&staged);
            match placed {
                Ok(created) => return Ok(created),
                Err(Errno::NOENT) => {
                    self.forget_dir(parent(path));
                    staged = self.stage_record(path, bytes, durable)?;
                }
                Err(errno) => return Err(self.failed("create", path, errno)),
            }
        }
        self.unstage(&staged);
        Err(self.failed("create", path, Errno::NOENT))
    }

    /// Makes the new names durable, folder by folder. A name that was there already is synced too:
    /// whoever made it may have died before it came to that, and we are about to rely on it.
    fn sync_parents(
        &self,
        named: &[(String, Vec<u8>)],
        mut answers: Vec<Result<Created>>,
        durable: bool,
    ) -> Vec<Result<Created>> {
        if !durable {
            return answers;
        }
        let touched = named.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        let dirs: BTreeSet<&str> = touched.map(|((path, _), _)| parent(path)).collect();
        for dir in dirs {
            let Err(error) = self.sync_names(dir) else { continue };
            for ((path, _), answer) in named.iter().zip(&mut answers) {
                if parent(path) == dir && answer.is_ok() {
                    *answer = Err(error.clone());
                }
            }
        }
        answers
    }
}
