//! Promises about pushes and records: nothing is lost, nothing ends twice.

use std::collections::BTreeMap;

use super::Rule;
use super::facts::{Debt, Facts, Recorded};
use super::names::stem;
use super::walk::Born;

/// All of them.
pub(super) const ALL: [Rule; 8] = [
    ("nothing pushed is lost", nothing_lost),
    ("one completion for each life", one_completion),
    ("what was answered is recorded", answers_are_recorded),
    ("nothing finished comes back", nothing_comes_back),
    ("no life is lived twice", no_life_twice),
    ("what a push was told is there stays", what_was_there_stays),
    ("nothing unreadable is destroyed", bytes_are_kept),
    ("only leases that ran out count as lost", only_lost_ones_count),
];

fn is_of(facts: &Facts, record: &Recorded, debt: &Debt) -> bool {
    let named = record.name.ends_with(&format!("/{}.json", stem(&debt.key)));
    let waited = facts.waited.contains(&(debt.queue, debt.n));
    // A cancel is of an id, and may have read a push of it that waits, while another came.
    let any = debt.later || waited || record.cancelled || facts.is_spoiled(debt);
    record.queue == debt.queue && named && (record.n == Some(debt.n) || any)
}

fn nothing_lost(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for debt in facts.debts.iter().filter(|debt| !debt.anothers) {
        let lost = |why: &str| {
            format!(
                "task {} as {:?} in queue {} was created at {:?}, and {why}",
                debt.n, debt.key, debt.queue, debt.told
            )
        };
        let Some(last) = facts.records.iter().rfind(|record| is_of(facts, record, debt)) else {
            wrong.push(lost("has no record"));
            continue;
        };
        match last.gone {
            Some((at, true)) => {
                wrong.push(lost(&format!("its record went in a power cut at {at:?}")))
            }
            _ if !last.moved => {}
            _ => {
                // It goes on in the other queue. If it has to wait there, another push may take its place.
                let elsewhere = |(of, n): &(usize, i64)| *of != debt.queue && last.n == Some(*n);
                let waited = facts.waited.iter().any(elsewhere);
                let other = waited
                    || facts
                        .records
                        .iter()
                        .any(|it| it.queue != debt.queue && it.push_id == last.push_id);
                if !other {
                    wrong.push(lost("was moved, and has no record in the other queue"));
                }
            }
        }
    }
    wrong
}

fn one_completion(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut made: BTreeMap<(usize, &str, &str), &Recorded> = BTreeMap::new();
    for record in facts.records.iter().filter(|it| it.completed && it.n.is_some() && !it.back) {
        let life = (record.queue, record.name.as_str(), record.push_id.as_str());
        let Some(first) = made.insert(life, record) else { continue };
        let taken_by_a_cut = matches!(first.gone, Some((_, true)));
        let written_anew = facts.in_bucket && first.lease_id == record.lease_id;
        if !(taken_by_a_cut || written_anew || record.forgotten) {
            wrong.push(format!(
                "{} was made at {:?} and again at {:?}",
                record.name, first.made, record.made
            ));
        }
    }
    let replaced = facts.records.iter().filter(|it| it.replaced && !it.back && !facts.in_bucket);
    wrong.extend(replaced.map(|it| format!("{} was replaced at {:?}", it.name, it.made)));
    wrong
}

fn answers_are_recorded(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for claim in &facts.claims {
        for settled in claim.settled.iter().filter(|it| it.answer.is_ok()) {
            let completed = match settled.verb {
                "ack" | "moved" => true,
                "fail" => false,
                _ => continue,
            };
            let name = format!("/{}.json", stem(&claim.claimed.key));
            let record = facts.records.iter().rfind(|it| {
                it.queue == claim.queue
                    && it.completed == completed
                    && it.name.ends_with(&name)
                    && it.lease_id == claim.lease_id()
                    && it.push_id == claim.claimed.push_id
            });
            match record.map(|it| it.gone) {
                None => wrong.push(format!(
                    "{} of {} was accepted, and there is no record of it",
                    settled.verb,
                    claim.show()
                )),
                Some(Some((at, true))) => wrong.push(format!(
                    "{} of {} was accepted, and its record went in a power cut at {at:?}",
                    settled.verb,
                    claim.show()
                )),
                _ => {}
            }
        }
    }
    wrong
}

fn nothing_comes_back(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for claim in &facts.claims {
        let Some(lease) = claim.lease_made else { continue };
        let name = format!("/{}.json", stem(&claim.claimed.key));
        let over = facts.records.iter().find(|it| {
            let lost = matches!(it.gone, Some((_, true)));
            let same = it.queue == claim.queue
                && it.name.ends_with(&name)
                && it.push_id == claim.claimed.push_id;
            same && it.made < lease && !lost
        });
        if let Some(record) = over {
            wrong.push(format!(
                "{}, although {} was there since {:?}",
                claim.show(),
                record.name,
                record.made
            ));
        }
    }
    wrong
}

fn no_life_twice(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    // In a bucket an id begins anew when all its records have gone; and so where there is no room to say what went.
    if facts.in_bucket || facts.short_of_room {
        return wrong;
    }
    for debt in facts.debts.iter().filter(|debt| !debt.anothers) {
        let name = format!("/{}.json", stem(&debt.key));
        let before = facts.records.iter().find(|it| {
            let same = it.queue == debt.queue && it.name.ends_with(&name) && it.made < debt.asked;
            let lost = matches!(it.gone, Some((_, true)));
            same && !lost && it.n.is_some_and(|n| n != debt.n)
        });
        if let Some(before) = before {
            wrong.push(format!(
                "{:?} as task {} at {:?}, though it had ended at {:?}",
                debt.key, debt.n, debt.told, before.made
            ));
        }
    }
    wrong
}

fn what_was_there_stays(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    // A push that finds its number forgotten takes its task back, and another may have seen it.
    if facts.purges {
        return wrong;
    }
    for debt in facts.debts.iter().filter(|debt| debt.anothers) {
        let name = format!("/{}.json", stem(&debt.key));
        let mut records =
            facts.records.iter().filter(|it| it.queue == debt.queue && it.name.ends_with(&name));
        let kept = records.any(|it| !matches!(it.gone, Some((_, true))));
        if !kept {
            wrong.push(format!("{:?}, by what was told at {:?}", debt.key, debt.told));
        }
    }
    wrong
}

fn bytes_are_kept(facts: &Facts, _: &[Born]) -> Vec<String> {
    let unread = |it: &&Recorded| it.reason.contains("could not be read") && !it.completed;
    let without = facts.records.iter().filter(unread).filter(|it| !it.has_bytes);
    without.map(|it| format!("{} at {:?} is without them", it.name, it.made)).collect()
}

fn only_lost_ones_count(facts: &Facts, _: &[Born]) -> Vec<String> {
    let given_up = |it: &&Recorded| it.reason.contains("went silent") && !it.travelled;
    let records = facts.records.iter().filter(given_up);
    // The last attempt is that of the one who gave it up.
    let too_few = records.filter(|it| it.lost < facts.max_lost as usize + 1);
    too_few.map(|it| format!("{} at {:?}: {}", it.name, it.made, it.reason)).collect()
}
