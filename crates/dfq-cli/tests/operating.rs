//! `dfq retry`, `cancel`, `unlock`, `gc`, `check` and `bench`: what operators do.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::Desk;

/// A queue with `ids` in it, in one folder so that they are listed in a known order.
fn desk_with(ids: &[&str]) -> Desk {
    let desk = Desk::new();
    desk.ok(&["init", "./jobs", "-q"]);
    for id in ids {
        desk.ok(&["push", "./jobs", "-q", "--id", id, "n:=1"]);
    }
    desk
}

/// Claims everything; answers the receipts.
fn claim_all(desk: &Desk) -> Vec<String> {
    let claimed = desk.ok(&["poll", "./jobs", "-n", "100"]);
    let receipt = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["receipt"].as_str().unwrap().to_owned()
    };
    claimed.lines().map(receipt).collect()
}

fn fail_all(desk: &Desk, reason: &str) {
    for receipt in claim_all(desk) {
        desk.ok(&["fail", "./jobs", &receipt, "--reason", reason]);
    }
}

#[test]
fn retry() {
    let desk = desk_with(&["a"]);
    fail_all(&desk, "connect: timeout");
    desk.ok(&["push", "./jobs", "-q", "--id", "b", "1"]);
    fail_all(&desk, "no such page");
    desk.ok(&["push", "./jobs", "-q", "--id", "waits", "1"]);
    let said = [
        desk.dfq(&["retry", "./jobs"]),
        desk.dfq(&["retry", "./jobs", "--all"]),
        desk.dfq(&["retry", "./jobs", "--where", "error~TIMEOUT", "--dry-run"]),
        desk.dfq(&["retry", "./jobs", "--where", "error~timeout", "--yes"]),
        desk.dfq(&["retry", "./jobs", "--where", "error~timeout", "--yes"]),
        desk.dfq(&["retry", "./jobs", "a", "b", "waits", "nobody", "b"]),
        desk.dfq(&["retry", "./jobs", "--dry-run", "b", "nobody"]),
        desk.dfq(&["retry", "./jobs", "--all", "--yes"]),
        desk.dfq(&["retry", "./jobs", "--json", "a", "nobody"]),
        desk.dfq(&["check", "./jobs"]),
    ];
    assert_transcript!("retry", desk.transcript(&said));
}

#[test]
fn retry_as_json_with_a_limit_and_ids_from_stdin() {
    let desk = desk_with(&["only"]);
    fail_all(&desk, "no");
    let said = [
        desk.dfq(&["retry", "./jobs", "--all", "--json", "--dry-run"]),
        desk.dfq(&["retry", "./jobs", "--all", "--json", "--yes", "--limit", "0"]),
        desk.dfq_with(&["retry", "./jobs", "--json", "-"], "only\n\nonly\n"),
        desk.dfq(&["retry", "./jobs", "only", "--limit", "1"]),
        desk.dfq(&["retry", "./jobs", "--all", "--yes", "--limit", "1"]),
    ];
    assert_transcript!("retry_json", desk.transcript(&said));
}

#[test]
fn a_limit_holds_and_many_are_done_in_batches() {
    let desk = Desk::new();
    let lines: String = (0..1203).map(|n| format!("{{\"id\":\"{n}\"}}\n")).collect();
    desk.dfq_with(&["push", "./jobs", "-q"], lines);
    let said = desk.dfq(&["cancel", "./jobs", "--all", "--yes"]);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("", "dfq: 1,203 tasks cancelled\n"));
    let said = desk.dfq(&["retry", "./jobs", "--all", "--yes", "--limit", "7", "--json"]);
    assert_eq!(said.out.lines().count(), 7);
    let said = desk.on_terminal(&["retry", "./jobs", "--all"], "y\n");
    assert!(said.out.contains("Retry 1,196 tasks that failed?"), "{said:?}");
    assert!(said.out.contains("1,196 tasks retried"), "{said:?}");
}

#[test]
fn cancel() {
    let desk = desk_with(&["a", "b", "späte räte"]);
    desk.ok(&["push", "./jobs", "-q", "--id", "later", "--delay", "1h", "1"]);
    let said = [
        desk.dfq(&["cancel", "./jobs", "--all"]),
        desk.dfq(&["cancel", "./jobs", "a", "nobody", "--reason", "not wanted"]),
        desk.dfq(&["cancel", "./jobs", "a"]),
        desk.dfq(&["cancel", "./jobs", "a", "b", "--dry-run"]),
        desk.dfq(&["cancel", "./jobs", "--where", "id~räte", "--dry-run"]),
        desk.dfq(&["cancel", "./jobs", "--where", "id=later", "--yes"]),
        desk.dfq(&["cancel", "./jobs", "--where", "id"]),
        desk.dfq(&["cancel", "./jobs", "a", "--all"]),
        desk.dfq(&["cancel", "./jobs", "--all", "--yes"]),
        desk.dfq(&["cancel", "./jobs", "--all", "--yes"]),
        desk.dfq(&["check", "./jobs", "--json"]),
    ];
    assert_transcript!("cancel", desk.transcript(&said));
    let failed = desk.ok(&["retry", "./jobs", "--where", "error=not wanted", "--dry-run"]);
    assert_eq!(failed, "a\n");
}

