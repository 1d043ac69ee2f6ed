//! What operators and onlookers do. Providers that cannot must say so.

use std::time::Duration;

use super::{
    Provider, ack, assert_too_late, assert_unsupported, claim, id, kind, one, poll, push, settings,
    task,
};
use crate::error::ErrorKind;
use crate::model::{Outcome, TaskKey};
use crate::queue::{
    Detail, ListCursor, Nack, Place, PollRequest, Purge, Pushed, Queue, TaskState, TaskView,
    Unlocked, WorkerRecord,
};

async fn state(queue: &dyn Queue, name: &str) -> TaskState {
    queue.get(id(name)).await.unwrap().expect("a task").state
}

/// Wherever it is; finished ones stay as they are.
pub async fn cancel_ends_a_task(provider: &dyn Provider) {
    let settings = settings(provider);
    let (queue, operator) = (provider.worker(&settings).await, provider.worker(&settings).await);
    let cancel = |name: &str| operator.cancel(vec![id(name)], "not needed".to_owned());
    if !operator.capabilities().operate {
        return assert_unsupported(&*operator, one(cancel("a")).await);
    }
    for name in ["held", "done"] {
        push(&*queue, task(name)).await.unwrap();
    }
    let held = poll(&*queue, 2).await;
    let (done, held): (Vec<_>, Vec<_>) = held.into_iter().partition(|d| d.id().as_str() == "done");
    ack(&*queue, &done[0].receipt).await.unwrap();
    push(&*queue, task("waiting")).await.unwrap();
    push(&*queue, task("later").delay(Duration::from_secs(3600))).await.unwrap();
    for name in ["held", "waiting", "later"] {
        one(cancel(name)).await.unwrap();
        assert_eq!(state(&*queue, name).await, TaskState::Failed);
    }
    assert_eq!(kind(one(cancel("done")).await), ErrorKind::AlreadyCompleted);
    assert_eq!(kind(one(cancel("held")).await), ErrorKind::AlreadyCompleted);
    assert_eq!(kind(one(cancel("nobody")).await), ErrorKind::NotFound);
    assert_too_late(one(queue.heartbeat(vec![held[0].receipt.clone()])).await);
    assert_too_late(ack(&*queue, &held[0].receipt).await);
    assert!(poll(&*queue, 5).await.is_empty());
    let view = queue.get(id("waiting")).await.unwrap().unwrap();
    assert_eq!(view.reason.as_deref(), Some("not needed"));
}

