//! What is to happen to an index: who puts, compacts and reads, on which store, and what goes wrong.
//!
//! Invariant: a plan is plain data, and a run is a function of its plan.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;

use crate::plan::{BucketKind, DiskKind, Fault, Host, Store, Trouble};

/// The keys that there are. The first sixteen lie in one shard, the next four in another.
pub const KEYS: [&str; 24] = [
    "k18",
    "k121",
    "k216",
    "k484",
    "k564",
    "k607",
    "k812",
    "k892",
    "k1170",
    "k1187",
    "k1234",
    "k1294",
    "k1505",
    "k1547",
    "k1841",
    "k1938",
    "k44",
    "k161",
    "k718",
    "k1036",
    "a",
    "a.b",
    "straße/1",
    "%bundle",
];

/// How many of them lie in the first shard.
pub(super) const IN_ONE_SHARD: u8 = 16;

/// One thing that an actor does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, for so long.
    Wait(Duration),
    /// A record for each key is put.
    Put {
        /// Which keys.
        keys: Vec<u8>,
        /// Their own time, in milliseconds after the true calendar at time zero.
        own: Option<i64>,
        /// With a value in one of the columns that not all records have.
        column: Option<u8>,
        /// Bytes of another field, to make shards long.
        size: u32,
        /// Together in one file for each shard.
        bundle: bool,
    },
    /// Keys are deleted.
    Delete(Vec<u8>),
    /// Keys are looked up, one after the other.
    Get(Vec<u8>),
    /// Everything is read, with a rest so long after each lot.
    Scan(Duration),
    /// What is in the inbox is merged.
    Compact {
        /// With the lock of each shard.
        lock: bool,
        /// Everything, or only what a page shows.
        all: bool,
    },
    /// A key is put and what is in the inbox is merged, so many times.
    Churn {
        /// Which key.
        key: u8,
        /// How often.
        times: u32,
    },
    /// The index is opened anew.
    Reopen,
    /// The power of the machine that holds the directory fails, now.
    Cut,
    /// Somebody leaves a file in the inbox that is not ours.
    Litter,
}

/// A process that does one thing after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// On which machine.
    pub host: usize,
    /// When it starts.
    pub starts: Duration,
    /// What it does.
    pub steps: Vec<Step>,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Decides what comes first, how long calls take, and all chance in the library.
    pub seed: u64,
    /// What it is aimed at.
    pub aim: &'static str,
    /// Where the index is.
    pub store: Store,
    /// The machines. The first one holds the directory, or is the bucket's server.
    pub hosts: Vec<Host>,
    /// Who takes part.
    pub actors: Vec<Actor>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, aim, store, hosts, actors, faults } = self;
        writeln!(f, "seed {seed}, {aim}, on {store:?}")?;
        for (number, Host { drift, ahead }) in hosts.iter().enumerate() {
            writeln!(f, "machine {number}: {drift} ppm, {ahead:#} ahead")?;
        }
        for (number, Actor { host, starts, steps }) in actors.iter().enumerate() {
            writeln!(f, "actor {number} on machine {host}, from {starts:?}:")?;
            for step in steps {
                writeln!(f, "    {step:?}")?;
            }
        }
        faults.iter().try_for_each(|fault| writeln!(f, "{fault:?}"))
    }
}

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) const HOUR: Duration = secs(3600);
pub(super) const DAY: Duration = secs(24 * 3600);

/// Chance for plans.
pub(super) struct Draw(pub(super) StdRng);

