use jiff::Timestamp;

use super::*;

const LEASE: Duration = Duration::from_secs(600);

fn at(secs: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + secs).unwrap()
}

fn seen(attempt: u32, state: Option<LeaseState>, heartbeat: i64, length: i64) -> Seen {
    let lease = Lease {
        worker_id: "w".into(),
        lease_id: Some("n".into()),
        attempt,
        created_at: at(heartbeat),
        heartbeat_at: at(heartbeat),
        expires_at: at(heartbeat + length),
        host: None,
        pid: None,
        state,
        error: None,
        not_before: None,
        moving: false,
        node: None,
        beat: 0,
    };
    let stored = Stored { bytes: format::encode_lease(&lease), modified: at(heartbeat) };
    Seen::new(attempt, &stored)
}

fn now(secs: i64) -> Now {
    Now { store: at(secs), steady: true, watched: Duration::ZERO }
}

fn judged(history: &[Seen], secs: i64) -> Judgement {
    judge(history, now(secs), LEASE, None)
}

#[test]
fn a_task_that_nobody_claimed_is_free() {
    assert_eq!(judged(&[], 0), Judgement::Free);
}

#[test]
fn a_lease_holds_until_both_its_word_and_its_files_age_say_it_ran_out() {
    let lease = [seen(1, None, 0, 100)];
    assert_eq!(judged(&lease, 99), Judgement::Held(at(100)));
    assert_eq!(judged(&lease, 100), Judgement::Stale);
    // Its word says it ran out, but the file was touched since: a writer with a slow clock.
    let mut touched = lease.clone();
    touched[0].modified = at(50);
    assert_eq!(judged(&touched, 149), Judgement::Held(at(150)));
    // The file is old, but its word says otherwise: a writer with a fast clock.
    let mut fast = lease;
    fast[0].modified = at(-50);
    assert_eq!(judged(&fast, 99), Judgement::Held(at(100)));
}

#[test]
fn a_word_from_far_in_the_future_is_not_believed() {
    let mut lease = seen(1, None, 1_000_000_000, 100);
    lease.modified = at(0);
    assert_eq!(judged(&[lease.clone()], 99), Judgement::Held(at(100)));
    assert_eq!(judged(&[lease], 100), Judgement::Stale);
    let mut endless = seen(1, None, 0, 1_000_000_000);
    endless.modified = at(0);
    assert_eq!(judged(&[endless], 24 * 3600), Judgement::Stale);
}

#[test]
fn an_unreadable_lease_is_judged_by_its_age_and_the_queues_lease() {
    let empty = Seen::new(1, &Stored { bytes: Vec::new(), modified: at(0) });
    assert_eq!(judged(std::slice::from_ref(&empty), 599), Judgement::Held(at(600)));
    assert_eq!(judged(&[empty], 600), Judgement::Stale);
}

#[test]
fn withdrawn_leases_are_transparent() {
    let withdrawn = seen(2, Some(LeaseState::Withdrawn), 90, 100);
    assert_eq!(judged(std::slice::from_ref(&withdrawn), 91), Judgement::Free);
    let live = seen(1, None, 0, 100);
    assert_eq!(judged(&[live.clone(), withdrawn.clone()], 99), Judgement::Held(at(100)));
    assert_eq!(judged(&[live, withdrawn], 100), Judgement::Stale);
}

#[test]
fn a_task_in_backoff_waits() {
    let mut failed = seen(1, Some(LeaseState::Failed), 0, 100);
    failed.lease.as_mut().unwrap().not_before = Some(at(30));
    assert_eq!(judged(&[failed.clone()], 29), Judgement::Backoff(at(30)));
    assert_eq!(judged(&[failed], 30), Judgement::Free);
    assert_eq!(judged(&[seen(1, Some(LeaseState::Released), 0, 100)], 1), Judgement::Free);
}

