//! What the server does, apart from the way to it.

use std::sync::Arc;
use std::time::Duration;

use dfq::conformance::objects::trial;
use dfq::meter::RequestKind;
use dfq::store::objects::{List, Objects, Swap};
use jiff::Timestamp;

use super::{History, START, Traits, World, seconds};

#[tokio::test(start_paused = true)]
async fn the_same_bytes_have_the_same_tag() {
    let line = World::still().line();
    for (name, bytes) in [("a", "1"), ("b", "1"), ("c", "2")] {
        line.put(name, bytes.as_bytes()).await.unwrap();
    }
    let mut tags = Vec::new();
    for name in ["a", "b", "c"] {
        tags.push(line.head(name).await.unwrap().unwrap().version);
    }
    assert!(tags[0] == tags[1] && tags[0] != tags[2], "{tags:?}");
    let swap = line.swap(&trial("a"), Some(&tags[1]), b"3").await.unwrap();
    assert!(matches!(swap, Swap::Written(_)), "as on S3, it cannot tell them apart");
}

#[tokio::test(start_paused = true)]
async fn times_are_the_servers_and_rounded_down() {
    let traits = Traits { list_resolution: Duration::from_millis(1), ..Traits::s3() };
    let world = World::new(1, traits);
    let line = world.line();
    assert_eq!(line.told_time(), None);
    let passed = Duration::from_micros(2_345_678);
    world.env.clock().sleep(passed).await;
    line.put("a", b"1").await.unwrap();
    let start = Timestamp::from_second(START).unwrap();
    let there = world.bucket.times()["a"].duration_since(start);
    assert!(there >= passed.try_into().unwrap(), "{there:?}");
    let whole = line.head("a").await.unwrap().unwrap().modified;
    assert_eq!(whole, start + seconds(2));
    let listed = line.list(List::below("")).next(9).await.unwrap().files.remove(0);
    assert_eq!(listed.head.modified, start + Duration::from_millis(2346));
    assert_eq!(line.told_time(), Some((whole, world.env.monotonic())));
}

#[tokio::test(start_paused = true)]
async fn the_time_costs_a_write_and_a_look() {
    let (world, tap) = (World::still(), Arc::new(History::default()));
    let line = world.line_of(tap.clone());
    world.env.clock().sleep(seconds(5)).await;
    assert_eq!(line.now().await.unwrap().as_second(), START + 5);
    let heard = tap.take();
    assert!(heard[0].starts_with("put tmp/now-") && heard[2].starts_with("head tmp/now-"));
    assert_eq!(line.requests().keys().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_page_has_a_thousand_names_and_a_removal_too() {
    let world = World::still();
    let line = world.line();
    let names: Vec<String> = (0..2500).map(|n| format!("n/{n:04}")).collect();
    for name in &names {
        line.put(name, b"").await.unwrap();
    }
    let (mut listing, mut pages) = (line.list(List::below("n/")), Vec::new());
    loop {
        let part = listing.next(usize::MAX).await.unwrap();
        pages.push(part.files.len());
        if part.end {
            break;
        }
    }
    assert_eq!(pages, [1000, 1000, 500]);
    assert!(listing.next(1).await.unwrap().end);
    line.remove(&names, seconds(60)).await.unwrap();
    assert!(world.bucket.files().is_empty());
    let counts = line.requests();
    let sent = |kind| counts[&kind].sent;
    assert_eq!((sent(RequestKind::List), sent(RequestKind::Delete)), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn listings_may_lag_and_nothing_else_does() {
    let world = World::new(2, Traits { listing_lag: seconds(5), ..Traits::s3() });
    let line = world.line();
    line.put("old", b"1").await.unwrap();
    line.put("gone", b"1").await.unwrap();
    world.env.clock().sleep(seconds(6)).await;
    line.put("old", b"12").await.unwrap();
    line.put("new", b"1").await.unwrap();
    line.remove(&["gone".to_owned()], Duration::MAX).await.unwrap();
    let listed = async || {
        let part = line.list(List::below("")).next(100).await.unwrap();
        let files = part.files.iter().map(|file| format!("{}{}", file.name, file.head.size));
        files.collect::<Vec<_>>().join(" ")
    };
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        seen.insert(listed().await);
        assert_eq!(line.head("old").await.unwrap().unwrap().size, 2);
        assert!(line.head("gone").await.unwrap().is_none());
    }
    assert_eq!(seen.len(), 8, "each of three is old or new: {seen:?}");
    world.env.clock().sleep(seconds(6)).await;
    assert_eq!(listed().await, "new1 old2");
}

#[tokio::test(start_paused = true)]
async fn too_much_is_not_read() {
    let world = World::still();
    let (line, large) = (world.line(), vec![0; (1 << 20) + 1]);
    line.put("queue.json", &large).await.unwrap();
    line.put("completed/00/a.json", &large).await.unwrap();
    let error = line.get("queue.json", None).await.unwrap_err();
    assert_eq!(error.kind(), dfq::ErrorKind::Damaged);
    assert_eq!(line.get("queue.json", Some(0..9)).await.unwrap().unwrap().bytes.len(), 9);
    assert!(line.get("completed/00/a.json", None).await.unwrap().is_some());
}
