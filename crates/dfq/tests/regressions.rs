//! One test for every bug that was found after the fact, named after what must be true.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dfq::clock::{Clock, ManualClock, SeededChance};
use dfq::model::{Durability, MAX_TASK_BYTES};
use dfq::queue::Detail;
use dfq::store::memory::Memory;
use dfq::transfer::{Mode, Transfer};
use dfq::{
    Delivery, Env, ErrorKind, NewTask, OpenOptions, PollRequest, Pushed, Queue, Settings, TreeQueue,
};
use futures::executor::block_on;
use jiff::{SignedDuration, Timestamp};
use rustix::io::Errno;
use support::{Site, ack_all, id, poll, push, task};

fn relaxed() -> Settings {
    Settings { durability: Durability::Relaxed, ..Settings::default() }
}

async fn push_many(queue: &dyn Queue, count: usize) {
    for answer in queue.push((0..count).map(|n| task(&format!("t{n}"))).collect()).await {
        answer.unwrap();
    }
}

fn assert_distinct(deliveries: &[Delivery]) {
    let receipts: BTreeSet<_> = deliveries.iter().map(|held| held.receipt.to_string()).collect();
    assert_eq!(receipts.len(), deliveries.len());
}

#[tokio::test]
async fn more_tasks_due_at_once_than_one_poll_moves() {
    let site = Site::new();
    let (queue, _) = site.faulty(relaxed()).await;
    let delayed = |n| task(&format!("t{n}")).delay(Duration::from_secs(60));
    for answer in queue.push((0..600).map(delayed).collect()).await {
        answer.unwrap();
    }
    site.pass(Duration::from_secs(62));
    let mut got = 0;
    loop {
        let polled = queue.poll(PollRequest::new(1000)).await.unwrap();
        got += polled.deliveries.len();
        if polled.deliveries.is_empty() && !polled.idle.more {
            break;
        }
    }
    assert_eq!(got, 600);
}

/// Whoever drains the queue would wait for its time. One that was known before counts as one that is new.
#[tokio::test]
async fn a_time_for_which_nothing_is_scheduled_any_more_is_not_waited_for() {
    let (site, elsewhere) = (Site::new(), Site::new());
    let (queue, watcher) = (site.queue().await, site.queue().await);
    // A folder that took long to list is not listed again at once. Then the answer is to look again soon.
    let next = async |queue: &dyn Queue| loop {
        match queue.poll(PollRequest::new(1)).await.unwrap().idle.next {
            Some(soon) if soon < Duration::from_secs(60) => tokio::time::sleep(soon).await,
            next => break next,
        }
    };
    let schedule = async |name: &str, minutes: u64| {
        let delayed = task(name).delay(Duration::from_secs(60 * minutes));
        queue.push(vec![delayed]).await.remove(0).unwrap();
    };
    schedule("a", 5).await;
    schedule("b", 50).await;
    // So that the watcher relies on what it saw, the folder must not have changed just now.
    let a_moment = || tokio::time::sleep(Duration::from_millis(100));
    a_moment().await;
    assert!(next(&*watcher).await.is_some());
    queue.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap();
    let left = next(&*watcher).await.unwrap();
    assert!(left > Duration::from_secs(600), "{left:?}, though that was cancelled");
    a_moment().await;
    assert!(next(&*watcher).await.is_some());
    let to = elsewhere.queue().await;
    let moving = Transfer::new(queue.clone(), to, Mode::Move, Env::system()).unwrap();
    moving.run(&mut |_| {}).await.unwrap();
    assert_eq!(next(&*watcher).await, None, "moved");
}

/// A push makes the folder of a time before it puts a task into it. Those who look for what is due leave it
/// alone, and those who took the last task from there and remove it do not stand in the way for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_push_for_a_time_finds_its_folder() {
    let site = Site::new();
    let over = std::sync::atomic::AtomicBool::new(false);
    let scheduling = async |name: &str| {
        let queue = site.queue().await;
        for n in 0..100 {
            // All for the same seconds, so that one removes what the other has just made.
            let (name, delay) = (format!("{name}{n}"), Duration::from_secs(60));
            queue.push(vec![task(&name).delay(delay)]).await.remove(0).unwrap();
            queue.cancel(vec![id(&name)], "no".into()).await.remove(0).unwrap();
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let looking = async || {
        let queue = site.queue().await;
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            queue.poll(PollRequest::new(1)).await.unwrap();
        }
    };
    tokio::join!(scheduling("a"), scheduling("b"), looking(), looking(), looking(), looking());
    let stats = site.queue().await.stats(Detail::Exact).await.unwrap();
    assert_eq!((stats.scheduled, stats.failed), (0, 200));
}

