//! `dfq demo`: it proves what it says, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::{Child, Stdio};

use support::Desk;

fn start(desk: &Desk, args: &[&str]) -> Child {
    let mut command = desk.command(args);
    command.env("TMPDIR", desk.path("."));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn folders(desk: &Desk) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(desk.path(".")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_worker_dies_and_nothing_is_lost() {
    let desk = Desk::new();
    let said = start(&desk, &["demo", "--tasks", "300"]).wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&said.stdout);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    for sentence in [
        "$ dfq work ./jobs -j 4 --lease 3s --drain -- sleep {.seconds}",
        "a worker dies in the middle of",
        "taken over: task-",
        "300 tasks pushed, 300 completed, 0 failed",
        "nothing lost, nothing completed twice",
        "\"attempt\": 2",
    ] {
        assert!(out.contains(sentence), "no '{sentence}' in {out}");
    }
    assert_eq!(folders(&desk), Vec::<std::path::PathBuf>::new());
}

#[test]
fn as_json_and_kept() {
    let desk = Desk::new();
    let said = start(&desk, &["demo", "--tasks", "300", "--keep", "--json"]).wait_with_output();
    let said = said.unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(summary["completed"], 300, "{said:?}");
    assert_eq!((&summary["lost"], &summary["completed_twice"]), (&0.into(), &0.into()));
    assert_eq!(summary["held_when_killed"], summary["taken_over"]);
    let queue = format!("{}/jobs", summary["folder"].as_str().unwrap());
    let check = desk.ok(&["check", &queue]);
    assert_eq!(check, "in order: 0 pending, 0 scheduled, 300 completed, 0 failed\n");
}

#[test]
fn an_interruption_leaves_no_worker_and_no_folder() {
    let desk = Desk::new();
    let mut child = start(&desk, &["demo", "--tasks", "1000"]);
    let mut pids = Vec::new();
    support::until("three workers are there", || {
        pids.clear();
        for folder in folders(&desk) {
            for record in std::fs::read_dir(folder.join("jobs/workers")).into_iter().flatten() {
                let record = std::fs::read(record.unwrap().path()).unwrap_or_default();
                let record: serde_json::Value = serde_json::from_slice(&record).unwrap_or_default();
                pids.extend(record["pid"].as_i64());
            }
        }
        pids.len() == 3
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(folders(&desk), Vec::<std::path::PathBuf>::new());
    for pid in pids {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        assert!(rustix::process::test_kill_process(pid).is_err(), "{pid:?} still runs");
    }
}

#[test]
fn too_few_tasks_show_nothing() {
    let desk = Desk::new();
    let said = [desk.dfq(&["demo", "--tasks", "3"])];
    assert_transcript!("demo_refuses", desk.transcript(&said));
}
