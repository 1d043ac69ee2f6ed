//! Bad input and bad stores: one clear sentence, its exit status, nothing changed and nothing lost.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::Desk;

#[test]
fn ids_of_every_kind_stay_in_their_folder() {
    let desk = Desk::new();
    let ids = ["a/b", "..", "../../up", "nul\0", "new\nline", "\u{1b}[2J", "🦀", " ", ".hid", "@2"];
    let line = |id: &&str| serde_json::json!({ "id": id }).to_string() + "\n";
    let lines: String = ids.iter().map(line).collect();
    let said = desk.dfq_with(&["push", "./jobs", "--jsonl", "-"], lines);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert_eq!(said.out.lines().count(), ids.len(), "{said:?}");
    assert!(said.out.contains("\u{1b}[2J"), "as it is for programs: {said:?}");
    let shown = desk.on_terminal(&["ls", "./jobs", "-o", "name"], "");
    assert!(shown.out.contains("␣[2J") && !shown.out.contains("\u{1b}[2J"), "{shown:?}");
    let beside: Vec<_> = std::fs::read_dir(desk.path(".")).unwrap().flatten().collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
    let check = desk.ok(&["check", "./jobs"]);
    assert_eq!(check, "in order: 10 pending, 0 scheduled, 0 completed, 0 failed\n");
    for id in ids.iter().filter(|id| !id.contains('\0')) {
        let said = desk.dfq(&["cancel", "./jobs", "--", id]);
        assert_eq!(said.status, Some(0), "{said:?}");
        let again = desk.dfq(&["cancel", "./jobs", "--", id]);
        assert_eq!(again.status, Some(5), "{again:?}");
        assert!(!(said.out + &again.err).contains('\u{1b}'));
    }
    assert_eq!(desk.dfq_with(&["cancel", "./jobs", "-"], "nul\0\n").status, Some(0));
    let retried = desk.ok(&["retry", "./jobs", "--all", "--yes", "--json"]);
    assert_eq!(retried.lines().count(), ids.len());
}

#[test]
fn ids_that_are_refused() {
    let desk = Desk::new();
    desk.ok(&["push", "./jobs", "-q", "id=a"]);
    let before = files(&desk.path("jobs"));
    let long = "x".repeat(300);
    let crabs = "🦀".repeat(20);
    let said = [
        desk.dfq(&["push", "./jobs", "--id", "", "1"]),
        desk.dfq(&["push", "./jobs", "--id", &long, "1"]),
        desk.dfq(&["push", "./jobs", "--id", &crabs, "1"]),
        desk.dfq_with(&["push", "./jobs", "--jsonl", "-"], format!("{{\"id\":\"{long}\"}}\n")),
        desk.dfq(&["retry", "./jobs", &long]),
        desk.dfq(&["cancel", "./jobs", ""]),
        desk.dfq(&["unlock", "./jobs", "a", &crabs]),
        desk.dfq(&["cancel", "./jobs", "no\nsuch\u{1b}[31m"]),
        desk.dfq(&["retry", "./jobs", "../a"]),
    ];
    let transcript = desk.transcript(&said).replace(&long, "[LONG]").replace(&crabs, "[CRABS]");
    assert_transcript!("ids_refused", transcript);
    assert_eq!(files(&desk.path("jobs")), before);
}

#[test]
fn a_file_where_the_queue_should_be() {
    let desk = Desk::new();
    desk.write("file", "mine");
    let commands: [&[&str]; 8] = [
        &["push", "./file", "1"],
        &["init", "./file/below"],
        &["poll", "./file"],
        &["ack", "./file", "a/1/00000000000000000000000000000000"],
        &["pause", "./file"],
        &["retry", "./file", "--all"],
        &["gc", "./file", "--completed", "--older-than", "7d"],
        &["check", "./file"],
    ];
    let said: Vec<_> = commands.iter().map(|command| desk.dfq(command)).collect();
    assert_transcript!("a_file", desk.transcript(&said));
    assert_eq!(desk.read("file"), "mine");
}

