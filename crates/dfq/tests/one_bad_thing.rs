//! One bad thing costs only itself: files that cannot be read, a disk that is full, what others are still
//! writing or have left behind.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use dfq::queue::TaskState;
use dfq::{Delivery, ErrorKind, PollRequest, Queue, Settings};
use rustix::io::Errno;
use support::{Site, ack_all, id, poll, push};

/// One bad file costs only itself, however bad: a socket, a file of a terabyte, a time in the year 9999.
#[tokio::test]
async fn what_cannot_be_read_is_left_alone() {
    let site = Site::in_memory();
    let queue = site.queue().await;
    for name in ["socket", "huge", "good"] {
        push(&*queue, name).await;
    }
    let file = |name: &str| {
        let view = futures::executor::block_on(queue.get(id(name))).unwrap().unwrap();
        let shard = std::fs::read_dir(site.path("q/pending")).unwrap();
        let mut folders = shard.map(|shard| shard.unwrap().path().join(view.key.to_string()));
        folders.find(|folder| folder.exists()).unwrap().join("task.json")
    };
    let (socket, huge, good) = (file("socket"), file("huge"), file("good"));
    std::fs::remove_file(&socket).unwrap();
    let short = site.path("s");
    let _socket = std::os::unix::net::UnixListener::bind(&short).unwrap();
    std::fs::rename(&short, &socket).unwrap();
    std::fs::File::options().write(true).open(&huge).unwrap().set_len(1 << 40).unwrap();
    let far = std::time::SystemTime::UNIX_EPOCH + Duration::new(253_402_207_200, 999_000_000);
    // The task, its folder, its shard, and all shards.
    for path in good.ancestors().take(4) {
        std::fs::File::open(path).unwrap().set_modified(far).unwrap();
    }
    let shard = good.parent().unwrap().parent().unwrap();
    let time = || shard.metadata().unwrap().modified().unwrap();
    // A filesystem on a disk may have put in the last time that it knows.
    let late = time();
    assert!(late == far || !shard.starts_with("/dev/shm"));
    let other = site.queue().await;
    let got = poll(&*other).await;
    assert_eq!(got.iter().map(|held| held.id().as_str()).collect::<Vec<_>>(), ["good"]);
    // Once more, now that they know the shard and all that is in it rests.
    for queue in [&queue, &other, &site.queue().await] {
        assert!(poll(&**queue).await.is_empty() && time() == late);
    }
    assert!(huge.exists() && socket.exists(), "they stay where they are");
    queue.check(false).await.unwrap();
    queue.stats(dfq::queue::Detail::Exact).await.unwrap();
}

/// As the V2 workers push: mkdir, then open and write. Whoever polls in between leaves it alone.
#[tokio::test]
async fn a_task_that_is_just_being_written_is_left_to_its_writer() {
    for begun in ["", "{\"id\": \"a\", \"x\""] {
        let site = Site::new();
        let (queue, _) = site.faulty(Settings::default()).await;
        let folder = site.path("q/pending/ca/a");
        std::fs::create_dir_all(&folder).unwrap();
        let begun_only = |text: &str| std::fs::write(folder.join("task.json"), text).unwrap();
        assert!(poll(&*queue).await.is_empty());
        assert!(folder.exists(), "its folder was taken from under its writer");
        begun_only(begun);
        for _ in 0..3 {
            assert!(poll(&*site.faulty(Settings::default()).await.0).await.is_empty());
        }
        assert_eq!(site.read("pending/ca/a/task.json"), begun, "it was set aside too soon");
        begun_only("{\"id\": \"a\", \"x\": 1}");
        site.pass(Duration::from_secs(61));
        let got = poll(&*queue).await;
        assert_eq!((got.len(), got[0].earlier.failed, got[0].earlier.lost), (1, 0, 0));
    }
    // What nobody goes on with is seen to in time.
    let site = Site::new();
    let (queue, _) = site.faulty(Settings::default()).await;
    std::fs::create_dir_all(site.path("q/pending/ca/a")).unwrap();
    site.write("pending/3e/b/task.json", "{\"id\"");
    assert!(poll(&*queue).await.is_empty());
    site.pass(Duration::from_secs(120));
    assert!(poll(&*queue).await.is_empty());
    assert!(!site.exists("pending/ca/a") && !site.exists("pending/3e/b"));
    assert_eq!(queue.stats(dfq::queue::Detail::Exact).await.unwrap().failed, 1);
}

