//! Many worker processes drain a queue in SQS, and one of them is killed with its hands full.
//!
//! Each process writes down what it began and what it finished. The victim lets some tasks go through,
//! then gets stuck on as many as it can hold, renewing their leases, until it is killed. All tasks must
//! be done, each once, and what the victim held by the others, after it was gone.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

mod sqs_support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::queue::Detail;
use dfq::worker::{Became, Job, Until, Worker};
use dfq::{Env, NewTask, Settings, TaskId};
use sqs_support::Site;

const TASKS: usize = 5_000;
const WORKERS: usize = 4;
const CONCURRENCY: usize = 10;

/// After so many tasks the victim gets stuck.
const BEFORE_STUCK: usize = 200;

fn settings() -> Settings {
    Settings { lease: Duration::from_secs(12), ..Settings::default() }
}

#[test]
fn all_is_done_although_a_worker_is_killed() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queue = runtime.block_on(site.queue(&settings()));
    let task = |n| NewTask::from_json("{}").unwrap().id(TaskId::new(format!("t{n}")).unwrap());
    let pushed = runtime.block_on(queue.push((0..TASKS).map(task).collect()));
    assert!(pushed.iter().all(Result::is_ok));

    let mut crew: Vec<Child> = (0..WORKERS).map(|n| start(&site, dir.path(), n)).collect();
    let victim = journal(dir.path(), 0);
    let stuck = || lines(&victim).iter().filter(|line| line[0] == "stuck").count();
    for _ in 0..1200 {
        if stuck() == CONCURRENCY {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(stuck(), CONCURRENCY, "the victim has its hands full");
    let killed_at = Env::system().monotonic();
    crew[0].kill().unwrap();
    for (n, mut worker) in crew.into_iter().enumerate() {
        let status = worker.wait().unwrap();
        assert_eq!(status.success(), n != 0, "worker {n}: {status}");
    }

    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    let mut begun: BTreeMap<String, Vec<(usize, u32, u64)>> = BTreeMap::new();
    for n in 0..WORKERS {
        for line in lines(&journal(dir.path(), n)) {
            match &line[..] {
                [what, id] if what == "done" => *done.entry(id.clone()).or_default() += 1,
                [what, id, attempt, at] if what == "begun" => {
                    let begin = (n, attempt.parse().unwrap(), at.parse().unwrap());
                    begun.entry(id.clone()).or_default().push(begin);
                }
                [what, _] if what == "stuck" => {}
                line => panic!("{line:?}"),
            }
        }
    }
    assert_eq!(done.len(), TASKS);
    assert!(done.values().all(|times| *times == 1), "nothing was done twice");
    let stuck: BTreeSet<String> = lines(&victim)
        .into_iter()
        .filter(|line| line[0] == "stuck")
        .map(|line| line[1].clone())
        .collect();
    for id in &stuck {
        let again: Vec<_> = begun[id].iter().filter(|(worker, ..)| *worker != 0).collect();
        assert!(!again.is_empty(), "{id} came back");
        for (_, attempt, at) in again {
            assert!(*attempt > 1, "SQS counts");
            assert!(u128::from(*at) > killed_at.as_millis(), "its lease was kept until the end");
        }
    }
    let stats = runtime.block_on(queue.stats(Detail::Counts)).unwrap();
    assert_eq!((stats.pending, stats.scheduled, stats.failed), (0, 0, 0));
}

fn journal(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("worker-{worker}"))
}

/// Whole lines, as words.
fn lines(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

fn start(site: &Site, dir: &Path, worker: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_process", "--ignored", "--nocapture"])
        .env("DFQ_DRAIN_ENDPOINT", &site.endpoint)
        .env("DFQ_DRAIN_QUEUE", &site.name)
        .env("DFQ_DRAIN_JOURNAL", journal(dir, worker))
        .env("DFQ_DRAIN_STUCK_AFTER", if worker == 0 { BEFORE_STUCK } else { TASKS }.to_string())
        .spawn()
        .unwrap()
}

/// One of the processes, started by the test above.
#[test]
#[ignore = "a part of the other test"]
fn worker_process() {
    let Ok(endpoint) = std::env::var("DFQ_DRAIN_ENDPOINT") else { return };
    let var = |name: &str| std::env::var(name).unwrap();
    let name = var("DFQ_DRAIN_QUEUE");
    let site = Site { name, dead_letter: None, ..Site::new(&endpoint, "") };
    let journal = Arc::new(Mutex::new(File::create(var("DFQ_DRAIN_JOURNAL")).unwrap()));
    let write = {
        let journal = Arc::clone(&journal);
        move |line: String| {
            journal.lock().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap()
        }
    };
    let stuck_after: usize = var("DFQ_DRAIN_STUCK_AFTER").parse().unwrap();
    let begun = Arc::new(AtomicUsize::new(0));
    let handler = {
        let write = write.clone();
        move |job: Job| {
            let (id, attempt) = (job.delivery.id().to_string(), job.delivery.attempt);
            write(format!("begun {id} {attempt} {}", Env::system().monotonic().as_millis()));
            let stuck = begun.fetch_add(1, Ordering::SeqCst) >= stuck_after;
            if stuck {
                write(format!("stuck {id}"));
            }
            async move {
                if stuck {
                    std::future::pending::<()>().await;
                }
                Ok::<(), dfq::Error>(())
            }
        }
    };
    let observer = move |settled: &dfq::worker::Settled<'_>| {
        if settled.became == Became::Completed {
            write(format!("done {}", settled.receipt.key().id()));
        }
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let queue = site.open(None).await.unwrap();
        let worker = Worker::new(queue, handler).concurrency(CONCURRENCY);
        worker.observe(observer).until(Until::Drained).run().await.unwrap();
    });
}
