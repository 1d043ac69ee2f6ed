//! Is a worker on a bucket bound by the store, or by us?
//!
//! A server that takes so long for every request, and a worker of one process with so many slots,
//! whose handler does nothing. Beside it, in the same run, the bare requests that a task cannot do
//! without: lease, look, record; as many at once, and nothing else. The ratio is what the worker
//! reaches of them; and what it reaches of what latency alone would allow, if a place were taken from the
//! lease to the record. Beyond a few thousand requests a second the processors are the limit of both.
//!
//! ```text
//! cargo bench -p dfq --bench bucket -- [--slots 64] [--latency-ms 20] [--tasks 4000] [--rounds 3] [--check]
//! ```

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a measurement")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dfq::meter::{Meter, RequestKind};
use dfq::options::S3Options;
use dfq::store::bucket::Bucket;
use dfq::store::{Folders as _, Tree};
use dfq::worker::{Job, Until, Worker};
use dfq::{Env, NewTask, OpenOptions, Queue, TreeQueue};
use dfq_s3_server::{Faults, Options, Server};

/// What the worker is to reach of what latency allows.
const TARGET: f64 = 0.8;

struct Plan {
    slots: usize,
    latency: Duration,
    tasks: usize,
    rounds: usize,
    check: bool,
}

impl Plan {
    fn from_args() -> Self {
        let mut plan = Self {
            slots: 64,
            latency: Duration::from_millis(20),
            tasks: 4000,
            rounds: 3,
            check: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            let mut number = || args.next().and_then(|text| text.parse::<usize>().ok());
            match flag.as_str() {
                "--slots" => plan.slots = number().unwrap_or(plan.slots),
                "--latency-ms" => {
                    plan.latency = Duration::from_millis(number().unwrap_or(20) as u64);
                }
                "--tasks" => plan.tasks = number().unwrap_or(plan.tasks),
                "--rounds" => plan.rounds = number().unwrap_or(plan.rounds),
                "--check" => plan.check = true,
                _ => {} // what cargo adds
            }
        }
        plan
    }
}

async fn bucket(server: &Server, prefix: &str, meter: &Meter) -> Bucket {
    let keys = (server.access_key().to_owned(), server.secret_key().to_owned());
    let options = S3Options {
        endpoint: Some(server.endpoint()),
        region: Some("us-east-1".to_owned()),
        credentials: Some(keys),
        ..S3Options::default()
    };
    Bucket::s3(server.bucket(), prefix, options, Env::system(), meter.clone()).await.unwrap()
}

/// The bare requests, tasks a second.
async fn bare(server: &Server, plan: &Plan, round: usize) -> f64 {
    let tree = Arc::new(bucket(server, &format!("bare-{round}"), &Meter::default()).await);
    let folder = |n: usize| format!("pending/{:02x}/{n}", n % 256);
    let files: Vec<_> = (0..plan.tasks).map(|n| (folder(n), b"{\"n\":1}".to_vec())).collect();
    assert!(tree.publish(&files, true).await.iter().all(Result::is_ok));
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut slots = tokio::task::JoinSet::new();
    for _ in 0..plan.slots {
        let (tree, next, tasks) = (Arc::clone(&tree), Arc::clone(&next), plan.tasks);
        slots.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= tasks {
                    return;
                }
                let records =
                    ["completed", "failed"].map(|to| format!("{to}/{:02x}/{n}.json", n % 256));
                let slot = tree.open(&folder(n)).await.unwrap().unwrap();
                let prepared = tree.prepare_lease(b"{\"worker_id\":\"bare\"}").await.unwrap();
                tree.create_lease(&slot, 1, &prepared).await.unwrap();
                tree.read_task(&slot, None, &records).await.unwrap();
                let record = (records[0].clone(), b"{\"n\":1}".to_vec());
                tree.create_all(&[record], true).await.pop().unwrap().unwrap();
                tree.discard(vec![(&slot, vec![1])]).await;
            }
        });
    }
    slots.join_all().await;
    tree.flush().await.unwrap();
    plan.tasks as f64 / began.elapsed().as_secs_f64()
}

/// A worker, tasks a second; and the requests that it made.
async fn worker(server: &Server, plan: &Plan, round: usize) -> (f64, Meter) {
    let pusher = bucket(server, &format!("work-{round}"), &Meter::default()).await;
    let queue = TreeQueue::open(pusher, OpenOptions::create()).await.unwrap();
    let task = |_| NewTask::from_json("{\"n\":1}").unwrap();
    assert!(queue.push((0..plan.tasks).map(task).collect()).await.iter().all(Result::is_ok));
    let meter = Meter::default();
    let tree = bucket(server, &format!("work-{round}"), &meter).await;
    let queue = TreeQueue::open(tree, OpenOptions::existing()).await.unwrap();
    let began = Instant::now();
    let report = Worker::new(Arc::new(queue), |_: Job| async { Ok::<(), dfq::Error>(()) })
        .concurrency(plan.slots)
        .until(Until::Drained)
        .run()
        .await
        .unwrap();
    assert_eq!(report.completed, plan.tasks as u64);
    (plan.tasks as f64 / began.elapsed().as_secs_f64(), meter)
}

fn main() {
    let plan = Plan::from_args();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server_runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let faults = Faults { latency: plan.latency, ..Faults::default() };
    let server =
        server_runtime.block_on(Server::start(Options { faults, ..Options::default() })).unwrap();
    let bound = plan.slots as f64 / (3.0 * plan.latency.as_secs_f64());
    println!(
        "{} tasks, {} slots, {:?} for a request: latency allows {bound:.0} tasks/s",
        plan.tasks, plan.slots, plan.latency
    );
    println!(
        "round   bare/s  worker/s   ratio  of latency   requests a task: put get+head list delete"
    );
    let mut ratios = Vec::new();
    for round in 0..plan.rounds {
        let bare = runtime.block_on(bare(&server, &plan, round));
        let (worked, meter) = runtime.block_on(worker(&server, &plan, round));
        let counts = meter.counts();
        let each = |kinds: &[RequestKind]| {
            let sent: u64 = kinds.iter().filter_map(|kind| counts.get(kind)).map(|c| c.sent).sum();
            sent as f64 / plan.tasks as f64
        };
        use RequestKind::{Delete, Get, Head, List, Put};
        println!(
            "{round:5} {bare:8.0} {worked:9.0} {:7.2} {:11.2}   {:20.3} {:8.3} {:4.4} {:6.4}",
            worked / bare,
            worked / bound,
            each(&[Put]),
            each(&[Get, Head]),
            each(&[List]),
            each(&[Delete]),
        );
        ratios.push(worked / bound);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("median of what latency allows: {median:.2}, target {TARGET}");
    if plan.check && median < TARGET {
        std::process::exit(1);
    }
}
