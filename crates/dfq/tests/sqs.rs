//! What is peculiar to SQS: its limits, its dead letters, messages that cannot be read, and what it costs.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "the server's clock is the machine's")]

mod sqs_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dfq::meter::RequestKind;
use dfq::model::Backoff;
use dfq::queue::{Detail, Nacked};
use dfq::worker::{Job, TaskResult, Until, Worker};
use dfq::{
    Delivery, ErrorKind, Nack, NewTask, OpenOptions, PollRequest, Pushed, Queue, Receipt, Settings,
    TaskId,
};
use sqs_support::Site;

fn settings() -> Settings {
    let backoff = Backoff { base: Duration::ZERO, max: Duration::ZERO };
    Settings { lease: Duration::from_secs(60), max_attempts: 3, backoff, ..Settings::default() }
}

fn task(json: &str, id: &str) -> NewTask {
    NewTask::from_json(json).unwrap().id(TaskId::new(id).unwrap())
}

async fn poll(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.poll(PollRequest::new(max)).await.unwrap().deliveries
}

async fn claim(queue: &dyn Queue) -> Delivery {
    let mut got = poll(queue, 1).await;
    assert_eq!(got.len(), 1, "there is one task to be had");
    got.remove(0)
}

fn nack(receipt: &Receipt, error: &str) -> Vec<Nack> {
    vec![Nack { receipt: receipt.clone(), error: error.into(), delay: Some(Duration::ZERO) }]
}

/// Every payload that went in comes out, byte for byte, whatever the order.
async fn there_and_back(queue: &dyn Queue, payloads: &BTreeMap<String, String>) {
    let tasks = payloads.iter().map(|(id, json)| task(json, id)).collect();
    for pushed in queue.push(tasks).await {
        assert!(matches!(pushed, Ok(Pushed::Created(_))), "{pushed:?}");
    }
    let mut got = BTreeMap::new();
    while got.len() < payloads.len() {
        let batch = poll(queue, 25).await;
        assert!(!batch.is_empty(), "{} of {} came back", got.len(), payloads.len());
        let receipts = batch.iter().map(|delivery| delivery.receipt.clone()).collect();
        for delivery in &batch {
            got.insert(delivery.id().to_string(), delivery.payload.as_json().to_owned());
        }
        assert!(queue.ack(receipts).await.iter().all(Result::is_ok));
    }
    assert!(got == *payloads, "payloads have changed on the way");
}

fn odd_payloads() -> BTreeMap<String, String> {
    let big = format!("{{\"text\":\"{}\"}}", "x€".repeat(50_000));
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let controls: String = (0..32).map(|c| format!("\\u{c:04x}")).collect();
    let c1: String = ('\u{7f}'..='\u{a0}').collect();
    let odd = [
        "{}".to_owned(),
        "[]".into(),
        "null".into(),
        "\"\"".into(),
        "{ \"b\" :1,\t\"a\":2,\r\n \"b\":3 }".into(),
        "{\"n\":12345678901234567890123, \"m\":-0.0, \"e\":1e400, \"f\":9007199254740993}".into(),
        "{\"ä\":\"päivä 😀 \u{200b}\u{feff}\u{fffd}\"}".into(),
        "{\"raw\":\"\u{fffe}\u{ffff}\",\"escaped\":\"\\ufffe\"}".into(),
        "{\"far\":\"\u{1fffe}\u{10ffff}\"}".into(),
        format!("\"{controls}{c1}\""),
        deep,
        big,
    ];
    odd.into_iter().enumerate().map(|(at, json)| (format!("p{at}"), json)).collect()
}

#[tokio::test]
async fn odd_payloads_come_back_byte_for_byte() {
    for endpoint in [sqs_support::ministack(), sqs_support::fauxqs()].into_iter().flatten() {
        for suffix in ["", ".fifo"] {
            let site = Site::new(endpoint, suffix);
            there_and_back(&*site.queue(&settings()).await, &odd_payloads()).await;
        }
    }
}