/// The clock needs no room, and neither does a heartbeat.
#[tokio::test]
async fn a_full_disk_takes_no_task_from_its_owner() {
    let site = Site::new();
    let settings = || Settings { lease: Duration::from_secs(600), ..Settings::default() };
    let (queue, sys) = site.faulty(settings()).await;
    push(&*queue, "a").await;
    let held = poll(&*queue).await.remove(0);
    // No room for anything, and less than that: where not even an empty file without a name can be had.
    for what in ["", "write", "create"] {
        match what {
            "" => sys.fill(true),
            what => sys.refuse(what, Some(Errno::NOSPC)),
        }
        for _ in 0..5 {
            site.pass(Duration::from_secs(300));
            queue.heartbeat(vec![held.receipt.clone()]).await.remove(0).unwrap();
            let (other, _) = site.faulty(settings()).await;
            assert!(poll(&*other).await.is_empty(), "it is held");
        }
        sys.fill(false);
        sys.refuse(what, None);
    }
    ack_all(&*queue, vec![held]).await;
}

/// What a killed doctor left is removed by the first purge that meets it, and not renamed for ever.
#[tokio::test]
async fn what_a_killed_doctor_left_goes() {
    let site = Site::new();
    let (queue, _) = site.faulty(Settings::default()).await;
    site.write("tmp/doctor-1/race/7/task.json", "x");
    site.write("tmp/doctor-1/exclusive/a", "x");
    for _ in 0..3 {
        site.pass(Duration::from_secs(30 * 3600));
        queue.purge(old_ones()).await.unwrap();
    }
    let left: Vec<_> = std::fs::read_dir(site.path("q/tmp")).unwrap().collect();
    let left: Vec<_> = left.into_iter().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("doctor")), "{left:?}");
}

fn inode_of(site: &Site, path: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(site.path("q").join(path)).unwrap().ino()
}

/// A disk with bad spots: many tasks cannot be read, the rest can.
#[tokio::test]
async fn tasks_that_cannot_be_read_keep_nobody_from_the_others() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    for n in 0..30 {
        push(&*queue, &format!("bad {n}")).await;
    }
    push(&*queue, "good").await;
    for shard in std::fs::read_dir(site.path("q/pending")).unwrap() {
        let shard = shard.unwrap();
        for task in std::fs::read_dir(shard.path()).unwrap() {
            let (shard, task) = (shard.file_name(), task.unwrap().file_name());
            let (shard, task) = (shard.to_string_lossy(), task.to_string_lossy().into_owned());
            if task != "good" {
                let inode = inode_of(&site, &format!("pending/{shard}/{task}/task.json"));
                sys.spoil(inode, Some(Errno::IO));
            }
        }
    }
    let polled = queue.poll(PollRequest::new(1)).await.unwrap();
    assert_eq!(polled.deliveries.len(), 1);
    assert_eq!(polled.deliveries[0].id().as_str(), "good");
}

/// The path of a file of this name somewhere below a folder of the queue, from the queue on.
fn find(site: &Site, folder: &str, ends: &str) -> String {
    let mut find = std::process::Command::new("find");
    let found = find.arg(folder).current_dir(site.path("q")).output().unwrap();
    let listing = String::from_utf8(found.stdout).unwrap();
    listing.lines().find(|line| line.ends_with(ends)).unwrap().to_owned()
}

