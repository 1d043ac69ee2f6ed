//! Trees that something went wrong with: reported, set aside or refused; never destroyed, never a
//! panic, and never in the way of the other tasks.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use dfq::clock::{ManualClock, SystemChance};
use dfq::queue::TaskState;
use dfq::store::Folders as _;
use dfq::store::memory::Memory;
use dfq::{Env, ErrorKind, OpenOptions, PollRequest, Pushed, Queue, Release, Settings, TreeQueue};
use support::{Site, ack_all, id, poll, push, task};

const HOUR: Duration = Duration::from_secs(3600);

/// sha256("a") = ca97…, sha256("abc") = ba78….
const A: &str = "pending/ca/a";

#[tokio::test]
async fn a_damaged_task_is_set_aside_bytes_and_all() {
    let damages: [&[u8]; 6] = [
        b"",
        b"{\"x\":1,\"_dfq\":{\"id\":\"a\"",
        b"not json",
        b"\xff\xfe\x00",
        b"{\"_dfq\":7}",
        b"{\"_dfq\":{\"id\":\"b\"}}",
    ];
    for damage in damages {
        let site = Site::new();
        let queue = site.queue().await;
        push(&*queue, "a").await;
        push(&*queue, "fine").await;
        site.write(&format!("{A}/task.json"), damage);
        // Not as if somebody were just writing it.
        site.age(&format!("{A}/task.json"), Duration::from_secs(120));
        let reported = queue.check(false).await.unwrap();
        assert!(reported.iter().any(|problem| problem.path.contains(A)), "{reported:?}");
        assert_eq!(queue.get(id("a")).await.unwrap().unwrap().state, TaskState::Damaged);
        let held = poll(&*queue).await;
        assert_eq!(held.len(), 1, "the other task is not held up");
        ack_all(&*queue, held).await;
        assert!(!site.exists(A));
        let record: serde_json::Value =
            serde_json::from_str(&site.read("failed/ca/a.json")).unwrap();
        let kept = match &record["_dfq"]["damaged_text"] {
            serde_json::Value::String(text) => text.clone().into_bytes(),
            _ => {
                let hex = record["_dfq"]["damaged_hex"].as_str().unwrap();
                (0..hex.len())
                    .step_by(2)
                    .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
                    .collect()
            }
        };
        assert_eq!(kept, damage);
        let retried = queue.retry(vec![id("a")]).await.remove(0);
        assert_eq!(retried.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(queue.check(false).await.unwrap(), []);
    }
}

#[tokio::test]
async fn an_unreadable_lease_is_judged_by_its_age() {
    for content in ["", "{", "{\"worker_id\":\"w\"", "[]"] {
        let site = Site::new();
        let queue = site.queue().await;
        push(&*queue, "a").await;
        site.write(&format!("{A}/lease.json"), content);
        assert!(poll(&*queue).await.is_empty(), "its writer may still be at it");
        site.age(&format!("{A}/lease.json"), HOUR);
        let held = poll(&*site.queue().await).await;
        assert_eq!(held[0].attempt, 2);
        ack_all(&*queue, held).await;
        assert!(!site.exists(A));
    }
}

#[tokio::test]
async fn a_lease_from_the_future_does_not_hold_for_ever() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    let lease = r#"{"worker_id":"w","created_at":"2099-01-01T00:00:00Z","heartbeat_at":"2099-01-01T00:00:00Z","expires_at":"2099-01-01T00:10:00Z"}"#;
    site.write(&format!("{A}/lease.json"), lease);
    assert!(poll(&*queue).await.is_empty());
    site.age(&format!("{A}/lease.json"), HOUR);
    assert_eq!(poll(&*site.queue().await).await.len(), 1);
}

#[tokio::test]
async fn a_folder_that_differs_in_case_is_left_alone() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "abc").await;
    // As a filesystem that folds case, or a careless copy, might leave it.
    site.write("pending/ba/ABC/task.json", "{}");
    site.write("pending/ba/ABC/lease.json", "{}");
    let held = poll(&*queue).await;
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].id().as_str(), "abc");
    ack_all(&*queue, held).await;
    assert!(site.exists("pending/ba/ABC/task.json") && site.exists("pending/ba/ABC/lease.json"));
    let reported = queue.check(false).await.unwrap();
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0].path, "pending/ba/ABC");
}

#[tokio::test]
async fn an_id_that_a_case_folding_store_confuses_is_refused() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    // What one would find there if 'A' and 'a' shared a folder.
    let file = site.read(&format!("{A}/task.json")).replace("\"id\":\"a\"", "\"id\":\"A\"");
    site.write(&format!("{A}/task.json"), file);
    let refused = queue.push(vec![task("a")]).await.remove(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("case"), "{refused}");
}

