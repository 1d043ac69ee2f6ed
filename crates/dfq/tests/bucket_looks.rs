//! What it costs to look at a bucket, counted in requests: pages of keys, and little else, however many tasks
//! there are.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a real server has real times")]

#[path = "bucket/elsewhere.rs"]
mod elsewhere;

use std::time::Duration;

use dfq::meter::{self, Meter, RequestKind};
use dfq::queue::{Detail, ListCursor, Place, TaskState, WorkerRecord};
use dfq::{Env, ErrorKind, Nack, NewTask, PollRequest, Queue, TaskId};
use dfq_s3_server::Fault;
use elsewhere::Elsewhere;

const LEASE: Duration = Duration::from_secs(600);

fn run<R>(test: impl AsyncFnOnce(&Elsewhere) -> R) -> R {
    let elsewhere = Elsewhere::start();
    tokio::runtime::Runtime::new().unwrap().block_on(test(&elsewhere))
}

/// Requests of each kind: LIST, GET and HEAD, PUT.
async fn spent<R>(meter: &Meter, verb: impl Future<Output = R>) -> ([u64; 3], R) {
    let before = meter.counts();
    let answer = verb.await;
    let sent = meter::since(&meter.counts(), &before);
    // What a stall lets fail is sent again, and does not count.
    let of = |kind| sent.get(&kind).map_or(0, |count| count.sent - count.failed);
    let reads = of(RequestKind::Get) + of(RequestKind::Head);
    ([of(RequestKind::List), reads, of(RequestKind::Put)], answer)
}

async fn push_all(queue: &dyn Queue, tasks: Vec<NewTask>) {
    for answer in queue.push(tasks).await {
        answer.unwrap();
    }
}

