//! What `dfq work` costs beside the command that it runs: the same list of words through `xargs -P`,
//! GNU parallel (if it is there) and `dfq work`, and the same tasks through `dfq work --stream` and
//! through the library, turn by turn in one run. Only the ratios mean anything: the machine may be
//! busy.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use dfq::worker::{Job, TaskResult, Until, Worker};
use dfq::{NewTask, OpenOptions};

const JOBS: usize = 8;

struct Options {
    tasks: usize,
    rounds: usize,
    dir: std::path::PathBuf,
}

fn main() {
    let mut options = Options { tasks: 2000, rounds: 5, dir: env!("CARGO_TARGET_TMPDIR").into() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--tasks" => options.tasks = args.next().unwrap().parse().unwrap(),
            "--rounds" => options.rounds = args.next().unwrap().parse().unwrap(),
            "--dir" => options.dir = args.next().unwrap().into(),
            // What cargo itself adds.
            "--bench" => {}
            other => panic!("unknown argument {other}: there are --tasks, --rounds and --dir"),
        }
    }
    let Options { tasks, rounds, dir } = &options;
    println!("{tasks} tasks, {JOBS} at once, in {}; median of {rounds} rounds", dir.display());
    let has_parallel = Command::new("parallel").arg("--version").output().is_ok();
    let mut times: Vec<(&str, Vec<f64>)> = vec![
        ("xargs -P", Vec::new()),
        ("GNU parallel", Vec::new()),
        ("dfq work", Vec::new()),
        ("the library", Vec::new()),
        ("dfq work --stream", Vec::new()),
    ];
    for _ in 0..*rounds {
        times[0].1.push(list(&["xargs", "-P8", "-n1", "true"], *tasks));
        if has_parallel {
            times[1].1.push(list(&["parallel", "-j8", "-n1", "true"], *tasks));
        }
        times[2].1.push(work(dir, *tasks, &["--", "true"]));
        times[3].1.push(library(dir, *tasks));
        let script = r#"while read -r line; do echo '{"ok":true}'; done"#;
        times[4].1.push(work(dir, *tasks, &["--stream", "--", "sh", "-c", script]));
    }
    let median = |times: &[f64]| {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    let base = [0, 0, 0, 3, 3];
    for (at, (name, taken)) in times.iter().enumerate() {
        let Some(seconds) = median(taken) else {
            println!("{name:18}  not installed");
            continue;
        };
        // Round by round, so that what else the machine did falls on both.
        let ratios: Vec<f64> =
            times[base[at]].1.iter().zip(taken).map(|(base, own)| base / own).collect();
        println!(
            "{name:18} {:8.0} tasks/s   {:.2} times {}",
            *tasks as f64 / seconds,
            median(&ratios).unwrap(),
            times[base[at]].0
        );
    }
}

/// A list of numbers through a command that runs another for each.
fn list(command: &[&str], tasks: usize) -> f64 {
    let began = Instant::now();
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let words: String = (0..tasks).map(|n| format!("{n}\n")).collect();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), words.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    began.elapsed().as_secs_f64()
}

fn fill(dir: &Path, tasks: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(dir).unwrap();
    let queue = folder.path().join("q");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let queue = dfq::open(queue, OpenOptions::create()).await.unwrap();
        let task = |n| NewTask::from_json(&format!("{{\"line\":\"{n}\"}}")).unwrap();
        for answer in queue.push((0..tasks).map(task).collect()).await {
            answer.unwrap();
        }
    });
    folder
}

fn work(dir: &Path, tasks: usize, more: &[&str]) -> f64 {
    let folder = fill(dir, tasks);
    let began = Instant::now();
    let status = Command::new(env!("CARGO_BIN_EXE_dfq"))
        .args(["work", "-q", "./q", "-j8", "--drain"])
        .args(more)
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    began.elapsed().as_secs_f64()
}

fn library(dir: &Path, tasks: usize) -> f64 {
    let folder = fill(dir, tasks);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let began = Instant::now();
    let report = runtime.block_on(async {
        let queue = dfq::open(folder.path().join("q"), OpenOptions::existing()).await.unwrap();
        let handler = |_: Job| async { TaskResult::Ack };
        Worker::new(Arc::clone(&queue), handler)
            .concurrency(JOBS)
            .until(Until::Drained)
            .run()
            .await
            .unwrap()
    });
    assert_eq!(report.completed, tasks as u64);
    began.elapsed().as_secs_f64()
}
