//! What it costs to have nothing to do, and how soon that ends: idle workers take turns in looking at a bucket.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a real server has real times")]

#[path = "bucket/elsewhere.rs"]
mod elsewhere;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dfq::meter::{self, Meter, RequestKind};
use dfq::queue::{Polled, WorkerRecord};
use dfq::worker::{Job, Worker};
use dfq::{NewTask, PollRequest, Queue};
use dfq_s3_server::Rules;
use elsewhere::{Elsewhere, task, until};

const LEASE: Duration = Duration::from_secs(600);

/// How long an idle worker waits.
const WAIT: Duration = Duration::from_secs(15);

fn run<R>(test: impl AsyncFnOnce(&Elsewhere) -> R) -> R {
    let elsewhere = Elsewhere::start();
    tokio::runtime::Runtime::new().unwrap().block_on(test(&elsewhere))
}

/// A worker that others count on. Time passes only when the test says so.
async fn worker(elsewhere: &Elsewhere, meter: &Meter) -> Arc<dyn Queue> {
    let queue = elsewhere.queue_in(elsewhere.env(), LEASE, meter).await;
    queue.put_worker(record(queue.worker_id())).await.unwrap();
    queue
}

fn record(worker_id: &str) -> WorkerRecord {
    let worker_id = worker_id.to_owned();
    WorkerRecord { worker_id, concurrency: 1, ..WorkerRecord::default() }
}

async fn poll(queue: &dyn Queue, max: usize) -> Polled {
    queue.poll(PollRequest::new(max)).await.unwrap()
}

/// As a worker polls that has found nothing before.
async fn poll_idly(queue: &dyn Queue, max: usize) -> Polled {
    let request = PollRequest { relies_within: Some(WAIT), ..PollRequest::new(max) };
    queue.poll(request).await.unwrap()
}

async fn push(queue: &dyn Queue, tasks: impl IntoIterator<Item = NewTask>) {
    for answer in queue.push(tasks.into_iter().collect()).await {
        answer.unwrap();
    }
}

fn sent(meter: &Meter, kinds: &[RequestKind]) -> u64 {
    let counts = meter.counts();
    kinds.iter().filter_map(|kind| counts.get(kind)).map(|count| count.sent - count.failed).sum()
}

/// A quarter of an hour of fifty workers, each of which polls every 15 seconds.
#[test]
fn of_fifty_idle_workers_one_looks() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let mut workers = Vec::new();
        for _ in 0..50 {
            let queue = worker(elsewhere, &meter).await;
            poll(&*queue, 1).await;
            workers.push(queue);
        }
        let before = meter.counts();
        for _ in 0..60 {
            elsewhere.pass(WAIT);
            for queue in &workers {
                assert!(poll_idly(&**queue, 1).await.deliveries.is_empty());
            }
        }
        let counts = meter::since(&meter.counts(), &before);
        let of = |kind| counts.get(&kind).map_or(0, |count| count.sent - count.failed);
        // A look lists what is pending and what is scheduled, and is noted by one write.
        assert!(of(RequestKind::List) <= 2 * 60 + 20, "{counts:?}");
        assert!(of(RequestKind::Put) <= 60 + 20, "{counts:?}");
        let reads = of(RequestKind::Get) + of(RequestKind::Head);
        // Each reads the watch; who looks, whether the queue is paused, and now and then the settings.
        assert!(reads <= 50 * 60 + 4 * 60, "{counts:?}");
        // What they say of themselves is written every two minutes. A month has 730 hours.
        let dear = of(RequestKind::List) + of(RequestKind::Put) + 50 * 15 / 2;
        let dollars = (dear as f64 * 0.005 + reads as f64 * 0.0004) / 1000.0 * 4.0 * 730.0;
        assert!(dollars < 15.0, "${dollars} a month");
    });
}

/// Whoever looked goes on looking; somebody else does when it stops.
#[test]
fn a_new_task_is_found_by_whoever_looks() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let (first, second) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        poll_idly(&*first, 1).await;
        push(&*first, [task(1)]).await;
        assert!(poll_idly(&*second, 1).await.deliveries.is_empty(), "the first has just looked");
        assert_eq!(poll_idly(&*first, 1).await.deliveries.len(), 1, "its own look will not do");
        push(&*first, [task(2)]).await;
        elsewhere.pass(WAIT);
        assert_eq!(poll_idly(&*second, 1).await.deliveries.len(), 1, "the first has not come back");
    });
}

