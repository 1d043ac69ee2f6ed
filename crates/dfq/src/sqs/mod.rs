//! A queue in Amazon SQS, or in a server that speaks its protocol.
//!
//! SQS keeps the leases itself, so this is a [`Queue`] of its own and no [`Tree`](crate::store::Tree).
//! A task is a message whose body is the task file's text (FORMAT.md), or one that another program sent
//! (`foreign`); a claim is a receive, whose visibility timeout is the lease; an ack deletes the message; a
//! nack makes it visible again after the backoff; the attempt is SQS's own count of receives. A task that is
//! given up moves to the dead-letter queue: the one that was named, or the redrive policy's.
//!
//! Invariant: whatever was acked is gone, whatever was given up is in the dead-letter queue, and all else
//! comes back. What SQS cannot do is declared in [`Capabilities`], and answered with an error that
//! names it: nothing is listed, looked at or counted exactly, nothing is taken back without counting,
//! nothing is known of tasks that are done, and an id is not recognised when it is pushed again. (A FIFO
//! queue drops doubles within five minutes, but does not say so.)

mod account;
mod body;
mod bury;
mod client;
mod foreign;
mod hold;
mod open;
#[cfg(feature = "conformance")]
pub(crate) mod parsers;
mod policy;
mod receive;
mod send;
mod silence;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

pub use self::policy::policy;

use self::bury::DeadLetters;
use self::client::Client;
use self::hold::{Held, SettledReceipts};
use self::receive::Ahead;
use self::silence::Silence;
use crate::address::SqsAddress;
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{NewTask, Receipt, Settings, TaskId};
use crate::options::OpenOptions;
use crate::queue::{
    Answers, Cancelled, Capabilities, Detail, Estimates, ListCursor, ListPage, MoveClaim, Nack,
    Nacked, Paused, PendingStates, PollRequest, Polled, Problem, Purge, Purged, Pushed, Queue,
    Release, Stats, TaskView, Unlocked, WorkerRecord,
};

/// What errors call it.
const PROVIDER: &str = "sqs";

/// For how long a FIFO queue knows a message again.
const DEDUPLICATION: Duration = Duration::from_secs(5 * 60);

/// A [`Queue`] in SQS.
pub struct Sqs {
    core: Arc<Core>,
}

impl Sqs {
    /// Opens a queue, or makes it if the options say so: as a FIFO queue if its name ends in `.fifo`,
    /// with its lease as visibility timeout, and with a redrive policy if a dead-letter queue is named.
    pub async fn open(address: SqsAddress, options: OpenOptions) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(Self { core: Arc::new(open::open(address, options).await?) }))
    }
}

impl fmt::Debug for Sqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqs({})", self.core.address)
    }
}

/// What all verbs share.
struct Core {
    client: Client,
    /// The same with connections of its own, for heartbeats.
    heart: Client,
    env: Env,
    settings: Settings,
    worker_id: String,
    address: String,
    url: String,
    fifo: bool,
    group_member: Option<String>,
    /// The most bytes of a message, and of a batch of them.
    message_limit: usize,
    batch_limit: AtomicUsize,
    /// The server refuses characters that SQS takes.
    strict: AtomicBool,
    dead: DeadLetters,
    /// Told apart from other handles to the same queue, in this process and elsewhere.
    origin: String,
    held: Mutex<BTreeMap<Receipt, Arc<Held>>>,
    settled: Mutex<SettledReceipts>,
    ahead: Mutex<Ahead>,
    /// How long nothing has come.
    silence: Mutex<Silence>,
    /// A long poll has ended.
    arrived: tokio::sync::Notify,
    /// Messages that cannot be read and have been reported.
    unreadable: Mutex<BTreeSet<String>>,
}

/// Seconds, rounded up: SQS knows no others.
fn whole_seconds(duration: Duration) -> u32 {
    let up = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    u32::try_from(up).unwrap_or(u32::MAX)
}

impl Core {
    fn unsupported(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unsupported, format!("{}: {PROVIDER} cannot {what}", self.address))
    }

    async fn stats(&self, detail: Detail) -> Result<Stats> {
        let counts = self.counts(&self.url).await?;
        let dead = async {
            match self.dead_letters().await? {
                Some(url) => Ok::<_, Error>(self.counts(url).await?.visible),
                None => Ok(0),
            }
        };
        // Many a worker may not look there, and yet count what is left to do.
        let failed = dead.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the dead letters cannot be counted");
            0
        });
        let states = PendingStates {
            ready: counts.visible,
            leased: counts.hidden,
            ..PendingStates::default()
        };
        Ok(Stats {
            pending: counts.visible + counts.hidden,
            scheduled: counts.delayed,
            failed,
            states: (detail != Detail::Counts).then_some(states),
            // Estimates, and nothing is known of completed tasks.
            estimates: Estimates { pending: true, completed: true, failed: true, states: true },
            ..Stats::default()
        })
    }
}

