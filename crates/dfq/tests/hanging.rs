//! Leases when calls hang, and when somebody takes a task away: a handler is told by its own worker's clock,
//! or within seconds of an operator's word.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "calls really hang")]

mod support;

use std::collections::HashSet;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::worker::{Job, Report, Until, Verdict, Worker};
use dfq::{ErrorKind, Queue, Settings};
use rustix::io::Errno;
use support::{Place, id, poll, push};

const LEASE: Duration = Duration::from_secs(600);

fn settings() -> Settings {
    Settings { lease: LEASE, ..Settings::default() }
}

/// Handlers that never end by themselves, and who has been told to.
#[derive(Clone, Default)]
struct Told {
    started: Arc<tokio::sync::Notify>,
    told: Arc<Mutex<HashSet<String>>>,
}

impl Told {
    fn handler(&self) -> impl Fn(Job) -> futures::future::BoxFuture<'static, Verdict> + use<> {
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
    let place = Place::new();
    let (queue, sys) = place.faulty(settings()).await;
    push(&*queue, "a").await;
    let told = Told::default();
    let worker = Worker::new(queue.clone(), told.handler()).env(place.env()).cleanup(LEASE);
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    told.started.notified().await;
    let (heal, healed) = mpsc::channel::<()>();
    let (hung, hangs) = mpsc::channel();
    sys.before_change(0, move || {
        hung.send(()).unwrap();
        let _ = healed.recv();
    });
    place.pass(queue.heartbeat_every(LEASE));
    tokio::task::spawn_blocking(move || hangs.recv()).await.unwrap().unwrap();
    assert!(told.told.lock().unwrap().is_empty(), "its lease still holds");
    place.pass(LEASE);
    told.until_told("a").await;
    drop(heal);
    stopper.stop_now();
    place.pass(LEASE);
    assert_eq!(running.await.unwrap().unwrap().completed, 0);
}

/// All slots are busy, and the next heartbeat is a minute away.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_is_told_soon_that_its_task_was_taken_away() {
    for unlock in [false, true] {
        let place = Place::new();
        let (queue, _) = place.faulty(settings()).await;
        let (operator, _) = place.faulty(settings()).await;
        push(&*queue, "a").await;
        let told = Told::default();
        let worker = Worker::new(queue.clone(), told.handler()).env(place.env());
        let stopper = worker.stopper();
        let running = tokio::spawn(worker.run());
        told.started.notified().await;
        // The worker has looked once, and looks again.
        place.pass(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(300)).await;
        operator.pause(None).await.unwrap();
        if unlock {
            operator.unlock(vec![id("a")]).await.remove(0).unwrap();
        } else {
            let cancelled = operator.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap();
            assert_eq!(cancelled.held_by.as_deref(), Some(queue.worker_id()));
        }
        // Two looks, and far less than what is between two heartbeats.
        for _ in 0..2 {
            place.pass(Duration::from_secs(5));
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
        let place = Place::new();
        let (queue, sys) = place.faulty(settings()).await;
        push(&*queue, "a").await;
        sys.refuse("lease", Some(Errno::NOSPC));
        sys.refuse("tmp", Some(Errno::NOSPC));
        let handler = |_: Job| async { Verdict::Ack };
        let running = tokio::spawn(Worker::new(queue, handler).env(place.env()).until(until).run());
        while !running.is_finished() {
            place.pass(Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(running.await.unwrap().unwrap_err().kind(), ErrorKind::Full);
    }
}

/// Its number is on the disk before anybody hears of it; the first attempt waits for nothing.
#[tokio::test]
async fn a_later_attempt_is_durable_before_it_is_handed_out() {
    let place = Place::new();
    let (queue, sys) = place.faulty(settings()).await;
    push(&*queue, "a").await;
    let syncs = || sys.calls().iter().filter(|call| *call == "sync .").count();
    sys.arm(None);
    assert_eq!((poll(&*queue).await.len(), syncs()), (1, 0));
    place.pass(LEASE * 2);
    let (other, sys) = place.faulty(settings()).await;
    sys.arm(None);
    let syncs = || sys.calls().iter().filter(|call| *call == "sync .").count();
    assert_eq!((poll(&*other).await.remove(0).attempt, syncs()), (2, 1));
    // If that fails, nobody has it.
    place.pass(LEASE * 2);
    let (third, sys) = place.faulty(settings()).await;
    sys.refuse("sync .", Some(Errno::IO));
    assert!(third.poll(dfq::PollRequest::new(1)).await.is_err());
}
