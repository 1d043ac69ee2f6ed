//! What disks and people do to a node's folder and to its hub: emptied, unmounted, full, spoiled, with other times.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dfq_s3_server::Lies;
use support::Desk;
use support::bucket::TestBucket;
use support::synced::{
    Town, alone, ended, eventually, merged, pending, poll, push, stats, stop, work,
};

const HOUR_MS: i64 = 3600 * 1000;

/// Removes all that is in a folder, and not the folder.
fn empty(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
    }
}

/// A queue with something of each kind on two nodes.
fn lived_in() -> Town {
    let town = Town::with_nodes(&["./a", "./b"]);
    let desk = &town.desk;
    push(desk, "./a", (0..8).map(|number| format!("t{number}")));
    let said = desk.dfq_with(&["push", "./b", "--id", "later", "--delay", "1h", "-q"], "{}");
    assert_eq!(said.status, Some(0), "{said:?}");
    alone(desk, "a");
    let held = poll(desk, "./a");
    desk.ok(&["ack", "./a", &held[0].1, &held[1].1, "-q"]);
    desk.ok(&["release", "./a", &held[2].1, &held[3].1, "-q"]);
    town.settle(&["./a", "./b"]);
    town
}

#[test]
fn an_emptied_folder_is_refused_and_the_hub_keeps_everything() {
    for is_gone in [false, true] {
        let town = lived_in();
        let (desk, before) = (&town.desk, town.in_hub());
        match is_gone {
            true => std::fs::remove_dir_all(desk.path("a")).unwrap(),
            false => empty(&desk.path("a")),
        }
        for args in [
            &["supervise", "./a", "--with", &town.hub, "--once"][..],
            &["supervise", "./a", "--with", &town.hub],
        ] {
            let said = desk.dfq(args);
            assert_eq!(said.status, Some(2), "{said:?}");
            assert!(said.err.contains("mount it") && said.err.contains("--yes"), "{said:?}");
        }
        assert_eq!(town.in_hub(), before);
        desk.ok(&["supervise", "./a", "--with", &town.hub, "--once", "--yes", "-q"]);
        town.settle(&["./a", "./b"]);
        assert_eq!(town.alike(&["./a", "./b"]), before, "all is there again");
    }
}

#[test]
fn a_folder_that_loses_a_part_of_itself_gets_it_back() {
    for lost in [
        &["pending"][..],
        &["completed", "failed"],
        &["scheduled", "pending", "completed"],
        &["sync"],
    ] {
        let town = lived_in();
        let (desk, before) = (&town.desk, town.in_hub());
        for part in lost {
            std::fs::remove_dir_all(desk.path("a").join(part)).ok();
        }
        match lost {
            // Without that it does not know who it is.
            ["sync"] => {
                let said = desk.dfq(&["supervise", "./a", "--with", &town.hub, "--once"]);
                assert_eq!(said.status, Some(2), "{said:?}");
                desk.ok(&["supervise", "./a", "--with", &town.hub, "--once", "--yes", "-q"]);
            }
            _ => town.merge("./a"),
        }
        assert_eq!(town.in_hub(), before, "{lost:?}");
        town.settle(&["./a", "./b"]);
        assert_eq!(town.alike(&["./a", "./b"]), before, "{lost:?}");
    }
}

#[test]
fn a_disk_that_goes_while_it_is_merged_takes_nothing_with_it() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    let supervisor = desk.start(&["supervise", "./a", "--with", &hub, "--every", "1s", "-q"]);
    eventually("the first pass has ended", || desk.path("a/sync/nodes.json").exists());
    push(&desk, "./a", ["x", "y"]);
    eventually("they are in the hub", || stats(&desk, &hub)["pending"] == 2);
    std::fs::rename(desk.path("a"), desk.path("elsewhere")).unwrap();
    std::fs::create_dir(desk.path("a")).unwrap();
    bucket.server.meter().reset();
    // It may end by itself, and it may go on with the folder that it has opened.
    let mut supervisor = supervisor;
    eventually("it has gone on, or ended", || {
        bucket.server.meter().count("ListObjectsV2") > 3 || supervisor.try_wait().unwrap().is_some()
    });
    match supervisor.try_wait().unwrap() {
        Some(status) => assert!(!status.success()),
        None => stop(supervisor),
    }
    assert_eq!(stats(&desk, &hub)["pending"], 2);
    let said = desk.dfq(&["supervise", "./a", "--with", &hub, "--every", "1s", "--once"]);
    assert_eq!(said.status, Some(2), "{said:?}");
    assert_eq!(stats(&desk, &hub)["pending"], 2);
}

