//! What the queue's verbs take and give.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::meter::Counts;
use crate::model::{AttemptSummary, Carried, Outcome, Payload, Receipt, TaskId, TaskKey, TaskMeta};

/// What a provider can do beyond push, poll, ack, nack and heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The provider's name.
    pub provider: &'static str,
    /// `list`, `peek`, `get`, `check` and exact counts.
    pub inspect: bool,
    /// `cancel`, `unlock` and `retry` by id.
    pub operate: bool,
    /// `release` without counting an attempt.
    pub release: bool,
    /// A pushed id is recognised when it is pushed again.
    pub deduplicates: bool,
    /// Otherwise, for how long a second push of an id is dropped without a word, if it is.
    pub drops_doubles_for: Option<Duration>,
    /// `pause` and `resume`.
    pub pause: bool,
    /// What became of earlier attempts and lives is kept: fences grow over lives, and a receipt that was
    /// used up in another process is known to be.
    pub history: bool,
    /// `poll` can leave tasks of other schema versions alone.
    pub schemas: bool,
    /// The longest delay.
    pub max_delay: Option<Duration>,
    /// Every call is a request, which takes a round trip and may cost money.
    pub remote: bool,
    /// The longest lease, if it is shorter than others'.
    pub max_lease: Option<Duration>,
    /// So many leases are renewed for the price of one. Elsewhere each is renewed on its own.
    pub heartbeats_together: usize,
}

/// A task that was cancelled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cancelled {
    /// Who was working on it. They are told within seconds, and may work until then.
    pub held_by: Option<String>,
}

/// What became of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// A new task.
    Created(TaskKey),
    /// The id is in the queue already; nothing changed.
    Pending(TaskKey),
    /// The id has been through the queue already; nothing changed.
    Finished(TaskKey, Outcome),
}

impl Pushed {
    /// The task that is in the queue, or has been.
    pub fn key(&self) -> &TaskKey {
        match self {
            Self::Created(key) | Self::Pending(key) | Self::Finished(key, _) => key,
        }
    }
}

/// What to claim.
#[derive(Clone, Debug)]
pub struct PollRequest {
    /// How many tasks at the most.
    pub max: usize,
    /// For how long, instead of the queue's own lease.
    pub lease: Option<Duration>,
    /// Only tasks whose `schema_version` lies in this range (none counts as 1); others are left alone.
    pub schema: Option<(i64, i64)>,
    /// If another worker that is idle has looked within this time, its look will do: then nothing is looked for, and
    /// nothing is claimed. For a worker that has found nothing before; an answer to such a poll does not tell
    /// that nothing is left. Where looks cost nothing it is ignored.
    pub relies_within: Option<Duration>,
}

impl PollRequest {
    /// Up to `max` tasks.
    pub fn new(max: usize) -> Self {
        Self { max, lease: None, schema: None, relies_within: None }
    }
}

impl Default for PollRequest {
    fn default() -> Self {
        Self::new(1)
    }
}

/// A task that is now ours.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The task, and which life of it.
    pub key: TaskKey,
    /// What is to be done.
    pub payload: Payload,
    /// What the queue noted beside it.
    pub meta: TaskMeta,
    /// Which attempt at this life this is, counted from the queue where it began.
    pub attempt: u32,
    /// How the attempts before it ended, where the provider keeps their history.
    pub earlier: Earlier,
    /// Greater than that of any earlier attempt at this id, as long as its records are kept: for
    /// stores that can refuse a stale one.
    pub fence: u64,
    /// The proof, for ack and the like.
    pub receipt: Receipt,
    /// For how long it is ours from now on, unless renewed.
    pub valid_for: Duration,
    /// The same, counted from when the poll was called: for whoever has a clock of its own, and was perhaps stalled
    /// since the answer was made.
    pub lasts: Duration,
    /// When it ends, on the [monotonic clock](crate::clock::Clock::monotonic) of the environment that the queue was opened with.
    pub until: Duration,
}

impl Delivery {
    /// The task's id.
    pub fn id(&self) -> &TaskId {
        self.key.id()
    }
}

/// How the earlier attempts at a task ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// The handler failed.
    pub failed: u32,
    /// The lease ran out.
    pub lost: u32,
    /// The task was given back, other than because its worker stopped.
    pub released: u32,
}

