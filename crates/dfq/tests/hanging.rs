//! Leases when calls hang, and when somebody takes a task away: a handler is told by its own worker's clock,
//! or within seconds of an operator's word.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "calls really hang")]

mod support;

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{ManualClock, SystemChance};
use dfq::worker::{Job, Report, TaskResult, Until, Worker};
use dfq::{Env, ErrorKind, Queue, Settings};
use rustix::io::Errno;
use support::{Site, id, poll, push};

const LEASE: Duration = Duration::from_secs(600);

fn settings() -> Settings {
    Settings { lease: LEASE, ..Settings::default() }
}

/// Handlers that never end by themselves, and who has been told to.
#[derive(Clone, Default)]
struct Told {
    started: Arc<tokio::sync::Notify>,
    told: Arc<Mutex<BTreeSet<String>>>,
}

impl Told {
    fn handler(&self) -> impl Fn(Job) -> futures::future::BoxFuture<'static, TaskResult> + use<> {
        let told = self.clone();
        move |job: Job| {
            let told = told.clone();
            Box::pin(async move {
                told.started.notify_one();
                job.cancelled().await;
                told.told.lock().unwrap().insert(job.delivery.id().to_string());
                std::future::pending().await
            })
        }
    }

    async fn until_told(&self, name: &str) {
        while !self.told.lock().unwrap().contains(name) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// As on a mount whose server is gone: the call that renews the lease does not come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_call_that_hangs_does_not_stretch_a_lease() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let told = Told::default();
    let worker = Worker::new(queue.clone(), told.handler()).env(site.env()).cleanup(LEASE);
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    told.started.notified().await;
    let (heal, healed) = mpsc::channel::<()>();
    let (hung, hangs) = mpsc::channel();
    sys.before_change(0, move || {
        hung.send(()).unwrap();
        let _ = healed.recv();
    });
    site.pass(queue.heartbeat_every(LEASE));
    tokio::task::spawn_blocking(move || hangs.recv()).await.unwrap().unwrap();
    assert!(told.told.lock().unwrap().is_empty(), "its lease still holds");
    site.pass(LEASE);
    told.until_told("a").await;
    drop(heal);
    stopper.stop_now();
    site.pass(LEASE);
    assert_eq!(running.await.unwrap().unwrap().completed, 0);
}

/// All slots are busy, and the next heartbeat is a minute away.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_is_told_soon_that_its_task_was_taken_away() {
    for unlock in [false, true] {
        let site = Site::new();
        let (queue, _) = site.faulty(settings()).await;
        let (operator, _) = site.faulty(settings()).await;
        push(&*queue, "a").await;
        let told = Told::default();
        let worker = Worker::new(queue.clone(), told.handler()).env(site.env());
        let stopper = worker.stopper();
        let running = tokio::spawn(worker.run());
        told.started.notified().await;
        operator.pause(None).await.unwrap();
        if unlock {
            operator.unlock(vec![id("a")]).await.remove(0).unwrap();
        } else {
            let cancelled = operator.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap();
            assert_eq!(cancelled.held_by.as_deref(), Some(queue.worker_id()));
        }
        // Two looks, and far less than what is between two heartbeats.
        for _ in 0..2 {
            site.pass(Duration::from_secs(5));
        }
        told.until_told("a").await;
        stopper.stop_now();
        assert_eq!(running.await.unwrap().unwrap(), Report { lost: 1, ..Report::default() });
    }
}

