//! Workers and commands that are killed, stopped, too slow, or told to end: real processes.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::io::Read;
use std::process::{Child, Output};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{Desk, until};

fn desk(lease: &str) -> Desk {
    let desk = Desk::new();
    desk.ok(&[
        "init",
        "-q",
        "./jobs",
        "--lease",
        lease,
        "--backoff",
        "10ms",
        "--backoff-max",
        "10ms",
    ]);
    desk
}

fn push(desk: &Desk, count: usize) {
    let lines: String = (0..count).map(|n| format!("{{\"id\":\"t{n}\"}}\n")).collect();
    assert_eq!(desk.dfq_with(&["push", "-q", "./jobs"], lines).status, Some(0));
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap()).unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(pid(child), signal).unwrap();
}

/// Waits until it has said this on stderr; what it says after that is left for `end`.
fn hear(child: &mut Child, text: &str) {
    let stderr = child.stderr.as_mut().unwrap();
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(text.as_bytes()) {
        let heard = stderr.read_exact(&mut byte);
        assert!(heard.is_ok(), "no '{text}' in {}", String::from_utf8_lossy(&said));
        said.extend(byte);
    }
}

/// What it says when it has understood the first signal.
const STOPPING: &str = "stopping: commands may finish";

fn end(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

fn count(desk: &Desk, place: &str) -> usize {
    let mut files = 0;
    let mut folders = vec![desk.path("jobs").join(place)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.unwrap();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ => {
                    files += usize::from(!entry.file_name().to_string_lossy().starts_with("lease"))
                }
            }
        }
    }
    files
}

/// Process numbers that commands have written down.
fn noted(desk: &Desk, file: &str) -> Vec<Pid> {
    let notes = std::fs::read_to_string(desk.path(file)).unwrap_or_default();
    // The last line may be half-written.
    let whole = notes.rfind('\n').map_or("", |end| &notes[..end]);
    whole.lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
}

fn is_alive(pid: Pid) -> bool {
    // A zombie has ended; only its parent has not looked yet.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid).is_ok() && !stat.is_ok_and(|stat| stat.contains(") Z "))
}

/// Waits for the end of all that commands have written down.
fn until_all_are_gone(desk: &Desk) {
    let pids = noted(desk, "pids");
    until("all are gone", || !pids.iter().any(|pid| is_alive(*pid)));
}

/// Writes down its own number and that of a child of its own, both of which ignore polite requests.
const STUBBORN: &str = r#"trap "" TERM; echo $$ >> leaders; echo $$ >> pids;
    (trap "" TERM; sleep 600) & echo $! >> pids; wait"#;

#[test]
fn a_timeout_ends_the_whole_process_group() {
    let desk = desk("10m");
    push(&desk, 1);
    let said = desk.dfq(&[
        "work",
        "./jobs",
        "--drain",
        "--max-attempts",
        "1",
        "--timeout",
        "5s",
        "--",
        "sh",
        "-c",
        STUBBORN,
    ]);
    assert_eq!(said.status, Some(1));
    assert!(said.err.contains("t0: failed: timed out after 5s"), "{said:?}");
    assert_eq!(noted(&desk, "pids").len(), 2);
    until_all_are_gone(&desk);
}

#[test]
fn a_lost_lease_ends_the_whole_process_group() {
    let desk = desk("1s");
    push(&desk, 1);
    let slow = desk.start(&["work", "./jobs", "--limit", "1", "--", "sh", "-c", STUBBORN]);
    until("it works", || noted(&desk, "pids").len() == 2);
    signal(&slow, Signal::STOP);
    // Somebody else takes over, and finishes.
    assert_eq!(desk.dfq(&["work", "./jobs", "--drain", "--", "true"]).status, Some(0));
    signal(&slow, Signal::CONT);
    let (status, _, err) = end(slow);
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("t0: somebody else has it now"), "{err}");
    until_all_are_gone(&desk);
    assert_eq!((count(&desk, "completed"), count(&desk, "pending")), (1, 0));
}

#[test]
fn a_killed_workers_tasks_are_done_by_others() {
    let desk = desk("1s");
    push(&desk, 40);
    let victim = desk.start(&[
        "work",
        "./jobs",
        "-j",
        "4",
        "--",
        "sh",
        "-c",
        "echo $$ >> pids; exec sleep 600",
    ]);
    until("it works", || noted(&desk, "pids").len() >= 4);
    let mut victim = victim;
    victim.kill().unwrap();
    victim.wait().unwrap();
    let helpers: Vec<_> = (0..2)
        .map(|_| desk.start(&["work", "./jobs", "-j", "2", "--drain", "--", "true"]))
        .collect();
    for helper in helpers {
        assert_eq!(end(helper).0, Some(0));
    }
    assert_eq!((count(&desk, "completed"), count(&desk, "pending")), (40, 0));
    // What the killed one's commands were at is still running: nobody can kill them for it.
    for orphan in noted(&desk, "pids") {
        let _ = kill_process(orphan, Signal::KILL);
    }
}

