//! Promises about claims: who has a task, for how long, and with which token.
//!
//! Invariant: a claim is held against another only where the two cannot have been meant to overlap: no operator took
//! the task away, no power cut took a lease, and no clock was set of which the second cannot have known.

use std::time::Duration;

use super::Rule;
use super::claim::Claim;
use super::facts::{Facts, Recorded};
use super::names::stem;
use super::walk::Born;

/// All of them.
pub(super) const ALL: [Rule; 9] = [
    ("no attempt is held by two", one_holder_of_an_attempt),
    ("no task is held by two at once", one_holder_at_a_time),
    ("a task is not handed out while its lease is alive", not_while_alive),
    ("no ack is accepted after a takeover", no_late_ack),
    ("fencing tokens only grow", fences_grow),
    ("a handler is told when its lease ends", handlers_are_told),
    ("a holder is told within seconds that its task was taken away", holders_are_told),
    ("a task that has failed or was lost too often is not tried again", not_tried_again),
    ("no task is handed out before its time", not_before_its_time),
];

/// How late a handler may be told, with all that goes on beside it.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Holders ask every five seconds, and then renew.
const TAKEN_WITHIN: Duration = Duration::from_secs(9);

fn pairs(facts: &Facts) -> impl Iterator<Item = (&Claim, &Claim)> {
    let claims = &facts.claims;
    let first = claims.iter().enumerate();
    first.flat_map(move |(at, one)| {
        claims[at + 1..].iter().filter(|two| two.life() == one.life()).map(move |two| (one, two))
    })
}

/// Whether the store's clock was set, and somebody who cannot have known of it took the task from the first of two
/// claims: the second, or one in between. Who first looks at the clock after that has nothing to compare it with.
fn clock_set(facts: &Facts, born: &[Born], one: &Claim, two: &Claim) -> bool {
    let made = |claim: &Claim| claim.lease_made.unwrap_or(claim.told);
    let (first, second) = if made(one) <= made(two) { (one, two) } else { (two, one) };
    let takes = |claim: &&Claim| {
        let after = first.attempt() < claim.attempt() && claim.attempt() <= second.attempt();
        claim.life() == first.life() && after
    };
    facts.claims.iter().filter(takes).any(|taker| {
        let known = facts.clock_known(taker.pid, taker.opened);
        let set = |at: &Duration| (first.asked..=taker.told).contains(at);
        let unknown = |at: &Duration| set(at) && known.is_none_or(|known| known >= *at);
        // Or the clock was set back again before that one looked.
        let between = |pair: &[Duration]| {
            (pair[0]..=pair[1]).contains(&made(first))
                && !facts.clock_looked(taker.pid, pair[0], pair[1])
        };
        let ran_out = birth(born, taker).is_none_or(|it| it.ran_out);
        ran_out && (facts.jumps.iter().any(unknown) || facts.jumps.windows(2).any(between))
    })
}

fn one_holder_of_an_attempt(facts: &Facts, _: &[Born]) -> Vec<String> {
    let twice = pairs(facts).filter(|(one, two)| {
        let forgiven = one.attempt() == 1 && facts.cut_between(one.asked, two.told);
        one.attempt() == two.attempt() && !forgiven
    });
    twice.map(|(one, two)| format!("{} and {}", one.show(), two.show())).collect()
}

fn one_holder_at_a_time(facts: &Facts, born: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (one, two) in pairs(facts) {
        let ((from_one, to_one), (from_two, to_two)) = (one.owned(), two.owned());
        let (from, to) = (from_one.max(from_two), to_one.min(to_two));
        let id = one.claimed.key.id().as_str();
        let excused = facts.taken_away(id, from)
            || facts.cut_between(one.asked, two.told)
            || clock_set(facts, born, one, two);
        if from < to && !excused {
            wrong.push(format!("{} and {}, both until {to:?}", one.show(), two.show()));
        }
    }
    wrong
}

fn not_while_alive(facts: &Facts, born: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (one, two) in pairs(facts) {
        let (Some(first), Some(second)) = (one.lease_made, two.lease_made) else { continue };
        let ((one, first), (two, second)) = if first <= second {
            ((one, first), (two, second))
        } else {
            ((two, second), (one, first))
        };
        let alive = one.alive_at(second);
        let let_go = one.let_go.is_some_and(|at| at <= second);
        let id = one.claimed.key.id().as_str();
        let excused = let_go
            || facts.taken_away(id, second)
            || facts.cut_between(first, second)
            || clock_set(facts, born, one, two);
        if second < alive && !excused {
            wrong.push(format!(
                "{}, and its lease at {second:?}, while {} holds until {alive:?}",
                two.show(),
                one.show()
            ));
        }
    }
    wrong
}

fn no_late_ack(facts: &Facts, born: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (one, two) in pairs(facts) {
        let (one, two) = if one.attempt() < two.attempt() { (one, two) } else { (two, one) };
        let Some(taken) = two.lease_made.filter(|_| one.attempt() < two.attempt()) else {
            continue;
        };
        let id = one.claimed.key.id().as_str();
        for ack in one.settled.iter().filter(|it| it.verb == "ack" && it.answer.is_ok()) {
            let recorded = facts.records.iter().find(|it| {
                it.queue == one.queue
                    && it.completed
                    && it.lease_id == one.lease_id()
                    && it.push_id == one.claimed.push_id
            });
            let first = recorded.is_some_and(|it| it.made <= taken);
            // A request that was about to be sent when its process stopped is sent when it goes on.
            // And who could not know that a clock was set took the task from somebody who has it.
            let late = facts.taken_away(id, ack.asked)
                || facts.stalled(one.pid)
                || clock_set(facts, born, one, two);
            // So is an ack, if it had looked before the task was taken away.
            let taken_away = facts.taken_away(id, ack.asked) && facts.stalled(one.pid);
            let excused = (facts.in_bucket && late) || taken_away;
            if ack.asked > taken && !first && !excused {
                wrong.push(format!(
                    "{} acked from {:?} on, after {}",
                    one.show(),
                    ack.asked,
                    two.show()
                ));
            }
        }
    }
    wrong
}

