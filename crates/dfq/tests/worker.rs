//! The worker runtime on real folders.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dfq::queue::TaskState;
use dfq::store::fs::fault::Fault;
use dfq::worker::{Job, Report, TaskResult, Until, Worker};
use dfq::{PollRequest, Queue, Settings};
use rustix::io::Errno;
use support::{Site, id, poll, push};

/// Nobody sits it out: tests put the clock forward.
const LEASE: Duration = Duration::from_secs(600);
/// Where the task `a` has its lease.
const LEASE_OF_A: &str = "pending/ca/a/lease.json";

fn settings() -> Settings {
    Settings { lease: LEASE, ..Settings::default() }
}

async fn ack(_: Job) -> TaskResult {
    TaskResult::Ack
}

#[tokio::test]
async fn a_worker_does_everything_and_leaves_word() {
    let site = Site::new();
    let queue = site.queue().await;
    for n in 0..30 {
        push(&*queue, &format!("t{n}")).await;
    }
    let report =
        Worker::new(queue.clone(), ack).concurrency(4).until(Until::Drained).run().await.unwrap();
    assert_eq!(report, Report { completed: 30, ..Report::default() });
    let workers = queue.workers().await.unwrap();
    assert_eq!(workers.len(), 1);
    assert_eq!((workers[0].completed, workers[0].running), (30, 0));
    assert!(workers[0].stopped_at.is_some());
}

#[tokio::test]
async fn a_results_error_is_a_retry_and_a_panic_too() {
    let site = Site::new();
    let queue = site.queue_with(Settings { max_attempts: 1, ..settings() }).await;
    push(&*queue, "error").await;
    push(&*queue, "panic").await;
    let handler = |job: Job| async move {
        assert_ne!(job.delivery.id().as_str(), "panic", "on purpose");
        Err::<(), _>("no luck")
    };
    let report = Worker::new(queue.clone(), handler).until(Until::Drained).run().await.unwrap();
    assert_eq!(report, Report { failed: 2, ..Report::default() });
    for (name, reason) in [("error", "no luck"), ("panic", "on purpose")] {
        let view = queue.get(id(name)).await.unwrap().unwrap();
        assert_eq!(view.state, TaskState::Failed);
        assert!(view.reason.as_ref().unwrap().contains(reason), "{:?}", view.reason);
    }
}

#[tokio::test]
async fn as_many_tasks_at_once_as_asked_for() {
    let site = Site::new();
    let queue = site.queue().await;
    for n in 0..12 {
        push(&*queue, &format!("t{n}")).await;
    }
    // Nobody gets through alone: four must be there.
    let barrier = Arc::new(tokio::sync::Barrier::new(4));
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let handler = move |_: Job| {
        let (barrier, running, most) = (barrier.clone(), running.clone(), most.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            barrier.wait().await;
            running.fetch_sub(1, Ordering::SeqCst);
            TaskResult::Ack
        }
    };
    let report =
        Worker::new(queue, handler).concurrency(4).until(Until::Drained).run().await.unwrap();
    assert_eq!(report.completed, 12);
    assert_eq!(seen.load(Ordering::SeqCst), 4);
}

