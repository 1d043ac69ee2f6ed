//! What fuzzing has found, one test for each. The targets are in the crate `dfq-fuzz`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use dfq::address::Address;
use dfq::clock::{ManualClock, SeededChance};
use dfq::conformance::parsers;
use dfq::model::{Backoff, TaskMeta};
use dfq::queue::Purge;
use dfq::store::Objects;
use dfq::store::memory::Memory;
use dfq::{
    Env, ErrorKind, NewTask, OpenOptions, Outcome, PollRequest, Queue, Receipt, Result, TaskId,
    TaskKey, TreeQueue,
};
use futures::executor::block_on;
use jiff::Timestamp;

fn key(id: &str) -> TaskKey {
    TaskKey::new(TaskId::new(id).unwrap(), 1)
}

/// A queue in memory, and its store and clock.
fn in_memory() -> (TreeQueue<Memory>, Memory, ManualClock) {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(7)));
    let store = Memory::new(env.clone());
    let options = OpenOptions { env, ..OpenOptions::create() };
    (block_on(TreeQueue::open(store.clone(), options)).unwrap(), store, clock)
}

#[test]
fn a_path_with_a_scheme_in_it_is_a_path() {
    for text in ["./a://b", "file:////s3://b"] {
        let address: Address = text.parse().unwrap();
        assert!(matches!(address, Address::Directory(_)), "{address:?}");
        assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }
}

#[test]
fn an_empty_campaign_is_refused() {
    let error = parsers::config("campaign = \"\"\n[queues.a]\n").unwrap_err();
    assert_eq!(error.to_string(), "the campaign's name is empty");
}

#[test]
fn a_root_with_a_nul_character_is_refused() {
    let error = parsers::config("root = \"a\\u0000b\"\n[queues.a]\n").unwrap_err();
    assert_eq!(error.to_string(), "root cannot contain a NUL character");
}

#[test]
fn a_name_whose_bucket_address_would_be_too_long_is_refused() {
    let prefix = "p".repeat(690);
    let text = format!("provider = \"s3\"\nbucket = \"s3://b/{prefix}\"\n[queues.a]\n");
    let error = parsers::config(&text).unwrap().resolve("a").unwrap_err();
    assert!(error.to_string().contains("more than 700 bytes"), "{error}");
}

#[test]
fn a_floor_beyond_all_lives_is_not_read() {
    for (generation, is_read) in [(0, false), (1, true), (1_000_000_000, true), (u32::MAX, false)] {
        let file = format!(
            "{{\"floors\":[\n{{\"id\":\"a\",\"generation\":{generation},\
             \"at\":\"2026-11-15T22:20:00Z\"}}\n]}}\n"
        );
        assert_eq!(parsers::decode_floors(file.as_bytes()).is_some(), is_read, "{generation}");
    }
}

/// SQS carries the life in the body, so there is no name that must agree.
#[test]
fn a_life_that_has_no_name_is_damaged() {
    let read = |generation: u32| -> Result<TaskMeta> {
        let body = format!("{{\"_dfq\":{{\"id\":\"a\",\"generation\":{generation}}}}}");
        Ok(parsers::split_payload(&body)?.1.unwrap())
    };
    assert_eq!(read(1_000_000_000).unwrap().generation, 1_000_000_000);
    for generation in [0, 1_000_000_001, u32::MAX] {
        assert_eq!(read(generation).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

/// It was read as a task with the payload `{}`, which a retry would have pushed.
#[test]
fn a_record_whose_damaged_bytes_cannot_be_read_is_damaged() {
    for hex in ["zz", "+f+f", "abc", "ä"] {
        let record = format!("{{\"_dfq\":{{\"id\":\"a\",\"damaged_hex\":\"{hex}\"}}}}");
        let read = parsers::decode_record(record.as_bytes(), Outcome::Failed, &key("a"));
        assert!(read.is_err(), "{hex}");
    }
}

#[test]
fn a_time_before_the_year_zero_is_never_due() {
    let before: Timestamp = "-000002-12-17T14:13:21Z".parse().unwrap();
    assert_eq!(parsers::due_after(before, Duration::ZERO), None);
    let first: Timestamp = "0000-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(parsers::due_after(first, Duration::ZERO), Some(("00000101T0000Z".into(), first)));
}

#[test]
fn a_backoff_without_a_limit_does_not_overflow() {
    let backoff = Backoff { base: Duration::MAX, max: Duration::MAX };
    assert!(backoff.wait(40, 1.0) >= Duration::MAX / 2);
}

#[test]
fn a_receipt_of_the_last_possible_attempt_is_only_wrong() {
    let (queue, ..) = in_memory();
    block_on(async {
        let task = NewTask::from_json("{\"id\":\"a\"}").unwrap();
        queue.push(vec![task]).await.remove(0).unwrap();
        queue.poll(PollRequest::new(1)).await.unwrap();
        let receipt: Receipt = "a/4294967295/nonce".parse().unwrap();
        queue.ack(vec![receipt.clone()]).await.remove(0).unwrap_err();
        queue.heartbeat(vec![receipt]).await.remove(0).unwrap_err();
    });
}

/// Earlier lives were put back one by one, and there are none: a thousand million writes for one stray key.
#[test]
fn a_key_of_the_last_possible_life_costs_no_more_than_others() {
    let (queue, store, clock) = in_memory();
    block_on(async {
        let shard = |id: &str| parsers::task_dir(dfq::model::Layout::Sharded, &key(id));
        let [a, b] = ["a", "b"].map(|id| shard(id)["pending/".len()..].to_owned());
        let put = |path: String| {
            let store = store.clone();
            async move { store.objects().put(&path, b"{}\n").await.unwrap() }
        };
        put(format!("completed/{a}@1000000000.json")).await;
        put(format!("pending/{b}@1000000000/task.json")).await;
        put("scheduled/20270115T0801Z/c@1000000000/task.json".to_owned()).await;
        clock.advance(Duration::from_secs(3600));
        let polled = queue.poll(PollRequest::new(9)).await.unwrap();
        for delivery in polled.deliveries {
            let _ = queue.ack(vec![delivery.receipt]).await;
        }
        clock.advance(Duration::from_secs(30 * 3600));
        for outcome in [Outcome::Completed, Outcome::Failed] {
            queue
                .purge(Purge { outcome, older_than: Duration::from_secs(7200), dry_run: false })
                .await
                .unwrap();
        }
    });
}
