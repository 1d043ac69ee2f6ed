//! Many `dfq index` processes on one index, killed at random and started anew: some put and delete, some compact, some
//! look up. Afterwards the index must be what a model says that was told the same writes.
//!
//! ```text
//! cargo test -p dfq-cli --test index_race               in a folder, twice: as it is, and with all that may be wrong
//!     --all                                             every combination: with the lock and without, clocks right or not
//!     --own-server                                      in a bucket on a server within this program
//!     --faults N   --lag MILLISECONDS                   which does wrong to N % of the requests, whose listings lag
//!     --s3 ENDPOINT                                     in a bucket, with what `servers/` starts
//!     --seed N   --writers N   --compactors N   --rounds N   --dir DIR
//! ```
//!
//! The processes are the built `dfq`. Those whose clock is wrong are this program, which then does what `dfq` does.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]
#![allow(clippy::disallowed_macros, reason = "a program of its own, whose stderr is there")]

#[path = "index_race/book.rs"]
mod book;
#[path = "index_race/clock.rs"]
mod clock;
#[path = "index_race/crew.rs"]
mod crew;
#[path = "index_race/site.rs"]
mod site;
mod support;

use std::path::PathBuf;
use std::process::ExitCode;

use dfq::Env;

use crate::site::Site;

/// What a race looks like. The seed decides the rest, as far as processes let it.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    writers: usize,
    compactors: usize,
    /// Processes that each writer starts at the least, one after the other.
    rounds: usize,
    dir: PathBuf,
    s3: Option<String>,
    own_server: bool,
    /// Of a hundred requests to our own server, how many go wrong.
    faults: u32,
    /// How far behind its listings are, in milliseconds.
    lag: u64,
    /// Every combination of what may be wrong.
    all: bool,
}

/// What is wrong in one race.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    /// Nobody takes the lock of a shard.
    no_lock: bool,
    /// Half of the processes have a clock that is an hour off.
    clocks: bool,
}

impl Wrong {
    const fn new(no_lock: bool, clocks: bool) -> Self {
        Self { no_lock, clocks }
    }

    fn name(self) -> String {
        let lock = if self.no_lock { "without the lock" } else { "with the lock" };
        let clocks = if self.clocks { "half of the clocks an hour off" } else { "clocks right" };
        format!("{lock}, {clocks}")
    }
}

/// What cargo and the test harness's users pass, and what means nothing here.
fn plan(mut args: impl Iterator<Item = String>) -> Result<Option<Plan>, String> {
    let mut plan = Plan {
        seed: Env::system().next_u64() >> 32,
        writers: 8,
        compactors: 8,
        rounds: 12,
        dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        s3: None,
        own_server: false,
        faults: 0,
        lag: 0,
        all: false,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{arg}: {e}"));
        match arg.as_str() {
            "--list" => return Ok(None),
            "--all" => plan.all = true,
            "--own-server" => plan.own_server = true,
            "--s3" => plan.s3 = Some(value()?),
            "--dir" => plan.dir = PathBuf::from(value()?),
            "--seed" => plan.seed = number(value()?)?,
            "--faults" => plan.faults = number(value()?)?.min(100) as u32,
            "--lag" => plan.lag = number(value()?)?,
            "--writers" => plan.writers = number(value()?)?.max(1) as usize,
            "--compactors" => plan.compactors = number(value()?)?.max(1) as usize,
            "--rounds" => plan.rounds = number(value()?)? as usize,
            "--test-threads" | "--skip" | "--color" | "--format" | "-Z" => _ = value()?,
            _ => {}
        }
    }
    Ok(Some(plan))
}

fn main() -> ExitCode {
    if let Some(env) = clock::wrong() {
        return dfq_cli::main_in(env);
    }
    let plan = match plan(std::env::args().skip(1)) {
        Ok(Some(plan)) => plan,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("index race: {error}");
            return ExitCode::from(2);
        }
    };
    let mut races = vec![Wrong::new(false, false), Wrong::new(true, true)];
    if plan.all {
        races.extend([Wrong::new(true, false), Wrong::new(false, true)]);
    }
    for (number, wrong) in races.into_iter().enumerate() {
        let seed = plan.seed.wrapping_add(number as u64);
        println!("index race: seed {seed}, {}", wrong.name());
        let site = Site::new(&plan, seed);
        match crew::race(&plan, seed, wrong, &site).and_then(|book| site.verify(&book)) {
            Ok(()) => {}
            Err(error) => {
                println!("index race: FAILED, seed {seed}, {}: {error}", wrong.name());
                println!("index race: 0 passed, 1 failed (left at {})", site.leave());
                return ExitCode::FAILURE;
            }
        }
    }
    println!("index race: 1 passed, 0 failed");
    ExitCode::SUCCESS
}
