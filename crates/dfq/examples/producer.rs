//! Pushes tasks into a queue: `cargo run --example producer -- ./jobs 100`.
//!
//! Run it as often as you like, from as many terminals as you like: an id that is pending or has been
//! through the queue is not pushed again.

use dfq::{NewTask, OpenOptions, Pushed, TaskId};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "./jobs".to_owned());
    let count: usize = args.next().unwrap_or_else(|| "100".to_owned()).parse()?;

    let queue = dfq::open(&path, OpenOptions::create()).await?;
    let mut created = 0;
    // In batches: they share the waiting for the disk.
    for batch in (0..count).collect::<Vec<_>>().chunks(500) {
        let tasks = batch.iter().map(|n| {
            let payload = serde_json::json!({ "url": format!("https://example.com/{n}") });
            Ok(NewTask::from_value(&payload)?.id(TaskId::new(format!("page-{n}"))?))
        });
        for answer in queue.push(tasks.collect::<dfq::Result<_>>()?).await {
            created += usize::from(matches!(answer?, Pushed::Created(_)));
        }
    }
    println!("pushed {created} new tasks of {count} to {}", queue.address());
    Ok(())
}