#[tokio::test]
async fn odd_payloads_come_back_from_the_dead_letters() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    let payloads = odd_payloads();
    queue.push(payloads.iter().map(|(id, json)| task(json, id)).collect()).await;
    let held = poll(&*queue, 50).await;
    let failures = held.iter().map(|held| (held.receipt.clone(), "\u{ffff} no".to_owned()));
    assert!(queue.fail(failures.collect()).await.iter().all(Result::is_ok));
    let dead = site.dead_letters().await;
    let mut buried = poll(&*dead, 50).await;
    buried.sort_by(|a, b| a.key.cmp(&b.key));
    let found: BTreeMap<String, String> = buried
        .iter()
        .map(|buried| (buried.id().to_string(), buried.payload.as_json().to_owned()))
        .collect();
    assert!(found == payloads, "payloads have changed on the way");
    let (client, url) = Site { name: site.dead_letter.clone().unwrap(), ..site }.bare().await;
    dead.nack(nack(&buried[0].receipt, "")).await.remove(0).unwrap();
    let raw = client.receive_message().queue_url(url).send().await.unwrap();
    let text = raw.messages()[0].body().unwrap();
    assert!(text.contains(r#""outcome":"failed","reason":""#), "{text}");
}

#[tokio::test]
async fn three_requests_for_ten_tasks() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    let before = site.meter.counts();
    for round in 0..5 {
        let tasks = (0..10).map(|n| task("{}", &format!("{round}-{n}"))).collect();
        assert!(queue.push(tasks).await.iter().all(Result::is_ok));
        let held = poll(&*queue, 10).await;
        assert_eq!(held.len(), 10);
        let receipts = held.into_iter().map(|held| held.receipt).collect();
        assert!(queue.ack(receipts).await.iter().all(Result::is_ok));
    }
    let counts = site.meter.counts();
    for kind in [RequestKind::Send, RequestKind::Receive, RequestKind::Remove] {
        assert_eq!((counts[&kind].sent, counts[&kind].failed), (5, 0), "{kind:?}");
    }
    assert_eq!(counts.get(&RequestKind::Manage), before.get(&RequestKind::Manage));
    assert_eq!(counts.get(&RequestKind::Hide), None);

    // Also in one large batch: what does not fit into one request takes as many as it must.
    let before = site.meter.counts();
    let tasks = (0..100).map(|n| task("{}", &format!("large-{n}"))).collect();
    assert!(queue.push(tasks).await.iter().all(Result::is_ok));
    let held = poll(&*queue, 100).await;
    assert_eq!(held.len(), 100);
    queue.heartbeat(held.iter().map(|held| held.receipt.clone()).collect()).await;
    queue.ack(held.into_iter().map(|held| held.receipt).collect()).await;
    let after = site.meter.counts();
    for kind in [RequestKind::Send, RequestKind::Receive, RequestKind::Remove] {
        assert_eq!(after[&kind].sent - before[&kind].sent, 10, "{kind:?}");
    }
    assert_eq!(after[&RequestKind::Hide].sent, 10);
}

#[tokio::test]
async fn a_request_that_finds_nobody_is_counted_each_time() {
    let site = Site::new("http://127.0.0.1:9", "");
    let refused = site.open(None).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let counts = site.meter.counts();
    assert_eq!(counts[&RequestKind::Manage].sent, 6, "retries are requests");
    assert_eq!(counts[&RequestKind::Manage].failed, 6);
}

#[tokio::test]
async fn what_is_too_large_keeps_nobody_out() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    let sized = |bytes: usize| format!("\"{}\"", "x".repeat(bytes));
    let mut tasks: Vec<NewTask> = (0..9).map(|n| task(&sized(300_000), &format!("t{n}"))).collect();
    tasks.insert(4, task(&sized(1024 * 1024), "whale"));
    let answers = queue.push(tasks).await;
    let bad: Vec<usize> = (0..10).filter(|at| answers[*at].is_err()).collect();
    assert_eq!(bad, [4]);
    let error = answers[4].clone().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("task 'whale' takes 1048"), "{error}");
    assert_eq!(poll(&*queue, 20).await.len(), 9);
    assert_eq!(site.meter.counts()[&RequestKind::Send].failed, 0, "it was not even sent");
}

#[tokio::test]
async fn what_the_server_refuses_keeps_nobody_out() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    // The limit is lowered behind our back.
    let (client, url) = site.bare().await;
    let name = aws_sdk_sqs::types::QueueAttributeName::MaximumMessageSize;
    client.set_queue_attributes().queue_url(url).attributes(name, "1024").send().await.unwrap();
    let long = format!("\"{}\"", "x".repeat(2000));
    let answers = queue.push(vec![task("1", "a"), task(&long, "b"), task("3", "c")]).await;
    let bad: Vec<usize> = (0..3).filter(|at| answers[*at].is_err()).collect();
    assert_eq!(bad, [1]);
    let error = answers[1].clone().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().starts_with("task 'b': "), "{error}");
    assert_eq!(poll(&*queue, 10).await.len(), 2);
    // Whoever opens it now knows before sending.
    let error = site.open(None).await.unwrap().push(vec![task(&long, "d")]).await.remove(0);
    assert!(error.unwrap_err().to_string().contains("the limit"), "said by us");
}

