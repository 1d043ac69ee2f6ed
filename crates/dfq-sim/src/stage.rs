//! The stage of a run: its machines, its stores, and how a process opens a queue.
//!
//! Invariant: what processes share is the store and nothing else.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dfq::clock::Clock;
use dfq::meter::RequestKind;
use dfq::model::{Backoff, Layout, Settings};
use dfq::store::Folders;
use dfq::store::fs::Filesystem;
use dfq::{Env, OpenOptions, Queue, Result, TreeQueue};
use jiff::SignedDuration;

use crate::bucket::{Bucket, Denied, Traits as BucketTraits, Weather};
use crate::disk::{Disk, DiskSys, Mount, Order, Room, Traits as DiskTraits};
use crate::gate::{Door, Troubles};
use crate::history::{History, QueueNo, Witness};
use crate::node::{self, Node};
use crate::plan::{BucketKind, DiskKind, Fault, Plan, Store};
use crate::recorded::Recorded;
use crate::world::{Pid, World};

/// How many queues there are: tasks can be moved from the first to the second, and back.
const QUEUES: usize = 2;

/// Where one queue is kept.
pub enum Kept {
    /// In a directory, which each machine has mounted.
    Disk(Disk, Vec<Mount>),
    /// In a bucket.
    Bucket(Bucket),
}

/// Everything that a run stands on.
pub struct Stage {
    /// What is to happen.
    pub plan: Plan,
    /// Time.
    pub world: Arc<World>,
    /// What happened.
    pub history: Arc<History>,
    /// The machines.
    pub nodes: Vec<Arc<Node>>,
    /// The stores, by queue.
    pub kept: Vec<Kept>,
    /// What goes wrong, by actor.
    pub troubles: Vec<Arc<Troubles>>,
    calm: Arc<AtomicBool>,
    weathers: Mutex<Vec<Arc<Mutex<Weather>>>>,
    next_task: AtomicI64,
}

impl Stage {
    /// An empty stage.
    pub fn new(plan: Plan, keeps_calls: bool) -> Arc<Self> {
        let world = World::new(plan.seed);
        let history = History::new(&world, keeps_calls);
        let nodes: Vec<_> =
            plan.hosts.iter().map(|host| Node::new(&world, host.drift, host.ahead)).collect();
        let calm = Arc::new(AtomicBool::new(false));
        let kept =
            (0..QUEUES).map(|queue| kept(queue, &plan.store, &world, &history, &nodes)).collect();
        let troubles =
            (0..plan.actors.len()).map(|actor| troubles(&plan.faults, actor, &calm)).collect();
        let (weathers, next_task) = (Mutex::default(), AtomicI64::new(1));
        Arc::new(Self { plan, world, history, nodes, kept, troubles, calm, weathers, next_task })
    }

    /// A number that no other task has.
    pub fn next_task(&self) -> i64 {
        self.next_task.fetch_add(1, Ordering::Relaxed)
    }

    /// From here on nothing goes wrong any more, but for what is refused for ever.
    pub fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
        for weather in self.weathers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let mut weather = weather.lock().unwrap_or_else(PoisonError::into_inner);
            *weather = Weather { denied: weather.denied.clone(), ..Weather::calm() };
        }
        for kept in &self.kept {
            match kept {
                Kept::Disk(disk, _) => disk.set_capacity(None),
                Kept::Bucket(bucket) => bucket.list_promptly(),
            }
        }
    }

    /// Nothing goes wrong any more.
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// The settings of the queues.
    pub fn settings(&self) -> Settings {
        let plan = &self.plan;
        Settings {
            lease: plan.lease,
            max_attempts: plan.max_attempts,
            max_lost: plan.max_lost,
            backoff: Backoff { base: plan.backoff, max: plan.backoff * 4 },
            layout: if plan.flat { Layout::Flat } else { Layout::Sharded },
            ..Settings::default()
        }
    }

    fn weather(&self, kind: &BucketKind, refused: &[&'static str]) -> Arc<Mutex<Weather>> {
        let denied =
            |folder: &&str| Denied { kind: Some(RequestKind::Put), prefix: format!("{folder}/") };
        let denied = refused.iter().map(denied).collect();
        let mut weather = Weather { denied, ..weather_of(kind) };
        if self.calm.load(Ordering::Relaxed) {
            weather = Weather { denied: weather.denied, ..Weather::calm() };
        }
        let weather = Arc::new(Mutex::new(weather));
        self.weathers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&weather));
        weather
    }

    /// Opens a queue in a process, as whoever runs on that machine.
    pub async fn open(
        self: &Arc<Self>,
        queue: QueueNo,
        host: usize,
        door: &Arc<Door>,
        env: &Env,
        refused: &[&'static str],
    ) -> Result<Arc<dyn Queue>> {
        let options = OpenOptions {
            env: env.clone(),
            worker_id: Some(format!("{}-{}", door.pid, env.next_u64() % 1000)),
            create: Some(self.settings()),
            ..OpenOptions::default()
        };
        let inner: Arc<dyn Queue> = match (&self.kept[queue], &self.plan.store) {
            (Kept::Disk(disk, mounts), _) => {
                let mount = mounts[host].clone();
                let local = !mount.is_network();
                let sys = DiskSys::new(disk.clone(), mount, Arc::clone(door) as _);
                let root = sys.root();
                let address = format!("/queue-{queue}");
                let tree = Filesystem::with(sys, root, address, env.clone(), local);
                Arc::new(TreeQueue::open(tree, options).await?)
            }
            (Kept::Bucket(bucket), Store::Bucket(kind)) => {
                let weather = self.weather(kind, refused);
                let tree = bucket.sim_tree(env.clone(), weather, Arc::clone(door) as _);
                Arc::new(TreeQueue::open(tree, options).await?)
            }
            (Kept::Bucket(_), Store::Disk(_)) => unreachable!("a plan has one kind of store"),
        };
        let (history, node) = (Arc::clone(&self.history), Arc::clone(&self.nodes[host]));
        Ok(Arc::new(Recorded::new(
            inner,
            history,
            queue,
            door.pid,
            node,
            Arc::clone(&self.nodes[0]),
        )))
    }

    /// Writes over a file, as a program does that knows nothing of queues.
    pub async fn overwrite(
        &self,
        queue: QueueNo,
        host: usize,
        door: &Arc<Door>,
        env: &Env,
        name: &str,
        bytes: &[u8],
    ) -> Result<()> {
        match &self.kept[queue] {
            Kept::Disk(disk, mounts) => {
                let mount = mounts[host].clone();
                let local = !mount.is_network();
                let sys = DiskSys::new(disk.clone(), mount, Arc::clone(door) as _);
                let root = sys.root();
                let tree = Filesystem::with(sys, root, "/spoiler".to_owned(), env.clone(), local);
                tree.replace(name, bytes).await
            }
            Kept::Bucket(bucket) => {
                let weather = Arc::new(Mutex::new(Weather::calm()));
                let tree = bucket.sim_tree(env.clone(), weather, Arc::clone(door) as _);
                tree.replace(name, bytes).await
            }
        }
    }

    /// Everything that is in the store of a queue.
    pub fn files(&self, queue: QueueNo) -> std::collections::BTreeMap<String, Vec<u8>> {
        match &self.kept[queue] {
            Kept::Disk(disk, _) => disk.files(),
            Kept::Bucket(bucket) => bucket.files(),
        }
    }
}

