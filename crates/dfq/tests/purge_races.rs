//! Purges beside pushes of the same id, and beside each other: nothing that was answered `created` is lost, no
//! record that is young goes, and tokens only grow.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{ManualClock, SeededChance};
use dfq::model::{Durability, Layout, Outcome};
use dfq::queue::{Detail, Purge, Purged};
use dfq::store::memory::Memory;
use dfq::store::objects::Objects as _;
use dfq::{Env, NewTask, OpenOptions, PollRequest, Pushed, Queue, Settings, TaskKey, TreeQueue};
use futures::executor::block_on;
use support::{Faulty, Site, ack_all, id, poll, short_or_long};

const HOUR: Duration = Duration::from_secs(3600);

fn relaxed() -> Settings {
    Settings { durability: Durability::Relaxed, ..Settings::default() }
}

/// The task `a`, told apart from others of that id.
fn a(mark: &str) -> NewTask {
    NewTask::from_json(&format!(r#"{{"id":"a","mark":"{mark}"}}"#)).unwrap()
}

async fn purge(queue: &dyn Queue, dry_run: bool) -> Purged {
    let purge = Purge { outcome: Outcome::Completed, older_than: 10 * HOUR, dry_run };
    queue.purge(purge).await.unwrap()
}

/// Carries something out as another process would: outside this one's runtime, to the end.
fn elsewhere<R: Send + 'static>(work: impl Future<Output = R> + Send + 'static) -> R {
    std::thread::spawn(|| block_on(work)).join().unwrap()
}

/// A queue in which the task `a` has finished so many lives, all long ago.
async fn finished_long_ago(lives: u32) -> Site {
    let site = Site::new();
    let (queue, _) = site.faulty(relaxed()).await;
    for life in 1..=lives {
        queue.push(vec![a(&life.to_string()).again()]).await.remove(0).unwrap();
        ack_all(&*queue, poll(&*queue).await).await;
    }
    site.pass(100 * HOUR);
    site
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Purge,
    Push,
    PushAgain,
}

impl Verb {
    /// Does it; answers with the mark of what it has created.
    async fn act(self, queue: Arc<Faulty>) -> Option<String> {
        let (task, mark) = match self {
            Self::Purge => {
                purge(&*queue, false).await;
                return None;
            }
            Self::Push => (a("plain"), "plain"),
            Self::PushAgain => (a("again").again(), "again"),
        };
        let pushed = queue.push(vec![task]).await.remove(0).unwrap();
        matches!(pushed, Pushed::Created(_)).then(|| mark.to_owned())
    }
}

/// The marks of all that can be had, which is then done.
async fn drain(site: &Site) -> BTreeSet<String> {
    let (queue, _) = site.faulty(relaxed()).await;
    let mut marks = BTreeSet::new();
    loop {
        let held = poll(&*queue).await;
        if held.is_empty() {
            return marks;
        }
        marks.extend(held.iter().map(|held| held.payload.string_member("mark").unwrap()));
        ack_all(&*queue, held).await;
    }
}

/// Three processes. Between the steps of one come the other two, at any two places, in any roles.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_created_beside_a_purge_is_handed_out() {
    use Verb::{Purge, Push, PushAgain};
    let roles = [
        [PushAgain, Purge, Push],
        [Push, Purge, PushAgain],
        [Purge, PushAgain, Push],
        [Purge, Push, PushAgain],
        [PushAgain, Push, Purge],
        [Push, PushAgain, Purge],
    ];
    let later = [(2, [PushAgain, Purge, Push])];
    for (lives, roles) in roles.map(|roles| (1, roles)).into_iter().chain(later) {
        let steps = steps_of(lives, roles[0]).await;
        for (i, j) in (0..steps).flat_map(|i| (0..steps - i).map(move |j| (i, j))) {
            let site = finished_long_ago(lives).await;
            let (first, sys) = site.faulty(relaxed()).await;
            let (second, _) = site.faulty(relaxed()).await;
            let (third, _) = site.faulty(relaxed()).await;
            let created = Arc::new(Mutex::new(BTreeSet::new()));
            let (also, last) = (Arc::clone(&created), Arc::clone(&created));
            let later = sys.clone();
            sys.before_change(i, move || {
                also.lock().unwrap().extend(elsewhere(roles[1].act(second)));
                let third = move || {
                    last.lock().unwrap().extend(elsewhere(roles[2].act(third)));
                };
                // Counted from here on.
                if j == 0 { third() } else { later.before_change(j - 1, third) }
            });
            let own = roles[0].act(first).await;
            let mut created = created.lock().unwrap().clone();
            created.extend(own);
            let story = format!("{lives} lives, {roles:?} at {i} and {j} more: {:#?}", sys.calls());
            let had = drain(&site).await;
            assert!(had.is_superset(&created), "{created:?} created, {had:?} had; {story}");
        }
    }
}

