//! The four conditional PUTs on which all rests: of the settings, the task, the lease, the record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dfq::{ErrorKind, Outcome, Pushed};
use dfq_s3_server::Fault;

use crate::world::*;

/// Whatever may happen to one request: nobody can tell from the answer whether it was executed.
const FAULTS: [Fault; 10] = [
    Fault::LoseRequest,
    Fault::LoseAnswer,
    Fault::Conflict,
    Fault::ConflictExecuted,
    Fault::PreconditionExecuted,
    Fault::Error,
    Fault::ErrorExecuted,
    Fault::SlowDown,
    Fault::SlowDownExecuted,
    Fault::Delay(Duration::from_millis(300)),
];

/// A task's life, in which each step says what is so and the bucket holds what was said.
async fn live(world: &World) {
    let queue = world.open(LONG).await.unwrap();
    assert_eq!(queue.settings().lease, LONG);
    let other = world.worker().await;
    assert_eq!(other.settings().lease, LONG);

    assert!(matches!(push(&*queue).await.unwrap(), Pushed::Created(_)));
    assert!(matches!(push(&*other).await.unwrap(), Pushed::Pending(_)));
    assert_eq!(world.keys("pending/"), [TASK]);

    let delivery = claim(&*queue).await;
    assert_eq!(delivery.attempt, 1);
    assert!(poll(&*other, 1).await.unwrap().is_empty(), "it is held");
    assert_eq!(world.keys("pending/"), [LEASE, TASK]);

    ack(&*queue, &delivery.receipt).await.unwrap();
    assert_eq!(world.keys("completed/"), [COMPLETED]);
    ack(&*queue, &delivery.receipt).await.unwrap();
    assert!(matches!(push(&*other).await.unwrap(), Pushed::Finished(_, Outcome::Completed)));
    world.tidy(&*other).await;
    assert_eq!(world.keys("completed/"), [COMPLETED]);
    assert_eq!(world.keys("failed/"), [""; 0]);
}

async fn live_through(file: &'static str) {
    for fault in FAULTS {
        let world = World::new().await;
        world.once(fault, creates(file));
        live(&world).await;
        assert_eq!(world.faults(fault), 1, "{fault:?} of {file} has happened");
    }
}

#[tokio::test]
async fn a_fault_in_making_the_queue() {
    live_through(SETTINGS).await;
}

#[tokio::test]
async fn a_fault_in_pushing() {
    live_through(TASK).await;
}

#[tokio::test]
async fn a_fault_in_claiming() {
    live_through(LEASE).await;
}

#[tokio::test]
async fn a_fault_in_finishing() {
    live_through(COMPLETED).await;
}

/// What cannot have been done, as far as anybody knows, however often it is tried.
const LASTING: [Fault; 6] = [
    Fault::LoseRequest,
    Fault::LoseAnswer,
    Fault::Conflict,
    Fault::ConflictExecuted,
    Fault::Error,
    Fault::SlowDown,
];

fn executed(fault: Fault) -> bool {
    matches!(fault, Fault::LoseAnswer | Fault::ConflictExecuted)
}

#[tokio::test]
async fn a_queue_that_cannot_be_made_can_be_made_later() {
    for fault in LASTING {
        let world = World::new().await;
        world.always(fault, creates(SETTINGS));
        let error = world.open(LONG).await.err().expect("nobody said that there is one");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        world.server.off();
        live(&world).await;
    }
}

#[tokio::test]
async fn a_push_without_an_answer_is_no_success() {
    for fault in LASTING {
        let world = World::new().await;
        let queue = world.worker().await;
        world.always(fault, creates(TASK));
        let error = push(&*queue).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        assert_eq!(world.keys("pending/").is_empty(), !executed(fault), "{fault:?}");
        world.server.off();
        let pushed = push(&*queue).await.unwrap();
        assert_eq!(matches!(pushed, Pushed::Pending(_)), executed(fault), "{fault:?}: {pushed:?}");
        let delivery = claim(&*queue).await;
        ack(&*queue, &delivery.receipt).await.unwrap();
    }
}

#[tokio::test]
async fn a_claim_without_an_answer_is_nobodys() {
    let cases = LASTING.map(|fault| async move {
        let world = World::new().await;
        let queue = world.with_task(LONG).await;
        world.always(fault, creates(LEASE));
        match poll(&*queue, 1).await {
            Ok(got) => assert!(got.is_empty(), "{fault:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}"),
        }
        world.server.off();
        // Its lease, if it got there, runs out as that of anybody who is silent.
        let delivery = world.claim_in_time(&*world.worker().await).await;
        assert_eq!(delivery.attempt, if executed(fault) { 2 } else { 1 }, "{fault:?}");
    });
    futures::future::join_all(cases).await;
}

#[tokio::test]
async fn an_ack_without_an_answer_can_be_repeated() {
    for fault in LASTING {
        let world = World::new().await;
        let queue = world.with_task(LONG).await;
        let delivery = claim(&*queue).await;
        world.always(fault, creates(COMPLETED));
        let error = ack(&*queue, &delivery.receipt).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        assert_eq!(world.keys("completed/").is_empty(), !executed(fault), "{fault:?}");
        assert!(world.keys(TASK).len() == 1, "{fault:?}: nothing is removed on a guess");
        world.server.off();
        ack(&*queue, &delivery.receipt).await.unwrap();
        assert_eq!(world.keys("completed/"), [COMPLETED]);
        world.tidy(&*queue).await;
    }
}

/// Long enough for somebody else to come first.
const SLOW: Fault = Fault::Delay(Duration::from_secs(7));

