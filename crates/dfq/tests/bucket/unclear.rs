//! Requests of which it was never known whether they were executed, and which were; and a lease that is
//! as if it had never been.

use dfq::queue::Nacked;
use dfq::store::bucket::Bucket;
use dfq::store::{ObjectsExt as _, Tree as _};
use dfq::{Env, ErrorKind, Nack, Release};
use dfq_s3_server::Fault;

use crate::world::*;

/// Told once more, it is given back: it was all along.
#[tokio::test]
async fn a_task_that_was_given_back_without_an_answer() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    let receipt = claim(&*queue).await.receipt;
    let nack = Nack { receipt, error: "no luck".to_owned(), delay: Some(Default::default()) };
    world.always(Fault::ErrorExecuted, |request| {
        request.op == "PutObject" && request.key.ends_with(LEASE)
    });
    let error = queue.nack(vec![nack.clone()]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    world.server.off();
    assert!(matches!(queue.nack(vec![nack]).await.remove(0).unwrap(), Nacked::Again(_)));
    assert_eq!(world.claim_in_time(&*queue).await.earlier.failed, 1);
}

/// Nobody sits out a lease of which nobody knows.
#[tokio::test]
async fn a_claim_that_was_made_without_an_answer() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    world.always(Fault::ErrorExecuted, creates(LEASE));
    assert_eq!(poll(&*queue, 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    world.server.off();
    let other = world.worker().await;
    let delivery = world.claim_in_time(&*other).await;
    assert_eq!((delivery.earlier.failed, delivery.earlier.lost), (0, 0));
}

/// The lease that counts is not the last one, and it is given back: whoever looked before sees that.
#[tokio::test]
async fn a_task_that_is_given_back_below_a_withdrawn_lease() {
    let world = World::new().await;
    let (alice, bob) = (world.with_task(LONG).await, world.worker().await);
    let held = claim(&*alice).await;
    let (bucket, env) = (world.server.bucket(), Env::system());
    let tree = Bucket::s3(bucket, PREFIX, world.options(), env, Default::default()).await.unwrap();
    let first = tree.read(LEASE).await.unwrap().unwrap();
    let text = String::from_utf8(first.bytes).unwrap();
    let second = text.trim_end().trim_end_matches('}').replace("\"attempt\":1", "\"attempt\":2");
    let second =
        tree.prepare_lease(format!("{second},\"state\":\"withdrawn\"}}").as_bytes()).await.unwrap();
    tree.create_lease(&"pending/ca/a".to_owned(), 2, &second).await.unwrap();
    assert!(poll(&*bob, 1).await.unwrap().is_empty(), "it is held");
    alice.release(vec![Release::now(held.receipt)]).await.remove(0).unwrap();
    assert_eq!(world.claim_in_time(&*bob).await.attempt, 3);
}
