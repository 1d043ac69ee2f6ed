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

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::core::{Core, fence};
use super::discover::Candidate;
use super::drafts::{Draft, Wanted};
use super::flaws::{fence_before, overlooked};
use super::hold::{Held, Holding};
use super::judge::{self, Judgement, Seen};
use super::{Delivery, PollRequest, Release};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Lease, LeaseState, Outcome, Payload, Receipt, Record, TaskKey, TaskMeta};
use crate::planted::{self, Planted};
use crate::store::{Created, Stored, StoredTask, Tree};

/// How long something that should not be there is left alone before it is looked at again.
pub(super) const TROUBLE_PAUSE: Duration = Duration::from_secs(600);

/// How long something is left alone that could not be looked at, while all else can.
pub(super) fn trouble_pause(error: &Error) -> Duration {
    match error.kind() {
        ErrorKind::Unavailable => Duration::from_secs(60),
        _ => TROUBLE_PAUSE,
    }
}

/// How long a task is left alone whose earlier record is just being purged.
const FORGETTING: Duration = Duration::from_secs(5);

/// The most leases remembered that are to be taken back. Others sit out their time.
const MAX_STRAYS: usize = 64;

/// How long a task folder without a task, or with the beginning of one, is left to whoever is writing it.
const BEING_WRITTEN: Duration = Duration::from_secs(60);

/// A task that is due so soon is due: processes read the store's clock a little differently.
const ALMOST_DUE: SignedDuration = SignedDuration::from_secs(10);

/// What became of one try.
pub(super) enum Claim {
    Won(Box<Delivery>),
    /// Somebody has it until this monotonic time.
    Held(Duration),
    /// Not to be tried before this monotonic time.
    Rest(Duration),
    /// It is finished, or gone, or was set aside.
    Gone,
    /// It is of a schema that was not asked for.
    NotForUs,
}

/// What the looks after the create say.
enum Accepted {
    /// Ours until this monotonic time.
    Yes(Payload, TaskMeta, Duration),
    No(Claim),
}

impl<T: Tree> Core<T> {
    /// Claims a task that seemed damaged, which sets it aside; answers whether it did. Somebody may
    /// have it, or may have mended it meanwhile: then it is left, or given back at once.
    pub(super) async fn set_aside_damaged(self: &Arc<Self>, key: &TaskKey) -> Result<bool> {
        let Some(attempt) = self.attempt(Candidate::new(key.clone())) else { return Ok(false) };
        match self.claim(&attempt.candidate, self.settings.lease, &PollRequest::new(1)).await? {
            Claim::Gone => Ok(true),
            Claim::Held(_) | Claim::Rest(_) | Claim::NotForUs => Ok(false),
            Claim::Won(delivery) => {
                let release = Release::now(delivery.receipt);
                self.release(vec![release]).await.into_iter().collect::<Result<Vec<()>>>()?;
                Ok(false)
            }
        }
    }

