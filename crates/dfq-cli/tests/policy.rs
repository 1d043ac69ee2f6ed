//! Each role can do its job with exactly what its policy allows, and with nothing less.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::time::{Duration, Instant};

use dfq_s3_server::{Fault, Rules};
use support::bucket::TestBucket;
use support::{Desk, Said};

/// The statements of a policy, one permission at a time: an action, and a pattern of keys.
fn permissions(bucket: &TestBucket, policy: &str) -> Vec<(String, String)> {
    let policy: serde_json::Value = serde_json::from_str(policy).unwrap();
    let arn = format!("arn:aws:s3:::{}", bucket.server.bucket());
    let mut all = Vec::new();
    for statement in policy["Statement"].as_array().unwrap() {
        assert_eq!(statement["Effect"], "Allow");
        let action = statement["Action"].as_str().unwrap().to_owned();
        let patterns: Vec<&str> = match &statement["Resource"] {
            serde_json::Value::String(only) => {
                assert_eq!(*only, arn, "a listing is of the bucket");
                vec![statement["Condition"]["StringLike"]["s3:prefix"].as_str().unwrap()]
            }
            many => {
                let many = many.as_array().unwrap().iter();
                many.map(|it| it.as_str().unwrap().strip_prefix(&format!("{arn}/")).unwrap())
                    .collect()
            }
        };
        all.extend(patterns.into_iter().map(|pattern| (action.clone(), pattern.to_owned())));
    }
    all
}

