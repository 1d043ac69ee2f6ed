//! Calls that fail in a way that passes, and answers that are lost.

use std::sync::Arc;
use std::time::Duration;

use dfq::clock::{ManualClock, SeededChance};
use dfq::conformance::objects::{trial, written};
use dfq::store::faulty::{Faulty, Mishap};
use dfq::store::keys::{KeyTree, Manner};
use dfq::store::memory::MemoryObjects;
use dfq::store::objects::{List, Swap};
use dfq::store::retrying::Retrying;
use dfq::store::{Created, Folders as _, Objects, ObjectsExt as _, Updated};
use dfq::{Env, ErrorKind};

use super::memory;

fn faulty() -> (Faulty<MemoryObjects>, Retrying<Faulty<MemoryObjects>>) {
    let faulty = Faulty::new(memory());
    (faulty.clone(), Retrying::new(faulty, Env::system()))
}

#[tokio::test]
async fn a_swap_whose_answer_was_lost_is_recognised() {
    let (faulty, retrying) = faulty();
    let name = trial("x");
    faulty.arm([(0, Mishap::LosesAnswer)]);
    let first = written(retrying.swap(&name, None, b"first").await.unwrap());
    faulty.arm([(0, Mishap::Fails), (1, Mishap::LosesAnswer)]);
    let second = written(retrying.swap(&name, Some(&first), b"second").await.unwrap());
    assert_eq!(faulty.calls(), ["swap", "swap", "swap", "load"]);
    assert_eq!(retrying.load(&name).await.unwrap().unwrap().head.version, second);
    // Another's write is not taken for ours.
    faulty.arm([]);
    written(faulty.swap(&name, Some(&second), b"another's").await.unwrap());
    faulty.arm([(0, Mishap::Fails)]);
    assert_eq!(retrying.swap(&name, Some(&second), b"mine").await.unwrap(), Swap::Lost);
    assert_eq!(faulty.calls(), ["swap", "swap", "load"]);
}

#[tokio::test]
async fn only_what_passes_is_tried_again() {
    let (faulty, retrying) = faulty();
    faulty.arm([(0, Mishap::Fails), (1, Mishap::LosesAnswer)]);
    assert_eq!(retrying.create("x", b"x").await.unwrap(), Created::Exists);
    faulty.arm([(0, Mishap::Unsupported)]);
    let error = retrying.swap(&trial("y"), None, b"y").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(faulty.calls(), ["swap"]);
    faulty.arm((0..100).map(|call| (call, Mishap::Fails)));
    let error = retrying.get("x", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(faulty.calls().len(), 6);
    faulty.arm([(1, Mishap::Fails)]);
    for name in ["a", "b", "c"] {
        retrying.put(name, b"").await.unwrap();
    }
    let mut listing = retrying.list(List::below(""));
    faulty.arm([(0, Mishap::Fails), (2, Mishap::Fails)]);
    let (one, two) = (listing.next(2).await.unwrap(), listing.next(2).await.unwrap());
    let names: Vec<_> = one.files.into_iter().chain(two.files).map(|file| file.name).collect();
    assert_eq!(names, ["a", "b", "c", "x"]);
}

fn tree(faulty: &Faulty<MemoryObjects>, env: Env) -> KeyTree<Faulty<MemoryObjects>> {
    let manner = Manner { time_resolution: Duration::from_secs(1), removes_together: false };
    KeyTree::over(faulty.clone(), env, manner)
}

/// An update never writes without its condition, and a removal of what was written is repeated only while that
/// is there.
#[tokio::test]
async fn an_update_is_strict() {
    let faulty = Faulty::new(memory());
    let tree = tree(&faulty, Env::system());
    tree.create("record", b"old").await.unwrap();
    faulty.arm([(1, Mishap::Unsupported)]);
    let error = tree.update("record", &|_| Some(b"new".to_vec())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(faulty.calls(), ["load", "swap"]);
    assert_eq!(tree.read("record").await.unwrap().unwrap().bytes, b"old");

    let mark = || Some(b"mark".to_vec());
    faulty.arm([]);
    let updated = tree.update("record", &|_| mark()).await.unwrap();
    assert_eq!(updated, Updated::Written(b"mark".to_vec()));
    faulty.arm([(0, Mishap::Fails)]);
    assert!(tree.remove_if_unchanged("record", b"mark", Duration::MAX).await.unwrap());
    assert_eq!(faulty.calls(), ["remove", "get", "remove"]);
    assert_eq!(tree.read("record").await.unwrap(), None);

    tree.create("record", b"mark").await.unwrap();
    faulty.arm([(0, Mishap::LosesAnswer)]);
    assert!(tree.remove_if_unchanged("record", b"mark", Duration::MAX).await.unwrap());
    assert_eq!(
        faulty.calls(),
        ["remove", "get"],
        "it is not sent again: the name may have another use"
    );
}

/// Nothing is removed after its deadline, also if the first try was before it.
#[tokio::test]
async fn a_removal_that_is_late_is_left_out() {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(7)));
    let faulty = Faulty::new(memory());
    let tree = tree(&faulty, env);
    tree.create("record", b"mark").await.unwrap();
    faulty.arm([(0, Mishap::Fails)]);
    let removing = tokio::spawn({
        let tree = tree.clone();
        async move { tree.remove_if_unchanged("record", b"mark", Duration::from_secs(60)).await }
    });
    while faulty.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    // It waits for its second try now, or is about to.
    tokio::task::yield_now().await;
    clock.advance(Duration::from_secs(61));
    assert!(!removing.await.unwrap().unwrap());
    assert_eq!(faulty.calls(), ["remove", "get"]);
    assert!(tree.read("record").await.unwrap().is_some());
}
