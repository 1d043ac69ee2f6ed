//! The command on SQS: what works there as everywhere, what SQS cannot do, and what it costs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::{Arc, Mutex};

use serde_json::Value;
use support::sqs::proxy::{self, Act};
use support::sqs::{desk, ministack};
use support::{Desk, Said};

/// Names of their own for each test: all share one server.
fn configured(endpoint: &str, campaign: &str) -> Desk {
    let desk = desk(endpoint);
    desk.write(
        "dfq.toml",
        format!(
            "provider = 'sqs'\ncampaign = '{campaign}'\n\
             [queues.jobs]\nlease = '1m'\nmax_attempts = 3\ndead_letter = '{campaign}-jobs-dead'\n\
             [queues.later]\n[queues.here]\naddress = './here'\n"
        ),
    );
    desk
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// A worker's lease, of which a long poll takes a quarter: three silent ones end `--drain`.
const SHORT: [&str; 2] = ["--lease", "8s"];

fn claim(desk: &Desk) -> Value {
    json(&desk.ok(&["poll", "jobs", "--wait", "10s"]))
}

fn receipt(claimed: &Value) -> &str {
    claimed["receipt"].as_str().unwrap()
}

#[test]
fn a_life_by_hand() {
    let Some(endpoint) = ministack() else { return };
    let desk = configured(endpoint, "hand");
    assert_eq!(desk.dfq(&["stats", "jobs"]).status, Some(3), "not there yet");
    let pushed = desk.dfq(&["push", "jobs", "id=a b/ü", "n:=12345678901234567890"]);
    assert_eq!((pushed.status, pushed.out.as_str()), (Some(0), "a b/ü\n"), "{pushed:?}");
    assert!(pushed.err.contains("made the queue sqs://hand-jobs"), "{pushed:?}");

    // Each command is a process of its own: all that they share is the receipt.
    let first = claim(&desk);
    assert_eq!((first["id"].as_str(), first["attempt"].as_u64()), (Some("a b/ü"), Some(1)));
    assert_eq!(first["task"].to_string(), r#"{"id":"a b/ü","n":12345678901234567890}"#);
    assert_eq!(desk.dfq(&["poll", "jobs"]).status, Some(1), "nobody else gets it");
    let held = desk.ok(&["heartbeat", "jobs", receipt(&first)]);
    assert!(held.contains("holds for "), "{held}");
    let nacked = desk.ok(&["nack", "jobs", receipt(&first), "--delay", "1s", "--json"]);
    assert_eq!(json(&nacked)["status"], "again");

    let second = claim(&desk);
    assert_eq!(second["attempt"], 2);
    let failed = desk.dfq(&["fail", "jobs", receipt(&second)]);
    assert_eq!(failed.status, Some(6), "{failed:?}");
    assert!(failed.err.contains("sqs can give a task up only in the process"), "{failed:?}");
    let released = desk.dfq(&["release", "jobs", receipt(&second)]);
    assert_eq!(released.status, Some(6), "{released:?}");
    assert!(released.err.contains("sqs cannot give a task back without counting"), "{released:?}");
    desk.ok(&["ack", "jobs", receipt(&second)]);
    let over = desk.dfq(&["heartbeat", "jobs", receipt(&second)]);
    assert_eq!(over.status, Some(4), "{over:?}");
    assert_eq!(desk.dfq(&["wait", "jobs", "--timeout", "10s"]).status, Some(0));
}

#[test]
fn a_worker_retries_gives_up_and_drains() {
    let Some(endpoint) = ministack() else { return };
    let desk = configured(endpoint, "work");
    desk.ok(&["push", "jobs", r#"{"id":"good"}"#, r#"{"id":"bad"}"#, r#"{"id":"flaky"}"#]);
    desk.ok(&["push", "jobs", "id=soon", "--delay", "2s"]);
    let script = r#"case $DFQ_TASK_ID-$DFQ_ATTEMPT in bad-*) exit 65;; flaky-1) exit 1;; esac
        echo "$DFQ_TASK_ID""#;
    let work = ["work", "jobs", "-j", "2", "--drain"];
    let drained = desk.dfq(&[&work[..], &SHORT, &["--", "sh", "-c", script]].concat());
    assert_eq!(drained.status, Some(1), "one has failed: {drained:?}");
    let mut done: Vec<&str> = drained.out.lines().collect();
    done.sort_unstable();
    assert_eq!(done, ["flaky", "good", "soon"], "{drained:?}");
    assert!(
        drained.err.contains("3 tasks completed, 1 to be tried again, 1 failed"),
        "{drained:?}"
    );

    // What was given up lies in the dead-letter queue as the task that it was, and can be worked on.
    let work = ["work", "sqs://work-jobs-dead", "--drain"];
    let dead = desk.dfq(&[&work[..], &SHORT, &["--", "cat"]].concat());
    assert_eq!(dead.out, "{\"id\":\"bad\"}\n", "{dead:?}");
}

#[test]
fn what_is_known_is_told_as_an_estimate_and_the_rest_is_not_told() {
    let Some(endpoint) = ministack() else { return };
    let desk = configured(endpoint, "told");
    let before = desk.dfq(&["queues"]);
    desk.ok(&["push", "sqs://told-stranger", "id=x"]);
    desk.ok(&["push", "here", "id=x"]);
    let said = [
        before,
        desk.dfq(&["push", "jobs", r#"{"id":"a"}"#, r#"{"id":"b"}"#]),
        desk.dfq(&["push", "jobs", "id=c", "--delay", "15m"]),
        desk.dfq(&["queues"]),
        desk.dfq(&["queues", "--json"]),
        desk.dfq(&["stats", "jobs"]),
        desk.dfq(&["stats", "jobs", "--fast"]),
        desk.dfq(&["stats", "--fast"]),
        desk.dfq(&["stats", "jobs", "--fail-if", "pending>1"]),
        desk.dfq(&["stats", "jobs", "--fail-if", "oldest>1h"]),
        desk.dfq(&["stats", "jobs", "--fail-if", "completed<1", "--fast"]),
        desk.dfq(&["wait", "jobs", "--timeout", "0", "--json"]),
        desk.dfq(&["init", "jobs"]),
        desk.dfq(&["work", "later", "--", "true"]),
    ];
    let mut text = desk.transcript(&said);
    while text.contains("   ") {
        text = text.replace("   ", "  ");
    }
    assert_transcript!("sqs", text);

    let lines = desk.ok(&["stats", "--json"]);
    let lines: Vec<Value> = lines.lines().map(json).collect();
    let names: Vec<_> = lines.iter().map(|line| line["queue"].as_str().unwrap()).collect();
    assert_eq!(names, ["here", "jobs"], "one that is not there yet has nothing to tell");
    assert_eq!((&lines[0]["exact"], &lines[0]["completed"]), (&true.into(), &0.into()));
    let told = |key: &str| lines[1].get(key).cloned();
    assert_eq!((told("pending"), told("ready")), (Some(2.into()), Some(2.into())));
    assert_eq!((told("exact"), told("completed")), (Some(false.into()), None));
    assert_eq!((told("backoff"), told("oldest_at")), (None, None));

    let config = desk.ok(&["config"]);
    for line in ["provider sqs dfq.toml, provider", "queues.jobs.address sqs://told-jobs campaign"]
    {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(config.lines().any(|row| words(row).starts_with(line)), "{line}: {config}");
    }
    assert!(config.contains(endpoint) && !config.contains("testsecret"), "{config}");
}

/// Each is refused by a sentence that names the provider, and with the same status.
#[test]
fn what_sqs_cannot_do() {
    let Some(endpoint) = ministack() else { return };
    let desk = configured(endpoint, "cannot");
    desk.ok(&["push", "jobs", "id=a"]);
    desk.ok(&["push", "sqs://cannot-order.fifo", "id=a"]);
    for args in [
        &["ls", "jobs"][..],
        &["peek", "jobs"],
        &["show", "jobs", "a"],
        &["explain", "jobs"],
        &["explain", "jobs", "a"],
        &["failed", "jobs"],
        &["workers", "jobs"],
        &["export", "jobs"],
        &["pause", "jobs"],
        &["resume", "jobs"],
        &["cancel", "jobs", "a"],
        &["cancel", "jobs", "a", "--dry-run"],
        &["cancel", "jobs", "--all", "--yes"],
        &["unlock", "jobs", "a"],
        &["unlock", "jobs", "--all", "--yes"],
        &["retry", "jobs", "a"],
        &["retry", "jobs", "--all", "--yes"],
        &["gc", "jobs", "--completed", "--older-than", "1d", "--yes"],
        &["check", "jobs"],
        &["check", "jobs", "--repair"],
        &["doctor", "jobs"],
        &["push", "jobs", "id=b", "--delay", "16m"],
        &["push", "sqs://cannot-order.fifo", "id=b", "--delay", "1s"],
        &["poll", "jobs", "--lease", "13h"],
        &["work", "jobs", "--schema", "1..2", "--drain", "--", "true"],
        &["init", "later", "--lease", "13h"],
    ] {
        let said = desk.dfq(args);
        assert_eq!(said.status, Some(6), "{said:?}");
        let sentence = said.err.lines().last().unwrap_or_default();
        assert!(sentence.starts_with("dfq: ") && sentence.contains("sqs "), "{said:?}");
        assert_eq!(said.out.lines().filter(|line| !line.starts_with("dfq")).count(), 0, "{said:?}");
    }
    let counted = json(&desk.ok(&["stats", "jobs", "--json"]));
    assert_eq!(counted["pending"], 1, "nothing of it has changed anything: {counted}");
}

#[test]
fn a_task_that_is_too_large_is_named_and_keeps_no_other_out() {
    let Some(endpoint) = ministack() else { return };
    let desk = configured(endpoint, "large");
    let large = format!("{{\"id\":\"large one\",\"text\":\"{}\"}}\n", "x".repeat(1_100_000));
    let lines = format!("{{\"id\":\"a\"}}\n{large}{{\"id\":\"b\"}}\n");
    let said = desk.dfq_with(&["push", "jobs"], lines);
    assert_eq!(said.status, Some(2), "{said:?}");
    assert!(said.err.contains("task 'large one' takes 11"), "{said:?}");
    assert!(said.err.contains("put the data elsewhere"), "{said:?}");
    assert_eq!(said.out, "a\nb\n");
}

/// Three requests for ten tasks: one to send them, one to receive them, one to remove them.
#[test]
fn what_it_costs() {
    let Some(endpoint) = ministack() else { return };
    let desk = configured(endpoint, "cost");
    let tasks: String = (0..100).map(|n| format!("{{\"id\":\"t{n}\"}}\n")).collect();
    let requests = |said: &Said, kind: &str| {
        let line = json(said.err.lines().last().unwrap());
        line["cost"]["requests"][kind]["sent"].as_u64().unwrap_or(0)
    };
    // How full the batches are depends on how fast lines are read and commands end, and how often
    // nothing is received on how long that takes. The exact figures are those of the bench below.
    let pushed = desk.dfq_with(&["push", "jobs", "--cost", "--json"], &tasks);
    assert!((10..=100).contains(&requests(&pushed, "send")), "{pushed:?}");
    let work = ["work", "jobs", "-j", "10", "--drain", "--cost", "--json"];
    let worked = desk.dfq(&[&work[..], &SHORT, &["--", "true"]].concat());
    assert_eq!(json(worked.out.lines().last().unwrap())["completed"], 100, "{worked:?}");
    assert!((10..=200).contains(&requests(&worked, "receive")), "{worked:?}");
    assert!((10..=100).contains(&requests(&worked, "remove")), "{worked:?}");
    let table = desk.dfq(&["stats", "jobs", "--cost"]);
    assert!(table.err.contains("MANAGE"), "{table:?}");

    // The figure of the README; the few requests beside are those of opening and of finding nothing more.
    let bench = ["bench", "sqs://any", "--tasks", "1000", "--workers", "1"];
    let out = desk.ok(&bench);
    assert!(out.contains("push, claim and ack: 0.30 requests a task, $0.12 per million"), "{out}");
    let rows = desk.ok(&[&bench[..], &["--json"]].concat());
    let row = |operation: &str| rows.lines().map(json).find(|row| row["operation"] == operation);
    assert_eq!(row("push").unwrap()["requests"]["send"]["sent"], 100);
    assert_eq!(row("ack").unwrap()["requests"]["remove"]["sent"], 100);
    let queues = desk.ok(&["queues", "--campaign", "dfq"]);
    assert!(!queues.contains("dfq-bench"), "it has removed what it made: {queues}");
    let url = desk.dfq(&["bench", &format!("{endpoint}/000000000000/x"), "--tasks", "10"]);
    assert_eq!(url.status, Some(2), "{url:?}");
}

type Permission = (String, String);

/// The permissions of a policy: an action, and the name of a queue.
fn permissions(policy: &str) -> Vec<Permission> {
    let policy = json(policy);
    let statements = policy["Statement"].as_array().unwrap().iter();
    let pairs = statements.flat_map(|statement| {
        assert_eq!(statement["Effect"], "Allow");
        let resource = statement["Resource"].as_str().unwrap();
        let name = resource.rsplit(':').next().unwrap().to_owned();
        let actions = statement["Action"].as_array().unwrap().clone();
        actions.into_iter().map(move |action| (action.as_str().unwrap().to_owned(), name.clone()))
    });
    pairs.collect()
}

/// As IAM sees a request: batches are allowed with what they are batches of.
fn permission(operation: &str, body: &str) -> Permission {
    let action = format!("sqs:{}", operation.trim_end_matches("Batch"));
    let body = json(body);
    let queue = body["QueueName"].as_str().or_else(|| body["QueueUrl"].as_str()).unwrap_or("*");
    (action, queue.rsplit('/').next().unwrap().to_owned())
}

/// Lets a role do its job with all permissions, with those of its policy, and with each one of these
/// missing, against a gate that knows AWS's rules.
fn check(role: &str, prepare: impl Fn(&Desk), job: impl Fn(&Desk) -> Vec<Said>) {
    let Some(endpoint) = ministack() else { return };
    let allowed: Arc<Mutex<Option<Vec<Permission>>>> = Arc::default();
    let gate = Arc::clone(&allowed);
    let guarded = proxy::between(endpoint, move |operation, body| {
        let asked = permission(operation, body);
        match &*gate.lock().unwrap() {
            Some(allowed) if !allowed.contains(&asked) => Act::Refuse(403, "AccessDenied"),
            _ => Act::Pass,
        }
    });
    let run = |name: String, limit: &dyn Fn(Vec<Permission>) -> Option<Vec<Permission>>| {
        let desk = configured(&guarded, &name);
        *allowed.lock().unwrap() = None;
        prepare(&desk);
        let policy = permissions(&desk.ok(&["iam-policy", "jobs", "--role", role]));
        *allowed.lock().unwrap() = limit(policy);
        let said = job(&desk).into_iter().map(|said| format!("{:?} {}\n", said.status, said.out));
        said.collect::<String>().replace(&name, "[NAME]")
    };
    let free = run(format!("{role}-free"), &|_| None);
    let least = run(format!("{role}-least"), &Some);
    assert_eq!(least, free, "with the policy as without any limit");
    let count = Mutex::new(0);
    run(format!("{role}-count"), &|policy| {
        *count.lock().unwrap() = policy.len();
        None
    });
    let count = *count.lock().unwrap();
    assert!(count >= 4, "{count} permissions");
    for missing in 0..count {
        let gone = Mutex::new(None);
        let short = run(format!("{role}-without-{missing}"), &|mut policy| {
            *gone.lock().unwrap() = Some(policy.remove(missing));
            Some(policy)
        });
        assert_ne!(short, free, "{role} does not need {gone:?}");
    }
}

#[test]
fn a_producer_needs_exactly_its_policy() {
    let job = |desk: &Desk| {
        vec![desk.dfq(&["push", "jobs", "id=a"]), desk.dfq(&["push", "jobs", "id=b"])]
    };
    check("producer", |_| {}, job);
}

#[test]
fn a_worker_needs_exactly_its_policy() {
    let prepare =
        |desk: &Desk| _ = desk.ok(&["push", "jobs", r#"{"id":"bad"}"#, r#"{"id":"slow"}"#]);
    let script = r#"test $DFQ_TASK_ID != bad || exit 65; test $DFQ_ATTEMPT != 1 || exit 75"#;
    let work = ["work", "jobs", "--until", "drained", "--stop-after", "20s", "--grace", "1s"];
    let job = |desk: &Desk| {
        let line = [&work[..], &SHORT, &["--json", "--", "sh", "-c", script]].concat();
        let worked = desk.dfq(&line);
        let line = worked.out.lines().last().map(json).unwrap_or_default();
        let out = format!("{} {} {}", line["completed"], line["failed"], line["released"]);
        vec![Said { out, ..worked }, desk.dfq(&["stats", "jobs", "--fast"])]
    };
    check("worker", prepare, job);
}

#[test]
fn a_viewer_needs_exactly_its_policy() {
    let prepare = |desk: &Desk| {
        desk.ok(&["push", "jobs", "id=a", "--max-attempts", "1"]);
        desk.dfq(&[&["work", "jobs", "--drain"], &SHORT[..], &["--", "false"]].concat());
    };
    let wait = ["wait", "jobs", "--timeout", "0", "--json"];
    check("viewer", prepare, |desk| vec![desk.dfq(&["stats", "jobs"]), desk.dfq(&wait)]);
}
