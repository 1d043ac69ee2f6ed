//! A row as it lies in a file, and which of two rows of a key counts.
//!
//! Invariant: which one counts depends on the two rows alone, and never on where they were found. So any number of
//! merges, in any order and with any row merged twice, ends with the same rows.

use std::cmp::Ordering;

use super::record::Entry;
use super::schema::{DELETED, IS_DELETED, Manner, Schema};
use super::ulid::{Ulid, parse_time_text, read_time};
use super::usv;
use crate::planted::{self, Planted};

const UPDATED_AT_AT: usize = 1;
const ULID_AT: usize = 2;
const DELETED_AT: usize = 3;

/// By what a row counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The text of the time by which it counts.
    pub(crate) updated_at: String,
    /// Tells it from others of that time.
    pub(crate) ulid: Ulid,
}

/// The row of a record, or of a deletion, without its end.
pub(crate) fn begin(key: &str, stamp: &Stamp, deleted: bool) -> Vec<u8> {
    let mut row = Vec::with_capacity(key.len() + 128);
    row.extend(key.as_bytes());
    for text in [stamp.updated_at.as_str(), &stamp.ulid.to_string()] {
        row.push(usv::FIELD);
        row.extend(text.as_bytes());
    }
    if deleted {
        row.push(usv::FIELD);
        row.extend(IS_DELETED);
    } else {
        // Before the first field, which brings its own separator.
        row.push(usv::FIELD);
    }
    row
}

/// Makes a row as wide as the columns, for readers who count on that.
pub(crate) fn pad(row: &mut Vec<u8>, columns: usize) {
    row.extend(std::iter::repeat_n(usv::FIELD, columns.saturating_sub(usv::width(row))));
}

/// Takes away what stands for nulls at the end.
pub(crate) fn trim(row: &mut Vec<u8>) {
    while row.last() == Some(&usv::FIELD) {
        row.pop();
    }
}

impl Schema {
    /// Which of two rows of a key counts: the greater one.
    pub(crate) fn compare(&self, one: &[u8], other: &[u8]) -> Ordering {
        let by = |column| usv::field(one, column).cmp(usv::field(other, column));
        if planted::is(Planted::TiesUnbroken) {
            return by(UPDATED_AT_AT);
        }
        let first = match self.manner {
            Manner::Ours if planted::is(Planted::OrderByUlid) => by(ULID_AT),
            Manner::Ours => by(UPDATED_AT_AT).then_with(|| by(ULID_AT)),
            Manner::Theirs(Some(updated_at)) => {
                let time = |row| read_time(&String::from_utf8_lossy(usv::field(row, updated_at)));
                time(one).cmp(&time(other)).then_with(|| by(updated_at))
            }
            Manner::Theirs(None) => Ordering::Equal,
        };
        match self.manner {
            // Nulls at the end may be written or left out.
            Manner::Ours => first.then_with(|| trimmed(one).cmp(trimmed(other))),
            Manner::Theirs(_) => first.then_with(|| one.cmp(other)),
        }
    }

    /// The time by which a row counts, as it stands there.
    pub(crate) fn updated_at<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        match self.manner {
            Manner::Ours => usv::field(row, UPDATED_AT_AT),
            Manner::Theirs(column) => column.map_or(&[], |column| usv::field(row, column)),
        }
    }

    /// Whether a row says that its key was deleted.
    pub(crate) fn is_deletion(&self, row: &[u8]) -> bool {
        self.manner == Manner::Ours && usv::field(row, DELETED_AT) == IS_DELETED
    }

    /// When a row was put, by its ulid.
    pub(crate) fn put_at(&self, row: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(usv::field(row, ULID_AT)).ok()?;
        Ulid::parse(text).map(Ulid::millis).filter(|_| self.manner == Manner::Ours)
    }

    /// What is wrong with a row that was found in a file of ours; `None` if nothing is.
    pub(crate) fn fault(&self, row: &[u8]) -> Option<&'static str> {
        if usv::key_of(row).is_empty() {
            return Some("a row without a key");
        }
        if self.manner != Manner::Ours {
            return None;
        }
        let text = |column| std::str::from_utf8(usv::field(row, column)).unwrap_or_default();
        if parse_time_text(text(UPDATED_AT_AT)).is_none() {
            return Some("a row whose _updated_at is not a time");
        }
        if Ulid::parse(text(ULID_AT)).is_none() {
            return Some("a row whose _ulid is not a ulid");
        }
        match usv::field(row, DELETED_AT) {
            b"" | IS_DELETED => None,
            _ => Some("a row whose _deleted is neither empty nor true"),
        }
    }

    /// A row as its readers get it; `None` if it is a deletion.
    pub(crate) fn entry(&self, row: &[u8]) -> Option<Entry> {
        if self.is_deletion(row) {
            return None;
        }
        let text = |column| String::from_utf8_lossy(usv::field(row, column)).into_owned();
        let (updated_at, ulid) = match self.manner {
            Manner::Ours => (parse_time_text(&text(UPDATED_AT_AT)), Some(text(ULID_AT))),
            Manner::Theirs(column) => (column.and_then(|column| read_time(&text(column))), None),
        };
        let key = String::from_utf8_lossy(usv::key_of(row)).into_owned();
        Some(Entry { key, fields: self.read_fields(row), updated_at, ulid, row: None })
    }

    /// The name of the column that tells deletions, for messages.
    pub(crate) fn deleted_column() -> &'static str {
        DELETED
    }
}

fn trimmed(row: &[u8]) -> &[u8] {
    let nulls = row.iter().rev().take_while(|byte| **byte == usv::FIELD).count();
    &row[..row.len() - nulls]
}
