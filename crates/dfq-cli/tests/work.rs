//! `dfq work` with real commands: what they get, what their end means, what is printed.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::collections::BTreeMap;
use std::io::Read;

use dfq_s3_server::Fault;
use support::Desk;
use support::bucket::TestBucket;

/// A queue whose failures are tried again at once.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.ok(&["init", "-q", "./jobs", "--backoff", "10ms", "--backoff-max", "10ms"]);
    desk
}

fn push(desk: &Desk, ids: &[&str]) {
    for id in ids {
        desk.ok(&["push", "-q", "./jobs", &format!("id={id}")]);
    }
}

/// The states of all tasks, and the records of those that have finished.
fn records(desk: &Desk, outcome: &str) -> BTreeMap<String, serde_json::Value> {
    let mut records = BTreeMap::new();
    let Ok(shards) = std::fs::read_dir(desk.path("jobs").join(outcome)) else { return records };
    for file in shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap()) {
        let file = file.unwrap();
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
        records.insert(record["_dfq"]["id"].as_str().unwrap().to_owned(), record);
    }
    records
}

#[test]
fn a_command_gets_its_task_in_three_ways() {
    let desk = desk();
    desk.ok(&[
        "push",
        "-q",
        "./jobs",
        r#"{"id": "a b/ü", "n": 12345678901234567890123, "x": {"y": "z"}}"#,
    ]);
    let script = r#"cat; echo "$DFQ_TASK_ID|$DFQ_ATTEMPT|$DFQ_FENCE|$1|$2|$3|$4"; echo "$DFQ_QUEUE"; test -n "$DFQ_RECEIPT""#;
    let said = desk.dfq(&[
        "work",
        "./jobs",
        "--drain",
        "--",
        "sh",
        "-c",
        script,
        "_",
        "{.n}",
        "<{.x.y}>",
        "{}",
        "{z} ${HOME}",
    ]);
    assert_transcript!("work_arguments", desk.transcript(&[said]));
}

#[test]
fn the_exit_status_decides() {
    let desk = desk();
    push(&desk, &["ok", "retry", "hopeless", "signal"]);
    let script = r#"
        echo "about $1" >&2
        case $1 in
            ok) exit 0 ;;
            retry) test "$DFQ_ATTEMPT" = 3 || exit 9 ;;
            hopeless) exit 65 ;;
            signal) test "$DFQ_ATTEMPT" = 2 || kill -KILL $$ ;;
        esac"#;
    let said = desk.dfq(&["work", "./jobs", "--drain", "--", "sh", "-c", script, "_", "{.id}"]);
    assert_eq!(said.status, Some(1), "{said:?}");
    let done = records(&desk, "completed");
    assert_eq!(done.keys().collect::<Vec<_>>(), ["ok", "retry", "signal"]);
    let error = |id: &str| done[id]["_dfq"]["attempts"][0]["error"].as_str().unwrap().to_owned();
    assert_eq!(error("retry"), "exit status 9: about retry");
    assert_eq!(error("signal"), "killed by signal 9: about signal");
    let failed = records(&desk, "failed");
    assert_eq!(failed["hopeless"]["_dfq"]["reason"], "exit status 65: about hopeless");
    assert_eq!(failed.len(), 1);
}

#[test]
fn too_many_failures_end_a_task() {
    let desk = desk();
    push(&desk, &["a"]);
    let work = |more: &[&str]| {
        let args = [&["work", "./jobs", "--drain"], more, &["--", "false"]].concat();
        desk.dfq(&args)
    };
    assert_eq!(work(&[]).status, Some(1));
    assert_eq!(records(&desk, "failed")["a"]["_dfq"]["attempts"].as_array().unwrap().len(), 5);
    push(&desk, &["b"]);
    assert_eq!(work(&["--max-attempts", "2"]).status, Some(1));
    assert_eq!(records(&desk, "failed")["b"]["_dfq"]["attempts"].as_array().unwrap().len(), 2);
}