/// How many calls of a verb change something.
async fn steps_of(lives: u32, verb: Verb) -> usize {
    let site = finished_long_ago(lives).await;
    let (queue, sys) = site.faulty(relaxed()).await;
    sys.arm(None);
    verb.act(queue).await;
    sys.calls().len()
}

/// One that has read an old record and stalls, while another purges it and the id lives again.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_stalled_removes_nothing_young() {
    for at in 0..steps_of(1, Verb::Purge).await {
        let site = finished_long_ago(1).await;
        let (stalled, sys) = site.faulty(relaxed()).await;
        let (other, _) = site.faulty(relaxed()).await;
        sys.before_change(at, move || {
            elsewhere(async move {
                purge(&*other, false).await;
                other.push(vec![a("new")]).await.remove(0).unwrap();
                ack_all(&*other, poll(&*other).await).await;
            });
        });
        purge(&*stalled, false).await;
        let (queue, _) = site.faulty(relaxed()).await;
        let pushed = queue.push(vec![a("newer")]).await.remove(0).unwrap();
        assert!(matches!(pushed, Pushed::Finished(..)), "{pushed:?} at {at}: {:#?}", sys.calls());
    }
}

/// A push with a delay that stalls, while its life is begun, done and perhaps forgotten by others.
#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_push_that_stalled_is_done() {
    for (again, forgotten) in [(true, true), (true, false), (false, true), (false, false)] {
        for at in 0..12 {
            let site = Arc::new(finished_long_ago(u32::from(again)).await);
            let (stalled, sys) = site.faulty(relaxed()).await;
            let (other, _) = site.faulty(relaxed()).await;
            let later = Arc::clone(&site);
            sys.before_change(at, move || {
                elsewhere(async move {
                    other.push(vec![a("other").again()]).await.remove(0).unwrap();
                    ack_all(&*other, poll(&*other).await).await;
                    if forgotten {
                        later.pass(20 * HOUR);
                        purge(&*other, false).await;
                    }
                });
            });
            let task = a("late").delay(HOUR);
            let task = if again { task.again() } else { task };
            let pushed = stalled.push(vec![task]).await.remove(0).unwrap();
            sys.still_waiting();
            site.pass(200 * HOUR);
            let had = drain(&site).await;
            let created = matches!(pushed, Pushed::Created(_));
            let story = format!("{again} {forgotten} at {at}: {pushed:?}, {:#?}", sys.calls());
            assert!(created || !again, "{story}");
            assert_eq!(created, had.contains("late"), "{had:?} {story}");
        }
    }
}

/// What a purge forgets is numbered on from, also for tasks that came from elsewhere with greater tokens.
#[tokio::test]
async fn tokens_grow_over_a_purge() {
    let site = finished_long_ago(2).await;
    let (queue, _) = site.faulty(relaxed()).await;
    queue.push(vec![a("3").again()]).await.remove(0).unwrap();
    let before = poll(&*queue).await;
    let fence = before[0].fence;
    ack_all(&*queue, before).await;
    site.pass(100 * HOUR);
    assert_eq!(purge(&*queue, true).await.records, 3);
    assert_eq!(purge(&*queue, false).await.records, 3);
    assert_eq!(purge(&*queue, false).await.records, 0);
    assert!(queue.get(id("a")).await.unwrap().is_none());
    let pushed = queue.push(vec![a("4")]).await.remove(0).unwrap();
    assert_eq!(pushed, Pushed::Created(TaskKey::new(id("a"), 4)));
    assert!(poll(&*queue).await[0].fence > fence);
    assert_eq!(queue.check(false).await.unwrap(), []);
}

/// Many purges leave few files, and each id is found in them; what is very old is forgotten for good.
#[tokio::test]
async fn floors_are_merged() {
    let site = Site::new();
    let flat = || Settings { layout: Layout::Flat, ..relaxed() };
    let (queue, _) = site.faulty(flat()).await;
    let names = |n: usize| (0..40).map(move |m| format!("task {n} of {m}"));
    for n in 0..12 {
        let tasks = names(n).map(|name| support::task(&name)).collect();
        queue.push(tasks).await.into_iter().for_each(|pushed| drop(pushed.unwrap()));
        ack_all(&*queue, queue.poll(PollRequest::new(1000)).await.unwrap().deliveries).await;
        site.pass(100 * HOUR);
        assert_eq!(purge(&*queue, false).await.records, 40);
    }
    let files = std::fs::read_dir(site.path("q/floors")).unwrap().count();
    assert!(files <= 9, "{files}");
    let again = |n: usize| names(n).map(|name| support::task(&name)).collect::<Vec<_>>();
    let (other, _) = site.faulty(flat()).await;
    for pushed in other.push(again(0)).await.into_iter().chain(other.push(again(11)).await) {
        assert!(matches!(pushed, Ok(Pushed::Created(key)) if key.generation() == 2));
    }
    assert_eq!(queue.check(false).await.unwrap(), []);
}