/// All files below a folder.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, into),
            false => into.push(path),
        }
    }
}

/// Moves the times of all files of a node, as a filesystem that keeps local time does, or a restored backup.
fn shift_times(folder: &Path, by_ms: i64) {
    let mut all = Vec::new();
    files(folder, &mut all);
    for path in all {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let was = file.metadata().unwrap().modified().unwrap();
        let by = Duration::from_millis(by_ms.unsigned_abs());
        file.set_modified(if by_ms < 0 { was - by } else { was + by }).unwrap();
    }
}

#[test]
fn all_times_of_a_folder_may_change_at_once() {
    for by_ms in [HOUR_MS, -HOUR_MS, 30 * HOUR_MS, -30 * 24 * HOUR_MS] {
        let town = lived_in();
        let desk = &town.desk;
        let before = town.in_hub();
        for node in ["a", "b"] {
            shift_times(&desk.path(node), by_ms);
            town.merge(&format!("./{node}"));
            assert_eq!(town.in_hub(), before, "{by_ms}: nothing is other than it was");
        }
        town.settle(&["./a", "./b"]);
        assert_eq!(town.alike(&["./a", "./b"]), before, "{by_ms}");
        // What was done is not done again, and what was given back is done.
        alone(desk, "a");
        let done: Vec<&str> = ended(&before, "completed");
        assert_eq!(done.len(), 2);
        let ran = desk.path("ran");
        let run = format!("echo $DFQ_TASK_ID >> {}", ran.display());
        desk.ok(&["work", "./a", "--until", "idle", "-q", "--", "sh", "-c", &run]);
        town.settle(&["./a", "./b"]);
        let all = town.alike(&["./a", "./b"]);
        let ran = std::fs::read_to_string(ran).unwrap();
        assert!(!ran.lines().any(|id| done.contains(&id)), "{by_ms}: {ran}");
        assert!(ended(&all, "completed").len() >= 4, "{by_ms}: {all:?}");
        assert_eq!(ended(&all, "completed").len() + pending(&all).len(), 8, "{by_ms}");
    }
}

#[test]
fn a_hub_whose_clock_is_wrong_merges_all_the_same() {
    for by_ms in [HOUR_MS, -HOUR_MS] {
        let town = lived_in();
        let desk = &town.desk;
        let lies = |clock_offset_ms| Lies { clock_offset_ms, ..Lies::default() };
        town.bucket.server.set_lies(lies(by_ms));
        push(desk, "./b", ["more"]);
        town.settle(&["./a", "./b"]);
        alone(desk, "a");
        work(desk, "./a");
        town.settle(&["./a", "./b"]);
        town.bucket.server.set_lies(lies(0));
        push(desk, "./a", ["last"]);
        town.settle(&["./b", "./a"]);
        let all = town.alike(&["./a", "./b"]);
        assert_eq!(ended(&all, "completed").len() + pending(&all).len(), 10, "{all:?}");
        assert!(ended(&all, "completed").contains(&"more"));
    }
}

