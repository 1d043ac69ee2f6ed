//! The worker: polls, runs a handler for each task, renews leases, and stops in good order.
//!
//! Invariants:
//! - A lease is renewed by a thread of its own (`heart`), which no handler can starve.
//! - A handler whose lease is lost is cancelled at once: its future is dropped at its next `await`,
//!   and [`Job::cancelled`] tells those that block.
//! - No task is left behind: on a stop, handlers get a grace period, then their tasks are given back,
//!   so that others need not wait for the leases to run out.

mod heart;
mod settle;

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Delivery, Idle, PollRequest, Polled, Queue};
use heart::Heart;
use settle::Running;

/// A task in a handler's hands.
#[derive(Clone, Debug)]
pub struct Job {
    /// The task.
    pub delivery: Delivery,
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

/// What a handler says about its task. `Ok` of a `Result` acks, `Err` retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
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

impl<E: Display> From<Result<(), E>> for Verdict {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Ack,
            Err(error) => Self::Retry { error: error.to_string(), delay: None },
        }
    }
}

/// When a worker stops by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// Never.
    #[default]
    Stopped,
    /// When nothing can be claimed now and nothing is running.
    Idle,
    /// When nothing is left: also waits for backoffs, scheduled tasks, and others' leases.
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
}

type Handler = dyn Fn(Job) -> Pin<Box<dyn Future<Output = Verdict> + Send>> + Send + Sync;

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
    queue: Arc<dyn Queue>,
    handler: Arc<Handler>,
    env: Env,
    concurrency: usize,
    request: PollRequest,
    grace: Duration,
    until: Until,
    stopper: Stopper,
}

/// How long an idle worker waits before it looks again, where nobody tells it: from the first to the
/// second, doubling.
const IDLE_POLL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The most tasks asked for at a time.
const MAX_POLL: usize = 1000;

/// How long to wait after the store failed.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

impl Worker {
    /// A worker on `queue`, one task at a time.
    pub fn new<H, F, V>(queue: Arc<dyn Queue>, handler: H) -> Self
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = V> + Send + 'static,
        V: Into<Verdict>,
    {
        let handler = move |job| {
            let answer = handler(job);
            Box::pin(async move { answer.await.into() }) as Pin<Box<_>>
        };
        Self {
            queue,
            handler: Arc::new(handler),
            env: Env::system(),
            concurrency: 1,
            request: PollRequest::default(),
            grace: Duration::from_secs(20),
            until: Until::Stopped,
            stopper: Stopper::default(),
        }
    }

    /// How many tasks at once.
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

    /// When to stop by itself.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Time and chance from elsewhere.
    #[must_use]
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// A handle to stop it by.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Works until stopped, or until what [`Worker::until`] says. An error means that it could not go
    /// on at all; what it had is given back.
    pub async fn run(self) -> Result<Report> {
        let lease = self.request.lease.unwrap_or(self.queue.settings().lease);
        let heart = Heart::start(
            Arc::clone(&self.queue),
            self.env.clone(),
            self.queue.heartbeat_every(lease),
            self.concurrency,
        )?;
        let mut shift =
            Shift { worker: &self, heart, jobs: JoinSet::new(), running: Running::default() };
        let ended = shift.work().await;
        shift.wind_down().await;
        let report = shift.heart.report();
        shift.heart.stop().await;
        ended.map(|()| report)
    }
}

/// A worker at work.
struct Shift<'a> {
    worker: &'a Worker,
    heart: Heart,
    jobs: JoinSet<Verdict>,
    running: Running,
}

