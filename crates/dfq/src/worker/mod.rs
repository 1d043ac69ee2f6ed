//! The worker: polls, runs a handler for each task, renews leases, and stops in good order.
//!
//! Invariants:
//! - A lease is renewed by a thread of its own (`heart`), which no handler can starve.
//! - A handler whose lease is lost is cancelled at once: its future is dropped at its next `await`,
//!   and [`Job::cancelled`] tells those that block.
//! - No task is left behind: on a stop, handlers get a grace period, then their tasks are given back,
//!   so that others need not wait for the leases to run out.

mod calls;
mod counts;
mod heart;
mod settle;
mod shift;
mod trouble;

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Env;
use crate::error::Result;
use crate::meter::Meter;
use crate::model::Receipt;
use crate::queue::{Delivery, PollRequest, Queue};
use heart::Heart;
pub use settle::Became;
use shift::Shift;

/// A task in a handler's hands.
#[derive(Clone)]
pub struct Job {
    /// The task.
    pub delivery: Delivery,
    /// The queue that it is of.
    pub queue: Arc<dyn Queue>,
    cancelled: CancellationToken,
}

impl Job {
    /// Completes when the lease is lost or the worker is told to stop at once. A handler that cannot
    /// be dropped at an `await` (one that blocks, or runs a child process) should watch this.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// The same, asked now.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} of {})", self.delivery.receipt, self.queue.address())
    }
}

/// What a handler says about its task. `Ok` of a `Result` acks, `Err` retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskResult {
    /// Done.
    Ack,
    /// Failed: try again later.
    Retry {
        /// Why.
        error: String,
        /// When, instead of the queue's backoff.
        delay: Option<Duration>,
    },
    /// Hopeless: do not try again.
    Fail {
        /// Why.
        reason: String,
    },
    /// Not now: somebody else should, and it is not the task's fault.
    Release {
        /// Why.
        reason: Option<String>,
        /// When, if not at once.
        delay: Option<Duration>,
    },
}

impl<E: Display> From<Result<(), E>> for TaskResult {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Ack,
            Err(error) => Self::Retry { error: error.to_string(), delay: None },
        }
    }
}

/// Why a task is given back whose worker stopped. That is nobody's wish, so it does not count as
/// [given back](crate::queue::Earlier::released).
pub const STOPPED: &str = crate::model::WORKER_STOPPED;

/// When a worker stops by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// Never.
    #[default]
    Stopped,
    /// When nothing can be claimed now and nothing is running. SQS is believed after three long polls in
    /// a row that brought nothing, of 20 seconds each or a quarter of the lease.
    Idle,
    /// When nothing is left: also waits for backoffs, scheduled tasks, and others' leases, but not
    /// for tasks outside this worker's [schema range](Worker::schema). On SQS as for `Idle`, and its
    /// counts must have been zero all that time.
    Drained,
}

/// Stops a worker from outside.
#[derive(Clone, Debug, Default)]
pub struct Stopper {
    gently: CancellationToken,
    hard: CancellationToken,
}

impl Stopper {
    /// Claims nothing more, lets handlers finish within the grace period, gives the rest back.
    pub fn stop(&self) {
        self.gently.cancel();
    }

    /// Completes once the worker was told to stop, in whatever way.
    pub async fn stopping(&self) {
        self.gently.cancelled().await;
    }

    /// The same without the grace period.
    pub fn stop_now(&self) {
        self.gently.cancel();
        self.hard.cancel();
    }
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tasks completed.
    pub completed: u64,
    /// Attempts that failed and will be tried again.
    pub retried: u64,
    /// Tasks given up.
    pub failed: u64,
    /// Tasks given back.
    pub released: u64,
    /// Leases lost.
    pub lost: u64,
    /// Tasks whose end could not be recorded: they will be done again.
    pub unrecorded: u64,
}

/// A task that the worker is done with, and what the queue made of its result.
#[derive(Clone, Copy)]
pub struct Settled<'a> {
    /// The queue that it is of.
    pub queue: &'a Arc<dyn Queue>,
    /// The attempt.
    pub receipt: &'a Receipt,
    /// What the handler said.
    pub result: &'a TaskResult,
    /// What became of the task.
    pub became: Became,
}

impl std::fmt::Debug for Settled<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Settled({}: {:?})", self.receipt, self.became)
    }
}

/// How long an idle worker waits before it looks again: at first, and at the most.
const IDLE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
const REMOTE_IDLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

