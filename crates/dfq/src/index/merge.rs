//! Merging rows into a shard: pure, no I/O.
//!
//! Invariant: the result depends on the rows alone, has each key once, sorted by the bytes of the key, and every row
//! stays as it was, but for nulls at its end that make it as wide as the columns. So to merge the same rows again gives
//! the same bytes. What goes in must be sorted already; if it is not, something else has written it, and nothing is made
//! of it.

use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, IntoIter};
use std::iter::Peekable;

use memchr::memchr;

use super::blocks::Blocks;
use super::schema::{IS_DELETED, Schema};
use super::usv::{self, RowEnd};
use crate::error::{Error, Result};
use crate::planted::{self, Planted};

/// Rows by their keys, of which each has one: the one that counts.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    by_key: BTreeMap<Vec<u8>, Vec<u8>>,
    /// About how many bytes the rows have.
    bytes: u64,
}

impl Rows {
    /// Adds a row, without its end, if it counts.
    pub(crate) fn add(&mut self, schema: &Schema, row: &[u8]) {
        self.bytes += row.len() as u64 + 1;
        match self.by_key.entry(usv::key_of(row).to_vec()) {
            Entry::Vacant(vacant) => _ = vacant.insert(row.to_vec()),
            Entry::Occupied(mut there) => {
                if schema.compare(row, there.get()).is_gt() {
                    there.insert(row.to_vec());
                }
            }
        }
    }

    /// Adds all rows of another collection.
    pub(crate) fn add_all(&mut self, schema: &Schema, other: Self) {
        for row in other.by_key.into_values() {
            self.add(schema, &row);
        }
    }

    /// The key of the rows, if all of them are of one.
    pub(crate) fn only_key(&self) -> Option<String> {
        let (key, _) = self.by_key.first_key_value().filter(|_| self.by_key.len() == 1)?;
        String::from_utf8(key.clone()).ok()
    }

    /// The row of a key.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.by_key.remove(key)
    }

    /// The rows in the order of their keys, from this key on.
    pub(crate) fn starting_at(mut self, key: &[u8]) -> Ordered {
        self.by_key.split_off(key).into_iter().peekable()
    }
}

/// Rows in the order of their keys.
pub(crate) type Ordered = Peekable<IntoIter<Vec<u8>, Vec<u8>>>;

/// What is in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    pub(crate) deletions: u64,
}

/// A shard that was merged.
pub(crate) struct Merged {
    pub(crate) bytes: Vec<u8>,
    pub(crate) counts: Counts,
    pub(crate) blocks: Blocks,
    /// It is not what it was.
    pub(crate) changed: bool,
}

/// Merges rows into a shard of another program's, which need not be sorted nor have each key once. Its rows stay as they
/// are, and so does how they end.
pub(crate) fn merge_theirs(
    schema: &Schema,
    old: &[u8],
    mut news: Rows,
    end: RowEnd,
) -> Result<Merged> {
    let mut counts = Counts::default();
    for (number, row) in usv::foreign_rows(old, schema.columns.len()).into_iter().enumerate() {
        if usv::key_of(row).is_empty() {
            return Err(Error::damaged(format!("row {}: it has no key", number + 1)));
        }
        news.add(schema, row);
    }
    let mut bytes = Vec::with_capacity(old.len());
    let mut blocks = Blocks::for_size(old.len() as u64);
    for row in news.by_key.into_values() {
        counts.records += 1;
        blocks.note(bytes.len() as u64, &row);
        bytes.extend(row);
        bytes.extend(end.bytes());
    }
    let changed = bytes != old;
    Ok(Merged { bytes, counts, blocks, changed })
}

/// The rows of a shard of ours, looked at one after the other: a cheap look at each. `check` looks closer.
#[derive(Clone, Debug, Default)]
pub(crate) struct InOrder {
    last_key: Vec<u8>,
    number: u64,
}

impl InOrder {
    /// Refuses a row that dfq has not written there.
    pub(crate) fn look(&mut self, [key, updated_at, ulid, _]: First<'_>) -> Result<()> {
        if key <= self.last_key.as_slice() {
            return Err(self.wrong(match key.is_empty() {
                true => "it has no key",
                false => "the rows are not sorted by key, each key once",
            }));
        }
        if (updated_at.len(), ulid.len()) != (27, 26) {
            return Err(self.wrong("_updated_at or _ulid is not as dfq writes it"));
        }
        self.last_key.clear();
        self.last_key.extend(key);
        self.number += 1;
        Ok(())
    }