fn fences_grow(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    let claims = &facts.claims;
    for (at, one) in claims.iter().enumerate() {
        let later = claims[at + 1..].iter().filter(|two| {
            // A task that was moved keeps what tells its push from others, in any queue.
            // If the move was cut short, it may go on in both for a while.
            let arrived = facts.arrived.get(&(two.queue, two.claimed.push_id.clone()));
            let moved = two.claimed.push_id == one.claimed.push_id
                && !facts.copies
                && arrived.is_some_and(|at| one.told < *at);
            let same_id = two.claimed.key.id() == one.claimed.key.id();
            ((two.queue == one.queue && same_id) || moved) && two.asked > one.told
        });
        for two in later {
            // Where records are purged without a floor, as on a full disk, the id begins anew.
            let of_the_id = |it: &&Recorded| it.id == one.claimed.key.id().as_str();
            let forgotten = (facts.in_bucket || facts.short_of_room)
                && facts
                    .records
                    .iter()
                    .filter(of_the_id)
                    .any(|it| it.gone.is_some() && it.queue == one.queue);
            let same_first = (one.queue, &one.claimed.key) == (two.queue, &two.claimed.key)
                && one.attempt() == 1
                && facts.cut_between(one.told, two.told);
            // Somebody may have fallen asleep over a move, from whom the task was taken meanwhile.
            let moves = |it: &&Claim| it.claimed.moving && it.life() == one.life();
            let slept = |it: &Claim| it.attempt() < one.attempt() && facts.stalled(it.pid);
            let overslept = two.queue != one.queue && claims.iter().filter(moves).any(slept);
            let excused = forgotten || same_first || overslept;
            if two.claimed.fence <= one.claimed.fence && !excused {
                wrong.push(format!(
                    "{} has {}, and {} has {}",
                    one.show(),
                    one.claimed.fence,
                    two.show(),
                    two.claimed.fence
                ));
            }
        }
    }
    wrong
}

fn handlers_are_told(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for claim in &facts.claims {
        let mut end = claim.claimed.alive_until;
        for (told, until) in &claim.holds {
            if *told <= end {
                end = end.max(*until);
            }
        }
        for (_, ended) in &claim.handled {
            let ended = ended.or(claim.died).unwrap_or(end);
            let stalled = facts
                .stalls
                .iter()
                .any(|(pid, from, to)| *pid == claim.pid && *from <= ended && *to >= end);
            if ended > end + TOLD_WITHIN && !stalled {
                wrong.push(format!(
                    "{} held until {end:?}, and its handler went on until {ended:?}",
                    claim.show()
                ));
            }
        }
    }
    wrong
}

fn holders_are_told(facts: &Facts, _: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    if !facts.orderly || !facts.answered || facts.short_of_room {
        return wrong;
    }
    for operated in &facts.operated {
        let Some(took) = operated.took else { continue };
        let of_it = facts.claims.iter().filter(|it| {
            let same = it.queue == operated.queue && it.claimed.key.id().as_str() == operated.id;
            same && it.told < operated.asked
        });
        // The one that it was taken from.
        let Some(claim) = of_it.max_by_key(|it| (it.claimed.key.generation(), it.attempt())) else {
            continue;
        };
        let stalled = facts.stalled(claim.pid) || !facts.sound(claim.pid);
        if stalled || claim.alive_at(operated.asked) < took {
            continue;
        }
        for (began, ended) in &claim.handled {
            let over = [*ended, claim.died, claim.let_go].into_iter().flatten().min();
            if *began < operated.asked && over.is_none_or(|over| over > took + TAKEN_WITHIN) {
                wrong.push(format!(
                    "{}, taken away by {took:?}, and its handler went on until {over:?}",
                    claim.show()
                ));
            }
        }
    }
    wrong
}

/// What stood there when the lease of a claim was created.
fn birth<'a>(born: &'a [Born], claim: &Claim) -> Option<&'a Born> {
    let stem = stem(&claim.claimed.key);
    born.iter().find(|it| {
        it.queue == claim.queue
            && it.attempt == claim.attempt()
            && it.lease_id == claim.lease_id()
            && it.stem == stem
            && Some(it.at) == claim.lease_made
    })
}

fn not_tried_again(facts: &Facts, born: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for claim in facts.claims.iter().filter(|it| !it.claimed.moving) {
        let Some(birth) = birth(born, claim) else { continue };
        if birth.failed >= facts.max_attempts || birth.lost >= facts.max_lost {
            let Born { failed, lost, .. } = birth;
            wrong.push(format!("{}, after {failed} failures and {lost} lost leases", claim.show()));
        }
    }
    wrong
}

fn not_before_its_time(facts: &Facts, born: &[Born]) -> Vec<String> {
    let mut wrong = Vec::new();
    for claim in facts.claims.iter().filter(|it| !it.claimed.moving && facts.jumps.is_empty()) {
        let Some(birth) = birth(born, claim) else { continue };
        let due = birth.task.as_ref().and_then(|it| it.not_before);
        // What is due within ten seconds may be done.
        let soon = birth.wall + Duration::from_secs(13);
        if let Some(due) = due.filter(|due| *due > soon) {
            wrong.push(format!("{}, which is due at {due}, not at {}", claim.show(), birth.wall));
        }
    }
    wrong
}
