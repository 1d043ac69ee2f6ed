//! A worker on a bucket: what it asks for, and that nothing its handlers do costs it its leases.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

#[path = "bucket/elsewhere.rs"]
mod elsewhere;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{ManualClock, SeededChance};
use dfq::meter::{Meter, RequestKind};
use dfq::store::{ObjectsExt as _, Tree as _};
use dfq::worker::{Job, Report, Until, Worker};
use dfq::{Env, ErrorKind, PollRequest, TaskId};
use dfq_s3_server::Fault;
use elsewhere::{Elsewhere, task, until};

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
    let lease = Duration::from_secs(600);
    let report = runtime.block_on(async {
        let queue = elsewhere.queue_in(elsewhere.env(), lease, &Meter::default()).await;
        queue.push(vec![task(1)]).await.remove(0).unwrap();
        let server = Arc::clone(&elsewhere);
        let handler = move |job: Job| {
            let every = job.queue.heartbeat_every(lease);
            for _ in 0..lease.as_secs() / every.as_secs() + 2 {
                let before = server.leases();
                server.pass(every);
                while server.leases() == before && !job.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                std::thread::sleep(Duration::from_millis(50)); // it looks around after the write
            }
            async { Ok::<(), dfq::Error>(()) }
        };
        let worker = Worker::new(queue, handler).env(elsewhere.env()).until(Until::Idle);
        worker.run().await.unwrap()
    });
    (report.completed, report.lost)
}

/// All slots are busy, and the next heartbeat is twenty minutes away. What an operator cancels stays cancelled,
/// whatever its handler says.
#[test]
fn a_cancel_is_told_within_ten_seconds_and_no_ack_overrides_it() {
    let elsewhere = Elsewhere::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // It stands still, but for what passes below: so ten seconds are ten, however slow the machine.
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
    let lease = Duration::from_secs(3600);
    let open = || runtime.block_on(elsewhere.queue_in(env.clone(), lease, &Meter::default()));
    let (queue, operator) = (open(), open());
    assert_eq!(queue.heartbeat_every(lease), lease / 3);
    for pushed in runtime.block_on(queue.push(vec![task(1), task(2)])) {
        pushed.unwrap();
    }
    let (held, told) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(Mutex::new(Vec::new())));
    let (holds, tells) = (Arc::clone(&held), Arc::clone(&told));
    let handler = move |job: Job| {
        let (id, receipt) = (job.delivery.id().to_string(), job.delivery.receipt.clone());
        holds.lock().unwrap().insert(id.clone(), receipt);
        let tells = Arc::clone(&tells);
        async move {
            job.cancelled().await;
            tells.lock().unwrap().push(id);
            Ok::<(), dfq::Error>(()) // though it is not
        }
    };
    let worker = Worker::new(Arc::clone(&queue), handler).env(env.clone());
    let running = runtime.spawn(worker.concurrency(2).limit(2).cleanup(lease).run());
    until("both are at work", || held.lock().unwrap().len() == 2);
    let held = held.lock().unwrap().clone();
    for (n, name) in ["t1", "t2"].into_iter().enumerate() {
        let cancelling = operator.cancel(vec![TaskId::new(name).unwrap()], "no".to_owned());
        let cancelled = runtime.block_on(cancelling).remove(0).unwrap();
        assert_eq!(cancelled.held_by.as_deref(), Some(queue.worker_id()));
        assert_eq!(told.lock().unwrap().len(), n, "it is not told before anybody asks");
        for _ in 0..2 {
            clock.advance(Duration::from_secs(5));
        }
        until("its handler is told", || told.lock().unwrap().len() > n);
        assert_eq!(told.lock().unwrap()[n], name);
        // Its handler has said that it is done, and here it is said once more. (An ack before it is told would
        // still count in a bucket, by decision 17.)
        let acked = runtime.block_on(queue.ack(vec![held[name].clone()])).remove(0);
        let kind = acked.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted), "{kind:?}");
    }
    let report = runtime.block_on(running).unwrap().unwrap();
    assert_eq!(report, Report { lost: 2, ..Report::default() });
    let objects = elsewhere.server.objects();
    let records = |place: &'static str| objects.iter().filter(move |(key, _)| key.contains(place));
    assert_eq!((records("/completed/").count(), records("/failed/").count()), (0, 2));
    for (_, record) in records("/failed/") {
        let record: serde_json::Value = serde_json::from_slice(record).unwrap();
        assert_eq!(record["_dfq"]["cancelled"], true, "{record}");
    }
}

/// Nobody waits for an ack: the next task is claimed while the last one's record is being written. But
/// with records that take for ever, no worker gathers more and more tasks.
#[test]
fn the_next_task_does_not_wait_for_the_last_ones_record() {
    let elsewhere = Elsewhere::start();
    elsewhere.server.on(move |request| {
        let record = request.op == "PutObject" && request.key.contains("/completed/");
        (record && request.nth == 1).then_some(Fault::Delay(Duration::from_secs(3600)))
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // The record is written anew after a while, but not before this clock says so.
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
    let lease = Duration::from_secs(24 * 3600);
    let queue = runtime.block_on(elsewhere.queue_in(env.clone(), lease, &Meter::default()));
    for pushed in runtime.block_on(queue.push((0..3).map(task).collect())) {
        pushed.unwrap();
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (started, settled) = (Arc::clone(&seen), Arc::clone(&seen));
    let handler = move |_: Job| {
        started.lock().unwrap().push("started");
        async { Ok::<(), dfq::Error>(()) }
    };
    let worker = Worker::new(queue, handler).env(env).until(Until::Drained);
    let worker = worker.observe(move |_| settled.lock().unwrap().push("settled"));
    let running = runtime.spawn(worker.run());
    until("the next one", || seen.lock().unwrap().len() >= 2);
    until("the end", || {
        clock.advance(Duration::from_millis(100));
        running.is_finished()
    });
    assert_eq!(runtime.block_on(running).unwrap().unwrap().completed, 3);
    let seen = seen.lock().unwrap();
    let first = seen.iter().take_while(|what| **what == "started").count();
    assert_eq!((first, seen.len()), (2, 6), "{seen:?}");
    runtime.shutdown_background();
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
    let queue = elsewhere.queue_in(Env::system(), lease, &pushed).await;
    for answer in queue.push((0..TASKS as usize).map(task).collect()).await {
        answer.unwrap();
    }
    let counts = pushed.counts();
    let sent = |kind| counts.get(&kind).map_or(0, |count| count.sent);
    assert!(sent(Put) <= TASKS + FEW, "{counts:?}");
    assert!(sent(Get) + sent(Head) <= 2 * TASKS + FEW, "{counts:?}");
    assert_eq!(sent(List), 1, "only to make the queue: {counts:?}");

    let worked = Meter::default();
    let queue = elsewhere.queue_in(Env::system(), lease, &worked).await;
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
        elsewhere.queue_in(Env::system(), lease, &Meter::default()).await,
        elsewhere.queue_in(Env::system(), lease, &Meter::default()).await,
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
        let queue = elsewhere.queue_in(Env::system(), Duration::from_secs(600), &meter).await;
        assert!(queue.poll(PollRequest::new(16)).await.unwrap().deliveries.is_empty());
        let before = meter.counts();
        assert!(queue.poll(PollRequest::new(16)).await.unwrap().deliveries.is_empty());
        let sent = dfq::meter::since(&meter.counts(), &before);
        assert_eq!(sent[&RequestKind::List].sent, 2, "{sent:?}");
        assert!(!sent.contains_key(&RequestKind::Put), "{sent:?}");
    });
}
