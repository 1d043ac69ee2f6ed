//! How everything ends: nothing is left to do, and what is left has no gaps.

use std::collections::{BTreeMap, BTreeSet};

use super::Rule;
use super::facts::Facts;
use super::names::{self, Kind};
use super::walk::Born;

/// All of them.
pub(super) const ALL: [Rule; 2] =
    [("every task ends once faults stop", everything_ends), ("records have no gaps", no_gaps)];

fn everything_ends(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (queue, files) in facts.files.iter().enumerate() {
        let ended = |stem: &str| {
            files.keys().any(|name| {
                let of = names::parse(name);
                of == Some((Kind::Completed, stem)) || of == Some((Kind::Failed, stem))
            })
        };
        // What was only copied to the other queue, nobody works off if there is no transfer in the plan. And what
        // came late to a bucket, of a life that is over, is in nobody's way.
        let left = files.keys().filter(|name| match names::parse(name) {
            Some((Kind::Task | Kind::Scheduled, stem)) => !(facts.in_bucket && ended(stem)),
            _ => false,
        });
        wrong.extend(left.map(|name| format!("{name} in queue {queue} is still there")));
    }
    // The last look. What is only in the way of nobody is left to whoever meets it.
    let problems = facts.problems.last().into_iter().flat_map(|it| it.lines());
    let harmless =
        |it: &&str| it.ends_with("whoever meets it removes it") || it.starts_with("tmp: ");
    let problems = problems.filter(|it| !harmless(it));
    wrong.extend(problems.map(|it| format!("check finds {it}")));
    wrong
}

fn no_gaps(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    // Who was killed, or not answered, may have left one.
    if !facts.in_bucket || facts.killed || facts.unsure || !facts.orderly {
        return wrong;
    }
    for (queue, files) in facts.files.iter().enumerate() {
        let mut lives: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for name in files.keys() {
            if let Some((Kind::Completed | Kind::Failed, stem)) = names::parse(name) {
                let (id, life) = names::id_and_life(stem);
                lives.entry(id).or_default().insert(life);
            }
        }
        for (id, lives) in lives {
            let last = lives.last().copied().unwrap_or(0);
            if lives.len() != last as usize {
                wrong.push(format!("{id} in queue {queue} has {lives:?}"));
            }
        }
    }
    wrong
}
