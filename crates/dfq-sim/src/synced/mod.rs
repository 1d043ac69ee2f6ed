//! Synced queues: several nodes, each with a folder, and a hub; users and supervisors on each, who are cut off, killed
//! and have wrong clocks. Once all is calm, passes must come to rest, and then all places are the same.
//!
//! Invariant: the outcome of a run is a function of its plan.

mod aimed;
mod check;
mod life;
mod plan;
mod town;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dfq::planted::{self, Planted};
use dfq::queue::merge::Merge;
use dfq::{PollRequest, Queue};

pub use plan::{Deed, Plan, Step};

use crate::campaign::Campaign;
use crate::check::Violation;
use crate::history::History;
use crate::node;
use crate::world::Ended;
use plan::{LEASE, PERIOD};
use town::Town;

const LONGEST: Duration = Duration::from_secs(5 * 24 * 3600);
const MOST_STEPS: u64 = 6_000_000;

/// So many rounds of passes, one on each node, are enough once nothing else happens.
pub const MOST_ROUNDS: u64 = 6;

/// So many rounds of work drain a queue.
const MOST_TURNS: usize = 120;

/// What came of a run.
pub struct Outcome {
    /// What was wrong.
    pub violations: Vec<Violation>,
    /// What happened.
    pub history: Arc<History>,
    /// Rounds of passes until nothing changed.
    pub rounds: u64,
    /// Passes before all was calm.
    pub passes: u64,
}

