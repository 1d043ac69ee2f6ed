//! Plans in which one thing is made to meet another.
//!
//! Invariant: each of them could happen. Only how likely it is has been changed: who is slow, or dies, does so at the
//! one call at which it matters.

use std::time::Duration;

use jiff::SignedDuration;
use rustix::io::Errno;

use super::drawn::{Draw, On, millis, secs};
use super::{
    Actor, BucketKind, Fault, Host, Plan, Pull, Says, Spot, Step, Store, Trouble, When, Work,
};

mod purges;

use purges::{
    a_cleanup_beside_a_purge, a_purge_and_a_cut, a_purge_of_remains_and_a_cut,
    a_purge_that_stops_halfway, a_push_beside_a_purge, a_push_between_two_removals,
    a_push_over_a_purge, a_removal_that_comes_late, a_removal_without_answer, left_behind, remains,
    two_purges,
};

type Scene = fn(&mut Draw, &mut Plan);

/// For directories.
const ON_DISK: [Scene; 32] = [
    a_record_of_another_machine,
    a_delayed_push_without_answer,
    a_jump_over_a_backoff,
    a_heartbeat_that_hangs,
    tasks_that_rest,
    two_who_make_it,
    a_claim_that_hangs,
    a_purge_of_remains_and_a_cut,
    a_jump_before_a_renewal,
    two_jumps_around_a_renewal,
    a_jump_of_days,
    a_jump_unseen,
    a_claim_after_a_jump,
    a_claim_from_the_future,
    a_push_that_rests_on_another,
    a_second_attempt_and_a_cut,
    a_cleanup_and_a_cut,
    a_cleanup_and_a_cut,
    a_purge_and_a_cut,
    a_push_over_a_purge,
    a_look_that_fails,
    a_late_owner,
    a_late_renewal,
    a_claim_taken_away,
    a_cancel_of_what_is_done,
    a_move_cut_short,
    a_spoiled_lease,
    a_spoiled_task,
    a_full_disk,
    a_folder_that_is_refused,
    an_unlock,
    a_retry_of_what_is_done,
];

/// For buckets.
const IN_BUCKET: [Scene; 29] = [
    a_delayed_push_without_answer,
    a_jump_of_days,
    a_jump_over_a_backoff,
    a_heartbeat_that_hangs,
    tasks_that_rest,
    a_claim_that_hangs,
    a_push_that_comes_late,
    a_jump_before_a_renewal,
    a_jump_unseen,
    a_claim_after_a_jump,
    a_removal_that_comes_late,
    a_cleanup_beside_a_purge,
    a_purge_that_stops_halfway,
    a_removal_without_answer,
    a_push_between_two_removals,
    a_push_beside_a_purge,
    two_purges,
    a_late_owner,
    a_late_renewal,
    a_renewal_beside_an_ack,
    a_write_that_is_lost,
    a_claim_without_answer,
    a_claim_taken_away,
    a_cancel_of_what_is_done,
    a_move_cut_short,
    a_spoiled_lease,
    a_spoiled_task,
    a_folder_that_is_refused,
    an_unlock,
];

impl Draw {
    /// Fills a plan with one of these scenes, each in its turn.
    pub(super) fn staged(&mut self, plan: &mut Plan, on: On, turn: u64) {
        plan.hosts = vec![Host::default(); 1 + self.index(2)];
        (plan.max_attempts, plan.max_lost, plan.backoff) = (5, 10, millis(100));
        plan.lease = self.one(&[secs(10), secs(30)]);
        match &mut plan.store {
            Store::Disk(kind) => {
                (kind.room, kind.nfs) = (None, None);
                // With a journal a power cut takes the last changes and no others, which shows less.
                (kind.tick, kind.journal) = (kind.tick.min(millis(4)), self.percent(20));
            }
            Store::Bucket(kind) => *kind = BucketKind::default(),
        }
        let scenes: &[Scene] = match on {
            On::Disk => &ON_DISK,
            On::Bucket => &IN_BUCKET,
        };
        let turn = usize::try_from(turn % scenes.len() as u64).unwrap_or(0);
        scenes[turn](self, plan);
    }

    fn on(&mut self, plan: &mut Plan, starts: Duration, steps: Vec<Step>) -> usize {
        let host = self.index(plan.hosts.len());
        plan.actors.push(Actor { host, starts, steps, restarts: false });
        plan.actors.len() - 1
    }
}

fn push(ids: &[u8]) -> Step {
    Step::Push { ids: ids.to_vec(), again: true, delay: None }
}

fn pull(keeps: Duration, renews: bool, says: Says) -> Step {
    Step::Pull(Pull { max: 6, rounds: 1, keeps, renews, says })
}

fn work(lasts: Duration, busy: Duration) -> Step {
    Step::Work(Work { lasts, slots: 1, busy, fails: 0, elsewhere: false })
}