/// One thread for everything, and the handler sits on it for longer than a lease.
#[tokio::test(flavor = "current_thread")]
async fn a_busy_handler_does_not_starve_its_own_heartbeat() {
    let site = Arc::new(Site::new());
    let (queue, _) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let sits = Arc::clone(&site);
    let handler = move |job: Job| {
        sits.outlive(LEASE_OF_A, job.queue.heartbeat_every(LEASE), LEASE);
        async { TaskResult::Ack }
    };
    let worker = Worker::new(queue.clone(), handler).env(site.env()).until(Until::Drained);
    assert_eq!(worker.run().await.unwrap(), Report { completed: 1, ..Report::default() });
    assert_eq!(queue.get(id("a")).await.unwrap().unwrap().attempts.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_whose_lease_is_lost_is_cancelled() {
    let site = Site::new();
    let (queue, _) = site.faulty(settings()).await;
    let (operator, _) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let (started, dropped) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicUsize::new(0)));
    struct OnDrop(Arc<AtomicUsize>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (starting, dropping) = (started.clone(), dropped.clone());
    let handler = move |_: Job| {
        let (starting, guard) = (starting.clone(), OnDrop(dropping.clone()));
        async move {
            let _guard = guard;
            starting.notify_one();
            std::future::pending::<TaskResult>().await
        }
    };
    let worker = Worker::new(queue.clone(), handler).env(site.env());
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    started.notified().await;
    operator.pause(None).await.unwrap();
    operator.unlock(vec![id("a")]).await.remove(0).unwrap();
    site.pass(queue.heartbeat_every(LEASE));
    while dropped.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stopper.stop();
    let report = running.await.unwrap().unwrap();
    assert_eq!(report, Report { lost: 1, ..Report::default() });
    operator.resume().await.unwrap();
    assert_eq!(poll(&*operator).await.len(), 1, "the task is there for others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stop_lets_tasks_finish_and_gives_the_rest_back() {
    let site = Site::new();
    let (queue, _) = site.faulty(settings()).await;
    push(&*queue, "short").await;
    push(&*queue, "endless").await;
    let both = Arc::new(tokio::sync::Barrier::new(3));
    let (stopped, inside) = (Arc::new(tokio::sync::Notify::new()), both.clone());
    let told = stopped.clone();
    let handler = move |job: Job| {
        let (both, stopped) = (inside.clone(), told.clone());
        async move {
            both.wait().await;
            if job.delivery.id().as_str() == "endless" {
                std::future::pending::<()>().await;
            }
            stopped.notified().await;
            TaskResult::Ack
        }
    };
    let grace = Duration::from_secs(60);
    let done = Arc::new(tokio::sync::Notify::new());
    let (heard, worker) = (done.clone(), Worker::new(queue, handler).concurrency(2).grace(grace));
    let worker = worker.env(site.env()).observe(move |_| heard.notify_one());
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    both.wait().await;
    stopper.stop();
    stopped.notify_one();
    done.notified().await;
    site.pass(grace);
    let report = running.await.unwrap().unwrap();
    assert_eq!(report, Report { completed: 1, released: 1, ..Report::default() });
    // The lease is ten minutes long; nobody has to wait for it.
    let next = poll(&*site.faulty(settings()).await.0).await;
    assert_eq!(next.len(), 1);
    assert_eq!((next[0].id().as_str(), next[0].attempt), ("endless", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hard_stop_does_not_wait_even_for_a_handler_that_blocks() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    let started = Arc::new(tokio::sync::Notify::new());
    let (starting, (over, blocked)) = (started.clone(), std::sync::mpsc::channel::<()>());
    let blocked = Arc::new(std::sync::Mutex::new(blocked));
    let handler = move |_: Job| {
        let (starting, blocked) = (starting.clone(), blocked.clone());
        async move {
            starting.notify_one();
            let _ = blocked.lock().unwrap().recv_timeout(Duration::from_secs(60));
            TaskResult::Ack
        }
    };
    let worker = Worker::new(queue, handler).grace(Duration::from_secs(3600));
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    started.notified().await;
    stopper.stop_now();
    let report = running.await.unwrap().unwrap();
    assert_eq!(report, Report { released: 1, ..Report::default() });
    assert_eq!(poll(&*site.queue().await).await.len(), 1);
    drop(over);
}

#[tokio::test]
async fn until_idle_does_not_wait_for_backoffs() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    push(&*queue, "b").await;
    let handler = |job: Job| async move {
        match job.delivery.id().as_str() {
            "a" => TaskResult::Retry { error: "no".into(), delay: Some(Duration::from_secs(3600)) },
            _ => TaskResult::Ack,
        }
    };
    let report = Worker::new(queue, handler).until(Until::Idle).run().await.unwrap();
    assert_eq!(report, Report { completed: 1, retried: 1, ..Report::default() });
}

#[tokio::test]
async fn until_drained_waits_for_backoffs_schedules_and_others() {
    let site = Site::new();
    let (queue, _) = site.faulty(settings()).await;
    push(&*queue, "others").await;
    let (silent, _) = site.faulty(settings()).await;
    let soon = PollRequest { lease: Some(Duration::from_secs(60)), ..PollRequest::new(1) };
    assert_eq!(silent.poll(soon).await.unwrap().deliveries.len(), 1, "held by a silent worker");
    push(&*queue, "retried").await;
    queue
        .push(vec![support::task("later").delay(Duration::from_secs(20))])
        .await
        .remove(0)
        .unwrap();
    let handler = |job: Job| async move {
        match (job.delivery.id().as_str(), job.delivery.attempt) {
            ("retried", 1) => {
                TaskResult::Retry { error: "no".into(), delay: Some(Duration::from_secs(30)) }
            }
            _ => TaskResult::Ack,
        }
    };
    let worker = Worker::new(queue, handler).env(site.env()).until(Until::Drained);
    let running = tokio::spawn(worker.run());
    while !running.is_finished() {
        site.pass(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = running.await.unwrap().unwrap();
    assert_eq!(report, Report { completed: 3, retried: 1, ..Report::default() });
}

/// The disk is full when the work is done, for longer than a lease: the worker holds on to it until
/// there is room.
#[tokio::test]
async fn a_full_disk_does_not_lose_finished_work() {
    let site = Arc::new(Site::new());
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let (every, room, waits) = (queue.heartbeat_every(LEASE), sys.clone(), Arc::clone(&site));
    let handler = move |_: Job| {
        // No record can be made from here on; leases can be renewed.
        sys.refuse("completed", Some(Errno::NOSPC));
        let (room, waits) = (room.clone(), Arc::clone(&waits));
        std::thread::spawn(move || {
            waits.outlive(LEASE_OF_A, every, LEASE);
            room.refuse("completed", None);
            waits.pass(every);
        });
        async { TaskResult::Ack }
    };
    let worker = Worker::new(queue.clone(), handler).env(site.env()).limit(1);
    assert_eq!(worker.run().await.unwrap(), Report { completed: 1, ..Report::default() });
    assert_eq!(queue.get(id("a")).await.unwrap().unwrap().attempts.len(), 1);
}

/// A handler that panics before it has made its future must not take the worker with it.
#[tokio::test]
async fn a_handler_that_panics_at_once_is_a_retry() {
    let site = Site::new();
    let queue = site.queue_with(Settings { max_attempts: 1, ..settings() }).await;
    push(&*queue, "bad").await;
    push(&*queue, "good").await;
    let handler = |job: Job| {
        assert_ne!(job.delivery.id().as_str(), "bad", "on purpose");
        async { TaskResult::Ack }
    };
    let report = Worker::new(queue, handler).until(Until::Drained).run().await.unwrap();
    assert_eq!(report, Report { completed: 1, failed: 1, ..Report::default() });
}

/// A store that fails is not an empty queue.
#[tokio::test]
async fn a_failing_store_does_not_look_idle() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    sys.refuse("tmp", Some(Errno::IO));
    let mended = sys.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        mended.refuse("tmp", None);
    });
    let report = Worker::new(queue, ack).until(Until::Idle).run().await.unwrap();
    assert_eq!(report.completed, 1);
}

#[tokio::test]
async fn a_poll_that_may_not_write_says_so() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    assert!(queue.poll(PollRequest::new(0)).await.is_ok());
    sys.arm(Some(Fault::Fail(0, Errno::ROFS)));
    let refused = queue.poll(PollRequest::new(1)).await.unwrap_err();
    assert_eq!(refused.kind(), dfq::ErrorKind::Denied, "{refused}");
}

#[tokio::test]
async fn queues_are_worked_on_in_the_order_given() {
    let (first, second) = (Site::new(), Site::new());
    let (urgent, other) = (first.queue().await, second.queue().await);
    for n in 0..20 {
        push(&*other, &format!("other{n}")).await;
        push(&*urgent, &format!("urgent{n}")).await;
    }
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&done);
    let handler = move |job: Job| {
        seen.lock().unwrap().push((job.queue.address().to_owned(), job.delivery.id().to_string()));
        async { TaskResult::Ack }
    };
    let worker = Worker::new(urgent.clone(), handler).then(other.clone()).until(Until::Drained);
    assert_eq!(worker.run().await.unwrap().completed, 40);
    let done = done.lock().unwrap().clone();
    assert!(done[..20].iter().all(|(at, id)| at == urgent.address() && id.starts_with("urgent")));
    assert!(done[20..].iter().all(|(at, id)| at == other.address() && id.starts_with("other")));
    for queue in [urgent, other] {
        assert_eq!(queue.stats(dfq::queue::Detail::Counts).await.unwrap().completed, 20);
        let workers = queue.workers().await.unwrap();
        assert_eq!((workers.len(), workers[0].completed), (1, 20), "each queue's own count");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_the_second_queue_are_kept_too() {
    let first = Site::new();
    let second = Arc::new(first.another());
    let (idle, busy) = (first.faulty(settings()).await.0, second.faulty(settings()).await.0);
    push(&*busy, "a").await;
    let sits = Arc::clone(&second);
    let handler = move |job: Job| {
        sits.outlive(LEASE_OF_A, job.queue.heartbeat_every(LEASE), LEASE);
        async { TaskResult::Ack }
    };
    let worker = Worker::new(idle, handler).then(busy).env(first.env()).until(Until::Drained);
    assert_eq!(worker.run().await.unwrap(), Report { completed: 1, ..Report::default() });
}

#[tokio::test]
async fn a_limit_is_a_limit() {
    let site = Site::new();
    let queue = site.queue().await;
    for n in 0..10 {
        push(&*queue, &format!("t{n}")).await;
    }
    for until in [Until::Stopped, Until::Drained, Until::Idle] {
        let worker = Worker::new(queue.clone(), ack).concurrency(2).limit(3).until(until);
        assert_eq!(worker.run().await.unwrap().completed, 3, "{until:?}");
    }
    assert_eq!(queue.stats(dfq::queue::Detail::Counts).await.unwrap().pending, 1);
}

#[tokio::test]
async fn an_observer_hears_what_became_of_each_task() {
    use dfq::worker::Became;
    const HOUR: Duration = Duration::from_secs(3600);
    let site = Site::new();
    let queue = site.queue_with(Settings { max_attempts: 2, ..settings() }).await;
    for name in ["ack", "fail", "retry", "release"] {
        push(&*queue, name).await;
    }
    let heard = Arc::new(std::sync::Mutex::new(std::collections::BTreeMap::new()));
    let notes = Arc::clone(&heard);
    let handler = |job: Job| async move {
        assert_eq!(job.delivery.earlier, dfq::queue::Earlier::default());
        match job.delivery.id().as_str() {
            "ack" => TaskResult::Ack,
            "fail" => TaskResult::Fail { reason: "no".into() },
            "retry" => TaskResult::Retry { error: "no".into(), delay: Some(HOUR) },
            _ => TaskResult::Release { reason: None, delay: Some(HOUR) },
        }
    };
    let worker = Worker::new(queue.clone(), handler).until(Until::Idle).observe(move |settled| {
        notes.lock().unwrap().insert(settled.receipt.key().to_string(), settled.became);
    });
    worker.run().await.unwrap();
    let heard: Vec<_> = heard.lock().unwrap().clone().into_iter().collect();
    let expected = [
        ("ack".to_owned(), Became::Completed),
        ("fail".to_owned(), Became::Failed),
        ("release".to_owned(), Became::Released),
        ("retry".to_owned(), Became::Retried(HOUR)),
    ];
    assert_eq!(heard, expected);
    for unlocked in queue.unlock(vec![id("retry"), id("release")]).await {
        unlocked.unwrap();
    }
    let handler = |job: Job| async move {
        let earlier = job.delivery.earlier;
        match job.delivery.id().as_str() {
            "retry" => assert_eq!((earlier.failed, earlier.released), (1, 0)),
            _ => assert_eq!((earlier.failed, earlier.released), (0, 1)),
        }
    };
    let handler = move |job| async move {
        handler(job).await;
        TaskResult::Ack
    };
    let report = Worker::new(queue, handler).until(Until::Drained).run().await.unwrap();
    assert_eq!(report.completed, 2);
}

#[tokio::test]
async fn a_worker_may_give_up_sooner_than_its_queue() {
    let site = Site::new();
    push(&*site.queue().await, "hard").await;
    let options = dfq::OpenOptions { max_attempts: Some(1), ..dfq::OpenOptions::existing() };
    let queue = dfq::open(site.path("q"), options).await.unwrap();
    let handler = |_: Job| async { Err::<(), _>("no luck") };
    let report = Worker::new(queue, handler).until(Until::Drained).run().await.unwrap();
    assert_eq!(report, Report { failed: 1, ..Report::default() });
}

#[tokio::test]
async fn a_cancelled_handler_may_tidy_up_before_its_task_is_given_back() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "long").await;
    let (tidied, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let (seen, onlooker, runs) = (Arc::clone(&tidied), queue.clone(), Arc::clone(&begun));
    let handler = move |job: Job| {
        let (tidied, onlooker, begun) = (tidied.clone(), onlooker.clone(), begun.clone());
        async move {
            begun.notify_one();
            job.cancelled().await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            let state = onlooker.get(id("long")).await.unwrap().unwrap().state;
            assert!(matches!(state, TaskState::Leased { .. }), "{state:?}");
            tidied.fetch_add(1, Ordering::SeqCst);
            TaskResult::Release { reason: Some("stopped".into()), delay: None }
        }
    };
    let worker = Worker::new(queue.clone(), handler).cleanup(Duration::from_secs(30));
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    runs.notified().await;
    stopper.stop_now();
    assert_eq!(running.await.unwrap().unwrap().released, 1);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}