impl Earlier {
    /// Together with those that were made in another queue.
    pub(crate) fn and(self, carried: Carried) -> Self {
        Self {
            failed: self.failed.saturating_add(carried.failed),
            lost: self.lost.saturating_add(carried.lost),
            ..self
        }
    }
}

/// What came of claiming one certain task in order to move it.
#[derive(Clone, Debug)]
pub enum MoveClaim {
    /// It is ours.
    Ours(Box<Delivery>),
    /// Somebody has it, for so long unless that is renewed.
    Held {
        /// How long.
        for_now: Duration,
        /// They, too, mean to take it to another queue.
        moving: bool,
    },
    /// It is over, or not here.
    Gone,
}

/// What a poll found.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// The tasks claimed.
    pub deliveries: Vec<Delivery>,
    /// Why there are not more.
    pub idle: Idle,
}

/// Why a poll did not find as much as it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idle {
    /// The queue is paused.
    pub paused: bool,
    /// The search was cut short; poll again at once.
    pub more: bool,
    /// When something known now could become claimable: a backoff over, a lease run out, a scheduled
    /// task due. `None` when nothing is there to wait for.
    pub next: Option<Duration>,
    /// What was found proves little yet: the provider may hand out nothing, and count nothing, although
    /// something is there (SQS does). Wait for so long, poll again, and conclude nothing before this is
    /// `None`.
    pub unsure: Option<Duration>,
}

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct Nack {
    /// Which.
    pub receipt: Receipt,
    /// Why.
    pub error: String,
    /// When to try again, instead of the queue's backoff.
    pub delay: Option<Duration>,
}

/// What became of a failed attempt's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nacked {
    /// It will be tried again after this time.
    Again(Duration),
    /// That was once too often: it is among the failed ones.
    GivenUp,
}

/// A task given back.
#[derive(Clone, Debug)]
pub struct Release {
    /// Which.
    pub receipt: Receipt,
    /// Nobody should try before this time has passed.
    pub delay: Option<Duration>,
    /// Why, for those who look.
    pub reason: Option<String>,
}

impl Release {
    /// Gives the task back at once.
    pub fn now(receipt: Receipt) -> Self {
        Self { receipt, delay: None, reason: None }
    }
}

/// What an unlock did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlocked {
    /// It was taken from this worker.
    From(String),
    /// Nobody had it, and nothing kept it from being claimed.
    WasFree,
}

/// Which finished records to remove.
#[derive(Clone, Copy, Debug)]
pub struct Purge {
    /// Completed or failed ones.
    pub outcome: Outcome,
    /// Only those that finished at least this long ago.
    pub older_than: Duration,
    /// Only count them.
    pub dry_run: bool,
}

/// What a purge removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records of finished tasks.
    pub records: u64,
    /// Files that killed processes left half-made, and records of workers long gone.
    pub leftovers: u64,
}

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for a worker.
    Ready,
    /// A worker has it.
    Leased {
        /// Who.
        worker_id: String,
        /// Until when, unless renewed, on the store's clock.
        until: Timestamp,
    },
    /// A worker had it and let its lease run out. Whoever polls next takes over.
    Stale {
        /// Who had it.
        worker_id: String,
    },
    /// Waits for its next attempt.
    Backoff {
        /// Until when, on the store's clock.
        until: Timestamp,
    },
    /// Waits for its time.
    Scheduled {
        /// When that is.
        due: Timestamp,
    },
    /// Done.
    Completed,
    /// Given up.
    Failed,
    /// Its file cannot be read; the next worker that meets it sets it aside.
    Damaged,
    /// It has a lease, and nobody looked what that says: it is leased, stale, in backoff or ready. Only in a listing
    /// that was asked to be [brief](super::ListCursor::briefly).
    Claimed,
}

impl TaskState {
    /// The state in one word, the same everywhere.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Claimed => "claimed",
            Self::Leased { .. } => "leased",
            Self::Stale { .. } => "stale",
            Self::Backoff { .. } => "backoff",
            Self::Scheduled { .. } => "scheduled",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Damaged => "damaged",
        }
    }
}

