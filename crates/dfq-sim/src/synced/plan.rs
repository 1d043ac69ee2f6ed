//! What is to happen to a synced queue: its nodes, what is done on each, and what goes wrong.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

/// How often nodes merge.
pub(super) const PERIOD: Duration = Duration::from_secs(300);

/// For how long a claim holds.
pub(super) const LEASE: Duration = Duration::from_secs(700);

/// The ids that there are. Few, so that they meet.
pub(super) const IDS: [&str; 3] = ["a", "b", "c"];

/// One thing that is done on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A task is pushed.
    Push {
        /// Which id.
        id: usize,
        /// It begins a new life, if the last is over.
        again: bool,
        /// In so many seconds.
        delay: Option<u64>,
        /// Others push the same.
        common: bool,
    },
    /// Up to so many tasks are claimed, by a worker that may also be another node's.
    Poll(usize),
    /// All that is held is done.
    Ack,
    /// The first of what is held has failed, and is tried again.
    Nack,
    /// The first of what is held is hopeless.
    Fail,
    /// The first of what is held is given back.
    Release,
    /// All that is held is renewed.
    Beat,
    /// An operator starts a failed task again.
    Retry(usize),
    /// An operator ends a task.
    Cancel(usize),
    /// An operator takes a task away.
    Unlock(usize),
    /// A task's file is spoiled.
    Rot(usize),
    /// The file of a task's first lease is spoiled.
    RotLease(usize),
    /// What the last pass found is lost.
    Forget,
    /// The calendar is set.
    Jump(i64),
    /// The supervisor is killed after so many calls.
    Kill(u64),
    /// The supervisor begins anew, and after so many calls stands still for so many seconds.
    Stall {
        /// After so many.
        calls: u64,
        /// For so long.
        seconds: u64,
    },
    /// The supervisor does not get through to the hub for so many seconds.
    Offline(u64),
    /// Old records are removed, in the hub.
    Purge,
    /// All that can be claimed on this node goes to another queue.
    Move,
    /// A task is pushed in the hub itself.
    PushThere {
        /// Which id.
        id: usize,
    },
}

/// A deed, where, and how long after the one before on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which node.
    pub node: usize,
    /// How long after.
    pub wait: Duration,
    /// What is done.
    pub deed: Deed,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}, after {:?}: {:?}", self.node, self.wait, self.deed)
    }
}

/// All that is to happen.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all chance comes from.
    pub seed: u64,
    /// How far the calendar of each node is ahead.
    pub ahead: Vec<SignedDuration>,
    /// Requests are lost, late and doubled.
    pub stormy: bool,
    /// All nodes begin their passes at the same moments.
    pub together: bool,
    /// What has arrived in a folder is merged between passes, too.
    pub at_once: bool,
    /// What is done, in order for each node.
    pub steps: Vec<Step>,
}

impl Plan {
    /// What a seed has in store.
    pub fn drawn(seed: u64) -> Self {
        let mut chance = StdRng::seed_from_u64(seed ^ 0x5ce1_17ed);
        let nodes = 2 + (chance.next_u64() % 4) as usize;
        let ahead = |chance: &mut StdRng| match chance.next_u64() % 3 {
            0 => SignedDuration::ZERO,
            _ => SignedDuration::from_secs(chance.random_range(-4 * 3600..4 * 3600)),
        };
        let ahead: Vec<_> = (0..nodes).map(|_| ahead(&mut chance)).collect();
        if chance.next_u64().is_multiple_of(2) {
            return super::aimed::aimed(seed, ahead, &mut chance);
        }
        let stormy = chance.next_u64().is_multiple_of(3);
        let purges = chance.next_u64().is_multiple_of(2);
        // Fewer ids make for more that meet.
        let ids = 1 + (chance.next_u64() % IDS.len() as u64) as usize;
        let mut steps = Vec::new();
        for node in 0..nodes {
            for _ in 0..chance.random_range(4..18) {
                let (wait, deed) = (wait(&mut chance), deed(&mut chance, ids));
                steps.push(Step { node, wait, deed });
            }
        }
        if purges {
            let hour = chance.random_range(3700..12_000);
            steps.push(Step { node: 0, wait: Duration::from_secs(hour), deed: Deed::Purge });
            for _ in 0..chance.random_range(0..8) {
                let (wait, deed) = (wait(&mut chance), deed(&mut chance, ids));
                let node = chance.random_range(0..nodes);
                steps.push(Step { node, wait, deed });
            }
            if chance.next_u64().is_multiple_of(2) {
                let hour = chance.random_range(3700..12_000);
                steps.push(Step { node: 0, wait: Duration::from_secs(hour), deed: Deed::Purge });
            }
        }
        let together = chance.next_u64().is_multiple_of(4);
        if seed.is_multiple_of(5) {
            let (node, at) = (chance.random_range(0..nodes), chance.random_range(0..=steps.len()));
            steps.insert(at, Step { node, wait: wait(&mut chance), deed: Deed::Move });
        }
        Self { seed, ahead, stormy, together, at_once: is_at_once(seed), steps }
    }
}

/// Whether what arrives is merged between passes.
pub(super) fn is_at_once(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

pub(super) fn wait(chance: &mut StdRng) -> Duration {
    match chance.next_u64() % 10 {
        0..4 => Duration::from_secs(chance.random_range(0..20)),
        4..8 => Duration::from_secs(chance.random_range(20..400)),
        8 => Duration::from_secs(chance.random_range(400..2000)),
        _ => Duration::ZERO,
    }
}

pub(super) fn deed(chance: &mut StdRng, ids: usize) -> Deed {
    let id = chance.random_range(0..ids);
    match chance.next_u64() % 40 {
        0..8 => Deed::Push {
            id,
            again: chance.next_u64().is_multiple_of(2),
            delay: (chance.next_u64().is_multiple_of(5)).then(|| chance.random_range(1..1500)),
            common: chance.next_u64().is_multiple_of(5),
        },
        8..16 => Deed::Poll(chance.random_range(1..3)),
        16..21 => Deed::Ack,
        21..23 => Deed::Nack,
        23 => Deed::Fail,
        24 => Deed::Release,
        25..28 => Deed::Beat,
        28 => Deed::Retry(id),
        29 => Deed::Cancel(id),
        30 => Deed::Unlock(id),
        31 => Deed::Rot(id),
        32 => Deed::Forget,
        33 => Deed::Jump(chance.random_range(-7200..7200)),
        34 | 35 => Deed::Kill(chance.random_range(0..300)),
        36 => Deed::Stall {
            calls: chance.random_range(0..300),
            seconds: chance.random_range(1..9000),
        },
        37..39 => Deed::Offline(chance.random_range(100..6000)),
        _ => Deed::PushThere { id },
    }
}
