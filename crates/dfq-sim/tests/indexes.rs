//! That some hundred seeds of indexes find nothing, and that what is left out of an index is found.

use dfq::planted::Planted;
use dfq_sim::campaign::Campaign;
use dfq_sim::check::Violation;
use dfq_sim::index::{self, Indexes, Plan};

fn histories(seeds: std::ops::Range<u64>) -> Vec<String> {
    seeds.map(|seed| index::run(&Plan::drawn(seed), true).history.text()).collect()
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

fn campaign(from: u64, seeds: u64, planted: Option<Planted>) -> Indexes {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let until_found = planted.is_some();
    index::campaign(&Campaign { from, seeds, on: None, planted, threads, until_found })
}

/// Whatever was killed, late and misled: every put that returned is seen, and in the end the index is what was put.
#[test]
fn nothing_is_found() {
    let found = campaign(1, 300, None);
    assert_eq!(found.seeds, 300);
    let show = |(seed, violations): &(u64, Vec<Violation>)| {
        let first = violations.first().map(ToString::to_string).unwrap_or_default();
        format!("seed {seed}: {first}\n  cargo run -p dfq-sim -- --index --replay {seed}")
    };
    let failed: Vec<_> = found.failed.iter().map(show).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(found.writes > 5_000, "only {} records", found.writes);
    assert!(found.compactions > 3_000, "only {} compactions", found.compactions);
    assert!(found.reads > 10_000, "only {} reads", found.reads);
    assert!(found.tally.killed > 50, "only {} killed", found.tally.killed);
}

/// Whether the simulation finds what goes wrong if this rule is left out, within some seeds: a little before the first that
/// RELIABILITY.md names.
fn is_found(name: &str, from: u64) {
    let Ok(planted) = name.parse::<Planted>() else { panic!("no bug is called {name}") };
    assert!(!campaign(from, 150, Some(planted)).failed.is_empty(), "{name} is not found");
}

/// `cargo run --release -p dfq-sim -- --index --planted each --seeds 2000` tries all.
#[test]
fn what_is_planted_is_found() {
    is_found("inbox-name-reused", 1);
    is_found("order-by-ulid", 1);
    is_found("removed-before-swap", 1);
    is_found("removes-what-it-lists", 1);
    is_found("shard-overwritten", 1);
    is_found("lost-swap-wins", 1);
    is_found("lock-is-proof", 40);
    is_found("get-reads-shard-first", 1);
    is_found("blocks-not-pinned", 20);
    is_found("deletions-forgotten", 1);
    is_found("columns-added-late", 1);
}

/// The simulation has found these, and they were mended.
mod found_by_the_simulation {
    use super::*;

    #[test]
    fn a_writer_that_slept_over_its_look_at_the_clock() {
        is_found("old-sample-taken", 1980);
    }

    #[test]
    fn rows_that_came_before_their_columns_were_looked_for() {
        is_found("rows-before-columns-believed", 1);
    }

    #[test]
    fn a_folder_of_versions_that_a_power_cut_takes() {
        is_found("birth-not-synced", 70);
    }

    #[test]
    fn a_first_version_that_a_network_client_does_not_see() {
        is_found("birth-overlooked", 150);
    }
}
