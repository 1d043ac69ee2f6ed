//! The same session on a folder and in a bucket: what is said differs in the address, and in nothing else.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::bucket::TestBucket;
use support::{Desk, Said};

/// A session with one queue, written down.
struct Session<'a> {
    desk: &'a Desk,
    queue: &'a str,
    said: Vec<Said>,
}

impl Session<'_> {
    /// A command on the queue; answers what it printed.
    fn dfq(&mut self, command: &str, args: &[&str]) -> String {
        self.dfq_with(command, args, "")
    }

    fn dfq_with(&mut self, command: &str, args: &[&str], stdin: &str) -> String {
        let args = [&[command, self.queue], args].concat();
        let said = self.desk.dfq_with(&args, stdin);
        let out = said.out.clone();
        self.said.push(said);
        out
    }

    /// Claims the only task that is ready; answers its receipt.
    fn claim(&mut self) -> String {
        let line = self.dfq("poll", &[]);
        let claimed: serde_json::Value = serde_json::from_str(&line).unwrap();
        claimed["receipt"].as_str().unwrap().to_owned()
    }
}

fn play(desk: &Desk, queue: &str) -> String {
    let mut session = Session { desk, queue, said: Vec::new() };
    let s = &mut session;
    s.dfq("stats", &[]);
    s.dfq("init", &["--lease", "5m", "--max-attempts", "3"]);
    s.dfq("init", &[]);

    // One task at a time, because which of several is claimed first is left to chance.
    s.dfq("poll", &[]);
    s.dfq("push", &["id=a", "n:=1"]);
    s.dfq("push", &["id=a", "n:=2"]);
    s.dfq("ls", &[]);
    s.dfq("peek", &[]);
    let receipt = s.claim();
    s.dfq("poll", &[]);
    s.dfq("show", &["a"]);
    s.dfq("heartbeat", &[&receipt]);
    s.dfq("push", &["id=a"]);
    s.dfq("ack", &[&receipt]);
    s.dfq("ack", &[&receipt]);
    s.dfq("nack", &[&receipt]);
    s.dfq("show", &["a"]);
    s.dfq("push", &["id=a"]);
    s.dfq("push", &["id=a", "--again"]);
    let receipt = s.claim();
    s.dfq("release", &[&receipt]);
    s.dfq("cancel", &["a", "nobody"]);
    s.dfq("show", &["nobody"]);

    // Failures, of an id that has to be encoded.
    s.dfq("push", &["--id", "späte räte/2", r#"{"x": [1, 2.50, 12345678901234567890]}"#]);
    let receipt = s.claim();
    s.dfq("nack", &[&receipt, "--error", "timeout", "--delay", "1h"]);
    s.dfq("ls", &["--json"]);
    s.dfq("unlock", &["späte räte/2"]);
    let receipt = s.claim();
    s.dfq("fail", &[&receipt, "--reason", "no such page"]);
    s.dfq("failed", &[]);
    s.dfq("retry", &["späte räte/2", "nobody"]);
    let receipt = s.claim();
    s.dfq("unlock", &["späte räte/2"]);
    s.dfq("heartbeat", &[&receipt]);
    s.dfq("pause", &["--reason", "the site is down"]);
    s.dfq("poll", &[]);
    s.dfq("stats", &[]);
    s.dfq("resume", &[]);

    // Many, and what a worker makes of them.
    s.dfq_with("push", &["--jsonl", "-"], "{\"id\":\"l1\"}\n{\"id\":\"l2\"}\n{\"id\":\"l1\"}\n");
    s.dfq("push", &["id=later", "--delay", "1h"]);
    s.dfq("stats", &["--json"]);
    s.dfq("stats", &["--fast"]);
    let script = r#"test "$DFQ_TASK_ID" != l2 || exit 65"#;
    s.dfq("work", &["--until", "idle", "--", "sh", "-c", script]);
    s.dfq("workers", &["--json"]);
    s.dfq("ls", &[]);
    s.dfq("ls", &["--state", "completed", "--json"]);
    s.dfq("explain", &[]);
    s.dfq("explain", &["later"]);
    s.dfq("export", &[]);
    s.dfq("gc", &["--completed", "--older-than", "7d"]);
    s.dfq("gc", &["--completed", "--older-than", "1m"]);
    s.dfq("check", &[]);
    s.dfq("wait", &["--timeout", "10ms"]);
    s.dfq("cancel", &["--all", "--yes"]);
    s.dfq("stats", &[]);
    s.dfq("check", &["--json"]);
    desk.transcript(&session.said)
}

/// What differs from run to run, and with that the width of columns.
fn filters() -> Vec<(&'static str, &'static str)> {
    let mut filters = support::filters();
    filters.extend([
        (r"\b\d+(ms|s|m\d*s?)\b", "[TIME]"),
        (r#""(oldest_seconds|pid|seconds)":\d+(\.\d+)?"#, r#""$1":[NUMBER]"#),
        (r#""host":"[^"]*""#, r#""host":"[HOST]""#),
        // A bucket's clock knows whole seconds: a heartbeat may seem to be as old as its claim.
        (r", last seen \[AGO\]", ""),
        // Only a bucket charges for requests.
        (r#","requests":\{("[a-z]+":\{[^}]*\},?)*\}"#, ""),
        (r" {2,}", "  "),
    ]);
    filters
}

fn assert_session(transcript: &str) {
    insta::with_settings!({
        filters => filters(), omit_expression => true, prepend_module_to_snapshot => false
    }, {
        insta::assert_snapshot!("session", transcript);
    });
}

#[test]
fn in_a_folder() {
    let desk = Desk::new();
    let transcript = play(&desk, "./jobs");
    assert_session(&transcript.replace("[HERE]/jobs", "[QUEUE]").replace("./jobs", "[QUEUE]"));
}

#[test]
fn in_a_bucket() {
    let bucket = TestBucket::start();
    let queue = bucket.address("some/where/jobs");
    let desk = bucket.desk();
    let transcript = play(&desk, &queue);
    assert_session(&transcript.replace(&queue, "[QUEUE]"));
    let outside: Vec<_> = bucket.server.objects().into_keys().collect();
    assert!(outside.iter().all(|key| key.starts_with("some/where/jobs/")), "{outside:?}");
}

#[test]
fn every_command_tells_its_cost() {
    let bucket = TestBucket::start();
    let (desk, queue) = (bucket.desk(), bucket.address("zwei wörter/100%/jobs"));
    desk.ok(&["push", &format!("{queue}//"), "id=a"]);
    for args in [
        &["push", &queue, "id=b"][..],
        &["stats", &queue],
        &["show", &queue, "nobody"],
        &["work", &queue, "--until", "idle", "--", "true"],
    ] {
        bucket.server.meter().reset();
        let said = desk.dfq(&[&["--cost", "--json"], args].concat());
        let counts = bucket.server.meter().counts();
        let last = said.err.lines().last().unwrap();
        let told: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(told["cost"]["sent"], counts.total(), "{said:?}");
        assert_eq!(
            told["cost"]["requests"]["put"]["sent"].as_u64().unwrap_or(0),
            counts.count("PutObject")
        );
        assert!(told["cost"]["dollars"].as_f64().unwrap() > 0.0);
        for line in said.out.lines() {
            assert!(!line.contains("\"cost\""), "stdout is the command's own: {line}");
        }
    }
    let free = desk.dfq(&["push", "./jobs", "id=a", "-q", "--cost"]);
    assert_eq!(free.err, "dfq: no request was sent to a store that charges for them\n");
    let table = desk.dfq(&["push", &queue, "id=a", "--cost"]);
    assert!(table.err.contains("\nREQUESTS  SENT"), "{}", table.err);
    desk.write("dfq.toml", "[prices]\nput = 0\nget = 0\nlist = 0\n");
    let given = desk.dfq(&["push", &queue, "id=c", "--cost", "--json"]);
    assert!(given.err.contains("\"dollars\":0.0"), "{}", given.err);
}

#[test]
fn a_bench_counts_requests_and_leaves_nothing_behind() {
    let bucket = TestBucket::start();
    let desk = bucket.desk();
    let queue = bucket.address("team/jobs");
    desk.ok(&["push", &queue, "id=a", "-q"]);
    let before = bucket.server.objects();
    let out = desk.ok(&["bench", &queue, "--tasks", "40", "--workers", "2", "--json"]);
    let rows: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0]["address"], bucket.address("team"), "beside the queue, not in it");
    let operations: Vec<_> =
        rows[1..].iter().map(|row| row["operation"].as_str().unwrap()).collect();
    assert_eq!(operations, ["push", "push, own ids", "claim", "ack"]);
    assert_eq!(rows[1]["requests"]["put"]["sent"], 20, "a push is one PUT");
    assert_eq!(rows[1]["requests"]["get"]["sent"], 1, "for what the doctor has said, once");
    assert_eq!(rows[3]["tasks"], 40);
    assert!(rows[4]["requests"]["put"]["sent"].as_u64().unwrap() >= 40, "an ack is one PUT");
    assert_eq!(bucket.server.objects(), before);
}
