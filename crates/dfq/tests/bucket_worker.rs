//! A worker on a bucket: what it asks for, and that nothing its handlers do costs it its leases.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{ManualClock, SeededChance, SkippingClock, SystemChance};
use dfq::meter::{Meter, RequestKind};
use dfq::store::Tree;
use dfq::store::bucket::{Bucket, S3Options};
use dfq::worker::{Job, Until, Worker};
use dfq::{Env, NewTask, OpenOptions, PollRequest, Queue, Settings, TaskId, TreeQueue};
use dfq_s3_server::{Fault, Lies, Options, Server};

/// A server with a runtime of its own, so that nothing here can hold it up.
struct Elsewhere {
    server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl Elsewhere {
    fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(Options::default())).unwrap();
        Self { server, _runtime: runtime }
    }

    async fn bucket(&self, env: Env, meter: &Meter) -> Bucket {
        let (key, secret) = (self.server.access_key(), self.server.secret_key());
        let s3 = S3Options {
            endpoint: Some(self.server.endpoint()),
            region: Some("us-east-1".to_owned()),
            credentials: Some((key.to_owned(), secret.to_owned())),
            ..S3Options::default()
        };
        Bucket::s3(self.server.bucket(), "jobs", s3, env, meter.clone()).await.unwrap()
    }

    async fn queue(&self, lease: Duration, meter: &Meter) -> Arc<dyn Queue> {
        let bucket = self.bucket(Env::system(), meter).await;
        let create = Some(Settings { lease, ..Settings::default() });
        let options = OpenOptions { create, ..OpenOptions::default() };
        Arc::new(TreeQueue::open(bucket, options).await.unwrap())
    }

    /// The leases as they are.
    fn leases(&self) -> Vec<String> {
        let objects = self.server.objects().into_iter();
        let leases = objects.filter(|(key, _)| key.ends_with("/lease.json"));
        leases.map(|(_, object)| format!("{object:?}")).collect()
    }
}

fn task(n: usize) -> NewTask {
    NewTask::from_json("{}").unwrap().id(TaskId::new(format!("t{n}")).unwrap())
}

/// The handler blocks the only thread of the worker's runtime for longer than the lease. Heartbeats go
/// on all the same, over connections of their own.
#[test]
fn a_handler_that_blocks_keeps_its_task() {
    // Time may jump in the middle of a renewal, if this machine stalls there. That spoils a round, not all.
    assert!((0..5).any(|_| block_for_longer_than_a_lease() == (1, 0)));
}

/// How many tasks were completed, and how many lost.
fn block_for_longer_than_a_lease() -> (u64, u64) {
    let elsewhere = Arc::new(Elsewhere::start());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (lease, clock) = (Duration::from_secs(600), SkippingClock::default());
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SystemChance));
    let report = runtime.block_on(async {
        let bucket = elsewhere.bucket(env.clone(), &Meter::default()).await;
        let create = Some(Settings { lease, ..Settings::default() });
        let options = OpenOptions { env: env.clone(), create, ..OpenOptions::default() };
        let queue = TreeQueue::open(bucket, options).await.unwrap();
        queue.push(vec![task(1)]).await.remove(0).unwrap();
        let server = Arc::clone(&elsewhere);
        let handler = move |job: Job| {
            let every = job.queue.heartbeat_every(lease);
            for passed in 1..=lease.as_secs() / every.as_secs() + 2 {
                let before = server.leases();
                let clock_offset_ms = i64::try_from(every.as_millis()).unwrap() * passed as i64;
                server.server.set_lies(Lies { clock_offset_ms, ..Lies::default() });
                clock.skip(every, Duration::ZERO);
                while server.leases() == before && !job.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                std::thread::sleep(Duration::from_millis(50)); // it looks around after the write
            }
            async { Ok::<(), dfq::Error>(()) }
        };
        Worker::new(Arc::new(queue), handler).env(env).until(Until::Idle).run().await.unwrap()
    });
    (report.completed, report.lost)
}