/// From whoever has it.
pub async fn unlock_frees_a_task(provider: &dyn Provider) {
    let settings = settings(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    if !bob.capabilities().operate {
        return assert_unsupported(&*bob, one(bob.unlock(vec![id("a")])).await);
    }
    push(&*alice, task("a")).await.unwrap();
    assert_eq!(one(bob.unlock(vec![id("a")])).await.unwrap(), Unlocked::WasFree);
    let held = claim(&*alice).await;
    assert!(poll(&*bob, 1).await.is_empty());
    let from = one(bob.unlock(vec![id("a")])).await.unwrap();
    assert_eq!(from, Unlocked::From(alice.worker_id().to_owned()));
    assert_eq!(kind(one(alice.heartbeat(vec![held.receipt.clone()])).await), ErrorKind::ClaimLost);
    let next = claim(&*bob).await;
    assert!(next.fence > held.fence);
    ack(&*bob, &next.receipt).await.unwrap();
    assert_eq!(kind(one(bob.unlock(vec![id("a")])).await), ErrorKind::NotFound);
}

/// And other workers see it at once, although they remember the backoff.
pub async fn unlock_ends_a_backoff(provider: &dyn Provider) {
    let settings = settings(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    if !alice.capabilities().operate {
        return; // asserted in the case before
    }
    push(&*alice, task("a")).await.unwrap();
    let receipt = claim(&*alice).await.receipt;
    let delay = Some(Duration::from_secs(3600));
    one(alice.nack(vec![Nack { receipt, error: "no".into(), delay }])).await.unwrap();
    assert!(poll(&*alice, 1).await.is_empty());
    assert!(poll(&*bob, 1).await.is_empty());
    provider.pass(Duration::from_millis(100)).await;
    assert!(poll(&*bob, 1).await.is_empty());
    one(alice.unlock(vec![id("a")])).await.unwrap();
    assert_eq!(poll(&*bob, 1).await.len(), 1);
}

/// Failed tasks, as counted and as listed.
async fn given_up(queue: &dyn Queue) -> (u64, usize) {
    let counted = queue.stats(Detail::Counts).await.unwrap().failed;
    let (mut listed, mut cursor) = (0, Some(ListCursor::at(Place::Failed)));
    while let Some(from) = cursor {
        let page = queue.list(Some(from)).await.unwrap();
        listed += page.tasks.len();
        cursor = page.next;
    }
    (counted, listed)
}

/// As a new life that remembers the old ones' attempts.
pub async fn retry_starts_a_failed_task_again(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    if !queue.capabilities().operate {
        return assert_unsupported(&*queue, one(queue.retry(vec![id("a")])).await);
    }
    push(&*queue, task("a")).await.unwrap();
    let held = claim(&*queue).await;
    one(queue.fail(vec![(held.receipt.clone(), "no".into())])).await.unwrap();
    let key = TaskKey::new(id("a"), 2);
    assert_eq!(given_up(&*queue).await, (1, 1));
    assert_eq!(one(queue.retry(vec![id("a")])).await.unwrap(), Pushed::Created(key.clone()));
    assert_eq!(one(queue.retry(vec![id("a")])).await.unwrap(), Pushed::Pending(key.clone()));
    assert_eq!(given_up(&*queue).await, (0, 0), "what lives again has not failed");
    let again = claim(&*queue).await;
    assert_eq!((again.key, again.payload), (key, held.payload));
    assert!(again.fence > held.fence);
    ack(&*queue, &again.receipt).await.unwrap();
    assert_eq!(given_up(&*queue).await, (0, 0));
    assert_eq!(kind(one(queue.retry(vec![id("a")])).await), ErrorKind::AlreadyCompleted);
    assert_eq!(kind(one(queue.retry(vec![id("nobody")])).await), ErrorKind::NotFound);
}

/// For everybody, until resumed. What is held may be finished.
pub async fn a_paused_queue_rests(provider: &dyn Provider) {
    let settings = settings(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    if !alice.capabilities().pause {
        assert_unsupported(&*alice, alice.pause(None).await);
        assert_unsupported(&*alice, alice.resume().await);
        assert_eq!(alice.paused().await.unwrap(), None);
        return;
    }
    push(&*alice, task("a")).await.unwrap();
    push(&*alice, task("b")).await.unwrap();
    let held = claim(&*alice).await;
    assert_eq!(alice.paused().await.unwrap(), None);
    bob.pause(Some("maintenance".into())).await.unwrap();
    let pause = alice.paused().await.unwrap().unwrap();
    assert_eq!(pause.by.as_deref(), Some(bob.worker_id()));
    assert_eq!(pause.reason.as_deref(), Some("maintenance"));
    if alice.capabilities().remote {
        provider.pass(Duration::from_secs(5)).await; // it is not asked for before every claim
    }
    for queue in [&alice, &bob] {
        let polled = queue.poll(PollRequest::new(1)).await.unwrap();
        assert!(polled.deliveries.is_empty() && polled.idle.paused);
    }
    assert!(alice.stats(Detail::Counts).await.unwrap().paused);
    push(&*alice, task("c")).await.unwrap();
    ack(&*alice, &held.receipt).await.unwrap();
    alice.resume().await.unwrap();
    alice.resume().await.unwrap();
    assert_eq!(poll(&*bob, 5).await.len(), 2);
}

/// Neither acked nor failed by those who do not understand them.
pub async fn schemas_are_left_to_others(provider: &dyn Provider) {
    let settings = settings(provider);
    let (old, new) = (provider.worker(&settings).await, provider.worker(&settings).await);
    for json in [
        r#"{"id":"none"}"#,
        r#"{"id":"v1","schema_version":1}"#,
        r#"{"id":"v3","schema_version":3}"#,
    ] {
        push(&*old, crate::NewTask::from_json(json).unwrap()).await.unwrap();
    }
    let request = |schema| PollRequest { schema: Some(schema), ..PollRequest::new(10) };
    if !old.capabilities().schemas {
        assert_unsupported(&*old, old.poll(request((1, 2))).await);
        assert_eq!(poll(&*new, 10).await.len(), 3, "nothing was claimed on the way");
        return;
    }
    let got = old.poll(request((1, 2))).await.unwrap().deliveries;
    let mut names: Vec<&str> = got.iter().map(|delivery| delivery.id().as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["none", "v1"]);
    let got = new.poll(request((3, 3))).await.unwrap().deliveries;
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].id().as_str(), got[0].attempt), ("v3", 1));
}

/// Peeks, views and counts.
pub async fn looking_changes_nothing(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    if !queue.capabilities().inspect {
        assert_unsupported(&*queue, queue.peek(1).await);
        assert_unsupported(&*queue, queue.get(id("a")).await);
        assert_unsupported(&*queue, queue.list(None).await);
        assert_unsupported(&*queue, queue.check(false).await);
        return;
    }
    for name in ["a", "b", "c"] {
        push(&*queue, task(name)).await.unwrap();
    }
    assert_eq!(queue.peek(2).await.unwrap().len(), 2);
    assert_eq!(queue.peek(10).await.unwrap().len(), 3);
    assert!(queue.get(id("nobody")).await.unwrap().is_none());
    assert_eq!(state(&*queue, "a").await, TaskState::Ready);
    let held = poll(&*queue, 10).await;
    assert_eq!(held.len(), 3, "peeking claimed nothing");
    assert!(queue.peek(10).await.unwrap().is_empty(), "held tasks cannot be claimed");
    assert!(matches!(state(&*queue, "a").await, TaskState::Leased { .. }));
    assert_eq!(queue.check(false).await.unwrap(), []);
}

