//! Pushing, and being handed out.

use std::time::Duration;

use super::{Provider, ack, assert_unsupported, claim, id, kind, one, poll, push, settings, task};
use crate::error::ErrorKind;
use crate::model::{MAX_TASK_BYTES, NewTask, Outcome, TaskKey};
use crate::queue::{PollRequest, Pushed, Queue};

/// Push, poll, ack, and that was all.
pub async fn a_task_goes_through(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    let pushed = push(&*queue, NewTask::from_json(r#"{"url":"x"}"#).unwrap()).await.unwrap();
    assert!(matches!(pushed, Pushed::Created(_)), "{pushed:?}");
    let delivery = claim(&*queue).await;
    assert_eq!(&delivery.key, pushed.key());
    assert_eq!(delivery.payload.as_json(), r#"{"url":"x"}"#);
    assert_eq!((delivery.attempt, delivery.fence), (1, 1));
    assert_eq!(poll(&*queue, 5).await.len(), 0);
    ack(&*queue, &delivery.receipt).await.unwrap();
    let polled = queue.poll(PollRequest::new(5)).await.unwrap();
    assert!(polled.deliveries.is_empty());
    assert_eq!(polled.idle.next, None, "nothing is left to wait for");
}

/// Whatever JSON it is.
pub async fn payloads_come_back_byte_for_byte(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    let big = format!("{{\"text\":\"{}\"}}", "ä€😀".repeat(20_000));
    let payloads =
        ["{}", "[1, 2]", "null", "\"t\"", r#"{"b":1e400,"a":12345678901234567890}"#, &big];
    let tasks = payloads.iter().map(|json| NewTask::from_json(json).unwrap()).collect();
    for answer in queue.push(tasks).await {
        answer.unwrap();
    }
    let mut got: Vec<String> = Vec::new();
    for delivery in poll(&*queue, 10).await {
        got.push(delivery.payload.as_json().to_owned());
        ack(&*queue, &delivery.receipt).await.unwrap();
    }
    got.sort();
    let mut wanted = payloads.map(str::to_owned);
    wanted.sort();
    assert_eq!(got, wanted);
}

/// No id leads anywhere it should not, and all come back as they were.
pub async fn odd_ids_are_kept(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    let ids =
        ["a", "A", "..", ".hidden", "a/b", "a@2", "a%40", "päivä 😀", "a\nb", "\0", "con", "-rf"];
    for name in ids {
        push(&*queue, task(name)).await.unwrap();
    }
    let got = poll(&*queue, 100).await;
    let mut names: Vec<&str> = got.iter().map(|delivery| delivery.id().as_str()).collect();
    names.sort_unstable();
    let mut wanted = ids;
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    for delivery in &got {
        ack(&*queue, &delivery.receipt).await.unwrap();
    }
}

/// A provider that does not recognise ids takes every push for a new task. So many of them arrive.
async fn assert_all_created(queue: &dyn Queue, pushes: Vec<NewTask>, arrive: usize) {
    for pushed in queue.push(pushes).await {
        assert!(matches!(pushed, Ok(Pushed::Created(_))), "{pushed:?}");
    }
    for _ in 0..arrive {
        let delivery = claim(queue).await;
        assert_eq!(delivery.key, TaskKey::new(id("a"), 1));
        ack(queue, &delivery.receipt).await.unwrap();
    }
    assert!(poll(queue, 1).await.is_empty());
}

/// The second push of a pending id changes nothing and says so.
pub async fn an_id_is_pushed_once(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    let key = TaskKey::new(id("a"), 1);
    if !queue.capabilities().deduplicates {
        let arrive = if queue.capabilities().drops_doubles_for.is_some() { 1 } else { 2 };
        return assert_all_created(&*queue, vec![task("a"), task("a")], arrive).await;
    }
    assert_eq!(push(&*queue, task("a")).await.unwrap(), Pushed::Created(key.clone()));
    assert_eq!(push(&*queue, task("a")).await.unwrap(), Pushed::Pending(key.clone()));
    let twice = queue.push(vec![task("b"), task("b")]).await;
    let created = twice.iter().filter(|answer| matches!(answer, Ok(Pushed::Created(_)))).count();
    let pending = twice.iter().filter(|answer| matches!(answer, Ok(Pushed::Pending(_)))).count();
    assert_eq!((created, pending), (1, 1), "{twice:?}");
    let held = poll(&*queue, 10).await;
    assert_eq!(held.len(), 2);
    assert_eq!(push(&*queue, task("a")).await.unwrap(), Pushed::Pending(key), "also while held");
}

/// Nor does the push of an id that has been through.
pub async fn a_finished_id_stays_finished(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    let key = TaskKey::new(id("a"), 1);
    if !queue.capabilities().deduplicates {
        let again = usize::from(queue.capabilities().drops_doubles_for.is_none());
        assert_all_created(&*queue, vec![task("a")], 1).await;
        return assert_all_created(&*queue, vec![task("a")], again).await;
    }
    push(&*queue, task("a")).await.unwrap();
    ack(&*queue, &claim(&*queue).await.receipt).await.unwrap();
    let again = push(&*queue, task("a")).await.unwrap();
    assert_eq!(again, Pushed::Finished(key, Outcome::Completed));
    assert_eq!(poll(&*queue, 1).await.len(), 0);
}

/// Unless the caller wants it done again.
pub async fn again_starts_a_new_life(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    if !queue.capabilities().deduplicates {
        let lives = vec![task("a"), task("a").again(), task("a").again()];
        return assert_all_created(&*queue, lives, 3).await;
    }
    push(&*queue, task("a")).await.unwrap();
    for life in 2..6 {
        let delivery = claim(&*queue).await;
        assert_eq!(delivery.key, TaskKey::new(id("a"), life - 1));
        ack(&*queue, &delivery.receipt).await.unwrap();
        let key = TaskKey::new(id("a"), life);
        assert_eq!(push(&*queue, task("a").again()).await.unwrap(), Pushed::Created(key.clone()));
        assert_eq!(push(&*queue, task("a").again()).await.unwrap(), Pushed::Pending(key.clone()));
        assert_eq!(push(&*queue, task("a")).await.unwrap(), Pushed::Pending(key));
    }
}

/// Nothing asked, nothing answered.
pub async fn empty_batches_are_fine(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    assert!(queue.push(Vec::new()).await.is_empty());
    assert!(queue.ack(Vec::new()).await.is_empty());
    assert!(queue.heartbeat(Vec::new()).await.is_empty());
    push(&*queue, task("a")).await.unwrap();
    assert!(poll(&*queue, 0).await.is_empty());
    assert_eq!(poll(&*queue, 1).await.len(), 1);
}

/// One bad task does not keep the others out.
pub async fn bad_tasks_are_refused_singly(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    let mut answers = queue.push(vec![task("a"), task("b").max_attempts(0), task("c")]).await;
    assert!(answers.remove(2).is_ok());
    assert_eq!(kind(answers.remove(1)), ErrorKind::Invalid);
    assert!(answers.remove(0).is_ok());
    let huge = format!("\"{}\"", "x".repeat(MAX_TASK_BYTES));
    assert_eq!(kind(NewTask::from_json(&huge)), ErrorKind::Invalid);
    assert_eq!(kind(NewTask::from_json("{")), ErrorKind::Invalid);
    if let Some(longest) = queue.capabilities().max_lease {
        let lease = Some(longest + Duration::from_secs(1));
        let refused = queue.poll(PollRequest { lease, ..PollRequest::new(1) }).await;
        assert_unsupported(&*queue, refused);
    }
    let no_lease = PollRequest { lease: Some(Duration::ZERO), ..PollRequest::new(1) };
    assert_eq!(kind(queue.poll(no_lease).await), ErrorKind::Invalid);
    assert_eq!(poll(&*queue, 10).await.len(), 2);
}

/// A delayed task is handed out when due, not before.
pub async fn a_delayed_task_waits(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    if let Some(longest) = queue.capabilities().max_delay {
        let beyond = vec![task("a").delay(longest + Duration::from_secs(1))];
        assert_unsupported(&*queue, one(queue.push(beyond)).await);
        if longest.is_zero() {
            return assert!(poll(&*queue, 1).await.is_empty());
        }
    }
    push(&*queue, task("later").delay(Duration::from_secs(600))).await.unwrap();
    push(&*queue, task("now")).await.unwrap();
    let polled = queue.poll(PollRequest::new(10)).await.unwrap();
    assert_eq!(polled.deliveries.len(), 1);
    assert_eq!(polled.deliveries[0].id().as_str(), "now");
    assert!(polled.idle.next.is_some(), "there is something to wait for");
    ack(&*queue, &polled.deliveries[0].receipt).await.unwrap();
    push(&*queue, task("soon").delay(Duration::from_millis(1500))).await.unwrap();
    provider.pass(Duration::from_millis(2600)).await;
    let delivery = claim(&*queue).await;
    assert_eq!(delivery.id().as_str(), "soon");
    assert!(delivery.meta.not_before.is_some());
}

/// However often it was scheduled.
pub async fn delayed_twice_is_done_once(provider: &dyn Provider) {
    let queue = provider.worker(&settings(provider)).await;
    if !queue.capabilities().deduplicates {
        return; // asserted above
    }
    for delay in [1, 2] {
        let delayed = task("a").delay(Duration::from_secs(delay));
        assert!(matches!(push(&*queue, delayed).await.unwrap(), Pushed::Created(_)));
    }
    push(&*queue, task("a")).await.unwrap();
    ack(&*queue, &claim(&*queue).await.receipt).await.unwrap();
    provider.pass(Duration::from_secs(4)).await;
    let polled = queue.poll(PollRequest::new(10)).await.unwrap();
    assert_eq!(polled.deliveries.len(), 0);
    assert_eq!(polled.idle.next, None, "the copies are gone");
}
