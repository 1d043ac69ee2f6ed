//! How fast an index is compacted, beside DuckDB and a plain merge; how much memory it takes; how much a lookup reads.
//!
//! `cargo bench -p dfq --bench index -- [--dir DIR]... [--records N] [--waves W] [--check]`. By default there are a million
//! records in ten waves. DuckDB is asked if `DFQ_TEST_PYTHON` names a Python that has it (`servers/python-tools install`
//! prints one). With `--check` a missed target ends in exit code 1: compaction is faster than DuckDB from the second wave
//! on, ten times as many records take at most 16 MB more, and a lookup reads less than 64 KB.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark measures real time"
)]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run has nothing to report")]

#[path = "index/merge.rs"]
mod merge;
#[path = "index/records.rs"]
mod records;
#[path = "index/sizes.rs"]
mod sizes;
#[path = "support/targets.rs"]
mod support;
#[path = "index/waves.rs"]
mod waves;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use support::{Targets, filesystem};

struct Options {
    dirs: Vec<PathBuf>,
    records: usize,
    waves: usize,
    check: bool,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { dirs: Vec::new(), records: 1_000_000, waves: 10, check: false };
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().and_then(|value| value.replace('_', "").parse().ok());
            value.filter(|n| *n > 0).ok_or_else(|| format!("{arg} wants a number"))
        };
        match &*arg {
            "--bench" => {} // cargo says so
            "--check" => options.check = true,
            "--records" => options.records = number()?,
            "--waves" => options.waves = number()?,
            "--dir" => options.dirs.push(args.next().ok_or("--dir wants a directory")?.into()),
            _ => return Err(format!("'{arg}' is not known; see the top of benches/index.rs")),
        }
    }
    if options.dirs.is_empty() {
        options.dirs.push(env!("CARGO_TARGET_TMPDIR").into());
        options.dirs.extend(Some("/dev/shm".into()).filter(|dir: &PathBuf| dir.is_dir()));
    }
    match options.records >= 100 * options.waves {
        true => Ok(options),
        false => Err("there must be 100 records or more in each wave".to_owned()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, dir, count] = &args[..]
        && ["--import", "--scan", "--compact"].contains(&&**verb)
    {
        sizes::as_told(verb, Path::new(dir), count.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    let options = match parse(args.into_iter()) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let Options { dirs, records, waves, check } = options;
    let mut targets = Targets::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for dir in dirs {
        println!("{}: {}", dir.display(), filesystem(&dir));
        let part = |name| tempfile::Builder::new().prefix(name).tempdir_in(&dir).unwrap();
        waves::run(part("waves").path(), &runtime, waves, records / waves, &mut targets);
        sizes::run(part("sizes").path(), &runtime, records, &mut targets);
    }
    for missed in targets.missed() {
        eprintln!("missed: {missed}");
    }
    ExitCode::from(u8::from(check && !targets.missed().is_empty()))
}