/// Those who look see all that can be seen, and that the rest is there.
#[tokio::test]
async fn what_cannot_be_read_hides_nothing_else() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    for name in ["bad done", "good done"] {
        push(&*queue, name).await;
    }
    ack_all(&*queue, poll(&*queue).await).await;
    for name in ["bad", "good"] {
        push(&*queue, name).await;
    }
    std::fs::create_dir_all(site.path("q/workers")).unwrap();
    std::fs::write(site.path("q/workers/w.json"), "{}").unwrap();
    std::fs::write(site.path("q/tmp/large"), vec![b'x'; 2 << 20]).unwrap();
    let bad = [
        find(&site, "pending", "/bad/task.json"),
        find(&site, "completed", "bad%20done.json"),
        "workers/w.json".to_owned(),
    ];
    for path in &bad {
        sys.spoil(inode_of(&site, path), Some(Errno::IO));
    }
    let mut states = std::collections::BTreeMap::new();
    let mut from = None;
    loop {
        let page = queue.list(from).await.unwrap();
        for view in page.tasks {
            states.insert(view.key.id().to_string(), format!("{:?}", view.state));
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let expected = [
        ("bad", "Damaged"),
        ("bad done", "Damaged"),
        ("good", "Ready"),
        ("good done", "Completed"),
    ];
    let expected = expected.map(|(name, state)| (name.to_owned(), state.to_owned()));
    assert_eq!(states.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(queue.peek(9).await.unwrap().len(), 1);
    let stats = queue.stats(dfq::queue::Detail::States).await.unwrap();
    assert_eq!((stats.pending, stats.completed), (2, 2));
    assert!(queue.workers().await.unwrap().is_empty());
    assert!(queue.check(false).await.unwrap().len() >= 2);
    site.pass(Duration::from_secs(200_000));
    let purge = dfq::queue::Purge {
        outcome: dfq::Outcome::Completed,
        older_than: Duration::from_secs(100_000),
        dry_run: false,
    };
    let purged = queue.purge(purge).await.unwrap();
    assert_eq!(purged.records, 1);
    assert!(!site.exists("tmp/large"));
    // A reader without the right to write can look, also where a purge has left floors.
    sys.refuse("", Some(Errno::ROFS));
    site.pass(Duration::from_secs(3600));
    assert!(queue.get(support::id("good")).await.unwrap().is_some());
    assert!(queue.get(support::id("good done")).await.unwrap().is_none());
}

/// One shard and one due folder on bad sectors, and marks that cannot be read.
#[tokio::test]
async fn a_folder_that_cannot_be_listed_keeps_nobody_from_the_others() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    push(&*queue, "a").await;
    push(&*queue, "good").await;
    let later = support::task("later").delay(Duration::from_secs(5));
    queue.push(vec![later]).await.remove(0).unwrap();
    let due = std::fs::read_dir(site.path("q/scheduled")).unwrap().next().unwrap().unwrap();
    std::fs::write(site.path("q/unlocked.json"), "{}").unwrap();
    for path in ["pending/ca", "unlocked.json"] {
        sys.spoil(inode_of(&site, path), Some(Errno::IO));
    }
    let due = format!("scheduled/{}", due.file_name().to_string_lossy());
    sys.spoil(inode_of(&site, &due), Some(Errno::IO));
    site.pass(Duration::from_secs(20));
    let polled = queue.poll(dfq::PollRequest::new(9)).await.unwrap();
    let ids: Vec<_> = polled.deliveries.iter().map(|held| held.id().as_str()).collect();
    assert_eq!(ids, ["good"]);
    std::fs::write(site.path("q/paused.json"), "{}").unwrap();
    sys.spoil(inode_of(&site, "paused.json"), Some(Errno::IO));
    let polled = queue.poll(dfq::PollRequest::new(9)).await.unwrap();
    assert!(polled.idle.paused);
    assert!(queue.paused().await.unwrap().is_some());
}

/// A lease that nobody can have written holds its number, and its task comes again once it is old.
#[tokio::test]
async fn a_lease_that_is_too_large_is_judged_by_its_age() {
    let site = Site::new();
    let (queue, _) = site.faulty(Settings::default()).await;
    push(&*queue, "a").await;
    std::fs::write(site.path("q/pending/ca/a/lease.json"), vec![b' '; 2 << 20]).unwrap();
    assert!(poll(&*queue).await.is_empty());
    site.pass(Duration::from_secs(3600));
    let held = poll(&*queue).await.remove(0);
    assert_eq!(held.attempt, 2);
}

/// All files that a process may have open are open, in the middle of a claim. What it could not take back then it
/// takes back as soon as it can, and nobody waits for that lease.
#[tokio::test]
async fn a_claim_that_ran_out_of_open_files_is_not_stranded() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    push(&*queue, "a").await;
    let inode = inode_of(&site, "pending/ca/a/task.json");
    sys.spoil(inode, Some(Errno::MFILE));
    sys.refuse("over lease", Some(Errno::MFILE));
    let _ = queue.poll(PollRequest::new(1)).await;
    assert!(site.exists("pending/ca/a/lease.json"));
    sys.spoil(inode, None);
    sys.refuse("over lease", None);
    site.pass(Duration::from_secs(61));
    let held = poll(&*queue).await.remove(0);
    assert_eq!((held.attempt, held.earlier.lost), (2, 0));
}

/// "In the queue already" is as durable as "created": whoever made it may not have come to the fsync.
#[tokio::test]
async fn what_is_in_the_queue_already_is_synced_too() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    let synced = |folder: &str| sys.calls().contains(&format!("sync {folder}"));
    let pushed = async |task| queue.push(vec![task]).await.remove(0).unwrap();
    push(&*queue, "a").await;
    let task = || support::task("a");
    for (task, life) in [(task(), 1), (task().delay(Duration::from_secs(60)), 1)] {
        sys.arm(None);
        let answer = pushed(task).await;
        assert!(matches!(answer, dfq::Pushed::Pending(ref key) if key.generation() == life));
        assert!(synced("pending/ca"), "{:#?}", sys.calls());
    }
    ack_all(&*queue, poll(&*queue).await).await;
    sys.arm(None);
    assert!(matches!(pushed(task()).await, dfq::Pushed::Finished(..)));
    assert!(synced("completed/ca"), "{:#?}", sys.calls());
    assert!(matches!(pushed(task().again()).await, dfq::Pushed::Created(_)));
    for later in [task(), task().again(), task().again().delay(Duration::from_secs(60))] {
        sys.arm(None);
        let answer = pushed(later).await;
        assert!(matches!(answer, dfq::Pushed::Pending(ref key) if key.generation() == 2));
        assert!(synced("pending/ca"), "{:#?}", sys.calls());
    }
}