/// A task as an onlooker sees it.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// The task.
    pub key: TaskKey,
    /// Where it stands.
    pub state: TaskState,
    /// What is to be done; nothing if that cannot be read.
    pub payload: Option<Payload>,
    /// What the queue noted beside it.
    pub meta: TaskMeta,
    /// Every attempt so far.
    pub attempts: Vec<AttemptSummary>,
    /// How they count, together with those that were made before the task came here; nothing once it is
    /// finished.
    pub earlier: Earlier,
    /// Why it failed, if it did.
    pub reason: Option<String>,
    /// When it finished, if it did.
    pub finished_at: Option<Timestamp>,
}

/// The places where tasks are, in the order in which they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Ready, leased, stale or in backoff; also those that cannot be read.
    Pending,
    /// Not due yet.
    Scheduled,
    /// Done.
    Completed,
    /// Given up, and not tried again since: what lives again, or has, is history.
    Failed,
}

/// How closely to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Names only: costs a listing. Where a listing of everything takes many requests, an estimate.
    #[default]
    Counts,
    /// Also what pending tasks wait for. On a disk this looks into every one. Where a look is a request, it goes by
    /// the listing, and looks into a few of those that have a lease.
    States,
    /// Everything, and nothing is estimated, whatever it costs.
    Exact,
}

/// How many tasks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// In `pending/`, whatever they wait for.
    pub pending: u64,
    /// Not due yet.
    pub scheduled: u64,
    /// Done.
    pub completed: u64,
    /// Given up, and not tried again since.
    pub failed: u64,
    /// Polls answer nothing.
    pub paused: bool,
    /// Which of these numbers are estimates.
    pub estimates: Estimates,
    /// About how many listings exact numbers take, if some are estimates.
    pub exact_requests: u64,
    /// And how many tasks are to be looked into for that.
    pub exact_reads: u64,
    /// What the pending ones wait for, if that was asked.
    pub states: Option<PendingStates>,
}

impl Stats {
    /// Whether all was counted, and nothing estimated.
    pub fn is_exact(&self) -> bool {
        self.estimates == Estimates::default()
    }
}

/// Which numbers are estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimates {
    /// [`Stats::pending`].
    pub pending: bool,
    /// [`Stats::completed`].
    pub completed: bool,
    /// [`Stats::failed`].
    pub failed: bool,
    /// [`Stats::states`]: how many tasks have a lease is known, but not what each of them waits for.
    pub states: bool,
}

/// What pending tasks wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingStates {
    /// A worker.
    pub ready: u64,
    /// The worker that has them.
    pub leased: u64,
    /// Somebody to take over from a worker that went silent.
    pub stale: u64,
    /// Their next attempt.
    pub backoff: u64,
    /// Somebody to set them aside: they cannot be read.
    pub damaged: u64,
    /// The oldest push among them.
    pub oldest: Option<Timestamp>,
}

/// A pause, as far as its mark can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Paused {
    /// The handle that paused the queue.
    pub by: Option<String>,
    /// When, by the clock of its machine.
    pub at: Option<Timestamp>,
    /// Why.
    pub reason: Option<String>,
}

/// Something in the tree that should not be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub path: String,
    /// What, and what to do about it.
    pub what: String,
    /// It is in order now.
    pub mended: bool,
}

/// A worker as others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Its name.
    pub worker_id: String,
    /// Its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Its version of dfq.
    pub version: String,
    /// When it started, by its own calendar.
    pub started_at: Timestamp,
    /// When it last wrote this, on the store's clock. Filled in by whoever reads it.
    #[serde(skip)]
    pub seen_at: Option<Timestamp>,
    /// When it stopped in good order, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// How many tasks it works on at once.
    pub concurrency: usize,
    /// How many it has now.
    pub running: usize,
    /// Tasks that it completed.
    pub completed: u64,
    /// Attempts that failed and will be tried again.
    pub retried: u64,
    /// Tasks that it gave up.
    pub failed: u64,
    /// Tasks that it gave back.
    pub released: u64,
    /// Leases that it lost.
    pub lost: u64,
    /// In how many seconds it was about to write this again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// Requests that its process has sent to stores that charge for them, by kind.
    #[serde(default, skip_serializing_if = "Counts::is_empty")]
    pub requests: Counts,
}
