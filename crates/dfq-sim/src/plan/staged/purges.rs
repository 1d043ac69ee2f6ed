//! Scenes in which a purge meets something.
//!
//! Invariant: as in `staged`.

use std::time::Duration;

use super::{Draw, Plan, Says, Spot, Step, Trouble};
use super::{after, before, millis, newcomers, pull, push, secs, work};

/// Tasks whose worker died when it had recorded their ends.
pub(super) fn remains(draw: &mut Draw, plan: &mut Plan) {
    let ids = [0, 1, 2, 3, 4, 5];
    draw.on(plan, Duration::ZERO, vec![push(&ids)]);
    let dies = draw.on(plan, millis(300), vec![pull(millis(10), false, Says::Done)]);
    after(plan, dies, Spot::Record, 5, Trouble::Killed);
}

pub(super) fn a_purge_of_remains_and_a_cut(draw: &mut Draw, plan: &mut Plan) {
    remains(draw, plan);
    let at = old(plan);
    draw.on(plan, at, vec![purge(plan), Step::Cut]);
}

/// When records may be purged, if all is done in the first minute.
fn old(plan: &Plan) -> Duration {
    secs(3600).max(plan.lease * 10) + secs(120)
}

fn purge(plan: &Plan) -> Step {
    Step::Purge { completed: true, older_than: old(plan) - secs(120) }
}

/// Lives of an id that are over in the first minute.
fn lived(draw: &mut Draw, plan: &mut Plan, lives: u32) {
    let life = [push(&[0]), pull(millis(10), false, Says::Done), Step::Wait(secs(5))];
    draw.on(plan, Duration::ZERO, (0..lives).flat_map(|_| life.clone()).collect());
}

pub(super) fn a_purge_and_a_cut(draw: &mut Draw, plan: &mut Plan) {
    lived(draw, plan, 2);
    let at = old(plan);
    draw.on(plan, at, vec![purge(plan), Step::Cut, push(&[0])]);
}

pub(super) fn a_push_over_a_purge(draw: &mut Draw, plan: &mut Plan) {
    let at = old(plan);
    let sleeps = draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    before(plan, sleeps, Spot::Publish, 0, Trouble::Stalled(at + secs(20)));
    draw.on(plan, secs(2), vec![push(&[0]), pull(millis(10), false, Says::Done)]);
    draw.on(plan, at, vec![purge(plan)]);
    let from = at + secs(21) + draw.time(secs(2));
    newcomers(draw, plan, from, secs(1), 2);
}

pub(super) fn a_removal_that_comes_late(draw: &mut Draw, plan: &mut Plan) {
    let at = old(plan);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    let sleeps = draw.on(plan, secs(1), vec![work(secs(30), millis(20))]);
    after(plan, sleeps, Spot::Record, 0, Trouble::Stalled(at + secs(20)));
    // Others find what that one has left.
    newcomers(draw, plan, secs(20), secs(20), 3);
    draw.on(plan, at, vec![purge(plan), Step::Wait(secs(3)), push(&[0])]);
}

/// A task whose worker died when it had recorded its end.
pub(super) fn left_behind(draw: &mut Draw, plan: &mut Plan) {
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    let dies = draw.on(plan, secs(1), vec![pull(millis(10), false, Says::Done)]);
    after(plan, dies, Spot::Record, 0, Trouble::Killed);
}

pub(super) fn a_cleanup_beside_a_purge(draw: &mut Draw, plan: &mut Plan) {
    left_behind(draw, plan);
    let at = old(plan);
    let cleans = draw.on(plan, at, vec![pull(millis(10), false, Says::Nothing)]);
    before(plan, cleans, Spot::TaskGone, 0, Trouble::Stalled(secs(20)));
    let steps = vec![purge(plan), Step::Wait(secs(3)), push(&[0])];
    draw.on(plan, at + secs(4), steps);
}

pub(super) fn a_purge_that_stops_halfway(draw: &mut Draw, plan: &mut Plan) {
    plan.flat = false;
    lived(draw, plan, 1);
    let at = old(plan);
    let stops = draw.on(plan, at, vec![purge(plan)]);
    before(plan, stops, Spot::RecordGone, 0, Trouble::Stalled(secs(25)));
    // Such a push tries the first life before it looks.
    let once = Step::Push { ids: vec![0], again: false, delay: None };
    draw.on(plan, at + secs(9), vec![once]);
    newcomers(draw, plan, at + secs(12), secs(3), 3);
}

pub(super) fn a_removal_without_answer(draw: &mut Draw, plan: &mut Plan) {
    lived(draw, plan, 1);
    let at = old(plan);
    let waits = draw.on(plan, at, vec![purge(plan)]);
    before(plan, waits, Spot::RecordGone, 0, Trouble::Repeated);
    let steps = vec![push(&[0]), pull(millis(10), false, Says::Done)];
    draw.on(plan, at + secs(4), steps);
}

pub(super) fn a_push_between_two_removals(draw: &mut Draw, plan: &mut Plan) {
    lived(draw, plan, 2);
    let at = old(plan);
    let purges = draw.on(plan, at, vec![purge(plan)]);
    before(plan, purges, Spot::Record, 1, Trouble::Slow(secs(15)));
    draw.on(plan, at + secs(6), vec![push(&[0])]);
}

pub(super) fn a_push_beside_a_purge(draw: &mut Draw, plan: &mut Plan) {
    lived(draw, plan, 1);
    let at = old(plan);
    let waits = draw.on(plan, at, vec![push(&[0])]);
    before(plan, waits, Spot::Publish, 0, Trouble::Stalled(secs(30)));
    draw.on(plan, at + secs(3), vec![purge(plan)]);
}

pub(super) fn two_purges(draw: &mut Draw, plan: &mut Plan) {
    lived(draw, plan, 1);
    let at = old(plan);
    let waits = draw.on(plan, at, vec![purge(plan)]);
    before(plan, waits, Spot::Record, 0, Trouble::Stalled(secs(30)));
    let life = [push(&[0]), pull(millis(10), false, Says::Done)];
    let steps = [Step::Wait(secs(1)), purge(plan)].into_iter().chain(life).collect();
    draw.on(plan, at + secs(2), steps);
}