#[test]
fn a_damaged_queue_and_one_from_the_future() {
    let desk = Desk::new();
    desk.ok(&["init", "./jobs", "-q"]);
    let settings = desk.read("jobs/queue.json");
    let mut said = Vec::new();
    desk.write("jobs/queue.json", "{\"format\":");
    said.push(desk.dfq(&["check", "./jobs"]));
    said.push(desk.dfq(&["push", "./jobs", "1"]));
    let mut newer: serde_json::Value = serde_json::from_str(&settings).unwrap();
    for name in ["format", "format_version"] {
        if newer.get(name).is_some() {
            newer[name] = 99.into();
        }
    }
    desk.write("jobs/queue.json", newer.to_string());
    said.push(desk.dfq(&["check", "./jobs"]));
    said.push(desk.dfq(&["push", "./jobs", "1"]));
    desk.write("jobs/queue.json", settings.replacen('{', r#"{"requires": ["wings"],"#, 1));
    said.push(desk.dfq(&["work", "./jobs", "--", "true"]));
    assert_transcript!("damaged_queue", desk.transcript(&said));
}

/// All files below a folder, apart from what an onlooker may leave to learn the store's time.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("tmp") => {}
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// A small filesystem of its own, where we may mount one.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(options: &str) -> Option<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mount = Self(folder);
        mount.mount(&["-t", "tmpfs", "-o", options, "tmpfs"]).then_some(mount)
    }

    fn remount(&self, options: &str) {
        assert!(self.mount(&["-o", &format!("remount,{options}")]), "remount {options}");
    }

    fn mount(&self, args: &[&str]) -> bool {
        let mounted = Command::new("mount").args(args).arg(self.0.path()).output();
        mounted.is_ok_and(|mounted| mounted.status.success())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_read_only_store() {
    let Some(mount) = Mount::new("size=4m") else { return }; // only root may mount
    let desk = Desk::in_folder(mount.0.path());
    desk.ok(&["push", "./jobs", "-q", "id=a"]);
    let claimed = desk.ok(&["poll", "./jobs"]);
    desk.ok(&["push", "./jobs", "-q", "id=b"]);
    let claimed: serde_json::Value = serde_json::from_str(&claimed).unwrap();
    let receipt = claimed["receipt"].as_str().unwrap();
    mount.remount("ro");
    let commands: [&[&str]; 9] = [
        &["push", "./jobs", "1"],
        &["push", "./other", "1"],
        &["init", "./other"],
        &["poll", "./jobs"],
        &["ack", "./jobs", receipt],
        &["cancel", "./jobs", "b"],
        &["unlock", "./jobs", "a"],
        &["pause", "./jobs"],
        &["bench", "."],
    ];
    let said: Vec<_> = commands.iter().map(|command| desk.dfq(command)).collect();
    for said in &said {
        // Beside what the library may warn of.
        let sentences = said.err.lines().filter(|line| line.starts_with("dfq: ")).count();
        assert_eq!((said.status, sentences), (Some(9), 1), "{said:?}");
    }
    assert_eq!(desk.dfq(&["check", "./jobs"]).status, Some(0));
    mount.remount("rw");
    desk.ok(&["ack", "./jobs", receipt]);
    desk.ok(&["cancel", "./jobs", "b"]);
}

#[test]
fn a_store_that_fills_up_in_mid_push() {
    let Some(mount) = Mount::new("size=4m,nr_inodes=300") else { return }; // only root may mount
    let desk = Desk::in_folder(mount.0.path());
    let lines: String = (0..400).map(|n| format!("{{\"id\":\"{n}\"}}\n")).collect();
    let said = desk.dfq_with(&["push", "./jobs", "--json", "--jsonl", "-"], &lines);
    assert_eq!((said.status, said.err.lines().count()), (Some(8), 2), "{said:?}");
    let pushed = said.out.matches("created").count();
    assert!(said.err.contains(&format!("pushed so far: {pushed} tasks")), "{said:?}");
    assert!(0 < pushed && pushed < 400, "{said:?}");
    mount.remount("nr_inodes=100000");
    // What was said to be pushed is there, and the rest goes in.
    let again = desk.dfq_with(&["push", "./jobs", "--json", "--jsonl", "-"], &lines);
    assert_eq!(again.status, Some(0), "{again:?}");
    assert_eq!(again.out.matches("\"pending\"").count(), pushed, "{again:?}");
    let check = desk.ok(&["check", "./jobs"]);
    assert_eq!(check, "in order: 400 pending, 0 scheduled, 0 completed, 0 failed\n");
}

#[test]
fn a_store_that_fills_up_in_mid_ack() {
    let Some(mount) = Mount::new("size=4m") else { return }; // only root may mount
    let desk = Desk::in_folder(mount.0.path());
    let lines: String = (0..50).map(|n| format!("{{\"id\":\"{n}\"}}\n")).collect();
    desk.dfq_with(&["push", "./jobs", "-q"], &lines);
    let claimed = desk.ok(&["poll", "./jobs", "-n", "50"]);
    let receipt = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["receipt"].as_str().unwrap().to_owned()
    };
    let receipts = claimed.lines().map(receipt).collect::<Vec<_>>().join("\n");
    // Room for some records, and not for all: full but for a few pages.
    let filler = desk.path("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let full = file.metadata().unwrap().len();
    file.set_len(full - 20 * 4096).unwrap();
    let said = desk.dfq_with(&["ack", "./jobs", "--json", "-"], &receipts);
    assert_eq!(said.status, Some(8), "{said:?}");
    let acked = said.out.matches("\"completed\"").count();
    assert!(acked < 50, "{said:?}");
    let plain = desk.dfq_with(&["ack", "./jobs", "-"], receipts.lines().last().unwrap());
    assert!(plain.err.lines().count() <= 1, "{plain:?}");
    drop(file); // its room is free only then
    std::fs::remove_file(filler).unwrap();
    let again = desk.dfq_with(&["ack", "./jobs", "-"], &receipts);
    assert_eq!(again.status, Some(0), "{again:?}");
    let check = desk.ok(&["check", "./jobs"]);
    assert_eq!(check, "in order: 0 pending, 0 scheduled, 50 completed, 0 failed\n");
}

/// One of them makes the queue, with its settings; all others are told so.
#[test]
fn of_many_who_make_a_queue_at_once_one_does() {
    let desk = Desk::new();
    let lease = |n: usize| format!("{}s", 100 + n);
    let makers: Vec<_> =
        (0..10).map(|n| desk.start(&["init", "./jobs", "--lease", &lease(n)])).collect();
    let ended: Vec<_> = makers.into_iter().map(|maker| maker.wait_with_output().unwrap()).collect();
    let made: Vec<usize> = (0..10).filter(|n| ended[*n].status.success()).collect();
    assert_eq!(made.len(), 1, "{ended:?}");
    assert!(
        desk.read("jobs/queue.json").contains(&format!("\"lease_seconds\": {}.0", 100 + made[0]))
    );
    for (n, ended) in ended.iter().enumerate() {
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(said.contains("made the queue"), n == made[0], "{said}");
    }
}