    pub(super) async fn claim(
        &self,
        candidate: &Candidate,
        length: Duration,
        request: &PollRequest,
    ) -> Result<Claim> {
        let key = &candidate.key;
        let Some(task_dir) = self.tree.open(&self.task_dir(key)).await? else {
            return Ok(Claim::Gone);
        };
        if let Some(schema) = request.schema {
            let now = self.env.monotonic();
            if lock(&self.known).rests_for_schema(key, schema, now) {
                return Ok(Claim::NotForUs);
            }
            if !self.understands(key, schema).await? {
                lock(&self.known).rest_for_schema(key, schema, now + TROUBLE_PAUSE);
                return Ok(Claim::NotForUs);
            }
        }
        if !candidate.moving
            && let Some(wait) = self.left_to_another_node(key).await?
        {
            return Ok(Claim::Rest(self.env.monotonic() + wait));
        }
        // Most tasks were never claimed before, so this is tried before anything is read.
        let wanted = |attempt| Wanted { length, attempt, moving: candidate.moving };
        let draft = self.draft_for(wanted(1)).await?;
        let mut history_is_whole = false;
        let mut history = match &candidate.leases[..] {
            [] => {
                if self.create_lease(key, &task_dir, &draft).await? == Created::New {
                    return self.check_claim(key, task_dir, &draft, &[]).await;
                }
                // Asked before the lease is read: whoever gives a task back writes so, and only then
                // lets go.
                let held = self.holds(key, &draft.lease);
                history_is_whole = self.strategy.looks.all_leases_after_a_collision;
                let history = self.history_after_collision(&task_dir).await?;
                if !held && is_same(&draft.lease, history.last()) {
                    return self.check_claim(key, task_dir, &draft, &[]).await;
                }
                history
            }
            listed => self.history_of(&task_dir, listed).await?,
        };
        if history.is_empty() {
            return Ok(Claim::Gone); // whoever has finished it is removing what is left
        }
        let (mut judgement, mut when) = self.judge(candidate, &history).await?;
        if matches!(judgement, Judgement::Free | Judgement::Stale) && !history_is_whole {
            history = self.history(&task_dir).await?;
            (judgement, when) = self.judge(candidate, &history).await?;
        }
        let Some(top) = history.last() else { return Ok(Claim::Gone) };
        // One that cannot be had anyway need not be looked for yet.
        let may_wait = !self.strategy.looks.at_tasks_that_wait && !candidate.without_task;
        let waits = matches!(judgement, Judgement::Held(_) | Judgement::Backoff(_)) && may_wait;
        if !waits && !self.tree.probe(&task_dir, top.attempt).await?.task {
            // Leases without their task are garbage. But if nothing is known of an end, it may be on its way.
            let younger =
                |seen: &Seen| when.0.duration_since(seen.modified) < signed(BEING_WRITTEN);
            let may_come = self.strategy.has_partial_files && history.iter().any(younger);
            if may_come && self.outcome(key).await?.is_none() {
                return Ok(self.being_written());
            }
            self.clean_task_dir(key, &task_dir).await?;
            return Ok(Claim::Gone);
        }
        match judgement {
            Judgement::Held(until) => Ok(Claim::Held(self.monotonic_at(until, when))),
            Judgement::Backoff(until) => Ok(Claim::Rest(self.monotonic_at(until, when))),
            Judgement::Stale if planted::is(Planted::DeleteThenCreate) => {
                self.take_over_by_deleting(key, task_dir, wanted(top.attempt), &history).await
            }
            Judgement::Free | Judgement::Stale => {
                let next = top.attempt.saturating_add(1);
                self.take_over(key, task_dir, wanted(next), &history).await
            }
        }
    }

    /// Creates the attempt after the last of `history`, which its owner has given back or let run out.
    pub(super) async fn take_over(
        &self,
        key: &TaskKey,
        task_dir: T::TaskDir,
        wanted: Wanted,
        history: &[Seen],
    ) -> Result<Claim> {
        // Looked at first: one that cannot be read must not gather leases.
        let stored = self.tree.read_task(&task_dir, None, &self.record_paths(key)).await?;
        if stored.finished && stored.task.is_some() && !self.secure_records(key).await? {
            return Ok(Claim::Rest(self.env.monotonic() + FORGETTING));
        }
        if stored.task.is_none() || stored.finished {
            self.clean_task_dir(key, &task_dir).await?;
            return Ok(Claim::Gone);
        }
        let draft = self.draft_for(wanted).await?;
        if self.create_lease(key, &task_dir, &draft).await? == Created::Exists {
            let held = self.holds(key, &draft.lease);
            let stored = self.tree.read_lease(&task_dir, wanted.attempt).await?;
            let there = stored.map(|stored| Seen::new(wanted.attempt, &stored));
            if held || !is_same(&draft.lease, there.as_ref()) {
                return Ok(Claim::Held(self.env.monotonic() + self.settings.lease));
            }
        }
        self.check_claim(key, task_dir, &draft, history).await
    }

    /// Creates a lease. If it is not known whether that was done, it is taken back: nobody knows of it.
    async fn create_lease(
        &self,
        key: &TaskKey,
        task_dir: &T::TaskDir,
        draft: &Draft<T>,
    ) -> Result<Created> {
        let attempt = draft.lease.attempt;
        let created = self.tree.create_lease(task_dir, attempt, &draft.file).await;
        if created.is_err()
            && !self.holds(key, &draft.lease)
            && let Ok(Some(stored)) = self.tree.read_lease(task_dir, attempt).await
            && is_same(&draft.lease, Some(&Seen::new(attempt, &stored)))
        {
            let _ = self.withdraw(task_dir, &draft.lease).await;
        }
        created
    }

