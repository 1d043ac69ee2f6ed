//! `dfq cp` and `dfq mv`: whole queues from provider to provider, by processes that are killed.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use dfq::Env;
use support::bucket::TestBucket;
use support::{Desk, short_or_long, sqs};

/// Tasks of every odd kind, as lines for `dfq push`. `DFQ_TEST_TASKS` says how many.
fn odd_tasks(least: usize) -> Vec<String> {
    let count = std::env::var("DFQ_TEST_TASKS").ok().and_then(|text| text.parse().ok());
    let task = |n: usize| match n % 10 {
        0 => r#"{}"#.to_owned(),
        1 => r#"{"z":1,"a":2,"m":{"z":[],"a":null}}"#.to_owned(),
        2 => r#"{"big":123456789012345678901234567890,"small":0.10,"e":1E+2}"#.to_owned(),
        3 => "{\"text\":\"Zürich 東京 🦀 \u{feff}\u{fffe}\u{ffff} \\u0000 \\ud83e\\udd80\"}"
            .to_owned(),
        4 => format!(r#"{{"deep":{}1{}}}"#, "[".repeat(60), "]".repeat(60)),
        5 => r#"[1, "two", {"three":3}]"#.to_owned(),
        6 => r#""only a word""#.to_owned(),
        7 => r#"{"payload":{"_d":1}, "id":7, "wrapped" : true}"#.to_owned(),
        8 if n % 500 == 8 => format!(r#"{{"long":"{}"}}"#, "ä".repeat(100_000)),
        8 => r#"{ "spaces"  :  [ 1 , 2 ]   }"#.to_owned(),
        _ => format!(r#"{{"n":{n},"url":"https://example.com/{n}?q=%20"}}"#),
    };
    (0..count.unwrap_or(least)).map(task).collect()
}

/// Pushes them with ids that are odd too; answers with payloads by id.
fn fill(desk: &Desk, queue: &str, tasks: &[String]) -> BTreeMap<String, String> {
    let id = |n: usize| match n % 4 {
        0 => format!("plain-{n}"),
        1 => format!("with space/and slash {n}"),
        2 => format!("ünïcode-東京-{n}"),
        _ => format!(".dot@{n}%"),
    };
    let mut lines = String::new();
    let mut expected = BTreeMap::new();
    for (n, payload) in tasks.iter().enumerate() {
        let payload = dfq::Payload::from_json(payload).unwrap();
        let id = dfq::TaskId::new(id(n)).unwrap();
        lines += &payload.with_id(&id);
        lines.push('\n');
        expected.insert(id.to_string(), payload.as_json().to_owned());
    }
    let pushed = desk.dfq_with(&["push", queue, "--jsonl", "-", "--quiet"], lines);
    assert_eq!(pushed.status, Some(0), "{}", pushed.err);
    expected
}

/// The payloads of all tasks that are pending, by id.
fn pending(desk: &Desk, queue: &str) -> BTreeMap<String, String> {
    let queue = desk.path(queue);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let queue = dfq::open(queue, dfq::OpenOptions::existing()).await.unwrap();
        let (mut cursor, mut all) = (None, BTreeMap::new());
        loop {
            let page = queue.list(cursor).await.unwrap();
            for view in page.tasks {
                if matches!(view.state.name(), "completed" | "failed") {
                    continue;
                }
                assert_eq!(view.state.name(), "ready");
                let payload = view.payload.unwrap().as_json().to_owned();
                assert!(all.insert(view.key.id().to_string(), payload).is_none(), "there twice");
            }
            cursor = page.next;
            if cursor.is_none() {
                return all;
            }
        }
    })
}

/// Runs a move that is killed so many times, each at a moment of chance, and then once to its end.
fn move_with_kills(desk: &Desk, from: &str, to: &str, kills: u32) -> u32 {
    let args = ["mv", from, to, "--lease", "5s"];
    let chance = Env::system();
    let mut killed = 0;
    for _ in 0..kills {
        let mut child = desk.start(&args);
        std::thread::sleep(Duration::from_millis(100 + chance.next_u64() % 1500));
        child.kill().unwrap();
        killed += u32::from(child.wait().unwrap().code().is_none());
    }
    let said = desk.dfq(&args);
    assert_eq!(said.status, Some(0), "after {killed} kills: {said:?}");
    killed
}

/// filesystem → SQS → S3 → filesystem.
fn around(kills: u32, least: usize) {
    let Some(endpoint) = sqs::ministack() else { return };
    let bucket = TestBucket::start();
    let mut variables = sqs::variables(endpoint);
    variables.retain(|(name, _)| !name.ends_with("KEY") && !name.ends_with("KEY_ID"));
    let desk = bucket.desk().and(variables);
    let (queue, in_bucket) = (format!("sqs://around-{kills}-{least}"), bucket.address("around"));
    let expected = fill(&desk, "./start", &odd_tasks(least));
    // The emulator hands a message out a hundred times before it takes it for hopeless.
    desk.ok(&["init", &queue, "--max-attempts", "100"]);
    let mut killed = 0;
    for (from, to) in [("./start", &*queue), (&queue, &in_bucket), (&in_bucket, "./end")] {
        killed += move_with_kills(&desk, from, to, kills);
    }
    assert!(killed > 0 || kills == 0, "none was killed on its way");
    let arrived = pending(&desk, "./end");
    assert_eq!(arrived.len(), expected.len());
    for (id, payload) in &expected {
        assert_eq!(arrived.get(id), Some(payload), "{id}");
    }
    for empty in ["./start", &in_bucket] {
        let stats = desk.ok(&["stats", empty, "--exact", "--json"]);
        assert!(stats.contains(r#""pending":0"#), "{stats}");
    }
}

#[test]
fn around_the_world() {
    around(0, short_or_long(300, 1000));
}

#[test]
fn around_the_world_by_processes_that_are_killed() {
    around(4, short_or_long(500, 1500));
}

#[test]
fn a_copy_starts_paused_and_is_made_once() {
    let desk = Desk::new();
    desk.ok(&["push", "./a", "id=x", "n=1"]);
    desk.ok(&["push", "./a", "id=later", "--delay", "1h"]);
    let all = [
        desk.dfq(&["cp", "./a", "./b"]),
        desk.dfq(&["stats", "./b", "--fast"]),
        desk.dfq(&["cp", "./a", "./b"]),
        desk.dfq(&["stats", "./b", "--fast"]),
        desk.dfq(&["mv", "./a", "./c"]),
        desk.dfq(&["stats", "./a", "--fast"]),
        desk.dfq(&["show", "./a", "x"]),
        desk.dfq(&["show", "./c", "x"]),
        desk.dfq(&["mv", "./c", "./c"]),
        desk.dfq(&["mv", "./nowhere", "./c"]),
        desk.dfq(&["push", "./d", "id=x", "n=2"]),
        desk.dfq(&["cp", "./d", "./c"]),
        desk.dfq(&["--json", "cp", "./d", "./c"]),
    ];
    assert_transcript!("cp_and_mv", desk.transcript(&all));
}

#[test]
fn what_a_worker_has_stays_where_it_is() {
    let desk = Desk::new();
    desk.ok(&["push", "./a", "id=x"]);
    desk.ok(&["push", "./a", "id=y"]);
    desk.ok(&["poll", "./a"]);
    let said = desk.dfq(&["mv", "./a", "./b"]);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.err.contains("1 task moved, 1 not, which others have"), "{}", said.err);
}

/// The first Ctrl-C ends it in good order: what it had claimed is given back or has arrived.
#[test]
fn a_move_can_be_stopped() {
    let desk = Desk::new();
    let tasks: Vec<String> =
        (0..short_or_long(1000, 3000)).map(|n| format!(r#"{{"n":{n}}}"#)).collect();
    let expected = fill(&desk, "./a", &tasks);
    let child = desk.start(&["mv", "./a", "./b"]);
    support::until("it has begun", || {
        std::fs::read_dir(desk.path("b/pending")).is_ok_and(|shards| shards.count() > 0)
    });
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert!(matches!(ended.status.code(), Some(0 | 1)), "{ended:?}");
    if ended.status.code() == Some(1) {
        assert!(err.contains("stopped, run it again to go on"), "{err}");
    }
    let stats = desk.ok(&["stats", "./a", "--json"]);
    assert!(stats.contains(r#""leased":0"#), "{stats}");
    desk.ok(&["mv", "./a", "./b"]);
    assert_eq!(pending(&desk, "./b"), expected);
}

/// SQS cannot tell what it has already: whoever copies there a second time must mean it.
#[test]
fn a_copy_to_and_from_sqs() {
    let Some(endpoint) = sqs::ministack() else { return };
    let desk = sqs::desk(endpoint);
    let expected = fill(&desk, "./a", &odd_tasks(30)[..30]);
    desk.ok(&["cp", "./a", "sqs://copied"]);
    let again = desk.dfq(&["cp", "./a", "sqs://copied"]);
    assert_eq!(again.status, Some(2), "{again:?}");
    assert!(again.err.contains("Say --yes"), "{}", again.err);
    for to in ["./b", "./c"] {
        // What is given back at the end of the first copy is there for the second.
        desk.ok(&["cp", "sqs://copied", to]);
        assert_eq!(pending(&desk, to), expected);
    }
}

/// What is copied stays hidden until all has been seen, so that it is received once, however short the
/// lease.
#[test]
fn a_copy_from_sqs_is_one_attempt() {
    let Some(endpoint) = sqs::ministack() else { return };
    let desk = sqs::desk(endpoint);
    for id in ["id=x", "id=y", "id=z"] {
        desk.ok(&["push", "sqs://once", id]);
    }
    desk.ok(&["cp", "sqs://once", "./b", "--lease", "2s"]);
    let polled = desk.ok(&["poll", "sqs://once"]);
    assert!(polled.contains(r#""attempt":2"#), "{polled}");
}

/// A FIFO queue knows a message again for five minutes. What comes a second time by another way is not
/// its double.
#[test]
fn there_and_back_by_a_fifo_queue() {
    let Some(endpoint) = sqs::ministack() else { return };
    let desk = sqs::desk(endpoint);
    let expected = fill(&desk, "./a", &odd_tasks(20)[..20]);
    for (from, to) in [("./a", "./b"), ("./b", "./a"), ("./a", "./c")] {
        desk.ok(&["mv", from, "sqs://back.fifo"]);
        desk.ok(&["mv", "sqs://back.fifo", to]);
        assert_eq!(pending(&desk, to), expected);
    }
}

#[test]
fn a_delay_that_the_other_queue_cannot_keep() {
    let Some(endpoint) = sqs::ministack() else { return };
    let desk = sqs::desk(endpoint);
    desk.ok(&["push", "./a", "id=tomorrow", "--delay", "1d"]);
    desk.ok(&["push", "./a", "id=now"]);
    let said = desk.dfq(&["mv", "./a", "sqs://delays"]);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.err.contains("task 'tomorrow'"), "{}", said.err);
    assert!(said.err.contains("15 minutes"), "{}", said.err);
    // It waits as long as it did, where it was.
    let shown = desk.ok(&["show", "./a", "tomorrow"]);
    assert!(shown.contains("scheduled"), "{shown}");
    let poll = desk.dfq(&["poll", "./a"]);
    assert_eq!(poll.status, Some(1), "{poll:?}");
}
