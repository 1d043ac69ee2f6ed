//! Claiming: create the lease, *then* look whether the task still needs doing.
//!
//! | found after the create | answer |
//! | --- | --- |
//! | no task | it was finished: remove the garbage |
//! | a terminal record | finish the clean-up, never work |
//! | a higher lease, or the judged one has changed | withdraw |
//! | the lease's time is up already | leave it; it will be taken over |
//! | a task that cannot be read | set it aside in `failed/`, bytes and all |
//! | more failures or lost leases than allowed | fail it |
//! | otherwise | it is ours |

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::core::{Core, fence};
use super::discover::Discovery;
use super::drafts::{Draft, Drafts};
use super::hold::{Held, Holding};
use super::judge::{self, Now, Seen, Verdict};
use super::{Delivery, PollRequest, Polled, Release};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Lease, LeaseState, Outcome, Payload, Receipt, Record, TaskKey, TaskMeta};
use crate::store::{Created, Look, Stored, Tree};

/// The most tasks that one poll tries before it answers with what it has.
const MAX_TRIES: usize = 4096;

/// How long something that should not be there is left alone before it is looked at again.
const TROUBLE_PAUSE: Duration = Duration::from_secs(600);

/// What became of one try.
enum Claim {
    Won(Box<Delivery>),
    /// Somebody has it until this monotonic time.
    Held(Duration),
    /// Not to be tried before this monotonic time.
    Rest(Duration),
    /// It is finished, or gone, or was set aside.
    Gone,
}

/// What the looks after the create say.
enum Accepted {
    /// Ours until this monotonic time.
    Yes(Payload, TaskMeta, Duration),
    No(Claim),
}

impl<T: Tree> Core<T> {
    /// The part of a lease that its owner does not use: what is begun before it must be over by its
    /// end. A file may also seem older than it is by as much as the store's clock ticks.
    pub(super) fn margin(&self, lease: Duration) -> Duration {
        (lease / 10).min(Duration::from_secs(10)).max(self.tree.time_resolution())
    }

