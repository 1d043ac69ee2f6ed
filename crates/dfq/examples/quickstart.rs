//! The whole of it in one program: push, work, look; in a directory that you can look at, too.
//!
//! `cargo run --example quickstart [-- DIRECTORY]`

use std::time::Duration;

use dfq::queue::{Detail, TaskState};
use dfq::worker::{Job, TaskResult, Until, Worker};
use dfq::{NewTask, OpenOptions, Pushed, TaskId};

#[tokio::main]
async fn main() -> dfq::Result<()> {
    let path = std::env::args().nth(1).map_or_else(
        || std::env::temp_dir().join(format!("dfq-quickstart-{}", std::process::id())),
        Into::into,
    );
    let queue = dfq::open(&path, OpenOptions::create()).await?;

    // Push 20 tasks. Each is a folder with a readable task.json.
    let page = |n| NewTask::from_json(&format!(r#"{{"id": "page-{n}", "n": {n}}}"#));
    for answer in queue.push((1..=20).map(page).collect::<dfq::Result<_>>()?).await {
        assert!(matches!(answer?, Pushed::Created(_)));
    }
    // An id that is there is not pushed twice.
    let again = queue.push(vec![page(1)?]).await.remove(0)?;
    assert!(matches!(again, Pushed::Pending(_)));

    // Work on them, four at a time. Page 13 is hopeless, page 7 fails once.
    let handler = |job: Job| async move {
        match job.delivery.payload.integer_member("n") {
            Some(13) => TaskResult::Fail { reason: "unlucky".to_owned() },
            Some(7) if job.delivery.attempt == 1 => {
                let delay = Some(Duration::from_millis(100));
                TaskResult::Retry { error: "try again".to_owned(), delay }
            }
            _ => TaskResult::Ack,
        }
    };
    let worker = Worker::new(queue.clone(), handler).concurrency(4).until(Until::Drained);
    let report = worker.run().await?;
    assert_eq!((report.completed, report.failed, report.retried), (19, 1, 1));

    // Look at what became of them.
    let stats = queue.stats(Detail::Counts).await?;
    assert_eq!((stats.pending, stats.completed, stats.failed), (0, 19, 1));
    let unlucky = queue.get(TaskId::new("page-13")?).await?;
    assert!(unlucky.is_some_and(|task| task.state == TaskState::Failed));
    println!("19 completed, 1 failed; look at {}", path.display());
    Ok(())
}
