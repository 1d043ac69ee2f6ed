//! What lies in the inbox, listed and read.
//!
//! Invariant: a file that cannot be read as what its name says stays where it is and is reported; it costs only itself.

use std::time::Duration;

use futures::StreamExt;

use super::merge::Rows;
use super::schema::{Manner, Schema};
use super::ulid::Ulid;
use super::{Core, usv};
use crate::error::Result;
use crate::layout::{self, InboxName, Shard};
use crate::store::objects::{Head, List, Listed, Version};

/// Files read at a time.
const AT_ONCE: usize = 32;

/// Names in one part of a listing.
pub(super) const PAGE: usize = 1000;

/// After so long, a file of another program that does not end with the end of a row will not get one.
pub(super) const SETTLES_IN: Duration = Duration::from_secs(60);

/// A file in the inbox.
#[derive(Clone, Debug)]
pub(super) struct InboxFile {
    pub(super) path: String,
    pub(super) shard: Shard,
    pub(super) name: InboxName,
    pub(super) size: u64,
    /// Which of its contents it has, if another program may replace it.
    pub(super) version: Version,
}

impl InboxFile {
    /// What a listed file stands for.
    pub(super) fn new(file: Listed) -> Option<Self> {
        let (shard, name) = layout::parse_inbox(&file.name)?;
        Some(Self::named(file.name, file.head, shard, name))
    }

    /// What a listed file stands for that lies beside those of all shards.
    pub(super) fn new_flat(file: Listed) -> Option<Self> {
        let (shard, name) = layout::parse_flat(&file.name)?;
        Some(Self::named(file.name, file.head, shard, name))
    }

    fn named(path: String, head: Head, shard: Shard, name: InboxName) -> Self {
        let Head { size, version, .. } = head;
        Self { path, shard, name, size, version }
    }

    /// Whether another program made it, which may replace it at any time.
    pub(super) fn is_seed(&self) -> bool {
        matches!(self.name, InboxName::Seed { .. })
    }

    /// When it was put, in milliseconds of the store's clock.
    pub(super) fn put_at(&self) -> Option<u64> {
        match &self.name {
            InboxName::Record { ulid, .. } | InboxName::Bundle { ulid } => {
                Ulid::parse(ulid).map(Ulid::millis)
            }
            InboxName::Seed { .. } => None,
        }
    }
}

/// Rows that were read from the inbox.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) rows: Rows,
    /// How many rows there were, those included that do not count.
    pub(super) read: u64,
    /// How many fields the widest row has.
    pub(super) widest: usize,
    /// The files that they came from. Nobody changes these.
    pub(super) files: Vec<String>,
    /// Records of another program that were read, each with the version that was.
    pub(super) seeds: Vec<(String, Version)>,
    /// Some files had gone by the time they were to be read.
    pub(super) gone: bool,
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
            files.extend(ours.filter_map(InboxFile::new));
            if part.end {
                return Ok(files);
            }
        }
    }

    /// Reads files of the inbox. Those that have gone meanwhile are in the shard by now.
    pub(super) async fn take(&self, schema: &Schema, files: &[InboxFile]) -> Result<Taken> {
        let mut reads = Vec::with_capacity(files.len());
        for file in files {
            reads.push(async move { (file, self.objects.get(&file.path, None).await) });
        }
        // To tell whether a file is still being written, by a program that does not write whole files.
        let now = match files.iter().any(InboxFile::is_seed) {
            true => Some(self.stamps.now(&*self.objects, &self.env).await?),
            false => None,
        };
        let mut reading = futures::stream::iter(reads).buffered(self.at_once(AT_ONCE));
        let mut taken = Taken::default();
        while let Some((file, stored)) = reading.next().await {
            let got = match stored {
                Ok(Some(got)) => got,
                Ok(None) => {
                    taken.gone = true;
                    continue;
                }
                Err(error) if error.kind() == crate::ErrorKind::Damaged => {
                    taken.unreadable.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let settled = now.is_none_or(|now| now >= got.head.modified + SETTLES_IN);
            match rows_of(schema, file, &got.bytes, settled) {
                Ok(rows) => {
                    taken.read += rows.len() as u64;
                    for row in rows {
                        taken.widest = taken.widest.max(usv::width(row));
                        taken.rows.add(schema, row);
                    }
                    match file.is_seed() {
                        true => taken.seeds.push((file.path.clone(), got.head.version)),
                        false => taken.files.push(file.path.clone()),
                    }
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

/// The rows in a file, or what is wrong with it. One of another program that is not `settled` may still be being written.
pub(super) fn rows_of<'a>(
    schema: &Schema,
    file: &InboxFile,
    bytes: &'a [u8],
    settled: bool,
) -> std::result::Result<Vec<&'a [u8]>, &'static str> {
    let ours = schema.manner == Manner::Ours;
    if file.is_seed() && ours {
        return Err("another program's record; this index has columns of its own");
    }
    let rows: Vec<&[u8]> = match ours {
        true => usv::rows(bytes).collect(),
        false => usv::foreign_rows(bytes, schema.columns.len()),
    };
    let whole = match ours {
        true => bytes.last() == Some(&usv::END),
        false => usv::is_whole(bytes) || settled,
    };
    if !whole {
        return Err("it is cut short");
    }
    for row in &rows {
        if let Some(fault) = schema.fault(row) {
            return Err(fault);
        }
        if !ours && usv::width(row) > schema.columns.len() {
            return Err("a row with more columns than the index has");
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
        (_, 0) => Err("it has no row"),
        (InboxName::Record { .. }, 2..) if ours => Err("more than one row in a file of one record"),
        _ => Ok(rows),
    }
}
