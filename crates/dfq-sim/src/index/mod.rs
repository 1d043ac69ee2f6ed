//! Indexes: writers, compilers and readers of one index, who are killed, stalled and misled. Once all is calm, one
//! compaction after the other must empty the inbox, and then the index is what was put.
//!
//! Invariant: the outcome of a run is a function of its plan.

mod aimed;
mod check;
mod hands;
mod plan;
mod rows;
mod tape;
mod watch;
mod yard;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dfq::planted::{self, Planted};

pub use plan::{Actor, KEYS, Plan, Step};

use crate::campaign::Campaign;
use crate::check::Violation;
use crate::history::{History, Tally};
use crate::world::Ended;
use hands::Hands;
use plan::DAY;
use yard::{Yard, lock};

/// By then everybody must be through with a plan, in virtual time.
const LONGEST: Duration = DAY.saturating_mul(1000);
const MOST_STEPS: u64 = 3_000_000;

/// So many compactions, one after the other, are enough once nothing else happens; and so long after each. The lock of
/// one that was killed holds for longer if the store's clock was set back, which is by two hours at the most.
const MOST_ROUNDS: usize = 8;
const ROUND: Duration = Duration::from_secs(1800);

/// What came of a run.
pub struct Outcome {
    /// What was wrong.
    pub violations: Vec<Violation>,
    /// What happened.
    pub history: Arc<History>,
    /// Records that were put, and keys that were deleted.
    pub writes: u64,
    /// Compactions that were begun.
    pub compactions: u64,
    /// Lookups and scans that were answered.
    pub reads: u64,
}

/// Carries out a plan.
pub fn run(plan: &Plan, keeps_calls: bool) -> Outcome {
    let yard = Yard::new(plan.clone(), keeps_calls);
    let mut violations = Vec::new();
    for (number, actor) in plan.actors.iter().enumerate() {
        let within = Arc::clone(&yard);
        yard.world.act(actor.starts, move |_| within.start(number));
    }
    plan.faults.iter().for_each(|fault| yard.arrange(fault));
    let ended = yard.world.run(LONGEST, MOST_STEPS, || yard.is_over());
    if ended != Ended::Done {
        let text = format!("{ended:?} before all are through: {}", yard.unfinished());
        violations.push(Violation { rule: "everybody comes to an end", text });
    }
    yard.calm_down();
    let (done, wrong) = (Arc::new(AtomicBool::new(false)), Arc::default());
    settle(&yard, &done, &wrong);
    let by = yard.world.now() + DAY * 30;
    let ended = yard.world.run(by, MOST_STEPS, || done.load(Ordering::Relaxed));
    if ended != Ended::Done {
        let text = format!("{ended:?} before the inbox is empty");
        violations.push(Violation { rule: "compactions come to rest", text });
    }
    violations.append(&mut lock(&wrong));
    violations.extend(check::check(&yard));
    yard.world.end();
    let tape = yard.tape.inner();
    Outcome {
        violations,
        history: Arc::clone(&yard.history),
        writes: tape.writes.len() as u64,
        compactions: tape.compactions,
        reads: tape.reads.len() as u64,
    }
}

type Wrong = Arc<Mutex<Vec<Violation>>>;

/// Lets a healthy process compact what is left, then looks at everything.
fn settle(yard: &Arc<Yard>, done: &Arc<AtomicBool>, wrong: &Wrong) {
    let pid = yard.world.start_process();
    yard.note(format!("{pid} compacts what is left"));
    let (env, door) = (yard.env(0, pid), yard.healthy_door(pid));
    let (within, done, wrong) = (Arc::clone(yard), Arc::clone(done), Arc::clone(wrong));
    let work = async move {
        let say = |rule, text| lock(&wrong).push(Violation { rule, text });
        let mut hands = Hands::new(&within, &door, 0, &env);
        for round in 0.. {
            // Locks have run out by then, and what was on its way has arrived.
            env.clock().sleep(ROUND).await;
            match hands.compact(true, true).await {
                Ok(Ok(report)) if report.failed.is_empty() => {}
                Ok(Ok(report)) => say("compactions come to rest", format!("{:?}", report.failed)),
                Ok(Err(error)) | Err(error) => say("compactions come to rest", error.to_string()),
            }
            let left = left(&within);
            if left.is_empty() {
                break;
            }
            if round >= MOST_ROUNDS {
                say("compactions come to rest", format!("{left:?} are left"));
                break;
            }
        }
        look_at_all(&mut hands, &within.plan, &say).await;
        again(&within, &mut hands, &door, &env, &say).await;
        let _ = look_at_keys(&mut hands, &say).await;
        done.store(true, Ordering::Relaxed);
    };
    yard.world.spawn(pid, Box::pin(work));
}

/// What is in the inbox, but for what is not ours.
fn left(yard: &Yard) -> Vec<String> {
    let litter = yard.tape.inner().litter.clone();
    let files = yard.files().into_keys().filter(|path| path.starts_with("inbox/"));
    files.filter(|path| !litter.contains(path)).collect()
}