#[test]
fn status_75_gives_back_with_a_pause_and_does_not_count() {
    let desk = desk();
    push(&desk, &["later"]);
    let said = desk.dfq(&[
        "work",
        "./jobs",
        "--until",
        "idle",
        "--",
        "sh",
        "-c",
        "echo busy >&2; exit 75",
    ]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("given back: exit status 75: busy"), "{said:?}");
    let lease = std::fs::read_dir(desk.path("jobs/pending")).unwrap().next().unwrap().unwrap();
    let lease = std::fs::read_to_string(lease.path().join("later/lease.json")).unwrap();
    let lease: serde_json::Value = serde_json::from_str(&lease).unwrap();
    assert_eq!(lease["state"], "released");
    let over: jiff::Timestamp = lease["not_before"].as_str().unwrap().parse().unwrap();
    let again = desk.dfq(&["work", "./jobs", "--until", "idle", "--", "true"]);
    // A machine that stalls may take longer than the pause; then it is right to have done the task.
    let in_time = jiff::Timestamp::now() < over;
    assert!(
        !in_time || again.err.contains("0 tasks completed"),
        "not before its pause is over: {again:?}"
    );
}

#[test]
fn a_task_that_lacks_what_others_have_fails_alone() {
    let desk = desk();
    desk.ok(&["push", "-q", "./jobs", "id=has", "url=x"]);
    assert_eq!(desk.dfq(&["work", "./jobs", "--drain", "--", "echo", "{.url}"]).status, Some(0));
    let input = "{\"id\":\"lacks\"}\n{\"id\":\"dash\",\"url\":\"--help\"}\n";
    desk.dfq_with(&["push", "-q", "./jobs"], input);
    for n in 0..40 {
        desk.ok(&["push", "-q", "./jobs", &format!("id=t{n}"), "url=y"]);
    }
    let said = desk.dfq(&["work", "./jobs", "--drain", "--", "echo", "{.url}"]);
    assert_eq!(said.status, Some(1), "{said:?}");
    let failed = records(&desk, "failed");
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["dash", "lacks"]);
    assert!(failed["dash"]["_dfq"]["reason"].as_str().unwrap().contains("taken for an option"));
    assert!(failed["lacks"]["_dfq"]["reason"].as_str().unwrap().contains("no member 'url'"));
}

#[test]
fn too_many_failures_halt_the_worker() {
    let desk = desk();
    for n in 0..50 {
        push(&desk, &[&format!("t{n}")]);
    }
    let said = desk.dfq(&["work", "./jobs", "--drain", "--halt", "fail=3", "--", "false"]);
    assert_eq!(said.status, Some(12));
    assert!(said.err.contains("stopped: 3 commands failed (--halt fail=3)"), "{said:?}");
    let said = desk.dfq(&["work", "./jobs", "--drain", "--halt", "fail=50%", "--", "false"]);
    assert_eq!(said.status, Some(12));
    assert!(said.err.contains("stopped: 10 of 10 commands failed"), "{said:?}");
    let said = desk.dfq(&["work", "./jobs", "--drain", "--halt", "fail=50%", "--", "true"]);
    assert_eq!(said.status, Some(0), "{said:?}");
}

/// In a bucket the next task is claimed while the failure of the last is being written. It counts
/// before that.
#[test]
fn nothing_starts_after_the_failure_that_halts() {
    let bucket = TestBucket::start();
    let slow = Fault::Delay(std::time::Duration::from_secs(3));
    bucket.server.on(move |request| {
        (request.op == "PutObject" && request.key.contains("/failed/")).then_some(slow)
    });
    let (desk, jobs) = (bucket.desk(), bucket.address("jobs"));
    desk.ok(&["init", "-q", &jobs]);
    let tasks = "{}\n".repeat(5);
    assert_eq!(desk.dfq_with(&["push", "-q", &jobs], tasks).status, Some(0));
    for mode in [&["--"][..], &["--stream", "--"]] {
        desk.write("started", "");
        let script = match mode.len() {
            1 => "echo >> started; exit 65",
            _ => r#"while read -r task; do echo >> started; echo '{"fail":"no"}'; done"#,
        };
        let work = ["work", &jobs, "-j", "1", "--drain", "--halt", "fail=1"];
        let said = desk.dfq(&[&work, mode, &["sh", "-c", script]].concat());
        assert_eq!(said.status, Some(12), "{said:?}");
        assert!(said.err.contains("stopped: 1 commands failed (--halt fail=1)"), "{said:?}");
        assert_eq!(desk.read("started"), "\n", "{said:?}");
    }
}

