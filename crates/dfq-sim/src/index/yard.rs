//! What a run stands on: machines, the store, those who take part, and what was said.
//!
//! Invariant: what processes share is the store and nothing else. A process that was killed begins anew with the step
//! at which it was.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dfq::index::Index;
use dfq::store::Objects;
use dfq::store::fs::Filesystem;
use dfq::store::retrying::Retrying;
use dfq::{Env, Result};

use super::hands::Hands;
use super::plan::{Plan, Step};
use super::tape::{Overheard, Tape};
use crate::bucket::Weather;
use crate::disk::DiskSys;
use crate::gate::{Door, Troubles};
use crate::history::{Event, History};
use crate::node::{self, Node};
use crate::plan::{Fault, Store};
use crate::stage::{self, Kept};
use crate::world::{Pid, World};

/// How long it takes until a process is started again, or tries again to open the index.
const RESTART: Duration = Duration::from_secs(2);

/// What the index's key column is called.
pub(super) const KEY: &str = "key";

/// Where an actor is in its plan.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    pid: Option<Pid>,
    step: usize,
    over: bool,
}

/// Everything that a run stands on.
pub(super) struct Yard {
    pub(super) plan: Plan,
    pub(super) world: Arc<World>,
    pub(super) history: Arc<History>,
    pub(super) tape: Arc<Tape>,
    nodes: Vec<Arc<Node>>,
    kept: Kept,
    troubles: Vec<Arc<Troubles>>,
    progress: Mutex<Vec<Progress>>,
    weathers: Mutex<Vec<Arc<Mutex<Weather>>>>,
    calm: Arc<AtomicBool>,
    next: AtomicI64,
    handles: AtomicU64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Yard {
    pub(super) fn new(plan: Plan, keeps_calls: bool) -> Arc<Self> {
        let world = World::new(plan.seed);
        let history = History::new(&world, keeps_calls);
        let nodes: Vec<_> =
            plan.hosts.iter().map(|host| Node::new(&world, host.drift, host.ahead)).collect();
        let calm = Arc::new(AtomicBool::new(false));
        let kept = stage::kept(0, &plan.store, &world, &history, &nodes);
        let actors = 0..plan.actors.len();
        let troubles = actors.map(|actor| stage::troubles(&plan.faults, actor, &calm)).collect();
        let progress = Mutex::new(vec![Progress::default(); plan.actors.len()]);
        Arc::new(Self {
            plan,
            world,
            history,
            tape: Arc::default(),
            nodes,
            kept,
            troubles,
            progress,
            weathers: Mutex::default(),
            calm,
            next: AtomicI64::new(1),
            handles: AtomicU64::new(1),
        })
    }

    /// A number that no other record has.
    pub(super) fn next(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that no other handle has.
    pub(super) fn next_handle(&self) -> u64 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn note(&self, text: impl Into<String>) {
        self.history.happened(Event::Note(text.into()));
    }

    /// Nothing goes wrong any more.
    pub(super) fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
        self.history.happened(Event::Calm);
        for weather in lock(&self.weathers).iter() {
            *lock(weather) = Weather::calm();
        }
    }

    fn weather(&self) -> Arc<Mutex<Weather>> {
        let weather = match &self.plan.store {
            Store::Bucket(kind) if !self.calm.load(Ordering::Relaxed) => stage::weather_of(kind),
            _ => Weather::calm(),
        };
        let weather = Arc::new(Mutex::new(weather));
        lock(&self.weathers).push(Arc::clone(&weather));
        weather
    }

    /// The store, as a process on that machine uses it.
    pub(super) fn objects(
        self: &Arc<Self>,
        host: usize,
        door: &Arc<Door>,
        env: &Env,
    ) -> Arc<dyn Objects> {
        match &self.kept {
            Kept::Disk(disk, mounts) => {
                let mount = mounts[host].clone();
                let local = !mount.is_network();
                let sys = DiskSys::new(disk.clone(), mount, Arc::clone(door) as _);
                let root = sys.root();
                Arc::new(Filesystem::with(sys, root, "/index".to_owned(), env.clone(), local))
            }
            Kept::Bucket(bucket) => {
                let line = bucket.line(env.clone(), self.weather(), Arc::clone(door) as _);
                Arc::new(Retrying::new(line, env.clone()))
            }
        }
    }

    /// Opens the index in a process, as whoever runs on that machine.
    pub(super) async fn open(
        self: &Arc<Self>,
        host: usize,
        door: &Arc<Door>,
        env: &Env,
    ) -> Result<Index> {
        let objects = Overheard {
            inner: self.objects(host, door, env),
            tape: Arc::clone(&self.tape),
            world: Arc::clone(&self.world),
            pid: door.pid,
        };
        let name = format!("{}-{}", door.pid, env.next_u64() % 1000);
        Index::over(Arc::new(objects), env.clone(), Some(name), Some(KEY)).await
    }

    pub(super) fn is_in_bucket(&self) -> bool {
        matches!(self.kept, Kept::Bucket(_))
    }

    /// Everything that is in the store.
    pub(super) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        match &self.kept {
            Kept::Disk(disk, _) => disk.files(),
            Kept::Bucket(bucket) => bucket.files(),
        }
    }

    /// What a process on that machine sees of the world.
    pub(super) fn env(&self, host: usize, pid: Pid) -> Env {
        node::env(&self.world, &self.nodes[host], pid)
    }