async fn look_at_keys(hands: &mut Hands, say: &impl Fn(&'static str, String)) {
    for key in KEYS {
        if let Ok(Err(error)) | Err(error) = hands.get(key).await {
            say("whoever looks is answered", error.to_string());
        }
    }
}

async fn look_at_all(hands: &mut Hands, plan: &Plan, say: &impl Fn(&'static str, String)) {
    look_at_keys(hands, say).await;
    // It takes a look at each shard, so not always.
    if plan.seed.is_multiple_of(3)
        && let Ok(Err(error)) | Err(error) = hands.scan(Duration::ZERO).await
    {
        say("whoever looks is answered", error.to_string());
    }
}

/// The compacted shards, as the store has them. In a folder what lies under their plain names may lag.
fn shards(yard: &Yard) -> BTreeMap<String, Vec<u8>> {
    let mut shards: BTreeMap<String, (u64, Vec<u8>)> = BTreeMap::new();
    for (path, bytes) in yard.files() {
        let (name, number) = match path.strip_prefix("versions/").and_then(|it| it.rsplit_once('/'))
        {
            Some((name, number)) => (name, number.parse().unwrap_or(0)),
            None if !yard.is_in_bucket() => continue,
            None => (path.as_str(), 1),
        };
        let is_shard = name.starts_with("shards/") && name.ends_with(".usv");
        if is_shard && shards.get(name).is_none_or(|(highest, _)| *highest < number) {
            shards.insert(name.to_owned(), (number, bytes));
        }
    }
    shards.into_iter().map(|(name, (_, bytes))| (name, bytes)).collect()
}

/// A file that was merged already comes back, as after a power cut, and is merged again: that changes no byte.
async fn again(
    yard: &Arc<Yard>,
    hands: &mut Hands,
    door: &Arc<crate::gate::Door>,
    env: &dfq::Env,
    say: &impl Fn(&'static str, String),
) {
    // After weeks deletions are forgotten, which is a change.
    if yard.plan.is_long() || yard.world.now() > DAY * 40 {
        return;
    }
    let is_there = |name: &str| yard.history.has_been(name);
    let sent = yard.tape.inner().sent.iter().rev().find(|it| is_there(&it.name)).cloned();
    let Some(sent) = sent else { return };
    let mut before = BTreeMap::new();
    // The first time fills rows up, if columns have come since the shard was written.
    for _ in 0..2 {
        before = shards(yard);
        let _ = yard.objects(0, door, env).create(&sent.name, &sent.bytes).await;
        for _ in 0..2 {
            if let Ok(Err(error)) | Err(error) = hands.compact(true, true).await {
                say("compactions come to rest", error.to_string());
            }
        }
    }
    if shards(yard) != before {
        let text = format!("after {} was merged once more", sent.name);
        say("to merge the same again changes no byte", text);
    }
}

/// The shortest plan that still breaks this rule, as far as it can be found in so many runs.
pub fn shrink(plan: &Plan, rule: &str, runs: usize) -> Plan {
    let (mut shortest, mut left) = (plan.clone(), runs);
    let fails = |plan: &Plan| run(plan, false).violations.iter().any(|it| it.rule == rule);
    loop {
        let mut smaller = None;
        for candidate in candidates(&shortest) {
            if left == 0 {
                return shortest;
            }
            left -= 1;
            if fails(&candidate) {
                smaller = Some(candidate);
                break;
            }
        }
        match smaller {
            Some(smaller) => shortest = smaller,
            None => return shortest,
        }
    }
}

/// Plans with a little less. Actors keep their numbers.
fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    for actor in 0..plan.actors.len() {
        if !plan.actors[actor].steps.is_empty() {
            let mut less = plan.clone();
            less.actors[actor].steps.clear();
            all.push(less);
        }
    }
    for fault in 0..plan.faults.len() {
        let mut less = plan.clone();
        less.faults.remove(fault);
        all.push(less);
    }
    for actor in 0..plan.actors.len() {
        for step in 0..plan.actors[actor].steps.len() {
            let mut less = plan.clone();
            less.actors[actor].steps.remove(step);
            all.push(less);
        }
    }
    all
}

/// Whether this bug is in an index, or in how shards are swapped.
pub fn is_of_an_index(bug: Planted) -> bool {
    let rule = bug.rule();
    rule.starts_with("index: ") || rule.starts_with("swap: ")
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Indexes {
    /// Seeds that failed, ascending, with what was wrong.
    pub failed: Vec<(u64, Vec<Violation>)>,
    /// Seeds that were run.
    pub seeds: u64,
    /// System calls and requests.
    pub calls: u64,
    /// Records that were put, and keys that were deleted.
    pub writes: u64,
    /// Compactions that were begun.
    pub compactions: u64,
    /// Lookups and scans that were answered.
    pub reads: u64,
    /// What went wrong.
    pub tally: Tally,
}

/// Runs all seeds of a campaign, with indexes.
pub fn campaign(campaign: &Campaign) -> Indexes {
    let (next, over) = (AtomicU64::new(campaign.from), AtomicBool::new(false));
    let found = Mutex::new(Indexes::default());
    let work = || {
        planted::plant(campaign.planted);
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= campaign.from.saturating_add(campaign.seeds) {
                break;
            }
            let outcome = run(&Plan::drawn(seed), false);
            let (tally, mut found) = (outcome.history.tally(), lock(&found));
            found.seeds += 1;
            found.calls += outcome.history.calls();
            found.writes += outcome.writes;
            found.compactions += outcome.compactions;
            found.reads += outcome.reads;
            found.tally.killed += tally.killed;
            found.tally.stalled += tally.stalled;
            found.tally.power_cuts += tally.power_cuts;
            found.tally.jumps += tally.jumps;
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
