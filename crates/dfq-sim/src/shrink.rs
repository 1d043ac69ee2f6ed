//! The shortest plan that still fails.
//!
//! Invariant: what comes out fails by the same rule as what went in, and nothing can be taken from it any more that
//! was tried.

use std::time::Duration;

use crate::plan::{Actor, BucketKind, Fault, Host, Plan, Step, Store};
use crate::run::run;

/// What comes first is decided anew so often for each smaller plan: to leave something out changes everything.
const SEEDS_EACH: u64 = 12;

/// Shrinks a plan that breaks this rule. At most so many runs.
pub fn shrink(plan: &Plan, rule: &str, mut runs: u32) -> Plan {
    let mut best = plan.clone();
    loop {
        let smaller = candidates(&best).into_iter().find_map(|candidate| {
            (0..SEEDS_EACH).map(|more| reseeded(&candidate, more)).find(|candidate| {
                if runs == 0 {
                    return false;
                }
                runs -= 1;
                fails_by(candidate, rule).is_some()
            })
        });
        match smaller {
            Some(smaller) => best = smaller,
            None => break,
        }
    }
    // Of those that are left, the one with the least to read.
    let mut length = fails_by(&best, rule).unwrap_or(usize::MAX);
    for more in 0..u64::from(runs.min(40)) {
        let other = reseeded(&best, 1000 + more);
        if let Some(shorter) = fails_by(&other, rule).filter(|it| *it < length) {
            (best, length) = (other, shorter);
        }
    }
    best
}

/// How much happened in a run that breaks the rule; `None` if it does not.
fn fails_by(plan: &Plan, rule: &str) -> Option<usize> {
    let outcome = run(plan, false);
    let fails = outcome.violations.iter().any(|it| it.rule == rule);
    fails.then(|| outcome.history.entries().len())
}

fn reseeded(plan: &Plan, more: u64) -> Plan {
    Plan { seed: plan.seed.wrapping_add(more), ..plan.clone() }
}

/// Plans with a little less, those with much less first.
fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    all.extend((0..plan.actors.len()).map(|actor| without_actor(plan, actor)));
    all.extend((0..plan.faults.len()).map(|fault| {
        let mut less = plan.clone();
        less.faults.remove(fault);
        less
    }));
    for (number, actor) in plan.actors.iter().enumerate() {
        for step in 0..actor.steps.len() {
            let mut less = plan.clone();
            less.actors[number].steps.remove(step);
            all.push(less);
            if let Some(simpler) = simpler(&actor.steps[step]) {
                let mut less = plan.clone();
                less.actors[number].steps[step] = simpler;
                all.push(less);
            }
        }
    }
    if plan.hosts.iter().any(|host| *host != Host::default()) {
        all.push(Plan { hosts: vec![Host::default(); plan.hosts.len()], ..plan.clone() });
    }
    match &plan.store {
        Store::Bucket(kind) if *kind != BucketKind::default() => {
            all.push(Plan { store: Store::Bucket(BucketKind::default()), ..plan.clone() });
        }
        Store::Disk(kind) if kind.nfs.is_some() || kind.room.is_some() || !kind.links => {
            let store = crate::plan::DiskKind { nfs: None, room: None, links: true, ..*kind };
            all.push(Plan { store: Store::Disk(store), ..plan.clone() });
        }
        _ => {}
    }
    for number in 0..plan.actors.len() {
        let Actor { restarts, starts, .. } = plan.actors[number];
        if restarts || starts > Duration::ZERO {
            let mut less = plan.clone();
            less.actors[number].restarts = false;
            less.actors[number].starts = Duration::ZERO;
            all.push(less);
        }
    }
    all.retain(|less| !less.actors.is_empty());
    all
}

fn without_actor(plan: &Plan, gone: usize) -> Plan {
    let mut less = plan.clone();
    less.actors.remove(gone);
    less.faults.retain_mut(|fault| match fault {
        Fault::Process(actor, ..) | Fault::At(actor, ..) | Fault::Refused(actor, ..) => {
            let stays = *actor != gone;
            *actor -= usize::from(*actor > gone);
            stays
        }
        _ => true,
    });
    less
}

fn simpler(step: &Step) -> Option<Step> {
    match step {
        Step::Push { ids, again, delay } if ids.len() > 1 => {
            Some(Step::Push { ids: ids[1..].to_vec(), again: *again, delay: *delay })
        }
        Step::Push { ids, again, delay: Some(_) } => {
            Some(Step::Push { ids: ids.clone(), again: *again, delay: None })
        }
        Step::Work(work) if work.slots > 1 || work.fails > 0 => {
            Some(Step::Work(crate::plan::Work { slots: 1, fails: 0, ..*work }))
        }
        Step::Wait(time)
            if *time > Duration::from_millis(1) && *time < Duration::from_secs(600) =>
        {
            Some(Step::Wait(*time / 4))
        }
        _ => None,
    }
}
