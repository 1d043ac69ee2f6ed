//! Decisions about leases: pure functions of what was read. No clock, no store, no chance.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Earlier;
use super::merge::Elsewhere;
use crate::format;
use crate::model::{AttemptSummary, Lease, LeaseState, WORKER_STOPPED};
use crate::planted::{self, Planted};
use crate::store::Stored;

/// A lease file as it was found.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) attempt: u32,
    /// Nothing if the file is empty, cut short or garbage: a writer that stalled or died.
    pub(super) lease: Option<Lease>,
    pub(super) modified: Timestamp,
    /// Tells this version of the file from any other: content and time.
    pub(super) version: u64,
}

impl Seen {
    pub(super) fn new(attempt: u32, stored: &Stored) -> Self {
        Self {
            attempt,
            lease: format::decode_lease(&stored.bytes, attempt),
            modified: stored.modified,
            version: stored.version(),
        }
    }

    pub(super) fn state(&self) -> Option<LeaseState> {
        self.lease.as_ref().and_then(|lease| lease.state)
    }

    /// Made by an operator to end the lease before it: released from the start.
    fn is_unlock(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| {
            lease.state == Some(LeaseState::Released) && lease.expires_at == lease.created_at
        })
    }

    /// Given back only because its worker stopped.
    fn stopped(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.and_then(|lease| lease.error.as_deref()) == Some(WORKER_STOPPED)
    }

    fn withdrawn(&self) -> bool {
        self.state() == Some(LeaseState::Withdrawn)
    }

    /// For how long the file must stay unchanged before its owner is taken for dead.
    pub(super) fn length(&self, queue_lease: Duration) -> SignedDuration {
        let default = SignedDuration::try_from(queue_lease).unwrap_or(SignedDuration::MAX);
        self.lease.as_ref().map_or(default, Lease::length)
    }

    /// How long nobody may have the task, from when that was written.
    pub(super) fn waits(&self) -> SignedDuration {
        let until = self.lease.as_ref().and_then(|lease| lease.not_before);
        until.map_or(SignedDuration::ZERO, |until| until.duration_since(self.modified))
    }

    pub(super) fn worker_id(&self) -> &str {
        self.lease.as_ref().map_or("(unreadable lease)", |lease| &lease.worker_id)
    }

    /// When it runs out on the store's clock, unless renewed: both its own word and the file's age
    /// must agree. A word that is a day off from the file's age is not believed.
    pub(super) fn runs_out(&self, queue_lease: Duration) -> Timestamp {
        let by_age =
            self.modified.saturating_add(self.length(queue_lease)).unwrap_or(Timestamp::MAX);
        let mut believable =
            by_age.saturating_add(SignedDuration::from_hours(24)).unwrap_or(Timestamp::MAX);
        if planted::is(Planted::AnyWordBelieved) {
            believable = Timestamp::MAX;
        }
        match &self.lease {
            _ if planted::is(Planted::OnlyAgeCounts) => by_age,
            Some(lease) if planted::is(Planted::OnlyWordCounts) => lease.expires_at,
            Some(lease) if lease.expires_at <= believable => by_age.max(lease.expires_at),
            _ => by_age,
        }
    }
}

/// The lease that counts: the highest that was not withdrawn.
pub(super) fn current(history: &[Seen]) -> Option<&Seen> {
    if planted::is(Planted::FirstLeaseCounts) {
        return history.iter().find(|seen| !seen.withdrawn());
    }
    let counts = |seen: &&Seen| !seen.withdrawn() || planted::is(Planted::WithdrawnCounts);
    history.iter().rev().find(counts)
}

/// What a worker may do with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Create the next attempt.
    Free,
    /// Its owner went silent: create the next attempt.
    Stale,
    /// Somebody has it; look again when it runs out, on the store's clock.
    Held(Timestamp),
    /// Nobody may have it before this time on the store's clock.
    Backoff(Timestamp),
}

/// What the judge knows of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// The store's clock, or a little less.
    pub(super) store: Timestamp,
    /// Times written in the last lease's length can be compared with it.
    pub(super) steady: bool,
    /// For how long this process has watched the current lease file without seeing it change.
    pub(super) watched: Duration,
}

