//! Tasks on their way from one queue to another: all of them arrive, as they were, and once.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dfq::queue::{Detail, MoveClaim, TaskState, TaskView};
use dfq::transfer::{Event, Mode, Report, Transfer};
use dfq::worker::Worker;
use dfq::{Env, Nack, NewTask, OpenOptions, PollRequest, Pushed, Queue, Settings, TaskId};

const LEASE: Duration = Duration::from_secs(1);

async fn memory(settings: Settings) -> Arc<dyn Queue> {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let name = format!("memory://transfer-{}", NAMES.fetch_add(1, Ordering::Relaxed));
    let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
    dfq::open(name.as_str(), options).await.unwrap()
}

async fn pair() -> (Arc<dyn Queue>, Arc<dyn Queue>) {
    let settings = Settings { lease: LEASE, ..Settings::default() };
    (memory(settings.clone()).await, memory(settings).await)
}

fn transfer(from: &Arc<dyn Queue>, to: &Arc<dyn Queue>, mode: Mode) -> Transfer {
    let transfer = Transfer::new(Arc::clone(from), Arc::clone(to), mode, Env::system()).unwrap();
    transfer.lease(LEASE)
}

async fn go(from: &Arc<dyn Queue>, to: &Arc<dyn Queue>, mode: Mode) -> Report {
    transfer(from, to, mode).run(&mut |_| {}).await.unwrap()
}

fn done(done: u64) -> Report {
    Report { done, ..Report::default() }
}

fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

async fn push(queue: &Arc<dyn Queue>, ids: &[&str]) {
    let task = |text: &&str| NewTask::from_json("{\"n\": 1.50}").unwrap().id(id(text));
    for pushed in queue.push(ids.iter().map(task).collect()).await {
        assert!(matches!(pushed.unwrap(), Pushed::Created(_)));
    }
}

async fn view(queue: &Arc<dyn Queue>, text: &str) -> TaskView {
    queue.get(id(text)).await.unwrap().unwrap()
}

