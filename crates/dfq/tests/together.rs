//! Two at work at once, in every order that matters; and calls that were carried out although the
//! answer says otherwise.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::model::{Durability, Outcome};
use dfq::queue::Purge;
use dfq::store::fs::fault::Fault;
use dfq::{NewTask, PollRequest, Pushed, Queue, Release, Settings, TaskKey};
use futures::executor::block_on;
use support::{Site, ack_all, id, poll, push, task};

const HOUR: Duration = Duration::from_secs(3600);

fn relaxed() -> Settings {
    Settings { durability: Durability::Relaxed, ..Settings::default() }
}

/// Carries something out as another process would: outside this one's runtime, to the end.
fn elsewhere<R: Send + 'static>(work: impl Future<Output = R> + Send + 'static) -> R {
    std::thread::spawn(|| block_on(work)).join().unwrap()
}

/// A queue in which the task `a` has finished so many lives, all long ago.
async fn finished_long_ago(lives: u32) -> Site {
    let site = Site::new();
    let queue = site.queue_with(relaxed()).await;
    for _ in 0..lives {
        queue.push(vec![task("a").again()]).await.remove(0).unwrap();
        let held = poll(&*queue).await;
        ack_all(&*queue, held).await;
    }
    for life in 1..=lives {
        site.age(&record_of(life), 100 * HOUR);
    }
    site
}

fn record_of(life: u32) -> String {
    let stem = if life == 1 { "a".to_owned() } else { format!("a@{life}") };
    format!("completed/ca/{stem}.json")
}

/// One of two verbs, as a process of its own.
async fn purge(queue: Arc<dyn Queue>) -> Option<TaskKey> {
    let purge = Purge { outcome: Outcome::Completed, older_than: 10 * HOUR, dry_run: false };
    queue.purge(purge).await.unwrap();
    None
}

async fn push_it(queue: Arc<dyn Queue>, task: NewTask) -> Option<TaskKey> {
    match queue.push(vec![task]).await.remove(0).unwrap() {
        Pushed::Created(key) => Some(key),
        other => panic!("{other:?}"),
    }
}

/// Lets a purge in before each change that a push makes, and a push before each that a purge makes.
/// Whatever the order, the new life is known afterwards, and no other takes its name or an earlier one.
async fn purge_and_push(again: fn() -> NewTask, check: AsyncCheck) {
    for lives in 1..=3 {
        for purge_first in [true, false] {
            for at in 0.. {
                let site = finished_long_ago(lives).await;
                let (first, sys) = site.faulty(relaxed()).await;
                let second = site.queue_with(relaxed()).await;
                let answer = Arc::new(Mutex::new(None));
                let told = Arc::clone(&answer);
                sys.before_change(at, move || {
                    *told.lock().unwrap() = match purge_first {
                        true => elsewhere(push_it(second, again())),
                        false => elsewhere(purge(second)),
                    };
                });
                let created = match purge_first {
                    true => purge(first).await,
                    false => push_it(first, again()).await,
                };
                if sys.still_waiting() {
                    assert!(at > 0, "nothing was tried");
                    break;
                }
                let created = created.or_else(|| answer.lock().unwrap().take()).unwrap();
                let story = format!("{lives} lives, {purge_first}, at {at}: {:#?}", sys.calls());
                assert_eq!(created.generation(), lives + 1, "{story}");
                check(&site, &created, &story);
            }
        }
    }
}

type AsyncCheck = fn(&Site, &TaskKey, &str);