#[test]
fn a_signal_lets_commands_finish_and_claims_no_more() {
    for kind in [Signal::TERM, Signal::INT, Signal::HUP] {
        let desk = desk("10m");
        push(&desk, 8);
        let mut worker = desk.start(&[
            "work",
            "./jobs",
            "-j",
            "2",
            "--",
            "sh",
            "-c",
            "echo $$ >> pids; while ! test -e go; do sleep 0.02; done",
        ]);
        until("two are at work", || noted(&desk, "pids").len() == 2);
        signal(&worker, kind);
        // Commands that end before it has understood would make room for others.
        hear(&mut worker, STOPPING);
        desk.write("go", "");
        let (status, _, err) = end(worker);
        assert_eq!(status, Some(0), "{err}");
        assert!(err.contains("2 tasks completed"), "{err}");
        assert_eq!((count(&desk, "completed"), count(&desk, "pending")), (2, 6));
    }
}

#[test]
fn what_is_not_done_within_the_grace_is_given_back_at_once() {
    let desk = desk("10m");
    push(&desk, 2);
    let worker =
        desk.start(&["work", "./jobs", "-j", "2", "--grace", "300ms", "--", "sh", "-c", STUBBORN]);
    until("both are at work", || noted(&desk, "pids").len() == 4);
    signal(&worker, Signal::TERM);
    let (status, _, err) = end(worker);
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("2 given back"), "{err}");
    assert!(
        !noted(&desk, "leaders").into_iter().any(is_alive),
        "no task is given back while it is worked on"
    );
    // The rest were killed with their leaders, but nobody waits for that.
    until_all_are_gone(&desk);
    // The leases had ten minutes to go.
    let next = desk.dfq(&["work", "./jobs", "--until", "idle", "--", "true"]);
    assert!(next.err.contains("2 tasks completed"), "{next:?}");
}

#[test]
fn a_second_signal_stops_at_once() {
    for (kind, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let desk = desk("10m");
        push(&desk, 1);
        let mut worker =
            desk.start(&["work", "./jobs", "--grace", "10m", "--", "sh", "-c", STUBBORN]);
        until("it works", || noted(&desk, "pids").len() == 2);
        signal(&worker, kind);
        // One that comes too soon after the first was understood is taken for the first.
        hear(&mut worker, STOPPING);
        std::thread::sleep(std::time::Duration::from_millis(300));
        signal(&worker, kind);
        let (ended, _, err) = end(worker);
        assert_eq!(ended, Some(status), "{err}");
        assert!(!noted(&desk, "leaders").into_iter().any(is_alive));
        until_all_are_gone(&desk);
        let next = desk.dfq(&["work", "./jobs", "--until", "idle", "--", "true"]);
        assert!(next.err.contains("1 task completed"), "{next:?}");
    }
}

#[test]
fn two_workers_share_without_doing_anything_twice() {
    let desk = desk("10m");
    push(&desk, 200);
    let workers: Vec<_> = (0..3)
        .map(|_| desk.start(&["work", "-q", "./jobs", "-j", "3", "--drain", "--", "echo", "{.id}"]))
        .collect();
    let mut done = Vec::new();
    for worker in workers {
        let (status, out, err) = end(worker);
        assert_eq!(status, Some(0), "{err}");
        done.extend(out.lines().map(str::to_owned));
    }
    done.sort_unstable();
    let before = done.len();
    done.dedup();
    assert_eq!((before, done.len()), (200, 200));
}

#[test]
fn a_command_that_leaves_a_child_behind_does_not_hold_the_worker_up() {
    let desk = desk("10m");
    push(&desk, 1);
    // The child holds the pipes open long after the command has ended.
    let said = desk.dfq(&[
        "work",
        "./jobs",
        "--drain",
        "--",
        "sh",
        "-c",
        "sleep 600 & echo $! >> pids; echo done",
    ]);
    assert_eq!((said.status, said.out.as_str()), (Some(0), "done\n"), "{said:?}");
    for orphan in noted(&desk, "pids") {
        let _ = kill_process(orphan, Signal::KILL);
    }
}

