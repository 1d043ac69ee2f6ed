//! The heartbeat: a thread with a runtime of its own, so that nothing a handler does to the worker's
//! runtime can keep leases from being renewed. It also keeps the worker's record fresh.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Report, no_thread};
use crate::clock::{Env, lock};
use crate::error::{ErrorKind, Result};
use crate::model::Receipt;
use crate::queue::{Queue, WorkerRecord};

/// How often a worker says that it is alive.
const RECORD_EVERY: Duration = Duration::from_secs(15);

/// What a worker has done so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) completed: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// A lease that is kept.
#[derive(Clone)]
pub(super) struct Kept {
    cancelled: CancellationToken,
    /// When it was last renewed, on the monotonic clock.
    renewed: Duration,
}

struct Shared {
    queue: Arc<dyn Queue>,
    env: Env,
    every: Duration,
    concurrency: usize,
    started_at: Timestamp,
    kept: Mutex<HashMap<Receipt, Kept>>,
    lost: Mutex<std::collections::HashSet<Receipt>>,
    counts: Counts,
    stop: CancellationToken,
    /// A lease was added that may have to be renewed before the next one known.
    added: tokio::sync::Notify,
}

/// Renews leases until dropped.
pub(super) struct Heart {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Heart {
    pub(super) fn start(
        queue: Arc<dyn Queue>,
        env: Env,
        every: Duration,
        concurrency: usize,
    ) -> Result<Self> {
        let started_at = env.clock().wall();
        let shared = Arc::new(Shared {
            queue,
            env,
            every,
            concurrency,
            started_at,
            kept: Mutex::default(),
            lost: Mutex::default(),
            counts: Counts::default(),
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
            _ => Ok(Self { shared, thread: Some(thread) }),
        }
    }

    /// Renews this lease from now on; the token is cancelled when it is lost. It was given after
    /// `since`.
    pub(super) fn keep(&self, receipt: &Receipt, since: Duration) -> CancellationToken {
        let kept = Kept { cancelled: CancellationToken::new(), renewed: since };
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

    pub(super) fn count(&self, which: impl FnOnce(&Counts) -> &AtomicU64) {
        which(&self.shared.counts).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> Report {
        self.shared.report()
    }

    /// Stops, and writes the worker's last record.
    pub(super) async fn stop(&mut self) {
        self.shared.stop.cancel();
        if let Some(thread) = self.thread.take() {
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
        let mut recorded: Option<Duration> = None;
        while !self.stop.is_cancelled() {
            let now = self.env.monotonic();
            if recorded.is_none_or(|at| now.saturating_sub(at) >= RECORD_EVERY) {
                self.record(None).await;
                recorded = Some(now);
            }
            self.renew_due().await;
            let next_beat = lock(&self.kept).values().map(|kept| kept.renewed + self.every).min();
            let next = recorded.unwrap_or_default() + RECORD_EVERY;
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

    async fn renew_due(&self) {
        let now = self.env.monotonic();
        let due: Vec<Receipt> = {
            let kept = lock(&self.kept);
            let due =
                kept.iter().filter(|(_, kept)| now.saturating_sub(kept.renewed) >= self.every);
            due.map(|(receipt, _)| receipt.clone()).collect()
        };
        if due.is_empty() {
            return;
        }
        let answers = self.queue.heartbeat(due.clone()).await;
        let mut kept = lock(&self.kept);
        for (receipt, answer) in due.into_iter().zip(answers) {
            // Finished meanwhile: whatever the answer says, it is about a task that is done with.
            let Some(lease) = kept.get_mut(&receipt) else { continue };
            match answer {
                Ok(_) => lease.renewed = now,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted
                    ) =>
                {
                    tracing::warn!(key = %receipt.key(), %error, "lease lost; its handler is cancelled");
                    lease.cancelled.cancel();
                    kept.remove(&receipt);
                    lock(&self.lost).insert(receipt);
                }
                Err(error) => {
                    tracing::warn!(key = %receipt.key(), %error, "heartbeat failed; trying again");
                    // A tenth of the way: often enough to get through before the lease runs out.
                    lease.renewed = now.saturating_sub(self.every.mul_f64(0.9));
                }
            }
        }
    }

    async fn record(&self, stopped_at: Option<Timestamp>) {
        let report = self.report();
        let record = WorkerRecord {
            worker_id: self.queue.worker_id().to_owned(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            seen_at: None,
            stopped_at,
            concurrency: self.concurrency,
            running: lock(&self.kept).len(),
            completed: report.completed,
            retried: report.retried,
            failed: report.failed,
            released: report.released,
            lost: report.lost,
        };
        match self.queue.put_worker(record).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => tracing::warn!(%error, "cannot write the worker's record"),
        }
    }

    fn report(&self) -> Report {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        Report {
            completed: read(&counts.completed),
            retried: read(&counts.retried),
            failed: read(&counts.failed),
            released: read(&counts.released),
            lost: read(&counts.lost),
        }
    }
}