fn before(plan: &mut Plan, actor: usize, spot: Spot, nth: u32, trouble: Trouble) {
    plan.faults.push(Fault::At(actor, When::Before(spot, nth), trouble));
}

fn after(plan: &mut Plan, actor: usize, spot: Spot, nth: u32, trouble: Trouble) {
    plan.faults.push(Fault::At(actor, When::After(spot, nth), trouble));
}

fn jump(plan: &mut Plan, at: Duration, by: i64) {
    plan.faults.push(Fault::Jump(0, at, SignedDuration::from_secs(by)));
}

/// Those who come anew and look, one after the other.
fn newcomers(draw: &mut Draw, plan: &mut Plan, from: Duration, apart: Duration, times: usize) {
    let look = [Step::Reopen, pull(millis(10), false, Says::Nothing), Step::Wait(apart)];
    draw.on(plan, from, (0..times).flat_map(|_| look.clone()).collect());
}

/// Somebody claims a task, and renews it after the clock was set.
fn renewed_after(draw: &mut Draw, plan: &mut Plan, says: Says) {
    plan.lease = secs(30);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    draw.on(plan, millis(500), vec![pull(secs(6), true, says)]);
}

fn a_jump_before_a_renewal(draw: &mut Draw, plan: &mut Plan) {
    renewed_after(draw, plan, Says::Nothing);
    jump(plan, millis(1500), 3600);
    newcomers(draw, plan, secs(4), secs(2), 4);
}

fn two_jumps_around_a_renewal(draw: &mut Draw, plan: &mut Plan) {
    renewed_after(draw, plan, Says::Nothing);
    jump(plan, millis(1500), -60);
    jump(plan, millis(4000), 60);
    newcomers(draw, plan, secs(5), secs(2), 4);
}

fn a_jump_of_days(draw: &mut Draw, plan: &mut Plan) {
    renewed_after(draw, plan, Says::Nothing);
    jump(plan, millis(1500), -2 * 86_400);
    newcomers(draw, plan, secs(36), secs(3), 4);
}

fn a_jump_over_a_backoff(draw: &mut Draw, plan: &mut Plan) {
    plan.backoff = secs(60);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    draw.on(plan, millis(500), vec![pull(millis(10), false, Says::Failed)]);
    jump(plan, secs(3), -2 * 86_400);
}

fn a_jump_unseen(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(30);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    draw.on(plan, millis(500), vec![pull(secs(50), false, Says::Nothing)]);
    draw.on(plan, secs(1), vec![work(secs(40), millis(20))]);
    jump(plan, secs(3) + draw.time(secs(4)), 3600);
}

fn a_claim_after_a_jump(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(30);
    let waits = Step::Pull(Pull {
        max: 1,
        rounds: 8,
        keeps: millis(10),
        renews: false,
        says: Says::Nothing,
    });
    draw.on(plan, Duration::ZERO, vec![waits]);
    jump(plan, millis(1500), -3600);
    draw.on(plan, millis(1700), vec![push(&[0]), pull(secs(20), false, Says::Nothing)]);
}

fn a_claim_from_the_future(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(30);
    draw.on(plan, Duration::ZERO, vec![push(&[0]), pull(secs(5), false, Says::Nothing)]);
    jump(plan, secs(3), -2 * 86_400);
}

fn a_push_that_rests_on_another(draw: &mut Draw, plan: &mut Plan) {
    let ids = [0, 1, 2];
    draw.on(plan, Duration::ZERO, vec![push(&ids), pull(millis(10), false, Says::Done)]);
    let dies = draw.on(plan, secs(4), vec![push(&ids)]);
    after(plan, dies, Spot::Publish, 2, Trouble::Killed);
    // It finds that they have finished, and are pending again, and so tries nothing itself.
    let once = Step::Push { ids: ids.to_vec(), again: false, delay: None };
    draw.on(plan, secs(6), vec![once, Step::Cut]);
}

fn a_second_attempt_and_a_cut(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(1);
    let nothing = pull(millis(10), false, Says::Nothing);
    let rest = [Step::Wait(millis(1200)), Step::Reopen];
    let mut steps = vec![push(&[0, 1])];
    steps.push(nothing.clone());
    steps.extend(rest.clone());
    steps.extend([nothing.clone(), Step::Cut]);
    steps.extend(rest);
    steps.push(nothing);
    draw.on(plan, Duration::ZERO, steps);
}

fn a_cleanup_and_a_cut(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(1);
    remains(draw, plan);
    let cleans = draw.on(plan, secs(2), vec![pull(millis(10), false, Says::Done)]);
    after(plan, cleans, Spot::TaskGone, 5, Trouble::PowerCut);
}