/// What the network to such a bucket does to requests.
pub(crate) fn weather_of(kind: &BucketKind) -> Weather {
    let thousandths = |part: u32| f64::from(part) / 1000.0;
    let mut weather = Weather {
        lost: thousandths(kind.lost),
        answer_lost: thousandths(kind.unanswered),
        late: thousandths(kind.late),
        doubled: thousandths(kind.doubled),
        refused: thousandths(kind.refused),
        conflict: thousandths(kind.refused),
        in_parts: 0.1,
        ..Weather::calm()
    };
    if *kind != BucketKind::default() {
        weather.delay = Weather::stormy().delay;
    }
    weather
}

/// What these faults have for an actor.
pub(crate) fn troubles(faults: &[Fault], actor: usize, calm: &Arc<AtomicBool>) -> Arc<Troubles> {
    let ahead = faults.iter().filter_map(|fault| match fault {
        Fault::Process(whose, at, trouble) if *whose == actor => Some((*at, *trouble)),
        _ => None,
    });
    let spots = faults.iter().filter_map(|fault| match fault {
        Fault::At(whose, when, trouble) if *whose == actor => Some((*when, *trouble)),
        _ => None,
    });
    let refused = faults.iter().filter_map(|fault| match fault {
        Fault::Refused(whose, folder, errno) if *whose == actor => Some((*folder, *errno)),
        _ => None,
    });
    Troubles::new(ahead.collect(), spots.collect(), refused.collect(), Arc::clone(calm))
}

/// A store of this kind, whose clock is that of the first machine.
pub(crate) fn kept(
    queue: QueueNo,
    store: &Store,
    world: &Arc<World>,
    history: &Arc<History>,
    nodes: &[Arc<Node>],
) -> Kept {
    let server = Arc::clone(&nodes[0]);
    let clock = {
        let server = Arc::clone(&server);
        move || server.wall()
    };
    let witness = Arc::new(Witness { queue, history: Arc::clone(history), server });
    match store {
        Store::Disk(kind) => {
            let disk = Disk::new(disk_traits(kind), world.chance(), clock, witness);
            let mount = |host: usize| match kind.nfs {
                // Also the machine that holds it: two kinds of mounts on one queue are not promised to agree.
                Some(lag) => Mount::network(host as u64 + 1, lag),
                None => Mount::local(),
            };
            Kept::Disk(disk, (0..nodes.len()).map(mount).collect())
        }
        Store::Bucket(kind) => {
            let traits = BucketTraits {
                address: format!("s3://sim/queue-{queue}"),
                listing_lag: kind.listing_lag,
                ..BucketTraits::s3()
            };
            let steady = Node::new(world, 0, SignedDuration::ZERO);
            let network = node::env(world, &steady, Pid::WORLD);
            Kept::Bucket(Bucket::new(traits, network, clock, witness))
        }
    }
}

fn disk_traits(kind: &DiskKind) -> DiskTraits {
    DiskTraits {
        tick: kind.tick,
        has_unnamed: kind.unnamed,
        has_links: kind.links,
        has_rename_new: kind.nfs.is_none(),
        capacity: kind.room.map(|bytes| Room { bytes, inodes: 10_000 }),
        order: match (kind.nfs, kind.journal) {
            // A server tells a client that a name has changed when that is on its disk.
            (Some(_), _) => Order::AtOnce,
            (None, true) => Order::Journal,
            (None, false) => Order::Any,
        },
        write_back: Some(Duration::from_secs(30)),
    }
}
