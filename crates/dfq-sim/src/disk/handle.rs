//! Open folders and files.
//!
//! Invariant: a handle is of a node and not of a name, and stays so whatever becomes of the names. Its path is what it
//! was opened by, for people to read.

use std::sync::Arc;

use super::volume::Ino;

/// An open folder.
#[derive(Clone, Debug)]
pub struct Dir {
    pub(super) ino: Ino,
    pub(super) path: String,
    pub(super) _open: Option<Arc<()>>,
}

/// An open file.
#[derive(Clone, Debug)]
pub struct File {
    pub(super) ino: Ino,
    pub(super) path: String,
    pub(super) _open: Option<Arc<()>>,
}

impl Dir {
    /// The readable path of something in it.
    pub(super) fn join(&self, path: &str) -> String {
        match (self.path.as_str(), path) {
            ("", path) => path.to_owned(),
            (_, ".") => self.path.clone(),
            (dir, path) => format!("{dir}/{path}"),
        }
    }
}
