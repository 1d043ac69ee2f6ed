//! Leases, and the ways out of them.

use std::time::{Duration, Instant};

use super::{
    Provider, ack, assert_too_late, assert_unsupported, claim, id, kind, one, poll, push, settings,
    short_leases, task,
};
use crate::error::ErrorKind;
use crate::model::Receipt;
use crate::queue::{Delivery, Detail, Nack, Nacked, PollRequest, Queue, Release, TaskState};

fn nack(receipt: &Receipt, error: &str) -> Vec<Nack> {
    vec![Nack { receipt: receipt.clone(), error: error.to_owned(), delay: None }]
}

/// Not to others, and not twice to the one who has it.
pub async fn a_held_task_is_not_handed_out(provider: &dyn Provider) {
    let settings = settings(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    push(&*alice, task("a")).await.unwrap();
    let held = claim(&*alice).await;
    let polled = bob.poll(PollRequest::new(1)).await.unwrap();
    assert!(polled.deliveries.is_empty());
    assert!(polled.idle.next.is_some(), "the lease may run out");
    assert!(poll(&*alice, 1).await.is_empty());
    ack(&*alice, &held.receipt).await.unwrap();
}

/// Polls for one task, for longer than a test takes.
async fn claim_for_long(queue: &dyn Queue) -> Delivery {
    let lease = Some(Duration::from_secs(600));
    let polled = queue.poll(PollRequest { lease, ..PollRequest::new(1) }).await.unwrap();
    polled.deliveries.into_iter().next().expect("there is one task to be had")
}

/// The next attempt is somebody else's, and the former owner is told.
pub async fn a_silent_workers_task_is_taken_over(provider: &dyn Provider) {
    let settings = short_leases(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    push(&*alice, task("a")).await.unwrap();
    let first = claim(&*alice).await;
    provider.pass(provider.lease() * 3 / 2).await;
    let second = claim_for_long(&*bob).await;
    assert_eq!((second.attempt, second.fence), (2, 2));
    assert_too_late(one(alice.heartbeat(vec![first.receipt.clone()])).await);
    assert_too_late(ack(&*alice, &first.receipt).await);
    assert_too_late(one(alice.nack(nack(&first.receipt, "late"))).await);
    if alice.capabilities().release {
        assert_too_late(one(alice.release(vec![Release::now(first.receipt.clone())])).await);
    }
    ack(&*bob, &second.receipt).await.unwrap();
    assert_too_late(ack(&*alice, &first.receipt).await);
}

/// A renewed lease outlives its first length. On a machine that stalls a heartbeat may come too late, but
/// not again and again.
pub async fn heartbeats_keep_a_task(provider: &dyn Provider) {
    let settings = short_leases(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    for round in 0..5 {
        push(&*alice, task(&format!("a{round}"))).await.unwrap();
        if is_kept(provider, &*alice, &*bob).await {
            return;
        }
        provider.pass(provider.lease() * 3 / 2).await;
        for left in poll(&*bob, 1).await {
            ack(&*bob, &left.receipt).await.unwrap();
        }
    }
    panic!("leases run out although they are renewed");
}

/// Whether alice keeps a task for two leases by renewing hers, if the machine lets her do so in time.
#[allow(clippy::disallowed_methods, reason = "whether the machine stalled is a matter of its time")]
async fn is_kept(provider: &dyn Provider, alice: &dyn Queue, bob: &dyn Queue) -> bool {
    // As long as no store may take it from her.
    let most = provider.lease() * 3 / 4;
    let mut renewed = Instant::now();
    let held = claim(alice).await.receipt;
    for _ in 0..4 {
        provider.pass(provider.lease() / 2).await;
        let now = Instant::now();
        match one(alice.heartbeat(vec![held.clone()])).await {
            Ok(left) => assert!(left > Duration::ZERO && left <= provider.lease(), "{left:?}"),
            Err(late) => {
                assert!(renewed.elapsed() > most, "{late}");
                return false;
            }
        }
        renewed = now;
        if !poll(bob, 1).await.is_empty() {
            assert!(renewed.elapsed() > most, "taken from its owner");
            return false;
        }
    }
    let acked = ack(alice, &held).await;
    assert!(acked.is_ok() || renewed.elapsed() > most, "{acked:?}");
    acked.is_ok()
}

/// Even if nobody else wanted the task.
pub async fn nobody_acks_after_their_lease(provider: &dyn Provider) {
    let queue = provider.worker(&short_leases(provider)).await;
    push(&*queue, task("a")).await.unwrap();
    let held = claim(&*queue).await;
    provider.pass(provider.lease() * 3 / 2).await;
    assert_eq!(kind(one(queue.heartbeat(vec![held.receipt.clone()])).await), ErrorKind::ClaimLost);
    assert_eq!(kind(ack(&*queue, &held.receipt).await), ErrorKind::ClaimLost);
    assert_eq!(claim(&*queue).await.attempt, 2, "the same worker may take over like any other");
}

/// An answer may have been lost on the way.
pub async fn acks_twice_are_fine(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    push(&*queue, task("a")).await.unwrap();
    let held = claim(&*queue).await;
    let both = queue.ack(vec![held.receipt.clone(), held.receipt.clone()]).await;
    assert!(both.iter().all(Result::is_ok), "{both:?}");
    ack(&*queue, &held.receipt).await.unwrap();
    assert_too_late(one(queue.nack(nack(&held.receipt, "no"))).await);
    assert_too_late(one(queue.heartbeat(vec![held.receipt.clone()])).await);
}

/// A receipt is all it takes, in whatever process.
pub async fn a_receipt_works_elsewhere(provider: &dyn Provider) {
    let settings = settings(provider);
    let (alice, other) = (provider.worker(&settings).await, provider.worker(&settings).await);
    for name in ["a", "b/c", "d"] {
        push(&*alice, task(name)).await.unwrap();
    }
    let held = poll(&*alice, 3).await;
    let receipts: Vec<Receipt> =
        held.iter().map(|delivery| delivery.receipt.to_string().parse().unwrap()).collect();
    one(other.heartbeat(vec![receipts[0].clone()])).await.unwrap();
    ack(&*other, &receipts[0]).await.unwrap();
    let forged: Receipt = "nobody/1/00".parse().unwrap();
    assert_eq!(kind(ack(&*other, &forged).await), ErrorKind::ClaimLost);
    one(other.nack(nack(&receipts[1], "no"))).await.unwrap();
    if !other.capabilities().history {
        // What a task was is known where it was received only.
        let failed = one(other.fail(vec![(receipts[2].clone(), "never".into())])).await;
        assert_unsupported(&*other, failed);
        ack(&*alice, &receipts[2]).await.unwrap();
        return;
    }
    one(other.fail(vec![(receipts[2].clone(), "never".into())])).await.unwrap();
    for receipt in &receipts {
        assert_too_late(one(alice.nack(nack(receipt, "late"))).await);
    }
}

/// In the order asked, whatever became of each.
pub async fn a_batch_answers_each(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    let tasks = (0..20).map(|n| task(&format!("t{n}"))).collect();
    assert!(queue.push(tasks).await.iter().all(Result::is_ok));
    let held = poll(&*queue, 20).await;
    assert_eq!(held.len(), 20);
    let mut receipts: Vec<Receipt> = held.iter().map(|held| held.receipt.clone()).collect();
    let forged: Receipt = "nobody/1/00".parse().unwrap();
    receipts.insert(7, forged);
    let answers = queue.ack(receipts).await;
    let bad: Vec<usize> = (0..21).filter(|at| answers[*at].is_err()).collect();
    assert_eq!(bad, [7]);
    assert!(poll(&*queue, 1).await.is_empty());
}

/// After a backoff, with its attempt counted and its error kept.
pub async fn a_nacked_task_comes_back(provider: &dyn Provider) {
    let settings = settings(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    let fail = async |name, delay| {
        push(&*alice, task(name)).await.unwrap();
        let held = claim(&*alice).await;
        let failed = Nack { delay: Some(delay), ..nack(&held.receipt, "first try").remove(0) };
        one(alice.nack(vec![failed])).await.unwrap();
    };
    let (soon, late) = (provider.lease(), provider.lease() * 100);
    fail("late", late).await;
    for queue in [&alice, &bob] {
        let polled = queue.poll(PollRequest::new(1)).await.unwrap();
        assert!(polled.deliveries.is_empty(), "it is in its backoff");
        assert!(polled.idle.next.is_some_and(|next| next <= late * 3 / 2));
    }
    fail("a", soon).await;
    provider.pass(soon * 3 / 2).await;
    let again = claim(&*bob).await;
    assert_eq!((again.id().as_str(), again.attempt), ("a", 2));
    ack(&*bob, &again.receipt).await.unwrap();
    if bob.capabilities().inspect {
        let view = bob.get(id("a")).await.unwrap().unwrap();
        assert_eq!(view.state, TaskState::Completed);
        assert_eq!(view.attempts[0].error.as_deref(), Some("first try"));
    }
}

/// Too many of them.
pub async fn failures_end_a_task(provider: &dyn Provider) {
    let settings = settings(provider);
    let queue = provider.worker(&settings).await;
    push(&*queue, task("a")).await.unwrap();
    for attempt in 1..=settings.max_attempts {
        let held = claim(&*queue).await;
        assert_eq!(held.attempt, attempt);
        let nacked = one(queue.nack(nack(&held.receipt, &format!("try {attempt}")))).await.unwrap();
        assert_eq!(nacked == Nacked::GivenUp, attempt == settings.max_attempts);
        provider.pass(settings.backoff.max).await;
    }
    assert!(poll(&*queue, 1).await.is_empty());
    assert_failed(&*queue, "try 3").await;
}

/// A task that kills its workers ends too.
pub async fn lost_leases_end_a_task(provider: &dyn Provider) {
    let settings = short_leases(provider);
    let queue = provider.worker(&settings).await;
    push(&*queue, task("a")).await.unwrap();
    for attempt in 1..=settings.max_lost {
        assert_eq!(claim(&*queue).await.attempt, attempt);
        provider.pass(provider.lease() * 3 / 2).await;
    }
    assert!(poll(&*queue, 1).await.is_empty());
    assert_failed(&*queue, "went silent").await;
}

/// The one it was pushed with.
pub async fn a_tasks_own_limit_counts(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    push(&*queue, task("a").max_attempts(1)).await.unwrap();
    one(queue.nack(nack(&claim(&*queue).await.receipt, "once"))).await.unwrap();
    assert_failed(&*queue, "once").await;
}

async fn assert_failed(queue: &dyn Queue, reason: &str) {
    if !queue.capabilities().inspect {
        let stats = queue.stats(Detail::Counts).await.unwrap();
        assert_eq!((stats.pending, stats.failed), (0, 1), "it was set aside");
        return;
    }
    let view = queue.get(id("a")).await.unwrap().unwrap();
    assert_eq!(view.state, TaskState::Failed);
    let found = view.reason.unwrap_or_default();
    assert!(found.contains(reason), "{found}");
}

/// However often.
pub async fn released_tasks_cost_no_attempt(provider: &dyn Provider) {
    let settings = settings(provider);
    let queue = provider.worker(&settings).await;
    push(&*queue, task("a")).await.unwrap();
    if !queue.capabilities().release {
        let held = claim(&*queue).await;
        let refused = one(queue.release(vec![Release::now(held.receipt.clone())])).await;
        assert_unsupported(&*queue, refused);
        ack(&*queue, &held.receipt).await.expect("it is still ours");
        return;
    }
    for _ in 0..settings.max_attempts * 2 {
        let held = claim(&*queue).await;
        one(queue.release(vec![Release::now(held.receipt)])).await.unwrap();
    }
    let release = async |delay| {
        let (held, delay) = (claim(&*queue).await.receipt, Some(delay));
        one(queue.release(vec![Release { delay, ..Release::now(held) }])).await.unwrap();
    };
    release(provider.lease() * 100).await;
    assert!(poll(&*queue, 1).await.is_empty(), "not yet");
    push(&*queue, task("b")).await.unwrap();
    release(provider.lease() / 2).await;
    provider.pass(provider.lease()).await;
    let again = claim(&*queue).await;
    assert_eq!(again.id().as_str(), "b");
    ack(&*queue, &again.receipt).await.unwrap();
}

/// With its reason, and for good.
pub async fn a_failed_task_is_set_aside(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    push(&*queue, task("a")).await.unwrap();
    let held = claim(&*queue).await;
    one(queue.fail(vec![(held.receipt.clone(), "hopeless".into())])).await.unwrap();
    one(queue.fail(vec![(held.receipt.clone(), "hopeless".into())])).await.unwrap();
    assert_too_late(ack(&*queue, &held.receipt).await);
    assert!(poll(&*queue, 1).await.is_empty());
    assert_failed(&*queue, "hopeless").await;
}

/// Over attempts and over lives.
pub async fn fences_grow(provider: &dyn Provider) {
    let settings = settings(provider);
    let queue = provider.worker(&settings).await;
    push(&*queue, task("a")).await.unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let held = claim(&*queue).await;
        assert!(held.fence > last);
        one(queue.nack(nack(&held.receipt, "no"))).await.unwrap();
        provider.pass(settings.backoff.max).await;
        last = held.fence;
    }
    if !queue.capabilities().history {
        return; // every life begins anew
    }
    for _ in 0..2 {
        push(&*queue, task("a").again()).await.unwrap();
        let held = claim(&*queue).await;
        assert!(held.fence > last, "{} after {last}", held.fence);
        last = held.fence;
        ack(&*queue, &held.receipt).await.unwrap();
    }
}
