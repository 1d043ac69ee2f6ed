//! The library against the bare system calls, in turns of a few milliseconds, so that whatever else
//! the machine does meanwhile slows both alike.

use std::path::Path;
use std::time::Duration;

use super::bare::{Bare, Paths};
use super::ours::{Ours, Samples, payload, samples};
use super::{Targets, filesystem, median, timed};

/// How many tasks each side does before it is the other's turn.
const TURN: usize = 64;

/// What the library must reach of the floor's speed.
const TARGET: f64 = 0.7;

const VERBS: [&str; 3] = ["push", "claim", "ack"];

/// Time spent on each verb by either side.
#[derive(Default)]
struct Spent {
    floor: [Duration; 3],
    ours: [Duration; 3],
}

pub(crate) fn run(
    dir: &Path,
    tasks: usize,
    batches: &[usize],
    rounds: usize,
    targets: &mut Targets,
) {
    let fs = filesystem(dir);
    let samples = samples(&dir.join("samples"));
    let tasks = tasks.next_multiple_of(TURN);
    for durable in [true, false] {
        // Nothing is written back in the middle of a turn for what an earlier test left behind.
        rustix::fs::sync();
        let name = if durable { "durable" } else { "relaxed" };
        let mut sides = Sides::new(&dir.join(name), &samples, durable);
        sides.round(tasks, TURN); // makes all folders
        let mut spent: Vec<_> = batches.iter().map(|batch| (*batch, Vec::new())).collect();
        for _ in 0..rounds {
            for (batch, spent) in &mut spent {
                spent.push(sides.round(tasks, *batch));
            }
        }
        for (batch, spent) in &spent {
            for (verb, label) in VERBS.iter().enumerate() {
                let micros = |time: Duration| time.as_secs_f64() * 1e6 / tasks as f64;
                let floor = median(spent.iter().map(|s| micros(s.floor[verb])).collect());
                let ours = median(spent.iter().map(|s| micros(s.ours[verb])).collect());
                // Round by round, so that a slow round counts on both sides.
                let ratio = |s: &Spent| s.floor[verb].as_secs_f64() / s.ours[verb].as_secs_f64();
                let ratio = median(spent.iter().map(ratio).collect());
                let missed = || format!("{fs} {name} batch {batch} {label}: {ratio:.2} < {TARGET}");
                let mark = targets.expect(ratio >= TARGET, missed);
                println!(
                    "{fs:<7} {name:<8} {batch:>5}  {label:<6} {floor:>10.1} {ours:>10.1} {ratio:>7.2}{mark}"
                );
            }
        }
    }
}

struct Sides {
    bare: Bare,
    ours: Ours,
    payload: String,
}

impl Sides {
    fn new(dir: &Path, samples: &Samples, durable: bool) -> Self {
        std::fs::create_dir(dir).unwrap();
        Self {
            bare: Bare::new(&dir.join("bare"), samples.clone(), durable),
            ours: Ours::open(&dir.join("ours"), durable),
            payload: payload(),
        }
    }

    /// Takes so many tasks through their lives on both sides.
    fn round(&mut self, tasks: usize, batch: usize) -> Spent {
        let mut spent = Spent::default();
        let names = self.bare.names(tasks);
        for turn in names.chunks(TURN) {
            timed(&mut spent.floor[0], || turn.iter().for_each(|at| self.bare.push(at)));
            timed(&mut spent.ours[0], || {
                for at in (0..TURN).step_by(batch) {
                    self.ours.push(&self.payload, batch.min(TURN - at), None);
                }
            });
        }
        for turn in Paths::in_shard_order(names).chunks(TURN) {
            let floor = &mut spent.floor;
            let held: Vec<_> =
                timed(&mut floor[1], || turn.iter().map(|at| self.bare.claim(at)).collect());
            let claimed = timed(&mut spent.ours[1], || self.ours.claim_all(TURN, batch));
            timed(&mut floor[2], || {
                turn.iter().zip(held).for_each(|(at, folder)| self.bare.ack(at, folder));
            });
            timed(&mut spent.ours[2], || {
                for receipts in claimed.chunks(batch) {
                    self.ours.ack(receipts.to_vec());
                }
            });
        }
        spent
    }
}
