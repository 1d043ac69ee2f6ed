//! What is left of finished tasks, removed many at a time.
//!
//! Invariant: leases go only once the removal of their tasks is confirmed. A task without its leases
//! would be done again; leases without a task are garbage. A process that dies with a full bin leaves tasks
//! that have a record. The next process that meets them removes them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::objects::Objects;
use super::removed_until;
use crate::clock::{Env, lock};
use crate::error::Result;
use crate::planted::{self, Planted};

/// Taken out when it holds so many tasks, or is so old: what one request removes at the most, and how
/// long a finished task may look like a pending one.
const FULL: usize = 1000;
const OLD: Duration = Duration::from_millis(500);

/// What is left of a task.
struct Remains {
    task: String,
    leases: Vec<String>,
    /// The monotonic time at which it was put off.
    since: Duration,
}

/// Tasks to be removed, with their leases.
#[derive(Default)]
struct Bin {
    tasks: Vec<Remains>,
    /// When somebody set out to empty it in a while, unless that has been done.
    collected: Option<Duration>,
}

/// The bin of one store.
pub(super) struct Rubbish<O> {
    objects: Arc<O>,
    env: Env,
    bin: Arc<Mutex<Bin>>,
    /// Locked while it is being taken out, so that a flush waits for what is under way.
    emptying: Arc<tokio::sync::Mutex<()>>,
}

impl<O: Objects> Rubbish<O> {
    pub(super) fn new(objects: Arc<O>, env: Env) -> Self {
        Self { objects, env, bin: Arc::default(), emptying: Arc::default() }
    }

    fn share(&self) -> Self {
        Self {
            objects: Arc::clone(&self.objects),
            env: self.env.clone(),
            bin: Arc::clone(&self.bin),
            emptying: Arc::clone(&self.emptying),
        }
    }

    /// A task that has finished, and its leases.
    pub(super) fn add(&self, task: String, leases: Vec<String>) {
        let since = self.env.monotonic();
        lock(&self.bin).tasks.push(Remains { task, leases, since });
    }

    /// Sees to it that the bin is emptied before long, at once if it is full. Where nothing runs in the
    /// background, it is emptied now.
    pub(super) async fn empty_bin_in_time(&self) {
        let full = {
            let mut bin = lock(&self.bin);
            let (full, now) = (bin.tasks.len() >= FULL, self.env.monotonic());
            // The task that set out may have ended with its runtime.
            let on_the_way = bin.collected.is_some_and(|at| now.saturating_sub(at) < OLD * 5);
            if !full && on_the_way {
                return;
            }
            bin.collected = Some(now);
            full
        };
        if !self.env.is_running() {
            let _ = self.empty_bin().await;
            return;
        }
        let later = self.share();
        self.env.spawn(async move {
            if !full {
                later.env.clock().sleep(OLD).await;
            }
            if let Err(error) = later.empty_bin().await {
                tracing::warn!(%error, "finished tasks not cleaned up yet");
            }
        });
    }

    /// Empties the bin. What cannot be removed now is left to the next process that meets it.
    pub(super) async fn empty_bin(&self) -> Result<()> {
        let _alone = self.emptying.lock().await;
        let tasks = {
            let mut bin = lock(&self.bin);
            bin.collected = None;
            std::mem::take(&mut bin.tasks)
        };
        let now = self.env.monotonic();
        let tasks: Vec<Remains> =
            tasks.into_iter().filter(|it| now < removed_until(it.since)).collect();
        let mut emptied = Ok(());
        for some in tasks.chunks(FULL) {
            emptied = self.remove(some).await.and(emptied);
        }
        emptied
    }

    async fn remove(&self, some: &[Remains]) -> Result<()> {
        let oldest = some.iter().map(|it| it.since).min().unwrap_or_default();
        let deadline = removed_until(oldest);
        let tasks: Vec<String> = some.iter().map(|it| it.task.clone()).collect();
        let leases: Vec<String> = some.iter().flat_map(|it| it.leases.clone()).collect();
        if planted::is(Planted::RubbishLeasesFirst) {
            self.objects.remove(&leases, deadline).await?;
        }
        self.objects.remove(&tasks, deadline).await?;
        for some in leases.chunks(FULL) {
            self.objects.remove(some, deadline).await?;
        }
        Ok(())
    }
}
