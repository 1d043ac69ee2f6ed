//! The commands that look at a queue, on one that has a task in every state.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::Stdio;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use support::{Desk, Said, until};

/// Claims the one task there is to claim; answers its receipt.
fn claim(desk: &Desk, queue: &str) -> String {
    let said = desk.ok(&["poll", queue]);
    let claimed: Value = serde_json::from_str(&said).unwrap();
    claimed["receipt"].as_str().unwrap().to_owned()
}

/// Lets a task's lease run out at once. A short one might run out while it is being claimed.
fn run_out(desk: &Desk, id: &str) {
    let shards = std::fs::read_dir(desk.path("jobs/pending")).unwrap();
    let mut files = shards.map(|shard| shard.unwrap().path().join(id).join("lease.json"));
    let file = files.find(|file| file.exists()).unwrap();
    let mut lease: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    lease["expires_at"] = lease["heartbeat_at"].clone();
    std::fs::write(file, lease.to_string()).unwrap();
}

/// A queue with a task in every state, each in a folder of its own, so that they are listed in one
/// order.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.ok(&["init", "./jobs", "--max-attempts", "3"]);
    let push = |id: &str, more: &[&str]| {
        desk.ok(&[&["push", "./jobs", &format!("id={id}"), "n:=1"], more].concat());
    };
    push("done", &[]);
    desk.ok(&["ack", "./jobs", &claim(&desk, "./jobs")]);
    for (id, host) in [("broken", "acme.com"), ("rotten", "b.org/x?y=1")] {
        push(id, &[]);
        let receipt = claim(&desk, "./jobs");
        let reason = format!("HTTP 503 for https://{host}");
        desk.ok(&["fail", "./jobs", &receipt, "--reason", &reason]);
    }
    push("shaky", &[]);
    let receipt = claim(&desk, "./jobs");
    desk.ok(&["nack", "./jobs", &receipt, "--error", "time\u{1b}[2J out", "--delay", "2h"]);
    push("held", &[]);
    claim(&desk, "./jobs");
    push("silent", &[]);
    claim(&desk, "./jobs");
    run_out(&desk, "silent");
    until("the lease has run out", || !desk.ok(&["ls", "./jobs", "--state", "stale"]).is_empty());
    push("waiting", &[]);
    push("later", &["--delay", "3h"]);
    desk
}

/// A transcript in which columns are two spaces apart, whatever the length of names and times.
fn transcript(desk: &Desk, said: &[Said]) -> String {
    let text = desk.transcript(said);
    let lines = text.lines().map(|line| {
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        let words: Vec<&str> =
            rest.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        format!("{indent}{}\n", words.join("  "))
    });
    lines.collect()
}

