//! Messages that other programs sent, such as boto3: they are tasks like any other, and go to the dead
//! letters as they came.

#![allow(clippy::unwrap_used, reason = "tests")]

mod sqs_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName};
use dfq::queue::Nacked;
use dfq::transfer::{Mode, Report, Transfer};
use dfq::worker::{Job, TaskResult, Until, Worker};
use dfq::{Delivery, Env, Nack, OpenOptions, PollRequest, Queue, Receipt, Settings};
use sqs_support::Site;

/// A `QueueMessage` of the Python workers, as pydantic writes it.
const QUEUE_MESSAGE: &str = r#"{"id": "0b9c-acme", "schema_version": 1, "domain": "acme.example",
 "company_slug": "acme", "campaign_name": "spring", "attempts": 0, "created_at": "2025-11-03T09:12:45Z"}"#;

/// Bodies that say no id, or none that can be one, and the payloads that they become.
const WITHOUT_ID: [(&str, &str); 8] = [
    (r#"{"url":"x", "n":12345678901234567890}"#, r#"{"url":"x", "n":12345678901234567890}"#),
    (r#"{"id":7}"#, r#"{"id":7}"#),
    (r#"{"id":""}"#, r#"{"id":""}"#),
    ("hello \"wörld\"\n", r#"{"body":"hello \"wörld\"\n"}"#),
    ("[1, 2]", r#"{"body":"[1, 2]"}"#),
    ("42", r#"{"body":"42"}"#),
    (r#""text""#, r#"{"body":"\"text\""}"#),
    (r#"{"torn":"#, r#"{"body":"{\"torn\":"}"#),
];

fn settings() -> Settings {
    Settings { lease: Duration::from_secs(60), max_attempts: 3, ..Settings::default() }
}

fn text(value: &str) -> MessageAttributeValue {
    MessageAttributeValue::builder().data_type("String").string_value(value).build().unwrap()
}

/// Sends a body as other programs do. Answers its MessageId.
async fn send(site: &Site, body: &str) -> String {
    let (client, url) = site.bare().await;
    let fifo = site.name.ends_with(".fifo");
    let send = client.send_message().queue_url(url).message_body(body);
    let send = send
        .set_message_group_id(fifo.then(|| "their group".replace(' ', "-")))
        .set_message_deduplication_id(fifo.then(|| Env::system().nonce()))
        .message_attributes("trace", text("abc-1"));
    send.send().await.unwrap().message_id.unwrap()
}

async fn poll(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.poll(PollRequest::new(max)).await.unwrap().deliveries
}

async fn claim(queue: &dyn Queue) -> Delivery {
    let mut got = poll(queue, 1).await;
    assert_eq!(got.len(), 1, "there is one task to be had");
    got.remove(0)
}

fn nack(receipt: &Receipt) -> Vec<Nack> {
    let delay = Some(Duration::ZERO);
    vec![Nack { receipt: receipt.clone(), error: "no".into(), delay }]
}

/// What lies in the dead-letter queue, as other programs see it.
async fn buried(site: &Site) -> Vec<Message> {
    let (client, url) =
        Site { name: site.dead_letter.clone().unwrap(), ..site.clone() }.bare().await;
    let receive = client.receive_message().queue_url(url).max_number_of_messages(10);
    let receive = receive
        .visibility_timeout(0)
        .message_attribute_names("All")
        .message_system_attribute_names(MessageSystemAttributeName::All);
    receive.send().await.unwrap().messages.unwrap_or_default()
}

fn attribute<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.message_attributes()?.get(name)?.string_value()
}

#[tokio::test]
async fn a_message_of_another_program_is_a_task() {
    for endpoint in [sqs_support::ministack(), sqs_support::fauxqs()].into_iter().flatten() {
        let site = Site::new(endpoint, "");
        let queue = site.queue(&settings()).await;
        let mut sent = BTreeMap::new();
        for (body, payload) in WITHOUT_ID {
            sent.insert(send(&site, body).await, payload);
        }
        send(&site, QUEUE_MESSAGE).await;
        sent.insert("0b9c-acme".to_owned(), QUEUE_MESSAGE);
        let held = poll(&*queue, 20).await;
        let found: BTreeMap<String, &str> =
            held.iter().map(|held| (held.id().to_string(), held.payload.as_json())).collect();
        assert_eq!(found, sent);
        for held in &held {
            assert_eq!((held.attempt, held.key.generation()), (1, 1));
            assert!(held.meta.created_at.is_some(), "SQS knows when it was sent");
            queue.heartbeat(vec![held.receipt.clone()]).await.remove(0).unwrap();
            let nacked = queue.nack(nack(&held.receipt)).await.remove(0).unwrap();
            assert_eq!(nacked, Nacked::Again(Duration::ZERO));
        }
        let again = poll(&*queue, 20).await;
        assert_eq!(again.len(), sent.len());
        for held in again {
            assert_eq!((held.attempt, sent.contains_key(held.id().as_str())), (2, true));
            queue.ack(vec![held.receipt]).await.remove(0).unwrap();
        }
        assert!(poll(&*queue, 20).await.is_empty());
    }
}

/// Given up at once, or after too many attempts: the body and its attributes are those that came, and
/// dfq finds the same task there.
#[tokio::test]
async fn it_goes_to_the_dead_letters_as_it_came() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    for suffix in ["", ".fifo"] {
        for body in [QUEUE_MESSAGE, "hello", r#"{"url":"x"}"#] {
            let site = Site::new(endpoint, suffix);
            let queue = site.queue(&settings()).await;
            send(&site, body).await;
            let (mut held, mut nacked) = (claim(&*queue).await, None);
            let (id, payload) = (held.id().clone(), held.payload.clone());
            if body == "hello" {
                let failures = vec![(held.receipt, "\u{1b}[31mno\u{ffff} 😀".to_owned())];
                queue.fail(failures).await.remove(0).unwrap();
            } else {
                for _ in 1..3 {
                    queue.nack(nack(&held.receipt)).await.remove(0).unwrap();
                    held = claim(&*queue).await;
                }
                nacked = Some(queue.nack(nack(&held.receipt)).await.remove(0).unwrap());
            }
            assert!(nacked.is_none_or(|nacked| nacked == Nacked::GivenUp), "{nacked:?}");
            assert!(poll(&*queue, 1).await.is_empty());
            let dead = buried(&site).await.remove(0);
            assert_eq!(dead.body(), Some(body));
            assert_eq!(attribute(&dead, "trace"), Some("abc-1"));
            let reason = attribute(&dead, "dfq.reason").unwrap();
            assert!(reason.contains("no"), "{reason}");
            let group = dead.attributes().unwrap().get(&MessageSystemAttributeName::MessageGroupId);
            assert_eq!(group.map(String::as_str), (suffix == ".fifo").then_some("their-group"));

            let grave = site.dead_letters().await;
            let found = claim(&*grave).await;
            assert_eq!((found.id(), &found.payload), (&id, &payload));
            grave.ack(vec![found.receipt]).await.remove(0).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_works_on_them() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    for body in ["fail", "retry", "release", "{\"id\":\"ack\"}"] {
        send(&site, body).await;
    }
    let handler = |job: Job| async move {
        let body = job.delivery.payload.string_member("body");
        match (body.as_deref(), job.delivery.attempt) {
            (Some("fail"), _) => TaskResult::Fail { reason: "hopeless".into() },
            (Some("retry"), 1) => {
                TaskResult::Retry { error: "again".into(), delay: Some(Duration::ZERO) }
            }
            (Some("release"), 1) => TaskResult::Release { reason: None, delay: None },
            _ => TaskResult::Ack,
        }
    };
    let worker = Worker::new(queue, handler).concurrency(4).lease(Duration::from_secs(8));
    let report = worker.until(Until::Drained).run().await.unwrap();
    assert_eq!((report.completed, report.failed), (3, 1), "{report:?}");
    assert_eq!(buried(&site).await[0].body(), Some("fail"));
}

/// Copied and then moved: the tree knows each by its MessageId.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_moved_to_a_tree() {
    let Some(endpoint) = sqs_support::ministack() else { return };
    let site = Site::new(endpoint, "");
    let queue = site.queue(&settings()).await;
    let mut ids = vec!["0b9c-acme".to_owned()];
    send(&site, QUEUE_MESSAGE).await;
    for body in ["hello", "{}"] {
        ids.push(send(&site, body).await);
    }
    ids.sort();
    let address = format!("memory://{}", site.name);
    let tree = dfq::open(address.as_str(), OpenOptions::create()).await.unwrap();
    for mode in [Mode::Copy, Mode::Move] {
        let transfer = Transfer::new(Arc::clone(&queue), Arc::clone(&tree), mode, Env::system());
        let report = transfer.unwrap().run(&mut |_| {}).await.unwrap();
        assert_eq!(report, Report { done: 3, ..Report::default() });
        let there = tree.peek(10).await.unwrap();
        let mut found: Vec<String> = there.iter().map(|view| view.key.id().to_string()).collect();
        found.sort();
        assert_eq!(found, ids, "{mode:?}");
        let acme = there.iter().find(|view| view.key.id().as_str() == "0b9c-acme").unwrap();
        assert_eq!(acme.payload.as_ref().unwrap().as_json(), QUEUE_MESSAGE);
    }
    assert!(poll(&*queue, 5).await.is_empty());
}
