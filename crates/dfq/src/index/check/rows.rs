//! What is wrong with the rows of a shard, one by one.
//!
//! Invariant: it is told of every row whether it can be used, by the row itself and the shard in which it was found. So what
//! is left out when a shard is written anew is what was reported.

use crate::index::merge::Counts;
use crate::index::schema::{Manner, Schema};
use crate::index::{Core, usv};
use crate::layout::Shard;

/// How many rows are described of one shard.
const MOST_TOLD: usize = 20;

/// What was found in the rows so far.
pub(super) struct Rows<'a> {
    schema: &'a Schema,
    shard: Shard,
    number: u64,
    last_key: Vec<u8>,
    pub(super) counts: Counts,
    /// What is wrong, with the number of the row.
    pub(super) faults: Vec<String>,
    pub(super) more_faults: u64,
}

impl<'a> Rows<'a> {
    pub(super) fn new(schema: &'a Schema, shard: Shard) -> Self {
        Self {
            schema,
            shard,
            number: 0,
            last_key: Vec::new(),
            counts: Counts::default(),
            faults: Vec::new(),
            more_faults: 0,
        }
    }

    /// Looks at the next row. Of an index that another program made, the rows need not be sorted.
    pub(super) fn look(&mut self, row: &[u8], sorted: bool) {
        self.number += 1;
        match self.schema.is_deletion(row) {
            true => self.counts.deletions += 1,
            false => self.counts.records += 1,
        }
        let fault = usable(self.schema, self.shard, row);
        let key = usv::key_of(row);
        let order = match key.cmp(self.last_key.as_slice()) {
            _ if !sorted || self.number == 1 => None,
            std::cmp::Ordering::Less => Some("it is not sorted"),
            std::cmp::Ordering::Equal => Some("its key comes twice"),
            std::cmp::Ordering::Greater => None,
        };
        self.last_key.clear();
        self.last_key.extend(key);
        for why in fault.into_iter().chain(order) {
            self.fault(why);
        }
    }

    pub(super) fn fault(&mut self, why: &str) {
        if self.faults.len() < MOST_TOLD {
            self.faults.push(format!("row {}: {why}", self.number));
        } else {
            self.more_faults += 1;
        }
    }
}

/// Why a row cannot be used in this shard; none if it can.
pub(super) fn usable(schema: &Schema, shard: Shard, row: &[u8]) -> Option<&'static str> {
    if let Some(fault) = schema.fault(row) {
        return Some(fault);
    }
    match std::str::from_utf8(row) {
        Err(_) => return Some("it is not text"),
        Ok(_) if usv::width(row) > schema.columns.len() => {
            return Some("it has more columns than the index");
        }
        Ok(_) => {}
    }
    let key = String::from_utf8_lossy(usv::key_of(row));
    (Shard::of_key(&key) != shard).then_some("its key belongs to another shard")
}

impl Core {
    /// The rows of a text, in the manner of the index.
    pub(super) fn split_rows<'a>(schema: &Schema, text: &'a [u8]) -> Vec<&'a [u8]> {
        match schema.manner {
            Manner::Ours => usv::rows(text).collect(),
            Manner::Theirs(_) => usv::foreign_rows(text, schema.columns.len()),
        }
    }
}
