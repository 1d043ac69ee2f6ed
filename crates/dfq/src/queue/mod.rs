//! The queue: one contract, and the protocol that keeps it on any [`Tree`](crate::store::Tree).
//!
//! # The protocol in one page
//!
//! Everything rests on create-if-absent. Files, in the order in which they are written in a task's
//! life, who wins when several want to write one, and what a crash after it leaves:
//!
//! | file | written by | race | crash after it |
//! | --- | --- | --- | --- |
//! | `pending/…/task.json` | push, whole | first wins, others are told *pending* | a task to be done |
//! | `lease.json`, `lease.<n>.json` | claim, takeover, unlock | first wins attempt *n* | runs out, then attempt *n*+1 |
//! | the same, replaced | its owner only, while it owns | nobody else writes it | as above |
//! | `completed/…`, `failed/…` | ack, fail, cancel | first wins, others read who | the task is done; whoever meets the rest removes it |
//! | *removed*: `task.json` | whoever saw the record | any number may | leases without a task: garbage |
//! | *removed*: leases, folder | likewise | any number may | nothing |
//!
//! Rules that no path may break: a lease of a live task is never deleted; a terminal record is
//! durable before its `task.json` goes; leases go only after `task.json` has gone; a name is used
//! once (a later life of an id has names of its own); an owner writes only while its own clock says
//! that it owns; whoever creates a lease looks *afterwards* whether the task still needs doing.
//!
//! `judge` holds the pure decisions, `store_clock` the time they are made by, `strategy` what depends on the
//! kind of store, `discover` and `survey` find candidates without listing everything, `watch` lets idle workers take turns in that, `drafts` makes leases to be put into many tasks; `claim`,
//! `hold`, `finish`, `push`, `schedule` and `operate` are the verbs.

mod check;
mod claim;
mod core;
mod count;
mod cursor;
mod depart;
mod discover;
mod drafts;
mod finish;
mod flaws;
mod floors;
mod history;
mod hold;
mod inspect;
mod judge;
mod known;
mod lives;
pub mod merge;
mod open;
mod operate;
mod pages;
mod poll;
mod purge;
mod purge_marks;
mod push;
mod schedule;
mod scheduled;
mod second_look;
mod sieve;
mod store_clock;
mod strategy;
mod survey;
mod trust;
mod types;
mod walk;
mod watch;

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

pub use self::core::TreeQueue;
pub(crate) use self::core::fence;
#[cfg(feature = "conformance")]
pub(crate) use self::watch::rewrite_watch;
pub use cursor::{ListCursor, ListPage};
pub use types::{
    Cancelled, Capabilities, Delivery, Detail, Earlier, Estimates, Idle, MoveClaim, Nack, Nacked,
    Paused, PendingStates, Place, PollRequest, Polled, Problem, Purge, Purged, Pushed, Release,
    Stats, TaskState, TaskView, Unlocked, WorkerRecord,
};

use crate::error::Result;
use crate::model::{NewTask, Outcome, Receipt, Settings, TaskId};

/// One answer for each thing asked, in the same order.
pub type Answers<T> = Vec<Result<T>>;

/// A work queue. Every provider keeps this contract; what one cannot do it declares in
/// [`Capabilities`] and answers with [`Unsupported`](crate::ErrorKind::Unsupported).
///
/// Calls take batches, because on every provider a batch is cheaper than its parts. The outer error
/// means that nothing was done; inner errors speak of single tasks.
#[async_trait]
pub trait Queue: Send + Sync {
    /// What this provider can do.
    fn capabilities(&self) -> Capabilities;
    /// The queue's settings.
    fn settings(&self) -> &Settings;
    /// Where the queue is.
    fn address(&self) -> &str;
    /// The same, however it was written, as far as one can tell.
    fn identity(&self) -> &str {
        self.address()
    }
    /// The name under which this handle claims.
    fn worker_id(&self) -> &str;
    /// How often a lease of this length should be renewed here.
    fn heartbeat_every(&self, lease: Duration) -> Duration;

