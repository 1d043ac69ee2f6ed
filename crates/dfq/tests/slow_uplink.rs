//! Pushes over a line that is slow in relation to what goes over it. Time passes as the line carries bytes, so it is
//! the line that is slow, not the machine, and nobody waits for it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dfq::clock::{Clock, SystemChance, SystemClock};
use dfq::meter::Meter;
use dfq::options::S3Options;
use dfq::store::bucket::Bucket;
use dfq::{Env, NewTask, OpenOptions, Pushed, Queue, Settings, TaskId, TreeQueue};
use dfq_s3_server::{Link, Options, Server};

/// The machine's clock, put forward by what the line carries.
#[derive(Clone, Debug, Default)]
struct LineClock {
    nanos: Arc<AtomicU64>,
    moved: Arc<tokio::sync::Notify>,
}

impl LineClock {
    fn pass(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Ordering::SeqCst);
        self.moved.notify_waiters();
    }

    fn ahead(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }
}

impl Clock for LineClock {
    fn wall(&self) -> jiff::Timestamp {
        SystemClock.wall() + self.ahead()
    }
    fn monotonic(&self) -> Duration {
        SystemClock.monotonic() + self.ahead()
    }
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (clock, until) = (self.clone(), self.monotonic().saturating_add(duration));
        Box::pin(async move {
            loop {
                let moved = clock.moved.notified();
                let left = until.saturating_sub(clock.monotonic());
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = moved => {}
                    () = SystemClock.sleep(left) => {}
                }
            }
        })
    }
}

/// What is pushed, over what.
struct Uplink {
    tasks: usize,
    bytes_each: usize,
    bytes_a_second: u64,
}

/// Pushes it all at once. Every task is answered as created, and is there.
fn all_are_pushed(uplink: &Uplink) {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    // The server and the line have threads of their own, so that nothing here holds them up.
    let (elsewhere, here) = (runtime(), runtime());
    let server = elsewhere.block_on(Server::start(Options::default())).unwrap();
    let clock = LineClock::default();
    let (passing, a_byte) = (clock.clone(), 1_000_000_000 / uplink.bytes_a_second);
    let on_piece = move |bytes: usize| passing.pass(bytes as u64 * a_byte);
    let link = elsewhere.block_on(Link::start(&server.endpoint(), on_piece)).unwrap();
    let env = Env::new(Arc::new(clock), Arc::new(SystemChance));
    let s3 = S3Options {
        endpoint: Some(link.endpoint()),
        region: Some("us-east-1".to_owned()),
        credentials: Some((server.access_key().to_owned(), server.secret_key().to_owned())),
        ..S3Options::default()
    };
    let meter = Meter::default();
    let ids: BTreeSet<String> = (0..uplink.tasks).map(|n| format!("t{n}")).collect();
    let json = format!("\"{}\"", "x".repeat(uplink.bytes_each));
    let task = |id: &String| NewTask::from_json(&json).unwrap().id(TaskId::new(id).unwrap());
    let tasks: Vec<NewTask> = ids.iter().map(task).collect();
    let answers = here.block_on(async {
        let bucket = Bucket::s3(server.bucket(), "jobs", s3, env.clone(), meter.clone()).await;
        let create = Some(Settings::default());
        let options = OpenOptions { env, create, ..OpenOptions::default() };
        TreeQueue::open(bucket.unwrap(), options).await.unwrap().push(tasks).await
    });
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} of {}, such as {}", failed.len(), answers.len(), failed[0]);
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Pushed::Created(_)))));
    let keys = server.objects().into_keys();
    let there = keys.filter_map(|key| Some(key.strip_suffix("/task.json")?.to_owned()));
    let there: BTreeSet<String> =
        there.map(|dir| dir.rsplit('/').next().unwrap().to_owned()).collect();
    assert_eq!(there, ids);
    here.shutdown_background();
    elsewhere.shutdown_background();
}

/// Twelve seconds for one task, which is longer than a small request may take.
#[test]
fn one_large_task() {
    all_are_pushed(&Uplink { tasks: 1, bytes_each: 12_000_000, bytes_a_second: 1_000_000 });
}

/// Sixty-four at once take half a minute, each of them a second and a half of its own.
#[test]
fn many_tasks_that_share_a_line() {
    all_are_pushed(&Uplink { tasks: 200, bytes_each: 100_000, bytes_a_second: 200_000 });
}

/// Slower than any request expects. Only because fewer are sent at once do they come through.
#[test]
fn a_line_that_is_too_slow_for_many_at_once() {
    all_are_pushed(&Uplink { tasks: 100, bytes_each: 100_000, bytes_a_second: 25_000 });
}