type Observer = dyn Fn(&Settled<'_>) + Send + Sync;
type Handler = dyn Fn(Job) -> Pin<Box<dyn Future<Output = TaskResult> + Send>> + Send + Sync;

/// Runs a handler for every task of a queue.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use dfq::{NewTask, OpenOptions, worker::{Job, Until, Worker}};
/// let dir = std::env::temp_dir().join(format!("dfq-doc-{}", std::process::id()));
/// let queue = dfq::open(&dir, OpenOptions::create()).await?;
/// queue.push(vec![NewTask::from_json(r#"{"n": 1}"#)?, NewTask::from_json(r#"{"n": 2}"#)?]).await;
///
/// let handler = |job: Job| async move {
///     let payload: serde_json::Value = job.delivery.payload.parse()?;
///     println!("{}", payload["n"]);
///     Ok::<(), dfq::Error>(())
/// };
/// let report = Worker::new(queue, handler).concurrency(2).until(Until::Drained).run().await?;
/// assert_eq!(report.completed, 2);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), dfq::Error>(()) }).unwrap();
/// ```
pub struct Worker {
    queues: Vec<Arc<dyn Queue>>,
    handler: Arc<Handler>,
    observer: Arc<Observer>,
    env: Env,
    concurrency: usize,
    request: PollRequest,
    grace: Duration,
    cleanup: Duration,
    until: Until,
    limit: u64,
    /// How long an idle worker waits before it looks again, where nobody tells it: from the first to
    /// the second, doubling.
    idle: (Duration, Duration),
    stopper: Stopper,
    meter: Meter,
}

impl Worker {
    /// A worker on `queue`, one task at a time.
    pub fn new<H, F, V>(queue: Arc<dyn Queue>, handler: H) -> Self
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = V> + Send + 'static,
        V: Into<TaskResult>,
    {
        let handler = move |job| {
            let answer = handler(job);
            Box::pin(async move { answer.await.into() }) as Pin<Box<_>>
        };
        let idle = if queue.capabilities().remote { REMOTE_IDLE } else { IDLE };
        Self {
            queues: vec![queue],
            idle,
            handler: Arc::new(handler),
            observer: Arc::new(|_| {}),
            env: Env::system(),
            concurrency: 1,
            request: PollRequest::default(),
            grace: Duration::from_secs(20),
            cleanup: Duration::ZERO,
            until: Until::Stopped,
            limit: u64::MAX,
            stopper: Stopper::default(),
            meter: Meter::default(),
        }
    }

    /// Works on this queue as well, but only while those named before it have nothing to do.
    #[must_use]
    pub fn then(mut self, queue: Arc<dyn Queue>) -> Self {
        self.queues.push(queue);
        self
    }

    /// Is told of every task that the worker is done with, on the worker's own thread.
    #[must_use]
    pub fn observe(mut self, observer: impl Fn(&Settled<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Stops after so many tasks, whatever becomes of them.
    #[must_use]
    pub fn limit(mut self, tasks: u64) -> Self {
        self.limit = tasks;
        self
    }

    /// How many handlers run at once. Where telling the queue takes a request, there may be as many
    /// tasks again of which it is being told: nobody waits for that.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// For how long a claim holds without a heartbeat, instead of the queue's own lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.lease = Some(lease);
        self
    }

    /// Only tasks whose `schema_version` lies in this range.
    #[must_use]
    pub fn schema(mut self, lowest: i64, highest: i64) -> Self {
        self.request.schema = Some((lowest, highest));
        self
    }

    /// How long handlers may go on after a stop. 20 seconds by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long a handler that was cancelled may go on to tidy up, such as to stop a child process,
    /// before it is dropped. Its task is given back only then. At once by default.
    #[must_use]
    pub fn cleanup(mut self, cleanup: Duration) -> Self {
        self.cleanup = cleanup;
        self
    }

    /// When to stop by itself.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// How long an idle worker waits at the most before it looks for tasks again, where the store does
    /// not tell it of any: 5 seconds by default, and 15 where every look is a request. There, one of the idle workers
    /// looks for all. The wait doubles from look to look, and no two workers' are quite the same.
    #[must_use]
    pub fn idle_at_most(mut self, most: Duration) -> Self {
        self.idle = (self.idle.0.min(most), most);
        self
    }

    /// Time and chance from elsewhere.
    #[must_use]
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// What this meter counts stands in the worker's record; give it to [`OpenOptions::meter`] too.
    ///
    /// [`OpenOptions::meter`]: crate::OpenOptions::meter
    #[must_use]
    pub fn meter(mut self, meter: Meter) -> Self {
        self.meter = meter;
        self
    }

    /// A handle to stop it by.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Works until stopped, or until what [`Worker::until`] says. An error means that it could not go
    /// on at all; what it had is given back.
    pub async fn run(self) -> Result<Report> {
        let beat = |queue: &Arc<dyn Queue>| {
            let lease = self.request.lease.unwrap_or(queue.settings().lease);
            (Arc::clone(queue), queue.heartbeat_every(lease))
        };
        let queues = self.queues.iter().map(beat).collect();
        let heart = Heart::start(queues, self.env.clone(), self.concurrency, self.meter.clone())?;
        let mut shift = Shift::new(&self, heart);
        let ended = shift.work().await;
        shift.wind_down().await;
        let report = shift.heart.report();
        shift.heart.stop().await;
        ended.map(|()| report)
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<_> = self.queues.iter().map(|queue| queue.address()).collect();
        write!(f, "Worker({} on {})", self.queues[0].worker_id(), addresses.join(", "))
    }
}
