//! Which node of a synced queue does a task: seldom two of them, and none waits without need. Two folders and a hub,
//! which is a folder, too.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeSet;

use dfq::{Delivery, Nack, Queue};
use support::pair::{PERIOD, Pair, SECOND};
use support::{ack_all, poll, push, task};

/// So many tasks that some hash to each node.
const MANY: usize = 24;

fn ids(deliveries: &[Delivery]) -> BTreeSet<String> {
    deliveries.iter().map(|it| it.key.id().to_string()).collect()
}

/// Each node has found something, both together all, and no task was found by both.
fn assert_shared_out([one, other]: &[Vec<Delivery>; 2]) {
    let (one, other) = (ids(one), ids(other));
    assert!(!one.is_empty() && !other.is_empty(), "{one:?} {other:?}");
    assert_eq!(one.intersection(&other).next(), None);
    assert_eq!(one.len() + other.len(), MANY);
}

#[tokio::test]
async fn what_was_pushed_here_and_never_went_up_is_done_here_at_once() {
    let mut pair = Pair::new().await;
    for n in 0..MANY {
        push(&*pair.nodes[0], &format!("first-{n}")).await;
    }
    let held = poll(&*pair.nodes[0]).await;
    assert_eq!(held.len(), MANY);
    ack_all(&*pair.nodes[0], held).await;
    // What has gone up is shared out, also on the node where it was pushed.
    for n in 0..MANY {
        push(&*pair.nodes[0], &format!("then-{n}")).await;
    }
    pair.merge().await;
    assert_shared_out(&pair.poll().await);
}

#[tokio::test]
async fn delayed_tasks_are_shared_out_when_they_are_due() {
    let mut pair = Pair::new().await;
    for n in 0..MANY {
        let task = task(&format!("later-{n}")).delay(PERIOD * 4);
        pair.nodes[0].push(vec![task]).await.remove(0).unwrap();
    }
    pair.merge().await;
    pair.pass(PERIOD * 4 - 120 * SECOND);
    pair.merge().await;
    pair.pass(240 * SECOND);
    assert_shared_out(&pair.poll().await);
    // What its node does not do, the other does after two periods.
    pair.pass(PERIOD * 2);
    assert_eq!(poll(&*pair.nodes[0]).await.len() + poll(&*pair.nodes[1]).await.len(), MANY);
}

#[tokio::test]
async fn what_has_failed_on_one_node_is_tried_again_by_one() {
    let mut pair = Pair::new().await;
    for n in 0..MANY {
        push(&*pair.nodes[0], &format!("hard-{n}")).await;
    }
    let held = poll(&*pair.nodes[0]).await;
    assert_eq!(held.len(), MANY);
    let nack = |held: Delivery| Nack { receipt: held.receipt, error: "no".to_owned(), delay: None };
    for answer in pair.nodes[0].nack(held.into_iter().map(nack).collect()).await {
        answer.unwrap();
    }
    pair.merge().await;
    pair.pass(20 * SECOND);
    assert_shared_out(&pair.poll().await);
}