/// Floors are dropped after months, but for those that a later life rests on.
#[tokio::test]
async fn a_life_that_is_still_there_is_found_however_old_its_floor() {
    let site = Site::new();
    let flat = Settings { layout: Layout::Flat, ..relaxed() };
    let (queue, _) = site.faulty(flat).await;
    let finish = async |name: &str| {
        queue.push(vec![support::task(name).again()]).await.remove(0).unwrap();
        ack_all(&*queue, queue.poll(PollRequest::new(9)).await.unwrap().deliveries).await;
        site.pass(100 * HOUR);
        assert_eq!(purge(&*queue, false).await.records, 1);
    };
    finish("a").await;
    let later = support::task("a").again().delay(10_000 * HOUR);
    let later = queue.push(vec![later]).await.remove(0).unwrap();
    assert_eq!(later, Pushed::Created(TaskKey::new(id("a"), 2)));
    for n in 0..40 {
        finish(&format!("other {n}")).await;
    }
    assert!(queue.get(id("a")).await.unwrap().is_some(), "it waits");
    site.pass(10_000 * HOUR);
    assert_eq!(poll(&*queue).await.remove(0).key, TaskKey::new(id("a"), 2));
}

/// A file of floors that somebody has spoilt costs only itself.
#[tokio::test]
async fn a_damaged_floor_stops_nobody() {
    let site = finished_long_ago(1).await;
    let (queue, _) = site.faulty(relaxed()).await;
    purge(&*queue, false).await;
    let file = std::fs::read_dir(site.path("q/floors/ca")).unwrap().next().unwrap().unwrap();
    for garbage in [&b""[..], b"{\"floors\":[\n", &[0xff; 100_000], b"{}\n"] {
        std::fs::write(file.path(), garbage).unwrap();
        let (queue, _) = site.faulty(relaxed()).await;
        let pushed = queue.push(vec![a("x").again()]).await.remove(0).unwrap();
        assert!(matches!(pushed, Pushed::Created(_)), "{pushed:?}");
        ack_all(&*queue, poll(&*queue).await).await;
        assert_eq!(queue.check(false).await.unwrap().len(), 1);
    }
}

/// Real threads, a clock that leaps by hours, and every verb at once.
#[test]
fn nothing_is_lost_between_pushes_and_purges_that_race() {
    let pushes = short_or_long(150, 400);
    let site = Arc::new(Site::new());
    // Time leaps over leases before their tasks are handed out, too.
    block_on(site.faulty(Settings { max_lost: 1000, ..relaxed() }));
    let over = Arc::new(AtomicBool::new(false));
    let created = Arc::new(Mutex::new(Vec::new()));
    let had = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
    let new_queue = || block_on(site.faulty(relaxed())).0;
    let pusher = |again: bool| {
        let (queue, created) = (new_queue(), Arc::clone(&created));
        std::thread::spawn(move || {
            for n in 0..pushes {
                let mark = format!("{again} {n}");
                let task = if again { a(&mark).again() } else { a(&mark) };
                // It may fail: time leaps by days, and a purge takes it for what a killed process left.
                if let Ok(Pushed::Created(_)) = block_on(queue.push(vec![task])).remove(0) {
                    created.lock().unwrap().push(mark);
                }
            }
        })
    };
    let until_over = |mut act: Box<dyn FnMut() + Send>| {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                act();
            }
        })
    };
    let worker = |queue: Arc<Faulty>| {
        let had = Arc::clone(&had);
        move || {
            let polled = block_on(queue.poll(PollRequest::new(4))).unwrap();
            for held in &polled.deliveries {
                let mark = held.payload.string_member("mark").unwrap();
                *had.lock().unwrap().entry(mark).or_default() += 1;
            }
            let receipts = polled.deliveries.into_iter().map(|held| held.receipt).collect();
            // Time may have leapt over its lease: then it comes again.
            let _ = block_on(queue.ack(receipts));
        }
    };
    let (leaps, purger) = (Arc::clone(&site), [new_queue(), new_queue()]);
    let beside = [
        until_over(Box::new(worker(new_queue()))),
        until_over(Box::new(move || {
            leaps.pass(20 * HOUR);
            std::thread::sleep(Duration::from_millis(20));
        })),
    ];
    let purgers =
        purger.map(|queue| until_over(Box::new(move || _ = block_on(purge(&*queue, false)))));
    for pusher in [pusher(true), pusher(false), pusher(true)] {
        pusher.join().unwrap();
    }
    over.store(true, Ordering::SeqCst);
    beside.into_iter().chain(purgers).for_each(|thread| thread.join().unwrap());
    let last = worker(new_queue());
    for _ in 0..20 {
        site.pass(20 * HOUR);
        last();
    }
    let (created, had) = (created.lock().unwrap(), had.lock().unwrap());
    let lost: Vec<_> = created.iter().filter(|mark| !had.contains_key(*mark)).collect();
    assert!(lost.is_empty(), "{lost:?} of {}", created.len());
    assert!(created.len() > pushes / 100, "only {} were created", created.len());
}