    /// Whether an earlier poll has handed this very lease out.
    fn holds(&self, key: &TaskKey, lease: &Lease) -> bool {
        let lease_id = lease.lease_id.clone().unwrap_or_default();
        lock(&self.held).contains_key(&Receipt::new(key.clone(), lease.attempt, lease_id))
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

    /// The looks after the create. If they fail, the lease is taken back: nobody knows of it.
    async fn check_claim(
        &self,
        key: &TaskKey,
        task_dir: T::TaskDir,
        draft: &Draft<T>,
        history: &[Seen],
    ) -> Result<Claim> {
        let attempt = draft.lease.attempt;
        // No lease stands above the first one of a task that is still there: decision 12.
        let after = (attempt > 1).then_some(attempt);
        let stored = self.tree.read_task(&task_dir, after, &self.record_paths(key)).await;
        let judged = match stored {
            Ok(stored) => self.accept(key, &task_dir, draft, history, overlooked(stored)).await,
            Err(error) => Err(error),
        };
        match judged {
            Ok(Accepted::Yes(payload, meta, until)) => {
                self.note_work(key);
                Ok(self.hold(key, task_dir, draft, history, (payload, meta, until)))
            }
            Ok(Accepted::No(claim)) => Ok(claim),
            Err(error) => {
                if self.withdraw(&task_dir, &draft.lease).await.is_err() {
                    let mut strays = lock(&self.strays);
                    if strays.len() < MAX_STRAYS {
                        strays.push((task_dir, draft.lease.clone()));
                    }
                }
                Err(error)
            }
        }
    }

    async fn accept(
        &self,
        key: &TaskKey,
        task_dir: &T::TaskDir,
        draft: &Draft<T>,
        history: &[Seen],
        stored: StoredTask,
    ) -> Result<Accepted> {
        if stored.finished
            && let Some(task) = &stored.task
        {
            self.keep_if_another(key, &task.bytes).await?;
        }
        let Some(task) = stored.task.filter(|_| !stored.finished) else {
            if stored.finished {
                if !self.secure_records(key).await? {
                    // Just being forgotten: whatever is there is new, and can be had in a moment.
                    self.withdraw(task_dir, &draft.lease).await?;
                    return Ok(Accepted::No(Claim::Rest(self.env.monotonic() + FORGETTING)));
                }
                // All that there may be left is what we have just created.
                let own = (task_dir, vec![draft.lease.attempt]);
                self.tree.discard(vec![own]).await.into_iter().collect::<Result<()>>()?;
            } else if self.strategy.has_partial_files {
                // Neither a task nor a record: somebody may be about to write it. Whoever comes later
                // finds our lease, and how old it is.
                self.withdraw(task_dir, &draft.lease).await?;
                return Ok(Accepted::No(self.being_written()));
            } else {
                self.clean_task_dir(key, task_dir).await?;
            }
            return Ok(Accepted::No(Claim::Gone));
        };
        let length = Duration::try_from(draft.lease.length()).unwrap_or(Duration::ZERO);
        let until = draft.written + length.saturating_sub(self.margin(length));
        if self.env.monotonic() >= until {
            return Ok(Accepted::No(Claim::Held(until)));
        }
        let judged_changed = match judge::current(history) {
            None => false,
            Some(_) if planted::is(Planted::JudgedNotLookedAt) => false,
            Some(judged) => {
                let again = self.tree.read_lease(task_dir, judged.attempt).await?;
                let version = again.map(|stored| Seen::new(judged.attempt, &stored).version);
                version != Some(judged.version)
            }
        };
        if stored.superseded || judged_changed {
            self.withdraw(task_dir, &draft.lease).await?;
            return Ok(Accepted::No(Claim::Held(self.env.monotonic() + self.settings.lease)));
        }
        let (payload, meta) = match format::decode_task(&task.bytes, key) {
            Ok(task) => task,
            Err(_) if self.is_being_written(&task).await? => {
                self.withdraw(task_dir, &draft.lease).await?;
                return Ok(Accepted::No(self.being_written()));
            }
            // A healthy copy may be on its way from elsewhere. Whoever merges decides.
            Err(_) if self.leaves_damaged() => {
                self.withdraw(task_dir, &draft.lease).await?;
                return Ok(Accepted::No(Claim::Rest(self.env.monotonic() + TROUBLE_PAUSE)));
            }
            Err(error) => {
                self.set_aside(key, task_dir, &task, &draft.lease, history, &error).await?;
                return Ok(Accepted::No(Claim::Gone));
            }
        };
        if let Some(until) = self.too_early(&meta, &draft.lease).await? {
            return Ok(Accepted::No(self.release_until(task_dir, &draft.lease, until).await?));
        }
        if let Some(reason) = self.exhausted(&meta, history) {
            let record = Record {
                reason: Some(reason),
                ..self.record_of(Outcome::Failed, payload, meta, &draft.lease, history).await?
            };
            self.commit_one(key, &record).await?;
            self.clean_task_dir(key, task_dir).await?;
            return Ok(Accepted::No(Claim::Gone));
        }
        if planted::is(Planted::OldLeaseWritten) {
            self.release_for_the_owner(task_dir, history).await?;
        }
        Ok(Accepted::Yes(payload, meta, until))
    }

    fn being_written(&self) -> Claim {
        Claim::Rest(self.env.monotonic() + BEING_WRITTEN)
    }

    /// Whether a task file breaks off, and is so young that the rest may be coming.
    async fn is_being_written(&self, task: &Stored) -> Result<bool> {
        let whole = serde_json::from_slice::<serde::de::IgnoredAny>(&task.bytes);
        if !self.strategy.has_partial_files || !whole.is_err_and(|error| error.is_eof()) {
            return Ok(false);
        }
        Ok(self.now().await?.duration_since(task.modified) < signed(BEING_WRITTEN))
    }

    /// It is ours.
    fn hold(
        &self,
        key: &TaskKey,
        task_dir: T::TaskDir,
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
            attempt: attempt.saturating_add(meta.carried.attempts()),
            earlier: judge::tally(history).and(meta.carried),
            fence: fence_before(&meta).saturating_add(fence(key.generation(), attempt)),
            receipt: receipt.clone(),
            valid_for: until.saturating_sub(self.env.monotonic()),
            lasts: until.saturating_sub(self.env.monotonic()),
            until,
            meta: meta.clone(),
        };
        let lease = draft.lease.clone();
        let looked = (self.env.monotonic(), self.recalls.load(Ordering::Relaxed));
        let history = history.to_vec();
        let holding = Holding { lease, until, payload, meta, history, looked };
        let length = Duration::try_from(holding.lease.length()).unwrap_or(Duration::ZERO);
        let held = Held::new(task_dir, holding, self.margin(length));
        lock(&self.held).insert(receipt, Arc::new(held));
        Claim::Won(Box::new(delivery))
    }