fn tasks(from: usize, to: usize) -> impl Iterator<Item = NewTask> {
    (from..to).map(|n| NewTask::from_json(&format!(r#"{{"id":"t{n}","n":{n}}}"#)).unwrap())
}

/// A queue with so many tasks that wait for a worker, and 300 that have a lease: two thirds of these are held, the
/// others in backoff.
async fn filled(elsewhere: &Elsewhere, ready: usize) {
    let meter = Meter::default();
    let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
    push_all(&*queue, tasks(0, 300).collect()).await;
    let mut held = Vec::new();
    while held.len() < 300 {
        held.extend(queue.poll(PollRequest::new(300)).await.unwrap().deliveries);
    }
    let again = |delay| move |receipt| Nack { receipt, error: "no".into(), delay: Some(delay) };
    let nacks = held.into_iter().take(100).map(|held| held.receipt);
    for answer in queue.nack(nacks.map(again(Duration::from_secs(7200))).collect()).await {
        answer.unwrap();
    }
    push_all(&*queue, tasks(300, 300 + ready).collect()).await;
    queue.close().await;
}

#[test]
fn counting_goes_by_the_pages() {
    let costs = [1_000, 5_000].map(reads_for_counting);
    assert_eq!(costs[0], costs[1], "the same number of reads for any number of tasks");
    assert!(costs[0] <= 110, "{costs:?}");
}

fn reads_for_counting(ready: usize) -> u64 {
    run(async |elsewhere| {
        filled(elsewhere, ready).await;
        let meter = Meter::default();
        let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        let (cost, stats) = spent(&meter, queue.stats(Detail::States)).await;
        let stats = stats.unwrap();
        assert_eq!((stats.pending, stats.estimates.pending), (ready as u64 + 300, false));
        let states = stats.states.unwrap();
        assert_eq!(states.ready, ready as u64);
        assert!(stats.estimates.states, "of 300 that have a lease 100 were looked into");
        assert_eq!(states.leased + states.backoff, 300, "{states:?}");
        assert!((40..180).contains(&states.backoff), "about 100: {states:?}");
        assert!(states.oldest.is_some());
        let [listings, reads, writes] = cost;
        assert!(listings <= ready as u64 / 1000 + 40, "{cost:?}");
        assert_eq!(writes, 0, "looking leaves nothing");
        let for_counting = reads;
        // What it takes to know exactly is said, and taken.
        assert_eq!((stats.exact_reads, stats.exact_requests > 0), (300, true));
        let ([_, reads, writes], stats) = spent(&meter, queue.stats(Detail::Exact)).await;
        let stats = stats.unwrap();
        assert!(stats.is_exact());
        let states = stats.states.unwrap();
        assert_eq!((states.leased, states.backoff, states.stale), (200, 100, 0));
        assert!(reads <= 310 && writes == 0, "{reads} reads, {writes} writes");
        for_counting
    })
}

#[test]
fn a_brief_listing_reads_no_task() {
    run(async |elsewhere| {
        filled(elsewhere, 1_500).await;
        let meter = Meter::default();
        let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        let listing = async {
            let (mut cursor, mut views) =
                (Some(ListCursor::at(Place::Pending).briefly(50)), Vec::new());
            while let Some(from) = cursor.take().filter(|from| from.place() == Place::Pending) {
                let page = queue.list(Some(from)).await.unwrap();
                views.extend(page.tasks);
                cursor = page.next;
            }
            views
        };
        let ([listings, reads, writes], views) = spent(&meter, listing).await;
        assert_eq!(views.len(), 1_800);
        let count = |name| views.iter().filter(|view| view.state.name() == name).count();
        assert_eq!((count("ready"), count("claimed")), (1_500, 250));
        assert_eq!(count("leased") + count("backoff"), 50);
        assert!(views.iter().all(|view| view.meta.created_at.is_some()));
        // Its lease and its two records.
        assert!(listings <= 5 && reads <= 50 * 3 && writes == 0, "{listings}, {reads}, {writes}");
    });
}

#[test]
fn a_few_tasks_cost_a_few_reads() {
    run(async |elsewhere| {
        filled(elsewhere, 1_500).await;
        let meter = Meter::default();
        let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        let five = ListCursor::at(Place::Pending).at_most(5);
        let ([listings, reads, writes], page) = spent(&meter, queue.list(Some(five))).await;
        let page = page.unwrap();
        assert_eq!(page.tasks.len(), 5);
        assert!(page.tasks.iter().all(|view| view.payload.is_some()));
        assert!(listings <= 1 && reads <= 5 * 4 && writes == 0, "{listings}, {reads}, {writes}");
        let ([listings, reads, writes], seen) = spent(&meter, queue.peek(3)).await;
        let seen = seen.unwrap();
        assert!(seen.iter().all(|view| view.state == TaskState::Ready) && seen.len() == 3);
        assert!(listings <= 1 && reads <= 3 * 3 && writes == 0, "{listings}, {reads}, {writes}");
    });
}

/// Each at a time of its own.
#[test]
fn what_is_scheduled_is_listed_by_the_page() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        let later =
            |(n, task): (usize, NewTask)| task.delay(Duration::from_secs(3600 + 60 * n as u64));
        push_all(&*queue, tasks(0, 1_200).enumerate().map(later).collect()).await;
        let (cost, stats) = spent(&meter, queue.stats(Detail::Counts)).await;
        assert_eq!(stats.unwrap().scheduled, 1_200);
        assert!(cost[0] <= 8 && cost[1] <= 4, "{cost:?}");
        let (cost, view) = spent(&meter, queue.get(TaskId::new("t700").unwrap())).await;
        assert!(matches!(view.unwrap().unwrap().state, TaskState::Scheduled { .. }));
        assert!(cost[0] <= 6 && cost[1] <= 20, "{cost:?}");
        let id = vec![TaskId::new("t701").unwrap()];
        let (cost, cancelled) = spent(&meter, queue.cancel(id, "enough".into())).await;
        cancelled.into_iter().next().unwrap().unwrap();
        assert!(cost[0] <= 8 && cost[1] <= 30, "{cost:?}");
    });
}

/// One listing, and a read of each.
#[test]
fn a_record_of_each_worker_is_one_read() {
    run(async |elsewhere| {
        let meter = Meter::default();
        for n in 0..20 {
            let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
            let record = WorkerRecord {
                worker_id: format!("w{n}"),
                concurrency: 2,
                running: 1,
                completed: 3,
                ..WorkerRecord::default()
            };
            queue.put_worker(record).await.unwrap();
        }
        let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        let (cost, workers) = spent(&meter, queue.workers()).await;
        assert_eq!(workers.unwrap().len(), 20);
        assert!(cost[0] <= 1 && cost[1] <= 20 && cost[2] == 0, "{cost:?}");
    });
}