fn a_look_that_fails(draw: &mut Draw, plan: &mut Plan) {
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    let fails = draw.on(plan, millis(500), vec![pull(millis(10), false, Says::Done)]);
    after(plan, fails, Spot::Claim, 0, Trouble::Fails(Errno::IO, 1));
    newcomers(draw, plan, secs(3), secs(2), 3);
}

fn a_late_owner(draw: &mut Draw, plan: &mut Plan) {
    draw.on(plan, Duration::ZERO, vec![push(&[0, 1])]);
    let says = draw.one(&[Says::Done, Says::Failed, Says::Back]);
    draw.on(plan, millis(500), vec![pull(plan.lease * 4, true, says)]);
}

fn a_late_renewal(draw: &mut Draw, plan: &mut Plan) {
    let lease = plan.lease;
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    let late = draw.on(plan, millis(500), vec![pull(lease, true, Says::Done)]);
    before(plan, late, Spot::Beat, 0, Trouble::Stalled(lease.mul_f64(0.7)));
    if draw.percent(20) {
        draw.on(plan, secs(1), vec![work(lease * 2, millis(20))]);
    }
}

fn a_renewal_beside_an_ack(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(30);
    let round = [push(&[0, 1, 2, 3]), Step::Wait(secs(20))];
    draw.on(plan, Duration::ZERO, (0..4).flat_map(|_| round.clone()).collect());
    let work = Work { lasts: secs(90), slots: 4, busy: secs(12), fails: 0, elsewhere: false };
    let worker = draw.on(plan, millis(500), vec![Step::Work(work)]);
    for nth in 0..16 {
        before(plan, worker, Spot::Beat, nth, Trouble::Slow(millis(2500)));
        before(plan, worker, Spot::Record, nth, Trouble::Slow(secs(3)));
    }
}

fn a_write_that_is_lost(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(10);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    let waits = draw.on(plan, millis(500), vec![pull(secs(6), false, Says::Done)]);
    before(plan, waits, Spot::Record, 0, Trouble::Fails(Errno::IO, 1));
}

fn a_claim_without_answer(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(60);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    let waits = draw.on(plan, millis(500), vec![pull(secs(6), false, Says::Done)]);
    before(plan, waits, Spot::Claim, 0, Trouble::Repeated);
}

fn a_claim_taken_away(draw: &mut Draw, plan: &mut Plan) {
    draw.on(plan, Duration::ZERO, vec![push(&[0]), pull(millis(10), false, Says::Failed)]);
    let sleeps = draw.on(plan, secs(2), vec![pull(secs(1), false, Says::Done)]);
    after(plan, sleeps, Spot::Claim, draw.one(&[0, 1]), Trouble::Stalled(secs(5)));
    draw.on(plan, secs(4), vec![Step::Unlock(0)]);
}

fn a_cancel_of_what_is_done(draw: &mut Draw, plan: &mut Plan) {
    left_behind(draw, plan);
    // It has just looked for records when one is made.
    let looks = draw.on(plan, millis(600), vec![Step::Cancel(0)]);
    after(plan, looks, Spot::RecordLook, 1, Trouble::Stalled(secs(5)));
}

fn a_move_cut_short(draw: &mut Draw, plan: &mut Plan) {
    let (ids, delay) = (vec![0, 1], Some(secs(90)));
    draw.on(plan, Duration::ZERO, vec![Step::Push { ids, again: true, delay }]);
    let steps = vec![Step::Transfer { moves: true, back: false }];
    let mover = draw.on(plan, secs(2), steps);
    let spot = draw.one(&[Spot::Publish, Spot::Claim]);
    after(plan, mover, spot, 0, Trouble::Killed);
    draw.on(plan, secs(3), vec![work(secs(70), millis(20))]);
}

/// Somebody has a task, and others look at it, each anew.
fn held(draw: &mut Draw, plan: &mut Plan, spoils: Step) {
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    draw.on(plan, millis(500), vec![pull(secs(5), false, Says::Nothing)]);
    draw.on(plan, secs(2), vec![spoils]);
    newcomers(draw, plan, secs(3), secs(2), 3);
    newcomers(draw, plan, plan.lease + secs(7), secs(2), 2);
}

fn a_spoiled_lease(draw: &mut Draw, plan: &mut Plan) {
    let torn = draw.percent(50);
    held(draw, plan, Step::Spoil { id: 0, lease: true, torn });
}

fn a_spoiled_task(draw: &mut Draw, plan: &mut Plan) {
    let torn = draw.percent(30);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    draw.on(plan, secs(1), vec![Step::Spoil { id: 0, lease: false, torn }]);
    newcomers(draw, plan, secs(2), secs(2), 3);
}