#[test]
fn after_a_clock_jump_only_watching_tells() {
    let lease = [seen(1, None, 0, 100)];
    let jumped =
        |watched| Now { store: at(3600), steady: false, watched: Duration::from_secs(watched) };
    assert_eq!(judge(&lease, jumped(100), LEASE, None), Judgement::Held(at(100)));
    assert_eq!(judge(&lease, jumped(101), LEASE, None), Judgement::Stale);
    // The other way: the clock went back, and the file seems to come from the future.
    let behind = Now { store: at(-3600), ..jumped(101) };
    assert_eq!(judge(&lease, behind, LEASE, None), Judgement::Stale);
}

#[test]
fn versions_differ_by_content_and_by_time() {
    let a = seen(1, None, 0, 100);
    let mut touched =
        Stored { bytes: format::encode_lease(a.lease.as_ref().unwrap()), modified: at(0) };
    assert_eq!(Seen::new(1, &touched).version, a.version);
    touched.modified = at(1);
    assert_ne!(Seen::new(1, &touched).version, a.version);
}

#[test]
fn earlier_attempts_are_counted_by_how_they_ended() {
    let history = [
        seen(1, Some(LeaseState::Failed), 0, 100),
        seen(2, None, 0, 100),
        seen(3, Some(LeaseState::Released), 0, 100),
        seen(4, Some(LeaseState::Withdrawn), 0, 100),
        seen(5, Some(LeaseState::Failed), 0, 100),
    ];
    assert_eq!(tally(&history), Earlier { failed: 2, lost: 1, released: 1 });
    let unlocked = [seen(1, None, 0, 100), seen(2, Some(LeaseState::Released), 50, 0)];
    assert_eq!(tally(&unlocked), Earlier::default());
}

/// Workers that are restarted often must not use up how often a task may be given back.
#[test]
fn the_end_of_a_worker_is_no_giving_back() {
    let mut stopped = seen(1, Some(LeaseState::Released), 0, 100);
    stopped.lease.as_mut().unwrap().error = Some(crate::worker::STOPPED.to_owned());
    let history = [stopped, seen(2, Some(LeaseState::Released), 0, 100)];
    assert_eq!(tally(&history), Earlier { released: 1, ..Earlier::default() });
}

#[test]
fn a_claim_in_order_to_move_a_task_is_no_attempt_however_it_ends() {
    let mut moving = seen(2, None, 0, 100);
    if let Some(lease) = &mut moving.lease {
        lease.moving = true;
    }
    let history = [seen(1, None, 0, 100), moving];
    assert_eq!(tally(&history), Earlier { lost: 1, ..Earlier::default() });
}

/// Whoever has watched a file for as long as it means to hold goes by that, if the store's clock was set back.
#[test]
fn what_is_from_the_future_holds_for_its_own_length() {
    let watched = |secs| Now { store: at(0), steady: false, watched: Duration::from_secs(secs) };
    let lease = [seen(1, None, 200_000, 100)];
    assert_eq!(judge(&lease, watched(0), LEASE, None), Judgement::Held(at(100)));
    assert_eq!(judge(&lease, watched(60), LEASE, None), Judgement::Held(at(40)));
    assert_eq!(judge(&lease, watched(101), LEASE, None), Judgement::Stale);
    let mut failed = seen(1, Some(LeaseState::Failed), 200_000, 100);
    failed.lease.as_mut().unwrap().not_before = Some(at(200_030));
    let failed = [failed];
    assert_eq!(judge(&failed, watched(0), LEASE, None), Judgement::Backoff(at(30)));
    assert_eq!(judge(&failed, watched(10), LEASE, None), Judgement::Backoff(at(20)));
    assert_eq!(judge(&failed, watched(30), LEASE, None), Judgement::Free);
    // One that was over when it was written.
    let mut over = seen(1, Some(LeaseState::Released), 200_000, 100);
    over.lease.as_mut().unwrap().not_before = Some(at(200_000));
    assert_eq!(judge(&[over], watched(0), LEASE, None), Judgement::Free);
}
