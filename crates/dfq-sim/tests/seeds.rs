//! That the simulation itself can be relied on, and that some hundred seeds find nothing.

use dfq::planted::Planted;
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

/// Whether the simulation finds what goes wrong if this rule is left out, or that mend is taken back.
fn is_found(name: &str, on: On) {
    let Ok(planted) = name.parse::<Planted>() else { panic!("no bug is called {name}") };
    let campaign =
        Campaign { planted: Some(planted), until_found: true, ..campaign(Some(on), 400) };
    let found = campaign.run(&|_, _| {});
    assert!(!found.failed.is_empty(), "{name} is not found");
}

/// A simulation that finds nothing may be blind. `cargo run --release -p dfq-sim -- --planted each` tries all.
#[test]
fn what_is_planted_is_found() {
    is_found("delete-then-create", On::Disk);
    is_found("create-replaces", On::Disk);
    is_found("push-name-not-synced", On::Disk);
    is_found("stale-at-half", On::Bucket);
}

/// Audits had found these, before there was a simulation.
mod found_by_audits {
    use super::*;

    #[test]
    fn a_push_beside_a_purge_on_disk() {
        is_found("push-without-second-look", On::Disk);
    }

    #[test]
    fn an_endless_ack() {
        is_found("endless-ack", On::Bucket);
    }

    #[test]
    fn tokens_after_a_power_cut() {
        is_found("later-claim-not-synced", On::Disk);
    }
}

/// The simulation has found these, and they were mended.
mod found_by_the_simulation {
    use super::*;

    #[test]
    fn an_old_answer_over_nfs() {
        is_found("old-answer-believed", On::Disk);
    }

    #[test]
    fn claims_that_ran_out_while_others_hung() {
        is_found("run-out-handed-out", On::Bucket);
    }

    #[test]
    fn heartbeats_that_waited_for_others() {
        is_found("heartbeats-count-alone", On::Disk);
    }

    #[test]
    fn a_power_cut_after_a_purge_of_remains() {
        is_found("remains-not-synced", On::Disk);
    }

    #[test]
    fn a_push_that_comes_after_its_life_is_over() {
        is_found("late-push-believed", On::Bucket);
    }

    #[test]
    fn a_delayed_push_that_did_not_know_its_own_task() {
        is_found("delayed-not-read-back", On::Bucket);
    }

    #[test]
    fn a_queue_that_is_opened_while_another_makes_it() {
        is_found("making-not-noticed", On::Disk);
    }

    #[test]
    fn leases_and_backoffs_from_the_future() {
        is_found("future-believed", On::Bucket);
    }

    #[test]
    fn a_clock_that_shows_a_whole_second_by_chance() {
        is_found("clock-read-once", On::Disk);
    }
}
