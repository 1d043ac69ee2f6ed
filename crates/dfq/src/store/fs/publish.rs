//! Putting whole things in place, many at a time: tasks by renaming a staged folder, records by
//! linking a staged file. Both share the waiting for the disk across the batch.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::{Inner, Staged, Sys, failed};
use crate::error::{Error, Result};
use crate::layout;
use crate::store::Created;

/// The folder that a path's last name is in.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(parent, _)| parent)
}

/// How often a folder that was pruned under our hands is made again before we give up.
const PRUNED_RETRIES: usize = 8;

struct StagedTask<F> {
    dir: String,
    file: F,
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
        let staged: Vec<_> =
            tasks.iter().map(|(_, bytes)| self.stage_task(bytes, durable)).collect();
        let moved: Vec<_> = staged
            .into_iter()
            .zip(tasks)
            .map(|(staged, (to, _))| self.move_in(staged?, to, durable))
            .collect();
        self.sync_parents(tasks, moved, durable)
    }

    fn stage_task(&self, bytes: &[u8], durable: bool) -> Result<StagedTask<S::File>> {
        let dir = self.tmp_name();
        let task = format!("{dir}/{}", layout::TASK);
        let made = self.sys.mkdir(&self.root, &dir);
        made.map_err(|errno| failed("create", &dir, errno))?;
        let written = self.sys.create(&self.root, &task).and_then(|file| {
            self.sys.write(&file, bytes)?;
            Ok(file)
        });
        match written {
            Ok(file) => {
                if durable {
                    self.sys.start_sync(&file);
                }
                Ok(StagedTask { dir, file })
            }
            Err(errno) => {
                self.unstage_task(&dir);
                Err(failed("write", &task, errno))
            }
        }
    }

    fn unstage_task(&self, dir: &str) {
        let _ = self.sys.unlink(&self.root, &format!("{dir}/{}", layout::TASK));
        let _ = self.sys.rmdir(&self.root, dir);
    }

    fn move_in(&self, staged: StagedTask<S::File>, to: &str, durable: bool) -> Result<Created> {
        let StagedTask { dir, file } = staged;
        let synced = if durable {
            let file_synced = self.sys.sync_file(&file);
            file_synced.and_then(|()| self.sys.sync_dir(&self.root, &dir))
        } else {
            Ok(())
        };
        let moved = match synced {
            Ok(()) => self.rename_folder(&dir, to, durable),
            Err(errno) => Err(failed("sync", &dir, errno)),
        };
        if !matches!(moved, Ok(Some(Created::New))) {
            self.unstage_task(&dir);
        }
        moved?.ok_or_else(|| failed("publish", to, Errno::NOENT))
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
                Err(Errno::NOENT) => self.forget_dir(parent(to)),
                Err(errno) => return Err(failed("publish", to, errno)),
            }
        }
        Ok(None)
    }

    pub(super) fn commit(
        &self,
        records: &[(String, Vec<u8>)],
        durable: bool,
    ) -> Vec<Result<Created>> {
        let staged: Vec<_> =
            records.iter().map(|(path, bytes)| self.stage_record(path, bytes, durable)).collect();
        let placed = staged
            .into_iter()
            .zip(records)
            .map(|(staged, (path, bytes))| self.place_record(staged?, path, bytes, durable))
            .collect();
        self.sync_parents(records, placed, durable)
    }

    fn stage_record(&self, path: &str, bytes: &[u8], durable: bool) -> Result<Staged<S::File>> {
        self.means()?;
        let dir = parent(path);
        for _ in 0..PRUNED_RETRIES {
            self.ensure_dir(dir, durable)?;
            match self.stage(dir, bytes) {
                Ok(staged) => {
                    if durable {
                        self.sys.start_sync(&staged.file);
                    }
                    return Ok(staged);
                }
                Err(Errno::NOENT) => self.forget_dir(dir),
                Err(errno) => return Err(failed("write", path, errno)),
            }
        }
        Err(failed("write", path, Errno::NOENT))
    }

    fn place_record(
        &self,
        staged: Staged<S::File>,
        path: &str,
        bytes: &[u8],
        durable: bool,
    ) -> Result<Created> {
        let synced = if durable { self.sys.sync_file(&staged.file) } else { Ok(()) };
        let placed = match synced {
            Ok(()) => self.place(&staged, &self.root, path),
            Err(errno) => Err(errno),
        };
        self.unstage(&staged);
        match placed {
            Ok(created) => Ok(created),
            Err(Errno::NOENT) => {
                self.forget_dir(parent(path));
                let staged = self.stage_record(path, bytes, durable)?;
                if durable {
                    let synced = self.sys.sync_file(&staged.file);
                    synced.map_err(|errno| failed("sync", path, errno))?;
                }
                let placed = self.place(&staged, &self.root, path);
                self.unstage(&staged);
                placed.map_err(|errno| failed("create", path, errno))
            }
            Err(errno) => Err(failed("create", path, errno)),
        }
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
            let Err(errno) = self.sys.sync_dir(&self.root, dir) else { continue };
            // A folder that is gone held nothing that we made and that still matters: folders are
            // pruned only when empty, that is, when our task has been finished meanwhile.
            if errno == Errno::NOENT {
                continue;
            }
            let error: Error = failed("sync", dir, errno);
            for ((path, _), answer) in named.iter().zip(&mut answers) {
                if parent(path) == dir && answer.is_ok() {
                    *answer = Err(error.clone());
                }
            }
        }
        answers
    }
}
