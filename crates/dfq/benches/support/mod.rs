//! Parts of the benchmark.

pub(crate) mod bare;
pub(crate) mod compare;
pub(crate) mod ours;
pub(crate) mod processes;
pub(crate) mod scale;
mod targets;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) use targets::{Targets, filesystem, peak_memory_kb};

/// How long `work` takes is added to `total`.
pub(crate) fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let answer = work();
    *total += start.elapsed();
    answer
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Another process of this program: a worker that drains the queue in `dir` once it is told to go.
pub(crate) fn worker(dir: &Path, durable: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(if durable { "--drain" } else { "--drain-relaxed" }).arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}
