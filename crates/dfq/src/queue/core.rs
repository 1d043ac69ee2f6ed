//! A queue on a tree: what the verbs share, and where their calls run.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;

use super::discover::{Discovery, Note};
use super::drafts::Drafts;
use super::floors::Listed;
use super::hold::Held;
use super::known::Known;
use super::merge::Nodes;
use super::open::resolve_settings;
use super::store_clock::StoreClock;
use super::strategy::Strategy;
use super::trust::Trust;
use super::watch::Heard;
use super::{
    Answers, Cancelled, Capabilities, Detail, ListCursor, ListPage, MoveClaim, Nack, Nacked,
    Paused, PollRequest, Polled, Problem, Purge, Purged, Pushed, Queue, Release, Stats, TaskView,
    Unlocked, WorkerRecord,
};
use crate::clock::{Env, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Names, Shard};
use crate::model::{
    Durability, Generation, Layout, Lease, NewTask, Outcome, Receipt, Settings, TaskId, TaskKey,
};
use crate::options::OpenOptions;
use crate::planted::{self, Planted};
use crate::queue::OUTCOMES;
use crate::store::Tree;

/// A [`Queue`] on any [`Tree`]. Clones share everything.
///
/// Inside a tokio runtime, calls on a store that blocks are moved to the runtime's blocking threads,
/// a whole batch at a time. Outside one they run on the caller's thread, so that a program without a
/// runtime can simply block on them.
pub struct TreeQueue<T: Tree> {
    pub(super) core: Arc<Core<T>>,
}

impl<T: Tree> Clone for TreeQueue<T> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

/// What all verbs share.
pub(super) struct Core<T: Tree> {
    pub(super) tree: T,
    pub(super) env: Env,
    pub(super) settings: Settings,
    pub(super) strategy: Strategy,
    pub(super) trust: Trust,
    pub(super) worker_id: String,
    pub(super) clock: Mutex<StoreClock>,
    pub(super) held: Mutex<BTreeMap<Receipt, Arc<Held<T>>>>,
    pub(super) notes: Mutex<Vec<Note>>,
    pub(super) drafts: Mutex<Drafts<T>>,
    pub(super) known: Mutex<Known>,
    pub(super) discovery: tokio::sync::Mutex<Discovery<T::Cursor>>,
    /// Tasks that this process is trying to claim.
    pub(super) trying: Mutex<BTreeSet<TaskKey>>,
    /// Shards at which somebody else was met.
    pub(super) contested: Mutex<Vec<Shard>>,
    /// Locked while a page is being listed.
    pub(super) surveying: tokio::sync::Mutex<()>,
    /// What was heard of other workers' looks.
    pub(super) heard: Mutex<Heard>,
    /// This handle has a worker's record, so others count on it.
    pub(super) enrolled: AtomicBool,
    /// This process may not remove records.
    pub(super) purge_denied: AtomicBool,
    /// The files of floors of each shard, as they were when it last changed.
    pub(super) floors: Mutex<BTreeMap<Shard, Listed>>,
    /// Leases that this process has created and could not withdraw.
    pub(super) strays: Mutex<Vec<(T::TaskDir, Lease)>>,
    /// The mark of `cancel` and `unlock` as it was when holders last looked, once they have.
    pub(super) recall: Mutex<Option<Option<u64>>>,
    /// How often it has changed since.
    pub(super) recalls: AtomicU64,
    /// What is known of the nodes of a synced queue; and whether this handle merges, and so may end damaged tasks.
    pub(super) nodes: Mutex<Nodes>,
    pub(super) merges: AtomicBool,
}

