//! Answers that get lost, requests that are refused, handlers that block: what a network does.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "the server's clock is the machine's")]

mod sqs_support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{ManualClock, SeededChance};
use dfq::meter::RequestKind;
use dfq::worker::{Job, Report, TaskResult, Until, Worker};
use dfq::{Delivery, Env, ErrorKind, Nack, NewTask, PollRequest, Queue, Settings, TaskId};
use sqs_support::Site;
use sqs_support::proxy::{self, Act};

fn settings() -> Settings {
    Settings { lease: Duration::from_secs(60), ..Settings::default() }
}

fn task(json: &str, id: &str) -> NewTask {
    NewTask::from_json(json).unwrap().id(TaskId::new(id).unwrap())
}

async fn poll(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.poll(PollRequest::new(max)).await.unwrap().deliveries
}

/// A queue whose requests of one operation meet this fate, `times` times.
async fn troubled(
    endpoint: &str,
    suffix: &str,
    operation: &'static str,
    times: usize,
    act: fn() -> Act,
) -> (Arc<dyn Queue>, Site) {
    let met = AtomicUsize::new(0);
    let judge = move |asked: &str, _: &str| match asked == operation {
        true if met.fetch_add(1, Ordering::SeqCst) < times => act(),
        _ => Act::Pass,
    };
    let site = Site::new(&proxy::between(endpoint, judge), suffix);
    (site.queue(&settings()).await, site)
}

/// ministack calls the second delete an error: it must not be taken for a lost claim.
#[tokio::test]
async fn an_ack_whose_answer_was_lost_is_an_ack() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let (queue, site) = troubled(endpoint, "", "DeleteMessageBatch", 1, || Act::LoseAnswer).await;
    queue.push(vec![task("1", "a"), task("2", "b")]).await;
    let held = poll(&*queue, 2).await;
    let receipts: Vec<_> = held.iter().map(|held| held.receipt.clone()).collect();
    for acked in queue.ack(receipts.clone()).await {
        acked.unwrap();
    }
    let counts = site.meter.counts()[&RequestKind::Remove];
    assert_eq!((counts.sent, counts.failed), (2, 1), "the second try is a request, too");
    assert!(queue.ack(receipts).await.iter().all(Result::is_ok));
}

/// A standard queue may have a task twice then, a FIFO queue knows it by its id. None loses it.
#[tokio::test]
async fn a_push_whose_answer_was_lost_is_repeated() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    for (suffix, copies) in [("", 2), (".fifo", 1)] {
        let (queue, _) =
            troubled(endpoint, suffix, "SendMessageBatch", 1, || Act::LoseAnswer).await;
        queue.push(vec![task("1", "a")]).await.remove(0).unwrap();
        assert_eq!(poll(&*queue, 10).await.len(), copies, "{suffix}");
    }
}

#[tokio::test]
async fn what_passes_is_tried_again() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    for operation in ["SendMessageBatch", "ReceiveMessage", "ChangeMessageVisibilityBatch"] {
        let busy = || Act::Refuse(503, "ServiceUnavailable");
        let (queue, site) = troubled(endpoint, "", operation, 2, busy).await;
        queue.push(vec![task("1", "a")]).await.remove(0).unwrap();
        let held = poll(&*queue, 1).await.remove(0);
        let delay = Some(Duration::ZERO);
        let nack = Nack { receipt: held.receipt, error: String::new(), delay };
        queue.nack(vec![nack]).await.remove(0).unwrap();
        assert_eq!(poll(&*queue, 1).await.len(), 1);
        let failed: u64 = site.meter.counts().values().map(|count| count.failed).sum();
        assert_eq!(failed, 2 + 2, "two refused, and two queues were looked for in vain");
    }
}

#[tokio::test]
async fn what_does_not_pass_says_what_to_do() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let kind = async |act: fn() -> Act| {
        let (queue, _) = troubled(endpoint, "", "ReceiveMessage", usize::MAX, act).await;
        queue.poll(PollRequest::new(1)).await.unwrap_err()
    };
    let denied = kind(|| Act::Refuse(403, "AccessDenied")).await;
    assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    let gone = kind(|| Act::Refuse(400, "QueueDoesNotExist")).await;
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    let full = kind(|| Act::Refuse(403, "OverLimit")).await;
    assert_eq!(full.kind(), ErrorKind::Unavailable);
    assert!(full.to_string().contains("120,000"), "{full}");
    let busy = kind(|| Act::Refuse(500, "InternalError")).await;
    assert_eq!(busy.kind(), ErrorKind::Unavailable, "{busy}");
}