fn pushed_now(site: &Site, task: NewTask) -> Pushed {
    let queue = block_on(site.queue_with(relaxed()));
    block_on(queue.push(vec![task])).remove(0).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_does_not_make_a_push_forget_earlier_lives() {
    let check: AsyncCheck = |site, created, story| {
        let (site, created, story) = (site.path("q"), created.clone(), story.to_owned());
        elsewhere(async move {
            let queue = dfq::open(site, dfq::OpenOptions::existing()).await.unwrap();
            let pushed = queue.push(vec![task("a")]).await.remove(0).unwrap();
            assert_eq!(pushed, Pushed::Pending(created.clone()), "{story}");
            let held = poll(&*queue).await;
            assert_eq!(held.iter().map(|held| &held.key).collect::<Vec<_>>(), [&created]);
            ack_all(&*queue, held).await;
            let pushed = queue.push(vec![task("a")]).await.remove(0).unwrap();
            assert_eq!(pushed, Pushed::Finished(created.clone(), Outcome::Completed), "{story}");
            let next = TaskKey::new(id("a"), created.generation() + 1);
            let pushed = queue.push(vec![task("a").again()]).await.remove(0).unwrap();
            assert_eq!(pushed, Pushed::Created(next), "{story}");
        });
    };
    purge_and_push(|| task("a").again(), check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_does_not_make_a_delayed_push_forget_earlier_lives() {
    let check: AsyncCheck = |site, created, story| {
        // Once its last life is forgotten it is new to the queue, but for its number.
        let known = site.path(&format!("q/{}", record_of(created.generation() - 1))).exists();
        let pushed = pushed_now(site, task("a"));
        assert_eq!(!known, pushed == Pushed::Created(created.clone()), "{pushed:?}: {story}");
    };
    purge_and_push(|| task("a").again().delay(HOUR), check).await;
}

/// Repeats each call of a poll that changes something, and tells the poll only the second answer.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_a_claim() {
    for second_attempt in [false, true] {
        for at in 0.. {
            let site = Site::new();
            let (queue, sys) = site.faulty(relaxed()).await;
            push(&*queue, "a").await;
            if second_attempt {
                let before = site.queue().await;
                let held = poll(&*before).await.remove(0);
                before.release(vec![Release::now(held.receipt)]).await.remove(0).unwrap();
            }
            sys.arm(Some(Fault::Repeat(at)));
            let held = poll(&*queue).await;
            let calls = sys.calls();
            assert_eq!(held.len(), 1, "call {at} of {calls:?}");
            assert_eq!(held[0].attempt, 1 + u32::from(second_attempt));
            ack_all(&*queue, held).await;
            if calls.len() <= at {
                break;
            }
        }
    }
}

/// All that a process claims within a moment has one lease id. So the lease of a task that it has and
/// just gives back looks like a claim whose answer was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_given_back_during_a_poll_is_not_handed_out_by_the_old_lease() {
    let site = Site::new();
    let (queue, sys) = site.faulty(relaxed()).await;
    push(&*queue, "a").await;
    let held = poll(&*queue).await.remove(0);
    make_it_look_again(&site).await;
    let (giver, receipt) = (Arc::clone(&queue), held.receipt.clone());
    sys.after_read("lease.json", move || {
        elsewhere(async move { giver.release(vec![Release::now(receipt)]).await })
            .remove(0)
            .unwrap();
    });
    let again = poll(&*queue).await;
    assert!(!sys.still_waiting(), "the task was not looked at");
    assert!(again.iter().all(|again| again.receipt != held.receipt), "{again:?}");
    // It is free, and can be had by the next poll at the latest.
    let got = if again.is_empty() { poll(&*queue).await } else { again };
    assert_eq!(got[0].attempt, 2);
    ack_all(&*queue, got).await;
}

/// A worker reads a lease, is stopped for hours, and then finds that what it read has run out. Its
/// owner has renewed it all the while.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_of_a_lease_that_was_renewed_meanwhile_is_taken_back() {
    let site = Site::new();
    let owner = site.queue_with(relaxed()).await;
    push(&*owner, "a").await;
    let held = poll(&*owner).await.remove(0);
    let lease = "pending/ca/a/lease.json";
    let mut old: serde_json::Value = serde_json::from_str(&site.read(lease)).unwrap();
    for (member, time) in [("created_at", "10"), ("heartbeat_at", "10"), ("expires_at", "20")] {
        old[member] = format!("2026-01-01T00:{time}:00Z").into();
    }
    std::fs::remove_file(site.path("q").join(lease)).unwrap();
    site.write(lease, old.to_string());
    site.age(lease, 10 * HOUR);
    let (taker, sys) = site.faulty(relaxed()).await;
    let (renewing, receipt) = (Arc::clone(&owner), held.receipt.clone());
    sys.after_read("lease.json", move || {
        elsewhere(async move { renewing.heartbeat(vec![receipt]).await }).remove(0).unwrap();
    });
    assert!(poll(&*taker).await.is_empty(), "two have it");
    assert!(!sys.still_waiting());
    assert!(site.read("pending/ca/a/lease.2.json").contains("withdrawn"), "it was tried");
    owner.heartbeat(vec![held.receipt.clone()]).await.remove(0).unwrap();
    ack_all(&*owner, vec![held]).await;
}