#[test]
fn damaged_and_foreign_files_are_reported_and_stay_where_they_are() {
    let town = lived_in();
    let (desk, server) = (&town.desk, &town.bucket.server);
    push(desk, "./a", ["from-a"]);
    push(desk, "./b", ["from-b"]);
    // Half-written and foreign ones in the folder.
    desk.write("a/pending/00/README", "?");
    desk.write("a/pending/zz/none/task.json", "{}");
    push(desk, "./a", ["torn-here"]);
    let all = merged(&desk.path("a"));
    let task = all.keys().find(|name| name.contains("torn-here")).unwrap();
    let torn = task.replace("pending/", "a/completed/").replace("/task.json", ".json");
    desk.write(&torn, "{\"_dfq\":{\"id\":");
    std::fs::remove_file(desk.path("a").join(task)).unwrap();
    desk.write("a/floors/00/notes.txt", "?");
    desk.write("a/somebody.txt", "?");
    // And in the hub.
    for (key, text) in [
        ("pending/00/README", "?"),
        ("pending/zz/none/task.json", "{}"),
        ("pending/0a/half", "{\"id\""),
        ("floors/00/bad.json", "{\"floors\":["),
        ("somebody.txt", "?"),
        ("scheduled/soon/x/task.json", "{}"),
    ] {
        server.put(&format!("town/{key}"), text.as_bytes());
    }
    let said = town.try_merge("./a");
    assert_eq!(said.status, Some(0), "{said:?}");
    for name in
        ["pending/zz/none", "torn-here", "pending/0a/half", "floors/00/bad.json", "scheduled/soon"]
    {
        assert!(said.err.contains(name), "{name} is not reported: {said:?}");
    }
    town.try_merge("./b");
    town.try_merge("./a");
    let hub: Vec<String> = server.objects().into_keys().collect();
    for here in ["torn-here", "notes.txt"] {
        assert!(!hub.iter().any(|key| key.contains(here)), "{here} is in the hub");
        assert!(!merged(&desk.path("b")).keys().any(|key| key.contains(here)));
    }
    for there in ["pending/0a/half", "scheduled/soon", "somebody.txt"] {
        assert!(hub.iter().any(|key| key.ends_with(there) || key.contains(there)), "{there} stays");
        assert!(!desk.path("b").join(there).exists(), "{there} is in a folder");
    }
    for node in ["a", "b"] {
        let all = merged(&desk.path(node));
        let open = pending(&all);
        assert!(open.contains(&"from-a") && open.contains(&"from-b"), "{node}: {open:?}");
    }
    assert_eq!(desk.read(&torn), "{\"_dfq\":{\"id\":");
}

#[test]
fn a_file_where_a_folder_should_be_costs_only_itself() {
    let town = lived_in();
    let desk = &town.desk;
    // A shard, and a task's folder, here; the same in the hub has no folders to be in the way.
    let all = merged(&desk.path("b"));
    let name = all.keys().find(|name| name.starts_with("pending/")).unwrap();
    let shard = Path::new(name).iter().take(2).collect::<PathBuf>();
    std::fs::remove_dir_all(desk.path("b").join(&shard)).unwrap();
    std::fs::write(desk.path("b").join(&shard), "in the way").unwrap();
    push(desk, "./a", ["new-a"]);
    push(desk, "./b", ["new-b"]);
    town.merge("./a");
    let said = town.try_merge("./b");
    assert!(said.err.contains(shard.to_str().unwrap()) || said.err.contains("cannot"), "{said:?}");
    assert!(pending(&town.in_hub()).contains(&"new-b"), "{said:?}");
    assert!(pending(&merged(&desk.path("b"))).contains(&"new-a"), "{said:?}");
    std::fs::remove_file(desk.path("b").join(&shard)).unwrap();
    town.settle(&["./a", "./b"]);
    let all_now = town.alike(&["./a", "./b"]);
    assert!(all.keys().all(|name| all_now.contains_key(name)), "it has healed");
}

/// A folder of its own kind, unmounted in the end.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn small_disk(desk: &Desk, name: &str) -> Option<Mount> {
    let path = desk.path(name);
    std::fs::create_dir(&path).unwrap();
    let options = ["-t", "tmpfs", "-o", "size=1m,nr_inodes=4000", "tmpfs"];
    let mounted = Command::new("mount").args(options).arg(&path).output();
    mounted.is_ok_and(|it| it.status.success()).then(|| Mount(path))
}

#[test]
fn a_full_disk_fails_the_pass_which_goes_on_when_there_is_room() {
    let town = Town::with_nodes(&["./b"]);
    let desk = &town.desk;
    let Some(disk) = small_disk(desk, "a") else {
        println!("SKIPPED: no small disk can be mounted here");
        return;
    };
    desk.ok(&["supervise", "./a", "--with", &town.hub, "--once", "-q"]);
    push(desk, "./a", ["own"]);
    town.merge("./a");
    push(desk, "./b", (0..100).map(|number| format!("t{number}")));
    town.merge("./b");
    // All but nothing is taken.
    let filler = vec![0_u8; 4096];
    let mut file = std::fs::File::create(disk.0.join("filler")).unwrap();
    while std::io::Write::write_all(&mut file, &filler).is_ok() {}
    let said = town.try_merge("./a");
    assert!(said.status.is_some_and(|status| status != 0), "{said:?}");
    assert!(said.err.contains("full") || said.err.contains("No space"), "{said:?}");
    assert_eq!(pending(&town.in_hub()).len(), 101, "the hub keeps all");
    // A supervisor goes on, and says so.
    let mut supervisor = desk.start(&["supervise", "./a", "--every", "1s"]);
    let mut lines = BufReader::new(supervisor.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("not merged: ")));
    // What it says further is of no account, but it must be able to say it.
    std::thread::spawn(move || lines.for_each(drop));
    drop(file);
    std::fs::remove_file(disk.0.join("filler")).unwrap();
    eventually("all is here", || stats(desk, "./a")["pending"] == 101);
    stop(supervisor);
    town.settle(&["./a", "./b"]);
    town.alike(&["./a", "./b"]);
}