impl<T: Tree> TreeQueue<T> {
    /// Opens the queue on `tree`, or makes it if the options say so.
    pub async fn open(tree: T, options: OpenOptions) -> Result<Self> {
        let mut settings = resolve_settings(&tree, &options).await?;
        if let Some(max_attempts) = options.max_attempts {
            settings.max_attempts = max_attempts;
            settings.check()?;
        }
        let made_up = || format!("{}-{:08x}", options.env.host(), options.env.next_u64() as u32);
        let core = Core {
            worker_id: options.worker_id.clone().unwrap_or_else(made_up),
            known: Mutex::new(Known::new(options.env.monotonic())),
            discovery: tokio::sync::Mutex::new(Discovery::new(settings.layout)),
            trying: Mutex::default(),
            contested: Mutex::default(),
            surveying: tokio::sync::Mutex::default(),
            heard: Mutex::default(),
            enrolled: AtomicBool::new(false),
            purge_denied: AtomicBool::new(false),
            recall: Mutex::default(),
            recalls: AtomicU64::new(0),
            nodes: Mutex::default(),
            merges: AtomicBool::new(false),
            strays: Mutex::default(),
            floors: Mutex::default(),
            strategy: Strategy::of(tree.properties(), &settings),
            tree,
            trust: Trust::new(options.allow_unsafe),
            env: options.env,
            settings,
            clock: Mutex::default(),
            held: Mutex::default(),
            notes: Mutex::default(),
            drafts: Mutex::default(),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// The tree.
    pub fn tree(&self) -> &T {
        &self.core.tree
    }

    /// Where a batch of calls runs; see [`TreeQueue`].
    async fn run<R, F>(&self, verb: impl FnOnce(Arc<Core<T>>) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        let work = verb(Arc::clone(&self.core));
        let env = &self.core.env;
        if !(self.core.tree.properties().blocking && env.is_running()) {
            return work.await;
        }
        env.spawn_blocking(work).result().await
    }
}

impl<T: Tree> Core<T> {
    /// What the store's clock shows, or a little less.
    pub(super) async fn now(&self) -> Result<Timestamp> {
        let known = {
            let clock = lock(&self.clock);
            let now = self.env.monotonic();
            if clock.wants_sample(now, self.strategy.looks.clock_life) {
                None
            } else {
                clock.at(now)
            }
        };
        match known {
            Some(now) => Ok(now),
            None => self.sample_clock().await,
        }
    }

    /// Reads the store's clock afresh.
    pub(super) async fn sample_clock(&self) -> Result<Timestamp> {
        let asked = self.env.monotonic();
        let store = self.tree.now().await?;
        let tick = match self.strategy.looks.clock_is_rounded {
            true => self.tree.time_resolution(),
            false => Duration::ZERO,
        };
        lock(&self.clock).sample(store, asked, self.env.monotonic(), tick);
        Ok(store)
    }

    /// What the store's clock shows, for a process that only looks: it writes nothing if it can be had without, and
    /// may not be allowed to write.
    pub(super) async fn now_for_onlookers(&self) -> Timestamp {
        let mono = self.env.monotonic();
        if let Some((told, at)) = self.tree.told_time() {
            return told.saturating_add(mono.saturating_sub(at)).unwrap_or(told);
        }
        self.now_or_wall().await
    }

    /// What the store's clock shows; this machine's for a process that may not write there.
    pub(super) async fn now_or_wall(&self) -> Timestamp {
        match self.now().await {
            Ok(now) => now,
            Err(_) => self.env.clock().wall(),
        }
    }

    /// Whether an error tells of one file or folder, and not of the store. On a disk a bad sector can be told from
    /// a bad disk: by asking it something else.
    pub(super) async fn is_local(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Damaged | ErrorKind::Denied => true,
            ErrorKind::Unavailable => {
                self.strategy.looks.elsewhere_after_a_failure && self.sample_clock().await.is_ok()
            }
            _ => false,
        }
    }

    /// The same for those who only look: in a bucket they may not be allowed to see anything.
    pub(super) async fn is_bad_itself(&self, error: &Error) -> bool {
        let may_see_nothing = !self.strategy.looks.elsewhere_after_a_failure;
        !(may_see_nothing && error.kind() == ErrorKind::Denied) && self.is_local(error).await
    }

    /// How many calls to the store are worth having under way at once, for one verb.
    pub(super) fn width(&self) -> usize {
        self.strategy.looks.at_once
    }

    /// Makes calls, as many at once as are worth it; answers in order with those that had an answer.
    pub(super) async fn in_width<R, F>(&self, calls: Vec<F>) -> Result<Vec<R>>
    where
        F: Future<Output = Result<Option<R>>>,
    {
        let answers = futures::stream::iter(calls).buffered(self.width());
        answers.try_filter_map(|answer| std::future::ready(Ok(answer))).try_collect().await
    }

    /// The same for calls that each answer for themselves.
    pub(super) async fn each<R, F>(&self, calls: Vec<F>) -> Vec<R>
    where
        F: Future<Output = R>,
    {
        futures::stream::iter(calls).buffered(self.width()).collect().await
    }

    pub(super) fn durable(&self) -> bool {
        self.settings.durability == Durability::Durable
    }

    pub(super) fn layout(&self) -> Layout {
        self.settings.layout
    }

    pub(super) fn names(&self) -> Names {
        Names(self.settings.layout)
    }

    pub(super) fn task_dir(&self, key: &TaskKey) -> String {
        self.names().task_dir(key)
    }

    pub(super) fn record_path(&self, outcome: Outcome, key: &TaskKey) -> String {
        self.names().record_path(outcome, key)
    }

    /// Where the record of a task is, if it has one: completed first.
    pub(super) fn record_paths(&self, key: &TaskKey) -> [String; 2] {
        OUTCOMES.map(|outcome| self.record_path(outcome, key))
    }
}

fn alike<T>(count: usize, error: Error) -> Answers<T> {
    (0..count).map(|_| Err(error.clone())).collect()
}

/// Limits what one call may ask for.
const MAX_BATCH: usize = 10_000;

fn oversized(count: usize) -> Option<Error> {
    (count > MAX_BATCH).then(|| {
        Error::invalid(format!("a batch of {count} is too large, the limit is {MAX_BATCH}"))
    })
}

#[async_trait]
impl<T: Tree> Queue for TreeQueue<T> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            provider: self.core.tree.properties().provider,
            inspect: true,
            operate: true,
            release: true,
            deduplicates: true,
            drops_doubles_for: None,
            pause: true,
            history: true,
            schemas: true,
            max_delay: None,
            remote: self.core.tree.properties().remote,
            max_lease: None,
            heartbeats_together: 1,
        }
    }

    fn settings(&self) -> &Settings {
        &self.core.settings
    }

    fn address(&self) -> &str {
        &self.core.tree.properties().address
    }

    fn worker_id(&self) -> &str {
        &self.core.worker_id
    }

    fn heartbeat_every(&self, lease: Duration) -> Duration {
        (lease / 3).min(self.core.tree.properties().heartbeat_every)
    }

    async fn push(&self, tasks: Vec<NewTask>) -> Answers<Pushed> {
        if let Some(error) = oversized(tasks.len()) {
            return alike(tasks.len(), error);
        }
        self.run(|core| async move {
            match core.check_trusted().await {
                Ok(()) => core.push(tasks).await,
                Err(error) => alike(tasks.len(), error),
            }
        })
        .await
    }

    async fn poll(&self, request: PollRequest) -> Result<Polled> {
        if let Some(error) = oversized(request.max) {
            return Err(error);
        }
        self.run(|core| async move {
            core.check_claims()?;
            core.check_trusted().await?;
            core.poll(&request).await
        })
        .await
    }

    async fn close(&self) {
        let flushed = self.run(|core| async move { core.tree.flush().await }).await;
        if let Err(error) = flushed {
            tracing::warn!(%error, "finished tasks not cleaned up yet");
        }
    }

    async fn wait(&self, at_most: Duration) {
        let core = &self.core;
        let timeout = core.env.clock().sleep(at_most);
        tokio::select! {
            biased;
            () = core.tree.changed() => {}
            () = timeout => {}
        }
    }

    async fn heartbeat(&self, receipts: Vec<Receipt>) -> Answers<Duration> {
        self.run(|core| async move { core.heartbeat(receipts).await }).await
    }

    async fn recalled(&self) -> Result<bool> {
        self.run(|core| async move { core.recalled().await }).await
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Answers<()> {
        if let Some(error) = oversized(receipts.len()) {
            return alike(receipts.len(), error);
        }
        self.run(|core| async move { core.ack(receipts).await }).await
    }

    async fn nack(&self, nacks: Vec<Nack>) -> Answers<Nacked> {
        self.run(|core| async move { core.nack(nacks).await }).await
    }

    async fn fail(&self, failures: Vec<(Receipt, String)>) -> Answers<()> {
        self.run(|core| async move { core.fail(failures).await }).await
    }

    async fn release(&self, releases: Vec<Release>) -> Answers<()> {
        self.run(|core| async move { core.release(releases).await }).await
    }

    async fn claim_to_move(&self, tasks: Vec<TaskView>, lease: Duration) -> Answers<MoveClaim> {
        self.run(|core| async move {
            let allowed = match core.check_claims() {
                Ok(()) => core.check_trusted().await,
                refused => refused,
            };
            match allowed {
                Ok(()) => core.claim_to_move(tasks, lease).await,
                Err(error) => alike(tasks.len(), error),
            }
        })
        .await
    }

    async fn moved(&self, departures: Vec<(Receipt, String)>) -> Answers<()> {
        self.run(|core| async move { core.moved(departures).await }).await
    }

    async fn tidy(&self) -> Result<()> {
        self.run(|core| async move { core.tidy().await }).await
    }

    async fn release_unrun(&self, receipts: Vec<Receipt>) -> Answers<()> {
        self.release(receipts.into_iter().map(Release::now).collect()).await
    }

    async fn cancel(&self, ids: Vec<TaskId>, reason: String) -> Answers<Cancelled> {
        self.run(|core| async move { core.cancel(ids, reason).await }).await
    }

    async fn unlock(&self, ids: Vec<TaskId>) -> Answers<Unlocked> {
        if let Err(error) = self.core.check_claims() {
            return alike(ids.len(), error);
        }
        self.run(|core| async move { core.unlock(ids).await }).await
    }

    async fn retry(&self, ids: Vec<TaskId>) -> Answers<Pushed> {
        self.run(|core| async move { core.retry(ids).await }).await
    }

    async fn pause(&self, reason: Option<String>) -> Result<()> {
        self.run(|core| async move { core.pause(reason).await }).await
    }

    async fn resume(&self) -> Result<()> {
        self.run(|core| async move { core.resume().await }).await
    }

    async fn paused(&self) -> Result<Option<Paused>> {
        self.run(|core| async move { core.paused().await }).await
    }

    async fn purge(&self, purge: Purge) -> Result<Purged> {
        self.run(|core| async move { core.purge(purge).await }).await
    }

    async fn now(&self) -> Timestamp {
        self.run(|core| async move { core.now_for_onlookers().await }).await
    }

    async fn peek(&self, max: usize) -> Result<Vec<TaskView>> {
        self.run(|core| async move { core.peek(max).await }).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<TaskView>> {
        self.run(|core| async move { core.get(&id).await }).await
    }

    async fn list(&self, from: Option<ListCursor>) -> Result<ListPage> {
        self.run(|core| async move { core.list(from).await }).await
    }

    async fn stats(&self, detail: Detail) -> Result<Stats> {
        self.run(|core| async move { core.stats(detail).await }).await
    }

    async fn check(&self, repair: bool) -> Result<Vec<Problem>> {
        self.run(|core| async move { core.check(repair).await }).await
    }

    async fn put_worker(&self, record: WorkerRecord) -> Result<()> {
        self.run(|core| async move { core.put_worker(&record).await }).await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>> {
        self.run(|core| async move { core.workers().await }).await
    }
}

impl<T: Tree> std::fmt::Debug for TreeQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TreeQueue({})", self.core.tree.properties().address)
    }
}

/// A delivery's fencing token: lives first, then attempts. Not the count of all attempts so far: a
/// life that a stalled worker ended does not know of those that were handed out after its own, and
/// the next life would give their tokens away a second time.
pub(crate) fn fence(generation: Generation, attempt: u32) -> u64 {
    if planted::is(Planted::FenceWithoutLife) {
        return u64::from(attempt);
    }
    (u64::from(generation.saturating_sub(1)) << 32) | u64::from(attempt)
}

#[cfg(test)]
mod tests {
    use super::fence;

    #[test]
    fn a_new_life_has_a_higher_fence_than_any_attempt_of_the_last() {
        assert_eq!([fence(1, 1), fence(1, 2)], [1, 2]);
        assert!(fence(1, u32::MAX) < fence(2, 1));
        assert!(fence(2, 7) < fence(2, 8));
    }
}