/// What cannot be listed cannot be counted either, and the counts say so.
async fn assert_counts_are_estimates(queue: &dyn Queue) {
    for name in ["a", "b", "c"] {
        push(queue, task(name)).await.unwrap();
    }
    let _held = claim(queue).await;
    let stats = queue.stats(Detail::States).await.unwrap();
    assert!(!stats.is_exact());
    assert_eq!((stats.pending, stats.scheduled, stats.failed), (3, 0, 0), "nobody else is at it");
    let states = stats.states.unwrap();
    assert_eq!((states.ready, states.leased), (2, 1));
}

/// Each task once, in its state.
pub async fn everything_is_listed(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    if !queue.capabilities().inspect {
        return assert_counts_are_estimates(&*queue).await;
    }
    for name in ["done", "failed", "held", "backoff"] {
        push(&*queue, task(name)).await.unwrap();
    }
    for held in poll(&*queue, 4).await {
        let receipt = held.receipt.clone();
        match held.id().as_str() {
            "done" => ack(&*queue, &receipt).await.unwrap(),
            "failed" => one(queue.fail(vec![(receipt, "no".into())])).await.unwrap(),
            "backoff" => {
                let delay = Some(Duration::from_secs(60));
                one(queue.nack(vec![Nack { receipt, error: "no".into(), delay }])).await.unwrap();
            }
            _ => {}
        }
    }
    push(&*queue, task("ready")).await.unwrap();
    push(&*queue, task("later").delay(Duration::from_secs(3600))).await.unwrap();
    let mut found: Vec<TaskView> = Vec::new();
    let mut cursor = None;
    loop {
        let page = queue.list(cursor).await.unwrap();
        found.extend(page.tasks);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let mut names: Vec<(String, &str)> =
        found.iter().map(|view| (view.key.id().to_string(), view.state.name())).collect();
    names.sort();
    let wanted = [
        ("backoff", "backoff"),
        ("done", "completed"),
        ("failed", "failed"),
        ("held", "leased"),
        ("later", "scheduled"),
        ("ready", "ready"),
    ];
    assert_eq!(names, wanted.map(|(name, state)| (name.to_owned(), state)));
    let stats = queue.stats(Detail::States).await.unwrap();
    assert_eq!((stats.pending, stats.scheduled, stats.completed, stats.failed), (3, 1, 1, 1));
    let states = stats.states.unwrap();
    assert_eq!((states.ready, states.leased, states.backoff, states.stale), (1, 1, 1, 0));
    assert!(states.oldest.is_some());
}

/// A stalled worker must still find out that its task is done.
pub async fn young_records_are_kept(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    push(&*queue, task("a")).await.unwrap();
    ack(&*queue, &claim(&*queue).await.receipt).await.unwrap();
    let purge = |older_than| Purge { outcome: Outcome::Completed, older_than, dry_run: false };
    if !queue.capabilities().operate {
        return assert_unsupported(&*queue, queue.purge(purge(Duration::ZERO)).await);
    }
    assert_eq!(kind(queue.purge(purge(Duration::ZERO)).await), ErrorKind::Invalid);
    let hour = Duration::from_secs(3600);
    let purged = queue.purge(purge(hour.max(settings(provider).lease * 10))).await.unwrap();
    assert_eq!(purged.records, 0);
    assert_eq!(state(&*queue, "a").await, TaskState::Completed);
}

/// By their own record.
pub async fn workers_are_seen(provider: &dyn Provider) {
    let settings = settings(provider);
    let (alice, bob) = (provider.worker(&settings).await, provider.worker(&settings).await);
    let record = WorkerRecord {
        worker_id: alice.worker_id().to_owned(),
        host: "h".into(),
        pid: 1,
        version: "0".into(),
        concurrency: 2,
        running: 1,
        completed: 3,
        ..WorkerRecord::default()
    };
    if !alice.capabilities().inspect {
        assert_unsupported(&*alice, alice.put_worker(record).await);
        assert_unsupported(&*alice, alice.workers().await);
        return;
    }
    alice.put_worker(record.clone()).await.unwrap();
    alice.put_worker(WorkerRecord { completed: 4, ..record.clone() }).await.unwrap();
    let mut seen = bob.workers().await.unwrap();
    assert_eq!(seen.len(), 1);
    let seen = seen.remove(0);
    assert!(seen.seen_at.is_some());
    assert_eq!(seen, WorkerRecord { seen_at: seen.seen_at, completed: 4, ..record });
}
