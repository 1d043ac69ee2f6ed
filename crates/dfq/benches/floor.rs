//! How fast the library is, against the bare system calls that the layout demands.
//!
//! `cargo bench --bench floor -- [--dir DIR]... [--tasks N] [--batch B] [--rounds R] [--check]` takes
//! tasks of 300 bytes through push, claim and ack; the ratio is the floor's time over ours, 0.7 or more wanted.
//! The floor is a plain loop over single tasks, also where the library gets a batch: where it shares
//! a lease's inode or a folder's fsync among the batch, it can be faster than its floor.
//!
//! `--scale [N]` compares a claim among N tasks with one among 1,000; `--processes` two processes
//! with one. With `--check` a missed target ends in exit code 1.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark measures real time"
)]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run has nothing to report")]

mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use support::{Targets, compare, filesystem, processes, scale};

enum Mode {
    Compare,
    Scale(usize),
    Processes,
}

struct Options {
    mode: Mode,
    dirs: Vec<PathBuf>,
    tasks: usize,
    batches: Vec<usize>,
    rounds: usize,
    check: bool,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        mode: Mode::Compare,
        dirs: Vec::new(),
        tasks: 2048,
        batches: vec![1, 64],
        rounds: 5,
        check: false,
    };
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.peek().and_then(|value| value.replace('_', "").parse().ok());
            value.inspect(|_| _ = args.next())
        };
        let wanted = || format!("{arg} wants a number");
        match &*arg {
            "--bench" => {} // cargo says so
            "--check" => options.check = true,
            "--scale" => options.mode = Mode::Scale(number().unwrap_or(100_000)),
            "--processes" => options.mode = Mode::Processes,
            "--tasks" => options.tasks = number().ok_or_else(wanted)?,
            "--batch" => options.batches = vec![number().filter(|n| *n > 0).ok_or_else(wanted)?],
            "--rounds" => options.rounds = number().filter(|n| *n > 0).ok_or_else(wanted)?,
            "--dir" => options.dirs.push(args.next().ok_or("--dir wants a directory")?.into()),
            _ => return Err(format!("'{arg}' is not known; see the top of benches/floor.rs")),
        }
    }
    if let Some(dir) = options.dirs.iter().find(|dir| !dir.is_dir()) {
        return Err(format!("there is no directory '{}'", dir.display()));
    }
    if options.dirs.is_empty() {
        options.dirs.push(env!("CARGO_TARGET_TMPDIR").into());
        options.dirs.extend(Some("/dev/shm".into()).filter(|dir: &PathBuf| dir.is_dir()));
    }
    Ok(options)
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    if let Some(role) = args.next_if(|arg| arg.starts_with("--drain")) {
        let dir = args.next().unwrap_or_default();
        processes::drain_as_told(Path::new(&dir), role == "--drain");
        return ExitCode::SUCCESS;
    }
    let options = match parse(args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let mut targets = Targets::default();
    for dir in &options.dirs {
        println!("{}: {}", dir.display(), filesystem(dir));
    }
    match options.mode {
        Mode::Compare => println!("\nfs      durable  batch  verb     floor µs    ours µs   ratio"),
        Mode::Scale(_) => println!("\nfs      claims, µs{:>37} {:>10}   ratio", "of 1000", "here"),
        Mode::Processes => println!("\nfs      durable   one, tasks/s two, tasks/s   ratio"),
    }
    for dir in &options.dirs {
        let dir = tempfile::tempdir_in(dir).unwrap();
        match options.mode {
            Mode::Compare => {
                let Options { tasks, batches, rounds, .. } = &options;
                compare::run(dir.path(), *tasks, batches, *rounds, &mut targets);
            }
            Mode::Scale(n) => scale::run(dir.path(), n, &mut targets),
            Mode::Processes => {
                processes::run(dir.path(), options.tasks, options.rounds, &mut targets)
            }
        }
    }
    for missed in targets.missed() {
        eprintln!("missed: {missed}");
    }
    ExitCode::from(u8::from(options.check && !targets.missed().is_empty()))
}