impl Now {
    /// When something ends: as it is written, or sooner if the clock was set back and this process has watched the file
    /// for as long as it was meant to last.
    fn watched_out(self, lasts: SignedDuration, ends: Timestamp) -> Timestamp {
        if planted::is(Planted::FutureBelieved) {
            return ends;
        }
        let watched = SignedDuration::try_from(self.watched).unwrap_or(SignedDuration::MAX);
        let left = lasts.saturating_sub(watched);
        ends.min(self.store.saturating_add(left).unwrap_or(Timestamp::MAX))
    }
}

impl Elsewhere {
    /// When a file came here, as far as that is certain: of one that was written before the clock was set, nothing is
    /// known but that it was there then.
    fn arrived(&self, modified: Timestamp, now: Timestamp) -> Timestamp {
        let set = self.clock_set.iter().flatten().filter(|set| **set <= now).max();
        match set {
            Some(set) if modified < *set || modified > now => *set,
            _ => modified,
        }
    }

    /// For how long a task that was given back is left to the node that it hashes to. What an operator has taken away
    /// is for everybody.
    fn left_after(&self, current: &Seen) -> SignedDuration {
        match current.is_unlock() {
            true => SignedDuration::ZERO,
            false => SignedDuration::try_from(self.left).unwrap_or(SignedDuration::MAX),
        }
    }
}

/// For so long a lease of a node that cannot be reached is believed at the least.
const OFFLINE: SignedDuration = SignedDuration::from_hours(24);

/// Judges the lease of another node. Its clocks say nothing here: what counts is for how long the file has been here
/// unchanged, which is its modification time, since it is written only when it has changed. Its owner renews it, that
/// takes a pass of its node to get to the hub and a pass of this one to get here; and this node must have looked since.
fn judge_elsewhere(current: &Seen, lease: &Lease, now: Now, elsewhere: &Elsewhere) -> Judgement {
    let arrived = elsewhere.arrived(current.modified, now.store);
    if matches!(lease.state, Some(LeaseState::Failed | LeaseState::Released)) {
        let longest =
            SignedDuration::try_from(elsewhere.longest_wait).unwrap_or(SignedDuration::MAX);
        let wait = lease.not_before.map_or(SignedDuration::ZERO, |until| {
            until.duration_since(lease.heartbeat_at).clamp(SignedDuration::ZERO, longest)
        });
        let wait = wait.saturating_add(elsewhere.left_after(current));
        let until = arrived.saturating_add(wait).unwrap_or(Timestamp::MAX);
        return match now.watched_out(wait, until) {
            until if until > now.store => Judgement::Backoff(until),
            _ => Judgement::Free,
        };
    }
    let period = SignedDuration::try_from(elsewhere.period).unwrap_or(SignedDuration::MAX);
    let lasts = lease.length().saturating_add(period).saturating_add(period);
    let after = |lasts: SignedDuration| arrived.saturating_add(lasts).unwrap_or(Timestamp::MAX);
    let watched = SignedDuration::try_from(now.watched).unwrap_or(SignedDuration::MAX);
    let is_over = (now.steady && after(lasts) <= now.store) || watched > lasts;
    // One that is yet to come began before the clock was set back.
    let looked = |passed: Timestamp| passed >= after(lasts) && passed <= now.store;
    let looked = elsewhere.passed.is_some_and(looked);
    let offline = lasts.max(OFFLINE);
    let is_offline = (now.steady && after(offline) <= now.store) || watched > offline;
    match is_over {
        true if looked || is_offline => Judgement::Stale,
        true => Judgement::Held(now.store.saturating_add(period).unwrap_or(Timestamp::MAX)),
        false => Judgement::Held(now.watched_out(lasts, after(lasts))),
    }
}