#[tokio::test]
async fn a_move_that_failed_is_tried_again() {
    let site = Site::new();
    let (queue, sys) = site.faulty(Settings::default()).await;
    queue.push(vec![task("a").delay(Duration::from_secs(60))]).await.remove(0).unwrap();
    assert!(poll(&*queue).await.is_empty());
    site.pass(Duration::from_secs(62));
    sys.refuse("scheduled/", Some(Errno::NOSPC));
    let polled = queue.poll(PollRequest::new(1)).await.unwrap();
    assert!(polled.deliveries.is_empty() && polled.idle.next.is_some(), "{polled:?}");
    sys.refuse("scheduled/", None);
    site.pass(polled.idle.next.unwrap() + Duration::from_secs(1));
    assert_eq!(poll(&*queue).await.len(), 1);
}

/// All leases of a poll are one file; once its last name is gone it can get no other.
#[tokio::test]
async fn the_remains_of_a_crashed_ack_do_not_hide_the_other_tasks() {
    for _ in 0..10 {
        let site = Site::new();
        let queue = site.queue_with(relaxed()).await;
        push(&*queue, "a").await;
        let file = site.read("pending/ca/a/task.json");
        let held = poll(&*queue).await;
        ack_all(&*queue, held).await;
        site.write("pending/ca/a/task.json", file);
        push_many(&*queue, 20).await;
        assert_eq!(poll(&*site.queue().await).await.len(), 20);
    }
}

#[tokio::test]
async fn a_machine_that_has_been_up_for_years_still_remembers() {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(500 * 86_400));
    let env = Env::new(Arc::new(clock), Arc::new(SeededChance::new(1)));
    let options = OpenOptions { env: env.clone(), ..OpenOptions::create() };
    let queue = TreeQueue::open(Memory::new(env), options).await.unwrap();
    push_many(&queue, 20).await;
    let mut all = queue.poll(PollRequest::new(5)).await.unwrap().deliveries;
    all.extend(poll(&queue).await);
    assert_eq!(all.len(), 20);
    assert_distinct(&all);
}

#[tokio::test]
async fn a_poll_that_outlasts_its_lease_delivers_nothing_twice() {
    let site = Site::new();
    let queue = site.queue_with(relaxed()).await;
    push_many(&*queue, 2000).await;
    queue.poll(PollRequest::new(1)).await.unwrap();
    let request = PollRequest { lease: Some(Duration::from_millis(60)), ..PollRequest::new(4000) };
    assert_distinct(&queue.poll(request).await.unwrap().deliveries);
}

#[tokio::test]
async fn trouble_with_one_shard_does_not_swallow_what_was_claimed_before() {
    for _ in 0..5 {
        let site = Site::new();
        let queue = site.queue_with(relaxed()).await;
        push_many(&*queue, 20).await;
        assert_eq!(queue.poll(PollRequest::new(1)).await.unwrap().deliveries.len(), 1);
        // The round is under way; one of its shards turns into a file.
        let shards = std::fs::read_dir(site.path("q/pending")).unwrap().map(|e| e.unwrap().path());
        let free = |shard: &std::path::PathBuf| {
            let tasks = std::fs::read_dir(shard).unwrap();
            tasks.into_iter().all(|task| !task.unwrap().path().join("lease.json").exists())
        };
        let shard = shards.into_iter().find(free).unwrap();
        std::fs::rename(&shard, site.path("away")).unwrap();
        std::fs::write(&shard, "a file").unwrap();
        let mut got = 0;
        for _ in 0..4 {
            got +=
                queue.poll(PollRequest::new(100)).await.map_or(0, |polled| polled.deliveries.len());
        }
        std::fs::remove_file(&shard).unwrap();
        let states = queue.stats(Detail::States).await.unwrap().states.unwrap();
        assert_eq!(states.leased, got as u64 + 1, "every lease was handed to somebody");
    }
}

#[tokio::test]
async fn retry_of_an_unreadable_record_invents_no_payload() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    queue.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap();
    site.write("failed/ca/a.json", "{\"x\":1");
    let refused = queue.retry(vec![id("a")]).await.remove(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(poll(&*queue).await.is_empty());
}

#[tokio::test]
async fn a_tmp_folder_that_was_removed_is_made_again() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    let held = poll(&*queue).await;
    std::fs::remove_dir_all(site.path("q/tmp")).unwrap();
    queue.heartbeat(vec![held[0].receipt.clone()]).await.remove(0).unwrap();
    std::fs::remove_dir_all(site.path("q/tmp")).unwrap();
    push(&*queue, "b").await;
    std::fs::remove_dir_all(site.path("q/tmp")).unwrap();
    assert_eq!(poll(&*queue).await.len(), 1);
}