#[tokio::test]
async fn a_newer_or_damaged_queue_is_refused() {
    for (content, kind) in [
        (r#"{"format": 2, "layout": "spiral"}"#, ErrorKind::Incompatible),
        (r#"{"format": 1, "layout": "spiral", "requires": ["x"]}"#, ErrorKind::Incompatible),
        (r#"{"format": 1, "requires": "x"}"#, ErrorKind::Incompatible),
        (r#"{"format": 1, "requires": {"x": 1}}"#, ErrorKind::Incompatible),
        ("", ErrorKind::Damaged),
        ("{\"format\": 1", ErrorKind::Damaged),
        (r#"{"format": 1, "max_attempts": 0}"#, ErrorKind::Damaged),
    ] {
        let site = Site::new();
        site.write("queue.json", content);
        site.write("pending/ca/a/task.json", "{}");
        for options in [OpenOptions::existing(), OpenOptions::create()] {
            let refused = dfq::open(site.path("q"), options).await.err().unwrap();
            assert_eq!(refused.kind(), kind, "{content}: {refused}");
        }
        assert_eq!(site.read("queue.json"), content);
        assert!(site.exists("pending/ca/a/task.json"));
    }
}

/// An operator makes it require something while workers are at it.
#[tokio::test]
async fn a_queue_that_comes_to_require_more_is_left() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    push(&*queue, "b").await;
    let held = queue.poll(PollRequest::new(1)).await.unwrap().deliveries.remove(0);
    // A change within one tick of the folder's times does not show.
    tokio::time::sleep(Duration::from_millis(100)).await;
    queue.poll(PollRequest::new(0)).await.unwrap();
    let newer = site.read("queue.json").replacen('{', r#"{"requires": ["wings"],"#, 1);
    site.write("newer.json", newer);
    std::fs::rename(site.path("q/newer.json"), site.path("q/queue.json")).unwrap();
    // A poll right now may not see it, and must not think later that it has.
    let _ = queue.poll(PollRequest::new(0)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let refused = queue.poll(PollRequest::new(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Incompatible, "{refused}");
    assert!(refused.to_string().contains("requires \"wings\""), "{refused}");
    queue.poll(PollRequest::new(1)).await.unwrap_err();
    // What it has it may finish.
    queue.ack(vec![held.receipt]).await.remove(0).unwrap();
}

/// Where nothing tells of a change it is read now and then.
#[tokio::test]
async fn a_bucket_that_comes_to_require_more_is_left_within_minutes() {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SystemChance));
    let memory = Memory::new(env.clone());
    let options = OpenOptions { env, ..OpenOptions::create() };
    let queue = TreeQueue::open(memory.clone(), options).await.unwrap();
    queue.poll(PollRequest::new(1)).await.unwrap();
    memory.replace("queue.json", br#"{"format":1,"requires":["wings"]}"#).await.unwrap();
    clock.advance(Duration::from_secs(100));
    queue.poll(PollRequest::new(1)).await.unwrap();
    clock.advance(Duration::from_secs(201));
    let refused = queue.poll(PollRequest::new(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Incompatible, "{refused}");
}

#[tokio::test]
async fn a_folder_of_other_things_is_no_queue() {
    let site = Site::new();
    site.write("thesis.tex", "precious");
    let refused = dfq::open(site.path("q"), OpenOptions::create()).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("thesis.tex"), "{refused}");
    assert_eq!(std::fs::read_dir(site.path("q")).unwrap().count(), 1);
    let missing = dfq::open(site.path("nowhere"), OpenOptions::existing()).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let file = dfq::open(site.path("q/thesis.tex"), OpenOptions::create()).await.err().unwrap();
    assert!(!site.exists("thesis.tex/queue.json"), "{file}");
}

#[tokio::test]
async fn links_and_files_where_folders_should_be_are_not_followed() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "abc").await;
    std::fs::create_dir(site.path("elsewhere")).unwrap();
    symlink(site.path("elsewhere"), site.path("q/pending/ca")).unwrap();
    let refused = queue.push(vec![task("a")]).await.remove(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    assert_eq!(std::fs::read_dir(site.path("elsewhere")).unwrap().count(), 0);
    // Nor does it keep the others from being done.
    let held = poll(&*queue).await;
    assert_eq!(held.len(), 1);
    ack_all(&*queue, held).await;
    let reported = queue.check(false).await.unwrap();
    assert!(reported.iter().any(|problem| problem.path == "pending/ca"), "{reported:?}");

    std::fs::remove_file(site.path("q/pending/ca")).unwrap();
    site.write("pending/ca", "a file");
    let refused = queue.push(vec![task("a")]).await.remove(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    assert!(poll(&*queue).await.is_empty());
    assert_eq!(site.read("pending/ca"), "a file");
}

#[tokio::test]
async fn a_task_file_that_is_no_file_is_left_alone() {
    type Make = fn(&Site);
    let makes: [Make; 3] = [
        |site| std::fs::create_dir(site.path("q").join(A).join("task.json")).unwrap(),
        |site| symlink("/etc/hostname", site.path("q").join(A).join("task.json")).unwrap(),
        |site| {
            let path = site.path("q").join(A).join("task.json");
            let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        },
    ];
    for make in makes {
        let site = Site::new();
        let queue = site.queue().await;
        push(&*queue, "a").await;
        push(&*queue, "fine").await;
        std::fs::remove_file(site.path("q").join(A).join("task.json")).unwrap();
        make(&site);
        let held = poll(&*queue).await;
        assert_eq!(held.len(), 1);
        ack_all(&*queue, held).await;
        assert!(poll(&*queue).await.is_empty());
        assert!(site.exists(&format!("{A}/task.json")));
        let reported = queue.check(false).await.unwrap();
        assert!(reported.iter().any(|problem| problem.path.starts_with(A)), "{reported:?}");
    }
}

#[tokio::test]
async fn foreign_files_stay() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    let foreign = [
        "README",
        "pending/notes.txt",
        "pending/ca/.DS_Store",
        &format!("{A}/notes.txt"),
        "completed/x.json",
        "workers/x",
        "scheduled/soon/x",
        "pending/ca/b@1/task.json",
    ];
    for path in foreign {
        site.write(path, "mine");
    }
    let held = poll(&*queue).await;
    assert_eq!(held.len(), 1);
    ack_all(&*queue, held).await;
    assert!(poll(&*queue).await.is_empty());
    for path in foreign {
        assert_eq!(site.read(path), "mine");
    }
    assert!(!site.exists(&format!("{A}/task.json")));
    assert!(queue.check(false).await.unwrap().len() >= 4);
    // The name of the finished task is not free again because somebody's notes are in its folder.
    let again = queue.push(vec![task("a")]).await.remove(0).unwrap();
    assert!(matches!(again, Pushed::Finished(..)), "{again:?}");
}

#[tokio::test]
async fn an_unreadable_record_still_says_that_the_task_is_done() {
    let site = Site::new();
    let queue = site.queue().await;
    site.write("completed/ca/a.json", "{cut");
    let pushed = queue.push(vec![task("a")]).await.remove(0).unwrap();
    assert!(matches!(pushed, Pushed::Finished(..)), "{pushed:?}");
    let again = queue.push(vec![task("a").again()]).await.remove(0).unwrap();
    assert_eq!(again.key().generation(), 2);
    assert_eq!(site.read("completed/ca/a.json"), "{cut");
}

#[tokio::test]
async fn a_tree_whose_settings_were_lost_is_recognised() {
    let site = Site::new();
    push(&*site.queue().await, "a").await;
    std::fs::remove_file(site.path("q/queue.json")).unwrap();
    let queue = dfq::open(site.path("q"), OpenOptions::existing()).await.unwrap();
    assert_eq!(queue.settings().layout, dfq::model::Layout::Sharded);
    assert_eq!(poll(&*queue).await.len(), 1);
}

#[tokio::test]
async fn bad_settings_are_refused_before_anything_is_made() {
    let site = Site::new();
    let settings = Settings { lease: Duration::ZERO, ..Settings::default() };
    let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
    let refused = dfq::open(site.path("q"), options).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(std::fs::read_dir(site.path("q")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_poll_of_no_length_is_refused() {
    let site = Site::new();
    let request = PollRequest { lease: Some(Duration::ZERO), ..PollRequest::default() };
    let refused = site.queue().await.poll(request).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn strays_among_the_scheduled_stop_nobody() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    site.write("scheduled/20200101T0000Z", "a file named like a time that has passed");
    site.write("scheduled/20200101T0001Z/notes.txt", "in a folder that is one");
    symlink("/etc", site.path("q/scheduled/20200101T0002Z")).unwrap();
    for _ in 0..3 {
        ack_all(&*queue, poll(&*queue).await).await;
    }
    assert_eq!(queue.get(id("a")).await.unwrap().unwrap().state, TaskState::Completed);
    assert!(queue.cancel(vec![id("b")], "no".into()).await.remove(0).is_err());
    assert_eq!(site.read("scheduled/20200101T0001Z/notes.txt"), "in a folder that is one");
}

/// Attempts have no gaps, unless somebody removed a lease by hand. A task is then handed out beside the
/// owner of a later attempt, but only that one can finish it, and it goes on with the next attempt.
#[tokio::test]
async fn a_lease_missing_below_a_live_one_ends_in_one_completion() {
    let site = Site::new();
    let (owner, other) = (site.queue().await, site.queue().await);
    push(&*owner, "a").await;
    let first = poll(&*owner).await.remove(0);
    let release = Release { receipt: first.receipt, reason: None, delay: None };
    owner.release(vec![release]).await.remove(0).unwrap();
    let second = poll(&*owner).await.remove(0);
    std::fs::remove_file(site.path("q").join(A).join("lease.json")).unwrap();
    let beside = poll(&*other).await.remove(0);
    assert!(beside.fence < second.fence);
    let renewed = other.heartbeat(vec![beside.receipt.clone()]).await.remove(0);
    assert_eq!(renewed.unwrap_err().kind(), ErrorKind::ClaimLost);
    let acked = other.ack(vec![beside.receipt]).await.remove(0);
    assert_eq!(acked.unwrap_err().kind(), ErrorKind::ClaimLost);
    assert!(poll(&*site.queue().await).await.is_empty(), "the second attempt is judged");
    ack_all(&*owner, vec![second]).await;
    assert!(site.exists("completed/ca/a.json") && !site.exists(A));
}

fn flat() -> Settings {
    Settings { layout: dfq::model::Layout::Flat, ..Settings::default() }
}

#[tokio::test]
async fn a_repair_mends_what_a_worker_would_and_touches_nothing_else() {
    let site = Site::new();
    let queue = site.queue_with(flat()).await;
    for name in ["good", "garbage", "gone", "done"] {
        push(&*queue, name).await;
    }
    let dir = |name: &str| format!("pending/{name}");
    site.write(&format!("{}/task.json", dir("garbage")), "{ half");
    std::fs::remove_file(site.path("q").join(dir("gone")).join("task.json")).unwrap();
    site.write("completed/done.json", "{}");
    site.write("notes.txt", "mine");

    let found = queue.check(false).await.unwrap();
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.iter().all(|problem| !problem.mended));
    assert!(site.exists(&dir("gone")) && site.exists(&dir("done")), "a check changes nothing");

    let mended = queue.check(true).await.unwrap();
    let left: Vec<_> = mended.iter().filter(|problem| !problem.mended).collect();
    assert_eq!((mended.len(), left.len(), left[0].path.as_str()), (4, 1, "notes.txt"));
    assert_eq!(queue.check(false).await.unwrap().len(), 1);
    assert_eq!(site.read("notes.txt"), "mine");
    let garbage = queue.get(id("garbage")).await.unwrap().unwrap();
    assert_eq!(garbage.state, dfq::queue::TaskState::Failed);
    let kept = site.read("failed/garbage.json");
    assert!(kept.contains("half"), "the bytes are kept");
    assert_eq!(poll(&*queue).await.len(), 1);
}

#[tokio::test]
async fn a_repair_leaves_what_somebody_works_on() {
    let site = Site::new();
    let queue = site.queue_with(flat()).await;
    push(&*queue, "held").await;
    let held = poll(&*queue).await.remove(0);
    site.write("pending/held/task.json", "{ half");
    let operator = site.queue().await;
    let found = operator.check(true).await.unwrap();
    assert_eq!((found.len(), found[0].mended), (1, false), "{found:?}");
    queue.ack(vec![held.receipt]).await.remove(0).unwrap();
    assert_eq!(queue.get(id("held")).await.unwrap().unwrap().state, TaskState::Completed);
}

#[tokio::test]
async fn listings_come_in_pages_and_start_where_asked() {
    use dfq::queue::{ListCursor, Place as At};
    let site = Site::new();
    let queue = site.queue_with(flat()).await;
    let tasks = (0..2500).map(|n| dfq::NewTask::from_json(&format!(r#"{{"id":"t{n}"}}"#)).unwrap());
    for answer in queue.push(tasks.collect()).await {
        answer.unwrap();
    }
    ack_all(&*queue, queue.poll(PollRequest::new(3)).await.unwrap().deliveries).await;
    let (mut cursor, mut sizes, mut names) = (None, Vec::new(), std::collections::BTreeSet::new());
    loop {
        let page = queue.list(cursor).await.unwrap();
        sizes.push(page.tasks.len());
        names.extend(page.tasks.into_iter().map(|view| view.key));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((sizes, names.len()), (vec![1000, 1000, 497, 0, 3, 0], 2500));
    let page = queue.list(Some(ListCursor::at(At::Completed))).await.unwrap();
    assert_eq!((page.tasks.len(), page.next.unwrap().place()), (3, At::Failed));
}
