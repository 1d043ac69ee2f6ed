//! Whose fault it is: what a task contains never stops a worker, and what happens to a worker never counts
//! against a task.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use support::{Desk, Said, pause, until};

/// A queue whose failures are tried again at once, and given up after the second.
fn desk(tasks: &[&str]) -> Desk {
    desk_with("10ms", tasks)
}

/// The same, with another pause before a failure is tried again.
fn desk_with(backoff: &str, tasks: &[&str]) -> Desk {
    let desk = Desk::new();
    let init = ["init", "-q", "./jobs", "--max-attempts", "2"];
    desk.ok(&[&init[..], &["--backoff", backoff, "--backoff-max", backoff]].concat());
    desk.dfq_with(&["push", "-q", "./jobs", "--jsonl", "-"], tasks.join("\n"));
    desk
}

fn stats(desk: &Desk, what: &str) -> u64 {
    let stats: serde_json::Value =
        serde_json::from_str(&desk.ok(&["stats", "./jobs", "--json"])).unwrap();
    stats[what].as_u64().unwrap()
}

/// Tasks with nothing but an id, as lines of JSON.
fn many(count: usize) -> String {
    (0..count).map(|n| format!("{{\"id\":\"t{n}\"}}\n")).collect()
}

/// Nothing was counted against any task: each can still be done by somebody who allows one attempt.
fn all_can_be_done(desk: &Desk, tasks: u64) -> bool {
    let said = desk.dfq(&["work", "./jobs", "--drain", "--max-attempts", "1", "--", "true"]);
    said.status == Some(0) && stats(desk, "completed") == tasks
}