#[tokio::test]
async fn the_largest_payload_can_be_claimed() {
    let site = Site::new();
    let queue = site.queue_with(relaxed()).await;
    let json = format!(r#"{{"x":"{}"}}"#, "y".repeat(MAX_TASK_BYTES - 10));
    queue.push(vec![NewTask::from_json(&json).unwrap()]).await.remove(0).unwrap();
    let held = poll(&*queue).await;
    assert_eq!(held[0].payload.as_json().len(), json.len());
    ack_all(&*queue, held).await;
}

#[tokio::test]
async fn a_task_that_cannot_be_read_gathers_no_leases() {
    let site = Site::new();
    let queue = site.queue().await;
    push(&*queue, "a").await;
    let task = site.path("q/pending/ca/a/task.json");
    std::fs::rename(&task, site.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(site.path("elsewhere"), &task).unwrap();
    for _ in 0..10 {
        assert!(poll(&*site.queue().await).await.is_empty());
    }
    let files = std::fs::read_dir(site.path("q/pending/ca/a")).unwrap().count();
    assert_eq!(files, 2, "the link, and one lease withdrawn");
}

/// A clock that can jump, as that of a machine without a battery does.
#[derive(Clone, Debug, Default)]
struct Jumpy {
    elapsed: Arc<Mutex<Duration>>,
    offset: Arc<Mutex<SignedDuration>>,
}

impl Clock for Jumpy {
    fn wall(&self) -> Timestamp {
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        start + *self.elapsed.lock().unwrap() + *self.offset.lock().unwrap()
    }
    fn monotonic(&self) -> Duration {
        Duration::from_secs(1000) + *self.elapsed.lock().unwrap()
    }
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}

impl Jumpy {
    fn advance(&self, secs: u64) {
        *self.elapsed.lock().unwrap() += Duration::from_secs(secs);
    }
    fn jump(&self, secs: i64) {
        *self.offset.lock().unwrap() += SignedDuration::from_secs(secs);
    }
}

#[tokio::test]
async fn a_clock_that_jumps_takes_nothing_from_a_living_worker() {
    for jump in [3600, -3600] {
        let clock = Jumpy::default();
        let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
        let store = Memory::new(env.clone());
        let settings = Settings { lease: Duration::from_secs(60), ..Settings::default() };
        let options = OpenOptions { env, create: Some(settings), ..OpenOptions::default() };
        let owner = TreeQueue::open(store.clone(), options.clone()).await.unwrap();
        let other = TreeQueue::open(store, options).await.unwrap();
        push(&owner, "a").await;
        let held = poll(&owner).await;
        clock.advance(5);
        assert!(poll(&other).await.is_empty());
        clock.advance(6);
        clock.jump(jump);
        for _ in 0..20 {
            clock.advance(10);
            assert!(poll(&other).await.is_empty(), "jump of {jump} s");
            owner.heartbeat(vec![held[0].receipt.clone()]).await.remove(0).unwrap();
            assert!(poll(&other).await.is_empty(), "jump of {jump} s");
        }
        // It falls silent; then it is taken over, in spite of the jump.
        let mut taken = Vec::new();
        for _ in 0..20 {
            clock.advance(10);
            if taken.is_empty() {
                taken = poll(&other).await;
            }
        }
        assert_eq!(taken.len(), 1, "jump of {jump} s");
    }
}

/// Leases that a process makes within a moment are alike. Two polls that found the same task at once took
/// each other's lease for their own, and both had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn polls_of_one_handle_never_share_a_task() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let queue = dfq::open(dir.path(), OpenOptions::create()).await.unwrap();
        let task = |_| NewTask::from_json("{}").unwrap();
        assert!(queue.push((0..60).map(task).collect()).await.iter().all(Result::is_ok));
        let poll = |queue: std::sync::Arc<dyn Queue>| async move {
            let mut got = Vec::new();
            loop {
                let polled = queue.poll(PollRequest::new(2)).await.unwrap();
                if polled.deliveries.is_empty() && !polled.idle.more {
                    return got;
                }
                got.extend(polled.deliveries.into_iter().map(|task| task.receipt.to_string()));
            }
        };
        let polls: Vec<_> = (0..6).map(|_| tokio::spawn(poll(queue.clone()))).collect();
        let mut all = Vec::new();
        for poll in polls {
            all.extend(poll.await.unwrap());
        }
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (60, 60));
    }
}

/// A flat tree has one shard. Counted in pages, its tasks past the first page were counted once for each
/// of the sixteen stretches that other trees are counted in.
#[tokio::test]
async fn a_flat_tree_in_pages_is_counted_once() {
    let env = Env::new(Arc::new(ManualClock::default()), Arc::new(SeededChance::new(5)));
    let create = Some(Settings { layout: dfq::model::Layout::Flat, ..Settings::default() });
    let options = OpenOptions { env: env.clone(), create, ..OpenOptions::default() };
    let queue = TreeQueue::open(Memory::new(env), options).await.unwrap();
    push_many(&queue, 1500).await;
    for detail in [Detail::Counts, Detail::Exact] {
        let stats = queue.stats(detail).await.unwrap();
        assert_eq!((stats.pending, stats.is_exact()), (1500, true), "{detail:?}");
    }
}