async fn claim(queue: &Arc<dyn Queue>) -> dfq::Delivery {
    // What was given back a moment ago may not be due yet on the store's clock, which lags a little.
    for _ in 0..500 {
        if let Some(got) = queue.poll(PollRequest::new(1)).await.unwrap().deliveries.pop() {
            return got;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is a task, and it cannot be claimed");
}

async fn fail_once(queue: &Arc<dyn Queue>, delay: Duration) {
    let receipt = claim(queue).await.receipt;
    let nack = Nack { receipt, error: "no".into(), delay: Some(delay) };
    queue.nack(vec![nack]).await.remove(0).unwrap();
}

#[tokio::test]
async fn a_task_arrives_as_it_was() {
    let (from, to) = pair().await;
    let payload = "{ \"z\":12345678901234567890123, \"a\": \"\u{1F980}\", \"e\":{} }";
    let task = NewTask::from_json(payload).unwrap().id(id("a b/ü")).max_attempts(3);
    from.push(vec![task]).await.remove(0).unwrap();
    fail_once(&from, Duration::ZERO).await;
    fail_once(&from, Duration::ZERO).await;
    let before = view(&from, "a b/ü").await;

    assert_eq!(go(&from, &to, Mode::Move).await, done(1));
    let after = view(&to, "a b/ü").await;
    assert_eq!(after.payload.as_ref().unwrap().as_json(), payload);
    assert_eq!(after.meta.push_id, before.meta.push_id);
    assert_eq!(after.meta.created_at, before.meta.created_at);
    assert_eq!(after.meta.max_attempts, Some(3));
    assert_eq!(after.earlier.failed, 2);

    let left = view(&from, "a b/ü").await;
    assert_eq!(left.state, TaskState::Completed);
    assert_eq!(left.reason, Some(format!("moved to {}", to.address())));

    let delivery = claim(&to).await;
    assert_eq!((delivery.attempt, delivery.earlier.failed), (3, 2));
    assert!(delivery.fence > 3, "greater than any that the mover could have had");
    let nack = Nack { receipt: delivery.receipt, error: "no".into(), delay: None };
    let nacked = to.nack(vec![nack]).await.remove(0).unwrap();
    assert_eq!(nacked, dfq::queue::Nacked::GivenUp, "the third failure is the third");
}

#[tokio::test]
async fn what_waits_goes_on_waiting() {
    let (from, to) = pair().await;
    let later = NewTask::from_json("{}").unwrap().id(id("later"));
    from.push(vec![later.delay(Duration::from_secs(3600))]).await.remove(0).unwrap();
    push(&from, &["backoff"]).await;
    fail_once(&from, Duration::from_secs(1800)).await;
    for mode in [Mode::Copy, Mode::Move] {
        assert_eq!(go(&from, &to, mode).await, done(2));
    }
    for text in ["later", "backoff"] {
        assert!(matches!(view(&to, text).await.state, TaskState::Scheduled { .. }), "{text}");
    }
    assert!(to.poll(PollRequest::new(9)).await.unwrap().deliveries.is_empty());
    let stats = from.stats(Detail::Exact).await.unwrap();
    assert_eq!((stats.pending, stats.scheduled), (0, 0));
}

/// Killed when a scheduled task was pending already, in order to be moved.
#[tokio::test]
async fn a_task_is_not_early_because_its_move_was_interrupted() {
    let (from, to) = pair().await;
    let later = NewTask::from_json("{}").unwrap().id(id("later"));
    from.push(vec![later.delay(Duration::from_secs(3600))]).await.remove(0).unwrap();
    let seen = view(&from, "later").await;
    let taken = from.claim_to_move(vec![seen], LEASE).await.remove(0).unwrap();
    assert!(matches!(taken, MoveClaim::Ours(_)));
    tokio::time::sleep(LEASE * 2).await;

    let polled = from.poll(PollRequest::new(1)).await.unwrap();
    assert!(polled.deliveries.is_empty(), "handed out an hour early");
    assert!(matches!(view(&from, "later").await.state, TaskState::Backoff { .. }));
    assert_eq!(go(&from, &to, Mode::Move).await, done(1));
    assert!(matches!(view(&to, "later").await.state, TaskState::Scheduled { .. }));
}

/// The same, and nobody has looked at it since.
#[tokio::test]
async fn nor_is_it_early_in_the_other_queue() {
    for mode in [Mode::Copy, Mode::Move] {
        let (from, to) = pair().await;
        let later = NewTask::from_json("{}").unwrap().id(id("later"));
        from.push(vec![later.delay(Duration::from_secs(3600))]).await.remove(0).unwrap();
        from.claim_to_move(vec![view(&from, "later").await], LEASE).await.remove(0).unwrap();
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(go(&from, &to, mode).await, done(1));
        assert!(matches!(view(&to, "later").await.state, TaskState::Scheduled { .. }));
    }
}

/// Two opposite moves must not each take the other's word for it.
#[tokio::test]
async fn a_task_that_is_just_being_moved_away_has_not_arrived() {
    let (here, there) = pair().await;
    push(&here, &["a"]).await;
    assert_eq!(go(&here, &there, Mode::Copy).await, done(1)); // as if a mover had come so far
    let report = go(&there, &here, Mode::Move).await;
    assert_eq!(report, Report { refused: 1, ..Report::default() });
    assert_eq!(view(&there, "a").await.state, TaskState::Ready, "it stays");
    assert_eq!(go(&here, &there, Mode::Move).await, done(1), "and the first move can go on");
}

#[tokio::test]
async fn one_queue_by_two_names_keeps_its_tasks() {
    let site = support::Site::new();
    let queue = site.queue().await;
    push(&queue, &["a", "b"]).await;
    std::os::unix::fs::symlink(site.path("q"), site.path("alias")).unwrap();
    let alias = dfq::open(site.path("alias"), OpenOptions::existing()).await.unwrap();
    if let Ok(transfer) = Transfer::new(Arc::clone(&queue), alias, Mode::Move, Env::system()) {
        let report = transfer.run(&mut |_| {}).await.unwrap();
        assert_eq!(report, Report { refused: 2, ..Report::default() });
    }
    assert_eq!(queue.stats(Detail::Exact).await.unwrap().pending, 2);
}

/// Killed before it could end the task here; meanwhile it has gone on from there.
#[tokio::test]
async fn what_has_gone_on_does_not_arrive_again() {
    let (first, second) = pair().await;
    let third = memory(Settings { lease: LEASE, ..Settings::default() }).await;
    push(&first, &["a"]).await;
    assert_eq!(go(&first, &second, Mode::Copy).await, done(1));
    assert_eq!(go(&second, &third, Mode::Move).await, done(1));
    assert_eq!(go(&first, &second, Mode::Move).await, done(1));
    let pending =
        |queue: Arc<dyn Queue>| async move { queue.stats(Detail::Exact).await.unwrap().pending };
    assert_eq!((pending(first).await, pending(second).await, pending(third).await), (0, 0, 1));
}

/// A token only grows, through lives and queues.
#[tokio::test]
async fn fences_grow_on_the_way() {
    let (here, there) = pair().await;
    let mut last = 0;
    push(&here, &["a"]).await;
    for round in 0..3 {
        for queue in [&here, &there] {
            let held = claim(queue).await;
            assert!(held.fence > last, "{} after {last}, round {round}", held.fence);
            last = held.fence;
            if round == 1 {
                queue.fail(vec![(held.receipt, "no".into())]).await.remove(0).unwrap();
                queue.retry(vec![id("a")]).await.remove(0).unwrap();
                let held = claim(queue).await;
                assert!(held.fence > last, "{} after {last}, the next life", held.fence);
                last = held.fence;
                queue.release_unrun(vec![held.receipt]).await.remove(0).unwrap();
            } else {
                queue.release_unrun(vec![held.receipt]).await.remove(0).unwrap();
            }
            let other = if Arc::ptr_eq(queue, &here) { &there } else { &here };
            assert_eq!(go(queue, other, Mode::Move).await, done(1), "round {round}");
        }
    }
}

#[tokio::test]
async fn interrupted_moves_count_for_nothing() {
    let settings = Settings { lease: LEASE, max_lost: 2, ..Settings::default() };
    let (from, to) = (memory(settings.clone()).await, memory(settings).await);
    push(&from, &["a"]).await;
    for _ in 0..4 {
        let taken =
            from.claim_to_move(vec![view(&from, "a").await], LEASE).await.remove(0).unwrap();
        assert!(matches!(taken, MoveClaim::Ours(_)), "{taken:?}");
        tokio::time::sleep(LEASE * 2).await;
    }
    // The last one may still have it: the next run waits.
    from.claim_to_move(vec![view(&from, "a").await], LEASE * 5).await.remove(0).unwrap();
    let mut waited = false;
    let mut tell = |event: Event<'_>| waited |= matches!(event, Event::Waiting(_));
    let report = transfer(&from, &to, Mode::Move).run(&mut tell).await.unwrap();
    assert_eq!((report, waited), (done(1), true));
    let delivery = claim(&to).await;
    assert_eq!((delivery.attempt, delivery.earlier.lost), (1, 0));
}

#[tokio::test]
async fn there_and_back_again() {
    let (here, there) = pair().await;
    push(&here, &["a", "b"]).await;
    for round in 1..4 {
        assert_eq!(go(&here, &there, Mode::Move).await, done(2), "round {round}");
        assert_eq!(go(&there, &here, Mode::Move).await, done(2), "round {round}");
        let stats = here.stats(Detail::Exact).await.unwrap();
        assert_eq!(stats.pending, 2);
    }
    // Pushed again where it was moved from, it is still the same task.
    let again = NewTask::from_json("{}").unwrap().id(id("a"));
    let pushed = there.push(vec![again]).await.remove(0).unwrap();
    assert!(matches!(pushed, Pushed::Finished(..)), "{pushed:?}");
}

#[tokio::test]
async fn a_copy_is_made_once() {
    let (from, to) = pair().await;
    push(&from, &["a", "b", "c"]).await;
    assert_eq!(go(&from, &to, Mode::Copy).await, done(3));
    to.ack(vec![claim(&to).await.receipt]).await.remove(0).unwrap();
    assert_eq!(go(&from, &to, Mode::Copy).await, done(3));
    let stats = to.stats(Detail::Exact).await.unwrap();
    assert_eq!((stats.pending, stats.completed), (2, 1), "what is done there is not done again");
    assert_eq!(from.stats(Detail::Exact).await.unwrap().pending, 3);
    // And a move after the copy finds everything there.
    assert_eq!(go(&from, &to, Mode::Move).await, done(3));
    assert_eq!(to.stats(Detail::Exact).await.unwrap().pending, 2);
}

#[tokio::test]
async fn what_somebody_has_stays() {
    let (from, to) = pair().await;
    push(&from, &["a", "b"]).await;
    let held = claim(&from).await;
    from.pause(None).await.unwrap();
    let report = go(&from, &to, Mode::Move).await;
    assert_eq!(report, Report { done: 1, held: 1, ..Report::default() });
    from.ack(vec![held.receipt]).await.remove(0).unwrap();
}

#[tokio::test]
async fn another_task_of_the_same_id_is_not_overwritten() {
    let (from, to) = pair().await;
    push(&from, &["same", "mine"]).await;
    push(&to, &["same"]).await;
    let mut refused = Vec::new();
    let mut tell = |event: Event<'_>| {
        if let Event::Refused(id, error) = event {
            refused.push(format!("{id}: {error}"));
        }
    };
    let report = transfer(&from, &to, Mode::Move).run(&mut tell).await.unwrap();
    assert_eq!((report.done, report.refused), (1, 1));
    assert!(refused[0].contains("another task of this id is pending there"), "{refused:?}");
    assert_eq!(view(&from, "same").await.state, TaskState::Ready, "given back");

    to.ack(vec![claim(&to).await.receipt]).await.remove(0).unwrap();
    to.ack(vec![claim(&to).await.receipt]).await.remove(0).unwrap();
    assert_eq!(go(&from, &to, Mode::Move).await.refused, 1, "it has finished there");
    let again = transfer(&from, &to, Mode::Move).again(true).run(&mut |_| {}).await.unwrap();
    assert_eq!(again, done(1));
    assert_eq!(view(&to, "same").await.key.generation(), 2);
}

#[tokio::test]
async fn a_queue_is_not_moved_into_itself() {
    let (from, _) = pair().await;
    let refused = Transfer::new(Arc::clone(&from), from, Mode::Move, Env::system());
    assert!(refused.err().unwrap().to_string().contains("the same one"));
}

/// Workers at both ends, three movers there and one back again, and every task is done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_race_of_movers_and_workers() {
    for round in 0..support::short_or_long(2, 5) {
        let sites = [support::Site::new(), support::Site::new()];
        let settings =
            Settings { durability: dfq::model::Durability::Relaxed, ..Settings::default() };
        let here = sites[0].queue_with(settings.clone()).await;
        let there = sites[1].queue_with(settings).await;
        let names: Vec<String> = (0..400).map(|n| format!("t{n}")).collect();
        push(&here, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let times: Arc<std::sync::Mutex<BTreeMap<String, u32>>> = Arc::default();
        let open = |site: &support::Site| dfq::open(site.path("q"), OpenOptions::existing());
        // There and back at the same time, for as long as anything is there. So workers stay to the last.
        let (mut crew, mut movers) = (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
        let mut stoppers = Vec::new();
        for at in [0, 1, 1] {
            let (queue, times) = (open(&sites[at]).await.unwrap(), Arc::clone(&times));
            let work = move |job: dfq::worker::Job| {
                let times = Arc::clone(&times);
                async move {
                    let id = job.delivery.id().to_string();
                    *times.lock().unwrap().entry(id).or_default() += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    dfq::worker::TaskResult::Ack
                }
            };
            let worker = Worker::new(queue, work);
            stoppers.push(worker.stopper());
            crew.spawn(worker.run());
        }
        for (from, to) in [(0, 1), (0, 1), (0, 1), (1, 0)] {
            let (from, to) = (open(&sites[from]).await.unwrap(), open(&sites[to]).await.unwrap());
            movers.spawn(async move {
                // Who is refused tries again.
                for _ in 0..5 {
                    let (from, to) = (Arc::clone(&from), Arc::clone(&to));
                    let transfer = Transfer::new(from, to, Mode::Move, Env::system()).unwrap();
                    transfer.run(&mut |_| {}).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
        while let Some(ended) = movers.join_next().await {
            ended.unwrap();
        }
        for stopper in stoppers {
            stopper.stop();
        }
        while let Some(ended) = crew.join_next().await {
            ended.unwrap().unwrap();
        }
        // Whatever came after the workers had left.
        for queue in [&here, &there] {
            loop {
                let got = queue.poll(PollRequest::new(100)).await.unwrap().deliveries;
                if got.is_empty() {
                    break;
                }
                for delivery in &got {
                    *times.lock().unwrap().entry(delivery.id().to_string()).or_default() += 1;
                }
                let receipts = got.into_iter().map(|delivery| delivery.receipt).collect();
                for acked in queue.ack(receipts).await {
                    acked.unwrap();
                }
            }
            let stats = queue.stats(Detail::Exact).await.unwrap();
            assert_eq!((stats.pending, stats.failed), (0, 0), "round {round}");
            assert!(queue.check(false).await.unwrap().is_empty());
        }
        let times = times.lock().unwrap();
        assert_eq!(times.len(), 400, "round {round}: none is lost");
        let twice: Vec<_> = times.iter().filter(|(_, times)| **times != 1).collect();
        assert!(twice.is_empty(), "round {round}: {twice:?}");
    }
}
