//! Names that appear before their content: what rule 1 forbids, for the simulation to find (see `planted`).

use rustix::io::Errno;

use super::publish::parent;
use super::{Inner, Sys};
use crate::error::Result;
use crate::layout;
use crate::store::Created;

impl<S: Sys> Inner<S> {
    /// Publishes a task in place.
    pub(super) fn publish_torn(&self, to: &str, bytes: &[u8]) -> Result<Created> {
        self.ensure_dir(parent(to), true)?;
        match self.sys.mkdir(&self.root, to) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(Created::Exists),
            Err(errno) => return Err(self.failed("create", to, errno)),
        }
        self.sync_names(parent(to))?;
        self.create_torn(&layout::task_file(to), bytes)
    }

    /// Creates a file, and writes into it once it has its name. In the end all of it is durable.
    pub(super) fn create_torn(&self, path: &str, bytes: &[u8]) -> Result<Created> {
        self.ensure_dir(parent(path), true)?;
        let file = match self.sys.create(&self.root, path) {
            Ok(file) => file,
            Err(Errno::EXIST) => return Ok(Created::Exists),
            Err(errno) => return Err(self.failed("create", path, errno)),
        };
        let written = self.sys.write(&file, bytes).and_then(|()| self.sys.sync_file(&file));
        written.map_err(|errno| self.failed("write", path, errno))?;
        self.sync_names(parent(path))?;
        Ok(Created::New)
    }
}
