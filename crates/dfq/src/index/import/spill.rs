//! Rows on their way into the shards, in one file for each shard outside the index.
//!
//! Invariant: the folder is ours alone, made anew under a name that nobody can guess, and it goes when this is dropped. Only
//! a process that is killed leaves it behind.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::index::usv;
use crate::layout::{self, Shard};

/// What a buffer holds before it is written out.
const BUFFER: usize = 32 << 10;

#[derive(Default)]
struct File {
    buffer: Vec<u8>,
    /// Something was written out.
    begun: bool,
}

/// The folder, and what is not written out yet.
pub(super) struct Spill {
    folder: PathBuf,
    files: Vec<File>,
}

impl Spill {
    pub(super) fn create(parent: &Path, nonce: &str) -> Result<Self> {
        let folder = parent.join(format!("dfq-import-{nonce}"));
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder).map_err(|error| failed("create", &folder, &error))?;
        let files = layout::all_shards().map(|_| File::default()).collect();
        Ok(Self { folder, files })
    }

    fn path(&self, shard: Shard) -> PathBuf {
        self.folder.join(shard.name())
    }

    /// Takes a row with its end.
    pub(super) fn add(&mut self, shard: Shard, row: &[u8]) -> Result<()> {
        let file = &mut self.files[usize::from(shard.number())];
        file.buffer.extend(row);
        if file.buffer.len() < BUFFER {
            return Ok(());
        }
        self.write_out(shard)
    }

    /// Opened anew each time: 256 open files are more than some systems allow.
    fn write_out(&mut self, shard: Shard) -> Result<()> {
        let path = self.path(shard);
        let file = &mut self.files[usize::from(shard.number())];
        if file.buffer.is_empty() {
            return Ok(());
        }
        let mut options = fs::OpenOptions::new();
        match file.begun {
            true => options.append(true),
            false => options.write(true).create_new(true),
        };
        let written = options.open(&path).and_then(|mut open| open.write_all(&file.buffer));
        written.map_err(|error| failed("write", &path, &error))?;
        file.begun = true;
        file.buffer.clear();
        Ok(())
    }

    /// Writes out what is left.
    pub(super) fn flush(&mut self) -> Result<()> {
        layout::all_shards().try_for_each(|shard| {
            self.write_out(shard)?;
            self.files[usize::from(shard.number())].buffer = Vec::new();
            Ok(())
        })
    }

    /// The shards that have rows.
    pub(super) fn shards(&self) -> impl Iterator<Item = Shard> {
        layout::all_shards().filter(|shard| self.files[usize::from(shard.number())].begun)
    }

    /// Hands out the rows of a shard, without their ends.
    pub(super) fn read(&self, shard: Shard, mut each: impl FnMut(&[u8])) -> Result<()> {
        let path = self.path(shard);
        let wrong = |error: std::io::Error| failed("read", &path, &error);
        let mut file = BufReader::new(fs::File::open(&path).map_err(wrong)?);
        let mut row = Vec::new();
        loop {
            row.clear();
            file.read_until(usv::END, &mut row).map_err(wrong)?;
            match row.pop() {
                Some(_) => each(&row),
                None => return Ok(()),
            }
        }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "temporary files were not removed");
        }
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Unavailable,
    };
    let hint = match kind {
        ErrorKind::Full => {
            "; the records wait there until they are sorted, name a folder with more room"
        }
        _ => "",
    };
    Error::new(kind, format!("cannot {what} '{}': {error}{hint}", path.display()))
}
