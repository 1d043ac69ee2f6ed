//! Looks that tell the truth also on a network filesystem.
//!
//! Invariant: what is said to be missing was missing at some time since the look began. On NFS a client remembers
//! that a name is missing for as long as it trusts what it knows of the folder, which is half a minute on an ordinary
//! mount. Meanwhile another machine may have made that name: a record that says that a task is over. To open a folder
//! makes the client ask the server about it, and forget what has changed.

use rustix::io::Errno;

use super::publish::parent;
use super::{Inner, Sys};
use crate::planted::{self, Planted};

impl<S: Sys> Inner<S> {
    /// Before a look whose answer something is decided by. Not needed within a task's folder: there, looks that
    /// decide come after a write of one's own, with which the server tells what has changed.
    pub(super) fn ask_before_looking_at(&self, path: &str) {
        // What lies in the root itself decides about nothing that could not wait.
        if path.contains('/') {
            self.ask_about(parent(path));
        }
    }

    /// The same for a look at a folder. The kernel sees all changes of its own filesystems.
    pub(super) fn ask_about(&self, folder: &str) {
        if !self.properties.notices_changes && !planted::is(Planted::OldAnswerBelieved) {
            self.ask_anew(folder);
        }
    }

    /// Opens a folder; if that seems to be missing, the one that it is in first.
    fn ask_anew(&self, folder: &str) {
        let open = || self.sys.open_dir(&self.root, folder).err();
        if open() == Some(Errno::NOENT) && folder != "." {
            self.ask_anew(parent(folder));
            let _ = open();
        }
    }
}