#[test]
fn a_task_larger_than_a_pipe_and_a_command_that_does_not_read_it() {
    let desk = desk("10m");
    let large = format!("{{\"id\":\"large\",\"data\":\"{}\"}}", "x".repeat(300_000));
    assert_eq!(desk.dfq_with(&["push", "-q", "./jobs"], &large).status, Some(0));
    let said = desk.dfq(&["work", "-q", "./jobs", "--limit", "1", "--", "true"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert_eq!(desk.dfq_with(&["push", "-q", "./jobs", "--again"], &large).status, Some(0));
    let said = desk.dfq(&["work", "-q", "./jobs", "--limit", "1", "--", "wc", "-c"]);
    assert_eq!(said.out.trim(), (large.len() + 1).to_string());
}

/// Ends when asked to, but has a child that does not.
const GRANDCHILD: &str =
    r#"(trap "" TERM; echo ready >> readied; sleep 600) & echo $! >> pids; echo $$ >> pids; wait"#;

#[test]
fn those_of_a_group_that_outlive_its_leader_are_ended_too() {
    let desk = desk("10m");
    push(&desk, 1);
    let worker = desk.start(&["work", "./jobs", "--grace", "100ms", "--", "sh", "-c", GRANDCHILD]);
    until("both are there", || noted(&desk, "pids").len() == 2 && desk.path("readied").exists());
    signal(&worker, Signal::TERM);
    assert_eq!(end(worker).0, Some(0));
    until_all_are_gone(&desk);
}

#[test]
fn a_signal_sent_to_us_and_to_our_group_is_one_signal() {
    let desk = desk("10m");
    push(&desk, 1);
    let worker = desk.start(&[
        "work",
        "./jobs",
        "--limit",
        "1",
        "--",
        "sh",
        "-c",
        "echo $$ >> pids; while ! test -e go; do sleep 0.02; done",
    ]);
    until("it works", || noted(&desk, "pids").len() == 1);
    for _ in 0..5 {
        signal(&worker, Signal::TERM);
    }
    desk.write("go", "");
    let (status, _, err) = end(worker);
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("1 task completed"), "{err}");
}

#[test]
fn a_hangup_that_is_to_be_ignored_is_ignored() {
    let desk = desk("10m");
    push(&desk, 2);
    let mut command = std::process::Command::new("nohup");
    let script = "echo $$ >> pids; while ! test -e go; do sleep 0.02; done";
    command
        .args([env!("CARGO_BIN_EXE_dfq"), "work", "./jobs", "--drain", "--", "sh", "-c", script])
        .current_dir(desk.path("."))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let worker = command.spawn().unwrap();
    until("it works", || noted(&desk, "pids").len() == 1);
    signal(&worker, Signal::HUP);
    desk.write("go", "");
    let (status, _, err) = end(worker);
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("2 tasks completed"), "{err}");
}

#[test]
fn nobody_who_listens_is_no_reason_to_stop() {
    let desk = desk("10m");
    push(&desk, 30);
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command =
        desk.command(&["work", "./jobs", "-v", "-j", "4", "--drain", "--", "echo", "hello"]);
    let status = command.stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(count(&desk, "completed"), 30);
    let status = desk.command(&["ls", "./nowhere"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

#[test]
fn a_reader_that_has_stopped_reading_does_not_make_us_deaf() {
    let desk = desk("10m");
    push(&desk, 8);
    // A pipe that nobody reads, and more commands that fill it than there are cores.
    let mut command = desk.command(&[
        "work",
        "-v",
        "./jobs",
        "-j",
        "8",
        "--grace",
        "200ms",
        "--",
        "sh",
        "-c",
        "echo $$ >> pids; exec yes",
    ]);
    let (_unread, pipe) = std::io::pipe().unwrap();
    command.stdout(pipe.try_clone().unwrap()).stderr(pipe);
    let mut worker = command.spawn().unwrap();
    until("all are at work", || noted(&desk, "pids").len() == 8);
    std::thread::sleep(std::time::Duration::from_millis(300));
    kill_process(pid(&worker), Signal::TERM).unwrap();
    // Not read until it has ended.
    until("it has ended", || worker.try_wait().unwrap().is_some());
    assert!(!noted(&desk, "pids").into_iter().any(is_alive));
    let next = desk.dfq(&["work", "./jobs", "--until", "idle", "--", "true"]);
    assert!(next.err.contains("8 tasks completed"), "{next:?}");
}

#[test]
fn more_at_once_than_there_is_room_for_is_refused() {
    let desk = desk("10m");
    push(&desk, 1);
    let dfq = env!("CARGO_BIN_EXE_dfq");
    let script = format!("ulimit -n 256; exec {dfq} work ./jobs -j 1500 --until idle -- true");
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", &script]).current_dir(desk.path(".")).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("use -j 24, or raise it"), "{err}");
}

#[test]
fn a_queue_that_a_group_shares_does_not_change_what_commands_make() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    let script = format!(
        "umask 077; d={}; $d init -q ./above/jobs --shared group && $d push -q ./above/jobs id=a && \
         exec $d work -q ./above/jobs --drain -- sh -c 'umask; touch made'",
        env!("CARGO_BIN_EXE_dfq")
    );
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", &script]).current_dir(desk.path(".")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0077", "{output:?}");
    let mode = |path: &str| desk.path(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("made"), 0o600);
    assert_eq!(mode("above"), 0o700, "the folders above are not the group's business");
    assert_eq!(mode("above/jobs"), 0o2775);
    assert_eq!(mode("above/jobs/completed"), 0o2775);
    assert_eq!(mode("above/jobs/queue.json"), 0o664);
}
