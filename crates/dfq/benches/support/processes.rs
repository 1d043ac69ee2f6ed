//! Two processes on two cores against one, on the same number of tasks.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Instant;

use super::ours::Ours;
use super::{Targets, filesystem, median, peak_memory_kb, worker};

pub(crate) fn run(dir: &Path, tasks: usize, rounds: usize, targets: &mut Targets) {
    let fs = filesystem(dir);
    for durable in [true, false] {
        let name = if durable { "durable" } else { "relaxed" };
        let at = dir.join(format!("processes-{name}"));
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (count, rates) in (1..).zip(&mut rates) {
                rates.push(tasks as f64 / drain(&at, tasks, durable, count));
            }
        }
        let [one, two] = rates.map(median);
        let ratio = two / one;
        let missed = || format!("{fs} {name}: two processes do {ratio:.2} times what one does");
        let mark = targets.expect(ratio > 1.0, missed);
        println!("{fs:<7} {name:<8} {one:>12.0} {two:>12.0} {ratio:>7.2}{mark}");
    }
}

/// Seconds that so many processes take for so many tasks, from the word "go".
fn drain(dir: &Path, tasks: usize, durable: bool, count: usize) -> f64 {
    let queue = Ours::open(dir, durable);
    queue.fill(tasks, None);
    let mut workers: Vec<_> = (0..count).map(|_| worker(dir, durable)).collect();
    let mut outputs = Vec::new();
    for worker in &mut workers {
        let mut output = BufReader::new(worker.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        outputs.push(output);
    }
    let start = Instant::now();
    for worker in &mut workers {
        worker.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
    let mut done = 0;
    for output in &mut outputs {
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        done += said.split_whitespace().next().unwrap().parse::<usize>().unwrap();
    }
    let spent = start.elapsed().as_secs_f64();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(done, tasks);
    spent
}

/// The other side of it: says that it is ready, waits for the word, and says what it did.
pub(crate) fn drain_as_told(dir: &Path, durable: bool) {
    let queue = Ours::open(dir, durable);
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let done = queue.drain(64);
    println!("{done} {}", peak_memory_kb());
}
