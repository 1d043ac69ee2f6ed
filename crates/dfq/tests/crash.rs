//! Every verb, stopped before, in and after every system call that changes the tree, and with every
//! such call failing: the next worker carries on, and every promise holds.
//!
//! A run prepares a queue, arms one fault, carries out the verb, throws the "process" away, and lets a
//! second worker finish whatever is there. The number of runs is not fixed: faults are tried at call 0,
//! 1, 2 … until the verb gets through without meeting one.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "crash/departing.rs"]
mod departing;
#[path = "crash/world.rs"]
mod world;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dfq::model::Outcome;
use dfq::queue::{Detail, ListCursor, MoveClaim, Place, Purge};
use dfq::store::fs::fault::Fault;
use dfq::{
    Nack, NewTask, OpenOptions, PollRequest, Queue, Receipt, Release, Result, Settings, TaskId,
};
use rustix::io::Errno;
use world::{Faulty, LEASE, World, run};

/// One verb, and what must be true once everybody is done.
struct Verb {
    /// Brings the queue to where the verb can be carried out.
    prepare: fn(&World, &Faulty) -> Vec<Receipt>,
    /// The verb.
    act: fn(&Faulty, &[Receipt]) -> Result<()>,
    /// The records that must exist in the end if the verb said that it succeeded.
    done: &'static [&'static str],
    /// Those that may exist if it did not.
    else_any_of: &'static [&'static [&'static str]],
}

fn id(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

fn task(name: &str) -> NewTask {
    NewTask::from_json("{\"x\":1}").unwrap().id(id(name))
}

fn all<T>(answers: Vec<Result<T>>) -> Result<()> {
    answers.into_iter().try_for_each(|answer| answer.map(drop))
}

fn push(queue: &Faulty, name: &str) {
    all(run(queue.push(vec![task(name)]))).unwrap();
}

/// Claims at least one.
fn claim(queue: &Faulty, max: usize) -> Vec<Receipt> {
    let polled = run(queue.poll(PollRequest::new(max))).unwrap();
    assert!(!polled.deliveries.is_empty(), "there is a task, and it cannot be claimed");
    polled.deliveries.into_iter().map(|delivery| delivery.receipt).collect()
}

fn pushed(_: &World, queue: &Faulty) -> Vec<Receipt> {
    push(queue, "a");
    Vec::new()
}

fn claimed(_: &World, queue: &Faulty) -> Vec<Receipt> {
    push(queue, "a");
    claim(queue, 1)
}

fn nothing(_: &World, _: &Faulty) -> Vec<Receipt> {
    Vec::new()
}

/// Claimed by a worker that is no more, its lease run out.
fn abandoned(world: &World, queue: &Faulty) -> Vec<Receipt> {
    push(queue, "a");
    let gone = world.worker();
    assert_eq!(claim(&gone, 1).len(), 1);
    world.pass(LEASE + LEASE / 10);
    Vec::new()
}

fn failed(_: &World, queue: &Faulty) -> Vec<Receipt> {
    push(queue, "a");
    all(run(queue.fail(vec![(claim(queue, 1).remove(0), "no".into())]))).unwrap();
    Vec::new()
}

fn poll(queue: &Faulty, _: &[Receipt]) -> Result<()> {
    run(queue.poll(PollRequest::new(5))).map(drop)
}

/// Tries the verb with one fault after the other. `fault` makes the n-th.
fn try_all(verb: &Verb, fault: impl Fn(usize) -> Fault + Sync) {
    // Runs mostly wait for the disk, so several go at once.
    const AT_ONCE: usize = 4;
    let (through, next, met) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while !through.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    assert!(at < 500, "the verb never gets through");
                    match try_one(verb, fault(at), at) {
                        Run::Met => _ = met.fetch_add(1, Ordering::Relaxed),
                        Run::Through => through.store(true, Ordering::Relaxed),
                    }
                }
            });
        }
    });
    assert!(met.into_inner() > 0, "the verb changes nothing, so nothing was tested");
}

/// What came of a run.
enum Run {
    /// The fault was met, and all is well.
    Met,
    /// The verb got through without meeting it.
    Through,
}

