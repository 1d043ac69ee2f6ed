//! Which node of a synced queue does a task: seldom two of them, and none waits without need. Two folders and a hub,
//! which is a folder, too.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeSet;

use dfq::{Delivery, Nack, PollRequest, Queue};
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

/// All of a backlog has lain everywhere for longer than two periods. Each node begins with its own part all the same.
#[tokio::test]
async fn of_a_backlog_each_node_does_its_own_part_first() {
    let mut pair = Pair::new().await;
    let tasks = (0..300).map(|n| task(&format!("old-{n}"))).collect();
    for answer in pair.nodes[0].push(tasks).await {
        answer.unwrap();
    }
    pair.merge().await;
    pair.pass(PERIOD * 3);
    pair.merge().await;
    let mut done = [BTreeSet::new(), BTreeSet::new()];
    for _ in 0..10 {
        for (node, done) in pair.nodes.iter().zip(&mut done) {
            let held = node.poll(PollRequest::new(10)).await.unwrap().deliveries;
            done.extend(ids(&held));
            ack_all(&**node, held).await;
        }
    }
    let [one, other] = &done;
    assert!(one.len() > 60 && other.len() > 60, "{} {}", one.len(), other.len());
    // Without an order it would be about a third of them.
    let twice = one.intersection(other).count();
    assert!(twice < 20, "{twice} of {} were done twice", one.union(other).count());
}

/// The other node has no workers: its part is done in time, also beside work of one's own that never ends.
#[tokio::test]
async fn nobody_waits_for_a_node_without_workers() {
    let mut pair = Pair::new().await;
    for n in 0..MANY {
        push(&*pair.nodes[1], &format!("left-{n}")).await;
    }
    pair.merge().await;
    let mut done = BTreeSet::new();
    for round in 0..200 {
        for n in 0..4 {
            push(&*pair.nodes[0], &format!("own-{round}-{n}")).await;
        }
        let held = poll(&*pair.nodes[0]).await;
        done.extend(ids(&held).into_iter().filter(|id| id.starts_with("left-")));
        ack_all(&*pair.nodes[0], held).await;
        if done.len() == MANY {
            return;
        }
        pair.pass(PERIOD / 2);
        pair.merge().await;
    }
    panic!("{} of {MANY} are not done", MANY - done.len());
}