/// Its own file is read, written, and then somebody else's is looked for.
#[test]
fn a_heartbeat_is_three_requests() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let queue = elsewhere.queue_in(elsewhere.env(), LEASE, &meter).await;
        push_all(&*queue, tasks(0, 1).collect()).await;
        let held = queue.poll(PollRequest::new(1)).await.unwrap().deliveries.remove(0);
        for _ in 0..3 {
            // The clock of the store was asked long ago.
            elsewhere.pass(LEASE / 3);
            let beat = queue.heartbeat(vec![held.receipt.clone()]);
            let (cost, renewed) = spent(&meter, beat).await;
            renewed.into_iter().next().unwrap().unwrap();
            assert_eq!(cost, [0, 2, 1]);
        }
        let other = elsewhere.queue_in(elsewhere.env(), LEASE, &meter).await;
        let id = || vec![held.receipt.key().id().clone()];
        other.unlock(id()).await.remove(0).unwrap();
        let lost = queue.heartbeat(vec![held.receipt.clone()]).await.remove(0).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::ClaimLost);
        let held = queue.poll(PollRequest::new(1)).await.unwrap().deliveries.remove(0);
        other.cancel(id(), "enough".into()).await.remove(0).unwrap();
        let lost = queue.heartbeat(vec![held.receipt]).await.remove(0).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::AlreadyCompleted);
    });
}

/// What has no lease is found by listing, however many wait for their next attempt.
#[test]
fn a_ready_task_does_not_wait_for_those_in_backoff() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        push_all(&*queue, tasks(0, 2_000).collect()).await;
        let mut held = Vec::new();
        while held.len() < 2_000 {
            held.extend(queue.poll(PollRequest::new(1_000)).await.unwrap().deliveries);
        }
        let delay = Some(Duration::from_secs(7200));
        let nack = |receipt| Nack { receipt, error: "no".into(), delay };
        for answer in queue.nack(held.into_iter().map(|held| nack(held.receipt)).collect()).await {
            answer.unwrap();
        }
        push_all(&*queue, tasks(2_000, 2_001).collect()).await;
        // They are not so young any more that they are passed over for that.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let meter = Meter::default();
        let other = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        let (cost, polled) = spent(&meter, other.poll(PollRequest::new(1))).await;
        assert_eq!(polled.unwrap().deliveries.len(), 1);
        assert!(cost[0] <= 15 && cost[1] <= 30, "{cost:?}");
        // Now that there is nothing else they are looked into, each once, many at a time.
        let (cost, polled) = spent(&meter, other.poll(PollRequest::new(1))).await;
        assert!(polled.unwrap().deliveries.is_empty());
        assert!((2_000..2_100).contains(&cost[1]), "{cost:?}");
        let (cost, polled) = spent(&meter, other.poll(PollRequest::new(1))).await;
        assert!(polled.unwrap().deliveries.is_empty());
        assert!(cost[1] <= 10, "{cost:?}");
    });
}

/// The owner has read its lease and is about to write it. Its write comes after the task and all leases have gone, and
/// brings its own lease back. It learns of it all the same.
#[test]
fn a_cancel_that_crosses_a_heartbeat_is_told() {
    run(async |elsewhere| {
        let meter = Meter::default();
        let queue = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        push_all(&*queue, tasks(0, 1).collect()).await;
        let held = queue.poll(PollRequest::new(1)).await.unwrap().deliveries.remove(0);
        queue.recalled().await.unwrap();
        elsewhere.server.on(|request| {
            let renewal = request.op == "PutObject" && request.key.ends_with("/lease.json");
            renewal.then_some(Fault::Delay(Duration::from_secs(2)))
        });
        let other = elsewhere.queue_in(Env::system(), LEASE, &meter).await;
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let id = vec![held.receipt.key().id().clone()];
            other.cancel(id, "enough".into()).await.remove(0).unwrap();
        };
        let beat = queue.heartbeat(vec![held.receipt.clone()]);
        let (_, _) = futures::join!(beat, cancel);
        elsewhere.server.off();
        assert!(queue.recalled().await.unwrap());
        let lost = queue.heartbeat(vec![held.receipt]).await.remove(0).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::AlreadyCompleted);
    });
}