/// Nobody waits for an ack: the next task is claimed while the last one's record is being written. But
/// with records that take for ever, no worker gathers more and more tasks.
#[test]
fn the_next_task_does_not_wait_for_the_last_ones_record() {
    let elsewhere = Elsewhere::start();
    let slow = Fault::Delay(Duration::from_secs(10));
    elsewhere.server.on(move |request| {
        let record = request.op == "PutObject" && request.key.contains("/completed/");
        (record && request.nth == 1).then_some(slow)
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let queue = elsewhere.queue(Duration::from_secs(600), &Meter::default()).await;
        queue.push((0..3).map(task).collect()).await;
        let (started, settled) = (Arc::clone(&seen), Arc::clone(&seen));
        let handler = move |_: Job| {
            started.lock().unwrap().push("started");
            async { Ok::<(), dfq::Error>(()) }
        };
        let worker = Worker::new(queue, handler).until(Until::Drained);
        worker.observe(move |_| settled.lock().unwrap().push("settled")).run().await.unwrap();
    });
    let seen = seen.lock().unwrap();
    assert_eq!(seen.iter().take_while(|what| **what == "started").count(), 2, "{seen:?}");
    assert_eq!(seen.len(), 6, "{seen:?}");
}

/// Push: one PUT, and two looks for an id that the caller chose. Claim: one PUT and three looks. Ack: one
/// PUT. Listings for hundreds of tasks at a time.
#[test]
fn a_task_takes_few_requests() {
    let elsewhere = Elsewhere::start();
    tokio::runtime::Runtime::new().unwrap().block_on(a_task_takes_few_requests_on(&elsewhere));
}

async fn a_task_takes_few_requests_on(elsewhere: &Elsewhere) {
    use RequestKind::{Get, Head, List, Put};
    const TASKS: u64 = 1000;
    // For opening the queue, the worker's own record, and what the doctor said.
    const FEW: u64 = 10;
    let lease = Duration::from_secs(600);
    let pushed = Meter::default();
    let queue = elsewhere.queue(lease, &pushed).await;
    for answer in queue.push((0..TASKS as usize).map(task).collect()).await {
        answer.unwrap();
    }
    let counts = pushed.counts();
    let sent = |kind| counts.get(&kind).map_or(0, |count| count.sent);
    assert!(sent(Put) <= TASKS + FEW, "{counts:?}");
    assert!(sent(Get) + sent(Head) <= 2 * TASKS + FEW, "{counts:?}");
    assert_eq!(sent(List), 1, "only to make the queue: {counts:?}");

    let worked = Meter::default();
    let queue = elsewhere.queue(lease, &worked).await;
    let report = Worker::new(queue, |_: Job| async { Ok::<(), dfq::Error>(()) })
        .concurrency(16)
        .until(Until::Drained)
        .run()
        .await
        .unwrap();
    assert_eq!(report.completed, TASKS);
    let counts = worked.counts();
    let sent = |kind| counts.get(&kind).map_or(0, |count| count.sent);
    assert!(sent(Put) <= 2 * TASKS + FEW, "{counts:?}");
    // A poll that has no candidate left asks for two marks which are not there, and lists. There are more
    // of them at the end, for as long as it takes, but far from one for every 16 tasks.
    let marks = counts[&Get].no;
    assert!(sent(Get) - marks + sent(Head) <= 3 * TASKS + FEW, "{counts:?}");
    assert!(marks <= TASKS / 16 && sent(List) <= TASKS / 25, "{counts:?}");
}

/// A worker that has never seen the queue finds a task that was just given back, however young its lease.
#[test]
fn what_was_just_given_back_is_found_at_once() {
    let elsewhere = Elsewhere::start();
    tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(what_was_just_given_back_is_found_at_once_on(&elsewhere));
}

async fn what_was_just_given_back_is_found_at_once_on(elsewhere: &Elsewhere) {
    let lease = Duration::from_secs(600);
    let (alice, bob) = (
        elsewhere.queue(lease, &Meter::default()).await,
        elsewhere.queue(lease, &Meter::default()).await,
    );
    alice.push(vec![task(1)]).await.remove(0).unwrap();
    let held = alice.poll(PollRequest::new(1)).await.unwrap().deliveries.remove(0);
    assert!(bob.poll(PollRequest::new(1)).await.unwrap().deliveries.is_empty());
    alice.release(vec![dfq::Release::now(held.receipt)]).await.remove(0).unwrap();
    assert_eq!(bob.poll(PollRequest::new(1)).await.unwrap().deliveries.len(), 1);
}