macro_rules! assert_transcript_of {
    ($name:expr, $transcript:expr) => {
        let mut filters = support::filters();
        filters.push((r"\b\d+(ms|s|m\d*s?|h\d*m?)\b", "[AGE]"));
        filters.push((r#""oldest_seconds":\d+"#, r#""oldest_seconds":[AGE]"#));
        insta::with_settings!({ filters => filters, omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!($name, $transcript);
        })
    };
}

fn worker(desk: &Desk, id: &str, seen: Duration, stopped: bool) {
    let stopped = if stopped { r#""stopped_at":"2020-11-15T22:21:00Z","# } else { "" };
    let file = format!("jobs/workers/{id}.json");
    desk.write(
        &file,
        format!(
            r#"{{"worker_id":"{id}","host":"pi","pid":17,"version":"0.1.0","started_at":"2020-11-15T22:20:00Z",{stopped}"concurrency":4,"running":1,"completed":5,"retried":1,"failed":2,"released":0,"lost":0}}"#
        ),
    );
    #[allow(clippy::disallowed_methods, reason = "a file's age is real")]
    let at = SystemTime::now() - seen;
    std::fs::File::options().write(true).open(desk.path(&file)).unwrap().set_modified(at).unwrap();
}

#[test]
fn listing() {
    let desk = desk();
    let said = [
        desk.dfq(&["ls", "./jobs"]),
        desk.dfq(&["ls", "./jobs", "-o", "name"]),
        desk.dfq(&["ls", "./jobs", "--state", "ready,failed", "--limit", "2", "-o", "name"]),
        desk.dfq(&["ls", "./jobs", "--where", "error~503", "--where", "id!=rotten"]),
        desk.dfq(&["ls", "./jobs", "--where", "id=shaky", "--json"]),
        desk.dfq(&["ls", "./jobs", "--where", "id=none"]),
        desk.dfq(&["ls", "./jobs", "--where", "nonsense"]),
        desk.dfq(&["ls", "./nowhere"]),
        desk.dfq(&["ls", "nowhere"]),
        desk.dfq(&["peek", "./jobs"]),
        desk.dfq(&["peek", "./jobs", "-n", "1", "--json", "--quiet"]),
    ];
    let peeked = &said[10].out;
    assert_eq!(peeked.lines().count(), 1);
    assert_transcript_of!("listing", transcript(&desk, &said[..10]));
}

#[test]
fn one_task() {
    let desk = desk();
    let ids = ["waiting", "held", "silent", "shaky", "later", "done", "broken"];
    let mut said: Vec<Said> = ids.map(|id| desk.dfq(&["show", "./jobs", id])).into();
    said.push(desk.dfq(&["show", "./jobs", "held", "--json"]));
    said.push(desk.dfq(&["show", "./jobs", "nobody"]));
    said.push(desk.dfq(&["show", "./jobs", ""]));
    assert_transcript_of!("show", transcript(&desk, &said));
}

#[test]
fn counting() {
    let desk = desk();
    desk.write("dfq.toml", "[queues.jobs]\naddress = './jobs'\n[queues.more]\n[queues.unmade]\n");
    desk.ok(&["push", "more", "{}", "-q"]);
    desk.ok(&["pause", "more"]);
    let said = [
        desk.dfq(&["stats", "./jobs"]),
        desk.dfq(&["stats", "./jobs", "--fast"]),
        desk.dfq(&["stats", "./jobs", "--json"]),
        desk.dfq(&["stats"]),
        desk.dfq(&["stats", "--fast"]),
        desk.dfq(&["stats", "--fail-if", "failed>1", "--fail-if", "oldest>2h", "-q"]),
        desk.dfq(&["stats", "more", "--fail-if", "failed>0", "--fail-if", "oldest > 1h"]),
        desk.dfq(&["stats", "--fail-if", "tasks>0"]),
        desk.dfq(&["stats", "--fail-if", "oldest>7"]),
        desk.dfq(&["stats", "--fast", "--fail-if", "stale>0"]),
        desk.dfq(&["stats", "unmade"]),
    ];
    assert_transcript_of!("stats", transcript(&desk, &said));
    let bare = Desk::new();
    assert_eq!(bare.dfq(&["stats"]).status, Some(2));
}

#[test]
fn explaining() {
    let desk = desk();
    let mut said = vec![desk.dfq(&["explain", "./jobs"])];
    let shown: Value =
        serde_json::from_str(&desk.ok(&["show", "./jobs", "held", "--json"])).unwrap();
    let holder = shown["worker_id"].as_str().unwrap();
    worker(&desk, holder, Duration::from_secs(300), false);
    said.push(desk.dfq(&["explain", "./jobs", "held"]));
    worker(&desk, "pi-1", Duration::ZERO, false);
    desk.ok(&["pause", "./jobs", "--reason", "maintenance"]);
    said.push(desk.dfq(&["explain", "./jobs"]));
    said.push(desk.dfq(&["explain", "./jobs", "--json"]));
    for id in ["waiting", "silent", "shaky", "later", "done", "broken"] {
        said.push(desk.dfq(&["explain", "./jobs", id]));
    }
    said.push(desk.dfq(&["explain", "./jobs", "nobody"]));
    desk.ok(&["init", "./empty"]);
    said.push(desk.dfq(&["explain", "./empty"]));
    assert_transcript_of!("explain", transcript(&desk, &said));
}

#[test]
fn damage_is_named() {
    let desk = Desk::new();
    desk.ok(&["push", "./jobs", "id=a"]);
    let file =
        std::fs::read_dir(desk.path("jobs/pending")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(file.join("a/task.json"), "{ cut sho").unwrap();
    let said = [
        desk.dfq(&["ls", "./jobs"]),
        desk.dfq(&["show", "./jobs", "a"]),
        desk.dfq(&["explain", "./jobs"]),
        desk.dfq(&["explain", "./jobs", "a"]),
        desk.dfq(&["export", "./jobs"]),
    ];
    assert_transcript_of!("damaged", transcript(&desk, &said));
}

#[test]
fn who_works() {
    let desk = Desk::new();
    desk.ok(&["init", "./jobs"]);
    let none = desk.dfq(&["workers", "./jobs"]);
    worker(&desk, "pi-1", Duration::ZERO, false);
    worker(&desk, "pi-2", Duration::from_secs(300), false);
    worker(&desk, "pi-0", Duration::from_secs(600), true);
    let said = [none, desk.dfq(&["workers", "./jobs"]), desk.dfq(&["workers", "./jobs", "--json"])];
    assert_transcript_of!("workers", transcript(&desk, &said));
}

#[test]
fn failures() {
    let desk = desk();
    let said = [
        desk.dfq(&["failed", "./jobs"]),
        desk.dfq(&["failed", "./jobs", "--limit", "1"]),
        desk.dfq(&["failed", "./jobs", "--group"]),
        desk.dfq(&["failed", "./jobs", "--group", "--json"]),
        desk.dfq(&["failed", "./jobs", "--where", "id=broken", "--json"]),
        desk.dfq(&["failed", "./jobs", "--where", "id=nobody"]),
    ];
    assert_transcript_of!("failed", transcript(&desk, &said));
}

/// The tasks of a queue as stored: id and the payload's bytes.
fn stored(desk: &Desk, queue: &str) -> Vec<(String, String)> {
    #[derive(serde::Deserialize)]
    struct Task {
        id: String,
        task: Box<serde_json::value::RawValue>,
    }
    let listed = desk.ok(&["ls", queue, "--json"]);
    let tasks = listed.lines().map(|line| serde_json::from_str::<Task>(line).unwrap());
    let mut tasks: Vec<_> = tasks.map(|task| (task.id, task.task.get().to_owned())).collect();
    tasks.sort();
    tasks
}

#[test]
fn what_is_exported_can_be_pushed() {
    let desk = Desk::new();
    let tasks = [
        r#"{"z":1,  "a":12345678901234567890123,"f":1.50,"é":"日本\u00e9"}"#,
        r#"{"id":"a b/ü","nested":{"_dfq":1}}"#,
        "{}",
        "{ }",
        r#"[1, "zwei"]"#,
        "null",
        r#""text""#,
        r#"{"a":1,"a":2 }"#,
    ];
    desk.dfq_with(&["push", "./one", "--jsonl", "-"], tasks.join("\n"));
    desk.ok(&["push", "./one", "id=later", "--delay", "1h"]);
    let exported = desk.dfq(&["export", "./one"]);
    assert_eq!(exported.out.lines().count(), tasks.len() + 1, "{exported:?}");
    assert_eq!(exported.err, "dfq: 9 tasks exported\n");
    let pushed = desk.dfq_with(&["push", "./two", "--jsonl", "-"], &exported.out);
    assert_eq!(pushed.status, Some(0), "{pushed:?}");
    assert_eq!(stored(&desk, "./one"), stored(&desk, "./two"));
    assert_eq!(desk.ok(&["export", "./one", "--state", "completed"]), "");
    let some = desk.ok(&["export", "./one", "--where", "id=later"]);
    assert_eq!(some, "{\"id\":\"later\",\"_dfq\":{\"id\":\"later\"}}\n");
}

#[test]
fn a_terminal_gets_lines_that_fit() {
    let desk = desk();
    for command in ["ls", "failed", "peek", "workers", "stats"] {
        let said = desk.on_terminal(&[command, "./jobs"], "");
        assert_eq!(said.status, Some(0), "{said:?}");
        for line in said.out.lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
            assert!(!line.contains('\u{1b}'), "{command}: {line}");
        }
    }
}

#[test]
fn whoever_reads_may_stop() {
    let desk = Desk::new();
    desk.ok(&["init", "./jobs", "--durability", "relaxed"]);
    // More than fits into a pipe, in each format.
    let id = |n| format!("{n:0>100}");
    let lines: String = (0..2000).map(|n| format!("{{\"id\":\"{}\"}}\n", id(n))).collect();
    let pushed = desk.dfq_with(&["push", "./jobs", "--jsonl", "-", "--quiet"], lines);
    assert_eq!(pushed.status, Some(0), "{pushed:?}");
    for format in ["table", "name", "json"] {
        let mut command = desk.command(&["ls", "./jobs", "-o", format]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 100];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{format}");
        assert_eq!(output.status.code(), Some(141), "{format}");
    }
    assert_eq!(desk.ok(&["ls", "./jobs", "-o", "name"]).lines().count(), 2000);
}

#[test]
fn names_may_be_anything() {
    let desk = Desk::new();
    let queue = "./päivän työt";
    desk.ok(&["push", queue, r#"{"id": "a b\nc\u001b"}"#, "-q"]);
    assert_eq!(desk.ok(&["ls", queue, "-o", "name"]), "a b␣c␣\n");
    for command in ["ls", "peek", "stats", "workers", "explain", "failed", "export"] {
        let said = desk.dfq(&[command, queue]);
        assert_eq!(said.status, Some(0), "{said:?}");
        assert!(!said.out.contains('\u{1b}'), "{said:?}");
    }
    assert_eq!(desk.dfq(&["show", queue, "a b\nc\u{1b}"]).status, Some(0));
}

/// Those who may read but not write can look all the same.
#[test]
fn a_folder_that_may_only_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let desk = desk();
    let mut folders = vec![desk.path("")];
    let mut all = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
        all.push(folder);
    }
    let allow = |mode| {
        for folder in &all {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    allow(0o555);
    let commands = ["ls", "peek", "stats", "workers", "explain", "failed", "export"];
    let said = commands.map(|command| {
        let mut command = desk.command(&[command, "./jobs"]);
        // Nothing is forbidden to root.
        if rustix::process::geteuid().is_root() {
            std::os::unix::process::CommandExt::uid(&mut command, 65534);
        }
        command.output()
    });
    allow(0o755);
    for said in said {
        match said {
            // The folders above may not be for everyone either.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return,
            said => assert_eq!(said.as_ref().unwrap().status.code(), Some(0), "{said:?}"),
        }
    }
}
