//! When to stop rather than burn the queue: the command cannot be run, or too much of it fails.
//!
//! Invariant: what one task contains never stops a worker. A command that is missing is found out before
//! anything is claimed. One that says so itself (126, 127) may mean the task, or the machine: only when
//! many different tasks in a row end so, and none has ever been completed, is it the machine.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use dfq::worker::{Stopper, TaskResult};

/// `--halt`: so many failed commands, or such a part of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Count(u64),
    Percent(u64),
}

/// So many different tasks in a row for which the command could not be run mean that it never can.
const NEVER_RUNS: usize = 10;

/// A part is not judged before so many commands have ended.
const ENOUGH_TO_JUDGE: u64 = 10;

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no limit; write fail=10 or fail=50%");
        let number = text.strip_prefix("fail=").ok_or_else(wrong)?;
        let (number, percent) = match number.strip_suffix('%') {
            Some(number) => (number, true),
            None => (number, false),
        };
        match (number.parse::<u64>().map_err(|_| wrong())?, percent) {
            (0, _) => Err(wrong()),
            (number, true) if number <= 100 => Ok(Self::Percent(number)),
            (_, true) => Err(wrong()),
            (number, false) => Ok(Self::Count(number)),
        }
    }
}

/// Stops the worker for a reason.
pub(super) struct Halt {
    limit: Option<Limit>,
    ended: AtomicU64,
    failed: AtomicU64,
    /// Some task was completed.
    works: AtomicBool,
    /// The last tasks, as long as the command could be run for none of them.
    not_run: Mutex<BTreeSet<String>>,
    reason: Mutex<Option<String>>,
    stopper: OnceLock<Stopper>,
}

impl Halt {
    pub(super) fn new(limit: Option<Limit>) -> Self {
        Self {
            limit,
            ended: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            works: AtomicBool::new(false),
            not_run: Mutex::default(),
            reason: Mutex::default(),
            stopper: OnceLock::new(),
        }
    }

    /// What is stopped.
    pub(super) fn stops(&self, stopper: Stopper) {
        let _ = self.stopper.set(stopper);
    }

    /// Stops the worker. The first reason is the one that counts.
    pub(super) fn now(&self, why: &str) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.get_or_insert_with(|| why.to_owned());
        if let Some(stopper) = self.stopper.get() {
            stopper.stop();
        }
    }

    /// Completes when the worker has been told to stop, for whatever reason.
    pub(super) async fn stopping(&self) {
        match self.stopper.get() {
            Some(stopper) => stopper.stopping().await,
            None => std::future::pending().await,
        }
    }

    /// The command could not be run for this task. That counts as a failure of the task; and if there was
    /// nothing else, it stops the worker.
    pub(super) fn could_not_run(&self, task: &str, why: String) -> TaskResult {
        let mut tasks = self.not_run.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.insert(task.to_owned());
        if tasks.len() >= NEVER_RUNS && !self.works.load(Ordering::SeqCst) {
            self.now(&format!(
                "the command could not be run for {} tasks in a row: {why}",
                tasks.len()
            ));
        }
        TaskResult::Retry { error: why, delay: None }
    }

    /// The command was run, whatever came of it, or it was the task that kept it from that.
    pub(super) fn not_the_machine(&self) {
        self.not_run.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Why the worker was stopped, if it was.
    pub(super) fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a command that has ended. To be told before anything else can start in its place: that
    /// does not wait for the queue to be told.
    pub(super) fn ended(&self, result: &TaskResult) {
        let failed = match result {
            TaskResult::Ack => {
                self.works.store(true, Ordering::SeqCst);
                false
            }
            TaskResult::Retry { .. } | TaskResult::Fail { .. } => true,
            TaskResult::Release { .. } => return,
        };
        let ended = self.ended.fetch_add(1, Ordering::SeqCst) + 1;
        let failed = self.failed.fetch_add(u64::from(failed), Ordering::SeqCst) + u64::from(failed);
        match self.limit {
            Some(Limit::Count(limit)) if failed >= limit => {
                self.now(&format!("{failed} commands failed (--halt fail={limit})"));
            }
            Some(Limit::Percent(limit))
                if ended >= ENOUGH_TO_JUDGE && failed * 100 >= ended * limit =>
            {
                self.now(&format!("{failed} of {ended} commands failed (--halt fail={limit}%)"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        assert_eq!("fail=3".parse(), Ok(Limit::Count(3)));
        assert_eq!("fail=50%".parse(), Ok(Limit::Percent(50)));
        for wrong in ["", "3", "fail", "fail=", "fail=0", "fail=0%", "fail=101%", "fail=-1", "ok=3"]
        {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ten_different_tasks_in_a_row_mean_the_machine() {
        let not_run = |halt: &Halt, numbers: std::ops::Range<u32>| {
            for number in numbers {
                halt.could_not_run(&number.to_string(), String::new());
            }
            halt.reason().is_some()
        };
        let halt = Halt::new(None);
        assert!(!not_run(&halt, 0..9) && not_run(&halt, 9..10));
        let again = Halt::new(None);
        assert!(!(0..9).any(|_| not_run(&again, 0..9)), "the same ones");
        let broken = Halt::new(None);
        assert!(!not_run(&broken, 0..9));
        broken.not_the_machine();
        assert!(!not_run(&broken, 9..18), "not in a row");
        let works = Halt::new(None);
        works.ended(&TaskResult::Ack);
        assert!(!not_run(&works, 0..100));
    }
}