#[tokio::test]
async fn what_cannot_be_read_is_left_to_the_redrive_policy() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&Settings { lease: Duration::from_secs(4), ..settings() }).await;
    let (client, url) = site.bare().await;
    // Each has the member that is ours, and not as we write it.
    let broken = ["{\"_dfq\":{\"id\":7}}", "{\"_dfq\":1}", "{\"_dfq\":{\"id\":\"\"}}"];
    for body in broken {
        client.send_message().queue_url(&url).message_body(body).send().await.unwrap();
    }
    queue.push(vec![task("{}", "ours")]).await.remove(0).unwrap();
    let mut ours = Vec::new();
    for _ in 0..150 {
        for delivery in poll(&*queue, 10).await {
            ours.push(delivery.id().to_string());
            queue.ack(vec![delivery.receipt]).await.remove(0).unwrap();
        }
        let stats = queue.stats(Detail::Counts).await.unwrap();
        if stats.failed == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(ours, ["ours"]);
    let stats = queue.stats(Detail::Counts).await.unwrap();
    assert_eq!((stats.pending, stats.failed), (0, 3), "all there, untouched");
}

#[tokio::test]
async fn without_dead_letters_nothing_is_given_up() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site { dead_letter: None, ..Site::new(endpoint, "") };
    let queue = site.queue(&settings()).await;
    queue.push(vec![task("{}", "a")]).await.remove(0).unwrap();
    for attempt in 1..=4 {
        let held = claim(&*queue).await;
        assert_eq!(held.attempt, attempt);
        let failed = queue.fail(vec![(held.receipt.clone(), "no".into())]).await.remove(0);
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("no dead-letter queue"), "{error}");
        let nacked = queue.nack(nack(&held.receipt, "no")).await.remove(0).unwrap();
        assert_eq!(nacked, Nacked::Again(Duration::ZERO), "it would be lost otherwise");
    }
}

#[tokio::test]
async fn the_redrive_policy_alone_will_do() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let named = Site::new(endpoint, "");
    named.queue(&settings()).await;
    // Opened by somebody who named no dead-letter queue: the policy tells where it is.
    let site = Site { dead_letter: None, ..named.clone() };
    let queue = site.open(None).await.unwrap();
    assert_eq!(queue.settings().max_attempts, 3);
    queue.push(vec![task("1", "a"), task("2", "b").max_attempts(1)]).await;
    for held in poll(&*queue, 2).await {
        let last = held.id().as_str() == "b";
        let nacked = queue.nack(nack(&held.receipt, "no")).await.remove(0).unwrap();
        assert_eq!(nacked == Nacked::GivenUp, last, "{nacked:?}");
    }
    for _ in 0..2 {
        queue.nack(nack(&claim(&*queue).await.receipt, "no")).await.remove(0).unwrap();
    }
    assert!(poll(&*queue, 1).await.is_empty());
    let dead = named.dead_letters().await;
    let mut names: Vec<String> =
        poll(&*dead, 5).await.iter().map(|held| held.id().to_string()).collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn a_named_dead_letter_queue_does_without_a_policy() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let bare = Site { dead_letter: None, ..site.clone() };
    bare.queue(&Settings { lease: Duration::from_secs(1), ..settings() }).await;
    let grave = Site { dead_letter: None, name: site.dead_letter.clone().unwrap(), ..site.clone() };
    grave.queue(&settings()).await;
    let limits = OpenOptions { max_attempts: Some(2), ..OpenOptions::default() };
    let address = dfq::address::SqsAddress::parse(&site.name).unwrap();
    let queue =
        dfq::sqs::Sqs::open(address, OpenOptions { sqs: site.options(), ..limits }).await.unwrap();
    queue.push(vec![task("1", "fails")]).await.remove(0).unwrap();
    for last in [false, true] {
        let long = PollRequest { lease: Some(Duration::from_secs(60)), ..PollRequest::new(1) };
        let held = queue.poll(long).await.unwrap().deliveries.remove(0);
        let nacked = queue.nack(nack(&held.receipt, "no")).await.remove(0).unwrap();
        assert_eq!(nacked == Nacked::GivenUp, last);
    }
    // One that kills its workers is handed out as often as leases may be lost, and no more.
    queue.push(vec![task("2", "kills")]).await.remove(0).unwrap();
    let mut times = 0;
    while queue.stats(Detail::Counts).await.unwrap().pending > 0 {
        times += poll(&*queue, 1).await.len();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(times, 10, "max_lost");
    assert_eq!(poll(&*site.dead_letters().await, 5).await.len(), 2);
}

