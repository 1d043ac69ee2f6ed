//! Many seeds, on all cores.
//!
//! Invariant: what is found for a seed does not depend on other seeds, nor on how many threads there are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use dfq::planted::{self, Planted};

use crate::check::Violation;
use crate::history::Tally;
use crate::plan::{On, Plan};
use crate::run::run;

/// Which seeds, and how.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// On which stores; both, if it is not said.
    pub on: Option<On>,
    /// A rule that is left out.
    pub planted: Option<Planted>,
    /// How many threads.
    pub threads: usize,
    /// It is over when one seed has failed.
    pub until_found: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Found {
    /// Seeds that failed, ascending, with what was wrong.
    pub failed: Vec<(u64, Vec<Violation>)>,
    /// Seeds that were run.
    pub seeds: u64,
    /// How often something was let run.
    pub steps: u64,
    /// System calls and requests.
    pub calls: u64,
    /// Faults in the plans. What networks do to requests comes on top.
    pub faults: u64,
    /// What came of them.
    pub tally: Tally,
}

impl Campaign {
    /// Runs all seeds; tells of each that is done.
    pub fn run(&self, tell: &(dyn Fn(u64, &[Violation]) + Sync)) -> Found {
        let (next, over) = (AtomicU64::new(self.from), AtomicBool::new(false));
        let found = Mutex::new(Found::default());
        let work = || {
            planted::plant(self.planted);
            while !over.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= self.from.saturating_add(self.seeds) {
                    break;
                }
                let plan = Plan::drawn(seed, self.on);
                let outcome = run(&plan, false);
                tell(seed, &outcome.violations);
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.seeds += 1;
                found.steps += outcome.steps;
                found.calls += outcome.history.calls();
                found.faults += plan.faults.len() as u64;
                let tally = outcome.history.tally();
                found.tally.killed += tally.killed;
                found.tally.stalled += tally.stalled;
                found.tally.power_cuts += tally.power_cuts;
                found.tally.jumps += tally.jumps;
                if !outcome.violations.is_empty() {
                    found.failed.push((seed, outcome.violations));
                    over.fetch_or(self.until_found, Ordering::Relaxed);
                }
            }
            planted::plant(None);
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(work);
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.failed.sort_by_key(|(seed, _)| *seed);
        found
    }
}
