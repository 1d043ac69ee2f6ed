//! Holding a task: from the claim until it is given up, finished or lost.
//!
//! An owner writes only while it owns, by its own monotonic clock, counted from *before* the write
//! that gave it the lease, less a margin. A renewal counts only if it came back while the old lease
//! still held: otherwise somebody may have taken over before it was written. Whoever lost a task is
//! told so at once and does not write again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use super::Answers;
use super::claim::signed;
use super::core::Core;
use super::discover::Note;
use super::judge::Seen;
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Lease, LeaseState, Outcome, Payload, Receipt, TaskMeta};
use crate::planted::{self, Planted};
use crate::store::{Stored, Tree};

/// So many leases are asked for by their names rather than listed.
const MOST_BY_NAME: u32 = 64;

/// After so long a renewal looks at everything, where that costs: well before a purge may free the task's name, so that
/// an owner which nobody told that its task is gone never meets another of its name.
const LOOK_EVERY: Duration = Duration::from_secs(1800);

/// How often a clock is read that seems to tell whole seconds only, and how long apart: longer than any clock ticks.
const CLOCK_LOOKS: u32 = 3;
const BETWEEN_TICKS: Duration = Duration::from_millis(30);
const CLOCK_LOOKS_AT_ONCE: u32 = 3000;

/// A task that this process holds.
pub(super) struct Held<T: Tree> {
    pub(super) task_dir: T::TaskDir,
    /// Locked while a verb changes it. An ack looks at it, lets heartbeats go on while its record is being
    /// written, and waits for the last of them before it cleans up.
    pub(super) holding: tokio::sync::Mutex<Holding>,
    /// When the lease ends for everybody, on this process's monotonic clock.
    end: Mutex<Duration>,
}

/// What is known of it.
pub(super) struct Holding {
    pub(super) lease: Lease,
    /// Until when it is ours, on this process's monotonic clock, margin taken off.
    pub(super) until: Duration,
    pub(super) payload: Payload,
    pub(super) meta: TaskMeta,
    /// The attempts before this one.
    pub(super) history: Vec<Seen>,
    /// When all was last looked at, and how many recalls there had been then.
    pub(super) looked: (Duration, u64),
}

impl<T: Tree> Held<T> {
    pub(super) fn new(task_dir: T::TaskDir, holding: Holding, margin: Duration) -> Self {
        let end = Mutex::new(holding.until + margin);
        Self { task_dir, holding: tokio::sync::Mutex::new(holding), end }
    }
}

/// A receipt whose task is over.
pub(super) enum Over {
    /// By this very claim: the same verb was called twice, or its answer was lost.
    ByUs(Outcome),
    /// Otherwise.
    Lost(Error),
}

impl<T: Tree> Core<T> {
    pub(super) async fn heartbeat(&self, receipts: Vec<Receipt>) -> Answers<Duration> {
        let renewing = |receipt: Receipt| async move {
            let answer = self.renew(&receipt).await;
            if answer.as_ref().is_err_and(is_lost) {
                self.let_go(&receipt);
            }
            (answer, self.env.monotonic())
        };
        let renewed = self.each(receipts.into_iter().map(renewing).collect()).await;
        // Some have waited for others, and may have run out meanwhile.
        let now = self.env.monotonic();
        let left = |(until, answered): (Result<Duration>, Duration)| {
            let from = if planted::is(Planted::HeartbeatsCountAlone) { answered } else { now };
            until.map(|until| until.saturating_sub(from))
        };
        renewed.into_iter().map(left).collect()
    }

