//! The places of a synced queue: each node's folder, and the hub.
//!
//! Invariant: what nodes share is the hub and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dfq::clock::Clock;
use dfq::model::{Backoff, Settings, Synced};
use dfq::store::fs::Filesystem;
use dfq::store::keys::KeyTree;
use dfq::store::memory::Memory;
use dfq::store::objects::{List, Objects as _};
use dfq::{Env, OpenOptions, Result, TreeQueue};
use jiff::SignedDuration;

use super::plan::{LEASE, PERIOD, Plan};
use crate::bucket::{Bucket, SimObjects, Traits as BucketTraits, Weather};
use crate::disk::{Disk, DiskSys, Mount, Order, Traits as DiskTraits};
use crate::gate::{Door, Troubles};
use crate::history::{Event, History, Witness};
use crate::node::{self, Node};
use crate::plan::Trouble;
use crate::world::{Pid, World};

/// A node's folder, as the library sees it.
pub(super) type Folder = TreeQueue<Filesystem<DiskSys>>;

/// The hub, as the library sees it.
pub(super) type Hub = TreeQueue<KeyTree<SimObjects>>;

/// One node.
pub(super) struct House {
    pub node: Arc<Node>,
    pub disk: Disk,
    /// Until when its supervisor does not get through.
    pub offline_until: Mutex<Duration>,
    /// What happens to its supervisor, and after how many calls from its start.
    pub trouble: Mutex<Option<(u64, Trouble)>>,
    pub supervisor: Mutex<Option<Pid>>,
    /// It has done all its steps.
    pub is_over: AtomicBool,
    /// Its supervisor has seen that all is calm.
    pub is_quiet: AtomicBool,
}

/// What was promised, and what has come of it. Tasks are told apart by a number in their payloads.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Pushes that were answered: the number, the id, and whether they were delayed.
    pub pushed: Vec<(i64, String, bool)>,
    /// Done, and the answer was that it is.
    pub acked: BTreeSet<i64>,
    /// Given up, and the answer was that it is; or there was a record of it at some time.
    pub ended: BTreeSet<i64>,
    /// Started again.
    pub retried: BTreeSet<i64>,
    /// Spoiled, and there was no other copy.
    pub spoiled: BTreeSet<i64>,
    /// Spoiled, while the hub had a healthy copy.
    pub healed: BTreeSet<i64>,
    /// Ids of which there was a record at some time.
    pub recorded: BTreeSet<String>,
}

/// Everything that a run stands on.
pub(super) struct Town {
    pub plan: Plan,
    pub world: Arc<World>,
    pub history: Arc<History>,
    pub houses: Vec<House>,
    pub hub: Bucket,
    pub accounts: Mutex<Accounts>,
    pub calm: AtomicBool,
    pub passes: AtomicU64,
    /// Which processes are users, and of which node.
    pub users: Mutex<BTreeMap<Pid, usize>>,
    /// When passes came to their ends, and whose they were.
    pub ended_passes: Mutex<Vec<(Duration, Pid)>>,
    /// Another queue, to which tasks are moved.
    elsewhere: Memory,
    weather: Arc<Mutex<Weather>>,
    next: AtomicI64,
}