#[test]
fn lines_of_parallel_commands_are_whole() {
    let desk = desk();
    for n in 0..16 {
        push(&desk, &[&format!("t{n}")]);
    }
    // Each line comes in pieces, with time for the others between them.
    let script = r#"for i in 1 2 3; do printf "%s-" "$1"; sleep 0.01; printf "%s-" "$1"; printf "%s\n" "$1"; done; printf "%s-end" "$1""#;
    let said = desk.dfq(&[
        "work", "-q", "./jobs", "-j", "8", "--drain", "--", "sh", "-c", script, "_", "{.id}",
    ]);
    assert_eq!(said.out.lines().count(), 16 * 4);
    for line in said.out.lines() {
        let id = line.split('-').next().unwrap();
        assert!(line == format!("{id}-{id}-{id}") || line == format!("{id}-end"), "{line}");
    }
}

#[test]
fn logs_instead_of_output() {
    let desk = desk();
    push(&desk, &["a/b", "c"]);
    let script = "echo out; echo err >&2; test $DFQ_ATTEMPT = 2";
    let said =
        desk.dfq(&["work", "./jobs", "--drain", "--log-dir", "./logs", "--", "sh", "-c", script]);
    assert_eq!((said.status, said.out.as_str()), (Some(0), ""), "{said:?}");
    for name in ["a%2Fb.1.log", "a%2Fb.2.log", "c.1.log", "c.2.log"] {
        let log = desk.read(&format!("logs/{name}"));
        let mut lines: Vec<_> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["err", "out"], "{name}");
    }
}

#[test]
fn logs_of_several_queues_are_kept_apart() {
    let desk = desk();
    desk.ok(&["push", "-q", "./jobs", "id=same"]);
    desk.ok(&["push", "-q", "./other", "id=same"]);
    desk.ok(&[
        "work",
        "-q",
        "./jobs",
        "./other",
        "--drain",
        "--log-dir",
        "logs",
        "--",
        "sh",
        "-c",
        "echo $DFQ_QUEUE",
    ]);
    assert!(desk.read("logs/1-jobs/same.1.log").contains("jobs"));
    assert!(desk.read("logs/2-other/same.1.log").contains("other"));
}

#[test]
fn a_line_without_an_end_does_not_fill_the_memory() {
    let desk = desk();
    push(&desk, &["a"]);
    let said = desk.dfq(&[
        "work",
        "-q",
        "./jobs",
        "--drain",
        "--",
        "sh",
        "-c",
        "head -c 3000000 /dev/zero | tr '\\0' x",
    ]);
    assert_eq!(said.out.len(), 3_000_001, "all of it, and an end");
}

#[test]
fn queues_in_the_order_given() {
    let desk = desk();
    for n in 0..10 {
        desk.ok(&["push", "-q", "./jobs", &format!("id=later{n}")]);
        desk.ok(&["push", "-q", "./urgent", &format!("id=first{n}")]);
    }
    let said = desk.dfq(&["work", "-q", "./urgent", "./jobs", "--drain", "--", "echo", "{.id}"]);
    let ids: Vec<_> = said.out.lines().collect();
    assert_eq!(ids.len(), 20);
    assert!(ids[..10].iter().all(|id| id.starts_with("first")), "{ids:?}");
}

