//! The same for synced queues.

use anyhow::Result;
use dfq::planted::{self, Planted};
use dfq_sim::campaign::Campaign;
use dfq_sim::synced::{self, Merges};

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
    let found = campaign_with(campaign, bug);
    for (seed, violations) in &found.failed {
        for violation in violations {
            println!("seed {seed}: {violation}");
        }
    }
    let Merges { seeds, passes, most_rounds, failed, .. } = &found;
    println!("{seeds} seeds, {passes} passes before all was calm");
    println!("after that at most {most_rounds} rounds of passes until nothing changed");
    println!("{} failed", failed.len());
    Ok(failed.is_empty())
}

fn campaign_with(campaign: &Campaign, bug: Option<Planted>) -> Merges {
    synced::campaign(&Campaign { planted: bug, ..*campaign })
}

fn each_is_found(campaign: &Campaign) -> bool {
    println!("| planted | rule | seeds | found by |\n| --- | --- | --- | --- |");
    let mut missed = 0;
    for bug in Planted::ALL.iter().copied().filter(|bug| synced::is_of_a_merge(*bug)) {
        let found = campaign_with(campaign, Some(bug));
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
    }
    println!("\n{missed} not found");
    missed == 0
}

/// Prints what happens under a seed; whether all is well.
fn replay(seed: u64, args: &Args, bug: Option<Planted>) -> bool {
    planted::plant(bug);
    let mut plan = synced::Plan::drawn(seed);
    if !args.whole
        && let Some(first) = synced::run(&plan, false).violations.first()
    {
        println!("shrinking the plan of seed {seed} ...\n");
        plan = synced::shrink(&plan, first.rule, 400);
    }
    let outcome = synced::run(&plan, args.all);
    let synced::Plan { ahead, stormy, together, .. } = &plan;
    println!("{} nodes, stormy: {stormy}, together: {together}, ahead: {ahead:?}", ahead.len());
    for step in &plan.steps {
        println!("{step}");
    }
    println!("\n{}", outcome.history.text());
    for violation in &outcome.violations {
        println!("{violation}");
    }
    outcome.violations.is_empty()
}