/// Waits until the one who is slow is under way.
async fn under_way(come: &AtomicBool) {
    while !come.load(Ordering::SeqCst) {
        pause(20).await;
    }
}

#[tokio::test]
async fn of_two_that_make_a_queue_one_does() {
    let world = World::new().await;
    let come = world.once(SLOW, creates(SETTINGS));
    let (late, first) = tokio::join!(world.open(LONG), async {
        under_way(&come).await;
        world.open(LONG / 2).await
    });
    assert_eq!(first.unwrap().settings().lease, LONG / 2);
    assert_eq!(late.unwrap().settings().lease, LONG / 2, "the settings are those that are there");
    assert_eq!(world.faults(SLOW), 1);
}

#[tokio::test]
async fn of_two_that_push_one_creates() {
    let world = World::new().await;
    let (queue, other) = (world.worker().await, world.worker().await);
    let come = world.once(SLOW, creates(TASK));
    let (late, first) = tokio::join!(push(&*queue), async {
        under_way(&come).await;
        push(&*other).await
    });
    assert!(matches!(first.unwrap(), Pushed::Created(_)));
    assert!(matches!(late.unwrap(), Pushed::Pending(_)));
    assert_eq!((world.keys("pending/").len(), world.faults(SLOW)), (1, 1));
}

#[tokio::test]
async fn of_two_that_claim_one_has_it() {
    let world = World::new().await;
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let come = world.once(SLOW, creates(LEASE));
    let (late, first) = tokio::join!(poll(&*queue, 1), async {
        under_way(&come).await;
        claim(&*other).await
    });
    assert_eq!((late.unwrap().len(), world.faults(SLOW)), (0, 1));
    ack(&*other, &first.receipt).await.unwrap();
}

/// A worker and a separate `dfq fail` with its receipt.
#[tokio::test]
async fn of_two_ends_one_holds() {
    let world = World::new().await;
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let receipt = claim(&*queue).await.receipt;
    let come = world.once(SLOW, creates(COMPLETED));
    let (late, first) = tokio::join!(ack(&*queue, &receipt), async {
        under_way(&come).await;
        other.ack(vec![receipt.clone()]).await.remove(0)
    });
    assert_eq!((late, first), (Ok(()), Ok(())), "the same owner's, so both are true");
    assert_eq!((world.keys("completed/"), world.faults(SLOW)), (vec![COMPLETED.to_owned()], 1));
    world.tidy(&*queue).await;
}

/// The connection is gone before the request is executed, which it is at last.
#[tokio::test]
async fn a_request_that_arrives_after_its_time_does_nothing() {
    let late = Fault::Delay(Duration::from_secs(12));
    let cases = [TASK, LEASE, COMPLETED].map(|file| async move {
        let world = World::new().await;
        world.once(late, creates(file));
        live(&world).await;
        pause(4_000).await;
        assert_eq!(world.faults(late), 1, "{file}");
        let other = world.worker().await;
        assert!(poll(&*other, 1).await.unwrap().is_empty(), "{file}");
        assert!(matches!(push(&*other).await.unwrap(), Pushed::Finished(..)), "{file}");
        world.tidy(&*other).await;
        assert_eq!(world.keys("completed/"), [COMPLETED]);
    });
    futures::future::join_all(cases).await;
}

/// A heartbeat is an unconditional PUT: one that is executed late puts a lease where none is any more.
#[tokio::test]
async fn a_late_heartbeat_wakes_no_dead() {
    let world = World::new().await;
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let receipt = claim(&*queue).await.receipt;
    let late = Fault::Delay(Duration::from_secs(14));
    world.once(late, |r| r.op == "PutObject" && r.key.ends_with(LEASE));
    queue.heartbeat(vec![receipt.clone()]).await.remove(0).unwrap();
    ack(&*queue, &receipt).await.unwrap();
    for _ in 0..100 {
        if world.faults(late) == 1 {
            break;
        }
        pause(100).await;
    }
    assert_eq!(world.faults(late), 1);
    assert!(poll(&*other, 1).await.unwrap().is_empty());
    let again = other.push(vec![task().again()]).await.remove(0).unwrap();
    assert_eq!((matches!(again, Pushed::Created(_)), again.key().generation()), (true, 2));
    let delivery = claim(&*other).await;
    assert_eq!((delivery.attempt, delivery.key.generation()), (1, 2));
    ack(&*other, &delivery.receipt).await.unwrap();
    world.tidy(&*other).await;
}

/// All that happens by chance at once, on every request of two workers.
#[tokio::test]
async fn under_all_faults_at_once_every_task_is_done_once() {
    let world = World::new().await;
    let queue = world.worker().await;
    let mut faults = dfq_s3_server::Faults { seed: 11, ..Default::default() };
    for name in dfq_s3_server::Faults::NAMES {
        assert!(faults.set(name, 0.01));
    }
    world.server.set_faults(faults);
    let tasks = |n| dfq::NewTask::from_json(&format!(r#"{{"id": "t{n}"}}"#)).unwrap();
    let pushed = queue.push((0..20).map(tasks).collect()).await;
    assert!(pushed.iter().all(Result::is_ok), "{pushed:?}");
    let mut done = 0;
    for _ in 0..200 {
        let got = poll(&*queue, 5).await.unwrap();
        if got.is_empty() && done == 20 {
            break;
        }
        let answers = queue.ack(got.into_iter().map(|d| d.receipt).collect()).await;
        done += answers.into_iter().filter(Result::is_ok).count();
    }
    assert_eq!((done, world.keys("completed/").len()), (20, 20));
    assert!(world.server.meter().counts().faults.len() > 3, "faults of several kinds");
}