/// What was said, without what differs from run to run: numbers, and times with their units.
fn said(all: &[Said]) -> String {
    let word = |word| if str::starts_with(word, char::is_numeric) { "#" } else { word };
    let lines = all.iter().map(|said| {
        let err = said.err.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
        format!("{} {:?} {err}", said.command, said.status)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The answer to the first write of a name that ends so is lost, once.
fn lose_an_answer(bucket: &TestBucket, end: &'static str) {
    bucket.server.on(move |request| {
        let hit = request.op == "PutObject" && request.key.ends_with(end) && request.nth == 1;
        hit.then_some(Fault::LoseAnswer)
    });
}

/// What a job took that was allowed everything: requests and time.
#[derive(Clone, Copy)]
struct Enough {
    requests: u64,
    time: Duration,
}

/// What the doctor leaves at a store that must not be used.
const REFUSED: &str =
    r#"{"verdict":"refused","cause":"two won","examined_at":"2026-11-01T00:00:00Z"}"#;

fn produce(bucket: &TestBucket, desk: &Desk, queue: &str, _: Option<Enough>) -> String {
    lose_an_answer(bucket, "a/task.json");
    let mut all = vec![
        desk.dfq(&["push", queue, "id=a"]),
        desk.dfq(&["push", queue, "id=a"]),
        desk.dfq(&["push", queue, "n=1"]),
        desk.dfq(&["push", queue, "id=later", "--delay", "1h"]),
        desk.dfq(&["push", queue, "id=later", "--delay", "1h"]),
    ];
    let prefix = queue.splitn(4, '/').nth(3).unwrap();
    // In the hub of a synced queue, all that is known of a task that was purged is a floor.
    if let Some(settings) = bucket.server.objects().get(&format!("{prefix}/queue.json")) {
        let mut settings: serde_json::Value = serde_json::from_slice(settings).unwrap();
        let hub = [
            ("requires", serde_json::json!(["synced"])),
            ("queue_id", "town".into()),
            ("sync_seconds", 60.into()),
            ("sync_hub", true.into()),
        ];
        let at = settings["created_at"].as_str().unwrap().to_owned();
        settings.as_object_mut().unwrap().extend(hub.map(|(key, value)| (key.to_owned(), value)));
        bucket.server.put(&format!("{prefix}/queue.json"), settings.to_string().as_bytes());
        for shard in 0..=255 {
            let path = format!("{prefix}/floors/{shard:02x}/0123456789abcdef.json");
            bucket.server.put(&path, floor("purged", &at).as_bytes());
        }
        all.push(desk.dfq(&["push", queue, "id=purged", "--json"]));
    }
    let pushed = all.last().unwrap().out.clone();
    // It is warned of a store that the doctor has refused.
    bucket.server.put(&format!("{prefix}/doctor.json"), REFUSED.as_bytes());
    all.push(desk.dfq(&["push", queue, "id=unsafe"]));
    bucket.server.off();
    said(&all) + &pushed
}

/// On a queue with tasks that are ready, due, already finished, and one that fails for good. Without some
/// permissions it would wait for ever: it is stopped once it has had enough time, and was denied again and
/// again, or was denied once and has sent as many requests as the whole job takes.
fn work(bucket: &TestBucket, desk: &Desk, queue: &str, enough: Option<Enough>) -> String {
    let script = r#"test "$DFQ_TASK_ID" != bad || exit 65"#;
    lose_an_answer(bucket, "a/lease.json");
    let args = ["work", queue, "--drain", "--idle", "100ms", "--", "sh", "-c", script];
    let worked = match enough {
        None => desk.dfq(&args),
        Some(enough) => {
            let (mut child, began) = (desk.start(&args), Instant::now());
            let had_enough = || {
                let counts = bucket.server.meter().counts();
                let all_sent = counts.total() >= enough.requests;
                let insists = counts.denied >= 3 || (counts.denied > 0 && all_sent);
                insists && began.elapsed() >= 2 * enough.time
            };
            while child.try_wait().unwrap().is_none() && !had_enough() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            Said { command: String::new(), out: String::new(), err, status: output.status.code() }
        }
    };
    let all = [
        Said { command: "work".to_owned(), ..worked },
        desk.dfq(&["stats", queue, "--fast"]),
        desk.dfq(&["workers", queue]),
    ];
    bucket.server.off();
    said(&all) + &all[1].out
}

/// A file that says that a purge has forgotten the first life of a task, not long before this time.
fn floor(id: &str, at: &str) -> String {
    format!("{{\"floors\":[\n{{\"id\":\"{id}\",\"generation\":1,\"at\":\"{at}\"}}\n]}}\n")
}

/// Merges a folder with a hub that is not there yet: tasks, delayed ones, leases and ends, and what a purge of another hub
/// has forgotten. Then a purge in the hub is cut short, beside a clean-up that was: what is left of both is removed.
fn merge(bucket: &TestBucket, desk: &Desk, queue: &str, _: Option<Enough>) -> String {
    desk.ok(&["supervise", "./n", "--with", "./hub", "--once"]);
    let settings: serde_json::Value = serde_json::from_str(&desk.read("n/queue.json")).unwrap();
    let at = settings["created_at"].as_str().unwrap();
    desk.write("n/floors/00/0123456789abcdef.json", floor("old", at));
    desk.ok(&["push", "./n", "id=held"]);
    desk.ok(&["poll", "./n"]);
    desk.ok(&["push", "./n", "id=later", "--delay", "1h"]);
    desk.ok(&["push", "./n", "id=gone", "--delay", "1h"]);
    desk.ok(&["push", "./n", "id=good"]);
    desk.ok(&["push", "./n", "id=bad"]);
    let mut all = vec![desk.dfq(&["supervise", "./n", "--with", queue, "--once", "--yes"])];
    let script = r#"test "$DFQ_TASK_ID" != bad || exit 65"#;
    desk.dfq(&["work", "./n", "--until", "idle", "-q", "--", "sh", "-c", script]);
    desk.ok(&["cancel", "./n", "gone"]);
    let tasks = bucket.server.objects();
    all.push(desk.dfq(&["supervise", "./n", "--once"]));
    for id in ["good", "bad"] {
        let task = |(key, _): &(&String, _)| key.ends_with(&format!("/{id}/task.json"));
        if let Some((key, bytes)) = tasks.iter().find(task) {
            let shard = key.rsplit('/').nth(2).unwrap();
            bucket.server.put(key, bytes);
            let path = format!("x/floors/{shard}/{id}0123456789abcdef.json");
            bucket.server.put(&path, floor(id, at).as_bytes());
        }
    }
    all.push(desk.dfq(&["supervise", "./n", "--once"]));
    let left = bucket.server.objects().into_keys().filter(|key| !key.contains("/workers/"));
    // The folder of a delayed task is named after its minute, which is another one in another run.
    let left = left.map(|key| match key.strip_prefix("x/scheduled/") {
        Some(due) => due.trim_start_matches(|c| c != '/').to_owned(),
        None => key,
    });
    said(&all) + &left.collect::<Vec<_>>().join(" ")
}

fn look(desk: &Desk, queue: &str) -> String {
    let all = [
        desk.dfq(&["stats", queue]),
        desk.dfq(&["ls", queue]),
        desk.dfq(&["show", queue, "a"]),
        desk.dfq(&["show", queue, "bad"]),
        desk.dfq(&["export", queue]),
        desk.dfq(&["workers", queue]),
    ];
    let mut text = said(&all);
    // A viewer must also see: what is printed counts here.
    text.extend(all.iter().map(|said| said.out.lines().count().to_string() + " "));
    text
}

/// Lets a role do its job with all permissions, with those of its policy, and with each one of these
/// missing.
fn check(
    role: &str,
    prepare: impl Fn(&Desk, &str) + Sync,
    job: impl Fn(&TestBucket, &Desk, &str, Option<Enough>) -> String + Sync,
) {
    // In a bucket of its own: the rules hold for a whole server.
    let run = |without: Option<usize>, limited: bool, enough: Option<Enough>| {
        let bucket = TestBucket::start();
        let (desk, queue) = (bucket.desk(), bucket.address("x"));
        prepare(&desk, &queue);
        let mut allowed = permissions(&bucket, &desk.ok(&["iam-policy", &queue, "--role", role]));
        let (count, missing) = (allowed.len(), without.map(|number| allowed.remove(number)));
        bucket.server.set_rules(if limited { Rules::only(allowed) } else { Rules::default() });
        bucket.server.meter().reset();
        let began = Instant::now();
        let said = job(&bucket, &desk, &queue, enough);
        let counts = bucket.server.meter().counts();
        let took = Enough { requests: counts.total(), time: began.elapsed() };
        assert!(without.is_none() || counts.denied > 0, "{role} never asks for {missing:?}");
        (said, took, count, missing)
    };
    let (free, enough, count, _) = run(None, false, None);
    assert_eq!(run(None, true, None).0, free, "with the policy as without any limit");
    std::thread::scope(|scope| {
        for number in 0..count {
            let (run, free) = (&run, &free);
            scope.spawn(move || {
                let (short, _, _, missing) = run(Some(number), true, Some(enough));
                assert_ne!(short, *free, "{role} does not need {missing:?}");
            });
        }
    });
}

#[test]
fn a_producer() {
    check("producer", |_, _| {}, produce);
}

/// It may remove nothing, and says the same each time.
#[test]
fn a_producer_pushes_what_has_finished() {
    let bucket = TestBucket::start();
    let desk = bucket.desk();
    let queue = bucket.address("jobs");
    desk.ok(&["push", &queue, "id=done"]);
    desk.ok(&["work", &queue, "--drain", "--", "true"]);
    let policy = desk.ok(&["iam-policy", &queue, "--role", "producer"]);
    bucket.server.set_rules(Rules::only(permissions(&bucket, &policy)));
    let first = desk.dfq(&["push", &queue, "id=done"]);
    let again = desk.dfq(&["push", &queue, "id=done"]);
    assert_eq!(said(&[first]), said(&[again]));
    bucket.server.set_rules(Rules::default());
    assert_eq!(desk.ok(&["ls", &queue, "--state", "pending"]), "");
}

#[test]
fn a_worker() {
    let prepare = |desk: &Desk, queue: &str| {
        for id in ["id=a", "id=bad", "id=c", "id=d"] {
            desk.ok(&["push", queue, id]);
        }
        desk.ok(&["push", queue, "id=soon", "--delay", "1s"]);
    };
    check("worker", prepare, work);
}

#[test]
fn a_viewer() {
    let prepare = |desk: &Desk, queue: &str| {
        for id in ["id=a", "id=bad", "id=c"] {
            desk.ok(&["push", queue, id]);
        }
        desk.dfq(&["work", queue, "--until", "idle", "--", "false"]);
        desk.ok(&["push", queue, "id=later", "--delay", "1h"]);
    };
    check("viewer", prepare, |_, desk, queue, _| look(desk, queue));
}

#[test]
fn a_supervisor() {
    check("supervisor", |_, _| {}, merge);
}

#[test]
fn policies() {
    let desk = Desk::new();
    let said = [
        desk.dfq(&["iam-policy", "s3://box/dfq/jobs", "--role", "producer"]),
        desk.dfq(&["iam-policy", "s3://box/dfq/jobs", "--role", "worker"]),
        desk.dfq(&["iam-policy", "s3://box/dfq/jobs", "--role", "viewer", "--json"]),
        desk.dfq(&["iam-policy", "s3://box", "--role", "viewer", "--json"]),
        desk.dfq(&["iam-policy", "s3://box/what?/$x*", "--role", "viewer", "--json"]),
        desk.dfq(&["iam-policy", "s3://box/jobs", "--role", "worker", "--ceph", "--json"]),
        desk.dfq(&["iam-policy", "s3://box/dfq/hub", "--role", "supervisor"]),
        desk.dfq(&["iam-policy", "s3://box/hub", "--role", "supervisor", "--ceph", "--json"]),
        desk.dfq(&["iam-policy", "sqs://jobs", "--role", "supervisor"]),
        desk.dfq(&["iam-policy", "sqs://jobs", "--role", "worker", "--ceph"]),
        desk.dfq(&["iam-policy", "gs://box/x", "--role", "viewer"]),
        desk.dfq(&["iam-policy", "./jobs", "--role", "viewer"]),
        desk.dfq(&["iam-policy", "s3://box/x"]),
    ];
    assert_transcript!("policies", desk.transcript(&said));
}
