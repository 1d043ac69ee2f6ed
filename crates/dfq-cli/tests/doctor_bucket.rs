//! `dfq doctor` on buckets, of a server that is honest and of servers that lie as some in the wild do.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::Stdio;

use dfq_s3_server::{Faults, Lies, Options, Rules, Server};
use serde_json::Value;
use support::Desk;

/// Runs the command against a server.
async fn dfq(server: &Server, args: &[&str]) -> (Option<i32>, String, String) {
    let desk = Desk::new();
    let mut command = tokio::process::Command::from(desk.command(args));
    command
        .env("AWS_ENDPOINT_URL", server.endpoint())
        .env("AWS_ACCESS_KEY_ID", server.access_key())
        .env("AWS_SECRET_ACCESS_KEY", server.secret_key())
        .env("AWS_REGION", "us-east-1")
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A short examination of a part of the server's bucket.
async fn examine(server: &Server) -> (Option<i32>, Value) {
    let address = format!("s3://{}/some/jobs", server.bucket());
    let args = ["doctor", "--json", "--rounds", "20", &address];
    let (status, out, err) = dfq(server, &args).await;
    let report = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{status:?} {out} {err}"));
    (status, report)
}

async fn liar(lies: Lies) -> Server {
    Server::start(Options { lies, ..Options::default() }).await.unwrap()
}

fn detail<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    check.and_then(|check| check["detail"].as_str()).unwrap_or("was not looked at")
}

fn verdict<'a>(report: &'a Value, promise: &str) -> &'a Value {
    let promises = report["promises"].as_array().unwrap();
    &promises.iter().find(|kept| kept["promise"] == promise).unwrap()["verdict"]
}