/// An unlock, of whatever, makes every worker forget what it knows of leases.
async fn make_it_look_again(site: &Site) {
    let other = site.queue().await;
    other.unlock(vec![id("something else")]).await.remove(0).unwrap_err();
}

/// What a worker does to its own tasks is no reason to look for others.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_worker_is_not_woken_by_its_own_heartbeats_and_acks() {
    let site = Site::new();
    let queue = site.queue_with(relaxed()).await;
    // The first of its kind makes a folder in the root, which is worth a look.
    push(&*queue, "first").await;
    let held = poll(&*queue).await;
    ack_all(&*queue, held).await;
    push(&*queue, "a").await;
    push(&*queue, "b").await;
    let held = queue.poll(PollRequest::new(1)).await.unwrap().deliveries.remove(0);
    // The first wait begins to watch, and comes back at once to look at what it may have missed.
    queue.wait(HOUR).await;
    let quiet =
        async || tokio::time::timeout(Duration::from_millis(200), queue.wait(HOUR)).await.is_err();
    queue.heartbeat(vec![held.receipt.clone()]).await.remove(0).unwrap();
    assert!(quiet().await, "woken by a heartbeat");
    queue.ack(vec![held.receipt]).await.remove(0).unwrap();
    let other = queue.poll(PollRequest::new(1)).await.unwrap().deliveries;
    assert_eq!((other.len(), quiet().await), (1, true), "woken by an ack or a poll");
    push(&*queue, "c").await;
    assert!(!quiet().await, "not woken by a push");
    queue.release(vec![Release::now(other[0].receipt.clone())]).await.remove(0).unwrap();
    assert!(!quiet().await, "not woken by a release");
}

/// Rule 7 of the format, on which decision 12 rests: where a lease is missing, the task has gone first.
/// Whoever ends a task keeps to it, and so does who cleans up after one that did not come to it.
#[tokio::test]
async fn leases_go_only_after_their_task() {
    for verb in ["ack", "fail", "cancel", "clean up"] {
        let site = Site::new();
        let (queue, sys) = site.faulty(relaxed()).await;
        push(&*queue, "a").await;
        for _ in 0..2 {
            let held = poll(&*queue).await.remove(0);
            queue.release(vec![Release::now(held.receipt)]).await.remove(0).unwrap();
        }
        let receipt = poll(&*queue).await.remove(0).receipt;
        sys.arm(None);
        match verb {
            "ack" => queue.ack(vec![receipt]).await.remove(0).unwrap(),
            "fail" => queue.fail(vec![(receipt, "no".into())]).await.remove(0).unwrap(),
            "cancel" => drop(queue.cancel(vec![id("a")], "no".into()).await.remove(0).unwrap()),
            _ => {
                queue.release(vec![Release::now(receipt)]).await.remove(0).unwrap();
                site.write("completed/ca/a.json", "{}");
                assert!(poll(&*queue).await.is_empty());
            }
        }
        let calls = sys.calls();
        let removed: Vec<_> =
            calls.iter().filter_map(|call| call.strip_prefix("unlink ")).collect();
        let inside: Vec<_> = removed.iter().filter(|name| !name.contains('/')).collect();
        assert_eq!((inside.len(), *inside[0]), (4, "task.json"), "{verb}: {calls:#?}");
        assert!(!site.exists("pending/ca/a"));
    }
}

