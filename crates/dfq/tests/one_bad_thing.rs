//! One bad thing costs only itself: files that cannot be read, a disk that is full, what others are still
//! writing or have left behind.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use dfq::{Queue, Settings};
use rustix::io::Errno;
use support::{Place, ack_all, id, poll, push};

/// One bad file costs only itself, however bad: a socket, a file of a terabyte, a time in the year 9999.
#[tokio::test]
async fn what_cannot_be_read_is_left_alone() {
    let place = Place::new();
    let queue = place.queue().await;
    for name in ["socket", "huge", "good"] {
        push(&*queue, name).await;
    }
    let file = |name: &str| {
        let view = futures::executor::block_on(queue.get(id(name))).unwrap().unwrap();
        let shard = std::fs::read_dir(place.path("q/pending")).unwrap();
        let mut folders = shard.map(|shard| shard.unwrap().path().join(view.key.to_string()));
        folders.find(|folder| folder.exists()).unwrap().join("task.json")
    };
    let (socket, huge, good) = (file("socket"), file("huge"), file("good"));
    std::fs::remove_file(&socket).unwrap();
    let short = place.path("s");
    let _socket = std::os::unix::net::UnixListener::bind(&short).unwrap();
    std::fs::rename(&short, &socket).unwrap();
    std::fs::File::options().write(true).open(&huge).unwrap().set_len(1 << 40).unwrap();
    let far = std::time::SystemTime::UNIX_EPOCH + Duration::new(253_402_207_200, 999_000_000);
    std::fs::File::open(good.parent().unwrap()).unwrap().set_modified(far).unwrap();
    std::fs::File::open(place.path("q/pending")).unwrap().set_modified(far).unwrap();
    let got = poll(&*place.queue().await).await;
    assert_eq!(got.iter().map(|held| held.id().as_str()).collect::<Vec<_>>(), ["good"]);
    assert!(huge.exists() && socket.exists(), "they stay where they are");
    queue.check(false).await.unwrap();
    queue.stats(dfq::queue::Detail::Exact).await.unwrap();
}

/// As the V2 workers push: mkdir, then open and write. Whoever polls in between leaves it alone.
#[tokio::test]
async fn a_task_that_is_just_being_written_is_left_to_its_writer() {
    for begun in ["", "{\"id\": \"a\", \"x\""] {
        let place = Place::new();
        let (queue, _) = place.faulty(Settings::default()).await;
        let folder = place.path("q/pending/ca/a");
        std::fs::create_dir_all(&folder).unwrap();
        let begun_only = |text: &str| std::fs::write(folder.join("task.json"), text).unwrap();
        assert!(poll(&*queue).await.is_empty());
        assert!(folder.exists(), "its folder was taken from under its writer");
        begun_only(begun);
        for _ in 0..3 {
            assert!(poll(&*place.faulty(Settings::default()).await.0).await.is_empty());
        }
        assert_eq!(place.read("pending/ca/a/task.json"), begun, "it was set aside too soon");
        begun_only("{\"id\": \"a\", \"x\": 1}");
        place.pass(Duration::from_secs(61));
        let got = poll(&*queue).await;
        assert_eq!((got.len(), got[0].earlier.failed, got[0].earlier.lost), (1, 0, 0));
    }
    // What nobody goes on with is seen to in time.
    let place = Place::new();
    let (queue, _) = place.faulty(Settings::default()).await;
    std::fs::create_dir_all(place.path("q/pending/ca/a")).unwrap();
    place.write("pending/3e/b/task.json", "{\"id\"");
    assert!(poll(&*queue).await.is_empty());
    place.pass(Duration::from_secs(120));
    assert!(poll(&*queue).await.is_empty());
    assert!(!place.exists("pending/ca/a") && !place.exists("pending/3e/b"));
    assert_eq!(queue.stats(dfq::queue::Detail::Exact).await.unwrap().failed, 1);
}

/// The clock needs no room, and neither does a heartbeat.
#[tokio::test]
async fn a_full_disk_takes_no_task_from_its_owner() {
    let place = Place::new();
    let settings = || Settings { lease: Duration::from_secs(600), ..Settings::default() };
    let (queue, sys) = place.faulty(settings()).await;
    push(&*queue, "a").await;
    let held = poll(&*queue).await.remove(0);
    for (what, rounds) in [("write", 5), ("create", 5)] {
        sys.refuse(what, Some(Errno::NOSPC));
        for _ in 0..rounds {
            place.pass(Duration::from_secs(300));
            queue.heartbeat(vec![held.receipt.clone()]).await.remove(0).unwrap();
            let (other, _) = place.faulty(settings()).await;
            assert!(poll(&*other).await.is_empty(), "it is held");
        }
        sys.refuse(what, None);
    }
    ack_all(&*queue, vec![held]).await;
}

/// What a killed doctor left is removed by the first purge that meets it, and not renamed for ever.
#[tokio::test]
async fn what_a_killed_doctor_left_goes() {
    let place = Place::new();
    let (queue, _) = place.faulty(Settings::default()).await;
    place.write("tmp/doctor-1/race/7/task.json", "x");
    place.write("tmp/doctor-1/exclusive/a", "x");
    let purge = dfq::queue::Purge {
        outcome: dfq::Outcome::Completed,
        older_than: Duration::from_secs(100_000),
        dry_run: false,
    };
    for _ in 0..3 {
        place.pass(Duration::from_secs(30 * 3600));
        queue.purge(purge).await.unwrap();
    }
    let left: Vec<_> = std::fs::read_dir(place.path("q/tmp")).unwrap().collect();
    let left: Vec<_> = left.into_iter().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("doctor")), "{left:?}");
}
