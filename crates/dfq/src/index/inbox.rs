//! What lies in the inbox, listed and read.
//!
//! Invariant: a file that cannot be read as what its name says stays where it is and is reported; it costs only itself.

use futures::StreamExt;

use super::merge::Rows;
use super::schema::{Manner, Schema};
use super::ulid::Ulid;
use super::{Core, usv};
use crate::error::Result;
use crate::layout::{self, InboxName, Shard};
use crate::store::ObjectsExt as _;
use crate::store::objects::List;

/// Files read at a time.
const AT_ONCE: usize = 32;

/// Names in one part of a listing.
pub(super) const PAGE: usize = 1000;

/// A file in the inbox.
#[derive(Clone, Debug)]
pub(super) struct InboxFile {
    pub(super) path: String,
    pub(super) shard: Shard,
    pub(super) name: InboxName,
    pub(super) size: u64,
}

impl InboxFile {
    /// What a listed path stands for.
    pub(super) fn new(path: String, size: u64) -> Option<Self> {
        let (shard, name) = layout::parse_inbox(&path)?;
        Some(Self { path, shard, name, size })
    }

    /// When it was put, in milliseconds of the store's clock.
    pub(super) fn put_at(&self) -> Option<u64> {
        match &self.name {
            InboxName::Record { ulid, .. } | InboxName::Bundle { ulid } => {
                Ulid::parse(ulid).map(Ulid::millis)
            }
            InboxName::Seed => None,
        }
    }
}

/// Rows that were read from the inbox.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) rows: Rows,
    /// How many rows there were, those included that do not count.
    pub(super) read: u64,
    /// The files that they came from.
    pub(super) files: Vec<String>,
    /// Files that could not be read, each with the reason.
    pub(super) unreadable: Vec<String>,
}

impl Core {
    /// All files of the inbox whose names begin with this.
    pub(super) async fn list_inbox(&self, prefix: String) -> Result<Vec<InboxFile>> {
        let mut listing = self.objects.list(List::below(prefix));
        let mut files = Vec::new();
        loop {
            let part = listing.next(PAGE).await?;
            let ours = part.files.into_iter();
            files.extend(ours.filter_map(|file| InboxFile::new(file.name, file.head.size)));
            if part.end {
                return Ok(files);
            }
        }
    }

    /// Reads files of the inbox. Those that have gone meanwhile are in the shard by now.
    pub(super) async fn take(&self, schema: &Schema, files: &[InboxFile]) -> Result<Taken> {
        let mut reads = Vec::with_capacity(files.len());
        for file in files {
            reads.push(async move { (file, self.objects.read(&file.path).await) });
        }
        let mut reading = futures::stream::iter(reads).buffered(self.at_once(AT_ONCE));
        let mut taken = Taken::default();
        while let Some((file, stored)) = reading.next().await {
            let bytes = match stored {
                Ok(Some(stored)) => stored.bytes,
                Ok(None) => continue,
                Err(error) if error.kind() == crate::ErrorKind::Damaged => {
                    taken.unreadable.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            match rows_of(schema, file, &bytes) {
                Ok(rows) => {
                    taken.read += rows.len() as u64;
                    rows.iter().for_each(|row| taken.rows.add(schema, row));
                    taken.files.push(file.path.clone());
                }
                Err(why) => taken.unreadable.push(format!("{}: {why}", file.path)),
            }
        }
        Ok(taken)
    }

    /// How many calls are worth having under way at a time.
    pub(super) fn at_once(&self, most: usize) -> usize {
        if self.objects.properties().blocking { 1 } else { most }
    }
}

/// The rows in a file, or what is wrong with it.
fn rows_of<'a>(
    schema: &Schema,
    file: &InboxFile,
    bytes: &'a [u8],
) -> std::result::Result<Vec<&'a [u8]>, &'static str> {
    if matches!(file.name, InboxName::Seed) && schema.manner == Manner::Ours {
        return Err("another program's record; this index has columns of its own");
    }
    let foreign = schema.manner != Manner::Ours;
    let rows: Vec<&[u8]> = match foreign {
        true => usv::foreign_rows(bytes).collect(),
        false => usv::rows(bytes).collect(),
    };
    if !foreign && bytes.last() != Some(&usv::END) {
        return Err("it is cut short");
    }
    for row in &rows {
        if let Some(fault) = schema.fault(row) {
            return Err(fault);
        }
        let key = std::str::from_utf8(usv::key_of(row)).map_err(|_| "a key that is not text")?;
        let belongs = match &file.name {
            InboxName::Record { key: named, .. } => key == named,
            _ => Shard::of_key(key) == file.shard,
        };
        if !belongs {
            return Err("a row whose key belongs elsewhere");
        }
    }
    match (&file.name, rows.len()) {
        (InboxName::Record { .. }, 1) | (InboxName::Bundle { .. } | InboxName::Seed, 1..) => {
            Ok(rows)
        }
        (_, 0) => Err("it has no row"),
        _ => Err("more than one row in a file of one record"),
    }
}
