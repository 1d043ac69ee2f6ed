//! That the simulation itself can be relied on, and that some hundred seeds find nothing.

use dfq::planted::{self, Planted};
use dfq_sim::campaign::Campaign;
use dfq_sim::check::Violation;
use dfq_sim::plan::{On, Plan};
use dfq_sim::run::run;

fn histories(on: On, seeds: std::ops::Range<u64>) -> Vec<String> {
    seeds.map(|seed| run(&Plan::drawn(seed, Some(on)), true).history.text()).collect()
}

/// The same seed gives the same history, byte for byte: every call and its answer, every change, every file's content,
/// every time. Also on another thread, whose stacks, tables and random numbers are its own.
#[test]
fn a_seed_decides_everything() {
    for on in [On::Disk, On::Bucket] {
        let here = histories(on, 1..9);
        let there = std::thread::scope(|scope| scope.spawn(|| histories(on, 1..9)).join().unwrap());
        assert!(here.iter().all(|history| history.lines().count() > 100));
        for (seed, (one, other)) in (1..).zip(here.iter().zip(&there)) {
            let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
            assert_eq!(differs, None, "seed {seed} on {on:?}");
            assert_eq!(one.len(), other.len());
        }
        // And another seed gives another.
        assert_ne!(here[0], here[1]);
    }
}

fn campaign(on: Option<On>, seeds: u64) -> Campaign {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Campaign { from: 1, seeds, on, planted: None, threads, until_found: false }
}

/// Every other seed is on a disk, the others are in a bucket.
#[test]
fn nothing_is_found() {
    let found = campaign(None, 300).run(&|_, _| {});
    assert_eq!(found.seeds, 300);
    let show = |(seed, violations): &(u64, Vec<Violation>)| {
        let first = violations.first().map(ToString::to_string).unwrap_or_default();
        format!("seed {seed}: {first}\n  cargo run -p dfq-sim -- --replay {seed}")
    };
    let failed: Vec<_> = found.failed.iter().map(show).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A simulation that finds nothing may be blind. `cargo run --release -p dfq-sim -- --planted each` tries all.
#[test]
fn what_is_planted_is_found() {
    for (name, on) in [
        ("delete-then-create", On::Disk),
        ("create-replaces", On::Disk),
        ("push-name-not-synced", On::Disk),
        ("stale-at-half", On::Bucket),
    ] {
        let planted: Planted = name.parse().unwrap();
        let campaign =
            Campaign { planted: Some(planted), until_found: true, ..campaign(Some(on), 300) };
        let found = campaign.run(&|_, _| {});
        assert!(!found.failed.is_empty(), "{name} is not found");
    }
    planted::plant(None);
}
