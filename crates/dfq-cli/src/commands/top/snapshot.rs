//! What `top` finds out about a queue in one go, within bounds: a large queue is counted by names
//! only.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Result;
use dfq::Queue;
use dfq::queue::{Detail, PendingStates, Stats, TaskState, TaskView, WorkerRecord};
use jiff::Timestamp;

use crate::commands::failed;
use crate::commands::supervise::state::Merge;
use crate::commands::workers::Life;
use crate::context::Context;
use crate::select::{Selection, StateName, last_error};

/// With more pending tasks than this, they are not looked into.
const PENDING: u64 = 20_000;
/// Where a look is a request, so many of those that have a lease are looked into.
const LOOKS: usize = 100;
/// With more failed ones than this, the latest are not looked for.
const FAILED: u64 = 20_000;
/// So many of each are kept: more than any screen shows.
const KEPT: usize = 200;

/// A queue at a moment.
pub(super) struct Snapshot {
    pub(super) name: String,
    pub(super) stats: Stats,
    /// The store tells all of it, not only estimates of some.
    pub(super) tells_all: bool,
    /// Completed and failed for each second since the snapshot before.
    pub(super) rates: Option<(f64, f64)>,
    pub(super) workers: Vec<WorkerRecord>,
    /// Those that end first.
    pub(super) leases: Vec<Lease>,
    /// The newest.
    pub(super) failures: Vec<Failure>,
    pub(super) now: Timestamp,
    /// How the merge goes, in a line or two, if it is a node of a synced queue.
    pub(super) merge: Vec<String>,
    taken: Duration,
}

pub(super) struct Lease {
    pub(super) id: String,
    pub(super) worker_id: String,
    pub(super) since: Option<Timestamp>,
    pub(super) until: Timestamp,
}

#[derive(Clone)]
pub(super) struct Failure {
    pub(super) id: String,
    pub(super) at: Option<Timestamp>,
    pub(super) error: String,
}

impl Snapshot {
    pub(super) async fn at(
        name: &str,
        queue: &dyn Queue,
        before: Option<&Self>,
        context: &Context,
    ) -> Result<Self> {
        let taken = context.env.monotonic();
        let tells_all = queue.capabilities().inspect;
        let detail = if tells_all { Detail::Counts } else { Detail::States };
        let mut stats = queue.stats(detail).await?;
        let mut leases = Vec::new();
        if tells_all && stats.pending <= PENDING {
            let (states, pending, estimated) = pending(queue, &mut leases).await?;
            stats.states = Some(states);
            stats.pending = pending;
            (stats.estimates.pending, stats.estimates.states) = (false, estimated);
        }
        leases.sort_by(|a, b| (a.until, &a.id).cmp(&(b.until, &b.id)));
        leases.truncate(KEPT);
        let failures = match before {
            // Records of finished tasks do not change.
            Some(before) if stats.estimates.failed || before.stats.failed == stats.failed => {
                before.failures.clone()
            }
            _ if tells_all && stats.failed <= FAILED => latest(queue).await?,
            _ => Vec::new(),
        };
        let now = queue.now().await;
        let mut workers = if tells_all { queue.workers().await? } else { Vec::new() };
        workers.sort_by_key(|worker| Life::of(worker, now));
        let rates = before.and_then(|before| {
            let seconds = taken.checked_sub(before.taken)?.as_secs_f64();
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
            let counted = !stats.estimates.completed && !stats.estimates.failed;
            (seconds > 0.0 && counted).then(|| {
                let completed = rate(stats.completed, before.stats.completed);
                (completed, rate(stats.failed, before.stats.failed))
            })
        });
        let merge = Merge::of(context, name).await.unwrap_or(None);
        let merge = merge.map_or_else(Vec::new, |merge| {
            std::iter::once(merge.line()).chain(merge.trouble()).collect()
        });
        let name = name.to_owned();
        Ok(Self { name, stats, tells_all, rates, workers, leases, failures, now, merge, taken })
    }
}

#[cfg(test)]
impl Snapshot {
    pub(super) fn made_up(
        name: &str,
        stats: Stats,
        leases: Vec<Lease>,
        failures: Vec<Failure>,
    ) -> Self {
        let (workers, now, taken) = (Vec::new(), Timestamp::UNIX_EPOCH, Duration::ZERO);
        let (name, tells_all, rates, merge) = (name.to_owned(), true, None, Vec::new());
        Self { name, stats, tells_all, rates, workers, leases, failures, now, merge, taken }
    }
}

/// Counts pending tasks by state, and notes who has which; whether the states are an estimate.
async fn pending(queue: &dyn Queue, leases: &mut Vec<Lease>) -> Result<(PendingStates, u64, bool)> {
    let mut states = PendingStates::default();
    let (mut pending, mut claimed, mut given_back) = (0, 0, 0);
    let state = vec![StateName::Pending];
    let selection = Selection { state, looks: Some(LOOKS), ..Selection::default() };
    let each = |view: TaskView| {
        pending += 1;
        if let Some(created) = view.meta.created_at {
            states.oldest = Some(states.oldest.map_or(created, |oldest| oldest.min(created)));
        }
        match view.state {
            TaskState::Leased { worker_id, until } => {
                states.leased += 1;
                let since = view.attempts.last().map(|attempt| attempt.created_at);
                leases.push(Lease { id: view.key.id().to_string(), worker_id, since, until });
            }
            TaskState::Stale { .. } => states.stale += 1,
            TaskState::Backoff { .. } => states.backoff += 1,
            TaskState::Damaged => states.damaged += 1,
            TaskState::Claimed => claimed += 1,
            _ => {
                states.ready += 1;
                given_back += u64::from(!view.attempts.is_empty());
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    selection.visit(queue, each).await?;
    // Those that were not looked into are taken to wait for the same things as those that were.
    let looked = states.leased + states.stale + states.backoff + given_back;
    let share = |of: u64| (of * claimed + looked / 2).checked_div(looked).unwrap_or(0);
    let (stale, backoff) = (share(states.stale), share(states.backoff));
    let ready = share(given_back);
    states.leased += claimed.saturating_sub(stale + backoff + ready);
    states.ready += ready;
    (states.stale, states.backoff) = (states.stale + stale, states.backoff + backoff);
    Ok((states, pending, claimed > 0))
}

async fn latest(queue: &dyn Queue) -> Result<Vec<Failure>> {
    let (views, _) = failed::newest(queue, &[], KEPT).await?;
    let failure = |view: &TaskView| Failure {
        id: view.key.id().to_string(),
        at: view.finished_at,
        error: last_error(view).unwrap_or_default(),
    };
    Ok(views.iter().map(failure).collect())
}