/// Runs the command as a user who is not root; nothing, if that cannot be done here.
fn as_nobody(desk: &Desk, args: &[&str]) -> Option<support::Said> {
    let plain = desk.command(args);
    let mut all = vec!["--reuid=65534", "--regid=65534", "--clear-groups"];
    all.push(plain.get_program().to_str().unwrap());
    all.extend(args);
    let output = desk.program(Path::new("setpriv"), &all).output().ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(support::Said {
        command: format!("dfq {}", args.join(" ")),
        out: text(&output.stdout),
        err: text(&output.stderr),
        status: output.status.code(),
    })
}

/// A node in `n/a` that is merged by another user than root, who may not read the answered shard of it; meanwhile
/// another node has pushed to all shards.
fn locked_out() -> Option<(Town, PathBuf)> {
    let town = Town::with_nodes(&["./b"]);
    let desk = &town.desk;
    for folder in ["", "n"] {
        std::fs::create_dir_all(desk.path(folder)).unwrap();
        std::fs::set_permissions(desk.path(folder), Permissions::from_mode(0o777)).unwrap();
    }
    let made = as_nobody(desk, &["supervise", "n/a", "--with", &town.hub, "--once", "-q"]);
    if made.is_none_or(|made| made.status != Some(0)) {
        println!("SKIPPED: no command can be run as another user here");
        return None;
    }
    push(desk, "./b", (0..20).map(|number| format!("t{number}")));
    town.merge("./b");
    assert_eq!(as_nobody(desk, &["supervise", "n/a", "--once"]).unwrap().status, Some(0));
    let all = merged(&desk.path("n/a"));
    let shard = Path::new(all.keys().next().unwrap()).iter().take(2).collect::<PathBuf>();
    std::fs::set_permissions(desk.path("n/a").join(&shard), Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(desk.path("n/a").join(&shard), Some(0), Some(0)).unwrap();
    push(desk, "./b", (20..40).map(|number| format!("t{number}")));
    town.merge("./b");
    Some((town, shard))
}

#[test]
fn a_folder_that_may_not_be_read_is_named_and_is_not_taken_for_empty() {
    let Some((town, shard)) = locked_out() else { return };
    let (desk, hub) = (&town.desk, town.in_hub());
    let said = as_nobody(desk, &["supervise", "n/a", "--once"]).unwrap();
    assert!(said.err.contains(shard.to_str().unwrap()), "{said:?}");
    assert!(said.err.to_lowercase().contains("denied"), "{said:?}");
    assert_eq!(town.in_hub(), hub);
    std::os::unix::fs::chown(desk.path("n/a").join(&shard), Some(65534), Some(65534)).unwrap();
    let said = as_nobody(desk, &["supervise", "n/a", "--once"]).unwrap();
    assert_eq!(said.status, Some(0), "{said:?}");
    assert_eq!(merged(&desk.path("n/a")), hub);
}

#[test]
fn one_folder_that_may_not_be_read_keeps_no_others() {
    let Some((town, shard)) = locked_out() else { return };
    let (desk, hub) = (&town.desk, town.in_hub());
    let said = as_nobody(desk, &["supervise", "n/a", "--once"]).unwrap();
    assert!(said.err.contains(shard.to_str().unwrap()), "{said:?}");
    assert_eq!(town.in_hub(), hub);
    let here = merged(&desk.path("n/a"));
    let elsewhere = |name: &&String| !name.starts_with(shard.to_str().unwrap());
    let missing: Vec<_> =
        hub.keys().filter(elsewhere).filter(|name| !here.contains_key(*name)).collect();
    assert!(missing.is_empty(), "{missing:?} {said:?}");
}