    /// Takes a claim back that should not have been made.
    pub(super) async fn withdraw(&self, task_dir: &T::TaskDir, lease: &Lease) -> Result<()> {
        if planted::is(Planted::WithdrawRemoves) {
            return self.tree.clean(task_dir, false, &[lease.attempt]).await;
        }
        let mut lease = lease.next();
        lease.state = Some(LeaseState::Withdrawn);
        match self.tree.replace_lease(task_dir, lease.attempt, &format::encode_lease(&lease)).await
        {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            answer => answer,
        }
    }

    /// When it may be handed out, if that is not yet. Whoever moves scheduled tasks to another queue may
    /// be killed when it has published one and not taken it away.
    async fn too_early(&self, meta: &TaskMeta, lease: &Lease) -> Result<Option<Timestamp>> {
        let waits = !lease.moving && !planted::is(Planted::HandedOutEarly);
        let Some(until) = meta.not_before.filter(|_| waits) else { return Ok(None) };
        let soon = self.now().await?.saturating_add(ALMOST_DUE).unwrap_or(Timestamp::MAX);
        Ok(Some(until).filter(|until| *until > soon))
    }

    /// Gives a task back that was claimed before its time.
    async fn release_until(
        &self,
        task_dir: &T::TaskDir,
        lease: &Lease,
        until: Timestamp,
    ) -> Result<Claim> {
        let mut lease = lease.next();
        lease.state = Some(LeaseState::Released);
        lease.not_before = Some(until);
        self.tree.replace_lease(task_dir, lease.attempt, &format::encode_lease(&lease)).await?;
        let when = (self.now().await?, self.env.monotonic());
        Ok(Claim::Rest(self.monotonic_at(until, when)))
    }

    /// Why a task must not be tried again, if so.
    fn exhausted(&self, meta: &TaskMeta, history: &[Seen]) -> Option<String> {
        let tally = judge::tally(history).and(meta.carried);
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
        task_dir: &T::TaskDir,
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
        record.damaged = (!planted::is(Planted::DamagedDestroyed)).then(|| task.bytes.clone());
        let name = layout::TASK;
        record.reason = Some(format!("{name} could not be read: {error}"));
        let size = format::encode_record(&record).len() as u64;
        if size > layout::read_limit(&self.record_path(record.outcome, key)) {
            // Nobody could read it. So it stays where it is.
            return Err(Error::damaged(format!(
                "task '{key}' is damaged, and too large to set aside"
            )));
        }
        self.commit_one(key, &record).await?;
        self.clean_task_dir(key, task_dir).await
    }
}

/// Whether a lease that exists is the one that we tried to create, and only the answer was lost.
fn is_same(ours: &Lease, there: Option<&Seen>) -> bool {
    let Some(Seen { attempt, lease: Some(lease), .. }) = there else { return false };
    let same = *attempt == ours.attempt && lease.lease_id == ours.lease_id;
    same && lease.state.is_none() && !planted::is(Planted::LeaseNotReadBack)
}

pub(super) fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