#[test]
fn a_poll_that_wants_to_know_looks_itself() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let (first, second) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        poll_idly(&*first, 1).await;
        push(&*first, [task(1)]).await;
        assert_eq!(poll(&*second, 1).await.deliveries.len(), 1);
    });
}

/// If there is more than one can take, the others are called, and each comes once.
#[test]
fn others_are_called_if_there_is_much() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let mut workers = Vec::new();
        for _ in 0..5 {
            let queue = worker(elsewhere, &meter).await;
            poll_idly(&*queue, 1).await;
            workers.push(queue);
        }
        push(&*workers[0], (0..20).map(task)).await;
        elsewhere.pass(WAIT);
        let mut counts = Vec::new();
        for queue in &workers {
            counts.push(poll_idly(&**queue, 3).await.deliveries.len());
        }
        assert_eq!(counts, [3; 5]);
        // The call was heard. What is left is for whoever is not idle, or for the next look.
        assert_eq!(poll_idly(&*workers[3], 3).await.deliveries.len(), 0);
        elsewhere.pass(WAIT);
        assert_eq!(poll_idly(&*workers[3], 5).await.deliveries.len(), 5);
    });
}

/// For one task that is left, not all of fifty come.
#[test]
fn few_are_called_if_there_is_little() {
    run(async |elsewhere| {
        let (meter, looks) = (Meter::default(), Meter::default());
        let mut others = Vec::new();
        for _ in 0..50 {
            let queue = worker(elsewhere, &looks).await;
            poll_idly(&*queue, 1).await;
            others.push(queue);
        }
        let first = worker(elsewhere, &meter).await;
        poll(&*first, 1).await;
        push(&*first, (0..3).map(task)).await;
        elsewhere.pass(WAIT);
        assert_eq!(poll_idly(&*first, 1).await.deliveries.len(), 1);
        let before = sent(&looks, &[RequestKind::List]);
        let mut claimed = 0;
        for queue in &others {
            claimed += poll_idly(&**queue, 1).await.deliveries.len();
        }
        let listed = sent(&looks, &[RequestKind::List]) - before;
        assert!(claimed <= 2 && listed < 100, "{claimed} tasks, {listed} listings of 50 workers");
    });
}

#[test]
fn a_clock_that_was_set_back_keeps_nobody_from_looking() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let (first, second) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        elsewhere.pass(Duration::from_secs(7200));
        poll_idly(&*first, 1).await;
        push(&*first, [task(1)]).await;
        elsewhere.server.set_lies(dfq_s3_server::Lies::default()); // two hours back
        assert_eq!(poll_idly(&*second, 1).await.deliveries.len(), 1);
    });
}

/// A policy of old may not allow it.
#[test]
fn who_may_not_keep_the_watch_looks_for_itself() {
    run(async |elsewhere| {
        let rules = Rules::default().deny_under("s3:PutObject", "jobs/workers/watch");
        elsewhere.server.set_rules(rules);
        let meter = Meter::default();
        let (first, second) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        poll_idly(&*first, 1).await;
        push(&*first, [task(1)]).await;
        assert_eq!(poll_idly(&*second, 1).await.deliveries.len(), 1);
    });
}

/// Real workers on real time: whatever they leave to each other, everything is done.
#[test]
fn idle_workers_do_all_that_comes() {
    run(async |elsewhere| {
        let done = Arc::new(AtomicUsize::new(0));
        let meter = Meter::default();
        let (mut running, mut stoppers) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let queue = elsewhere.queue_in(dfq::Env::system(), LEASE, &meter).await;
            let done = Arc::clone(&done);
            let handler = move |_: Job| {
                done.fetch_add(1, Ordering::SeqCst);
                async { Ok::<(), dfq::Error>(()) }
            };
            let worker = Worker::new(queue, handler).idle_at_most(Duration::from_secs(2));
            stoppers.push(worker.stopper());
            running.push(tokio::spawn(worker.run()));
        }
        let queue = elsewhere.queue_in(dfq::Env::system(), LEASE, &meter).await;
        for batch in 0..4 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let count = batch * 10;
            push(&*queue, (count..count + 10).map(task)).await;
            let done = Arc::clone(&done);
            let all = move || done.load(Ordering::SeqCst) == count + 10;
            tokio::task::spawn_blocking(|| until("the last of a batch", all)).await.unwrap();
        }
        stoppers.iter().for_each(|stopper| stopper.stop());
        for worker in running {
            worker.await.unwrap().unwrap();
        }
    });
}

/// How many tasks wait for their time.
fn scheduled(elsewhere: &Elsewhere) -> usize {
    let objects = elsewhere.server.objects();
    objects.iter().filter(|(key, _)| key.starts_with("jobs/scheduled/")).count()
}

