//! The same for indexes.

use std::io::Write;

use anyhow::Result;
use dfq::planted::{self, Planted};
use dfq_sim::campaign::Campaign;
use dfq_sim::history::Tally;
use dfq_sim::index::{self, Indexes, Plan};

use super::Args;

/// Does what the arguments say; whether all is well.
pub(super) fn main(args: &Args, campaign: &Campaign) -> Result<bool> {
    let bug = match args.planted.as_deref() {
        Some("each") => return Ok(each_is_found(campaign)),
        Some(name) => Some(super::one(name)?),
        None => None,
    };
    if let Some(seed) = args.replay {
        return Ok(replay(seed, args, bug));
    }
    let found = index::campaign(&Campaign { planted: bug, ..*campaign });
    for (seed, violations) in &found.failed {
        for violation in violations {
            println!("seed {seed}: {violation}");
        }
    }
    let Indexes { seeds, calls, writes, compactions, reads, failed, tally } = &found;
    println!("{seeds} seeds, {calls} calls");
    println!("{writes} records put or keys deleted, {compactions} compactions, {reads} reads");
    let Tally { killed, stalled, power_cuts, jumps } = tally;
    println!(
        "{killed} processes killed, {stalled} stalled, {power_cuts} power cuts, {jumps} clocks set"
    );
    println!("{} failed", failed.len());
    Ok(failed.is_empty())
}

fn each_is_found(campaign: &Campaign) -> bool {
    println!("| planted | rule | seeds | found by |\n| --- | --- | --- | --- |");
    let mut missed = 0;
    for bug in Planted::ALL.iter().copied().filter(|bug| index::is_of_an_index(*bug)) {
        let found = index::campaign(&Campaign { planted: Some(bug), ..*campaign });
        let (name, rule) = (bug.name(), bug.rule());
        match found.failed.first() {
            Some((seed, violations)) => {
                let first = violations.first().map_or("", |it| it.rule);
                println!("| `{name}` | {rule} | {} | seed {seed}: {first} |", found.seeds);
            }
            None => {
                missed += 1;
                println!("| `{name}` | {rule} | not in {} | |", found.seeds);
            }
        }
        let _ = std::io::stdout().flush();
    }
    println!("\n{missed} not found");
    missed == 0
}

/// Prints what happens under a seed; whether all is well.
fn replay(seed: u64, args: &Args, bug: Option<Planted>) -> bool {
    planted::plant(bug);
    let mut plan = Plan::drawn(seed);
    if !args.whole
        && let Some(first) = index::run(&plan, false).violations.first()
    {
        println!("shrinking the plan of seed {seed} ...\n");
        plan = index::shrink(&plan, first.rule, 400);
    }
    let outcome = index::run(&plan, args.all);
    println!("{plan}\n{}", outcome.history.text());
    for violation in &outcome.violations {
        println!("{violation}");
    }
    outcome.violations.is_empty()
}
