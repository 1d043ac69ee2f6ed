//! What was written, and what may be found because of it.
//!
//! Which of two writes of a key counts is asserted only where it is certain: a write counts by a time that it brings
//! along, else by some moment while its process ran, as far as stores tell times.

use std::sync::{Mutex, PoisonError};

/// Stores may tell times in whole seconds.
const COARSE: i64 = 1_500;

/// One record of a process's input, or one key that it deletes.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: usize,
    /// Unlike any other; none is a deletion.
    pub(crate) value: Option<u64>,
    /// The time that the record brings along.
    pub(crate) own: Option<i64>,
}

#[derive(Clone, Debug)]
struct Write {
    entry: Entry,
    process: u64,
    line: usize,
    began: i64,
    ended: Option<i64>,
    /// The process said that all of it is put. Otherwise it may be there or not.
    answered: bool,
}

impl Write {
    /// Whether it certainly counts less.
    fn is_before(&self, other: &Self) -> bool {
        let (own, others) = (self.entry.own, other.entry.own);
        if self.process == other.process && own == others {
            return self.line < other.line;
        }
        let latest = own.unwrap_or_else(|| self.ended.map_or(i64::MAX, |ended| ended + COARSE));
        let earliest = others.unwrap_or(other.began - COARSE);
        latest < earliest
    }
}

/// All that was written.
#[derive(Default)]
pub(crate) struct Book(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    keys: Vec<Vec<Write>>,
    processes: u64,
    values: u64,
}

impl Book {
    pub(crate) fn new(keys: usize) -> Self {
        Self(Mutex::new(Inner { keys: vec![Vec::new(); keys], ..Inner::default() }))
    }

    fn with<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn keys(&self) -> usize {
        self.with(|inner| inner.keys.len())
    }

    pub(crate) fn next_value(&self) -> u64 {
        self.with(|inner| {
            inner.values += 1;
            inner.values
        })
    }

    /// Notes what a process is about to write.
    pub(crate) fn begin(&self, entries: &[Entry], began: i64) -> u64 {
        self.with(|inner| {
            inner.processes += 1;
            let process = inner.processes;
            for (line, entry) in entries.iter().cloned().enumerate() {
                let key = entry.key;
                let write = Write { entry, process, line, began, ended: None, answered: false };
                inner.keys[key].push(write);
            }
            process
        })
    }

    /// Notes that a process is gone, and whether it said that it was done.
    pub(crate) fn end(&self, process: u64, answered: bool, ended: i64) {
        self.with(|inner| {
            let writes = inner.keys.iter_mut().flatten();
            for write in writes.filter(|write| write.process == process) {
                (write.ended, write.answered) = (Some(ended), answered);
            }
        });
    }

    /// Whether this may be found by a look that began at this time. What was answered before counts.
    pub(crate) fn judge(&self, key: usize, looked: i64, found: Option<u64>) -> Result<(), String> {
        self.with(|inner| {
            let writes = &inner.keys[key];
            let there =
                |write: &&Write| write.answered && write.ended.is_some_and(|at| at < looked);
            let there: Vec<&Write> = writes.iter().filter(there).collect();
            let may_count = |write: &&Write| !there.iter().any(|later| write.is_before(later));
            let mut counting = writes.iter().filter(may_count);
            let fine = match found {
                Some(_) => counting.any(|write| write.entry.value == found),
                None => there.is_empty() || counting.any(|write| write.entry.value.is_none()),
            };
            if fine {
                return Ok(());
            }
            let all: Vec<String> = writes.iter().map(|write| format!("{write:?}")).collect();
            let all = all.join("\n    ");
            Err(format!("k{key} is {found:?} to a look at {looked}, which cannot be:\n    {all}"))
        })
    }

    /// Whether anybody wrote this.
    pub(crate) fn knows(&self, key: usize, value: Option<u64>) -> bool {
        self.with(|inner| {
            let mut writes = inner.keys.get(key).into_iter().flatten();
            writes.any(|write| write.entry.value == value)
        })
    }

    /// How many writes were answered, and of how many nothing is known.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.with(|inner| {
            let all = inner.keys.iter().flatten();
            let answered = all.clone().filter(|write| write.answered).count();
            (answered, all.count() - answered)
        })
    }
}