/// What is due together is shared out, and costs each worker what it moves.
#[test]
fn due_tasks_are_shared_out() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let mut workers = Vec::new();
        for _ in 0..4 {
            workers.push(worker(elsewhere, &meter).await);
        }
        for queue in &workers {
            poll(&**queue, 1).await;
        }
        let delay = Duration::from_secs(60);
        // Only as long as the test is quick do workers leave anything to others.
        for round in 0..100 {
            let tasks = (0..40).map(|n| task(round * 40 + n).delay(delay));
            push(&*workers[0], tasks).await;
            // The time that answers tell, and due times, are in whole seconds.
            elsewhere.pass(delay + Duration::from_millis(2_500));
            let (began, before) = (std::time::Instant::now(), meter.counts());
            let mut left = Vec::new();
            for queue in &workers {
                poll(&**queue, 1).await;
                left.push(scheduled(elsewhere));
            }
            if began.elapsed() > Duration::from_millis(1_500) {
                elsewhere.pass(delay);
                poll(&*workers[0], 40).await;
                continue;
            }
            assert!(left[0] > 10 && left.is_sorted_by(|a, b| a > b), "{left:?}");
            assert_eq!(left[3], 0, "{left:?}");
            let sent = meter::since(&meter.counts(), &before);
            let sent: u64 = sent.values().map(|count| count.sent - count.failed).sum();
            assert!(sent <= 5 * 40 + 4 * 30, "{sent} requests to move 40 tasks");
            return;
        }
        panic!("never quick enough");
    });
}

/// A worker that has ended moves nothing any more. Nor does one that has no room.
#[test]
fn due_tasks_that_their_worker_leaves_are_moved_by_others() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let (first, second) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        poll(&*first, 1).await;
        poll(&*second, 1).await;
        let delay = Duration::from_secs(60);
        push(&*first, (0..40).map(|n| task(n).delay(delay))).await;
        elsewhere.pass(delay);
        let polled = poll(&*first, 1).await;
        let is_sure = polled.idle.next.is_none() && polled.idle.unsure.is_none();
        assert!(!is_sure || scheduled(elsewhere) == 0, "there is more to come");
        elsewhere.pass(Duration::from_secs(10));
        poll(&*first, 1).await;
        assert_eq!(scheduled(elsewhere), 0);
    });
}

/// Whoever looks for all does everything.
#[test]
fn who_looks_for_all_moves_all_that_is_due() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let (first, second) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        poll(&*first, 1).await;
        poll(&*second, 1).await;
        let delay = Duration::from_secs(60);
        push(&*first, (0..40).map(|n| task(n).delay(delay))).await;
        elsewhere.pass(delay + Duration::from_secs(3));
        assert_eq!(poll_idly(&*first, 1).await.deliveries.len(), 1);
        assert_eq!(scheduled(elsewhere), 0);
    });
}

/// Two versions of a program share a queue: neither looks for the other.
#[test]
fn who_takes_only_some_tasks_looks_for_itself() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let (old, new) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        let of = |schema| PollRequest {
            relies_within: Some(WAIT),
            schema: Some(schema),
            ..PollRequest::new(1)
        };
        for _ in 0..3 {
            old.poll(of((1, 1))).await.unwrap();
            new.poll(of((2, 2))).await.unwrap();
            elsewhere.pass(WAIT);
        }
        push(&*old, [NewTask::from_json(r#"{"schema_version":2}"#).unwrap()]).await;
        assert!(old.poll(of((1, 1))).await.unwrap().deliveries.is_empty());
        assert_eq!(new.poll(of((2, 2))).await.unwrap().deliveries.len(), 1);
    });
}

/// It must not keep the others from looking by saying, again and again, that it does.
#[test]
fn who_cannot_look_says_so_once() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let (first, second) = (worker(elsewhere, &meter).await, worker(elsewhere, &meter).await);
        poll_idly(&*first, 1).await;
        poll_idly(&*second, 1).await;
        elsewhere.server.set_rules(Rules::default().deny("s3:ListBucket"));
        elsewhere.pass(WAIT);
        let request = || PollRequest { relies_within: Some(WAIT), ..PollRequest::new(1) };
        first.poll(request()).await.unwrap_err();
        elsewhere.pass(WAIT);
        first.poll(request()).await.unwrap_err();
        elsewhere.server.set_rules(Rules::default());
        push(&*second, [task(1)]).await;
        assert_eq!(poll_idly(&*second, 1).await.deliveries.len(), 1);
    });
}