/// One run.
fn try_one(verb: &Verb, fault: Fault, at: usize) -> Run {
    let world = World::new();
    let queue = world.worker();
    let receipts = (verb.prepare)(&world, &queue);
    let sys = queue.tree().sys().clone();
    sys.arm(Some(fault));
    let acted = (verb.act)(&queue, &receipts);
    let calls = sys.calls();
    let met = calls.len() > at;
    let story = || format!("{fault:?} at {:?} of {calls:#?}\nanswered {acted:?}", calls.get(at));
    if let (Fault::Fail(_, errno), Err(error)) = (fault, &acted) {
        assert!(!error.to_string().is_empty(), "{}", story());
        let wanted = match errno {
            Errno::NOSPC => "no space",
            Errno::ACCESS => "denied",
            Errno::IO => "input/output",
            _ => "",
        };
        assert!(error.to_string().to_lowercase().contains(wanted), "{}", story());
    }
    if let Fault::Repeat(_) = fault {
        assert!(acted.is_ok(), "it was done, and only the answer was lost: {}", story());
    }
    drop(queue);
    let left = world.drain();
    if acted.is_ok() {
        assert_eq!(left, verb.done, "{}", story());
    } else {
        let allowed = left == verb.done || verb.else_any_of.iter().any(|other| left == *other);
        assert!(allowed, "{left:?} after {}", story());
    }
    world.assert_clean(&story);
    if met { Run::Met } else { Run::Through }
}

fn everything(verb: &Verb) {
    stops_and_failures(verb);
    // A file that is said to be gone, and is not.
    for errno in [Errno::NOENT, Errno::STALE] {
        try_all(verb, |at| Fault::Fail(at, errno));
    }
    try_all(verb, Fault::Repeat);
}

fn stops_and_failures(verb: &Verb) {
    try_all(verb, Fault::StopBefore);
    try_all(verb, Fault::StopAfter);
    try_all(verb, Fault::Tear);
    for errno in [Errno::NOSPC, Errno::IO, Errno::ACCESS] {
        try_all(verb, |at| Fault::Fail(at, errno));
    }
}

const A: &[&str] = &["completed/a"];
const A_FAILED: &[&str] = &["failed/a"];

#[test]
fn push_two() {
    everything(&Verb {
        prepare: nothing,
        act: |queue, _| all(run(queue.push(vec![task("a"), task("b")]))),
        done: &["completed/a", "completed/b"],
        else_any_of: &[&[], A, &["completed/b"]],
    });
}

#[test]
fn push_again() {
    everything(&Verb {
        prepare: |_, queue| {
            push(queue, "a");
            all(run(queue.ack(claim(queue, 1)))).unwrap();
            Vec::new()
        },
        act: |queue, _| all(run(queue.push(vec![task("a").again()]))),
        done: &["completed/a", "completed/a@2"],
        else_any_of: &[A],
    });
}

#[test]
fn push_delayed() {
    everything(&Verb {
        prepare: nothing,
        act: |queue, _| all(run(queue.push(vec![task("a").delay(Duration::from_millis(10))]))),
        done: A,
        else_any_of: &[&[]],
    });
}

#[test]
fn claim_first() {
    everything(&Verb { prepare: pushed, act: poll, done: A, else_any_of: &[] });
}

#[test]
fn takeover() {
    everything(&Verb { prepare: abandoned, act: poll, done: A, else_any_of: &[] });
}

