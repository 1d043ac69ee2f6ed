//! Parts of the benchmark.

pub(crate) mod bare;
pub(crate) mod compare;
pub(crate) mod ours;
pub(crate) mod processes;
pub(crate) mod scale;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What kind of filesystem a directory is on.
pub(crate) fn filesystem(dir: &Path) -> String {
    let magic = rustix::fs::statfs(dir).unwrap().f_type as u32;
    let known = [
        (0xEF53, "ext4"),
        (0x0102_1994, "tmpfs"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x2FC1_2FC1, "zfs"),
        (0x794C_7630, "overlay"),
        (0x6969, "nfs"),
    ];
    let name = known.iter().find(|(number, _)| *number == magic);
    name.map_or_else(|| format!("{magic:#x}"), |(_, name)| (*name).to_owned())
}

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

/// The targets that were missed.
#[derive(Default)]
pub(crate) struct Targets(Vec<String>);

impl Targets {
    /// Notes whether a target was met, and answers a mark for the table.
    pub(crate) fn expect(&mut self, met: bool, what: impl FnOnce() -> String) -> &'static str {
        if met {
            return "";
        }
        self.0.push(what());
        "  <-"
    }

    pub(crate) fn missed(&self) -> &[String] {
        &self.0
    }
}
