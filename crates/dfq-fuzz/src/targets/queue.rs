//! A whole queue with files in it that others wrote: every verb comes to an end, and other tasks are not harmed.
//!
//! The input has a file after each line that begins with `@@ ` and its path.

use std::sync::Arc;
use std::time::Duration;

use dfq::clock::{ManualClock, SeededChance};
use dfq::queue::{Detail, ListCursor, Place, Purge};
use dfq::store::Objects;
use dfq::store::memory::Memory;
use dfq::{
    Env, Nack, NewTask, OpenOptions, Outcome, PollRequest, Queue, Release, TaskId, TreeQueue,
};
use futures::executor::block_on;

/// The files, as far as a queue could have such names.
fn files(input: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        match (line.strip_prefix(b"@@ "), files.last_mut()) {
            (Some(path), _) => {
                files.push((String::from_utf8_lossy(path).trim().to_owned(), Vec::new()));
            }
            (None, Some((_, content))) => content.extend_from_slice(line),
            (None, None) => {}
        }
    }
    // The queue is what it was made as, and a store is not refused: that is asked elsewhere.
    let kept = |path: &str| !path.is_empty() && path != "queue.json" && path != "doctor.json";
    files.retain(|(path, _)| kept(path) && files_ours(path));
    files
}

/// Not those of the task that must come through, and none that takes too long to be tried often.
fn files_ours(path: &str) -> bool {
    // A life of a great number makes purges look at thousands before it: tests/fuzz_findings.rs of dfq.
    let many = |part: &str| part.split_once('@').is_some_and(|(_, life)| life.len() > 3);
    !path.split('/').any(|part| part.starts_with("good") || many(part))
}

pub(crate) fn queue(input: &[u8]) {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(7)));
    let store = Memory::new(env.clone());
    block_on(async {
        let options = || OpenOptions { env: env.clone(), ..OpenOptions::create() };
        let queue = TreeQueue::open(store.clone(), options()).await.unwrap();
        let good = NewTask::from_json(r#"{"id":"good","n":1.50}"#).unwrap();
        queue.push(vec![good]).await.remove(0).unwrap();
        let files = files(input);
        for (path, content) in &files {
            store.objects().put(path, content).await.unwrap();
        }
        look(&queue).await;
        queue.resume().await.unwrap();
        let mut found = 0;
        // What is held by others is taken over later; what is damaged is set aside.
        for round in 0..4_u32 {
            found += work(&queue, round).await;
            clock.advance(Duration::from_secs(26 * 3600));
        }
        assert_eq!(found, 1, "the good task was found {found} times");
        operate(&queue, &files).await;
        clock.advance(Duration::from_secs(26 * 3600));
        purge(&queue).await;
        look(&queue).await;
        queue.close().await;
        // Another process finds its way, too.
        look(&TreeQueue::open(store.clone(), options()).await.unwrap()).await;
    });
}

/// Polls until there is nothing, and answers how often the good task was handed out.
async fn work(queue: &dyn Queue, round: u32) -> u32 {
    let mut found = 0;
    for _ in 0..8 {
        let Ok(polled) = queue.poll(PollRequest::new(4)).await else { continue };
        for delivery in polled.deliveries {
            let receipt = delivery.receipt.clone();
            assert_eq!(receipt.to_string().parse::<dfq::Receipt>().unwrap(), receipt);
            let _ = queue.heartbeat(vec![receipt.clone()]).await;
            if delivery.id().as_str() == "good" {
                assert_eq!(delivery.payload.as_json(), r#"{"id":"good","n":1.50}"#);
                queue.ack(vec![receipt]).await.remove(0).unwrap();
                found += 1;
                continue;
            }
            match round {
                0 => {
                    let nack = Nack { receipt, error: "no".to_owned(), delay: None };
                    let _ = queue.nack(vec![nack]).await;
                }
                1 => {
                    let release = Release { receipt, reason: None, delay: Some(Duration::MAX / 4) };
                    let _ = queue.release(vec![release]).await;
                }
                2 => drop(queue.fail(vec![(receipt, "no".to_owned())]).await),
                _ => drop(queue.ack(vec![receipt]).await),
            }
        }
    }
    found
}

/// Looks at everything. Errors are answers.
async fn look(queue: &dyn Queue) {
    let _ = (queue.paused().await, queue.peek(9).await, queue.workers().await);
    let _ = (queue.stats(Detail::States).await, queue.check(false).await, queue.recalled().await);
    for place in [Place::Pending, Place::Scheduled, Place::Completed, Place::Failed] {
        let mut cursor = Some(ListCursor::at(place));
        let mut pages = 0;
        while let Some(from) = cursor.take() {
            let Ok(page) = queue.list(Some(from)).await else { break };
            for view in page.tasks {
                let _ = queue.get(view.key.id().clone()).await;
            }
            (cursor, pages) = (page.next, pages + 1);
            assert!(pages < 5_000, "a listing without an end");
        }
    }
}

/// Does what operators do.
async fn operate(queue: &dyn Queue, files: &[(String, Vec<u8>)]) {
    let name = |path: &str| {
        let mut parts = path.split('/').filter(|part| !part.is_empty() && !part.ends_with(".json"));
        parts.next_back().and_then(|part| TaskId::new(part.split('@').next().unwrap_or(part)).ok())
    };
    let mut ids: Vec<TaskId> = files.iter().filter_map(|(path, _)| name(path)).collect();
    ids.truncate(4);
    ids.push(TaskId::new("a").unwrap());
    let _ = queue.unlock(ids.clone()).await;
    let _ = queue.cancel(ids.clone(), "fuzz".to_owned()).await;
    let _ = queue.retry(ids.clone()).await;
    for again in ids {
        let task = NewTask::from_json("{}").unwrap().id(again).again();
        let _ = queue.push(vec![task]).await;
    }
    let _ = queue.check(true).await;
    let _ = queue.tidy().await;
}

/// Forgets what is older than a record must be.
async fn purge(queue: &dyn Queue) {
    let older_than = Duration::from_secs(7200);
    for outcome in [Outcome::Completed, Outcome::Failed] {
        let _ = queue.purge(Purge { outcome, older_than, dry_run: false }).await;
    }
}