#[test]
fn claim_after_a_nack() {
    everything(&Verb {
        prepare: |world, queue| {
            push(queue, "a");
            let (receipt, delay) = (claim(queue, 1).remove(0), Some(Duration::ZERO));
            all(run(queue.nack(vec![Nack { receipt, error: "no".into(), delay }]))).unwrap();
            // What rests is remembered to the hundredth of a second.
            world.pass(Duration::from_millis(50));
            Vec::new()
        },
        act: poll,
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn heartbeat() {
    everything(&Verb {
        prepare: claimed,
        act: |queue, receipts| all(run(queue.heartbeat(receipts.to_vec()))),
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn nack() {
    everything(&Verb {
        prepare: claimed,
        act: |queue, receipts| {
            let nack = |receipt: &Receipt| Nack {
                receipt: receipt.clone(),
                error: "no".into(),
                delay: Some(Duration::from_millis(20)),
            };
            all(run(queue.nack(receipts.iter().map(nack).collect())))
        },
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn last_nack() {
    everything(&Verb {
        prepare: |_, queue| {
            all(run(queue.push(vec![task("a").max_attempts(1)]))).unwrap();
            claim(queue, 1)
        },
        act: |queue, receipts| {
            let nack = |receipt: &Receipt| Nack {
                receipt: receipt.clone(),
                error: "no".into(),
                delay: None,
            };
            all(run(queue.nack(receipts.iter().map(nack).collect())))
        },
        done: A_FAILED,
        else_any_of: &[A],
    });
}

#[test]
fn release() {
    everything(&Verb {
        prepare: claimed,
        act: |queue, receipts| {
            all(run(queue.release(receipts.iter().cloned().map(Release::now).collect())))
        },
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn ack_two() {
    everything(&Verb {
        prepare: |_, queue| {
            push(queue, "a");
            push(queue, "b");
            claim(queue, 2)
        },
        act: |queue, receipts| all(run(queue.ack(receipts.to_vec()))),
        done: &["completed/a", "completed/b"],
        else_any_of: &[],
    });
}

#[test]
fn ack_of_the_second_attempt() {
    everything(&Verb {
        prepare: |world, queue| {
            abandoned(world, queue);
            claim(queue, 1)
        },
        act: |queue, receipts| all(run(queue.ack(receipts.to_vec()))),
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn fail() {
    everything(&Verb {
        prepare: claimed,
        act: |queue, receipts| {
            all(run(
                queue.fail(receipts.iter().map(|receipt| (receipt.clone(), "no".into())).collect())
            ))
        },
        done: A_FAILED,
        else_any_of: &[A],
    });
}

#[test]
fn cancel() {
    everything(&Verb {
        prepare: claimed,
        act: |queue, _| all(run(queue.cancel(vec![id("a")], "no".into()))),
        done: A_FAILED,
        else_any_of: &[A],
    });
}

#[test]
fn cancel_a_scheduled_one() {
    everything(&Verb {
        prepare: |_, queue| {
            all(run(queue.push(vec![task("a").delay(Duration::from_millis(10))]))).unwrap();
            Vec::new()
        },
        act: |queue, _| all(run(queue.cancel(vec![id("a")], "no".into()))),
        done: A_FAILED,
        else_any_of: &[A],
    });
}

#[test]
fn retry() {
    everything(&Verb {
        prepare: failed,
        act: |queue, _| all(run(queue.retry(vec![id("a")]))),
        done: &["completed/a@2", "failed/a"],
        else_any_of: &[A_FAILED],
    });
}

#[test]
fn unlock() {
    everything(&Verb {
        prepare: claimed,
        act: |queue, _| all(run(queue.unlock(vec![id("a")]))),
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn scheduled_to_pending() {
    everything(&Verb {
        prepare: |world, queue| {
            all(run(queue.push(vec![task("a").delay(Duration::from_secs(60))]))).unwrap();
            world.pass(Duration::from_secs(61));
            Vec::new()
        },
        act: poll,
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn pause() {
    everything(&Verb {
        prepare: pushed,
        act: |queue, _| run(queue.pause(None)),
        done: A,
        else_any_of: &[],
    });
}

#[test]
fn purge() {
    // Two lives, both long over. What a crash leaves has no gaps: a push finds the next life.
    stops_and_failures(&Verb {
        prepare: |world, queue| {
            for _ in 0..2 {
                all(run(queue.push(vec![task("a").again()]))).unwrap();
                all(run(queue.ack(claim(queue, 1)))).unwrap();
            }
            world.pass(Duration::from_secs(20_000));
            Vec::new()
        },
        act: |queue, _| {
            let older_than = Duration::from_secs(7_000);
            run(queue.purge(Purge { outcome: Outcome::Completed, older_than, dry_run: false }))
                .map(drop)
        },
        done: &[],
        else_any_of: &[A, &["completed/a", "completed/a@2"]],
    });
}

#[test]
fn create() {
    // The queue itself: whatever a crash leaves can be opened, or made anew.
    for fault in [Fault::StopBefore, Fault::StopAfter, Fault::Tear] {
        for at in 0.. {
            let world = World::new();
            let (first, second) = (world.store(), world.store());
            let sys = first.sys().clone();
            sys.arm(Some(fault(at)));
            let options =
                OpenOptions { create: Some(Settings::default()), ..OpenOptions::default() };
            let made = run(dfq::TreeQueue::open(first, options.clone()));
            let queue = run(dfq::TreeQueue::open(second, options)).unwrap();
            push(&queue, "a");
            assert_eq!(run(queue.stats(Detail::Counts)).unwrap().pending, 1);
            if sys.calls().len() <= at {
                made.unwrap();
                break;
            }
        }
    }
}