#[async_trait]
impl Queue for Sqs {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            provider: PROVIDER,
            inspect: false,
            operate: false,
            release: false,
            deduplicates: false,
            drops_doubles_for: self.core.fifo.then_some(DEDUPLICATION),
            pause: false,
            history: false,
            schemas: false,
            remote: true,
            max_delay: Some(if self.core.fifo { Duration::ZERO } else { send::MAX_DELAY }),
            max_lease: Some(hold::MAX_HELD),
            heartbeats_together: client::BATCH,
        }
    }

    fn settings(&self) -> &Settings {
        &self.core.settings
    }

    fn address(&self) -> &str {
        &self.core.address
    }

    fn identity(&self) -> &str {
        &self.core.url
    }

    fn worker_id(&self) -> &str {
        &self.core.worker_id
    }

    fn heartbeat_every(&self, lease: Duration) -> Duration {
        // Requests cost money.
        lease / 3
    }

    async fn push(&self, tasks: Vec<NewTask>) -> Answers<Pushed> {
        self.core.push(tasks).await
    }

    async fn poll(&self, request: PollRequest) -> Result<Polled> {
        self.core.poll(&request).await
    }

    async fn wait(&self, at_most: Duration) {
        self.core.wait(at_most).await;
    }

    async fn heartbeat(&self, receipts: Vec<Receipt>) -> Answers<Duration> {
        self.core.renew(&self.core.heart, receipts).await
    }

    async fn recalled(&self) -> Result<bool> {
        Ok(false) // nobody can
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Answers<()> {
        self.core.ack(receipts).await
    }

    async fn nack(&self, nacks: Vec<Nack>) -> Answers<Nacked> {
        self.core.nack(nacks).await
    }

    async fn fail(&self, failures: Vec<(Receipt, String)>) -> Answers<()> {
        self.core.fail(failures).await
    }

    async fn release(&self, releases: Vec<Release>) -> Answers<()> {
        let error = self.core.unsupported("give a task back without counting the attempt");
        releases.iter().map(|_| Err(error.clone())).collect()
    }

    async fn close(&self) {
        self.core.close().await;
    }

    async fn claim_to_move(&self, tasks: Vec<TaskView>, _lease: Duration) -> Answers<MoveClaim> {
        let error = self.core.unsupported("claim certain tasks: it hands out which it likes");
        tasks.iter().map(|_| Err(error.clone())).collect()
    }

    async fn moved(&self, departures: Vec<(Receipt, String)>) -> Answers<()> {
        self.core.ack(departures.into_iter().map(|(receipt, _)| receipt).collect()).await
    }

    async fn tidy(&self) -> Result<()> {
        Ok(()) // what is finished is gone
    }

    async fn release_unrun(&self, receipts: Vec<Receipt>) -> Answers<()> {
        self.core.release_unrun(receipts).await
    }

    async fn cancel(&self, ids: Vec<TaskId>, _reason: String) -> Answers<Cancelled> {
        let error = self.core.unsupported("cancel a task by its id");
        ids.iter().map(|_| Err(error.clone())).collect()
    }

    async fn unlock(&self, ids: Vec<TaskId>) -> Answers<Unlocked> {
        let error = self.core.unsupported("unlock a task by its id");
        ids.iter().map(|_| Err(error.clone())).collect()
    }

    async fn retry(&self, ids: Vec<TaskId>) -> Answers<Pushed> {
        let error =
            self.core.unsupported("retry a task by its id; move its dead-letter queue back");
        ids.iter().map(|_| Err(error.clone())).collect()
    }

    async fn pause(&self, _reason: Option<String>) -> Result<()> {
        Err(self.core.unsupported("pause a queue"))
    }

    async fn resume(&self) -> Result<()> {
        Err(self.core.unsupported("pause or resume a queue"))
    }

    async fn paused(&self) -> Result<Option<Paused>> {
        Ok(None)
    }

    async fn purge(&self, _purge: Purge) -> Result<Purged> {
        Err(self.core.unsupported("purge: it keeps no records of finished tasks"))
    }

    async fn now(&self) -> Timestamp {
        self.core.env.clock().wall()
    }

    async fn peek(&self, _max: usize) -> Result<Vec<TaskView>> {
        Err(self.core.unsupported("show tasks without claiming them"))
    }

    async fn get(&self, _id: TaskId) -> Result<Option<TaskView>> {
        Err(self.core.unsupported("find a task by its id"))
    }

    async fn list(&self, _from: Option<ListCursor>) -> Result<ListPage> {
        Err(self.core.unsupported("list tasks"))
    }

    async fn stats(&self, detail: Detail) -> Result<Stats> {
        self.core.stats(detail).await
    }

    async fn check(&self, _repair: bool) -> Result<Vec<Problem>> {
        Err(self.core.unsupported("be checked: it has no files"))
    }

    async fn put_worker(&self, _record: WorkerRecord) -> Result<()> {
        Err(self.core.unsupported("keep records of workers"))
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>> {
        Err(self.core.unsupported("tell who its workers are"))
    }
}
