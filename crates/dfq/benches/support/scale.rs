//! What a claim costs in a large queue against a small one, and how much memory a worker takes.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use super::ours::Ours;
use super::{Targets, filesystem, median, timed, worker};

const SMALL: usize = 1000;
const TURN: usize = 64;
/// In a round there are as many claims as names in a page of a listing.
const TURNS: usize = 16;
const ROUNDS: usize = 5;
/// A claim in a large queue may cost so many times one in a small queue.
const TARGET: f64 = 1.5;
const MAX_RSS_KB: usize = 64 * 1024;
const LATER: Option<Duration> = Some(Duration::from_secs(24 * 3600));

pub(crate) fn run(dir: &Path, n: usize, targets: &mut Targets) {
    let fs = filesystem(dir);
    let small = Ours::open(&dir.join("small"), false);
    small.fill(SMALL, None);
    let mut report = |what: &str, large: &Ours| {
        let [base, cost, ratio] = claims(&small, large);
        let missed = || format!("{fs}, {what}: a claim costs {ratio:.2} times as much");
        let mark = targets.expect(ratio <= TARGET, missed);
        println!("{fs:<7} {what:<36} {base:>10.1} {cost:>10.1} {ratio:>7.2}{mark}");
    };

    let at = dir.join("large");
    let large = Ours::open(&at, false);
    large.fill(n, None);
    report(&format!("{n} pending"), &large);
    drop(large);

    let mut child = worker(&at, false);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    let number = |word: usize| said.split_whitespace().nth(word).unwrap().parse::<usize>().unwrap();
    let (done, rss) = (number(1), number(2));
    assert_eq!(done, n);

    // The very first polls after draining find nothing, then come a few tasks.
    let drained = Ours::open(&at, false);
    drained.fill(SMALL, None);
    report(&format!("{n} finished, just drained"), &drained);
    drop(drained);

    let scheduled = Ours::open(&dir.join("scheduled"), false);
    scheduled.fill(n, LATER);
    scheduled.fill(SMALL, None);
    report(&format!("{n} scheduled"), &scheduled);

    let missed = || format!("{fs}: a worker on {n} tasks took {rss} KB");
    let mark = targets.expect(rss < MAX_RSS_KB, missed);
    println!(
        "{fs:<7} a worker that did all {n} took {:.1} MB at the most{mark}",
        rss as f64 / 1024.0
    );
}

/// The medians over rounds of what a claim costs in either queue, in microseconds, and of how many
/// times as much it costs in the large one. Both queues keep their size.
fn claims(small: &Ours, large: &Ours) -> [f64; 3] {
    let mut answers = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        let mut spent = [Duration::ZERO; 2];
        for _ in 0..TURNS {
            for (queue, spent) in [small, large].iter().zip(&mut spent) {
                let claimed = timed(spent, || queue.claim_all(TURN, 1));
                queue.ack(claimed);
                queue.fill(TURN, None);
            }
        }
        let [base, cost] = spent.map(|spent| spent.as_secs_f64() * 1e6 / (TURNS * TURN) as f64);
        // The first round warms up.
        if round > 0 {
            for (all, answer) in answers.iter_mut().zip([base, cost, cost / base]) {
                all.push(answer);
            }
        }
    }
    answers.map(median)
}