    pub(super) async fn poll(&self, request: &PollRequest) -> Result<Polled> {
        let length = request.lease.unwrap_or(self.settings.lease);
        let mut found = self.discovery.lock().await;
        self.take_notes(&mut found);
        let now = self.now().await?;
        self.check_length(length)?;
        let root_changed = self.look_at_root(&mut found, now).await?;
        let mut polled = Polled::default();
        if found.paused {
            polled.idle.paused = true;
            return Ok(polled);
        }
        let (next_due, more_due) = self.promote_due(&mut found, now, root_changed).await?;
        polled.idle.more = more_due;
        let mut drafts = self.take_drafts(length);
        let mut fresh_round = !found.in_round();
        if fresh_round {
            self.begin_round(&mut found).await?;
        }
        // Once each: a task that this poll has claimed is not claimed again, however long it takes.
        let mut tried = HashSet::new();
        let began = self.env.monotonic();
        while polled.deliveries.len() < request.max {
            // What was claimed first must not be half over when it is handed out.
            let late = !polled.deliveries.is_empty() && self.env.monotonic() - began > length / 4;
            if tried.len() >= MAX_TRIES || late {
                polled.idle.more = true;
                break;
            }
            let step = async {
                let Some(key) = self.next_candidate(&mut found, now).await? else {
                    // Nothing left. That counts only if all was looked at since this poll began.
                    if fresh_round {
                        return Ok(false);
                    }
                    fresh_round = true;
                    self.begin_round(&mut found).await?;
                    return Ok(true);
                };
                if tried.insert(key.clone()) {
                    self.try_one(&key, &mut found, &mut drafts, request, &mut polled).await?;
                } else {
                    polled.idle.more = true; // it has woken since: the next poll may have it
                }
                Ok::<_, Error>(true)
            };
            match step.await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if polled.deliveries.is_empty() => return Err(error),
                // What was claimed so far must reach the worker, or it would sit out its lease.
                Err(error) => {
                    tracing::warn!(%error, "poll cut short");
                    polled.idle.more = true;
                    break;
                }
            }
        }
        *lock(&self.drafts) = Some(drafts);
        let now = self.env.monotonic();
        let soonest = found.soonest.map(|at| at.saturating_sub(now));
        polled.idle.next = soonest.into_iter().chain(next_due).min();
        Ok(polled)
    }

    /// Tries a candidate and notes what came of it. Trouble with one task must not keep the others
    /// from being done; trouble with the store must.
    async fn try_one(
        &self,
        key: &TaskKey,
        found: &mut Discovery<T::Cursor>,
        drafts: &mut Drafts<T>,
        request: &PollRequest,
        polled: &mut Polled,
    ) -> Result<()> {
        let now = self.env.monotonic();
        // If no lease can be written at all, that is trouble with the store.
        self.draft_for(drafts, 1).await?;
        match self.claim(key, found, drafts, request).await {
            Ok(Claim::Won(delivery)) => {
                found.rest(key, now + drafts.length);
                polled.deliveries.push(*delivery);
            }
            Ok(Claim::Held(until)) => found.rest_while_held(key, until, now),
            Ok(Claim::Rest(until)) => found.rest(key, until),
            Ok(Claim::Gone) => found.forget(key),
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Denied) => {
                tracing::warn!(%key, %error, "task left alone");
                found.rest(key, now + TROUBLE_PAUSE);
            }
            Err(error) => {
                found.rest(key, now + Duration::from_secs(1));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Claims a task that seemed damaged, which sets it aside; answers whether it did. Somebody may
    /// have it, or may have mended it meanwhile: then it is left, or given back at once.
    pub(super) async fn set_aside_damaged(&self, key: &TaskKey) -> Result<bool> {
        let mut found = self.discovery.lock().await;
        let mut drafts = self.take_drafts(self.settings.lease);
        match self.claim(key, &mut found, &mut drafts, &PollRequest::new(1)).await? {
            Claim::Gone => Ok(true),
            Claim::Held(_) | Claim::Rest(_) => Ok(false),
            Claim::Won(delivery) => {
                let release = Release::now(delivery.receipt);
                self.release(vec![release]).await.into_iter().collect::<Result<Vec<()>>>()?;
                Ok(false)
            }
        }
    }

    async fn claim(
        &self,
        key: &TaskKey,
        found: &mut Discovery<T::Cursor>,
        drafts: &mut Drafts<T>,
        request: &PollRequest,
    ) -> Result<Claim> {
        let Some(slot) = self.tree.open(&self.task_dir(key)).await? else {
            return Ok(Claim::Gone);
        };
        if let Some(schema) = request.schema {
            let now = self.env.monotonic();
            if found.rests_for_schema(key, schema, now) {
                return Ok(Claim::Gone);
            }
            if !self.understands(key, schema).await? {
                found.rest_for_schema(key, schema, now + TROUBLE_PAUSE);
                return Ok(Claim::Gone);
            }
        }
        // Most tasks were never claimed before, so this is tried before anything is read.
        let draft = self.draft_for(drafts, 1).await?;
        if self.tree.create_lease(&slot, 1, &draft.file).await? == Created::New {
            return self.check_claim(key, slot, draft, &[]).await;
        }
        // Asked before the lease is read: whoever gives a task back writes so, and only then lets go.
        let held = self.holds(key, &draft.lease);
        let history = self.history(&slot).await?;
        if !held && is_same(&draft.lease, history.last()) {
            return self.check_claim(key, slot, draft, &[]).await;
        }
        let Some(top) = history.last().map(|seen| seen.attempt) else {
            // The folder is being cleaned up, or is gone.
            self.clean_slot(key, &slot).await?;
            return Ok(Claim::Gone);
        };
        if !self.tree.probe(&slot, top).await?.task {
            // Leases without their task are garbage, however young.
            self.clean_slot(key, &slot).await?;
            return Ok(Claim::Gone);
        }
        let (verdict, mono) = self.judge(key, found, &history).await?;
        match verdict {
            Verdict::Held(until) => Ok(Claim::Held(self.monotonic_at(until, mono))),
            Verdict::Backoff(until) => Ok(Claim::Rest(self.monotonic_at(until, mono))),
            Verdict::Free | Verdict::Stale => {
                // Looked at first: one that cannot be read must not gather leases.
                let look = self.tree.look(&slot, None, &self.record_paths(key)).await?;
                if look.task.is_none() || look.finished {
                    self.clean_slot(key, &slot).await?;
                    return Ok(Claim::Gone);
                }
                let attempt = top.saturating_add(1);
                let draft = self.draft_for(drafts, attempt).await?;
                if self.tree.create_lease(&slot, attempt, &draft.file).await? == Created::Exists {
                    let held = self.holds(key, &draft.lease);
                    let stored = self.tree.read_lease(&slot, attempt).await?;
                    let there = stored.map(|stored| Seen::new(attempt, &stored));
                    if held || !is_same(&draft.lease, there.as_ref()) {
                        return Ok(Claim::Held(self.env.monotonic() + self.settings.lease));
                    }
                }
                self.check_claim(key, slot, draft, &history).await
            }
        }
    }

    /// Whether an earlier poll has handed this very lease out.
    fn holds(&self, key: &TaskKey, lease: &Lease) -> bool {
        let lease_id = lease.lease_id.clone().unwrap_or_default();
        lock(&self.held).contains_key(&Receipt::new(key.clone(), lease.attempt, lease_id))
    }

    /// Every lease file of a task, ascending.
    pub(super) async fn history(&self, slot: &T::Slot) -> Result<Vec<Seen>> {
        let mut history = Vec::new();
        for attempt in self.tree.leases(slot).await? {
            if let Some(stored) = self.tree.read_lease(slot, attempt).await? {
                history.push(Seen::new(attempt, &stored));
            }
        }
        Ok(history)
    }

    /// The verdict, and the monotonic time at which the store's clock was read for it.
    async fn judge(
        &self,
        key: &TaskKey,
        found: &mut Discovery<T::Cursor>,
        history: &[Seen],
    ) -> Result<(Verdict, (Timestamp, Duration))> {
        let (verdict, when) = self.judge_now(key, found, history).await?;
        if verdict != Verdict::Stale {
            return Ok((verdict, when));
        }
        // Before anything is taken over, the clock is read afresh: it may have jumped since.
        let store = self.tree.now().await?;
        lock(&self.clock).sample(store, self.env.monotonic());
        self.judge_now(key, found, history).await
    }

    async fn judge_now(
        &self,
        key: &TaskKey,
        found: &mut Discovery<T::Cursor>,
        history: &[Seen],
    ) -> Result<(Verdict, (Timestamp, Duration))> {
        let store = self.now().await?;
        let mono = self.env.monotonic();
        let mut now = Now { store, steady: true, watched: Duration::ZERO };
        if let Some(current) = judge::current(history) {
            let length = current.length(self.settings.lease);
            let length = Duration::try_from(length).unwrap_or(Duration::ZERO);
            now.steady = lock(&self.clock).steady_for(length, mono);
            now.watched = found.watched_for(key, current, mono);
        }
        Ok((judge::judge(history, now, self.settings.lease), (store, mono)))
    }

    /// A time on the store's clock, as a monotonic one.
    fn monotonic_at(&self, at: Timestamp, (store, mono): (Timestamp, Duration)) -> Duration {
        let wait = Duration::try_from(at.duration_since(store)).unwrap_or(Duration::ZERO);
        mono.saturating_add(wait)
    }

    /// Whether this worker may have a task, by the `schema_version` of its payload. A task that cannot
    /// be read is for anybody to set aside.
    async fn understands(&self, key: &TaskKey, (low, high): (i64, i64)) -> Result<bool> {
        let Some(bytes) = self.pending_task(key).await? else { return Ok(true) };
        let version = match format::decode_task(&bytes, key) {
            Ok((payload, _)) => payload.integer_member("schema_version").unwrap_or(1),
            Err(_) => return Ok(true),
        };
        Ok((low..=high).contains(&version))
    }

    /// Whether leases of this length mean something on this store.
    fn check_length(&self, length: Duration) -> Result<()> {
        crate::model::check_lease(length)?;
        let least = self.tree.time_resolution() * 5;
        if length < least {
            return Err(Error::invalid(format!(
                "a lease of {length:?} is too short for this store, whose times tell only {:?} \
                 apart; use {least:?} or more",
                self.tree.time_resolution()
            )));
        }
        Ok(())
    }

    /// The looks after the create. If they fail, the lease is taken back: nobody knows of it.
    async fn check_claim(
        &self,
        key: &TaskKey,
        slot: T::Slot,
        draft: &Draft<T>,
        history: &[Seen],
    ) -> Result<Claim> {
        let attempt = draft.lease.attempt;
        // No lease stands above the first one of a folder that still has its task: decision 12.
        let first = attempt == 1 && self.tree.properties().slots_are_folders;
        let after = (!first).then_some(attempt);
        let look = self.tree.look(&slot, after, &self.record_paths(key)).await;
        let judged = match look {
            Ok(look) => self.accept(key, &slot, draft, history, look).await,
            Err(error) => Err(error),
        };
        match judged {
            Ok(Accepted::Yes(payload, meta, until)) => {
                Ok(self.hold(key, slot, draft, history, (payload, meta, until)))
            }
            Ok(Accepted::No(claim)) => Ok(claim),
            Err(error) => {
                let _ = self.withdraw(&slot, &draft.lease).await;
                Err(error)
            }
        }
    }

    async fn accept(
        &self,
        key: &TaskKey,
        slot: &T::Slot,
        draft: &Draft<T>,
        history: &[Seen],
        look: Look,
    ) -> Result<Accepted> {
        let Some(task) = look.task.filter(|_| !look.finished) else {
            self.clean_slot(key, slot).await?;
            return Ok(Accepted::No(Claim::Gone));
        };
        let length = Duration::try_from(draft.lease.length()).unwrap_or(Duration::ZERO);
        let until = draft.written + length.saturating_sub(self.margin(length));
        if self.env.monotonic() >= until {
            return Ok(Accepted::No(Claim::Held(until)));
        }
        let judged_changed = match judge::current(history) {
            None => false,
            Some(judged) => {
                let again = self.tree.read_lease(slot, judged.attempt).await?;
                let version = again.map(|stored| Seen::new(judged.attempt, &stored).version);
                version != Some(judged.version)
            }
        };
        if look.superseded || judged_changed {
            self.withdraw(slot, &draft.lease).await?;
            return Ok(Accepted::No(Claim::Held(self.env.monotonic() + self.settings.lease)));
        }
        let (payload, meta) = match format::decode_task(&task.bytes, key) {
            Ok(task) => task,
            Err(error) => {
                self.set_aside(key, slot, &task, &draft.lease, history, &error).await?;
                return Ok(Accepted::No(Claim::Gone));
            }
        };
        if let Some(reason) = self.exhausted(&meta, history) {
            let record = Record {
                reason: Some(reason),
                ..self.record_of(Outcome::Failed, payload, meta, &draft.lease, history).await?
            };
            self.commit_one(key, &record).await?;
            self.clean_slot(key, slot).await?;
            return Ok(Accepted::No(Claim::Gone));
        }
        Ok(Accepted::Yes(payload, meta, until))
    }

    /// It is ours.
    fn hold(
        &self,
        key: &TaskKey,
        slot: T::Slot,
        draft: &Draft<T>,
        history: &[Seen],
        (payload, meta, until): (Payload, TaskMeta, Duration),
    ) -> Claim {
        let attempt = draft.lease.attempt;
        let lease_id = draft.lease.lease_id.clone().unwrap_or_default();
        let receipt = Receipt::new(key.clone(), attempt, lease_id);
        let delivery = Delivery {
            key: key.clone(),
            payload: payload.clone(),
            attempt,
            earlier: judge::tally(history),
            fence: fence(key.generation(), attempt),
            receipt: receipt.clone(),
            valid_for: until.saturating_sub(self.env.monotonic()),
            meta: meta.clone(),
        };
        let lease = draft.lease.clone();
        let holding = Holding { lease, until, payload, meta, history: history.to_vec() };
        lock(&self.held).insert(receipt, Arc::new(Held::new(slot, holding)));
        Claim::Won(Box::new(delivery))
    }

    /// Takes a claim back that should not have been made.
    async fn withdraw(&self, slot: &T::Slot, lease: &Lease) -> Result<()> {
        let mut lease = lease.clone();
        lease.state = Some(LeaseState::Withdrawn);
        match self.tree.replace_lease(slot, lease.attempt, &format::encode_lease(&lease)).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            answer => answer,
        }
    }

    /// Why a task must not be tried again, if so.
    fn exhausted(&self, meta: &TaskMeta, history: &[Seen]) -> Option<String> {
        let tally = judge::tally(history);
        let max_attempts = meta.max_attempts.unwrap_or(self.settings.max_attempts);
        if tally.failed >= max_attempts {
            let last = history.iter().rev().find_map(|seen| seen.lease.as_ref()?.error.clone());
            return Some(last.unwrap_or_else(|| format!("failed {} times", tally.failed)));
        }
        (tally.lost >= self.settings.max_lost).then(|| {
            format!(
                "{} workers took this task and went silent; it may be what kills them",
                tally.lost
            )
        })
    }

    /// Promise: nothing unreadable is destroyed. The record holds the very bytes.
    async fn set_aside(
        &self,
        key: &TaskKey,
        slot: &T::Slot,
        task: &Stored,
        lease: &Lease,
        history: &[Seen],
        error: &Error,
    ) -> Result<()> {
        tracing::warn!(%key, %error, "task file cannot be read; set aside in failed/");
        let empty = Payload::trusted("{}");
        let mut record =
            self.record_of(Outcome::Failed, empty, format::bare_meta(key), lease, history).await?;
        record.payload = None;
        record.damaged = Some(task.bytes.clone());
        let name = layout::TASK;
        record.reason = Some(format!("{name} could not be read: {error}"));
        self.commit_one(key, &record).await?;
        self.clean_slot(key, slot).await
    }
}

/// Whether a lease that exists is the one that we tried to create, and only the answer was lost.
fn is_same(ours: &Lease, there: Option<&Seen>) -> bool {
    let Some(Seen { attempt, lease: Some(lease), .. }) = there else { return false };
    *attempt == ours.attempt && lease.lease_id == ours.lease_id && lease.state.is_none()
}

pub(super) fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