impl Shift<'_> {
    async fn work(&mut self) -> Result<()> {
        let Worker { queue, env, stopper, until, concurrency, .. } = self.worker;
        let mut idle_for = IDLE_POLL.0;
        while !stopper.gently.is_cancelled() {
            let free = concurrency.saturating_sub(self.running.len());
            let mut idle = Idle::default();
            if free > 0 {
                let asked = env.monotonic();
                let polled = self.poll(free.min(MAX_POLL)).await?;
                if !polled.deliveries.is_empty() {
                    idle_for = IDLE_POLL.0;
                }
                for delivery in polled.deliveries {
                    self.start(delivery, asked);
                }
                idle = polled.idle;
            }
            let done = self.running.is_empty()
                && !idle.more
                && match until {
                    Until::Stopped => false,
                    Until::Idle => true,
                    Until::Drained => idle.next.is_none() && !idle.paused,
                };
            if done {
                return Ok(());
            }
            if idle.more && self.running.len() < *concurrency {
                self.settle_ready().await;
                tokio::task::yield_now().await;
                continue;
            }
            let jitter = idle_for.mul_f64(0.75 + 0.5 * env.fraction());
            let pause =
                idle.next.map_or(jitter, |next| next.min(jitter)).max(Duration::from_millis(1));
            let hungry = self.running.len() < *concurrency;
            tokio::select! {
                biased;
                Some(joined) = self.jobs.join_next_with_id(), if !self.running.is_empty() => {
                    self.finish(joined).await;
                }
                () = stopper.gently.cancelled() => {}
                () = env.clock().sleep(self.running.retry_in(env.monotonic())), if self.running.has_unsettled() => {
                    self.settle_ready().await;
                }
                () = queue.wait(pause), if hungry => idle_for = (idle_for * 2).min(IDLE_POLL.1),
            }
        }
        Ok(())
    }

    /// Claims tasks. A store that fails for a while is waited for; a queue that cannot be used is not.
    async fn poll(&self, free: usize) -> Result<Polled> {
        let Worker { queue, request, env, .. } = self.worker;
        match queue.poll(PollRequest { max: free, ..request.clone() }).await {
            Ok(polled) => Ok(polled),
            Err(error) => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Full => {
                    tracing::warn!(%error, "cannot poll now");
                    env.clock().sleep(TROUBLE_PAUSE).await;
                    // Nothing is known of what is there: whoever waits for the end must go on.
                    let idle = Idle { more: true, ..Idle::default() };
                    Ok(Polled { idle, ..Polled::default() })
                }
                _ => Err(error),
            },
        }
    }

    /// Runs the handler for a task that was claimed by a poll begun at `asked`.
    fn start(&mut self, delivery: Delivery, asked: Duration) {
        if self.worker.env.monotonic() >= asked + delivery.valid_for {
            // The runtime was kept busy for so long that the lease has run out meanwhile.
            self.heart.count(|counts| &counts.lost);
            return;
        }
        let receipt = delivery.receipt.clone();
        let cancelled = self.heart.keep(&receipt, asked);
        let job = Job { delivery, cancelled: cancelled.clone() };
        let handler = Arc::clone(&self.worker.handler);
        let task = self.jobs.spawn(async move {
            // In here from the first line on, so that a handler that panics takes nobody with it.
            let handled = handler(job);
            // Dropping the handler is what cancels it; the token is for those who cannot be dropped.
            tokio::select! {
                biased;
                verdict = handled => verdict,
                () = cancelled.cancelled() => Verdict::Release { reason: None, delay: None },
            }
        });
        self.running.add(task.id(), receipt);
    }

    async fn finish(&mut self, joined: std::result::Result<(Id, Verdict), tokio::task::JoinError>) {
        self.collect(joined);
        self.settle_ready().await;
    }

    fn collect(&mut self, joined: std::result::Result<(Id, Verdict), tokio::task::JoinError>) {
        let (id, verdict) = match joined {
            Ok((id, verdict)) => (id, verdict),
            Err(error) => (error.id(), verdict_of(error)),
        };
        self.running.finished(id, verdict);
    }

    /// Settles all that has finished by now in one go: it costs little more than settling one.
    async fn settle_ready(&mut self) {
        while let Some(joined) = self.jobs.try_join_next_with_id() {
            self.collect(joined);
        }
        let unsettled = self.running.take_unsettled();
        // Not renewed while it is being settled; if that fails it must be, as if nothing had happened.
        let kept: Vec<_> = unsettled.iter().map(|done| self.heart.forget(&done.receipt)).collect();
        let kept: HashMap<_, _> =
            unsettled.iter().map(|done| done.receipt.clone()).zip(kept).collect();
        for refused in settle::settle(&*self.worker.queue, unsettled, &self.heart).await {
            if let Some(Some(kept)) = kept.get(&refused.receipt) {
                self.heart.resume(&refused.receipt, kept.clone());
            }
            self.running.put_back(refused, self.worker.env.monotonic());
        }
    }

    /// Lets handlers finish, then gives back what is left.
    async fn wind_down(&mut self) {
        let Worker { env, stopper, grace, .. } = self.worker;
        let over = env.clock().sleep(*grace);
        tokio::pin!(over);
        while !self.running.is_empty() {
            tokio::select! {
                biased;
                Some(joined) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => {
                    self.finish(joined).await;
                }
                () = env.clock().sleep(self.running.retry_in(env.monotonic())), if self.running.has_unsettled() => {
                    self.settle_ready().await;
                }
                () = stopper.hard.cancelled() => break,
                () = &mut over => break,
            }
        }
        self.heart.cancel_all();
        // Handlers are dropped at their next await; one that never comes to it must not keep its task.
        let patience = env.clock().sleep(Duration::from_secs(1));
        tokio::pin!(patience);
        while !self.jobs.is_empty() {
            tokio::select! {
                Some(joined) = self.jobs.join_next_with_id() => self.collect(joined),
                () = &mut patience => break,
            }
        }
        self.running.abandon();
        self.settle_ready().await;
        for key in self.running.unsettled() {
            tracing::error!(%key, "the queue could not be told; the task is redone after its lease");
        }
    }
}

fn verdict_of(error: tokio::task::JoinError) -> Verdict {
    let error = match error.try_into_panic() {
        Err(_) => "the handler was aborted".to_owned(),
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("the handler panicked: {}", text.unwrap_or_else(|| "(no message)".to_owned()))
        }
    };
    Verdict::Retry { error, delay: None }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Worker({} on {})", self.queue.worker_id(), self.queue.address())
    }
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot start the heartbeat thread: {error}"))
}
