//! A directory as [`Objects`]: names are paths of files.
//!
//! Invariant: what this creates, puts and swaps is fsynced, and so is its name, before the call returns, unless nothing
//! rests on it (`layout::is_hint`). Names that
//! are swapped have no file of their own: see `versions`. A listing reads a folder whole when it comes to it, and
//! sorts it, because a directory has no order; only names are kept, and each file is looked at when its turn comes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::io::Errno;

use super::publish::parent;
use super::{Filesystem, Inner, Meta, PRUNED_RETRIES, Sys};
use crate::error::Result;
use crate::layout::{self, Swapped};
use crate::store::objects::{Got, Head, List, Listed, Listing, Objects, Part, Swap, Version};
use crate::store::{Created, EntryKind, Properties};

fn head_of(meta: &Meta) -> Head {
    let written = meta.modified.as_nanosecond();
    let version = Version::new(format!("{}.{written}.{}", meta.inode, meta.size));
    Head { size: meta.size, modified: meta.modified, version }
}

impl<S: Sys> Inner<S> {
    pub(super) fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        self.ask_before_looking_at(name);
        let read = match range {
            None => self.sys.read(&self.root, name, layout::read_limit(name)),
            Some(range) => {
                let length = range.end.saturating_sub(range.start).min(layout::LONGEST_READ);
                let length = usize::try_from(length).unwrap_or(0);
                self.sys.read_part(&self.root, name, range.start, length)
            }
        };
        match read {
            Ok((bytes, meta)) => Ok(Some(Got { bytes, head: head_of(&meta) })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("read", name, errno)),
        }
    }

    fn head(&self, name: &str) -> Result<Option<Head>> {
        self.ask_before_looking_at(name);
        match self.sys.stat(&self.root, name) {
            Ok(meta) if meta.kind == EntryKind::File => Ok(Some(head_of(&meta))),
            // A folder is not a name here, as in a bucket.
            Ok(meta) if meta.kind == EntryKind::Folder => Ok(None),
            Ok(_) => Err(self.failed("look at", name, Errno::NXIO)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("look at", name, errno)),
        }
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let error = |errno| self.failed("write", name, errno);
        self.ensure_dir(layout::TMP, false)?;
        // It may be known and pruned since.
        if !self.sys.exists(&self.root, parent(name)).map_err(error)? {
            self.forget_dir(parent(name));
        }
        self.ensure_dir(parent(name), true)?;
        let (tmp, file) = self.stage_named(bytes).map_err(error)?;
        let is_hint = layout::is_hint(name);
        let synced = if is_hint { Ok(()) } else { self.sys.sync_file(&file) };
        drop(file);
        let renamed = synced.and_then(|()| self.sys.rename(&self.root, &tmp, &self.root, name));
        match renamed {
            Ok(()) => {}
            // Nothing there to rename: it has been, and the answer was lost?
            Err(Errno::NOENT) if self.get(name, None)?.is_some_and(|it| it.bytes == bytes) => {}
            Err(errno) => {
                let _ = self.sys.unlink(&self.root, &tmp);
                return Err(error(errno));
            }
        }
        if is_hint { Ok(()) } else { self.sync_names(parent(name)) }
    }

    fn rename(&self, from: &str, to: &str) -> Result<bool> {
        for _ in 0..PRUNED_RETRIES {
            self.ensure_dir(parent(to), true)?;
            match self.sys.rename(&self.root, from, &self.root, to) {
                Ok(()) => {
                    self.sync_names(parent(to))?;
                    // Only then may the old name be gone for good.
                    self.sync_names(parent(from))?;
                    return Ok(true);
                }
                Err(Errno::NOENT) if self.sys.exists(&self.root, from) == Ok(true) => {
                    self.forget_dir(parent(to));
                }
                Err(Errno::NOENT | Errno::STALE) => return Ok(false),
                Err(errno) => return Err(self.failed("rename", from, errno)),
            }
        }
        Err(self.failed("rename", from, Errno::NOENT))
    }

    pub(super) fn remove(&self, names: &[String]) -> Result<()> {
        for name in names {
            match self.sys.unlink(&self.root, name) {
                Ok(()) | Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => return Err(self.failed("remove", name, errno)),
            }
        }
        Ok(())
    }
}

#[async_trait]
impl<S: Sys> Objects for Filesystem<S> {
    fn properties(&self) -> &Properties {
        &self.inner.properties
    }

    async fn now(&self) -> Result<Timestamp> {
        self.inner.now()
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        self.inner.get(name, range)
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        self.inner.head(name)
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        let durable = !layout::is_hint(name);
        let answers = self.inner.commit(&[(name.to_owned(), bytes.to_vec())], durable);
        answers.into_iter().next().unwrap_or(Ok(Created::Exists))
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.put(name, bytes)
    }