/// A retry that stalls, while another one, or the late word of a slow worker, brings the task to its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_never_begins_a_completed_task_anew() {
    for (late, at) in (0..12).flat_map(|at| [(false, at), (true, at)]) {
        let site = Arc::new(Site::new());
        let (queue, _) = site.faulty(relaxed()).await;
        push(&*queue, "a").await;
        queue.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap();
        let (stalled, sys) = site.faulty(relaxed()).await;
        let also = Arc::clone(&site);
        let others = move || {
            if late {
                also.write("completed/ca/a.json", also.read("failed/ca/a.json"));
                return;
            }
            let others = async {
                queue.retry(vec![id("a")]).await.remove(0).unwrap();
                let held = poll(&*queue).await;
                ack_all(&*queue, held).await;
            };
            std::thread::scope(|scope| _ = scope.spawn(|| block_on(others)));
        };
        match at {
            0 => sys.after_read("failed/ca/a.json", others),
            at => sys.before_change(at - 1, others),
        }
        let answer = stalled.retry(vec![id("a")]).await.remove(0);
        let story = format!("{late} at {at}: {answer:?}, {:#?}", sys.calls());
        if sys.still_waiting() {
            break;
        }
        let (other, _) = site.faulty(relaxed()).await;
        let again: Vec<_> = poll(&*other).await.into_iter().map(|held| held.key).collect();
        // What was created before the late word came may run: nobody could know.
        let created = late && matches!(answer, Ok(Pushed::Created(_)));
        assert!(
            at > 0 || answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::AlreadyCompleted),
            "{story}"
        );
        assert_eq!(again.is_empty(), !created, "{again:?} {story}");
    }
}

/// The store's clock was set back, so the lease seems to hold for an hour. Whoever watches it takes over sooner.
#[tokio::test]
async fn a_lease_that_another_process_claimed_holds_no_longer_than_its_length() {
    let site = Site::new();
    let (owner, _) = site.faulty(relaxed()).await;
    push(&*owner, "a").await;
    let receipt = poll(&*owner).await.remove(0).receipt;
    let lease = std::fs::File::options().write(true).open(site.path("q/pending/ca/a/lease.json"));
    lease.unwrap().set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    let (other, sys) = site.faulty(relaxed()).await;
    // It learns of the lease, but cannot renew it.
    sys.refuse("lease.json", Some(Errno::IO));
    other.heartbeat(vec![receipt.clone()]).await.remove(0).unwrap_err();
    sys.refuse("lease.json", None);
    site.pass(relaxed().lease);
    let late = other.ack(vec![receipt]).await.remove(0).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::ClaimLost);
}

/// The disk is slow, and the leases end in the middle of a large batch: what comes after is not recorded.
#[tokio::test]
async fn no_record_is_begun_after_its_lease_has_ended() {
    let site = Arc::new(Site::new());
    let (queue, sys) = site.faulty(relaxed()).await;
    push_many(&*queue, 400).await;
    let held = queue.poll(PollRequest::new(400)).await.unwrap().deliveries;
    assert_eq!(held.len(), 400);
    let slow = Arc::clone(&site);
    sys.before_change(100, move || slow.pass(relaxed().lease));
    let answers = queue.ack(held.into_iter().map(|held| held.receipt).collect()).await;
    assert!(!sys.still_waiting());
    let done = answers.iter().filter(|answer| answer.is_ok()).count();
    let lost = |error: &dfq::Error| error.kind() == ErrorKind::ClaimLost;
    assert!(answers.iter().all(|answer| answer.as_ref().err().is_none_or(lost)));
    assert!((1..=128).contains(&done), "{done}");
    assert_eq!(queue.stats(Detail::Exact).await.unwrap().completed, done as u64);
}

/// A record may be large. That it is there is all that counts when the rest of its task is removed.
#[tokio::test]
async fn a_record_is_not_read_to_clean_up_after_its_task() {
    let site = Site::new();
    let (queue, _) = site.faulty(relaxed()).await;
    push(&*queue, "a").await;
    let file = site.read("pending/ca/a/task.json");
    ack_all(&*queue, poll(&*queue).await).await;
    site.write("pending/ca/a/task.json", file);
    let (other, sys) = site.faulty(relaxed()).await;
    sys.after_read("completed/ca/a.json", || {});
    assert!(poll(&*other).await.is_empty() && !site.exists("pending/ca/a"));
    assert!(sys.still_waiting(), "it was read");
}