/// A worker that moves a due task and stalls, while another copy of that life is done and forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_life_does_not_become_pending_again() {
    let mut met = 0;
    for at in 0..12 {
        let site = Arc::new(Site::new());
        let (queue, _) = site.faulty(relaxed()).await;
        for (mark, delay) in [("early", 60), ("late", 120)] {
            let task = a(mark).delay(Duration::from_secs(delay));
            queue.push(vec![task]).await.remove(0).unwrap();
        }
        site.pass(Duration::from_secs(70));
        let held = poll(&*queue).await;
        assert_eq!(held.len(), 1);
        site.pass(Duration::from_secs(60));
        let (stalled, sys) = site.faulty(relaxed()).await;
        let later = Arc::clone(&site);
        sys.before_change(at, move || {
            elsewhere(async move {
                ack_all(&*queue, held).await;
                later.pass(20 * HOUR);
                purge(&*queue, false).await;
            });
        });
        let had = poll(&*stalled).await;
        let story = format!("at {at}: {had:?}, {:#?}", sys.calls());
        met += usize::from(!sys.still_waiting());
        assert!(had.is_empty() && drain(&site).await.is_empty(), "{story}");
    }
    assert!(met > 2, "{met}");
}

/// Somebody's names look like lives far beyond all that there ever were.
#[tokio::test]
async fn lives_are_not_put_back_by_the_thousand() {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
    let store = Memory::new(env.clone());
    let options = OpenOptions { env, ..OpenOptions::create() };
    let queue = TreeQueue::open(store.clone(), options).await.unwrap();
    queue.push(vec![a("ours")]).await.remove(0).unwrap();
    store.create("scheduled/20200101T0000Z/b@20000/task.json", b"{}").await.unwrap();
    let held = poll(&queue).await;
    assert_eq!(held.len(), 2);
    ack_all(&queue, held).await;
    clock.advance(100 * HOUR);
    store.create("pending/ca/a@20000/task.json", b"{}").await.unwrap();
    assert_eq!(purge(&queue, false).await.records, 2);
    let stats = queue.stats(Detail::Exact).await.unwrap();
    assert_eq!((stats.pending, stats.completed), (1, 0));
}

/// A file of floors that is too large to be merged goes when all that it says is old.
#[tokio::test]
async fn a_large_file_of_floors_is_forgotten_too() {
    let site = Site::new();
    let (queue, _) = site.faulty(Settings { layout: Layout::Flat, ..relaxed() }).await;
    let id = |n: usize| format!("{n:06}{}", "x".repeat(190));
    let line = |n| {
        let more = "x".repeat(1500);
        format!(
            r#"{{"id":"{}","generation":1,"more":"{more}","at":"2020-01-01T00:00:00Z"}}"#,
            id(n)
        )
    };
    let lines: Vec<_> = (0..6000).map(line).collect();
    let large = format!("floors/{:032x}.json", 1);
    site.write(&large, format!("{{\"floors\":[\n{}\n]}}\n", lines.join(",\n")));
    let pass = async |rounds: usize| {
        for n in 0..rounds {
            support::push(&*queue, &format!("{rounds} {n}")).await;
            ack_all(&*queue, poll(&*queue).await).await;
            site.pass(11 * HOUR);
            assert_eq!(purge(&*queue, false).await.records, 1);
        }
    };
    let generation = async |n| {
        let task = support::task(&id(n)).delay(10_000 * HOUR);
        queue.push(vec![task]).await.remove(0).unwrap().key().generation()
    };
    pass(10).await;
    assert_eq!(generation(1).await, 2, "the file is young");
    site.pass(100 * 24 * HOUR);
    pass(11).await;
    assert!(!site.exists(&large));
    assert_eq!(generation(1).await, 2, "it lives");
    assert_eq!(generation(2).await, 1);
}
