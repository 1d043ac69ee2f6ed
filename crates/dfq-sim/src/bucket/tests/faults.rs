//! Each kind of trouble on the way, alone.

use std::sync::Arc;

use dfq::conformance::objects::trial;
use dfq::meter::RequestKind;
use dfq::store::objects::{Objects, Swap};
use dfq::store::{Created, Version};
use dfq::{Error, ErrorKind};

use super::{History, Traits, Weather, World, seconds};
use crate::bucket::{Delay, Denied};

fn passes(error: &Error) -> bool {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    error.is_passing()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_never_carried_out() {
    let world = World::still();
    world.set(Weather { lost: 1.0, ..Weather::still() });
    let error = world.line().put("a", b"1").await.unwrap_err();
    assert!(passes(&error), "{error}");
    let text = "cannot write 'a' in s3://sim/queue: no answer (silence for 10 s)";
    assert_eq!((error.to_string(), world.env.monotonic()), (text.to_owned(), seconds(10)));
    world.env.clock().sleep(seconds(600)).await;
    assert!(world.bucket.files().is_empty());
    assert_eq!(world.bucket.under_way(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_belongs_to_a_request_that_was_carried_out() {
    let world = World::still();
    world.set(Weather { answer_lost: 1.0, ..Weather::still() });
    let line = world.line();
    assert!(passes(&line.create("a", b"1").await.unwrap_err()));
    assert_eq!(world.changes.take(), ["+a=1"]);
    world.set(Weather::still());
    assert_eq!(line.create("a", b"1").await.unwrap(), Created::Exists);
    let count = line.requests()[&RequestKind::Put];
    assert_eq!((count.sent, count.no, count.failed), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_late_removal_arrives_when_nobody_waits_for_it() {
    let world = World::still();
    let (line, doomed) = (world.line(), names(&["a"]));
    line.put("a", b"1").await.unwrap();
    world.set(Weather { late: 1.0, late_at_most: seconds(60), ..Weather::still() });
    assert!(passes(&line.remove(&doomed, seconds(60)).await.unwrap_err()));
    assert_eq!((world.env.monotonic(), world.bucket.under_way()), (seconds(10), 1));
    world.set(Weather::still());
    line.put("a", b"2").await.unwrap();
    world.env.clock().sleep(seconds(50)).await;
    assert_eq!(world.changes.take(), ["+a=1", "=a=2", "-a"], "what came between is gone too");
    assert_eq!(world.bucket.under_way(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_request_arrives_although_its_process_has_died() {
    for (cut_short, left) in [(0.0, 1), (1.0, 0)] {
        let (world, tap) = (World::still(), Arc::new(History::default()));
        world.set(Weather { late: 1.0, cut_short, ..Weather::still() });
        let line = Arc::new(world.line_of(tap.clone()));
        let sent = Arc::clone(&line);
        let asking = tokio::spawn(async move { sent.put("a", b"1").await });
        world.env.clock().sleep(seconds(1)).await;
        tap.kill();
        world.env.clock().sleep(seconds(60)).await;
        assert_eq!(world.bucket.files().len(), left, "of those, {cut_short} are cut short");
        assert!(!asking.is_finished(), "the dead do nothing");
        let sent = Arc::clone(&line);
        let silent = tokio::spawn(async move { sent.put("b", b"1").await });
        world.env.clock().sleep(seconds(60)).await;
        assert!(!silent.is_finished());
        assert_eq!(tap.take(), ["put a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_has_been_sent_all_the_same() {
    let world = World::still();
    world.set(Weather::calm());
    let line = world.line();
    let dropped = futures::future::select(line.put("a", b"1"), Box::pin(async {})).await;
    drop(dropped);
    world.env.clock().sleep(seconds(1)).await;
    assert_eq!(world.changes.take(), ["+a=1"]);
}

#[tokio::test(start_paused = true)]
async fn of_a_doubled_request_the_second_answer_counts() {
    let world = World::still();
    world.set(Weather { doubled: 1.0, ..Weather::still() });
    let line = world.line();
    assert_eq!(line.create("a", b"1").await.unwrap(), Created::Exists);
    // A swap looks what is there, and finds its own.
    let name = trial("b");
    let Swap::Written(first) = line.swap(&name, None, b"1").await.unwrap() else {
        panic!("nobody else was there")
    };
    assert!(matches!(line.swap(&name, Some(&first), b"2").await.unwrap(), Swap::Written(_)));
    assert_eq!(line.swap(&name, Some(&first), b"3").await.unwrap(), Swap::Lost);
    assert_eq!(world.changes.take(), ["+a=1", "+b=1", "=b=2"]);
    assert_eq!(line.requests()[&RequestKind::Put].sent, 4, "one of each left the process");
}

#[tokio::test(start_paused = true)]
async fn refused_requests_are_carried_out_or_not() {
    let world = World::still();
    world.set(Weather { refused: 1.0, late_at_most: seconds(60), ..Weather::still() });
    let (line, mut at_once) = (world.line(), 0);
    for n in 0..90 {
        let error = line.put(&n.to_string(), b"1").await.unwrap_err();
        assert!(passes(&error));
        let text = error.to_string();
        assert!(
            text.ends_with("500 (InternalError)") || text.ends_with("503 (SlowDown)"),
            "{text}"
        );
        at_once += world.changes.take().len();
    }
    assert_eq!(world.env.monotonic(), seconds(0), "a refusal comes at once");
    let later = world.bucket.under_way();
    world.env.clock().sleep(seconds(60)).await;
    assert_eq!((world.bucket.under_way(), world.changes.take().len()), (0, later));
    let never = 90 - at_once - later;
    assert!([at_once, later, never].iter().all(|&some| some > 15), "{at_once} {later} {never}");
}

#[tokio::test(start_paused = true)]
async fn only_conditional_writes_meet_a_conflict() {
    let world = World::still();
    world.set(Weather { conflict: 1.0, ..Weather::still() });
    let line = world.line();
    line.put("a", b"1").await.unwrap();
    let version = line.head("a").await.unwrap().unwrap().version;
    let mut errors = vec![line.swap(&trial("a"), Some(&version), b"2").await.unwrap_err()];
    for n in 0..40 {
        errors.push(line.create(&format!("c{n}"), b"1").await.unwrap_err());
    }
    for error in &errors {
        assert!(passes(error) && error.to_string().contains("answered 409"), "{error}");
    }
    let created = world.bucket.files().keys().filter(|name| name.starts_with('c')).count();
    assert!((5..35).contains(&created), "{created} of 40 were carried out");
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_is_denied_until_it_is_allowed() {
    let world = World::still();
    let (line, both) = (world.line(), names(&["a/1", "b/1"]));
    for name in &both {
        line.put(name, b"1").await.unwrap();
    }
    let denied = Denied { kind: Some(RequestKind::Delete), prefix: "a/".to_owned() };
    world.set(Weather { denied: vec![denied], ..Weather::still() });
    let error = line.remove(&both, seconds(60)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_passing()), (ErrorKind::Denied, false));
    let text = "cannot remove 'a/1' in s3://sim/queue: the store answered 403 (AccessDenied); it \
                takes the permission s3:DeleteObject";
    assert_eq!(error.to_string(), text);
    assert!(world.bucket.files().keys().eq(["a/1"]), "the other one was removed");
    line.put("a/1", b"2").await.unwrap();
    let denied = Denied { kind: None, prefix: String::new() };
    world.set(Weather { denied: vec![denied], ..Weather::still() });
    let error = line.head("a/1").await.unwrap_err();
    assert!(error.to_string().contains("answered 403 Forbidden; it takes"), "{error}");
    world.set(Weather::still());
    line.remove(&both, seconds(60)).await.unwrap();
    assert!(world.bucket.files().is_empty());
}

#[tokio::test(start_paused = true)]
async fn many_are_removed_in_parts() {
    let (mut whole, mut parts) = (0, 0);
    for seed in 0..40 {
        let world = World::new(seed, Traits::s3());
        let (line, all) = (world.line(), names(&["a", "b", "c", "d"]));
        for name in &all {
            line.put(name, b"1").await.unwrap();
        }
        world.set(Weather { in_parts: 1.0, ..Weather::still() });
        let answer = line.remove(&all, seconds(60)).await;
        let left = world.bucket.files().len();
        match answer {
            Ok(()) => whole += 1,
            Err(error) => assert!(passes(&error)),
        }
        parts += usize::from((1..4).contains(&left));
    }
    assert!(whole > 5 && parts > 5, "{whole} went, and of {parts} only some");
}

#[tokio::test(start_paused = true)]
async fn no_removal_is_sent_after_its_time() {
    let (world, tap) = (World::still(), Arc::new(History::default()));
    let line = world.line_of(tap.clone());
    world.env.clock().sleep(seconds(60)).await;
    let error = line.remove(&names(&["a"]), seconds(60)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_passing()), (ErrorKind::Unavailable, false));
    let text = "cannot remove 'a' in s3://sim/queue: too late to remove it; this process has slept";
    assert_eq!((error.to_string(), tap.take()), (text.to_owned(), Vec::new()));
    line.remove(&[], seconds(0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn some_requests_take_much_longer_than_most() {
    let world = World::still();
    let delay = Delay { slow: 0.1, slow_at_most: seconds(5), ..Weather::calm().delay };
    world.set(Weather { delay, ..Weather::calm() });
    let (line, mut took) = (world.line(), Vec::new());
    for _ in 0..200 {
        let began = world.env.monotonic();
        assert_eq!(line.head("a").await.unwrap(), None);
        took.push((world.env.monotonic() - began).as_millis());
    }
    took.sort_unstable();
    assert!(took[0] >= 6 && took[100] < 60 && took[199] > 1000, "{took:?}");
}

/// The library's own retries see it through.
#[tokio::test(start_paused = true)]
async fn a_storm_is_weathered() {
    let world = World::still();
    let weather = Arc::clone(&world.weather);
    let tree = world.bucket.sim_tree(world.env.clone(), weather, Arc::new(()));
    world.set(Weather::stormy());
    let (name, mut version): (_, Option<Version>) = (trial("counter"), None);
    for n in 0..100 {
        let bytes = n.to_string();
        match tree.swap(&name, version.as_ref(), bytes.as_bytes()).await.unwrap() {
            Swap::Written(written) => version = Some(written),
            Swap::Lost => panic!("nobody else was there"),
        }
        let there = tree.load(&name).await.unwrap().unwrap();
        assert_eq!((there.bytes, Some(there.head.version)), (bytes.into_bytes(), version.clone()));
    }
    let sent: u64 = tree.objects().inner().requests().values().map(|it| it.sent).sum();
    assert!(sent > 210, "{sent} requests: some were sent again");
}
