//! One program and one line of shell on a folder, a bucket and SQS: only the configuration differs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::PathBuf;
use std::process::{Command, Output};

use support::bucket::TestBucket;
use support::{Desk, sqs};

/// The providers that are to be had here, and how the address ends that `jobs` has in each.
fn providers() -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        ("filesystem", "/queues/trial/jobs"),
        ("s3", "/dfq/campaigns/trial/queues/jobs"),
        ("sqs", "sqs://trial-jobs"),
    ];
    all.retain(|(provider, _)| *provider != "sqs" || sqs::ministack().is_some());
    all
}

/// A desk from which all of them can be reached.
fn desk(bucket: &TestBucket) -> Desk {
    // ministack takes any keys.
    Desk::new().with(vec![
        ("AWS_ENDPOINT_URL_SQS", sqs::ministack().unwrap_or_default().to_owned()),
        ("AWS_ENDPOINT_URL_S3", bucket.server.endpoint()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", bucket.server.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", bucket.server.secret_key().to_owned()),
    ])
}

fn configuration(bucket: &TestBucket, first: &str, campaign: &str) -> String {
    format!(
        "{first}\ncampaign = '{campaign}'\nbucket = '{}'\n\
         [queues.jobs]\nlease = '12s'\nbackoff = '1s'\ndead_letter = '{campaign}-jobs-dead'\n",
        bucket.address("dfq")
    )
}

/// What is done to the name `jobs`, as by a person who does not know where it is: where it was made, and
/// what became of it.
fn session(desk: &Desk, flags: &[&str], variables: &[(&str, &str)]) -> (String, String) {
    let tasks = "{\"id\":\"hopeless\"}\n{\"id\":\"flaky\"}\n{\"id\":\"ü/ 1\",\"n\":[1]}\n{}\n";
    desk.write("tasks.jsonl", tasks);
    let script =
        r#"case $DFQ_TASK_ID-$DFQ_ATTEMPT in hopeless-*) exit 65;; flaky-1) exit 1;; esac; cat"#;
    let run = |args: &[&str]| {
        let mut command = desk.command(&[flags, args].concat());
        let Output { status, stdout, stderr } =
            command.envs(variables.iter().copied()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (status.code(), text(stdout), text(stderr))
    };
    let (pushed, ids, err) = run(&["push", "jobs", "--jsonl", "tasks.jsonl"]);
    assert_eq!((pushed, ids.lines().count()), (Some(0), 4), "{err}");
    let made = err.lines().find_map(|line| line.strip_prefix("dfq: made the queue "));
    let address = made.unwrap_or_else(|| panic!("{err}")).to_owned();

    let line = ["work", "jobs", "-j", "2", "--drain", "--json", "--", "sh", "-c", script];
    let (status, out, err) = run(&line);
    let mut outcome: Vec<&str> = out.lines().collect();
    let summary = outcome.pop().unwrap_or_else(|| panic!("{err}"));
    outcome.sort_unstable();
    let mut summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    summary["seconds"] = 0.into();
    let (_, left, _) = run(&["stats", "jobs", "--fast", "--json"]);
    let left: serde_json::Value = serde_json::from_str(&left).unwrap();
    let left = format!("{} pending, {} failed", left["pending"], left["failed"]);
    (address, format!("{status:?}\n{}\n{summary}\n{left}", outcome.join("\n")))
}

const OUTCOME: &str = r#"Some(1)
{"id":"flaky"}
{"id":"ü/ 1","n":[1]}
{}
{"completed":3,"retried":1,"failed":1,"released":0,"lost":0,"unrecorded":0,"seconds":0,"halted":null}
0 pending, 1 failed"#;

/// Flag, then `DFQ_QUEUE_TYPE`, then `COCLI_QUEUE_TYPE`, then dfq.toml: each is told in turn, while all
/// that is weaker says otherwise.
#[test]
fn one_line_of_shell_for_all() {
    let bucket = TestBucket::start();
    let desk = desk(&bucket);
    for told in ["file", "old", "variable", "flag"] {
        for (provider, place) in providers() {
            let other = if provider == "s3" { "filesystem" } else { "s3" };
            let (mut flags, mut variables, mut in_file) = (vec![], vec![], other);
            match told {
                "file" => in_file = provider,
                "old" => variables.push(("COCLI_QUEUE_TYPE", provider)),
                "variable" => {
                    variables.extend([("DFQ_QUEUE_TYPE", provider), ("COCLI_QUEUE_TYPE", other)]);
                }
                _ => {
                    flags.extend(["--provider", provider]);
                    variables.push(("DFQ_QUEUE_TYPE", other));
                }
            }
            let first = format!("provider = '{in_file}'");
            desk.write("dfq.toml", configuration(&bucket, &first, told));
            let (address, outcome) = session(&desk, &flags, &variables);
            assert!(address.ends_with(&place.replace("trial", told)), "{provider}: {address}");
            assert_eq!(outcome, OUTCOME, "{provider}, told by {told}");
        }
    }
}

/// The example as anybody would build it. In `./test` it is built already.
fn example() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    // Told of this package, build scripts of others (ring's) run again, and much is built anew.
    for (name, _) in std::env::vars().filter(|(name, _)| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_"]
            .iter()
            .any(|begins| name.starts_with(begins))
    }) {
        cargo.env_remove(name);
    }
    cargo.args(["build", "--workspace", "--all-features", "--example", "anywhere"]);
    cargo.args(["--message-format", "json", "--quiet"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let lines = String::from_utf8(built.stdout).unwrap();
    let made = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).find_map(
        |made: serde_json::Value| {
            let ours = made["target"]["name"] == "anywhere";
            ours.then(|| made["executable"].as_str().map(PathBuf::from)).flatten()
        },
    );
    made.unwrap_or_else(|| panic!("no executable in {lines}"))
}

#[test]
fn one_program_for_all() {
    let bucket = TestBucket::start();
    let desk = desk(&bucket);
    desk.write("dfq.toml", configuration(&bucket, "", "trial"));
    let program = example();
    for (provider, place) in providers() {
        let mut command = desk.program(&program, &["jobs", "12"]);
        let Output { status, stdout, stderr } =
            command.env("DFQ_QUEUE_TYPE", provider).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{provider}: {err}");
        let (did, address) = out.trim_end().split_once('\n').unwrap();
        assert_eq!(did, "11 completed, 1 retried, 1 failed", "{provider}");
        assert!(address.ends_with(place), "{provider}: {address}");
    }
}
