//! Many processes on one queue, some of them killed and some stopped for longer than their leases.
//!
//! This program is parent and worker in one: the parent pushes tasks, starts itself again as workers
//! and sends them signals. Every worker writes down what it asked the queue and what the queue
//! answered; at the end the parent compares these accounts with each other and with the tree. What
//! counts as proof is only what cannot be otherwise: each event lies between two readings of a clock
//! that all processes share, and an order is asserted only where these intervals do not overlap.
//!
//! ```text
//! cargo test -p dfq --test race                      8 processes, 2,000 tasks, three rounds
//! cargo test -p dfq --test race -- --long            16 processes, 20,000 tasks
//!     --seed N   --rounds N   --dir DIR   --processes N   --tasks N
//!
//! cargo test -p dfq --test race -- --s3 ENDPOINT     in a bucket, with what `servers/` starts
//! cargo test -p dfq --test race -- --own-server      in a bucket on a server within the parent
//!     --faults N                                     which does wrong to N % of the requests
//!     --lag MILLISECONDS                             and whose listings are behind by up to this
//! ```

#![allow(clippy::disallowed_macros, reason = "a program of its own, whose stderr is there")]

#[path = "race/crew.rs"]
mod crew;
#[path = "race/journal.rs"]
mod journal;
#[path = "race/site.rs"]
mod site;
#[path = "race/verify.rs"]
mod verify;
#[path = "race/worker.rs"]
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use dfq::Env;
use dfq::clock::{SeededChance, SystemClock};
use dfq_s3_server::{Credential, Faults, Options, Server};
use tokio::runtime::Runtime;

use crate::site::{BUCKET, KEYS, Site};

/// What a run looks like. The seed decides the rest.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    workers: usize,
    tasks: usize,
    rounds: u64,
    dir: PathBuf,
    /// A server of others.
    s3: Option<String>,
    /// One of our own.
    own_server: bool,
    /// Of a hundred requests to it, how many go wrong.
    faults: u32,
    /// How far behind its listings are, in milliseconds.
    lag: u64,
}

/// What cargo and the test harness's users pass, and what means nothing here.
fn plan(mut args: impl Iterator<Item = String>) -> Result<Option<Plan>, String> {
    let mut plan = Plan {
        seed: Env::system().next_u64() >> 32,
        workers: 8,
        tasks: 2_000,
        rounds: 3,
        dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        s3: None,
        own_server: false,
        faults: 0,
        lag: 0,
    };
    let mut long = std::env::var("DFQ_RACE").is_ok_and(|length| length == "long");
    let (mut workers, mut tasks, mut rounds) = (None, None, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{arg}: {e}"));
        match arg.as_str() {
            "--list" => return Ok(None),
            "--long" => long = true,
            "--dir" => plan.dir = PathBuf::from(value()?),
            "--seed" => plan.seed = number(value()?)?,
            "--rounds" => rounds = Some(number(value()?)?),
            "--s3" => plan.s3 = Some(value()?),
            "--own-server" => plan.own_server = true,
            "--faults" => plan.faults = number(value()?)?.min(100) as u32,
            "--lag" => plan.lag = number(value()?)?,
            "--workers" | "--processes" => workers = Some(number(value()?)? as usize),
            "--tasks" => tasks = Some(number(value()?)? as usize),
            "--test-threads" | "--skip" | "--color" | "--format" | "-Z" => _ = value()?,
            _ => {}
        }
    }
    if plan.s3.is_some() || plan.own_server {
        (plan.tasks, plan.rounds) = (1_000, 1);
    }
    if long {
        (plan.workers, plan.tasks, plan.rounds) = (16, 20_000, 1);
    }
    plan.workers = workers.unwrap_or(plan.workers).max(2);
    plan.tasks = tasks.unwrap_or(plan.tasks);
    plan.rounds = rounds.unwrap_or(plan.rounds);
    Ok(Some(plan))
}

/// Chance that a seed decides, and the real clock.
fn seeded(seed: u64) -> Env {
    Env::new(Arc::new(SystemClock), Arc::new(SeededChance::new(seed)))
}

/// True once in `n` times.
fn one_in(env: &Env, n: usize) -> bool {
    env.below(n) == 0
}

/// The clock of all accounts, in nanoseconds: the same for every process on this machine.
fn now(env: &Env) -> u64 {
    u64::try_from(env.monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// A server of our own that does wrong, in every way there is, from a seed.
async fn own_server(plan: &Plan, seed: u64) -> std::io::Result<Server> {
    let list_lag = std::time::Duration::from_millis(plan.lag);
    let mut faults = Faults { seed, list_lag, ..Faults::default() };
    // Six of them can happen to any request, the others to some: no request is safer than asked for.
    let rate = f64::from(plan.faults) / 100.0 / 6.0;
    for name in Faults::NAMES {
        let _ = faults.set(name, rate);
    }
    let credential = Credential::new(KEYS.0, KEYS.1);
    Server::start(Options { bucket: BUCKET.to_owned(), credential, faults, ..Options::default() })
        .await
}

fn round(plan: &Plan, seed: u64) -> Result<(), String> {
    let dir = plan.dir.join(format!("race-{}-{seed}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    let runtime = Runtime::new().map_err(|e| e.to_string())?;
    let server = match plan.own_server {
        true => Some(runtime.block_on(own_server(plan, seed)).map_err(|e| e.to_string())?),
        false => None,
    };
    let endpoint = server.as_ref().map(Server::endpoint).or_else(|| plan.s3.clone());
    let site = Site { dir: dir.clone(), endpoint };
    let summary = crew::run(plan, seed, &site, &runtime, server.as_ref())
        .and_then(|told| runtime.block_on(verify::verify(&site, &told)));
    match summary {
        Ok(summary) => {
            println!("race: seed {seed}, {summary}");
            let _ = std::fs::remove_dir_all(&dir);
            runtime.block_on(site.remove());
            Ok(())
        }
        Err(error) => Err(format!("seed {seed}: {error}\n(left in {})", dir.display())),
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if let Ok(seed) = std::env::var(worker::SEED) {
        let dir = args.next().unwrap_or_default();
        return worker::main(Path::new(&dir), &args.next().unwrap_or_default(), &seed);
    }
    let plan = match plan(args) {
        Ok(Some(plan)) => plan,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("race: {error}");
            return ExitCode::from(2);
        }
    };
    for number in 0..plan.rounds {
        if let Err(error) = round(&plan, plan.seed.wrapping_add(number)) {
            println!("race: FAILED, {error}\nrace: 0 passed, 1 failed");
            return ExitCode::FAILURE;
        }
    }
    println!("race: 1 passed, 0 failed");
    ExitCode::SUCCESS
}