/// A server with the limit of before 2025: batches shrink to it, once and for all.
#[tokio::test]
async fn an_old_server_gets_smaller_batches() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let judge = |operation: &str, body: &str| match operation {
        "SendMessageBatch" if body.len() > 262_144 => Act::Refuse(400, "BatchRequestTooLong"),
        _ => Act::Pass,
    };
    let site = Site::new(&proxy::between(endpoint, judge), "");
    let queue = site.queue(&settings()).await;
    let payload = format!("\"{}\"", "x".repeat(60_000));
    let push = async |round: &str| {
        let tasks = (0..10).map(|n| task(&payload, &format!("{round}-{n}"))).collect();
        assert!(queue.push(tasks).await.iter().all(Result::is_ok));
        site.meter.counts()[&RequestKind::Send]
    };
    let learnt = push("first").await;
    assert!(learnt.failed >= 1, "it had to be told");
    let after = push("second").await;
    assert_eq!(after.failed, learnt.failed, "and remembers");
    assert_eq!(poll(&*queue, 30).await.len(), 20);
    // One that is too large even alone is refused alone, by name.
    let whale = format!("\"{}\"", "x".repeat(300_000));
    let answers = queue.push(vec![task("1", "a"), task(&whale, "whale"), task("3", "c")]).await;
    let bad: Vec<usize> = (0..3).filter(|at| answers[*at].is_err()).collect();
    assert_eq!(bad, [1]);
    let error = answers[1].clone().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("task 'whale'"), "{error}");
}

/// Heartbeats have connections of their own: a handler that blocks all else does not block them.
#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_keeps_its_task() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&Settings { lease: Duration::from_secs(12), ..settings() }).await;
    queue.push(vec![task("1", "a")]).await.remove(0).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let thief = {
        let (site, over) = (site.clone(), Arc::clone(&over));
        move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let queue = site.open(None).await.unwrap();
                let mut stolen = 0;
                while !over.load(Ordering::SeqCst) {
                    stolen += poll(&*queue, 1).await.len();
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                stolen
            })
        }
    };
    let started = Arc::new(Mutex::new(Some(thief)));
    let thieves = Arc::new(Mutex::new(None));
    let handler = {
        let thieves = Arc::clone(&thieves);
        move |_: Job| {
            let thief = started.lock().unwrap().take().unwrap();
            *thieves.lock().unwrap() = Some(std::thread::spawn(thief));
            std::thread::sleep(Duration::from_secs(16));
            over.store(true, Ordering::SeqCst);
            async { Ok::<(), dfq::Error>(()) }
        }
    };
    let report = Worker::new(queue, handler).until(Until::Idle).run().await.unwrap();
    assert_eq!((report.completed, report.lost), (1, 0));
    let thief = thieves.lock().unwrap().take().unwrap();
    assert_eq!(thief.join().unwrap(), 0, "nobody else was given it");
}

/// A queue whose first receive waits until it is told to go on: who tells, and who hears that it waits.
async fn waiting(endpoint: &str) -> (Arc<dyn Queue>, Site, Receiver<()>, Sender<()>) {
    let ((asked, is_asked), (go_on, told)) = (channel(), channel());
    let told = Mutex::new(Some(told));
    let judge = move |operation: &str, _: &str| {
        let first = (operation == "ReceiveMessage").then(|| told.lock().unwrap().take()).flatten();
        if let Some(told) = first {
            asked.send(()).unwrap();
            told.recv().unwrap();
        }
        Act::Pass
    };
    let site = Site::new(&proxy::between(endpoint, judge), "");
    (site.queue(&settings()).await, site, is_asked, go_on)
}

/// What a poll brings after the stop had no handler, so it cannot have been tried once too often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_bury_what_never_ran() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let (queue, site, is_asked, go_on) = waiting(endpoint).await;
    queue.push(vec![task("1", "once").max_attempts(1)]).await.remove(0).unwrap();
    let worker =
        Worker::new(queue.clone(), |_: Job| async { panic!("it was stopped") as TaskResult });
    let stopper = worker.stopper();
    let running = tokio::spawn(worker.run());
    tokio::task::spawn_blocking(move || is_asked.recv().unwrap()).await.unwrap();
    stopper.stop();
    go_on.send(()).unwrap();
    let report = running.await.unwrap().unwrap();
    assert_eq!(report, Report { released: 1, ..Report::default() });
    assert!(poll(&*site.dead_letters().await, 1).await.is_empty());
    assert_eq!(poll(&*queue, 1).await.len(), 1, "at once");
}