    /// What the store's clock shows at a true time, if nobody has set it.
    pub(super) fn store_clock(&self, at: Duration) -> jiff::Timestamp {
        self.nodes[0].wall_at(at)
    }

    /// The door of a process for which nothing goes wrong.
    pub(super) fn healthy_door(&self, pid: Pid) -> Arc<Door> {
        Arc::new(Door {
            world: Arc::clone(&self.world),
            history: Arc::clone(&self.history),
            pid,
            troubles: Troubles::none(),
            on_kill: Arc::new(|| {}),
            on_cut: Arc::new(|| {}),
        })
    }

    fn door(self: &Arc<Self>, actor: usize, pid: Pid) -> Arc<Door> {
        let yard = Arc::clone(self);
        let on_kill = move || {
            let (world, yard) = (Arc::clone(&yard.world), Arc::clone(&yard));
            world.act(world.now(), move |_| yard.kill(actor));
        };
        let yard = Arc::clone(self);
        let on_cut = move || {
            let (world, yard) = (Arc::clone(&yard.world), Arc::clone(&yard));
            world.act(world.now(), move |_| yard.power_cut());
        };
        Arc::new(Door {
            world: Arc::clone(&self.world),
            history: Arc::clone(&self.history),
            pid,
            troubles: Arc::clone(&self.troubles[actor]),
            on_kill: Arc::new(on_kill),
            on_cut: Arc::new(on_cut),
        })
    }

    /// Whether all are through with their plans.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.progress).iter().all(|actor| actor.over)
    }

    /// Who is not, and where.
    pub(super) fn unfinished(&self) -> String {
        let progress = lock(&self.progress);
        let each = progress.iter().enumerate().filter(|(_, it)| !it.over);
        let each = each.map(|(actor, it)| format!("actor {actor} at step {}", it.step));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Starts an actor, or starts it again.
    pub(super) fn start(self: &Arc<Self>, actor: usize) {
        let pid = self.world.start_process();
        let host = self.plan.actors[actor].host;
        let step = {
            let mut progress = lock(&self.progress);
            progress[actor].pid = Some(pid);
            progress[actor].step
        };
        let role = format!("{pid} is actor {actor} on machine {host}, from step {step}");
        self.history.happened(Event::Started(role));
        let (yard, env) = (Arc::clone(self), self.env(host, pid));
        self.world.spawn(pid, Box::pin(async move { yard.play(actor, pid, env).await }));
    }

    fn kill(self: &Arc<Self>, actor: usize) {
        let Some(pid) = lock(&self.progress)[actor].pid.take() else { return };
        self.history.happened(Event::Killed(pid));
        self.world.kill(pid);
        let yard = Arc::clone(self);
        self.world.act(self.world.now() + RESTART, move |_| yard.start(actor));
    }

    /// The power of the machine that holds the directory fails.
    pub(super) fn power_cut(self: &Arc<Self>) {
        let Kept::Disk(disk, _) = &self.kept else { return };
        if self.calm.load(Ordering::Relaxed) {
            return;
        }
        if !self.plan.is_over_a_network() {
            (0..self.plan.actors.len()).for_each(|actor| self.kill(actor));
        }
        self.history.happened(Event::PowerCut);
        disk.power_cut(&mut || self.world.chance());
    }

    /// Sees to it that a fault comes about.
    pub(super) fn arrange(self: &Arc<Self>, fault: &Fault) {
        let yard = Arc::clone(self);
        match fault.clone() {
            // These are met at the door.
            Fault::Process(..) | Fault::At(..) | Fault::Refused(..) => {}
            Fault::PowerCut(at) => self.world.act(at, move |_| yard.power_cut()),
            Fault::Jump(host, at, by) => self.world.act(at, move |_| {
                if !yard.calm.load(Ordering::Relaxed) {
                    yard.history.happened(Event::Jumped(format!("machine {host} by {by:#}")));
                    yard.nodes[host].jump(by);
                }
            }),
            Fault::Suspend(host, at, lasts) => self.world.act(at, move |world| {
                let progress = lock(&yard.progress).clone();
                let actors = progress.iter().zip(&yard.plan.actors);
                for (pid, _) in actors
                    .filter(|(_, actor)| actor.host == host)
                    .filter_map(|(progress, actor)| Some((progress.pid?, actor)))
                {
                    yard.history.happened(Event::Stalled(pid, world.now() + lasts));
                    world.freeze(pid, world.now() + lasts);
                }
            }),
        }
    }

    async fn play(self: &Arc<Self>, actor: usize, pid: Pid, env: Env) {
        let plan = &self.plan.actors[actor];
        let door = self.door(actor, pid);
        let mut hands = Hands::new(self, &door, plan.host, &env);
        loop {
            let number = lock(&self.progress)[actor].step;
            let Some(step) = plan.steps.get(number) else { break };
            if *step == Step::Cut {
                // Whoever pulls the plug does not do it again when the power is back.
                lock(&self.progress)[actor].step += 1;
                (door.on_cut)();
                env.clock().sleep(Duration::from_millis(1)).await;
                continue;
            }
            while let Err(error) = hands.take(step).await {
                self.tape.failed(&error);
                self.note(format!("{pid} cannot go on: {error}"));
                env.clock().sleep(RESTART).await;
            }
            lock(&self.progress)[actor].step += 1;
        }
        lock(&self.progress)[actor] = Progress { pid: None, step: plan.steps.len(), over: true };
    }
}