    async fn remove(&self, names: &[String], _: Duration) -> Result<()> {
        self.inner.remove(names) // done when it returns, so none arrives late
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        self.inner.rename(from, to)
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        Box::new(Walk { inner: Arc::clone(&self.inner), what, ahead: None, stuck: None })
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        self.inner.load(name, None)
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        self.inner.load(name, Some(range))
    }

    async fn make_durable(&self, name: &Swapped) -> Result<()> {
        self.inner.make_durable(name)
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        self.inner.swap(name, expected, bytes)
    }
}

/// A listing on its way through the folders.
struct Walk<S: Sys> {
    inner: Arc<Inner<S>>,
    what: List,
    /// What comes next, the last first: names of files, and of folders with a slash at the end. `None` before
    /// the first folder was read.
    ahead: Option<Vec<String>>,
    /// What could not be looked at.
    stuck: Option<String>,
}

impl<S: Sys> Walk<S> {
    /// The names in a folder that are to be listed, the last first. `folder` ends in a slash, or is empty.
    fn names_in(&self, folder: &str) -> Result<Vec<String>> {
        let path = if folder.is_empty() { "." } else { folder.trim_end_matches('/') };
        let error = |errno| self.inner.failed("list", path, errno);
        let mut listing = match self.inner.surely(path, S::list) {
            Ok(listing) => listing,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(errno) => return Err(error(errno)),
        };
        let mut names = Vec::new();
        while let Some(entry) = self.inner.sys.next(&mut listing) {
            let entry = match entry {
                Err(Errno::NOENT | Errno::STALE) => break,
                entry => entry.map_err(error)?,
            };
            let Some(name) = entry.name else { continue };
            let name = match entry.kind {
                EntryKind::File => format!("{folder}{name}"),
                // Our own workshop.
                EntryKind::Folder if folder.is_empty() && is_workshop(&name) => continue,
                EntryKind::Folder => format!("{folder}{name}/"),
                EntryKind::Other => continue,
            };
            if self.is_wanted(&name) {
                names.push(name);
            }
        }
        // With the slash of folders, this is the order of whole names.
        names.sort_unstable_by(|a, b| b.cmp(a));
        names.dedup();
        Ok(names)
    }

    /// Whether this name, or in a folder of this name anything, is to be listed.
    fn is_wanted(&self, name: &str) -> bool {
        let begins = name.starts_with(self.what.prefix());
        match &self.what {
            List::Below { after: Some(after), .. } => {
                begins
                    && (name > after.as_str() || (name.ends_with('/') && after.starts_with(name)))
            }
            _ => begins,
        }
    }

    /// The next part. What it has taken off `ahead` goes to `taken`; a folder is replaced by what is in it.
    fn take(
        &mut self,
        ahead: &mut Vec<String>,
        taken: &mut Vec<String>,
        limit: usize,
    ) -> Result<Part> {
        let mut part = Part::default();
        while part.files.len() + part.folders.len() < limit {
            let Some(name) = ahead.last() else {
                part.end = true;
                break;
            };
            if !name.ends_with('/') {
                // Gone meanwhile, perhaps.
                let head =
                    self.inner.head(name).inspect_err(|_| self.stuck = Some(name.clone()))?;
                if let Some(head) = head {
                    part.files.push(Listed { name: name.clone(), head });
                }
                taken.extend(ahead.pop());
            } else if matches!(self.what, List::Folder { .. }) {
                part.folders.push(name.clone());
                taken.extend(ahead.pop());
            } else {
                let below = self.names_in(name).inspect_err(|_| self.stuck = Some(name.clone()))?;
                ahead.pop();
                ahead.extend(below);
            }
        }
        Ok(part)
    }
}

fn is_workshop(folder: &str) -> bool {
    matches!(folder, layout::TMP | layout::VERSIONS)
}

#[async_trait]
impl<S: Sys> Listing for Walk<S> {
    async fn next(&mut self, limit: usize) -> Result<Part> {
        let mut ahead = match self.ahead.take() {
            Some(ahead) => ahead,
            None => {
                let prefix = self.what.prefix();
                let first = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]);
                self.names_in(first)?
            }
        };
        let mut taken = Vec::new();
        self.stuck = None;
        let part = self.take(&mut ahead, &mut taken, limit);
        if part.is_err() {
            ahead.extend(taken.into_iter().rev()); // so that the same part can be asked for again
        }
        self.ahead = Some(ahead);
        part
    }

    fn skip(&mut self) -> Option<String> {
        let stuck = self.stuck.take()?;
        let ahead = self.ahead.as_mut()?;
        let at = ahead.iter().rposition(|name| *name == stuck)?;
        Some(ahead.remove(at))
    }
}
