//! The content of a swapped name under its plain name, for the tools of people.
//!
//! Invariant: nothing of anybody else's is replaced. The plain name is a further link to the version that was the highest
//! a moment ago. It may lag, so nothing here reads it. Before it is replaced it must be one of the versions: by its inode,
//! or byte for byte where there are no links. Anything else was put there by a person or another program, and is moved
//! to `aside/` first. A version is marked as superseded only after the plain name has left it, so that what a crash leaves
//! behind is recognised; if that fails, a file too many is kept.

use rustix::io::Errno;

use super::publish::parent;
use super::versions::MARK;
use super::{Inner, Meta, Sys, SysResult};
use crate::layout::{self, Swapped};

/// How often a name that others change too is looked at again.
const ROUNDS: usize = 100;

impl<S: Sys> Inner<S> {
    /// Lets the plain name show the highest version. `superseded` is the inode of the version before. Whatever fails is
    /// left to the next writer. Answers whether superseded versions may be marked.
    pub(super) fn show(&self, name: &Swapped, superseded: Option<u64>) -> bool {
        if !name.is_shown() {
            return true;
        }
        let shown = self.show_highest(name, superseded);
        if let Err(errno) = shown {
            let name = name.as_str();
            tracing::warn!(name, %errno, "the file under the plain name is not up to date");
        }
        shown.is_ok()
    }

    fn show_highest(&self, name: &Swapped, superseded: Option<u64>) -> SysResult<()> {
        let dir = layout::versions_dir(name);
        let plain = name.as_str();
        self.ensure_dir(parent(plain), false).map_err(|_| Errno::IO)?;
        let mut ours: Vec<u64> = superseded.into_iter().collect();
        for _ in 0..ROUNDS {
            let Some((version, meta)) = self.highest_version(&dir)? else { return Ok(()) };
            match self.sys.stat(&self.root, plain) {
                Ok(there) if there.inode == meta.inode => return Ok(()),
                Ok(there) if ours.contains(&there.inode) => {}
                Ok(there) => match self.is_version(name, &dir, &there, meta.inode)? {
                    Likeness::Highest => return Ok(()),
                    Likeness::Superseded => {}
                    Likeness::None => {
                        self.set_aside(name, self.versions(&dir)?.as_slice() == [1])?;
                    }
                },
                Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => return Err(errno),
            }
            ours.extend(self.show_version(name, &version)?);
        }
        Ok(())
    }

    /// The path of the highest version, if it is no mark, and what it is.
    fn highest_version(&self, dir: &str) -> SysResult<Option<(String, Meta)>> {
        for number in self.versions(dir)?.into_iter().rev() {
            let path = layout::below(dir, &number.to_string());
            match self.sys.stat(&self.root, &path) {
                Ok(meta) if !self.is_mark(&path, &meta)? => return Ok(Some((path, meta))),
                Ok(_) | Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    fn is_mark(&self, path: &str, meta: &Meta) -> SysResult<bool> {
        let long = MARK.len() as u64;
        Ok(meta.size == long && self.sys.read(&self.root, path, long)?.0 == MARK)
    }

    /// What the file under the plain name is like.
    fn is_version(
        &self,
        name: &Swapped,
        dir: &str,
        plain: &Meta,
        highest: u64,
    ) -> SysResult<Likeness> {
        let limit = layout::read_limit(name.as_str());
        let mut bytes = None;
        for number in self.versions(dir)?.into_iter().rev() {
            let path = layout::below(dir, &number.to_string());
            let meta = match self.sys.stat(&self.root, &path) {
                Ok(meta) => meta,
                Err(Errno::NOENT | Errno::STALE) => continue,
                Err(errno) => return Err(errno),
            };
            if self.is_mark(&path, &meta)? {
                continue;
            }
            if meta.inode == plain.inode {
                return Ok(Likeness::Superseded);
            }
            if meta.size == plain.size {
                let shown = match &bytes {
                    Some(shown) => shown,
                    None => bytes.insert(self.sys.read(&self.root, name.as_str(), limit)?.0),
                };
                if self.sys.read(&self.root, &path, limit)?.0 == *shown {
                    // A link saves the space of a copy; without links the copy is all there can be.
                    let is_copy = meta.inode == highest && !self.links();
                    return Ok(if is_copy { Likeness::Highest } else { Likeness::Superseded });
                }
            }
        }
        Ok(Likeness::None)
    }

    /// Puts a version under the plain name, unless it has become a mark. Answers the inode that it has there.
    fn show_version(&self, name: &Swapped, version: &str) -> SysResult<Option<u64>> {
        let tmp = self.tmp_name();
        let linked = self.in_tmp(|| self.sys.link(version, &self.root, &tmp, &self.root));
        let tmp = match linked {
            // Nobody else makes this name: it was made, and the answer was lost.
            Ok(()) | Err(Errno::EXIST) => tmp,
            Err(errno) if super::unsupported(errno) || errno == Errno::MLINK => {
                let limit = layout::read_limit(name.as_str());
                let (bytes, _) = self.sys.read(&self.root, version, limit)?;
                self.stage_named(&bytes)?.0
            }
            Err(Errno::NOENT | Errno::STALE) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let meta = self.sys.stat(&self.root, &tmp)?;
        if self.is_mark(&tmp, &meta)? {
            let _ = self.sys.unlink(&self.root, &tmp);
            return Ok(None);
        }
        let renamed = self.sys.rename(&self.root, &tmp, &self.root, name.as_str());
        // To rename one link of a file over another does nothing, so the first is still there.
        let _ = self.sys.unlink(&self.root, &tmp);
        match renamed {
            // Nothing to rename any more: it was, perhaps. The next look tells.
            Ok(()) | Err(Errno::NOENT) => Ok(Some(meta.inode)),
            Err(errno) => Err(errno),
        }
    }

    /// Moves what lies under the plain name to `aside/`. Before our `first` version nobody can have expected it to be ours.
    fn set_aside(&self, name: &Swapped, first: bool) -> SysResult<()> {
        let kept = layout::set_aside(name, &self.env.nonce());
        self.ensure_dir(parent(&kept), true).map_err(|_| Errno::IO)?;
        let name_text = name.as_str();
        match first {
            true => tracing::info!(
                name = name_text,
                kept,
                "another program's file is kept, and replaced by what dfq wrote"
            ),
            false => tracing::warn!(
                name = name_text,
                kept,
                "the file was changed by something else; it is kept, and replaced by what dfq wrote"
            ),
        }
        match self.sys.rename(&self.root, name.as_str(), &self.root, &kept) {
            Ok(()) => self.sys.sync_dir(&self.root, parent(&kept)).map(drop),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether files here can have two names, as far as is known.
    fn links(&self) -> bool {
        self.means.get() != Some(&super::Means::Renamed)
    }
}

/// What a file under a plain name is like.
enum Likeness {
    /// The highest version, which nothing can show better.
    Highest,
    /// Some version.
    Superseded,
    /// No version that is still there.
    None,
}