    /// Adds tasks. When this returns they are durable.
    async fn push(&self, tasks: Vec<NewTask>) -> Answers<Pushed>;
    /// Claims up to `request.max` tasks, without waiting for any to appear. If the future is dropped
    /// before it is done, what it has claimed sits out its lease.
    async fn poll(&self, request: PollRequest) -> Result<Polled>;
    /// Returns once it may be worth polling again: something changed, or `at_most` has passed.
    async fn wait(&self, at_most: Duration);
    /// Gives back what was received ahead of being asked for, and does what was put off so as to be done
    /// together with other things. To be called at the end, though the queue may be used again; who
    /// does not costs others some looks and some waiting, and nothing else.
    async fn close(&self);
    /// Renews leases; answers for how long each holds from now: zero, if it ran out while others were renewed. An error of the kind `ClaimLost` or
    /// `AlreadyCompleted` means: stop working on it.
    async fn heartbeat(&self, receipts: Vec<Receipt>) -> Answers<Duration>;
    /// Whether an operator may have taken tasks away since this was last asked: then their holders should
    /// renew their leases, and learn it. One cheap look, however many tasks are held.
    async fn recalled(&self) -> Result<bool>;
    /// Done. When this returns, it is durable.
    async fn ack(&self, receipts: Vec<Receipt>) -> Answers<()>;
    /// The handler failed: try again after a backoff, or give up if that was once too often.
    async fn nack(&self, nacks: Vec<Nack>) -> Answers<Nacked>;
    /// Hopeless: give up at once, for this reason.
    async fn fail(&self, failures: Vec<(Receipt, String)>) -> Answers<()>;
    /// Gives tasks back without holding it against them.
    async fn release(&self, releases: Vec<Release>) -> Answers<()>;

    /// Claims these very tasks, as they were listed, in order to move them to another queue: also from a
    /// queue that is paused, and whatever they wait for. It counts as no attempt, however it ends.
    async fn claim_to_move(&self, tasks: Vec<TaskView>, lease: Duration) -> Answers<MoveClaim>;
    /// Ends claimed tasks that live on in another queue, at this address. When this returns they are gone
    /// from here, durably.
    async fn moved(&self, departures: Vec<(Receipt, String)>) -> Answers<()>;
    /// Removes what killed processes have left of finished tasks, as the next worker would that meets it.
    async fn tidy(&self) -> Result<()>;
    /// Lets go of claimed tasks at once, as if their leases had run out; where that is possible, without
    /// counting an attempt.
    async fn release_unrun(&self, receipts: Vec<Receipt>) -> Answers<()>;

    /// Ends tasks that are not finished, whoever has them; they go to the failed ones.
    async fn cancel(&self, ids: Vec<TaskId>, reason: String) -> Answers<Cancelled>;
    /// Takes tasks away from whoever has them, and out of their backoff, so that they can be claimed
    /// at once. The previous owner finds out within seconds and may work until then.
    async fn unlock(&self, ids: Vec<TaskId>) -> Answers<Unlocked>;
    /// Starts failed tasks again, as a new life with all their attempts.
    async fn retry(&self, ids: Vec<TaskId>) -> Answers<Pushed>;
    /// Makes polls answer nothing until [`Queue::resume`].
    async fn pause(&self, reason: Option<String>) -> Result<()>;
    /// Undoes [`Queue::pause`].
    async fn resume(&self) -> Result<()>;
    /// Who paused the queue, when and why, if it is paused.
    async fn paused(&self) -> Result<Option<Paused>>;
    /// Removes finished records that are old enough.
    async fn purge(&self, purge: Purge) -> Result<Purged>;

    /// What the store's clock shows, for showing how old things are. Nothing is written for it where the store's
    /// answers tell the time; if nothing may be written, it is this machine's.
    async fn now(&self) -> Timestamp;
    /// Shows up to `max` tasks that could be claimed now, and claims none.
    async fn peek(&self, max: usize) -> Result<Vec<TaskView>>;
    /// Shows one task in whatever state it is.
    async fn get(&self, id: TaskId) -> Result<Option<TaskView>>;
    /// Shows tasks, part by part.
    async fn list(&self, from: Option<ListCursor>) -> Result<ListPage>;
    /// Counts tasks.
    async fn stats(&self, detail: Detail) -> Result<Stats>;
    /// Looks for everything in the tree that should not be there. With `repair`, mends what can be
    /// mended without a guess; otherwise changes nothing.
    async fn check(&self, repair: bool) -> Result<Vec<Problem>>;

    /// Writes this worker's own record, for others to see.
    async fn put_worker(&self, record: WorkerRecord) -> Result<()>;
    /// Who has been seen.
    async fn workers(&self) -> Result<Vec<WorkerRecord>>;
}

/// The outcome folders, completed first because it beats failed.
pub(crate) const OUTCOMES: [Outcome; 2] = [Outcome::Completed, Outcome::Failed];
