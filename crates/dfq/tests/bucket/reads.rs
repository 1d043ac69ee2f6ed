//! Bodies that break off or never end. Half a task is no task, and not a damaged one either.

use std::time::Duration;

use dfq::ErrorKind;
use dfq_s3_server::Fault;

use crate::world::*;

#[tokio::test]
async fn a_body_that_breaks_off_is_read_again() {
    for file in [SETTINGS, TASK] {
        let world = World::new().await;
        drop(world.with_task(LONG).await);
        world.once(Fault::CutBody, gets(file));
        let queue = world.worker().await;
        assert_eq!(queue.settings().lease, LONG);
        let delivery = claim(&*queue).await;
        ack(&*queue, &delivery.receipt).await.unwrap();
        assert_eq!(world.faults(Fault::CutBody), 1, "{file}");
    }
}

#[tokio::test]
async fn a_body_that_never_arrives_damages_nothing() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    world.always(Fault::CutBody, gets(TASK));
    match poll(&*queue, 1).await {
        Ok(got) => assert!(got.is_empty()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
    }
    assert!(world.faults(Fault::CutBody) > 1, "it was tried again");
    assert_eq!((world.keys("failed/"), world.keys(TASK)), (vec![], vec![TASK.to_owned()]));
    world.server.off();
    let delivery = world.claim_in_time(&*queue).await;
    ack(&*queue, &delivery.receipt).await.unwrap();
}

#[tokio::test]
async fn settings_that_cannot_be_read_are_not_made_up() {
    let world = World::new().await;
    drop(world.worker().await);
    world.always(Fault::CutBody, gets(SETTINGS));
    let error = world.open(LONG / 2).await.err().expect("nothing to go by");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    world.server.off();
    assert_eq!(world.open(LONG / 2).await.unwrap().settings().lease, LONG);
}

/// The request's time is up in the middle of a body.
#[tokio::test]
async fn a_body_that_stalls_is_given_up_and_read_again() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    let stall = Fault::StallBody(Duration::from_secs(60));
    world.once(stall, gets(TASK));
    let delivery = claim(&*queue).await;
    assert_eq!((delivery.attempt, world.faults(stall)), (1, 1));
    ack(&*queue, &delivery.receipt).await.unwrap();
}

#[tokio::test]
async fn an_answer_after_its_time_is_asked_for_again() {
    let late = Fault::DelayAnswer(Duration::from_secs(60));
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    let delivery = claim(&*queue).await;
    world.once(late, creates(COMPLETED));
    ack(&*queue, &delivery.receipt).await.unwrap();
    assert_eq!(world.keys("completed/"), [COMPLETED]);
    world.tidy(&*queue).await;
}