    /// Answers until when it is ours, by the monotonic clock.
    async fn renew(&self, receipt: &Receipt) -> Result<Duration> {
        let held = self.held(receipt).await?;
        let mut holding = held.holding.lock().await;
        if !planted::is(Planted::RenewsWhatRanOut) {
            self.check_owned(&holding, receipt)?;
        }
        let before = self.env.monotonic();
        let own = self.check_own_file(&held, receipt).await?;
        // An operator may have taken tasks away, perhaps just before our last write, which then brought back
        // the lease of a task that is gone.
        let recalls = self.recalls.load(Ordering::Relaxed);
        let (looked_at, seen) = holding.looked;
        let whole = self.strategy.looks.at_the_task_when_renewing
            || seen != recalls
            || before.saturating_sub(looked_at) >= LOOK_EVERY;
        if whole {
            self.check_unchallenged(&held, receipt).await?;
        }
        let length = Duration::try_from(holding.lease.length()).unwrap_or(Duration::ZERO);
        let now = match self.strategy.looks.at_the_task_when_renewing {
            true => self.now().await?,
            // By the time of our last write, which the store has just told. If its clock has jumped since, this is
            // wrong once, and others believe it only together with the file's own age.
            false => {
                let written = lock(&held.end).saturating_sub(length);
                let since = self.env.monotonic().saturating_sub(written);
                own.modified.saturating_add(signed(since)).unwrap_or(Timestamp::MAX)
            }
        };
        let mut lease = holding.lease.next();
        lease.heartbeat_at = now;
        lease.expires_at = now.saturating_add(signed(length)).unwrap_or(Timestamp::MAX);
        match self.while_owned(&held, self.write_own(&held, receipt, &lease)).await {
            // There is no room for a new file. The old one, made young, says as much: a lease holds for its
            // length from when it was last written.
            Err(error) if error.kind() == ErrorKind::Full => {
                self.tree.touch_lease(&held.task_dir, receipt.attempt).await.map_err(|_| error)?;
            }
            answer => answer?,
        }
        // A successor creates its lease, then looks at ours; we write ours, then look for theirs. One of us
        // sees the other, whatever the clocks say.
        let challenged = match whole {
            _ if planted::is(Planted::HeartbeatWithoutLastLook) => Ok(()),
            true => self.check_unchallenged(&held, receipt).await,
            false => self.check_not_superseded(&held, receipt).await,
        };
        if let Err(error) = challenged {
            if is_lost(&error) && !planted::is(Planted::LostHeartbeatStaysYoung) {
                // It is lost, and what we have just written says that it holds. Somebody else who has this
                // receipt must not go by it, nor whoever gave way to it.
                lease.state = Some(LeaseState::Released);
                let _ = self.write_own(&held, receipt, &lease).await;
            }
            return Err(error);
        }
        // The margin is at least a tick of the store's clock, by which others may take over sooner.
        let after = self.env.monotonic();
        let tick = self.tree.time_resolution();
        let late = after >= holding.until + self.margin(length).saturating_sub(tick);
        if late && planted::is(Planted::LostHeartbeatStaysYoung) {
            return Err(ran_out(receipt));
        }
        if late && !planted::is(Planted::RenewsWhatRanOut) {
            // Too late, and yet it stands there as if it held. It is given back, so that nobody goes
            // by it: neither who waits for it to run out, nor we when asked again.
            lease.state = Some(LeaseState::Released);
            let _ = self.write_own(&held, receipt, &lease).await;
            return Err(ran_out(receipt));
        }
        holding.lease = lease;
        let before = if planted::is(Planted::CountsFromAfter) { after } else { before };
        if whole {
            holding.looked = (before, recalls);
        }
        holding.until = before + length.saturating_sub(self.margin(length));
        *lock(&held.end) = before + length;
        self.note(Note::Rests(receipt.key().clone(), before + length));
        Ok(holding.until)
    }

    /// The task of a receipt: one that this process claimed, or one that another process claimed and
    /// handed us the receipt of.
    pub(super) async fn held(&self, receipt: &Receipt) -> Result<Arc<Held<T>>> {
        let known = lock(&self.held).get(receipt).cloned();
        match known {
            Some(held) => Ok(held),
            None => self.adopt(receipt).await,
        }
    }