    /// Refuses what is left after the last row.
    pub(crate) fn end(&self, rest: &[u8]) -> Result<()> {
        match rest {
            [] => Ok(()),
            _ => Err(self.wrong("its last row is cut short")),
        }
    }

    fn wrong(&self, why: &str) -> Error {
        Error::damaged(format!("row {}: {why}", self.number + 1))
    }
}

/// A shard on its way, row by row.
pub(crate) struct Merger<'a> {
    schema: &'a Schema,
    news: Ordered,
    /// Deletions that were put before this time, in milliseconds, are forgotten.
    forget: Option<u64>,
    out: Vec<u8>,
    counts: Counts,
    blocks: Blocks,
    changed: bool,
    /// The beginning of a row that is not here whole yet.
    rest: Vec<u8>,
    order: InOrder,
}

impl<'a> Merger<'a> {
    /// Begins with the shard's new rows. `expected` is about how many bytes it has so far.
    pub(crate) fn new(schema: &'a Schema, news: Rows, forget: Option<u64>, expected: u64) -> Self {
        let expected = expected + news.bytes;
        Self {
            schema,
            news: news.by_key.into_iter().peekable(),
            forget,
            out: Vec::with_capacity(usize::try_from(expected).unwrap_or(0)),
            counts: Counts::default(),
            blocks: Blocks::for_size(expected),
            changed: false,
            rest: Vec::new(),
            order: InOrder::default(),
        }
    }

    /// Takes the next part of what the shard is now.
    pub(crate) fn feed(&mut self, mut part: &[u8]) -> Result<()> {
        if !self.rest.is_empty() {
            let Some(end) = memchr(usv::END, part) else {
                self.rest.extend(part);
                return Ok(());
            };
            let mut row = std::mem::take(&mut self.rest);
            row.extend(&part[..end]);
            self.old_row(&row)?;
            part = &part[end + 1..];
        }
        while let Some(end) = memchr(usv::END, part) {
            self.old_row(&part[..end])?;
            part = &part[end + 1..];
        }
        self.rest.extend(part);
        Ok(())
    }

    /// The merged shard.
    pub(crate) fn finish(mut self) -> Result<Merged> {
        self.order.end(&self.rest)?;
        while let Some((_, row)) = self.news.next() {
            self.changed = true;
            self.write_new(&row);
        }
        let Self { out, counts, blocks, changed, .. } = self;
        Ok(Merged { bytes: out, counts, blocks, changed })
    }

    fn old_row(&mut self, row: &[u8]) -> Result<()> {
        let (first, width) = usv::first_four(row);
        self.order.look(first)?;
        let key = first[0];
        while self.news.peek().is_some_and(|(new, _)| new.as_slice() < key) {
            let Some((_, row)) = self.news.next() else { break };
            self.changed = true;
            self.write_new(&row);
        }
        let new = self.news.next_if(|(new, _)| new.as_slice() == key);
        let arrived = planted::is(Planted::OrderByArrival);
        match new {
            Some((_, new)) if arrived || self.schema.compare(&new, row).is_gt() => {
                self.changed = true;
                self.write_new(&new);
            }
            // One that beats what waits is needed until that is gone.
            None if self.is_forgotten(row, first) => self.changed = true,
            _ => self.write(row, first, width),
        }
        Ok(())
    }

    fn is_forgotten(&self, row: &[u8], first: First<'_>) -> bool {
        let before = |time| self.schema.put_at(row).is_some_and(|put_at| put_at < time);
        is_deletion(first) && self.forget.is_some_and(before)
    }

    fn write_new(&mut self, row: &[u8]) {
        let (first, width) = usv::first_four(row);
        self.write(row, first, width);
    }

    fn write(&mut self, row: &[u8], first: First<'_>, width: usize) {
        if is_deletion(first) {
            self.counts.deletions += 1;
        } else {
            self.counts.records += 1;
        }
        self.blocks.note(self.out.len() as u64, row);
        self.out.extend_from_slice(row);
        let lacks = self.schema.columns.len().saturating_sub(width);
        self.out.extend(std::iter::repeat_n(usv::FIELD, lacks));
        self.changed |= lacks > 0;
        if planted::is(Planted::MergedAnew) {
            self.out.push(usv::FIELD);
            self.changed = true;
        }
        self.out.push(usv::END);
    }
}

/// The key, `_updated_at`, `_ulid` and `_deleted` of a row of ours.
pub(crate) type First<'a> = [&'a [u8]; 4];

fn is_deletion(first: First<'_>) -> bool {
    first[3] == IS_DELETED
}

#[cfg(test)]
mod tests;