#[test]
fn a_command_that_is_not_there_is_found_out_before_anything_is_claimed() {
    let desk = desk(&[r#"{"id":"a"}"#]);
    desk.write("not-executable", "#!/bin/sh\n");
    std::fs::create_dir(desk.path("folder")).unwrap();
    for command in ["./no-such-command", "no-such-command", "./not-executable", "./folder"] {
        for stream in [&["--drain"][..], &["--drain", "--stream"]] {
            let said = desk.dfq(&[&["work", "./jobs"], stream, &["--", command]].concat());
            assert_eq!(said.status, Some(12), "{said:?}");
            assert!(said.err.contains("nothing was claimed"), "{said:?}");
        }
    }
    assert!(!desk.ok(&["show", "./jobs", "a", "--json"]).contains("lease_id"), "never claimed");
    assert!(all_can_be_done(&desk, 1));
}

/// The failures of one task, whatever it does: the worker goes on, and ends as one that saw a failure.
fn fails_alone(said: &Said, desk: &Desk, why: &str) {
    assert_eq!(said.status, Some(1), "{said:?}");
    assert_eq!((stats(desk, "completed"), stats(desk, "failed")), (1, 1), "{said:?}");
    assert!(desk.ok(&["failed", "./jobs"]).contains(why), "{}", desk.ok(&["failed", "./jobs"]));
}

#[test]
fn a_value_too_long_for_an_argument_fails_its_task_alone() {
    let big = format!(r#"{{"id":"big","v":"{}"}}"#, "A".repeat(140_000));
    let desk = desk(&[&big, r#"{"id":"small","v":"x"}"#]);
    let said = desk.dfq(&["work", "./jobs", "--drain", "--", "sh", "-c", "exit 0", "_", "{.v}"]);
    fails_alone(&said, &desk, "too long");
}

#[test]
fn a_script_that_ends_with_127_for_one_task_fails_it_alone() {
    for stream in [false, true] {
        let desk = desk(&[r#"{"id":"bad"}"#, r#"{"id":"good"}"#]);
        let once = r#"case "$DFQ_TASK_ID" in bad) exit 127;; esac"#;
        let lines = r#"while read -r l; do case "$l" in *'"bad"'*) exit 127;; esac; echo '{"ok":true}'; done"#;
        let said = match stream {
            false => desk.dfq(&["work", "./jobs", "--drain", "--", "sh", "-c", once]),
            true => desk.dfq(&["work", "./jobs", "--drain", "--stream", "--", "sh", "-c", lines]),
        };
        fails_alone(&said, &desk, "127");
    }
}

#[test]
fn a_task_without_a_member_fails_alone() {
    let desk = desk(&[r#"{"id":"lacks"}"#, r#"{"id":"has","url":"x"}"#]);
    let said = desk.dfq(&["work", "./jobs", "--drain", "--", "echo", "{.url}"]);
    fails_alone(&said, &desk, "no member 'url'");
}

/// However many there are, and though nothing was ever completed: none says anything about the next.
#[test]
fn tasks_without_a_member_never_stop_a_worker() {
    let desk = desk(&[&many(25)]);
    let said = desk.dfq(&["work", "./jobs", "--drain", "--", "echo", "{.url}"]);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(!said.err.contains("stopped:"), "{said:?}");
    assert_eq!((stats(&desk, "completed"), stats(&desk, "failed")), (0, 25), "{said:?}");
    // Each was counted as often as a failure is.
    assert!(said.err.contains("25 to be tried again, 25 failed"), "{said:?}");
    assert!(desk.ok(&["failed", "./jobs"]).contains("no member 'url'"));
}

/// A broken machine costs ten attempts, not a queue.
#[test]
fn a_command_that_never_runs_stops_the_worker_after_ten_tasks() {
    // None comes again before the others had their turn, however slow the machine.
    let desk = desk_with("1h", &[&many(30)]);
    let said = desk.dfq(&["work", "./jobs", "--drain", "--", "sh", "-c", "no-such-command"]);
    assert_eq!(said.status, Some(12), "{said:?}");
    assert!(said.err.contains("10 tasks in a row"), "{said:?}");
    assert_eq!((stats(&desk, "completed"), stats(&desk, "failed")), (0, 0), "{said:?}");
}

/// Once something was completed it is the tasks, however many.
#[test]
fn a_command_that_ran_once_is_not_taken_for_one_that_never_does() {
    let desk = desk(&[r#"{"id":"good"}"#]).and(vec![("DFQ", env!("CARGO_BIN_EXE_dfq").to_owned())]);
    desk.write("more", many(25));
    // The others come while the good one is at work, so it is the first for certain.
    let script = r#"test "$DFQ_TASK_ID" = good || exit 127; "$DFQ" push -q ./jobs --jsonl more"#;
    let said = desk.dfq(&["work", "./jobs", "-j", "1", "--drain", "--", "sh", "-c", script]);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert_eq!((stats(&desk, "completed"), stats(&desk, "failed")), (1, 25), "{said:?}");
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal).unwrap();
}

/// As Slurm does with a step, a terminal with Ctrl-C, and a container that is stopped.
#[test]
fn a_stop_that_also_reaches_the_command_is_no_failure() {
    for (signal, command_first) in
        [(Signal::TERM, true), (Signal::INT, false), (Signal::HUP, true), (Signal::TERM, false)]
    {
        for stream in [false, true] {
            // The worker waits a second for its own signal. A machine that stalls between the two spoils a
            // round, not all.
            let counts_nothing = || a_stop_of_both_counts_nothing(signal, command_first, stream);
            assert!((0..5).any(|_| counts_nothing()), "{signal:?}, {command_first}, {stream}");
        }
    }
}

fn a_stop_of_both_counts_nothing(signal: Signal, command_first: bool, stream: bool) -> bool {
    // Only the first of them has to be stopped. What is started again after a spoilt round ends at once.
    let script = "test -e pids && exit; echo $$ >> pids; exec sleep 600";
    let lines = r#"read -r l; test -e pids && { echo '{"ok":true}'; exit; }; echo $$ >> pids; exec sleep 600"#;
    let desk = desk(&[r#"{"id":"a"}"#]);
    let worker = match stream {
        false => desk.start(&["work", "./jobs", "--", "sh", "-c", script]),
        true => desk.start(&["work", "./jobs", "--stream", "--", "sh", "-c", lines]),
    };
    until("it works", || desk.path("pids").exists() && !desk.read("pids").is_empty());
    let group = Pid::from_raw(desk.read("pids").trim().parse().unwrap()).unwrap();
    if command_first {
        kill_process_group(group, signal).unwrap();
        pause(); // so that the worker has seen the command end
        send(&worker, signal);
    } else {
        send(&worker, signal);
        kill_process_group(group, signal).unwrap();
    }
    let output = worker.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    stats(&desk, "completed") == 0 && all_can_be_done(&desk, 1)
}

/// TERM and at once HUP, as when a session is closed: one stop, and commands may finish.
#[test]
fn two_signals_at_once_are_one_stop() {
    let desk = desk(&[r#"{"id":"a"}"#]);
    let script = "echo $$ >> pids; while ! test -e go; do sleep 0.02; done";
    for _ in 0..20 {
        let worker = desk.start(&["work", "./jobs", "--", "sh", "-c", script]);
        until("it works", || desk.path("pids").exists());
        send(&worker, Signal::TERM);
        send(&worker, Signal::HUP);
        desk.write("go", "");
        let output = worker.wait_with_output().unwrap();
        if output.status.code() == Some(0) {
            assert_eq!(stats(&desk, "completed"), 1, "{output:?}");
            return;
        }
        // This machine stalled between the two, or the worker did between hearing of them.
        std::fs::remove_file(desk.path("go")).unwrap();
        std::fs::remove_file(desk.path("pids")).unwrap();
    }
    panic!("two signals sent together are never taken for one stop");
}

/// An ack that can never succeed is given up, and the worker says so and ends accordingly.
#[test]
fn a_result_that_cannot_be_recorded_is_not_held_for_ever() {
    let desk = desk(&[r#"{"id":"a"}"#]);
    std::os::unix::fs::symlink("/nowhere/at/all", desk.path("jobs/completed")).unwrap();
    let said = desk.dfq(&["work", "./jobs", "--limit", "1", "--", "true"]);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.err.contains("cannot be recorded"), "{said:?}");
    assert!(said.err.contains("1 done, but not recorded"), "{said:?}");
}

#[test]
fn a_task_that_its_command_gives_back_waits() {
    let desk = desk(&[r#"{"id":"a"}"#]);
    let script = r#"while read -r l; do echo x >> times; echo '{"release":"not now"}'; done"#;
    let said =
        desk.dfq(&["work", "./jobs", "--until", "idle", "--stream", "--", "sh", "-c", script]);
    assert_eq!(said.status, Some(0), "{said:?}");
    // A machine that stalls for the whole pause may see it again; before, it came back at once.
    assert!(desk.read("times").lines().count() < 4, "{}", desk.read("times"));
}

/// What a task is called reaches no terminal as it is.
#[test]
fn ids_are_printable_in_log_lines() {
    let desk = desk(&[]);
    let shard = desk.path("jobs/pending/zz\u{1b}[31mred");
    std::fs::create_dir_all(shard).unwrap();
    let mut command = desk.command(&["work", "./jobs", "--until", "idle", "--", "true"]);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("not a shard"), "{err}");
    assert!(!err.contains('\u{1b}'), "{err:?}");
}
