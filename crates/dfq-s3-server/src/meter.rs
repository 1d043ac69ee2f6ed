//! Counts of what was asked and answered, so that a test can say what something costs. A request is
//! counted once, when its answer is ready or has been lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::Fault;
use crate::request::RequestInfo;

/// How many of the latest requests are kept in full.
const RECENT: usize = 1000;

/// One request that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// What was asked.
    pub request: RequestInfo,
    /// What was done to it.
    pub fault: Option<Fault>,
    /// What was answered; nothing if the connection was closed instead.
    pub status: Option<u16>,
}

/// All counts at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests by operation and by status; status 0 is no answer.
    pub by_op: BTreeMap<&'static str, BTreeMap<u16, u64>>,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What the rules denied: requests, and keys of a request that removes many.
    pub denied: u64,
}

impl Counts {
    /// Requests of one operation, however they ended.
    #[must_use]
    pub fn count(&self, op: &str) -> u64 {
        self.by_op.get(op).map_or(0, |by_status| by_status.values().sum())
    }

    /// Requests of one operation that were answered with success.
    #[must_use]
    pub fn ok(&self, op: &str) -> u64 {
        let by_status = self.by_op.get(op).into_iter().flatten();
        by_status.filter(|(status, _)| (200..300).contains(*status)).map(|(_, n)| n).sum()
    }

    /// Requests with one status, of any operation; 0 is no answer.
    #[must_use]
    pub fn status(&self, status: u16) -> u64 {
        self.by_op.values().filter_map(|by_status| by_status.get(&status)).sum()
    }

    /// Faults of one name.
    #[must_use]
    pub fn fault(&self, name: &str) -> u64 {
        self.faults.get(name).copied().unwrap_or(0)
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_op.values().flat_map(BTreeMap::values).sum()
    }
}

#[derive(Default)]
struct Inner {
    counts: Counts,
    recent: VecDeque<Record>,
}

/// The counters of a running server.
#[derive(Default)]
pub struct Meter {
    inner: Mutex<Inner>,
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All counts as they are now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    /// Requests of one operation, however they ended.
    #[must_use]
    pub fn count(&self, op: &str) -> u64 {
        self.lock().counts.count(op)
    }

    /// Requests of one operation that were answered with success.
    #[must_use]
    pub fn ok(&self, op: &str) -> u64 {
        self.lock().counts.ok(op)
    }

    /// The latest requests, oldest first; at most a thousand.
    #[must_use]
    pub fn recent(&self) -> Vec<Record> {
        self.lock().recent.iter().cloned().collect()
    }

    /// Starts again at nothing.
    pub fn reset(&self) {
        *self.lock() = Inner::default();
    }

    pub(crate) fn is_denied(&self) {
        self.lock().counts.denied += 1;
    }

    pub(crate) fn record(&self, record: Record) {
        let mut inner = self.lock();
        let by_status = inner.counts.by_op.entry(record.request.op).or_default();
        *by_status.entry(record.status.unwrap_or(0)).or_default() += 1;
        if let Some(fault) = record.fault {
            *inner.counts.faults.entry(fault.name()).or_default() += 1;
        }
        if inner.recent.len() == RECENT {
            inner.recent.pop_front();
        }
        inner.recent.push_back(record);
    }
}
