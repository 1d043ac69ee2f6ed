//! What a purge of a bucket costs, counted in requests: three for each record that it removes, and pages of keys
//! otherwise.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a real server has real times")]

#[path = "bucket/elsewhere.rs"]
mod elsewhere;

use std::time::Duration;

use dfq::meter::{self, Meter, RequestKind};
use dfq::queue::{Purge, Purged};
use dfq::{NewTask, Outcome, PollRequest, Queue};
use dfq_s3_server::Lies;
use elsewhere::{Elsewhere, task};

const LEASE: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);

/// What was asked of the store.
#[derive(Debug)]
struct Cost {
    pages: u64,
    reads: u64,
    writes: u64,
    removals: u64,
}

impl Cost {
    fn all(&self) -> u64 {
        self.pages + self.reads + self.writes + self.removals
    }
}

/// A purge by a process that has just begun.
async fn purge(elsewhere: &Elsewhere, dry_run: bool) -> (Cost, Purged) {
    let meter = Meter::default();
    let queue = elsewhere.queue_in(elsewhere.env(), LEASE, &meter).await;
    let before = meter.counts();
    let purge = Purge { outcome: Outcome::Completed, older_than: 2 * HOUR, dry_run };
    let purged = queue.purge(purge).await.unwrap();
    let sent = meter::since(&meter.counts(), &before);
    // What a stall lets fail is sent again, and does not count.
    let of = |kind| sent.get(&kind).map_or(0, |count| count.sent - count.failed);
    let cost = Cost {
        pages: of(RequestKind::List),
        reads: of(RequestKind::Get) + of(RequestKind::Head),
        writes: of(RequestKind::Put),
        removals: of(RequestKind::Delete),
    };
    (cost, purged)
}

async fn push_all(queue: &dyn Queue, tasks: impl Iterator<Item = NewTask>) {
    for answer in queue.push(tasks.collect()).await {
        answer.unwrap();
    }
}

/// Does all tasks that there are.
async fn finish(queue: &dyn Queue, mut tasks: usize) {
    while tasks > 0 {
        let held = queue.poll(PollRequest::new(tasks)).await.unwrap().deliveries;
        tasks -= held.len();
        for answer in queue.ack(held.into_iter().map(|held| held.receipt).collect()).await {
            answer.unwrap();
        }
    }
}

fn run(test: impl AsyncFnOnce(&Elsewhere, &dyn Queue)) {
    let elsewhere = Elsewhere::start();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let queue = elsewhere.queue_in(elsewhere.env(), LEASE, &Meter::default()).await;
        test(&elsewhere, &*queue).await;
    });
}

fn records(elsewhere: &Elsewhere) -> usize {
    let keys = elsewhere.server.objects().into_keys();
    keys.filter(|key| key.starts_with("jobs/completed/")).count()
}

#[test]
fn a_record_that_goes_costs_three_requests() {
    run(async |elsewhere, queue| {
        push_all(queue, (0..400).map(task)).await;
        finish(queue, 400).await;
        // Half of those that will go have lived twice. Of the last hundred the next life waits, or is to come.
        push_all(queue, (0..150).map(|n| task(n).again())).await;
        finish(queue, 150).await;
        push_all(queue, (300..350).map(|n| task(n).again())).await;
        push_all(queue, (350..400).map(|n| task(n).again().delay(99 * HOUR))).await;
        queue.close().await;
        elsewhere.pass(3 * HOUR);
        let (cost, purged) = purge(elsewhere, true).await;
        assert_eq!(purged.records, 450);
        assert!(cost.all() <= 20, "pages only: {cost:?}");
        let (cost, purged) = purge(elsewhere, false).await;
        assert_eq!((purged.records, records(elsewhere)), (450, 100));
        // One look for each id.
        assert!(cost.reads <= 300 + 10 && cost.writes <= 450 + 5, "{cost:?}");
        assert!(cost.removals <= 450 + 5 && cost.pages <= 20, "{cost:?}");
    });
}

/// They were written a while ago, but not so long ago that they may go.
#[test]
fn a_purge_that_removes_nothing_reads_nothing() {
    run(async |elsewhere, queue| {
        push_all(queue, (0..1_000).map(task)).await;
        finish(queue, 1_000).await;
        queue.close().await;
        elsewhere.pass(HOUR);
        let (cost, purged) = purge(elsewhere, false).await;
        assert_eq!((purged.records, records(elsewhere)), (0, 1_000));
        assert!(cost.all() <= 20 && cost.reads <= 3, "{cost:?}");
    });
}

#[test]
fn leftovers_are_not_read() {
    run(async |elsewhere, queue| {
        for n in 0..30 {
            elsewhere.server.put(&format!("jobs/tmp/now-{n}"), b"");
            elsewhere.server.put(&format!("jobs/workers/w{n}.json"), b"{}");
        }
        queue.close().await;
        elsewhere.pass(24 * HOUR + HOUR);
        let (cost, purged) = purge(elsewhere, false).await;
        // And what this test has asked the time with.
        assert!((30..=32).contains(&purged.leftovers), "{purged:?}");
        assert!(cost.all() <= 20 && cost.reads <= 3, "{cost:?}");
        elsewhere.pass(7 * 24 * HOUR);
        let (cost, purged) = purge(elsewhere, false).await;
        assert!((30..=32).contains(&purged.leftovers), "{purged:?}");
        assert!(cost.all() <= 20 && cost.reads <= 3, "{cost:?}");
    });
}

/// Between a page and a write much may have happened, of which this server takes no notice.
#[test]
fn on_a_server_that_ignores_the_condition_each_record_is_read() {
    run(async |elsewhere, queue| {
        push_all(queue, (0..10).map(task)).await;
        finish(queue, 10).await;
        queue.close().await;
        elsewhere.pass(3 * HOUR);
        let clock_offset_ms = 3 * 3_600_000;
        let lies = Lies { ignore_if_match: true, clock_offset_ms, ..Lies::default() };
        elsewhere.server.set_lies(lies);
        let (cost, purged) = purge(elsewhere, false).await;
        assert_eq!((purged.records, records(elsewhere)), (10, 0));
        assert!(cost.reads >= 20, "{cost:?}");
    });
}
