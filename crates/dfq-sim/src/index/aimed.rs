//! Plans that are aimed at one rule of the index each.
//!
//! Invariant: an aim decides what meets, not what comes of it. Each is a plan that could happen.

use std::time::Duration;

use jiff::SignedDuration;

use super::plan::{Actor, DAY, Draw, HOUR, IN_ONE_SHARD, Plan, Step, millis, secs};
use crate::plan::{BucketKind, DiskKind, Fault, Host, Spot, Store, Trouble, When};

/// What a plan is aimed at, and how often, beside the others.
type Aim = (usize, &'static str, fn(&mut Draw, &mut Sketch));

const AIMS: [Aim; 13] = [
    (3, "crowd", crowd),
    (3, "late compactor", late_compactor),
    (2, "own times", own_times),
    (1, "columns", columns),
    (1, "borrowed columns", borrowed_columns),
    (1, "first version", first_version),
    (2, "blocks", blocks),
    (2, "months", months),
    (1, "ahead", ahead),
    (2, "after the swap", after_the_swap),
    (1, "versions", versions),
    (1, "sleepers", sleepers),
    (1, "long scan", long_scan),
];

/// A plan on its way.
struct Sketch {
    store: Store,
    hosts: Vec<Host>,
    actors: Vec<Actor>,
    faults: Vec<Fault>,
    lock: bool,
}

pub(super) fn aimed(seed: u64, draw: &mut Draw) -> Plan {
    let each = AIMS.iter().flat_map(|aim| std::iter::repeat_n(*aim, aim.0));
    let (_, aim, fill) = draw.one(&each.collect::<Vec<_>>());
    let (store, hosts) = (draw.store(seed), draw.hosts(3));
    let lock = draw.percent(60);
    let mut sketch = Sketch { store, hosts, actors: Vec::new(), faults: Vec::new(), lock };
    fill(draw, &mut sketch);
    let Sketch { store, hosts, actors, faults, .. } = sketch;
    Plan { seed, aim, store, hosts, actors, faults }
}

impl Sketch {
    /// Adds an actor; answers its number.
    fn actor(&mut self, draw: &mut Draw, starts: Duration, steps: Vec<Step>) -> usize {
        let host = draw.index(self.hosts.len());
        self.actors.push(Actor { host, starts, steps });
        self.actors.len() - 1
    }

    fn at(&mut self, actor: usize, when: When, trouble: Trouble) {
        self.faults.push(Fault::At(actor, when, trouble));
    }

    fn compact(&self) -> Step {
        Step::Compact { lock: self.lock, all: false }
    }

    /// A disk on the machine itself, if it is a disk.
    fn is_local(&mut self) {
        if let Store::Disk(kind) = &mut self.store {
            *kind = DiskKind { nfs: None, unnamed: true, links: true, ..*kind };
        }
    }

    /// A network that does nothing to requests.
    fn is_fair(&mut self) {
        if let Store::Bucket(kind) = &mut self.store {
            *kind = BucketKind::default();
        }
    }
}

fn put(keys: &[u8]) -> Step {
    Step::Put { keys: keys.to_vec(), own: None, column: None, size: 0, bundle: false }
}

fn own(keys: &[u8], own: i64) -> Step {
    Step::Put { keys: keys.to_vec(), own: Some(own), column: None, size: 0, bundle: false }
}

/// A handful of keys of one shard.
fn keys(draw: &mut Draw, most: usize) -> Vec<u8> {
    let all: Vec<u8> = (0..IN_ONE_SHARD).collect();
    draw.some(&all, most)
}

/// The same thing again and again, with short rests.
fn often(
    draw: &mut Draw,
    times: u64,
    most: Duration,
    mut step: impl FnMut(&mut Draw) -> Step,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..times {
        steps.push(Step::Wait(draw.time(Duration::ZERO, most)));
        steps.push(step(draw));
    }
    steps
}

/// All put, compact and read the same keys at the same moments.
fn crowd(draw: &mut Draw, sketch: &mut Sketch) {
    let keys = keys(draw, 3);
    let most = draw.one(&[millis(20), millis(100), millis(400)]);
    for _ in 0..2 + draw.index(2) {
        let bundles = draw.percent(30);
        let steps = often(draw, 12, most, |draw| match draw.percent(12) {
            true => Step::Delete(draw.some(&keys, 1)),
            false => Step::Put {
                keys: draw.some(&keys, 2),
                own: None,
                column: None,
                size: 0,
                bundle: bundles,
            },
        });
        sketch.actor(draw, Duration::ZERO, steps);
    }
    for _ in 0..2 + draw.index(2) {
        let compact = sketch.compact();
        let steps = often(draw, 8, most * 2, |_| compact.clone());
        let actor = sketch.actor(draw, Duration::ZERO, steps);
        if draw.percent(30) {
            let at = draw.below(400);
            sketch.faults.push(Fault::Process(actor, at, Trouble::Killed));
        }
    }
    for _ in 0..2 {
        let steps = often(draw, 14, most, |draw| Step::Get(draw.some(&keys, 1)));
        sketch.actor(draw, Duration::ZERO, steps);
    }
    if draw.percent(35) {
        let rest = draw.time(Duration::ZERO, millis(2));
        sketch.actor(draw, secs(1), vec![Step::Scan(rest)]);
    }
}

/// A compactor stands still somewhere in the middle, for up to an hour and more. Others put, delete and compact
/// meanwhile.
fn late_compactor(draw: &mut Draw, sketch: &mut Sketch) {
    let keys = keys(draw, 2);
    let (some, compact) = (put(&keys), sketch.compact());
    let late = sketch.actor(
        draw,
        Duration::ZERO,
        vec![some, compact.clone(), put(&keys), compact.clone()],
    );
    let spot = draw.one(&[
        Spot::ShardSwap,
        Spot::ShardSwap,
        Spot::ShardLook,
        Spot::InboxLook,
        Spot::InboxGone,
    ]);
    let nth = u32::try_from(draw.below(3)).unwrap_or(0);
    let when = match draw.percent(70) {
        true => When::Before(spot, nth),
        false => When::After(spot, nth),
    };
    let lasts = match draw.below(3) {
        0 => draw.time(secs(1), secs(30)),
        1 => draw.time(secs(310), secs(2000)),
        _ => draw.time(HOUR, HOUR * 3),
    };
    sketch.at(late, when, Trouble::Stalled(lasts));
    let most = lasts / 6;
    for _ in 0..2 {
        let compact = compact.clone();
        let steps = often(draw, 6, most, |draw| match draw.below(5) {
            0 => Step::Delete(draw.some(&keys, 1)),
            1 | 2 => put(&draw.some(&keys, 2)),
            3 => Step::Get(draw.some(&keys, 1)),
            _ => compact.clone(),
        });
        sketch.actor(draw, secs(3), steps);
    }
    let steps = often(draw, 6, most, |_| compact.clone());
    sketch.actor(draw, secs(4), steps);
}

/// Records that bring their own times, late and in any order, some of them equal; and deletions in between.
fn own_times(draw: &mut Draw, sketch: &mut Sketch) {
    let keys = keys(draw, 2);
    let compact = sketch.compact();
    for _ in 0..3 {
        let compact = compact.clone();
        let steps = often(draw, 9, millis(400), |draw| match draw.below(9) {
            0..4 => {
                let time = draw.one(&[0, 0, 10, 200, 4000, -60_000]);
                own(&draw.some(&keys, 2), time)
            }
            4 => Step::Delete(draw.some(&keys, 1)),
            5 | 6 => Step::Get(draw.some(&keys, 2)),
            _ => compact.clone(),
        });
        sketch.actor(draw, Duration::ZERO, steps);
    }
}

/// Several add columns at the same moment.
fn columns(draw: &mut Draw, sketch: &mut Sketch) {
    let keys = keys(draw, 4);
    let compact = sketch.compact();
    for _ in 0..3 {
        let steps = often(draw, 5, millis(60), |draw| Step::Put {
            keys: draw.some(&keys, 2),
            own: None,
            column: Some(u8::try_from(draw.below(8)).unwrap_or(0)),
            size: 0,
            bundle: draw.percent(30),
        });
        let actor = sketch.actor(draw, Duration::ZERO, steps);
        if draw.percent(40) {
            let nth = u32::try_from(draw.below(3)).unwrap_or(0);
            let when = match draw.percent(50) {
                true => When::Before(Spot::ColumnsSwap, nth),
                false => When::After(Spot::ColumnsSwap, nth),
            };
            let stalls = Trouble::Stalled(draw.time(millis(20), secs(20)));
            let trouble = draw.one(&[Trouble::Killed, stalls, stalls, Trouble::PowerCut]);
            sketch.at(actor, when, trouble);
        }
    }
    let steps = often(draw, 5, millis(200), |_| compact.clone());
    sketch.actor(draw, Duration::ZERO, steps);
    let steps = often(draw, 8, millis(100), |draw| Step::Get(draw.some(&keys, 2)));
    sketch.actor(draw, Duration::ZERO, steps);
}

/// Somebody puts what needs a column that another one has just added, and died over. Then the power fails.
fn borrowed_columns(draw: &mut Draw, sketch: &mut Sketch) {
    sketch.is_local();
    let keys = keys(draw, 3);
    let with = |keys: Vec<u8>, column| Step::Put {
        keys,
        own: None,
        column: Some(column),
        size: 0,
        bundle: false,
    };
    let first = vec![with(keys.clone(), 0), with(keys.clone(), 1)];
    let adds = sketch.actor(draw, Duration::ZERO, first);
    let nth = u32::try_from(draw.below(3)).unwrap_or(0);
    sketch.at(adds, When::After(Spot::ColumnsSwap, nth), Trouble::Stalled(HOUR));
    let column = u8::try_from(draw.below(2)).unwrap_or(0);
    let steps = vec![Step::Wait(secs(1)), with(draw.some(&keys, 2), column), Step::Cut];
    sketch.actor(draw, Duration::ZERO, steps);
    let mut steps = vec![Step::Wait(secs(8)), with(draw.some(&keys, 1), 5)];
    steps.extend([Step::Get(keys), sketch.compact()]);
    sketch.actor(draw, Duration::ZERO, steps);
}

/// Whoever made a shard's first version dies over it. Others go on from there, and then the power fails.
fn first_version(draw: &mut Draw, sketch: &mut Sketch) {
    sketch.is_local();
    let keys = keys(draw, 2);
    let compact = Step::Compact { lock: false, all: false };
    let first = sketch.actor(draw, Duration::ZERO, vec![put(&keys), compact.clone()]);
    let stalls = Trouble::Stalled(HOUR);
    let trouble = draw.one(&[Trouble::Killed, stalls, stalls]);
    sketch.at(first, When::After(Spot::ShardSwap, 0), trouble);
    let mut steps = vec![Step::Wait(secs(1))];
    for _ in 0..1 + draw.index(2) {
        steps.extend([put(&draw.some(&keys, 1)), compact.clone()]);
    }
    steps.extend([Step::Cut, Step::Get(keys)]);
    sketch.actor(draw, Duration::ZERO, steps);
}

/// Shards of many blocks, which change while they are read.
fn blocks(draw: &mut Draw, sketch: &mut Sketch) {
    let all: Vec<u8> = (0..IN_ONE_SHARD).collect();
    let most = draw.one(&[millis(40), millis(200)]);
    let sizes = [300, 3000, 6000];
    let long = |draw: &mut Draw, keys: Vec<u8>, bundle: bool| Step::Put {
        keys,
        own: None,
        column: None,
        size: draw.one(&sizes),
        bundle,
    };
    let compact = sketch.compact();
    let mut steps = vec![
        Step::Put { keys: all.clone(), own: None, column: None, size: 5000, bundle: true },
        compact.clone(),
    ];
    steps.extend(often(draw, 6, most, |draw| {
        let keys = draw.some(&all, 4);
        long(draw, keys, false)
    }));
    sketch.actor(draw, Duration::ZERO, steps);
    for _ in 0..2 {
        let compact = compact.clone();
        let steps = often(draw, 7, most, |_| compact.clone());
        let actor = sketch.actor(draw, millis(300), steps);
        if draw.percent(60) {
            // Then the block index is of an older version.
            let nth = 1 + u32::try_from(draw.below(4)).unwrap_or(0);
            sketch.at(actor, When::After(Spot::ShardSwap, nth), Trouble::Killed);
        }
    }
    for _ in 0..2 {
        let steps = often(draw, 16, most / 2, |draw| Step::Get(draw.some(&all, 2)));
        let actor = sketch.actor(draw, millis(300), steps);
        for _ in 0..3 {
            let nth = u32::try_from(draw.below(40)).unwrap_or(0);
            let lasts = draw.time(millis(50), secs(2));
            sketch.at(actor, When::Before(Spot::ShardLook, nth), Trouble::Stalled(lasts));
        }
    }
}

/// Somebody sleeps for months: a writer over its put, a compactor over its merge. Meanwhile keys are deleted, and
/// deletions forgotten.
fn months(draw: &mut Draw, sketch: &mut Sketch) {
    sketch.is_fair();
    let keys = keys(draw, 2);
    let (key, compact) = (vec![keys[0]], sketch.compact());
    let lasts = draw.one(&[DAY * 46, DAY * 92, DAY * 100]);
    let steps = vec![put(&keys), compact.clone(), put(&key), compact.clone()];
    let sleeper = sketch.actor(draw, Duration::ZERO, steps);
    let looks = u32::try_from(draw.below(16)).unwrap_or(0);
    let (spot, nth) = draw.one(&[
        (Spot::InboxLook, looks),
        (Spot::InboxLook, looks),
        (Spot::InboxLook, looks),
        (Spot::InboxNew, 1),
        (Spot::InboxNew, 1),
        (Spot::ShardSwap, 0),
        (Spot::ShardSwap, 1),
        (Spot::ShardLook, 0),
        (Spot::ShardLook, 1),
        (Spot::InboxGone, 1),
    ]);
    let when = match draw.percent(70) {
        true => When::Before(spot, nth),
        false => When::After(spot, nth),
    };
    sketch.at(sleeper, when, Trouble::Stalled(lasts));
    let other = [16];
    let mut steps = vec![
        Step::Wait(draw.time(secs(400), HOUR)),
        compact.clone(),
        Step::Delete(key.clone()),
        compact.clone(),
        Step::Get(key.clone()),
    ];
    if draw.percent(50) {
        // Late and older than the deletion.
        steps.extend([own(&key, 5), compact.clone(), Step::Get(key.clone())]);
    }
    steps.extend([Step::Wait(DAY * 90 + draw.time(HOUR * 4, HOUR * 20)), put(&other)]);
    // The shard must change, so that what is old in it goes.
    let near: Vec<u8> = (0..IN_ONE_SHARD).filter(|it| !keys.contains(it)).collect();
    steps.extend([put(&draw.some(&near, 1)), compact.clone(), Step::Get(key.clone())]);
    steps.extend([Step::Wait(DAY * 12), compact.clone(), Step::Get(key)]);
    sketch.actor(draw, Duration::ZERO, steps);
}

/// Records that are of tomorrow, and what follows them.
fn ahead(draw: &mut Draw, sketch: &mut Sketch) {
    let keys = keys(draw, 2);
    let compact = sketch.compact();
    for _ in 0..3 {
        let compact = compact.clone();
        let steps = often(draw, 8, secs(2), |draw| match draw.below(8) {
            0 | 1 => {
                let hours = draw.one(&[2, 20, 30, 60]);
                own(&draw.some(&keys, 2), hours * 3_600_000)
            }
            2 | 3 => put(&draw.some(&keys, 2)),
            4 | 5 => Step::Get(draw.some(&keys, 2)),
            6 => Step::Delete(draw.some(&keys, 1)),
            _ => compact.clone(),
        });
        sketch.actor(draw, Duration::ZERO, steps);
    }
    if draw.percent(40) {
        let seconds = i64::try_from(draw.below(7200)).unwrap_or(0) - 3600;
        let at = draw.time(secs(1), secs(12));
        sketch.faults.push(Fault::Jump(0, at, SignedDuration::from_secs(seconds)));
    }
}

/// A compactor dies right after a new version has its name; others go on, and then the power may fail.
fn after_the_swap(draw: &mut Draw, sketch: &mut Sketch) {
    sketch.is_local();
    let keys = keys(draw, 2);
    let compact = sketch.compact();
    let nth = u32::try_from(draw.below(3)).unwrap_or(0);
    let mut steps = Vec::new();
    for _ in 0..=nth {
        steps.extend([put(&keys), compact.clone()]);
    }
    let first = sketch.actor(draw, Duration::ZERO, steps);
    sketch.at(first, When::After(Spot::ShardSwap, nth), Trouble::Killed);
    // Has looked before that, and comes back after.
    let reader = often(draw, 10, secs(2), |draw| Step::Get(draw.some(&keys, 1)));
    sketch.actor(draw, millis(20), reader);
    let steps = often(draw, 4, millis(300), |_| compact.clone());
    let stalled = sketch.actor(draw, millis(20), steps);
    if draw.percent(60) {
        let nth = u32::try_from(draw.below(3)).unwrap_or(0);
        let lasts = Trouble::Stalled(draw.time(secs(1), secs(1200)));
        let spot = draw.one(&[Spot::ShardSwap, Spot::ShardLook]);
        let when = draw.one(&[When::Before(spot, nth), When::After(spot, nth)]);
        sketch.at(stalled, when, lasts);
    }
    let rest = draw.one(&[millis(300), secs(310)]);
    let mut steps = vec![Step::Wait(rest)];
    steps.extend(often(draw, 5, secs(1), |draw| match draw.percent(60) {
        true => compact.clone(),
        false => put(&draw.some(&keys, 2)),
    }));
    let last = sketch.actor(draw, Duration::ZERO, steps);
    if draw.percent(60) {
        let nth = u32::try_from(draw.below(2)).unwrap_or(0);
        sketch.at(last, When::After(Spot::InboxGone, nth), Trouble::PowerCut);
    }
}

/// A compactor sleeps for days right before its new version gets its name. Meanwhile there are so many versions that
/// old ones are freed.
fn versions(draw: &mut Draw, sketch: &mut Sketch) {
    sketch.is_local();
    sketch.is_fair();
    let keys = keys(draw, 2);
    let (key, compact) = (keys[0], Step::Compact { lock: false, all: false });
    let first = vec![put(&keys), compact.clone(), put(&keys), compact, Step::Get(keys)];
    let sleeper = sketch.actor(draw, Duration::ZERO, first);
    let lasts = draw.time(HOUR * 26, HOUR * 50);
    sketch.at(sleeper, When::Before(Spot::ShardSwap, 1), Trouble::Stalled(lasts));
    let times = 66 + u32::try_from(draw.below(8)).unwrap_or(0);
    let steps = vec![
        Step::Churn { key, times },
        Step::Wait(HOUR * 25),
        Step::Churn { key, times },
        Step::Get(vec![key]),
    ];
    sketch.actor(draw, secs(5), steps);
}

/// Processes sleep for minutes and hours wherever they are, and put when they wake.
fn sleepers(draw: &mut Draw, sketch: &mut Sketch) {
    let keys = keys(draw, 2);
    let compact = sketch.compact();
    for _ in 0..3 {
        let compact = compact.clone();
        let steps = often(draw, 9, secs(200), |draw| match draw.below(8) {
            0..4 => put(&draw.some(&keys, 2)),
            4 => Step::Delete(draw.some(&keys, 1)),
            5 | 6 => Step::Get(draw.some(&keys, 2)),
            _ => compact.clone(),
        });
        let actor = sketch.actor(draw, Duration::ZERO, steps);
        for _ in 0..3 {
            let (at, lasts) = (draw.below(200), draw.time(secs(100), HOUR * 2));
            sketch.faults.push(Fault::Process(actor, at, Trouble::Stalled(lasts)));
        }
    }
}

/// A shard that is longer than one part of a scan changes between the parts.
fn long_scan(draw: &mut Draw, sketch: &mut Sketch) {
    sketch.is_fair();
    let all: Vec<u8> = (0..IN_ONE_SHARD).collect();
    let compact = sketch.compact();
    let first = |keys: &[u8], size| Step::Put {
        keys: keys.to_vec(),
        own: None,
        column: None,
        size,
        bundle: true,
    };
    let (size, other) = (draw.one(&[80_000, 90_000]), draw.one(&[30_000, 100_000]));
    let steps = vec![
        first(&all, size),
        compact.clone(),
        Step::Wait(secs(60)),
        first(&draw.some(&all, 6), other),
        compact.clone(),
        Step::Wait(secs(20)),
        first(&draw.some(&all, 3), size),
        compact,
    ];
    sketch.actor(draw, Duration::ZERO, steps);
    let rest = draw.one(&[secs(35), secs(50), secs(90)]);
    sketch.actor(draw, secs(10), vec![Step::Scan(rest)]);
}