fn keys(server: &Server) -> Vec<String> {
    server.objects().into_keys().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_server_is_safe() {
    let server = liar(Lies::default()).await;
    let (status, report) = examine(&server).await;
    assert_eq!((status, &report["verdict"]), (Some(0), &Value::from("safe")), "{report}");
    let won = "one winner in 20 of 20 rounds (32 clients in 4 processes)";
    assert_eq!(detail(&report, "race: conditional create"), won);
    let swapped = "one winner in 10 of 10 rounds (32 clients in 4 processes)";
    assert_eq!(detail(&report, "race: swap"), swapped);
    assert_eq!(detail(&report, "times"), "told apart to 1 ms");
    assert_eq!(keys(&server), ["some/jobs/doctor.json"]);
    assert!(report["advice"].to_string().contains("$16.25"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_are_ignored() {
    let server = liar(Lies { ignore_conditions: true, ..Lies::default() }).await;
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(13));
    assert_eq!(
        report["cause"],
        "conditional PUT ignored: 32 of 32 clients were told that they had created the same key"
    );
    assert_eq!(verdict(&report, "one_owner"), "refused");
    assert_eq!(verdict(&report, "durable"), "safe");
    assert_eq!(keys(&server), ["some/jobs/doctor.json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_are_not_atomic() {
    let mut lies = Lies::default();
    assert!(lies.tell("not-atomic"));
    let server = liar(lies).await;
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(13));
    let cause = report["cause"].as_str().unwrap();
    assert!(cause.starts_with("conditional PUT is not atomic: up to "), "{cause}");
    // One at a time it looks as it should.
    assert_eq!(detail(&report, "conditional create"), "the second is told that it exists");
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_are_refused() {
    let server = liar(Lies { refuse_conditional_put: true, ..Lies::default() }).await;
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(13));
    let cause = report["cause"].as_str().unwrap();
    assert!(cause.starts_with("conditional PUT refused: the store answered 501"), "{cause}");
}

#[tokio::test(flavor = "multi_thread")]
async fn quoted_etags_that_are_refused_harm_no_queue() {
    let server = liar(Lies { refuse_quoted_etags: true, ..Lies::default() }).await;
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(0), "{report}");
    let told = "the right ETag is refused in quotes and taken without them";
    assert_eq!(detail(&report, "If-Match"), told);
    // Raced in the form that works.
    assert!(detail(&report, "race: swap").starts_with("one winner in 10 of 10 rounds"));
    assert_eq!(verdict(&report, "index"), "safe");
}

#[tokio::test(flavor = "multi_thread")]
async fn if_match_that_is_ignored_harms_the_index_only() {
    let server = liar(Lies { ignore_if_match: true, ..Lies::default() }).await;
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(verdict(&report, "index"), "refused");
    let told = report["promises"].to_string();
    let refused = "no index can be compacted here: ignored: an object was replaced";
    assert!(told.contains(refused), "{told}");
    // One at a time was enough to see it.
    assert_eq!(detail(&report, "race: swap"), "was not looked at");
    let told = "ignored: a content was replaced though it had changed";
    assert_eq!(detail(&report, "swap"), told);
    let told = "ignored: deletes anyway; the queue does not need it";
    assert_eq!(detail(&report, "conditional delete"), told);
}

#[tokio::test(flavor = "multi_thread")]
async fn etags_that_are_refused_harm_the_index_only() {
    let server = liar(Lies { refuse_etags: true, ..Lies::default() }).await;
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(verdict(&report, "index"), "refused");
    assert!(detail(&report, "swap").contains("no condition that it is unchanged"), "{report}");
    assert_eq!(keys(&server), ["some/jobs/doctor.json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_swap_in_a_bucket() {
    let server = liar(Lies::default()).await;
    let address = format!("s3://{}/jobs", server.bucket());
    let args = ["doctor", "--json", "--rounds", "5", "--peer", "--peers", "2", &address];
    let (one, other) = tokio::join!(dfq(&server, &args), dfq(&server, &args));
    for (status, out, err) in [one, other] {
        assert_eq!(status, Some(0), "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let swapped = "one winner in 100 of 100 rounds (32 clients of 2 peers)";
        assert_eq!(detail(&report, "race of peers: swap"), swapped);
        assert_eq!(verdict(&report, "index"), "safe");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_seconds_are_noted() {
    let lies = Lies { whole_seconds: true, clock_offset_ms: 3_600_000, ..Lies::default() };
    let server = liar(lies).await;
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(0), "{report}");
    let told = "whole seconds; leases should not be shorter than 5 s";
    assert_eq!(detail(&report, "times"), told);
    let clock = detail(&report, "clock");
    assert!(clock.contains("s ahead of this machine's"), "{clock}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_missing_permission_is_named_and_not_held_against_the_store() {
    for action in ["s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject"] {
        let rules = Rules::default().deny(action);
        let server = Server::start(Options { rules, ..Options::default() }).await.unwrap();
        let (status, report) = examine(&server).await;
        assert_eq!(status, Some(13), "{report}");
        assert!(report["cause"].as_str().unwrap().contains(action), "{report}");
        assert_eq!(report["remembered"], false);
        assert!(!keys(&server).contains(&"some/jobs/doctor.json".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_do_nothing_is_told_so() {
    let rules = Rules::default().deny("s3:PutObject").deny("s3:GetObject").deny("s3:ListBucket");
    let server = Server::start(Options { rules, ..Options::default() }).await.unwrap();
    let (status, _, err) = dfq(&server, &["doctor", "s3://dfq-test/jobs"]).await;
    assert_eq!(status, Some(9), "{err}");
    let (status, _, err) = dfq(&server, &["doctor", "s3://elsewhere/jobs"]).await;
    assert_eq!(status, Some(3), "{err}");
    assert!(err.contains("there is no such bucket"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_are_not_taken_for_losses() {
    let faults = Faults { seed: 4, lose_answer: 0.03, error: 0.02, ..Faults::default() };
    let server = Server::start(Options { faults, ..Options::default() }).await.unwrap();
    let (status, report) = examine(&server).await;
    assert_eq!(status, Some(0), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_queue_is_made_where_conditions_are_ignored() {
    let server = liar(Lies { ignore_conditions: true, ..Lies::default() }).await;
    let push = ["push", "s3://dfq-test/jobs", "a=1"];
    let (status, _, err) = dfq(&server, &push).await;
    assert_eq!(status, Some(13), "{err}");
    assert!(err.contains("it said twice that it had created 'queue.json'"), "{err}");
    assert!(!keys(&server).contains(&"jobs/queue.json".to_owned()));
    let (status, _, err) = dfq(&server, &[&push[..], &["--allow-unsafe"]].concat()).await;
    assert_eq!(status, Some(0), "{err}");
    // What is remembered stops those who come later.
    let (status, ..) = dfq(&server, &["doctor", "-q", "s3://dfq-test/jobs", "--rounds", "5"]).await;
    assert_eq!(status, Some(13));
    let (status, _, err) = dfq(&server, &push).await;
    assert_eq!(status, Some(13), "{err}");
    assert!(err.contains("conditional PUT ignored: 32 of 32 clients"), "{err}");
    server.set_lies(Lies::default());
    let (status, ..) = dfq(&server, &["doctor", "-q", "s3://dfq-test/jobs", "--rounds", "5"]).await;
    assert_eq!(status, Some(0));
    assert_eq!(dfq(&server, &push).await.0, Some(0));
}
