//! Runs the real library in virtual time under seeds, and says what was wrong.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use clap::Parser;
use dfq::planted::{self, Planted};
use dfq_sim::campaign::{Campaign, Found};
use dfq_sim::history::Tally;
use dfq_sim::plan::{On, Plan};
use dfq_sim::run::run;
use dfq_sim::shrink::shrink;
use dfq_sim::timeline::Timeline;

/// Runs dfq in virtual time, on simulated stores, under seeds. Ends with 1 if a promise was broken.
#[derive(Debug, Parser)]
#[command(name = "dfq-sim")]
struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Only plans on this store. By default even seeds are on a disk, odd ones in a bucket
    #[arg(long)]
    on: Option<On>,
    /// Replay one seed: print the shortest plan that still fails, and its history as a timeline
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from"])]
    replay: Option<u64>,
    /// With --replay: do not shrink the plan first
    #[arg(long, requires = "replay")]
    whole: bool,
    /// With --replay: print every call, whatever it was about
    #[arg(long, requires = "replay")]
    all: bool,
    /// Leave out this rule of the protocol, by its name, or `each` of them in turn, and see how soon that is found
    #[arg(long, value_name = "NAME")]
    planted: Option<String>,
    /// Run synced queues: several nodes, each with a folder, and a hub
    #[arg(long, conflicts_with = "on")]
    synced: bool,
    /// Run indexes: writers, compactors and readers of one index
    #[arg(long, conflicts_with_all = ["on", "synced"])]
    index: bool,
    /// How many threads; by default as many as there are cores
    #[arg(long)]
    threads: Option<usize>,
}

#[path = "main_index.rs"]
mod index;
#[path = "main_synced.rs"]
mod synced;

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign {
        from: args.from,
        seeds: args.seeds,
        on: args.on,
        planted: None,
        threads: args.threads.unwrap_or(cores),
        until_found: args.planted.is_some(),
    };
    if args.synced {
        let well = synced::main(&args, &campaign)?;
        return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if args.index {
        let well = index::main(&args, &campaign)?;
        return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let well = match (&args.replay, args.planted.as_deref()) {
        (Some(seed), name) => replay(*seed, &args, name.map(one).transpose()?),
        (None, None) => all_is_well(&campaign),
        (None, Some("each")) => each_is_found(&campaign),
        (None, Some(name)) => is_found(&campaign, one(name)?),
    };
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(name: &str) -> Result<Planted> {
    match name.parse() {
        Ok(planted) => Ok(planted),
        Err(_) => {
            let names: Vec<_> = Planted::ALL.iter().map(|it| it.name()).collect();
            bail!("no bug is called '{name}'; there are: each, {}", names.join(", "))
        }
    }
}

/// Whether no seed fails.
fn all_is_well(campaign: &Campaign) -> bool {
    let done = AtomicU64::new(0);
    let found = campaign.run(&|seed, violations| {
        for violation in violations {
            println!("seed {seed}: {violation}");
        }
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(500) {
            println!("{done} seeds");
        }
        let _ = std::io::stdout().flush();
    });
    let Found { failed, seeds, steps, calls, faults, tally } = &found;
    println!("{seeds} seeds, {calls} calls, {steps} steps, {faults} planned faults");
    let Tally { killed, stalled, power_cuts, jumps } = tally;
    println!(
        "{killed} processes killed, {stalled} stalled, {power_cuts} power cuts, {jumps} clocks set"
    );
    println!("{} failed", failed.len());
    if let Some((seed, _)) = failed.first() {
        let on = campaign.on.map(|on| format!(" --on {on:?}").to_lowercase()).unwrap_or_default();
        println!("To see what happened: cargo run --release -p dfq-sim -- --replay {seed}{on}");
    }
    failed.is_empty()
}

/// Whether a planted bug is found.
fn is_found(campaign: &Campaign, planted: Planted) -> bool {
    let found = Campaign { planted: Some(planted), ..*campaign }.run(&|_, _| {});
    let (name, rule) = (planted.name(), planted.rule());
    match found.failed.first() {
        Some((seed, violations)) => {
            let first = violations.first().map_or("", |it| it.rule);
            println!("| `{name}` | {rule} | {} | seed {seed}: {first} |", found.seeds);
        }
        None => println!("| `{name}` | {rule} | not in {} | |", found.seeds),
    }
    let _ = std::io::stdout().flush();
    !found.failed.is_empty()
}

fn each_is_found(campaign: &Campaign) -> bool {
    println!("| planted | rule | seeds | found by |\n| --- | --- | --- | --- |");
    let is_elsewhere =
        |it| dfq_sim::synced::is_of_a_merge(it) || dfq_sim::index::is_of_an_index(it);
    let all = Planted::ALL.iter().copied().filter(|it| !is_elsewhere(*it));
    let (all, missed): (Vec<_>, Vec<_>) = all.map(|it| (it, is_found(campaign, it))).unzip();
    let missed = missed.into_iter().filter(|found| !found).count();
    println!("\n{missed} of {} not found", all.len());
    missed == 0
}

/// Prints what happens under a seed; whether all is well.
fn replay(seed: u64, args: &Args, bug: Option<Planted>) -> bool {
    planted::plant(bug);
    let mut plan = Plan::drawn(seed, args.on);
    if !args.whole
        && let Some(first) = run(&plan, false).violations.first()
    {
        println!("shrinking the plan of seed {seed} ...\n");
        plan = shrink(&plan, first.rule, 600);
    }
    let outcome = run(&plan, true);
    let (entries, violations) = (outcome.history.entries(), &outcome.violations);
    print!("{}", Timeline { plan: &plan, entries: &entries, violations, all: args.all });
    violations.is_empty()
}
