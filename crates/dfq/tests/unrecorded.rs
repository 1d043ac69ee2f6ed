//! Results that the store will not take note of: the task is given back, and no worker goes on for nothing.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::store::fs::fault::Fault;
use dfq::worker::{Became, Job, Report, TaskResult, Until, Worker};
use dfq::{ErrorKind, Settings};
use rustix::io::Errno;
use support::{Site, poll, push};

/// So long that no stall of this machine outlasts it, however fast the tests let time pass.
const LEASE: Duration = Duration::from_secs(6 * 3600);

fn settings() -> Settings {
    Settings { lease: LEASE, ..Settings::default() }
}

async fn ack(_: Job) -> TaskResult {
    TaskResult::Ack
}

/// Lets time pass until the worker has ended.
async fn ended(site: &Site, worker: Worker) -> dfq::Result<Report> {
    let running = tokio::spawn(worker.env(site.env()).run());
    let mut passed = Duration::ZERO;
    while !running.is_finished() {
        assert!(passed < LEASE, "it goes on for ever");
        passed += Duration::from_secs(5);
        site.pass(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.await.unwrap()
}

/// The only task can be claimed again after a while, and nothing is held against it.
async fn assert_given_back(site: &Site, attempt: u32) {
    let (other, _) = site.faulty(settings()).await;
    site.pass(Duration::from_secs(2 * 3600));
    let again = poll(&*other).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].attempt, attempt);
    assert_eq!((again[0].earlier.lost, again[0].earlier.failed), (0, 0));
}

#[tokio::test]
async fn a_worker_whose_results_are_refused_gives_back_and_ends() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings { max_lost: 1, ..settings() }).await;
    push(&*queue, "a").await;
    sys.refuse("completed", Some(Errno::ACCESS));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&seen);
    let worker =
        Worker::new(queue, ack).observe(move |settled| heard.lock().unwrap().push(settled.became));
    assert_eq!(ended(&site, worker).await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(*seen.lock().unwrap(), [Became::Unrecorded; 3]);
    assert_given_back(&site, 4).await;
}

/// What can be recorded in between shows that not all is lost.
#[tokio::test]
async fn a_worker_that_records_something_now_and_then_goes_on() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    sys.refuse("completed", Some(Errno::ACCESS));
    let handler = |job: Job| async move {
        match job.delivery.attempt % 3 {
            0 => TaskResult::Release { reason: None, delay: None },
            _ => TaskResult::Ack,
        }
    };
    let report = ended(&site, Worker::new(queue, handler).limit(6)).await.unwrap();
    assert_eq!(report, Report { unrecorded: 4, released: 2, ..Report::default() });
}

/// One call is refused, once.
#[tokio::test]
async fn a_single_refusal_ends_nothing() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let handler = move |_: Job| {
        sys.arm(Some(Fault::Fail(0, Errno::ACCESS)));
        async { TaskResult::Ack }
    };
    let report = ended(&site, Worker::new(queue, handler).until(Until::Drained)).await.unwrap();
    assert_eq!(report, Report { completed: 1, ..Report::default() });
}

/// Somebody mends the permissions twenty seconds later.
#[tokio::test]
async fn a_refusal_that_is_mended_soon_costs_nothing() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    sys.refuse("completed", Some(Errno::ROFS));
    let worker = Worker::new(queue, ack).env(site.env()).until(Until::Drained);
    let running = tokio::spawn(worker.run());
    while !sys.calls().iter().any(|call| call.contains("completed")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..20 {
        site.pass(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sys.refuse("completed", None);
    while !running.is_finished() {
        site.pass(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(running.await.unwrap().unwrap(), Report { completed: 1, ..Report::default() });
}

/// A worker that ends by itself does not wait for ever for room to write its results.
#[tokio::test]
async fn a_full_disk_at_the_ack_ends_a_worker_that_ends_by_itself() {
    for until in [Until::Idle, Until::Drained] {
        let site = Site::new();
        let (queue, sys) = site.faulty(settings()).await;
        push(&*queue, "a").await;
        sys.refuse("completed", Some(Errno::NOSPC));
        let worker = Worker::new(queue, ack).until(until);
        assert_eq!(ended(&site, worker).await.unwrap_err().kind(), ErrorKind::Full);
        assert_given_back(&site, 2).await;
    }
}

/// A folder on a bad stretch of the disk. Heartbeats go through, so nobody else would ever have the task.
#[tokio::test]
async fn a_record_that_cannot_be_written_is_not_tried_for_ever() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    sys.refuse("completed", Some(Errno::IO));
    let report = ended(&site, Worker::new(queue, ack).limit(1)).await.unwrap();
    assert_eq!(report, Report { unrecorded: 1, ..Report::default() });
    assert_given_back(&site, 2).await;
}

/// No heartbeat goes through either: then what was done is kept, until the lease ends.
#[tokio::test]
async fn a_store_that_is_down_as_a_whole_is_waited_for() {
    let site = Site::new();
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let down = sys.clone();
    let handler = move |_: Job| {
        down.refuse("", Some(Errno::IO));
        async { TaskResult::Ack }
    };
    let worker = Worker::new(queue, handler).env(site.env()).limit(1);
    let running = tokio::spawn(worker.run());
    for _ in 0..(2 * 3600 / 5) {
        site.pass(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!running.is_finished());
    sys.refuse("", None);
    while !running.is_finished() {
        site.pass(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(running.await.unwrap().unwrap(), Report { completed: 1, ..Report::default() });
}