#[tokio::test]
async fn opening_says_what_is_wrong() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let kind = |opened: dfq::Result<Arc<dyn Queue>>| opened.err().unwrap().kind();
    assert_eq!(kind(site.open(None).await), ErrorKind::NotFound);
    let long = Settings { lease: Duration::from_secs(13 * 3600), ..settings() };
    assert_eq!(kind(site.open(Some(long)).await), ErrorKind::Unsupported);
    let mixed = Site { dead_letter: Some("dead.fifo".into()), ..site.clone() };
    assert_eq!(kind(mixed.open(Some(settings())).await), ErrorKind::Invalid);
    let itself = Site { dead_letter: Some(site.name.clone()), ..site.clone() };
    assert_eq!(kind(itself.open(Some(settings())).await), ErrorKind::Invalid);
    // By its URL, too.
    site.queue(&settings()).await;
    let (_, url) = site.bare().await;
    let (name, by_options) = (format!("sqs://{}", site.name), site.options());
    let by_url = Site { name: url.clone(), ..site }.open(None).await.unwrap();
    assert_eq!(by_url.address(), url);
    assert_eq!(by_url.settings().lease, Duration::from_secs(60));
    by_url.push(vec![task("{}", "a")]).await.remove(0).unwrap();
    assert_eq!(poll(&*by_url, 1).await.len(), 1);
    // And as any address.
    let open = OpenOptions { sqs: by_options, ..OpenOptions::default() };
    let queue = dfq::open(name.as_str(), open).await.unwrap();
    assert_eq!((queue.address(), queue.capabilities().provider), (name.as_str(), "sqs"));
}

#[tokio::test]
async fn groups_of_a_fifo_queue_keep_their_order() {
    for endpoint in [sqs_support::ministack(), sqs_support::fauxqs()].into_iter().flatten() {
        let site = Site { group: Some("of".into()), ..Site::new(endpoint, ".fifo") };
        let queue = site.queue(&settings()).await;
        let json = |n: usize| format!("{{\"of\":\"{}\",\"n\":{n}}}", ["x y", "z"][n % 2]);
        let tasks = (0..40).map(|n| task(&json(n), &format!("t{n}"))).collect();
        assert!(queue.push(tasks).await.iter().all(Result::is_ok));
        let mut orders: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        while orders.values().map(Vec::len).sum::<usize>() < 40 {
            let batch = poll(&*queue, 10).await;
            assert!(!batch.is_empty());
            for held in batch {
                let group = held.payload.string_member("of").unwrap();
                orders.entry(group).or_default().push(held.payload.integer_member("n").unwrap());
                queue.ack(vec![held.receipt]).await.remove(0).unwrap();
            }
        }
        for order in orders.values() {
            assert!(order.is_sorted() && order.len() == 20, "{order:?}");
        }
    }
}

/// A worker copes with all that SQS cannot do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_drains_a_queue() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    let tasks = (0..200).map(|n| task(&format!("{{\"n\":{n}}}"), &format!("t{n}"))).collect();
    assert!(queue.push(tasks).await.iter().all(Result::is_ok));
    let handler = |job: Job| async move {
        let n = job.delivery.payload.integer_member("n").unwrap();
        match (n, job.delivery.attempt) {
            (3, _) => TaskResult::Fail { reason: "hopeless".into() },
            (5, _) => TaskResult::Retry { error: "again".into(), delay: None },
            (7, 1) => TaskResult::Release { reason: None, delay: None },
            _ => TaskResult::Ack,
        }
    };
    let worker = Worker::new(queue, handler).concurrency(20).until(Until::Drained);
    // The end of a queue is listened for in quarters of the lease.
    let worker = worker.lease(Duration::from_secs(12));
    let report = worker.run().await.unwrap();
    assert_eq!((report.completed, report.failed, report.released), (198, 2, 1), "{report:?}");
    assert_eq!(poll(&*site.dead_letters().await, 5).await.len(), 2);
}

/// A stop loses nothing for the length of a lease, not even what a long poll had just brought.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_gives_back_what_it_was_waiting_for() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    assert!(poll(&*queue, 1).await.is_empty());
    // Somebody waits, and then does not care any more.
    let impatient = queue.wait(Duration::from_secs(15));
    tokio::select! { () = impatient => {}, () = tokio::time::sleep(Duration::from_millis(300)) => {} }
    let other = site.open(None).await.unwrap();
    other.push(vec![task("{}", "a")]).await.remove(0).unwrap();
    queue.close().await;
    let mut found = poll(&*other, 1).await;
    assert_eq!(found.len(), 1, "it need not wait for its lease to run out");
    assert_eq!(found.remove(0).attempt, 2, "the long poll had it");
}

/// What a long poll brought is handed out by the next poll, without another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_waited_for_is_there() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let (queue, other) = (site.queue(&settings()).await, site.open(None).await.unwrap());
    assert!(poll(&*queue, 5).await.is_empty());
    let (asked, ()) = tokio::join!(
        async {
            queue.wait(Duration::from_secs(10)).await;
            site.meter.counts()[&RequestKind::Receive].sent
        },
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            other.push(vec![task("{}", "a")]).await.remove(0).unwrap();
        },
    );
    let held = claim(&*queue).await;
    assert_eq!(site.meter.counts()[&RequestKind::Receive].sent, asked);
    assert_eq!(held.attempt, 1);
    queue.ack(vec![held.receipt]).await.remove(0).unwrap();
}