#[test]
fn unlock() {
    let desk = desk_with(&["a"]);
    let receipts = claim_all(&desk);
    desk.ok(&["push", "./jobs", "-q", "--id", "free", "1"]);
    let said = [
        desk.dfq(&["unlock", "./jobs"]),
        desk.dfq(&["unlock", "./jobs", "--all"]),
        desk.dfq(&["unlock", "./jobs", "--all", "--dry-run"]),
        desk.dfq(&["unlock", "./jobs", "--worker", "nobody", "--yes"]),
        desk.dfq(&["unlock", "./jobs", "a", "free", "nobody"]),
        desk.dfq(&["heartbeat", "./jobs", &receipts[0]]),
        desk.dfq(&["unlock", "./jobs", "--all", "--yes"]),
    ];
    assert_transcript!("unlock", desk.transcript(&said));
    // From its backoff, too.
    let receipts: Vec<String> = claim_all(&desk);
    for receipt in &receipts {
        desk.ok(&["nack", "./jobs", receipt, "--delay", "1h"]);
    }
    assert_eq!(desk.dfq(&["poll", "./jobs"]).status, Some(1));
    desk.ok(&["unlock", "./jobs", "a", "--json"]);
    assert!(desk.ok(&["poll", "./jobs"]).contains(r#""id":"a""#));
}

#[test]
fn unlock_a_worker() {
    let desk = desk_with(&["a"]);
    claim_all(&desk);
    let shown = desk.ok(&["unlock", "./jobs", "a", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let worker = shown["worker_id"].as_str().unwrap();
    assert_eq!(desk.dfq(&["unlock", "./jobs", "--worker", worker, "--yes"]).status, Some(0));
    claim_all(&desk);
    let holder = desk.read_lease("a");
    let said = desk.dfq(&["unlock", "./jobs", "--worker", &holder, "--yes"]);
    assert_eq!(said.err, "dfq: 1 task unlocked\n");
}

impl Desk {
    /// Who has a task, from its latest lease.
    fn read_lease(&self, id: &str) -> String {
        let mut found = Vec::new();
        for shard in std::fs::read_dir(self.path("jobs/pending")).unwrap() {
            let task = shard.unwrap().path().join(id);
            for file in std::fs::read_dir(task).into_iter().flatten() {
                let path = file.unwrap().path();
                if path.file_name().unwrap().to_string_lossy().starts_with("lease") {
                    found.push(path);
                }
            }
        }
        let number = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.split('.').nth(1).and_then(|part| part.parse().ok()).unwrap_or(1)
        };
        found.sort_by_key(number);
        let lease = std::fs::read_to_string(found.last().unwrap()).unwrap();
        let lease: serde_json::Value = serde_json::from_str(&lease).unwrap();
        lease["worker_id"].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_terminal_is_asked() {
    let desk = desk_with(&["a"]);
    let said = [
        desk.on_terminal(&["cancel", "./jobs", "--all"], "n\n"),
        desk.on_terminal(&["cancel", "./jobs", "--all"], "\n"),
        desk.on_terminal(&["cancel", "./jobs", "--all"], "y\n"),
        desk.on_terminal(&["retry", "./jobs", "--all"], "n\n"),
        desk.on_terminal(&["retry", "./jobs", "--all"], "YES\n"),
        desk.on_terminal(&["poll", "./jobs", "--lease", "1h"], ""),
        desk.on_terminal(&["unlock", "./jobs", "--all"], "n\n"),
        desk.on_terminal(&["unlock", "./jobs", "--all"], "y\n"),
        desk.on_terminal(&["cancel", "./jobs", "a"], ""),
    ];
    assert_transcript!("asked", desk.transcript(&said));
}

#[test]
fn gc() {
    let desk = desk_with(&["a", "b"]);
    let receipts = claim_all(&desk);
    desk.ok(&["ack", "./jobs", &receipts[0]]);
    desk.ok(&["fail", "./jobs", &receipts[1]]);
    let young = desk.dfq(&["gc", "./jobs", "--completed", "--older-than", "7d"]);
    age(&desk.path("jobs/completed"));
    age(&desk.path("jobs/failed"));
    let said = [
        young,
        desk.dfq(&["gc", "./jobs", "--older-than", "7d"]),
        desk.dfq(&["gc", "./jobs", "--completed"]),
        desk.dfq(&["gc", "./jobs", "--completed", "--older-than", "soon"]),
        desk.dfq(&["gc", "./jobs", "--completed", "--older-than", "1m"]),
        desk.dfq(&["gc", "./jobs", "--completed", "--failed", "--older-than", "7d", "--dry-run"]),
        desk.dfq(&["gc", "./jobs", "--completed", "--older-than", "7d"]),
        desk.on_terminal(&["gc", "./jobs", "--completed", "--older-than", "7d"], "n\n"),
        desk.on_terminal(&["gc", "./jobs", "--completed", "--older-than", "7d"], "y\n"),
        desk.dfq(&["gc", "./jobs", "--failed", "--older-than", "7d", "--yes", "--json"]),
        desk.dfq(&["gc", "./jobs", "--failed", "--completed", "--older-than", "7d", "--yes"]),
        desk.dfq(&["check", "./jobs"]),
    ];
    assert_transcript!("gc", desk.transcript(&said));
}

/// Makes all files below a folder thirty days old.
fn age(folder: &std::path::Path) {
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_500_000_000);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => age(&path),
            false => std::fs::File::options()
                .append(true)
                .open(&path)
                .unwrap()
                .set_modified(old)
                .unwrap(),
        }
    }
}

#[test]
fn check() {
    let desk = desk_with(&["a", "b"]);
    let well = desk.dfq(&["check", "./jobs"]);
    let shard = std::fs::read_dir(desk.path("jobs/pending"))
        .unwrap()
        .map(|shard| shard.unwrap().path().join("a"))
        .find(|task| task.exists())
        .unwrap();
    // Not as if somebody were just writing it.
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    std::fs::write(shard.join("task.json"), "{\"torn").unwrap();
    let torn = std::fs::File::options().write(true).open(shard.join("task.json")).unwrap();
    torn.set_modified(long_ago).unwrap();
    std::fs::create_dir(shard.with_file_name("c")).unwrap();
    desk.write("jobs/notes\u{1b}[2J.txt", "mine");
    let said = [
        well,
        desk.dfq(&["check", "./jobs", "--dry-run"]),
        desk.dfq(&["check", "./jobs", "--repair", "--dry-run"]),
        desk.dfq(&["check", "./jobs", "--json"]),
        desk.dfq(&["check", "./jobs", "--repair"]),
        desk.dfq(&["check", "./jobs"]),
    ];
    assert_transcript!("check", desk.transcript(&said));
    std::fs::remove_file(desk.path("jobs/notes\u{1b}[2J.txt")).unwrap();
    std::fs::remove_dir(shard.with_file_name("c")).ok();
    assert_eq!(desk.dfq(&["check", "./jobs"]).status, Some(0));
}

#[test]
fn an_empty_queue_and_none_at_all() {
    let desk = desk_with(&[]);
    let commands: [&[&str]; 5] = [
        &["retry", "--all", "--yes"],
        &["cancel", "--all", "--yes"],
        &["unlock", "--all", "--yes"],
        &["gc", "--completed", "--older-than", "7d"],
        &["check"],
    ];
    let mut said = Vec::new();
    for queue in ["./jobs", "./nope", "nope"] {
        for command in commands {
            said.push(desk.dfq(&[&[command[0], queue], &command[1..]].concat()));
        }
    }
    assert_transcript!("empty", desk.transcript(&said));
}

#[test]
fn bench_measures_and_leaves_nothing() {
    let desk = desk_with(&["a"]);
    let args = ["--tasks", "20", "--workers", "3", "--json"];
    for address in ["./jobs", "./some/where", "."] {
        let out = desk.ok(&[&["bench", address], &args[..]].concat());
        let lines: Vec<serde_json::Value> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines[0]["filesystem"].is_string(), "{out}");
        let rows = [("write, fsync, rename", 1, 1)].into_iter().chain(
            [(1, 1), (64, 1), (1, 3), (64, 3)].into_iter().flat_map(|(batch, workers)| {
                ["push", "claim", "ack"].map(|operation| (operation, batch, workers))
            }),
        );
        for (line, (operation, batch, workers)) in lines[1..].iter().zip(rows) {
            assert_eq!(line["operation"], operation);
            assert_eq!((&line["batch"], &line["workers"]), (&batch.into(), &workers.into()));
            assert_eq!(line["tasks"], 20);
        }
        assert_eq!(lines.len(), 14);
        let left: Vec<_> = std::fs::read_dir(desk.path(".")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
    assert_eq!(
        desk.dfq(&["check", "./jobs"]).out,
        "in order: 1 pending, 0 scheduled, 0 completed, 0 failed\n"
    );
    let table =
        desk.ok(&["bench", "./jobs", "--tasks", "2", "--workers", "1", "--durability", "relaxed"]);
    assert_eq!(table.lines().count(), 9, "{table}");
    desk.write("file", "");
    let said = [
        desk.dfq(&["bench", "./file"]),
        desk.dfq(&["bench", "./file/below"]),
        desk.dfq(&["bench", "./jobs", "--durability", "eternal"]),
        desk.dfq(&["bench", "./jobs", "--tasks", "0"]),
    ];
    assert_transcript!("bench_refuses", desk.transcript(&said));
}

#[test]
fn bench_cleans_up_when_interrupted() {
    let desk = Desk::new();
    let mut child = desk.start(&["bench", "./deep/er", "--tasks", "1000000"]);
    let begun = || {
        let made = std::fs::read_dir(desk.path("deep/er")).into_iter().flatten().flatten();
        made.into_iter().any(|entry| entry.path().join("queue-1-1/pending").exists())
    };
    support::until("it measures", begun);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!desk.path("deep").exists());
}
