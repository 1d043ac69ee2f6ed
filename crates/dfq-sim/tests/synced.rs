//! That some hundred seeds of synced queues find nothing, and that what is left out of the merge is found.

use dfq::planted::Planted;
use dfq_sim::campaign::Campaign;
use dfq_sim::check::Violation;
use dfq_sim::synced::{self, Merges, Plan};

fn histories(seeds: std::ops::Range<u64>) -> Vec<String> {
    seeds.map(|seed| synced::run(&Plan::drawn(seed), true).history.text()).collect()
}

/// The same seed gives the same history, byte for byte, also on another thread.
#[test]
fn a_seed_decides_everything() {
    let here = histories(1..7);
    let there = std::thread::scope(|scope| scope.spawn(|| histories(1..7)).join().unwrap());
    assert!(here.iter().all(|history| history.lines().count() > 100));
    for (seed, (one, other)) in (1..).zip(here.iter().zip(&there)) {
        let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.len(), other.len());
    }
    assert_ne!(here[0], here[1]);
}

fn campaign(seeds: u64, planted: Option<Planted>) -> Merges {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let until_found = planted.is_some();
    synced::campaign(&Campaign { from: 1, seeds, on: None, planted, threads, until_found })
}

/// However nodes were cut off, killed and misled: once that is over, some rounds of passes make all places the same.
#[test]
fn nothing_is_found() {
    let found = campaign(200, None);
    assert_eq!(found.seeds, 200);
    let show = |(seed, violations): &(u64, Vec<Violation>)| {
        let first = violations.first().map(ToString::to_string).unwrap_or_default();
        format!("seed {seed}: {first}\n  cargo run -p dfq-sim -- --synced --replay {seed}")
    };
    let failed: Vec<_> = found.failed.iter().map(show).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(found.most_rounds <= synced::MOST_ROUNDS, "{} rounds", found.most_rounds);
    assert!(found.passes > 10_000, "only {} passes", found.passes);
}

/// A pass slept between its look at the floors and its look at the records, and a purge came between. Then it put a
/// life where the floor below was not known yet, and the next push there would have had a number that was forgotten.
#[test]
fn a_pass_that_slept_over_a_purge() {
    let violations = synced::run(&Plan::drawn(3400), false).violations;
    assert_eq!(violations, []);
}

/// A forgotten task was to get a new number, and could not be claimed for that while another node's lease held. Passes that
/// left it out for that reason were taken for not having looked at it, so the lease held for a day.
#[test]
fn what_is_held_when_it_is_to_get_a_new_number() {
    for seed in [1404, 2405] {
        assert_eq!(synced::run(&Plan::drawn(seed), false).violations, []);
    }
}

/// A clock was set forward, a pass began, and the clock was set back: that pass proved what it had not seen.
#[test]
fn a_pass_that_is_yet_to_come() {
    assert_eq!(synced::run(&Plan::drawn(2428), false).violations, []);
}

/// Whether the simulation finds what goes wrong if this rule is left out.
fn is_found(name: &str) {
    let Ok(planted) = name.parse::<Planted>() else { panic!("no bug is called {name}") };
    assert!(!campaign(400, Some(planted)).failed.is_empty(), "{name} is not found");
}

/// `cargo run --release -p dfq-sim -- --synced --planted each --seeds 1000` tries all.
#[test]
fn what_is_planted_is_found() {
    is_found("merge-keeps-copies");
    is_found("merge-in-any-order");
    is_found("merge-drops-losers");
    is_found("merge-by-heartbeat");
    is_found("others-leases-by-their-clock");
}