/// Carries out a plan.
pub fn run(plan: &Plan, keeps_calls: bool) -> Outcome {
    let town = Town::new(plan.clone(), keeps_calls);
    let mut violations = Vec::new();
    for node in 0..town.houses.len() {
        life::start_user(&town, node);
        life::start_supervisor(&town, node);
    }
    let all_over = || town.houses.iter().all(|it| it.is_over.load(Ordering::Relaxed));
    let ended = town.world.run(LONGEST, MOST_STEPS, all_over);
    if ended != Ended::Done {
        let text = format!("{ended:?} before all are through with their plans");
        violations.push(Violation { rule: "everybody comes to an end", text });
    }
    town.calm_down();
    town.note("all is calm");
    let (done, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let checked = Arc::new(Mutex::new(Vec::new()));
    settle(&town, &done, &rounds, &checked);
    let by = town.world.now() + LONGEST;
    let ended = town.world.run(by, MOST_STEPS, || done.load(Ordering::Relaxed));
    if ended != Ended::Done {
        let text = format!("{ended:?} before the places have come to rest");
        violations.push(Violation { rule: "passes come to rest", text });
    }
    violations.append(&mut town::lock(&checked));
    violations.extend(watch::check(&town));
    town.world.end();
    let passes = town.passes.load(Ordering::Relaxed);
    let history = Arc::clone(&town.history);
    Outcome { violations, history, rounds: rounds.load(Ordering::Relaxed), passes }
}

/// Merges until nothing changes, looks whether all is well, has all done, and looks again.
fn settle(
    town: &Arc<Town>,
    done: &Arc<AtomicBool>,
    rounds: &Arc<AtomicU64>,
    checked: &Arc<Mutex<Vec<Violation>>>,
) {
    let pid = town.world.start_process();
    let (town, done, rounds) = (Arc::clone(town), Arc::clone(done), Arc::clone(rounds));
    let (checked, world) = (Arc::clone(checked), Arc::clone(&town.world));
    let work = async move {
        let _done = OnEnd(Arc::clone(&done));
        let wrong = |rule, text| town::lock(&checked).push(Violation { rule, text });
        let mut nodes = Vec::new();
        for number in 0..town.houses.len() {
            let env = node::env(&town.world, &town.houses[number].node, pid);
            let door = town.door(pid, None);
            let (Ok(folder), Ok(hub)) =
                (town.folder(number, &door, &env).await, town.hub(&door, &env).await)
            else {
                return;
            };
            match Merge::new(&folder, &hub).await {
                Ok(merge) => nodes.push((env, folder, merge)),
                Err(error) => return wrong("places can be opened", error.to_string()),
            }
        }
        // What was held is over by then, and what was on its way has arrived.
        nodes[0].0.clock().sleep(LEASE * 2 + PERIOD * 4).await;
        let is_quiet = |house: &town::House| {
            let pid = *town::lock(&house.supervisor);
            house.is_quiet.load(Ordering::Relaxed) || pid.is_some_and(|pid| town.world.is_dead(pid))
        };
        while !town.houses.iter().all(is_quiet) {
            nodes[0].0.clock().sleep(PERIOD).await;
        }
        let mut round = 0;
        loop {
            let mut calm = true;
            for (number, (_, _, merge)) in nodes.iter_mut().enumerate() {
                match merge.pass(true).await {
                    Ok(passed) => {
                        calm &= passed.is_calm();
                        if !passed.is_calm() {
                            town.note(format!("round {round}, node {number}: {passed:?}"));
                        }
                    }
                    Err(error) => return wrong("passes come to rest", error.to_string()),
                }
            }
            round += 1;
            rounds.store(round, Ordering::Relaxed);
            if calm {
                break;
            }
            if round > MOST_ROUNDS {
                wrong("passes come to rest", format!("{round} rounds still change things"));
                break;
            }
        }
        town::lock(&checked).extend(check::check(&town, false));
        for turn in 0..MOST_TURNS {
            for (_, folder, merge) in &mut nodes {
                if let Err(error) = merge.pass(turn % 4 == 3).await {
                    return wrong("passes come to rest", error.to_string());
                }
                let Ok(polled) = folder.poll(PollRequest::new(10)).await else { continue };
                for delivery in polled.deliveries {
                    let number = check::number_in(delivery.payload.as_json());
                    if folder.ack(vec![delivery.receipt]).await.remove(0).is_ok() {
                        town.accounts().acked.extend(number);
                    }
                }
            }
            if check::is_drained(&town) && turn > 8 {
                break;
            }
            nodes[0].0.clock().sleep(PERIOD).await;
        }
        for _ in 0..3 {
            for (_, _, merge) in &mut nodes {
                let _ = merge.pass(true).await;
            }
        }
        town::lock(&checked).extend(check::check(&town, true));
    };
    world.spawn(pid, Box::pin(work));
}

/// Tells that something has come to its end, however it did.
struct OnEnd(Arc<AtomicBool>);

impl Drop for OnEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The shortest plan that still breaks this rule, as far as it can be found in so many runs.
pub fn shrink(plan: &Plan, rule: &str, mut runs: usize) -> Plan {
    let mut shortest = plan.clone();
    let mut size = shortest.steps.len().div_ceil(2);
    while size > 0 && runs > 0 {
        let (mut at, mut shorter) = (0, false);
        while at < shortest.steps.len() && runs > 0 {
            let mut tried = shortest.clone();
            let until = (at + size).min(tried.steps.len());
            tried.steps.drain(at..until);
            runs -= 1;
            match run(&tried, false).violations.iter().any(|it| it.rule == rule) {
                true => (shortest, shorter) = (tried, true),
                false => at += size,
            }
        }
        if !shorter {
            size /= 2;
        }
    }
    shortest
}

/// Whether this bug is in what merges.
pub fn is_of_a_merge(bug: Planted) -> bool {
    bug.rule().starts_with('R') || ["scheduled", "others' leases"].contains(&bug.rule())
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Merges {
    /// Seeds that failed, ascending, with what was wrong.
    pub failed: Vec<(u64, Vec<Violation>)>,
    /// Seeds that were run.
    pub seeds: u64,
    /// Passes before all was calm.
    pub passes: u64,
    /// The most rounds of passes that it took after that until nothing changed.
    pub most_rounds: u64,
}

/// Runs all seeds of a campaign, with synced queues.
pub fn campaign(campaign: &Campaign) -> Merges {
    let (next, over) = (AtomicU64::new(campaign.from), AtomicBool::new(false));
    let found = Mutex::new(Merges::default());
    let work = || {
        planted::plant(campaign.planted);
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= campaign.from.saturating_add(campaign.seeds) {
                break;
            }
            let outcome = run(&Plan::drawn(seed), false);
            let mut found = town::lock(&found);
            found.seeds += 1;
            found.passes += outcome.passes;
            found.most_rounds = found.most_rounds.max(outcome.rounds);
            if !outcome.violations.is_empty() {
                found.failed.push((seed, outcome.violations));
                over.fetch_or(campaign.until_found, Ordering::Relaxed);
            }
        }
        planted::plant(None);
    };
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.failed.sort_by_key(|(seed, _)| *seed);
    found
}