/// An operator takes a task away in the middle of its ack, and another worker does it all. Whichever
/// record comes first counts, and only who made it is told that it has done the task.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_acks_one_succeeds() {
    for at in 0.. {
        let site = Site::new();
        let (owner, sys) = site.faulty(relaxed()).await;
        push(&*owner, "a").await;
        let held = poll(&*owner).await.remove(0);
        let other = site.queue_with(relaxed()).await;
        let others_acks = Arc::new(Mutex::new(0));
        let told = Arc::clone(&others_acks);
        sys.before_change(at, move || {
            *told.lock().unwrap() = elsewhere(async move {
                let _ = other.unlock(vec![id("a")]).await;
                let held = poll(&*other).await.into_iter().map(|held| held.receipt).collect();
                other.ack(held).await.iter().filter(|answer| answer.is_ok()).count()
            });
        });
        let acked = owner.ack(vec![held.receipt]).await.remove(0);
        if sys.still_waiting() {
            assert!(at > 0, "nothing was tried");
            break;
        }
        let calls = sys.calls();
        let acks = usize::from(acked.is_ok()) + *others_acks.lock().unwrap();
        assert_eq!(acks, 1, "at {at} of {calls:#?}");
        if let Err(lost) = acked {
            assert_eq!(lost.kind(), dfq::ErrorKind::AlreadyCompleted, "at {at} of {calls:#?}");
        }
    }
}

/// A push has found its id unused; before it comes to publish, the id lives and ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_life_that_ends_during_a_push_is_not_lived_again() {
    let mut overtaken = 0;
    for at in 0.. {
        let site = Site::new();
        let (slow, sys) = site.faulty(relaxed()).await;
        let quick = site.queue_with(relaxed()).await;
        sys.before_change(at, move || {
            elsewhere(async move {
                push(&*quick, "a").await;
                let held = poll(&*quick).await;
                ack_all(&*quick, held).await;
            });
        });
        let pushed = slow.push(vec![task("a")]).await.remove(0).unwrap();
        if sys.still_waiting() {
            break;
        }
        overtaken += u32::from(matches!(pushed, Pushed::Finished(_, Outcome::Completed)));
        let story = format!("{pushed:?} at {at} of {:#?}", sys.calls());
        assert!(matches!(pushed, Pushed::Finished(..) | Pushed::Created(_)), "{story}");
        assert!(poll(&*site.queue().await).await.is_empty(), "done twice: {story}");
    }
    assert!(overtaken > 0);
}

/// A draft that is too old to be used is removed by a system call, and no lock is held meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn others_claim_while_an_old_draft_is_removed() {
    let mut removed_at = None;
    for _ in 0..2 {
        let site = Site::new();
        let (queue, sys) = site.faulty(relaxed()).await;
        for name in ["a", "b", "c"] {
            push(&*queue, name).await;
        }
        queue.poll(PollRequest::new(1)).await.unwrap();
        site.pass(Duration::from_secs(2));
        let claimed = Arc::new(Mutex::new(None));
        match removed_at {
            None => sys.arm(None),
            Some(at) => {
                let (other, told) = (Arc::clone(&queue), Arc::clone(&claimed));
                sys.before_change(at, move || {
                    let (tell, hear) = std::sync::mpsc::channel();
                    std::thread::spawn(move || {
                        tell.send(block_on(other.poll(PollRequest::new(1))))
                    });
                    *told.lock().unwrap() = hear.recv_timeout(Duration::from_secs(30)).ok();
                });
            }
        }
        assert_eq!(queue.poll(PollRequest::new(1)).await.unwrap().deliveries.len(), 1);
        let calls = sys.calls();
        match removed_at {
            None => {
                removed_at = calls.iter().position(|call| call.starts_with("unlink"));
                assert!(removed_at.is_some(), "{calls:#?}");
            }
            Some(_) => {
                let other = claimed.lock().unwrap().take().unwrap().unwrap();
                assert_eq!(other.deliveries.len(), 1, "{calls:#?}");
            }
        }
    }
}