/// Judges a task by all its lease files, ascending.
pub(super) fn judge(
    history: &[Seen],
    now: Now,
    queue_lease: Duration,
    elsewhere: Option<&Elsewhere>,
) -> Judgement {
    let Some(current) = current(history) else { return Judgement::Free };
    if let (Some(elsewhere), Some(lease)) = (elsewhere, &current.lease)
        && lease.node.as_ref().is_some_and(|node| *node != elsewhere.node)
        && !planted::is(Planted::OthersLeasesByTheirClock)
    {
        return judge_elsewhere(current, lease, now, elsewhere);
    }
    if let (Some(LeaseState::Failed | LeaseState::Released), Some(lease)) =
        (current.state(), &current.lease)
        && !planted::is(Planted::EndedLeaseHolds)
    {
        let left =
            elsewhere.map_or(SignedDuration::ZERO, |elsewhere| elsewhere.left_after(current));
        let over = lease.not_before.unwrap_or(current.modified);
        let until = over.saturating_add(left).unwrap_or(Timestamp::MAX);
        let waits = lease.not_before.is_some() || !left.is_zero();
        return match now.watched_out(current.waits().saturating_add(left), until) {
            _ if planted::is(Planted::BackoffIgnored) => Judgement::Free,
            until if waits && until > now.store => Judgement::Backoff(until),
            _ => Judgement::Free,
        };
    }
    match &current.lease {
        None if planted::is(Planted::UnreadableIsStale) => return Judgement::Stale,
        None if planted::is(Planted::UnreadableHolds) => return Judgement::Held(Timestamp::MAX),
        _ => {}
    }
    let mut runs_out = current.runs_out(queue_lease);
    if planted::is(Planted::StaleAtHalf) {
        runs_out = runs_out.saturating_sub(current.length(queue_lease) / 2).unwrap_or(runs_out);
    }
    // An owner renews within its lease's length or has lost it; nobody needs a clock to know that
    // who merely watches for so long.
    let watched = SignedDuration::try_from(now.watched).unwrap_or(SignedDuration::MAX);
    let unchanged = watched > current.length(queue_lease) && !planted::is(Planted::NotWatched);
    if (now.steady && runs_out <= now.store) || unchanged {
        Judgement::Stale
    } else {
        Judgement::Held(now.watched_out(current.length(queue_lease), runs_out))
    }
}

/// Counts attempts, all of which are over.
pub(super) fn tally(history: &[Seen]) -> Earlier {
    let mut tally = Earlier::default();
    for (at, seen) in history.iter().enumerate() {
        match seen.state() {
            Some(LeaseState::Failed) => tally.failed += 1,
            Some(_) if planted::is(Planted::GivenBackCounts) => tally.lost += 1,
            None if planted::is(Planted::LostNotCounted) => {}
            // A task that was taken away, or whose worker stopped, was not given back.
            Some(LeaseState::Released) if !seen.is_unlock() && !seen.stopped() => {
                tally.released += 1;
            }
            Some(LeaseState::Released | LeaseState::Withdrawn) => {}
            // It was to be moved, and whoever meant to do that will come again.
            None if seen.lease.as_ref().is_some_and(|lease| lease.moving) => {}
            // Taken away by an operator is not run out.
            None if history.get(at + 1).is_some_and(Seen::is_unlock) => {}
            None => tally.lost += 1,
        }
    }
    tally
}

/// Attempts as records and views tell them.
pub(super) fn summaries(history: &[Seen]) -> Vec<AttemptSummary> {
    let summary = |seen: &Seen| match &seen.lease {
        Some(lease) => summary(lease),
        None => AttemptSummary {
            attempt: seen.attempt,
            worker_id: seen.worker_id().to_owned(),
            created_at: seen.modified,
            heartbeat_at: seen.modified,
            state: None,
            error: Some("the lease file could not be read".to_owned()),
        },
    };
    history.iter().map(summary).collect()
}

/// One attempt as records and views tell it.
pub(super) fn summary(lease: &Lease) -> AttemptSummary {
    AttemptSummary {
        attempt: lease.attempt,
        worker_id: lease.worker_id.clone(),
        created_at: lease.created_at,
        heartbeat_at: lease.heartbeat_at,
        state: lease.state,
        error: lease.error.clone(),
    }
}

#[cfg(test)]
mod tests;