impl Draw {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound.max(1)
    }

    pub(super) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// In so many of a hundred cases.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }

    /// Between these two.
    pub(super) fn time(&mut self, least: Duration, most: Duration) -> Duration {
        let between = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
        least + millis(self.below(between.max(1)))
    }

    /// Some of these keys, none twice.
    pub(super) fn some(&mut self, of: &[u8], most: usize) -> Vec<u8> {
        let mut keys = of.to_vec();
        for last in (1..keys.len()).rev() {
            keys.swap(last, self.index(last + 1));
        }
        keys.truncate(1 + self.index(most.min(keys.len())));
        keys
    }

    /// An hour off, on half of the machines; and one or two clocks that are fast or slow.
    pub(super) fn hosts(&mut self, count: usize) -> Vec<Host> {
        let mut hosts = Vec::new();
        for _ in 0..count {
            let drift = i64::try_from(self.below(200)).unwrap_or(0) - 100;
            let ahead = self.one(&[0, 0, 3600, -3600]);
            hosts.push(Host { drift, ahead: SignedDuration::from_secs(ahead) });
        }
        hosts
    }

    pub(super) fn disk(&mut self) -> DiskKind {
        let nfs = self.percent(25).then(|| self.one(&[secs(3), secs(3), secs(30)]));
        DiskKind {
            tick: self.one(&[millis(4), millis(4), millis(4), secs(1)]),
            nfs,
            unnamed: nfs.is_none() && self.percent(75),
            links: nfs.is_some() || self.percent(90),
            room: None,
            journal: self.percent(50),
        }
    }

    pub(super) fn bucket(&mut self) -> BucketKind {
        if self.percent(40) {
            return BucketKind::default();
        }
        let part = self.one(&[5, 20, 50]);
        BucketKind {
            lost: part,
            unanswered: part,
            late: part,
            doubled: part,
            refused: part,
            listing_lag: Duration::ZERO,
        }
    }

    pub(super) fn store(&mut self, seed: u64) -> Store {
        match seed.is_multiple_of(2) {
            true => Store::Disk(self.disk()),
            false => Store::Bucket(self.bucket()),
        }
    }

    /// Mostly soon, sometimes later.
    pub(super) fn wait(&mut self) -> Duration {
        match self.below(10) {
            0..4 => Duration::ZERO,
            4..8 => self.time(Duration::ZERO, secs(1)),
            8 => self.time(Duration::ZERO, secs(20)),
            _ => self.time(Duration::ZERO, secs(400)),
        }
    }

    pub(super) fn put(&mut self, keys: &[u8]) -> Step {
        // Few times, so that some are equal.
        let own = [0, 0, 100, 200, 20_000, 3_600_000, -5_000_000];
        Step::Put {
            keys: self.some(keys, 3),
            own: self.percent(35).then(|| self.one(&own)),
            column: self.percent(15).then(|| u8::try_from(self.below(4)).unwrap_or(0)),
            size: 0,
            bundle: self.percent(25),
        }
    }

    fn step(&mut self, keys: &[u8], lock: bool) -> Step {
        match self.below(20) {
            0..7 => self.put(keys),
            7 | 8 => Step::Delete(self.some(keys, 2)),
            9..13 => Step::Get(self.some(keys, 3)),
            13..18 => Step::Compact { lock, all: self.percent(50) },
            18 => Step::Wait(self.time(Duration::ZERO, secs(700))),
            _ => Step::Reopen,
        }
    }

    /// Something that may go wrong for an actor.
    fn trouble(&mut self) -> Trouble {
        match self.below(12) {
            0..4 => Trouble::Killed,
            4..6 => Trouble::Stalled(self.time(secs(1), secs(400))),
            6 => Trouble::Stalled(self.time(secs(400), HOUR * 3)),
            7 => {
                let errno = self.one(&[Errno::IO, Errno::NOSPC]);
                Trouble::Fails(errno, 1 + u32::try_from(self.below(3)).unwrap_or(0))
            }
            8 => Trouble::Repeated,
            9 => Trouble::Slow(self.time(secs(1), secs(60))),
            10 => Trouble::Late(self.time(secs(1), secs(120))),
            _ => Trouble::PowerCut,
        }
    }

    pub(super) fn faults(&mut self, actors: &[Actor], calls: u64, percent: u64) -> Vec<Fault> {
        let mut faults = Vec::new();
        for actor in 0..actors.len() {
            while self.percent(percent) {
                let at = self.below(calls);
                faults.push(Fault::Process(actor, at, self.trouble()));
            }
        }
        faults
    }
}

impl Plan {
    /// What a seed has in store.
    pub fn drawn(seed: u64) -> Self {
        let mut draw = Draw(StdRng::seed_from_u64(seed ^ 0x1d_e8ed));
        match draw.percent(40) {
            true => anything(seed, &mut draw),
            false => super::aimed::aimed(seed, &mut draw),
        }
    }

    /// It lasts for weeks.
    pub fn is_long(&self) -> bool {
        let waits = |actor: &Actor| -> Duration {
            let each = actor.steps.iter().filter_map(|step| match step {
                Step::Wait(time) => Some(*time),
                _ => None,
            });
            each.sum()
        };
        self.actors.iter().any(|actor| waits(actor) > DAY * 7)
    }

    /// The store is on a machine whose power may fail without the end of those who use it.
    pub fn is_over_a_network(&self) -> bool {
        matches!(&self.store, Store::Disk(kind) if kind.nfs.is_some())
    }
}

/// Everything at once.
fn anything(seed: u64, draw: &mut Draw) -> Plan {
    let store = draw.store(seed);
    let hosts = draw.hosts(3);
    let lock = draw.percent(60);
    let near: Vec<u8> = (0..IN_ONE_SHARD).collect();
    let mut keys = draw.some(&near, 3);
    if draw.percent(40) {
        keys.push(16 + u8::try_from(draw.below(8)).unwrap_or(0));
    }
    let mut actors = Vec::new();
    for _ in 0..3 + draw.index(4) {
        let mut steps = Vec::new();
        for _ in 0..4 + draw.index(10) {
            let wait = draw.wait();
            if !wait.is_zero() {
                steps.push(Step::Wait(wait));
            }
            steps.push(draw.step(&keys, lock));
        }
        if draw.percent(4) {
            let at = draw.index(steps.len());
            steps.insert(at, Step::Litter);
        }
        if draw.percent(8) {
            let at = draw.index(steps.len());
            steps.insert(at, Step::Scan(draw.time(Duration::ZERO, secs(1))));
        }
        let starts = draw.time(Duration::ZERO, secs(2));
        actors.push(Actor { host: draw.index(hosts.len()), starts, steps });
    }
    let mut faults = draw.faults(&actors, 700, 35);
    if draw.percent(25) {
        let hours = i64::try_from(draw.below(14_400)).unwrap_or(0) - 7200;
        let (host, at) = (draw.index(hosts.len()), draw.time(Duration::ZERO, secs(300)));
        faults.push(Fault::Jump(host, at, SignedDuration::from_secs(hours)));
    }
    if draw.percent(15) {
        let at = draw.time(Duration::ZERO, secs(60));
        let lasts = draw.time(secs(200), HOUR * 3);
        faults.push(Fault::Suspend(draw.index(hosts.len()), at, lasts));
    }
    if draw.percent(20) {
        faults.push(Fault::PowerCut(draw.time(Duration::ZERO, secs(60))));
    }
    Plan { seed, aim: "anything", store, hosts, actors, faults }
}