/// The same for one whose lease may have run out before its worker came to start it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_worker_does_not_bury_what_never_ran() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let (queue, _, is_asked, go_on) = waiting(endpoint).await;
    queue.push(vec![task("1", "once").max_attempts(1)]).await.remove(0).unwrap();
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
    let worker = Worker::new(queue, |_: Job| async { TaskResult::Ack }).until(Until::Drained);
    let running = tokio::spawn(worker.env(env).lease(Duration::from_secs(12)).run());
    tokio::task::spawn_blocking(move || is_asked.recv().unwrap()).await.unwrap();
    clock.advance(settings().lease);
    go_on.send(()).unwrap();
    let report = running.await.unwrap().unwrap();
    assert_eq!(report, Report { released: 1, completed: 1, ..Report::default() });
}

/// Counts that lag behind: SQS allows a minute.
const NO_COUNTS: &str = r#"{"Attributes":{"ApproximateNumberOfMessages":"0",
    "ApproximateNumberOfMessagesNotVisible":"0","ApproximateNumberOfMessagesDelayed":"0"}}"#;

/// A server whose short polls bring nothing, nor its first long polls, and whose counts are all zero.
/// SQS allows that of short polls and counts. Answers the queue, with 50 tasks in it, and what it is asked
/// from then on: `R<seconds>` for a poll, `C` for counts, `D` for acks.
async fn silent(endpoint: &str, first_long: usize) -> (Arc<dyn Queue>, Arc<Mutex<Vec<String>>>) {
    let (lies, long) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (lying, log) = (Arc::clone(&lies), Arc::clone(&asked));
    let judge = move |operation: &str, body: &str| {
        if !lying.load(Ordering::SeqCst) {
            return Act::Pass;
        }
        let request: serde_json::Value = serde_json::from_str(body).unwrap();
        let seconds = request["WaitTimeSeconds"].as_u64().unwrap_or(0);
        let (noted, act) = match operation {
            "GetQueueAttributes" => ("C".to_owned(), Act::Answer(NO_COUNTS)),
            "ReceiveMessage" if seconds == 0 => ("R0".to_owned(), Act::Answer("{}")),
            "ReceiveMessage" if long.fetch_add(1, Ordering::SeqCst) < first_long => {
                (format!("R{seconds}"), Act::Answer("{}"))
            }
            "ReceiveMessage" => (format!("R{seconds}"), Act::Pass),
            "DeleteMessageBatch" => ("D".to_owned(), Act::Pass),
            _ => return Act::Pass,
        };
        log.lock().unwrap().push(noted);
        act
    };
    let site = Site::new(&proxy::between(endpoint, judge), "");
    let queue = site.queue(&Settings { lease: Duration::from_secs(8), ..settings() }).await;
    let tasks = (0..50).map(|n| task("{}", &format!("t{n}"))).collect();
    assert!(queue.push(tasks).await.iter().all(Result::is_ok));
    lies.store(true, Ordering::SeqCst);
    (queue, asked)
}

/// Neither a short poll nor the counts prove that nothing is left; three long polls in a row do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_does_not_end_before_several_long_polls_were_empty() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    for until in [Until::Drained, Until::Idle] {
        // Two silences prove nothing yet.
        let (queue, asked) = silent(endpoint, 2).await;
        let handler = |_: Job| async { TaskResult::Ack };
        let worker = Worker::new(queue, handler).concurrency(10).until(until);
        let report = worker.run().await.unwrap();
        assert_eq!(report.completed, 50, "{until:?}: {:?}", asked.lock().unwrap());
        // What came began the count anew.
        let asked = asked.lock().unwrap();
        let after = asked.iter().rposition(|request| request == "D").unwrap();
        let long = asked[after..].iter().filter(|request| *request == "R2").count();
        assert!(long >= 3, "a quarter of the lease each: {asked:?}");
        assert_eq!(asked.last().unwrap(), "C", "and the counts agree at the end");
    }
}

/// What others hold cannot be claimed now, so a worker that ends when idle does not wait for it. Each of its
/// queues has to be sure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_ends_while_others_hold_tasks() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let (first, second) = (Site::new(endpoint, ""), Site::new(endpoint, ""));
    let holder = first.queue(&settings()).await;
    holder.push(vec![task("1", "a")]).await.remove(0).unwrap();
    let held = poll(&*holder, 1).await.remove(0);
    let queue = first.open(None).await.unwrap();
    let then = second.queue(&settings()).await;
    let worker = Worker::new(queue, |_: Job| async { TaskResult::Ack }).then(then);
    let worker = worker.lease(Duration::from_secs(20)).until(Until::Idle);
    assert_eq!(worker.run().await.unwrap(), Report::default());
    holder.ack(vec![held.receipt]).await.remove(0).unwrap();
}
