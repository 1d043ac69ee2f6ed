//! The heartbeat: a thread with a runtime of its own, so that nothing a handler does to the worker's
//! runtime can keep leases from being renewed. It also keeps the worker's record fresh.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Became, Report, no_thread};
use crate::clock::{Env, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::meter::Meter;
use crate::model::Receipt;
use crate::queue::{Queue, WorkerRecord};

/// How often a worker says that it is alive, and how often where that takes a request.
const RECORD_EVERY: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(60));

/// What a worker has done so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) completed: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl Counts {
    fn report(&self) -> Report {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            completed: read(&self.completed),
            retried: read(&self.retried),
            failed: read(&self.failed),
            released: read(&self.released),
            lost: read(&self.lost),
        }
    }
}

/// A lease that is kept.
#[derive(Clone)]
pub(super) struct Kept {
    /// Which of the worker's queues it is of.
    queue: usize,
    cancelled: CancellationToken,
    /// When it was last renewed, on the monotonic clock.
    renewed: Duration,
}

struct Shared {
    /// The worker's queues, and how often a lease of each is renewed.
    queues: Vec<(Arc<dyn Queue>, Duration)>,
    env: Env,
    concurrency: usize,
    meter: Meter,
    started_at: Timestamp,
    kept: Mutex<HashMap<Receipt, Kept>>,
    lost: Mutex<std::collections::HashSet<Receipt>>,
    /// By queue.
    counts: Vec<Counts>,
    stop: CancellationToken,
    /// A lease was added that may have to be renewed before the next one known.
    added: tokio::sync::Notify,
}

/// Renews leases until dropped.
pub(super) struct Heart {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Heart {
    pub(super) fn start(
        queues: Vec<(Arc<dyn Queue>, Duration)>,
        env: Env,
        concurrency: usize,
        meter: Meter,
    ) -> Result<Self> {
        let started_at = env.clock().wall();
        let counts = queues.iter().map(|_| Counts::default()).collect();
        let shared = Arc::new(Shared {
            queues,
            env,
            concurrency,
            meter,
            started_at,
            kept: Mutex::default(),
            lost: Mutex::default(),
            counts,
            stop: CancellationToken::new(),
            added: tokio::sync::Notify::new(),
        });
        let beating = Arc::clone(&shared);
        let (started, ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("dfq-heart".to_owned())
            .spawn(move || {
                match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => {
                        let _ = started.send(Ok(()));
                        runtime.block_on(beating.beat());
                    }
                    Err(error) => _ = started.send(Err(error)),
                }
            })
            .map_err(|error| no_thread(&error))?;
        match ready.recv() {
            Ok(Err(error)) => Err(no_thread(&error)),
            _ => Ok(Self { shared, thread: Mutex::new(Some(thread)) }),
        }
    }

