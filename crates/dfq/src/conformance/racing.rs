//! Many at once, in one process. Processes that are killed race in the tests of each provider.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Provider, ack, poll, push, settings, task};
use crate::queue::{Pushed, Queue};

/// Every task is handed out once, whoever asks.
pub async fn many_pollers_share(provider: &dyn Provider) {
    let settings = settings(provider);
    let first = provider.worker(&settings).await;
    let tasks = (0..200).map(|n| task(&format!("t{n}"))).collect();
    assert!(first.push(tasks).await.iter().all(Result::is_ok));
    let mut pollers = Vec::new();
    for _ in 0..8 {
        let queue = provider.worker(&settings).await;
        pollers.push(tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let batch = poll(&*queue, 3).await;
                if batch.is_empty() {
                    return got;
                }
                for delivery in batch {
                    assert_eq!(delivery.attempt, 1);
                    ack(&*queue, &delivery.receipt).await.unwrap();
                    got.push(delivery.id().to_string());
                }
            }
        }));
    }
    let mut all = Vec::new();
    for poller in pollers {
        all.extend(poller.await.unwrap());
    }
    assert_eq!(all.len(), 200);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 200);
}

/// Of many pushes of one id, one creates it, in every life.
pub async fn many_pushers_agree(provider: &dyn Provider) {
    let settings = settings(provider);
    let mut queues: Vec<Arc<dyn Queue>> = Vec::new();
    for _ in 0..4 {
        queues.push(provider.worker(&settings).await);
    }
    if !queues[0].capabilities().deduplicates {
        for queue in &queues {
            let pushed = push(&**queue, task("a")).await.unwrap();
            assert!(matches!(pushed, Pushed::Created(_)), "{pushed:?}");
        }
        let dropped = queues[0].capabilities().drops_doubles_for.is_some();
        let arrive = if dropped { 1 } else { queues.len() };
        assert_eq!(poll(&*queues[0], 10).await.len(), arrive);
        return;
    }
    for life in 1..=20 {
        let mut pushers = Vec::new();
        for queue in &queues {
            let queue = Arc::clone(queue);
            pushers
                .push(tokio::spawn(async move { push(&*queue, task("a").again()).await.unwrap() }));
        }
        let mut created = 0;
        for pusher in pushers {
            let pushed = pusher.await.unwrap();
            assert_eq!(pushed.key().generation(), life);
            created += u32::from(matches!(pushed, Pushed::Created(_)));
        }
        assert_eq!(created, 1);
        let delivery = super::claim(&*queues[life as usize % 4]).await;
        ack(&*queues[life as usize % 4], &delivery.receipt).await.unwrap();
    }
}

/// Long before it would have looked by itself.
pub async fn a_push_wakes_a_waiter(provider: &dyn Provider) {
    let settings = settings(provider);
    let (waiter, pusher) = (provider.worker(&settings).await, provider.worker(&settings).await);
    assert!(poll(&*waiter, 1).await.is_empty());
    // Not every remote store tells of what others do there; then it is polled.
    let at_most = Duration::from_secs(if waiter.capabilities().remote { 1 } else { 3600 });
    let waiting = tokio::spawn(async move {
        loop {
            waiter.wait(at_most).await;
            let got = poll(&*waiter, 1).await;
            if !got.is_empty() {
                return got;
            }
        }
    });
    push(&*pusher, task("a")).await.unwrap();
    assert_eq!(waiting.await.unwrap().len(), 1);
}