    async fn adopt(&self, receipt: &Receipt) -> Result<Arc<Held<T>>> {
        let key = receipt.key();
        let Some(task_dir) = self.tree.open(&self.task_dir(key)).await? else {
            return Err(self.lost(receipt, "it is gone").await?);
        };
        let before = self.env.monotonic();
        let now = self.tree.now().await?;
        let history = self.history_until(&task_dir, receipt.attempt).await?;
        let own = history.iter().position(|seen| seen.attempt == receipt.attempt);
        let own = own.filter(|at| {
            let lease = history[*at].lease.as_ref();
            lease.and_then(|lease| lease.lease_id.as_deref()) == Some(&*receipt.lease_id)
        });
        let Some(own) = own else {
            return Err(self.lost(receipt, "the receipt is not of its current lease").await?);
        };
        let Some(lease) = history[own].lease.clone().filter(|lease| lease.state.is_none()) else {
            return Err(Error::claim_lost(format!("task '{key}' was given back already")));
        };
        let stored =
            self.tree.read_task(&task_dir, Some(receipt.attempt), &self.record_paths(key)).await?;
        let Some(task) = stored.task.filter(|_| !stored.finished) else {
            return Err(self.lost(receipt, "it is gone").await?);
        };
        if stored.superseded {
            self.check_challenger(&task_dir, receipt).await?;
        }
        let (payload, meta) = format::decode_task(&task.bytes, key)?;
        let length = Duration::try_from(lease.length()).unwrap_or(Duration::ZERO);
        // The store's clock showed `now` no earlier than `before`, so this errs on the short side. If that clock was
        // set back, it may say hours: but whoever has watched the lease for its length takes over.
        let left = history[own].runs_out(self.settings.lease).duration_since(now);
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO).min(length);
        let holding = Holding {
            lease,
            until: (before + left).saturating_sub(self.margin(length)),
            payload,
            meta,
            history: history[..own].to_vec(),
            looked: (before, self.recalls.load(Ordering::Relaxed)),
        };
        let held = Arc::new(Held::new(task_dir, holding, self.margin(length)));
        let mut all = lock(&self.held);
        Ok(Arc::clone(all.entry(receipt.clone()).or_insert_with(|| Arc::clone(&held))))
    }

    /// The part of a lease that its owner does not use: what is begun before it must be over by its
    /// end. A file may also seem older than it is by as much as the store's clock ticks.
    pub(super) fn margin(&self, lease: Duration) -> Duration {
        if planted::is(Planted::NoMargin) {
            return Duration::ZERO;
        }
        (lease / 10).min(Duration::from_secs(10)).max(self.tree.time_resolution())
    }

    /// Whether leases of this length mean something on this store.
    pub(super) async fn check_length(&self, length: Duration) -> Result<()> {
        crate::model::check_lease(length)?;
        if let Some(synced) = self.as_node() {
            synced.check_lease(length)?;
        }
        let least = || self.tree.time_resolution() * 5;
        // By chance a time has no fraction of a second: where clocks tick every 4 ms, one in 250.
        let rereads = self.tree.properties().blocking && !planted::is(Planted::ClockReadOnce);
        // Without a runtime nobody can sleep, and reading takes its time too.
        let sleeps = self.env.is_running();
        let mut looks = if sleeps { CLOCK_LOOKS } else { CLOCK_LOOKS_AT_ONCE };
        while length < least() && looks > 0 && rereads {
            looks -= 1;
            if sleeps {
                self.env.clock().sleep(BETWEEN_TICKS).await;
            }
            self.sample_clock().await?;
        }
        if length < least() {
            return Err(Error::invalid(format!(
                "a lease of {length:?} is too short for this store, whose times tell only {:?} \
                 apart; use {:?} or more",
                self.tree.time_resolution(),
                least()
            )));
        }
        Ok(())
    }

    /// Ours by the clock.
    pub(super) fn check_owned(&self, holding: &Holding, receipt: &Receipt) -> Result<()> {
        if self.env.monotonic() >= holding.until && !planted::is(Planted::NoClockCheck) {
            return Err(ran_out(receipt));
        }
        Ok(())
    }

    /// Ours by our own file: another process with the same receipt has not given the task back.
    pub(super) async fn check_own_file(&self, held: &Held<T>, receipt: &Receipt) -> Result<Stored> {
        match self.tree.read_lease(&held.task_dir, receipt.attempt).await? {
            Some(stored) if is_ours(&stored.bytes, receipt) => Ok(stored),
            _ => Err(self.lost(receipt, "it was given back or taken away").await?),
        }
    }

    /// Ours by the tree: the task is there, and nobody has claimed it after us.
    pub(super) async fn check_unchallenged(&self, held: &Held<T>, receipt: &Receipt) -> Result<()> {
        let probe = self.tree.probe(&held.task_dir, receipt.attempt);
        // What has finished may still be there, where its remains are removed together with others.
        let finished = async {
            let looks = self.strategy.looks.for_records_when_giving_back;
            let over = looks && self.outcome(receipt.key()).await?.is_some();
            Ok::<bool, Error>(over)
        };
        let (probe, finished) = futures::join!(probe, finished);
        let probe = probe?;
        if !probe.task || finished? {
            return Err(self.lost(receipt, "it is gone").await?);
        }
        match probe.superseded {
            true => self.check_challenger(&held.task_dir, receipt).await,
            false => Ok(()),
        }
    }

    /// Ours by the leases: nobody has claimed it after us.
    async fn check_not_superseded(&self, held: &Held<T>, receipt: &Receipt) -> Result<()> {
        let dir = self.task_dir(receipt.key());
        let next = layout::lease_file(&dir, receipt.attempt.saturating_add(1));
        match self.tree.exists(&next).await? {
            true => self.check_challenger(&held.task_dir, receipt).await,
            false => Ok(()),
        }
    }

    /// There is a later lease: ours only if it was withdrawn.
    async fn check_challenger(&self, task_dir: &T::TaskDir, receipt: &Receipt) -> Result<()> {
        match self.challenger(task_dir, receipt.attempt).await? {
            None => Ok(()),
            Some(seen) => {
                let message =
                    format!("task '{}' was taken over by {}", receipt.key(), seen.worker_id());
                Err(Error::claim_lost(message))
            }
        }
    }

    /// The leases of a task up to this attempt. A listing may be behind; but the attempts of a task
    /// have no gaps, so it takes none.
    async fn history_until(&self, task_dir: &T::TaskDir, attempt: u32) -> Result<Vec<Seen>> {
        if attempt > MOST_BY_NAME {
            return self.history(task_dir).await;
        }
        self.history_of(task_dir, &(1..=attempt).collect::<Vec<_>>()).await
    }

    /// The first lease above this attempt that was not withdrawn.
    async fn challenger(&self, task_dir: &T::TaskDir, attempt: u32) -> Result<Option<Seen>> {
        for later in attempt.saturating_add(1)..=u32::MAX {
            let Some(stored) = self.tree.read_lease(task_dir, later).await? else { break };
            let seen = Seen::new(later, &stored);
            if seen.state() != Some(LeaseState::Withdrawn) {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// Waits for a write by an owner, but not beyond the end of its lease, which may be renewed meanwhile: a
    /// request that is sent again and again must not arrive when somebody else has the task.
    pub(super) async fn while_owned<R>(
        &self,
        held: &Held<T>,
        write: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        let blind =
            planted::is(Planted::WritesBeyondTheLease) || planted::is(Planted::NoClockCheck);
        if self.tree.properties().blocking || blind {
            return write.await; // it cannot be given up
        }
        let left = || lock(&held.end).saturating_sub(self.env.monotonic());
        if left().is_zero() {
            return Err(Error::claim_lost("the lease has ended"));
        }
        let ended = async {
            while !left().is_zero() {
                self.env.clock().sleep(left()).await;
            }
        };
        tokio::select! {
            biased;
            answer = write => answer,
            () = ended => {
                Err(Error::new(ErrorKind::Unavailable, "the store did not answer before the lease ended"))
            }
        }
    }

    /// Writes one's own lease file.
    pub(super) async fn write_own(
        &self,
        held: &Held<T>,
        receipt: &Receipt,
        lease: &Lease,
    ) -> Result<()> {
        let bytes = format::encode_lease(lease);
        match self.tree.replace_lease(&held.task_dir, receipt.attempt, &bytes).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Gone; or written all the same, and the answer was lost.
                match self.tree.read_lease(&held.task_dir, receipt.attempt).await? {
                    Some(stored) if stored.bytes == bytes => Ok(()),
                    _ => Err(self.lost(receipt, "it is gone").await?),
                }
            }
            answer => answer,
        }
    }

    /// Forgets tasks whose leases ran out long ago and that nobody asked for since.
    pub(super) fn sweep_held(&self) {
        let now = self.env.monotonic();
        let is_over = |held: &Held<T>| match held.holding.try_lock() {
            Ok(holding) => {
                let length = Duration::try_from(holding.lease.length()).unwrap_or(Duration::ZERO);
                now >= holding.until + length
            }
            Err(_) => false,
        };
        let mut all = lock(&self.held);
        let over: Vec<_> = all.extract_if(.., |_, held| is_over(held)).collect();
        drop(all);
        drop(over); // closes their folders
    }

    /// Forgets a task that is no longer ours.
    pub(super) fn let_go(&self, receipt: &Receipt) {
        let held = lock(&self.held).remove(receipt);
        drop(held); // closes its folder
    }

    /// How the task of a receipt ended.
    pub(super) async fn over(&self, receipt: &Receipt, otherwise: &str) -> Result<Over> {
        let key = receipt.key();
        let Some(record) = self.record(key).await? else {
            return Ok(Over::Lost(Error::claim_lost(format!(
                "task '{key}' is not ours: {otherwise}"
            ))));
        };
        let ours = record.lease_id.as_deref() == Some(&*receipt.lease_id);
        if ours && !planted::is(Planted::RecordNotReadBack) {
            return Ok(Over::ByUs(record.outcome));
        }
        let by = record.worker_id.as_deref().unwrap_or("somebody else");
        let how = match (record.outcome, record.cancelled) {
            (Outcome::Completed, _) => "completed",
            (Outcome::Failed, true) => "cancelled",
            (Outcome::Failed, false) => "given up",
        };
        let message = format!("task '{key}' was {how} by {by} already");
        Ok(Over::Lost(Error::new(ErrorKind::AlreadyCompleted, message)))
    }

    /// The error to give for a task that is over or gone.
    pub(super) async fn lost(&self, receipt: &Receipt, otherwise: &str) -> Result<Error> {
        Ok(match self.over(receipt, otherwise).await? {
            Over::Lost(error) => error,
            Over::ByUs(_) => Error::new(
                ErrorKind::AlreadyCompleted,
                format!("task '{}' was finished with this receipt already", receipt.key()),
            ),
        })
    }
}

fn ran_out(receipt: &Receipt) -> Error {
    Error::claim_lost(format!("the lease of task '{}' ran out", receipt.key()))
}

fn is_ours(bytes: &[u8], receipt: &Receipt) -> bool {
    let lease = format::decode_lease(bytes, receipt.attempt);
    lease.is_some_and(|lease| {
        lease.lease_id.as_deref() == Some(&*receipt.lease_id) && lease.state.is_none()
    })
}

pub(super) fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted)
}