#[test]
fn ends_by_itself_when_told_to() {
    let desk = desk();
    push(&desk, &["a", "b", "c"]);
    let said = desk.dfq(&["work", "./jobs", "--limit", "2", "--", "true"]);
    assert_eq!((said.status, records(&desk, "completed").len()), (Some(0), 2));
    let said = desk.dfq(&["work", "./jobs", "--until", "drained", "--json", "--", "true"]);
    let summary: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&summary["completed"], &summary["failed"]), (&1.into(), &0.into()));
    let said = desk.dfq(&["work", "./jobs", "--stop-after", "200ms", "--", "true"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    // Idle does not wait for a delayed task, drain does.
    desk.ok(&["push", "-q", "./later", "id=late", "--delay", "1m"]);
    desk.ok(&["work", "./later", "--until", "idle", "--", "true"]);
    assert_eq!(desk.ok(&["ls", "./later", "--state", "scheduled", "-o", "name"]), "late\n");
    desk.ok(&["push", "-q", "./jobs", "id=soon", "--delay", "1s"]);
    desk.ok(&["work", "./jobs", "--drain", "--", "true"]);
    assert!(records(&desk, "completed").contains_key("soon"));
}

#[test]
fn versions_that_it_does_not_know_are_left_alone() {
    let desk = desk();
    desk.ok(&["push", "-q", "./jobs", "id=old", "schema_version:=1"]);
    desk.ok(&["push", "-q", "./jobs", "id=new", "schema_version:=3"]);
    desk.ok(&["work", "-q", "./jobs", "--until", "idle", "--schema", "1..2", "--", "true"]);
    assert_eq!(records(&desk, "completed").keys().collect::<Vec<_>>(), ["old"]);
    assert_eq!(desk.dfq(&["work", "./jobs", "--schema", "2..1", "--", "true"]).status, Some(2));
}

#[test]
fn wrong_uses() {
    let desk = desk();
    let said = [
        desk.dfq(&["work", "./jobs"]),
        desk.dfq(&["work", "./jobs", "--"]),
        desk.dfq(&["work", "./none", "--", "true"]),
        desk.dfq(&["work", "jobs", "--", "true"]),
        desk.dfq(&["work", "./jobs", "--", "{.cmd}"]),
        desk.dfq(&["work", "./jobs", "--", "sh", "-c", "echo {.x}"]),
        desk.dfq(&["work", "./jobs", "--stream", "--", "cat", "{.x}"]),
        desk.dfq(&["work", "./jobs", "--lease", "10", "--", "true"]),
        desk.dfq(&["work", "./jobs", "--halt", "3", "--", "true"]),
        desk.dfq(&["work", "./jobs", "-j", "0", "--", "true"]),
        desk.dfq(&["work", "./jobs", "--until", "tomorrow", "--", "true"]),
    ];
    assert_transcript!("work_wrong_uses", desk.transcript(&said));
}

#[test]
fn a_live_line_on_a_terminal() {
    let desk = desk();
    push(&desk, &["a", "b", "c"]);
    let said = desk.on_terminal(
        &["work", "./jobs", "--drain", "--", "sh", "-c", "sleep 1.5; echo said $1", "_", "{.id}"],
        "",
    );
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.out.contains("1 running, 2 done"), "{said:?}");
    assert!(said.out.contains("about 3 left"), "{said:?}");
    // What commands print stands on lines of its own, not in the live line.
    for id in ["a", "b", "c"] {
        let alone = |line: &str| line.rsplit(['\r', 'K']).next() == Some(&format!("said {id}"));
        assert!(said.out.lines().any(alone), "{id}: {said:?}");
    }
    assert!(
        said.out.trim_end().ends_with('s') && said.out.contains("3 tasks completed"),
        "{said:?}"
    );
}

/// The summary is the last line, also if what commands have printed is read late.
#[test]
fn the_summary_in_json_comes_last() {
    for _ in 0..4 {
        let desk = desk();
        push(&desk, &["a"]);
        let (mut late, pipe) = std::io::pipe().unwrap();
        // More than a pipe holds.
        let args = ["work", "./jobs", "--drain", "--json", "--", "seq", "30000"];
        let mut worker = desk.command(&args).stdout(pipe).spawn().unwrap();
        support::until("it is done", || records(&desk, "completed").len() == 1);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let mut out = String::new();
        late.read_to_string(&mut out).unwrap();
        assert!(worker.wait().unwrap().success());
        assert_eq!(out.lines().count(), 30_001);
        let last = out.lines().last().unwrap();
        assert!(last.starts_with("{\"completed\":1,"), "the summary is not the last: {last}");
    }
}
