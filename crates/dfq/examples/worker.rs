//! Works on a queue until it is empty, or until Ctrl-C: `cargo run --example worker -- ./jobs 4`.
//!
//! Start several, kill one with `kill -9`: its tasks are done by the others once its leases run out.

use std::time::Duration;

use dfq::worker::{Job, TaskResult, Until, Worker};
use dfq::{Env, OpenOptions};

/// What is done for each task. Some pages are flaky, some do not exist.
async fn fetch(job: Job) -> TaskResult {
    let Ok(payload) = job.delivery.payload.parse::<serde_json::Value>() else {
        return TaskResult::Fail { reason: "not a page".to_owned() };
    };
    let url = payload["url"].as_str().unwrap_or_default();
    if url.ends_with('7') && job.delivery.attempt == 1 {
        let delay = Some(Duration::from_millis(200));
        return TaskResult::Retry { error: format!("{url}: HTTP 503"), delay };
    }
    if url.ends_with("13") {
        return TaskResult::Fail { reason: format!("{url}: HTTP 404") };
    }
    TaskResult::Ack
}

#[tokio::main]
async fn main() -> dfq::Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "./jobs".to_owned());
    let concurrency = args.next().and_then(|n| n.parse().ok()).unwrap_or(4);

    let queue = dfq::open(&path, OpenOptions::existing()).await?;
    let worker = Worker::new(queue, fetch).concurrency(concurrency).until(Until::Drained);

    let stopper = worker.stopper();
    Env::system().spawn(async move {
        // The first Ctrl-C lets running tasks finish, the second gives them back at once.
        for stop in [dfq::worker::Stopper::stop, dfq::worker::Stopper::stop_now] {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop(&stopper);
            }
        }
    });
    let report = worker.run().await?;
    println!(
        "completed {}, failed {}, retried {}, released {}, lost {}",
        report.completed, report.failed, report.retried, report.released, report.lost
    );
    Ok(())
}
