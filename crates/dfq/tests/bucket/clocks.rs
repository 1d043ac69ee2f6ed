//! A store whose clock is an hour off, or was put right. Leases and delays go by the store's clock
//! alone, so neither may show.

use std::time::Duration;

use dfq::{ErrorKind, Pushed};

use crate::world::*;

const HOUR: i64 = 3_600_000;
const BEAT: Duration = Duration::from_secs(200);
/// Not over before one has looked.
const DELAY: Duration = Duration::from_secs(100);

async fn leases_last_as_long_as_they_should(offset: i64) {
    let world = World::new().await;
    world.set_clock(offset);
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let receipt = claim(&*queue).await.receipt;
    for _ in 0..4 {
        assert!(poll(&*other, 1).await.unwrap().is_empty(), "taken from its owner");
        queue.heartbeat(vec![receipt.clone()]).await.remove(0).unwrap();
        world.pass(BEAT);
    }
    let taken = world.claim_in_time(&*other).await;
    assert_eq!((taken.attempt, taken.earlier.lost), (2, 1));
    let late = ack(&*queue, &receipt).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::ClaimLost, "{late}");
    ack(&*other, &taken.receipt).await.unwrap();
    world.tidy(&*other).await;
}

#[tokio::test]
async fn leases_on_a_clock_an_hour_ahead() {
    leases_last_as_long_as_they_should(HOUR).await;
}

#[tokio::test]
async fn leases_on_a_clock_an_hour_behind() {
    leases_last_as_long_as_they_should(-HOUR).await;
}

async fn delays_last_as_long_as_they_should(offset: i64) {
    let world = World::new().await;
    world.set_clock(offset);
    let queue = world.worker().await;
    let delayed = task().delay(DELAY);
    assert!(matches!(queue.push(vec![delayed]).await.remove(0).unwrap(), Pushed::Created(_)));
    assert!(poll(&*queue, 1).await.unwrap().is_empty(), "long before its time");
    let receipt = world.claim_in_time(&*queue).await.receipt;
    let (error, delay) = ("on purpose".to_owned(), Some(DELAY));
    queue.nack(vec![dfq::Nack { receipt, error, delay }]).await.remove(0).unwrap();
    assert!(poll(&*queue, 1).await.unwrap().is_empty(), "in its backoff");
    assert_eq!(world.claim_in_time(&*queue).await.attempt, 2);
}

#[tokio::test]
async fn delays_on_a_clock_an_hour_ahead() {
    delays_last_as_long_as_they_should(HOUR).await;
}

#[tokio::test]
async fn delays_on_a_clock_an_hour_behind() {
    delays_last_as_long_as_they_should(-HOUR).await;
}

/// Somebody sets the store's clock while a task is held.
#[tokio::test]
async fn a_clock_that_jumps_takes_no_task_from_its_owner() {
    let world = World::new().await;
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let receipt = claim(&*queue).await.receipt;
    assert!(poll(&*other, 1).await.unwrap().is_empty());
    for offset in [HOUR, 0, -HOUR] {
        world.set_clock(offset);
        assert!(poll(&*other, 1).await.unwrap().is_empty(), "taken from its owner");
        queue.heartbeat(vec![receipt.clone()]).await.remove(0).unwrap();
        world.pass(BEAT);
        assert!(poll(&*other, 1).await.unwrap().is_empty(), "taken from its owner");
    }
    ack(&*queue, &receipt).await.unwrap();
}