fn old_ones() -> dfq::queue::Purge {
    let older_than = Duration::from_secs(100_000);
    dfq::queue::Purge { outcome: dfq::Outcome::Completed, older_than, dry_run: false }
}

/// The disk is full, and a purge makes room.
#[tokio::test]
async fn a_purge_runs_on_a_full_disk() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    for n in 0..5 {
        push(&*queue, &format!("task {n}")).await;
    }
    ack_all(&*queue, poll(&*queue).await).await;
    site.pass(Duration::from_secs(200_000));
    sys.fill(true);
    assert!(queue.push(vec![support::task("a")]).await.remove(0).is_err(), "there is room");
    assert_eq!(queue.purge(old_ones()).await.unwrap().records, 5);
    assert_eq!(queue.stats(dfq::queue::Detail::Exact).await.unwrap().completed, 0);
}

/// Whoever needs room is told that there is none, and nothing is lost or counted by that. All else goes on.
#[tokio::test]
async fn a_full_disk_costs_no_task_anything() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    sys.fill(true);
    assert!(poll(&*queue).await.is_empty(), "to look takes no room");
    sys.fill(false);
    for name in ["a", "b"] {
        push(&*queue, name).await;
    }
    // One that has looked around before the disk was full, and one that has not.
    for (queue, sys) in [(queue, sys), site.faulty(Settings::default()).await] {
        sys.fill(true);
        let full = |error: dfq::Error| assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        full(queue.poll(PollRequest::new(2)).await.unwrap_err());
        full(queue.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap_err());
        full(queue.push(vec![support::task("c")]).await.remove(0).unwrap_err());
        assert_eq!(queue.get(id("a")).await.unwrap().unwrap().state, TaskState::Ready);
        sys.fill(false);
    }
    let (queue, sys) = site.faulty(Settings::default()).await;
    let held = poll(&*queue).await;
    let counts = |held: &Delivery| (held.attempt, held.earlier.failed, held.earlier.lost);
    assert_eq!(held.iter().map(counts).collect::<Vec<_>>(), [(1, 0, 0), (1, 0, 0)]);
    sys.fill(true);
    assert!(poll(&*queue).await.is_empty(), "to see that others hold them takes no room");
    sys.fill(false);
    queue.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap();
    assert_eq!(queue.get(id("a")).await.unwrap().unwrap().state, TaskState::Failed);
}

/// Of a folder with any number of records, a purge holds a page of names at a time.
#[tokio::test]
async fn a_purge_of_many_records_takes_little_memory() {
    const RECORDS: u64 = 5000;
    const PAGE: usize = 1024;
    let site = Site::new();
    let settings = Settings { layout: dfq::model::Layout::Flat, ..Settings::default() };
    let (queue, sys) = site.faulty(settings).await;
    push(&*queue, "a").await;
    ack_all(&*queue, poll(&*queue).await).await;
    let record = std::fs::read_dir(site.path("q/completed")).unwrap().next().unwrap().unwrap();
    let record = std::fs::read_to_string(record.path()).unwrap();
    for n in 1..RECORDS {
        site.write(&format!("completed/t{n}.json"), &record);
    }
    site.pass(Duration::from_secs(200_000));
    let purged = queue.purge(old_ones()).await.unwrap();
    assert_eq!(purged.records, RECORDS);
    let most = sys.most_listed_in_a_row();
    assert!((1..=2 * PAGE).contains(&most), "{most} names at once");
}

/// What a push says is in the queue is there after a crash, and so are the folders above it.
#[tokio::test]
async fn every_folder_that_a_push_makes_is_synced() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    sys.arm(None);
    push(&*queue, "a").await;
    queue.push(vec![support::task("b").delay(Duration::from_secs(60))]).await.remove(0).unwrap();
    let calls = sys.calls();
    let mut made = 0;
    for (at, call) in calls.iter().enumerate() {
        let Some(folder) = call.strip_prefix("mkdir ") else { continue };
        // What is half made is not promised to anybody.
        if folder.starts_with("tmp") {
            continue;
        }
        made += 1;
        let above = folder.rsplit_once('/').map_or(".", |(above, _)| above);
        assert!(calls[at..].contains(&format!("sync {above}")), "{folder}: {calls:#?}");
    }
    assert!(made >= 4, "pending, a shard, scheduled, a time: {calls:#?}");
}