fn a_full_disk(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(10);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    let holder = draw.on(plan, millis(500), vec![work(secs(60), secs(120))]);
    after(plan, holder, Spot::Claim, 0, Trouble::Fails(Errno::NOSPC, 100_000));
    draw.on(plan, secs(2), vec![work(secs(50), millis(20))]);
}

fn a_folder_that_is_refused(draw: &mut Draw, plan: &mut Plan) {
    draw.on(plan, Duration::ZERO, vec![push(&[0, 1])]);
    let worker = draw.on(plan, millis(500), vec![work(secs(24 * 3600), millis(20))]);
    plan.faults.push(Fault::Refused(worker, "completed", Errno::ACCESS));
}

fn an_unlock(draw: &mut Draw, plan: &mut Plan) {
    plan.lease = secs(60);
    draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    draw.on(plan, secs(1), vec![work(secs(70), secs(120))]);
    let how = draw.one(&[Step::Unlock(0), Step::Cancel(0)]);
    draw.on(plan, secs(5), vec![how]);
}

fn a_retry_of_what_is_done(draw: &mut Draw, plan: &mut Plan) {
    let done = [push(&[0]), pull(millis(10), false, Says::DoneTwice), Step::Retry(0)];
    draw.on(plan, Duration::ZERO, done.to_vec());
}

fn tasks_that_rest(draw: &mut Draw, plan: &mut Plan) {
    plan.backoff = secs(3600);
    let ids = [0, 1, 2, 3, 4, 5];
    draw.on(plan, Duration::ZERO, vec![push(&ids), pull(millis(10), false, Says::Failed)]);
    draw.on(plan, secs(5), vec![work(secs(900), millis(20))]);
}

fn two_who_make_it(draw: &mut Draw, plan: &mut Plan) {
    (plan.made, plan.flat) = (false, false);
    let first = draw.on(plan, Duration::ZERO, vec![push(&[0])]);
    before(plan, first, Spot::Publish, 0, Trouble::Stalled(secs(3)));
    let second = draw.on(plan, Duration::ZERO, vec![push(&[1])]);
    // It has found no settings, and goes on when the other has made them, and folders.
    plan.faults.push(Fault::Process(second, draw.one(&[1, 2]), Trouble::Stalled(secs(1))));
}

fn a_claim_that_hangs(draw: &mut Draw, plan: &mut Plan) {
    draw.on(plan, Duration::ZERO, vec![push(&[0, 1])]);
    let hangs = draw.on(plan, secs(1), vec![pull(secs(2), false, Says::Done)]);
    let (nth, lasts) = (draw.one(&[0, 1]), plan.lease.mul_f64(draw.one(&[0.5, 1.2])));
    after(plan, hangs, Spot::Claim, nth, Trouble::Slow(lasts));
}

fn a_heartbeat_that_hangs(draw: &mut Draw, plan: &mut Plan) {
    draw.on(plan, Duration::ZERO, vec![push(&[0, 1])]);
    let lasts = plan.lease / 2;
    let hangs = draw.on(plan, secs(1), vec![pull(secs(4), true, Says::Done)]);
    before(plan, hangs, Spot::Beat, draw.one(&[0, 1]), Trouble::Slow(lasts));
}

fn a_push_that_comes_late(draw: &mut Draw, plan: &mut Plan) {
    plan.flat = false;
    let once = || vec![Step::Push { ids: vec![0], again: false, delay: None }];
    draw.on(plan, Duration::ZERO, once());
    // Its first request comes when the other's task is done; and it has looked for records before that.
    let late = draw.on(plan, secs(1), once());
    before(plan, late, Spot::Publish, 0, Trouble::Late(secs(40)));
    before(plan, late, Spot::Look, 0, Trouble::Slow(secs(35)));
    draw.on(plan, secs(12), vec![work(secs(18), millis(20))]);
}

fn a_delayed_push_without_answer(draw: &mut Draw, plan: &mut Plan) {
    let delay = Some(secs(60));
    let steps = vec![Step::Push { ids: vec![0, 1], again: draw.percent(50), delay }];
    let waits = draw.on(plan, Duration::ZERO, steps);
    before(plan, waits, Spot::Schedule, draw.one(&[0, 1]), Trouble::Repeated);
}

fn a_record_of_another_machine(_: &mut Draw, plan: &mut Plan) {
    plan.hosts = vec![Host::default(); 2];
    if let Store::Disk(kind) = &mut plan.store {
        (kind.nfs, kind.unnamed, kind.links) = (Some(secs(30)), false, true);
    }
    // The first knows that there is no record, and the second makes one.
    let twice = vec![push(&[0]), Step::Wait(secs(3)), push(&[0])];
    let done = vec![pull(millis(10), false, Says::Done)];
    for (host, starts, steps) in [(1, Duration::ZERO, twice), (0, secs(1), done)] {
        plan.actors.push(Actor { host, starts, steps, restarts: false });
    }
}