/// A worker that ends by itself does not wait for room for ever.
#[tokio::test]
async fn a_full_disk_ends_a_worker_that_works_until_idle() {
    for until in [Until::Idle, Until::Drained] {
        let site = Site::new();
        let (queue, sys) = site.faulty(settings()).await;
        push(&*queue, "a").await;
        sys.fill(true);
        let handler = |_: Job| async { TaskResult::Ack };
        let running = tokio::spawn(Worker::new(queue, handler).env(site.env()).until(until).run());
        while !running.is_finished() {
            site.pass(Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(running.await.unwrap().unwrap_err().kind(), ErrorKind::Full);
    }
}

/// The ack never comes back. Who stops the worker twice is rid of it all the same, and who stops it once too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_hangs_does_not_keep_a_worker_from_ending() {
    for hard in [true, false] {
        let site = Site::new();
        let (queue, sys) = site.faulty(settings()).await;
        let (heal, healed) = mpsc::channel::<()>();
        let (hung, hangs) = mpsc::channel();
        let hang = Arc::new(Mutex::new(Some((hung, healed))));
        let handler = move |_: Job| {
            let (hung, healed) = hang.lock().unwrap().take().unwrap();
            sys.before_change(0, move || {
                hung.send(()).unwrap();
                let _ = healed.recv();
            });
            async { TaskResult::Ack }
        };
        let worker = Worker::new(queue.clone(), handler).env(site.env());
        let stopper = worker.stopper();
        let running = tokio::spawn(worker.run());
        // Its record is written before anything hangs: that is not what should.
        while queue.workers().await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        push(&*queue, "a").await;
        tokio::task::spawn_blocking(move || hangs.recv()).await.unwrap().unwrap();
        stopper.stop();
        if hard {
            stopper.stop_now();
        }
        // Far less than its lease.
        for _ in 0..100 {
            site.pass(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let report = tokio::time::timeout(Duration::from_secs(60), running).await;
        drop(heal);
        let report = report.expect("the worker ends").unwrap().unwrap();
        assert_eq!(report, Report { unrecorded: 1, ..Report::default() });
    }
}

/// While polls fail, time stands still, so no pause ever ends. What is done meanwhile is recorded all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn results_do_not_wait_for_a_poll_that_failed() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let (go_on, done) =
        (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (told, heard) = (Told::default(), Arc::clone(&done));
    let (started, waits) = (Arc::clone(&told.started), Arc::clone(&go_on));
    let handler = move |_: Job| {
        let (started, waits) = (Arc::clone(&started), Arc::clone(&waits));
        async move {
            started.notify_one();
            waits.notified().await;
            TaskResult::Ack
        }
    };
    let frozen = Env::new(Arc::new(ManualClock::default()), Arc::new(SystemChance));
    let worker = Worker::new(queue.clone(), handler).env(frozen).concurrency(2);
    let worker = worker.observe(move |_| heard.notify_one());
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    told.started.notified().await;
    sys.arm(None);
    sys.refuse("tmp", Some(Errno::IO));
    push(&*site.faulty(settings()).await.0, "b").await;
    while !sys.calls().iter().any(|call| call.contains("tmp")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Long enough for the poll to have failed as a whole; then all is well, but nobody polls again.
    tokio::time::sleep(Duration::from_millis(500)).await;
    sys.refuse("tmp", None);
    go_on.notify_one();
    let in_time = tokio::time::timeout(Duration::from_secs(60), done.notified()).await;
    stopper.stop_now();
    assert!(in_time.is_ok(), "the result of a waits for a poll");
    assert_eq!(running.await.unwrap().unwrap().completed, 1);
}

/// Its number is on the disk before anybody hears of it; the first attempt waits for nothing. Those of a batch
/// wait together: the first wait takes the others' leases along.
#[tokio::test]
async fn a_later_attempt_is_durable_before_it_is_handed_out() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    for name in ["a", "b", "c"] {
        push(&*queue, name).await;
    }
    let positions = |calls: &[String], what: &str| -> Vec<usize> {
        (0..calls.len()).filter(|at| calls[*at].contains(what)).collect()
    };
    sys.arm(None);
    assert_eq!(poll(&*queue).await.len(), 3);
    assert!(positions(&sys.calls(), "sync .").is_empty());
    site.pass(LEASE * 2);
    let (other, sys) = site.faulty(settings()).await;
    sys.arm(None);
    assert!(poll(&*other).await.iter().all(|held| held.attempt == 2));
    let (syncs, leases) =
        (positions(&sys.calls(), "sync ."), positions(&sys.calls(), "lease.2.json"));
    assert_eq!((syncs.len(), leases.len()), (3, 3));
    assert!(leases.iter().max() < syncs.iter().min(), "{:#?}", sys.calls());
    // If that fails, nobody has it, and it can be had again.
    site.pass(LEASE * 2);
    let (third, sys) = site.faulty(settings()).await;
    sys.refuse("sync .", Some(Errno::IO));
    assert!(third.poll(dfq::PollRequest::new(3)).await.is_err());
    sys.refuse("sync .", None);
    let again = poll(&*third).await;
    assert_eq!((again.len(), again[0].earlier.lost), (3, 2));
}
