//! What a worker has done so far, counted by whoever does it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Became, Report};

#[derive(Debug, Default)]
pub(super) struct Counts {
    completed: AtomicU64,
    retried: AtomicU64,
    failed: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
    unrecorded: AtomicU64,
}

impl Counts {
    pub(super) fn count(&self, became: Became) {
        let count = match became {
            Became::Completed => &self.completed,
            Became::Retried(_) => &self.retried,
            Became::Failed => &self.failed,
            Became::Released => &self.released,
            Became::Lost => &self.lost,
            Became::Unrecorded => &self.unrecorded,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> Report {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            completed: read(&self.completed),
            retried: read(&self.retried),
            failed: read(&self.failed),
            released: read(&self.released),
            lost: read(&self.lost),
            unrecorded: read(&self.unrecorded),
        }
    }
}
