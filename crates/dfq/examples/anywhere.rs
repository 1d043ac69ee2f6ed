//! One program for a folder, a bucket and SQS: `cargo run --example anywhere -- jobs 10`.
//!
//! It knows the queue by its name alone. Where that is, the configuration says: `DFQ_QUEUE_TYPE`, then the
//! nearest `dfq.toml`, of which this is enough for all three:
//!
//! ```toml
//! bucket = "s3://box/dfq"
//!
//! [queues.jobs]
//! dead_letter = "default-jobs-dead"    # where SQS keeps what has failed
//! ```

use std::time::Duration;

use dfq::config::Config;
use dfq::queue::Detail;
use dfq::worker::{Job, TaskResult, Until, Worker};
use dfq::{NewTask, OpenOptions};

/// The first task is hopeless, the second succeeds when it is tried again.
async fn handle(job: Job) -> TaskResult {
    match job.delivery.payload.integer_member("n") {
        Some(0) => TaskResult::Fail { reason: "hopeless".to_owned() },
        Some(1) if job.delivery.attempt == 1 => {
            TaskResult::Retry { error: "not yet".to_owned(), delay: Some(Duration::from_secs(1)) }
        }
        _ => TaskResult::Ack,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or("say which queue, and how many tasks")?;
    let count: usize = args.next().unwrap_or_else(|| "10".to_owned()).parse()?;

    // Made if it is not there, with what dfq.toml says of it.
    let queue = Config::here()?.open(&name, OpenOptions::create()).await?;
    let task = |n| NewTask::from_value(&serde_json::json!({ "n": n }));
    for pushed in queue.push((0..count).map(task).collect::<dfq::Result<_>>()?).await {
        pushed?;
    }

    let worker = Worker::new(queue.clone(), handle).concurrency(4).until(Until::Drained);
    let done = worker.run().await?;

    // What differs is declared, not found out by accident: SQS only estimates.
    let left = queue.stats(Detail::Counts).await?;
    assert!(left.pending == 0 || !left.is_exact(), "{} tasks are left", left.pending);
    println!("{} completed, {} retried, {} failed", done.completed, done.retried, done.failed);
    println!("in {}", queue.address());
    Ok(())
}