/// A process that slept for longer than records are kept must not remove what it meant to before: the
/// name may stand for a new task by now. What it leaves has a record, or has gone.
#[test]
fn what_was_put_off_for_too_long_is_not_removed() {
    let elsewhere = Elsewhere::start();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for (slept, left) in [(Duration::from_secs(1), false), (Duration::from_secs(3600), true)] {
            let clock = ManualClock::default();
            let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
            let bucket = elsewhere.bucket(env, &Meter::default()).await;
            let folder = "pending/ca/a".to_owned();
            let file = (folder.clone(), b"{}".to_vec());
            bucket.publish(&[file], true).await.remove(0).unwrap();
            bucket.discard(vec![(&folder, Vec::new())]).await.remove(0).unwrap();
            clock.advance(slept);
            bucket.flush().await.unwrap();
            let there = bucket.read("pending/ca/a/task.json").await.unwrap().is_some();
            assert_eq!(there, left, "{slept:?}");
        }
    });
}

/// A poll that finds nothing lists the tasks once and the schedule once, however many workers there are.
#[test]
fn a_poll_of_an_empty_queue_takes_few_requests() {
    let elsewhere = Elsewhere::start();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let meter = Meter::default();
        let queue = elsewhere.queue(Duration::from_secs(600), &meter).await;
        assert!(queue.poll(PollRequest::new(16)).await.unwrap().deliveries.is_empty());
        let before = meter.counts();
        assert!(queue.poll(PollRequest::new(16)).await.unwrap().deliveries.is_empty());
        let sent = dfq::meter::since(&meter.counts(), &before);
        assert_eq!(sent[&RequestKind::List].sent, 2, "{sent:?}");
        assert!(!sent.contains_key(&RequestKind::Put), "{sent:?}");
    });
}

/// No request is answered any more; or only those for one lease. Handlers are told when their leases end, by
/// the worker's own clock, and those whose leases can be renewed are not.
#[test]
fn requests_that_hang_do_not_stretch_a_lease() {
    assert_eq!(told_while_requests_hang(true), ["t1", "t2"]);
    // Time may jump in the middle of a renewal, if this machine stalls there. That spoils a round, not all.
    assert!((0..5).any(|_| told_while_requests_hang(false) == ["t1"]));
}

/// Which handlers are told to stop while all requests hang, or those for the lease of `t1`.
fn told_while_requests_hang(everything: bool) -> Vec<String> {
    let elsewhere = Elsewhere::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (lease, clock) = (Duration::from_secs(600), SkippingClock::default());
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SystemChance));
    let told = runtime.block_on(async {
        let bucket = elsewhere.bucket(env.clone(), &Meter::default()).await;
        let create = Some(Settings { lease, ..Settings::default() });
        let options = OpenOptions { env: env.clone(), create, ..OpenOptions::default() };
        let queue = Arc::new(TreeQueue::open(bucket, options).await.unwrap());
        let every = queue.heartbeat_every(lease);
        queue
            .push(vec![task(1), task(2)])
            .await
            .into_iter()
            .for_each(|pushed| drop(pushed.unwrap()));
        let (started, told) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (starts, tells) = (Arc::clone(&started), Arc::clone(&told));
        let handler = move |job: Job| {
            *starts.lock().unwrap() += 1;
            let tells = Arc::clone(&tells);
            async move {
                job.cancelled().await;
                tells.lock().unwrap().push(job.delivery.id().to_string());
                std::future::pending::<Result<(), dfq::Error>>().await
            }
        };
        let worker = Worker::new(queue, handler).env(env).concurrency(2).cleanup(lease * 9);
        let running = tokio::spawn(worker.run());
        let wait = || tokio::time::sleep(Duration::from_millis(5));
        while *started.lock().unwrap() < 2 {
            wait().await;
        }
        elsewhere.server.on(move |request| {
            let hangs = everything || request.key.contains("/t1/lease");
            hangs.then_some(Fault::Delay(Duration::from_secs(3600)))
        });
        if everything {
            clock.skip(lease, Duration::ZERO);
            while told.lock().unwrap().len() < 2 {
                wait().await;
            }
        } else {
            for passed in 1..=2_i64 {
                let before = elsewhere.leases();
                let clock_offset_ms = i64::try_from(every.as_millis()).unwrap() * passed;
                elsewhere.server.set_lies(Lies { clock_offset_ms, ..Lies::default() });
                clock.skip(every, Duration::ZERO);
                while elsewhere.leases() == before {
                    wait().await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            clock.skip(every, Duration::ZERO);
            while told.lock().unwrap().is_empty() {
                wait().await;
            }
        }
        running.abort();
        let mut told = told.lock().unwrap().clone();
        told.sort();
        told
    });
    runtime.shutdown_background();
    told
}