    /// Whether leases are being renewed.
    pub(super) fn beats(&self) -> bool {
        lock(&self.thread).as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Renews this lease from now on; the token is cancelled when it is lost. It was given after
    /// `since`.
    pub(super) fn keep(
        &self,
        queue: usize,
        receipt: &Receipt,
        since: Duration,
    ) -> CancellationToken {
        let kept = Kept { queue, cancelled: CancellationToken::new(), renewed: since };
        let cancelled = kept.cancelled.clone();
        self.resume(receipt, kept);
        cancelled
    }

    /// Renews it again, as if it had never been forgotten.
    pub(super) fn resume(&self, receipt: &Receipt, kept: Kept) {
        lock(&self.shared.kept).insert(receipt.clone(), kept);
        self.shared.added.notify_one();
    }

    /// Renews this lease no more.
    pub(super) fn forget(&self, receipt: &Receipt) -> Option<Kept> {
        lock(&self.shared.kept).remove(receipt)
    }

    /// Whether the lease was found to be lost; asked once.
    pub(super) fn is_lost(&self, receipt: &Receipt) -> bool {
        lock(&self.shared.lost).remove(receipt)
    }

    /// Cancels all handlers, without giving up their leases.
    pub(super) fn cancel_all(&self) {
        for kept in lock(&self.shared.kept).values() {
            kept.cancelled.cancel();
        }
    }

    pub(super) fn count(&self, queue: usize, became: Became) {
        let counts = &self.shared.counts[queue];
        let count = match became {
            Became::Completed => &counts.completed,
            Became::Retried(_) => &counts.retried,
            Became::Failed => &counts.failed,
            Became::Released => &counts.released,
            Became::Lost => &counts.lost,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> Report {
        let all = self.shared.counts.iter().map(Counts::report);
        all.fold(Report::default(), |sum, one| Report {
            completed: sum.completed + one.completed,
            retried: sum.retried + one.retried,
            failed: sum.failed + one.failed,
            released: sum.released + one.released,
            lost: sum.lost + one.lost,
        })
    }

    /// Stops, and writes the worker's last record.
    pub(super) async fn stop(&self) {
        self.shared.stop.cancel();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // Joining blocks, and a heartbeat under way may take its time.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    async fn beat(&self) {
        let remote = self.queues.iter().all(|(queue, _)| queue.capabilities().remote);
        let record_every = if remote { RECORD_EVERY.1 } else { RECORD_EVERY.0 };
        let mut recorded: Option<Duration> = None;
        while !self.stop.is_cancelled() {
            let now = self.env.monotonic();
            if recorded.is_none_or(|at| now.saturating_sub(at) >= record_every) {
                self.record(None).await;
                recorded = Some(now);
            }
            self.renew_due().await;
            let next_beat =
                lock(&self.kept).values().map(|kept| kept.renewed + self.every(kept)).min();
            let next = recorded.unwrap_or_default() + record_every;
            let next = next_beat.map_or(next, |beat| beat.min(next));
            let pause = next.saturating_sub(self.env.monotonic()).max(Duration::from_millis(1));
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.added.notified() => {}
                () = self.env.clock().sleep(pause) => {}
            }
        }
        self.record(Some(self.env.clock().wall())).await;
    }

    fn every(&self, kept: &Kept) -> Duration {
        self.queues[kept.queue].1
    }

    async fn renew_due(&self) {
        let now = self.env.monotonic();
        for (index, (queue, every)) in self.queues.iter().enumerate() {
            let due: Vec<Receipt> = {
                let kept = lock(&self.kept);
                let due = kept.iter().filter(|(_, kept)| {
                    kept.queue == index && now.saturating_sub(kept.renewed) >= *every
                });
                due.map(|(receipt, _)| receipt.clone()).collect()
            };
            if !due.is_empty() {
                let answers = queue.heartbeat(due.clone()).await;
                self.take_note(now, *every, due.into_iter().zip(answers));
            }
        }
    }

    /// What became of renewals begun at `now`.
    fn take_note(
        &self,
        now: Duration,
        every: Duration,
        answers: impl Iterator<Item = (Receipt, Result<Duration>)>,
    ) {
        let mut kept = lock(&self.kept);
        for (receipt, answer) in answers {
            // Finished meanwhile: whatever the answer says, it is about a task that is done with.
            let Some(lease) = kept.get_mut(&receipt) else { continue };
            match answer {
                Ok(_) => lease.renewed = now,
                Err(error) if is_lost(&error) => {
                    tracing::warn!(key = %receipt.key(), %error, "lease lost; its handler is cancelled");
                    lease.cancelled.cancel();
                    kept.remove(&receipt);
                    lock(&self.lost).insert(receipt);
                }
                Err(error) => {
                    tracing::warn!(key = %receipt.key(), %error, "heartbeat failed; trying again");
                    // A tenth of the way: often enough to get through before the lease runs out.
                    lease.renewed = now.saturating_sub(every.mul_f64(0.9));
                }
            }
        }
    }

    async fn record(&self, stopped_at: Option<Timestamp>) {
        for (index, (queue, _)) in self.queues.iter().enumerate() {
            let report = self.counts[index].report();
            let record = WorkerRecord {
                worker_id: queue.worker_id().to_owned(),
                host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started_at: self.started_at,
                seen_at: None,
                stopped_at,
                concurrency: self.concurrency,
                running: lock(&self.kept).values().filter(|kept| kept.queue == index).count(),
                completed: report.completed,
                retried: report.retried,
                failed: report.failed,
                released: report.released,
                lost: report.lost,
                requests: self.meter.counts(),
            };
            match queue.put_worker(record).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                Err(error) => tracing::warn!(%error, "cannot write the worker's record"),
            }
        }
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted)
}
