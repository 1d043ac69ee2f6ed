//! Looks that tell the truth also on a network filesystem.
//!
//! Invariant: what is said to be missing was missing at some time since the look began. On NFS a client remembers
//! that a name is missing for as long as it trusts what it knows of the folder, which is half a minute on an ordinary
//! mount. Meanwhile another machine may have made that name: a record that says that a task is over. To open a folder
//! makes the client ask the server about it, and forget what has changed.

use rustix::io::Errno;

use super::publish::parent;
use super::sys::SysResult;
use super::{Inner, Sys};
use crate::planted::{self, Planted};

impl<S: Sys> Inner<S> {
    /// Before a look whose answer something is decided by. Not needed within a task's folder: there, looks that
    /// decide come after a write of one's own, with which the server tells what has changed.
    pub(super) fn ask_before_looking_at(&self, path: &str) {
        self.ask_about(parent(path));
    }

    /// The same for a look at a folder. The kernel sees all changes of its own filesystems.
    pub(super) fn ask_about(&self, folder: &str) {
        if !self.properties.notices_changes && !planted::is(Planted::OldAnswerBelieved) {
            self.ask_anew(folder);
        }
    }

    /// Looks at a folder, and once more if it seems to be missing: another machine may have made it a moment ago.
    pub(super) fn surely<R>(
        &self,
        folder: &str,
        look: impl Fn(&S, &S::Dir, &str) -> SysResult<R>,
    ) -> SysResult<R> {
        let looked = look(&self.sys, &self.root, folder);
        if matches!(looked, Err(Errno::NOENT)) && !self.properties.notices_changes {
            self.ask_about(folder);
            return look(&self.sys, &self.root, folder);
        }
        looked
    }

    /// Opens a folder; if that seems to be missing, the one that it is in first. Answers whether it is there.
    fn ask_anew(&self, folder: &str) -> bool {
        let is_there = || self.sys.open_dir(&self.root, folder).err() != Some(Errno::NOENT);
        is_there() || (folder != "." && self.ask_anew(parent(folder)) && is_there())
    }
}