impl Town {
    pub(super) fn new(plan: Plan, keeps_calls: bool) -> Arc<Self> {
        let world = World::new(plan.seed);
        let history = History::new(&world, keeps_calls);
        let steady = Node::new(&world, 0, SignedDuration::ZERO);
        let house = |(number, ahead): (usize, &SignedDuration)| {
            let drift = (world.chance() % 200) as i64 - 100;
            let node = Node::new(&world, drift, *ahead);
            let (server, clock) = (Arc::clone(&node), Arc::clone(&node));
            let witness = Witness { queue: number, history: Arc::clone(&history), server };
            let traits = DiskTraits {
                tick: Duration::from_millis(4),
                has_unnamed: true,
                has_links: true,
                has_rename_new: true,
                capacity: None,
                order: Order::Journal,
                write_back: None,
            };
            let disk = Disk::new(traits, world.chance(), move || clock.wall(), Arc::new(witness));
            House {
                node,
                disk,
                offline_until: Mutex::default(),
                trouble: Mutex::default(),
                supervisor: Mutex::default(),
                is_over: AtomicBool::new(false),
                is_quiet: AtomicBool::new(false),
            }
        };
        let houses: Vec<House> = plan.ahead.iter().enumerate().map(house).collect();
        let (server, clock) = (Arc::clone(&steady), Arc::clone(&steady));
        let witness = Witness { queue: houses.len(), history: Arc::clone(&history), server };
        let traits = BucketTraits { address: "s3://sim/hub".to_owned(), ..BucketTraits::s3() };
        let network = node::env(&world, &steady, Pid::WORLD);
        let elsewhere = Memory::new(network.clone());
        let hub = Bucket::new(traits, network, move || clock.wall(), Arc::new(witness));
        let mut weather = Weather::calm();
        if plan.stormy {
            let part = 0.02;
            weather = Weather {
                lost: part,
                answer_lost: part,
                late: part,
                doubled: part,
                refused: part,
                conflict: part,
                ..Weather::stormy()
            };
            weather.denied.clear();
        }
        let (weather, next) = (Arc::new(Mutex::new(weather)), AtomicI64::new(1));
        let (accounts, calm) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self {
            plan,
            world,
            history,
            houses,
            hub,
            accounts,
            calm,
            passes: AtomicU64::new(0),
            users: Mutex::default(),
            ended_passes: Mutex::default(),
            elsewhere,
            weather,
            next,
        })
    }

    pub(super) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        lock(&self.accounts)
    }

    /// A number that no other task has.
    pub(super) fn next(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Nothing goes wrong any more.
    pub(super) fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
        *lock(&self.weather) = Weather::calm();
    }

    pub(super) fn note(&self, text: impl Into<String>) {
        self.history.happened(Event::Note(text.into()));
    }

    /// What the places of the queue are made with.
    pub(super) fn settings(hub: bool) -> Settings {
        Settings {
            lease: LEASE,
            max_attempts: 3,
            backoff: Backoff { base: Duration::from_secs(5), max: Duration::from_secs(40) },
            synced: Some(Synced { queue_id: "town".to_owned(), period: PERIOD, hub }),
            ..Settings::default()
        }
    }

    /// The door of a process, to which something happens after so many calls.
    pub(super) fn door(self: &Arc<Self>, pid: Pid, trouble: Option<(u64, Trouble)>) -> Arc<Door> {
        let ahead = trouble.into_iter().collect();
        let calm = Arc::new(AtomicBool::new(false));
        let town = Arc::clone(self);
        let on_kill = move || {
            let (world, town) = (Arc::clone(&town.world), Arc::clone(&town));
            world.act(world.now(), move |world| {
                town.history.happened(Event::Killed(pid));
                world.kill(pid);
            });
        };
        Arc::new(Door {
            world: Arc::clone(&self.world),
            history: Arc::clone(&self.history),
            pid,
            troubles: Troubles::new(ahead, Vec::new(), Vec::new(), calm),
            on_kill: Arc::new(on_kill),
            on_cut: Arc::new(|| {}),
        })
    }

    pub(super) async fn folder(
        self: &Arc<Self>,
        node: usize,
        door: &Arc<Door>,
        env: &Env,
    ) -> Result<Folder> {
        let sys =
            DiskSys::new(self.houses[node].disk.clone(), Mount::local(), Arc::clone(door) as _);
        let root = sys.root();
        let tree = Filesystem::with(sys, root, format!("/node-{node}"), env.clone(), true);
        TreeQueue::open(tree, options(env, door.pid, false)).await
    }

    pub(super) async fn hub(self: &Arc<Self>, door: &Arc<Door>, env: &Env) -> Result<Hub> {
        let tree = self.hub.sim_tree(env.clone(), Arc::clone(&self.weather), Arc::clone(door) as _);
        TreeQueue::open(tree, options(env, door.pid, true)).await
    }

    pub(super) async fn another_queue(
        &self,
        door: &Arc<Door>,
        env: &Env,
    ) -> Result<TreeQueue<Memory>> {
        let create = Some(Settings::default());
        let options = OpenOptions { create, ..options(env, door.pid, false) };
        TreeQueue::open(self.elsewhere.clone(), options).await
    }

    /// The tasks that are in the other queue by now.
    pub(super) fn moved(&self) -> Vec<Vec<u8>> {
        let read = async {
            let mut tasks = Vec::new();
            let part = self.elsewhere.list(List::below("")).next(usize::MAX).await?;
            for file in part.files.into_iter().filter(|file| file.name.ends_with("/task.json")) {
                tasks.extend(self.elsewhere.get(&file.name, None).await?.map(|got| got.bytes));
            }
            Ok::<_, dfq::Error>(tasks)
        };
        futures::executor::block_on(read).unwrap_or_default()
    }

    /// All that may have arrived in a node's folder: folders of tasks, and records.
    pub(super) fn arrivals(&self, node: usize) -> Vec<String> {
        let files = self.houses[node].disk.files().into_keys();
        let arrivals = files.filter_map(|path| match path.split_once('/')?.0 {
            "pending" | "scheduled" => path.strip_suffix("/task.json").map(str::to_owned),
            "completed" | "failed" => Some(path),
            _ => None,
        });
        arrivals.collect()
    }
}

fn options(env: &Env, pid: Pid, hub: bool) -> OpenOptions {
    OpenOptions {
        env: env.clone(),
        worker_id: Some(format!("{pid}")),
        create: Some(Town::settings(hub)),
        ..OpenOptions::default()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
