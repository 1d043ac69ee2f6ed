//! A swap in a folder that is stopped at every call, fails at every call, or is overtaken in the middle.

use std::sync::mpsc;
use std::time::Duration;

use dfq::clock::{SkippingClock, SystemChance};
use dfq::conformance::faulty::{FaultyFolder, faulty_folder};
use dfq::conformance::objects::{trial, written};
use dfq::store::Objects;
use dfq::store::fs::fault::{Fault, Lacks};
use dfq::store::objects::Swap;
use dfq::{Env, ErrorKind};
use futures::executor::block_on;
use rustix::io::Errno;

use super::{Folder, LIKE_NFS, LIKE_SMB, target_dir};

const KINDS: [(Lacks, bool); 3] = [
    (Lacks { unnamed: false, links: false, rename_new: false }, true),
    (LIKE_NFS, false),
    (LIKE_SMB, false),
];

/// The calls that a swap makes: the first of a name, and the next.
fn calls_of_swaps(folder: &Folder) -> [usize; 2] {
    let (store, name) = (folder.store(), trial("counted"));
    let first = written(block_on(store.swap(&name, None, b"first")).unwrap());
    let born = store.sys().calls().len();
    store.sys().arm(None);
    written(block_on(store.swap(&name, Some(&first), b"second")).unwrap());
    [born, store.sys().calls().len()]
}

/// Every way in which something can go wrong at this call.
fn faults(at: usize) -> [Fault; 7] {
    [
        Fault::StopBefore(at),
        Fault::StopAfter(at),
        Fault::Tear(at),
        Fault::Repeat(at),
        Fault::Fail(at, Errno::NOSPC),
        Fault::Fail(at, Errno::IO),
        Fault::Fail(at, Errno::NOENT),
    ]
}

/// Afterwards the content is the old or the new one, what was promised is so, and it can be swapped again.
fn check(folder: &Folder, old: Option<&[u8]>, new: &[u8], answer: dfq::Result<Swap>, what: &str) {
    let (store, name) = (folder.store(), trial("x"));
    let there = block_on(store.load(&name)).unwrap();
    let bytes = there.as_ref().map(|there| &there.bytes[..]);
    assert!(bytes == old || bytes == Some(new), "{what}: {bytes:?}");
    match answer {
        Ok(Swap::Written(version)) => {
            assert_eq!(bytes, Some(new), "{what}: it was said to be written");
            assert_eq!(there.as_ref().map(|it| &it.head.version), Some(&version), "{what}");
        }
        Ok(Swap::Lost) => panic!("{what}: nobody else was there to lose to"),
        Err(_) => {}
    }
    let version = there.map(|there| there.head.version);
    let next = block_on(store.swap(&name, version.as_ref(), b"after")).unwrap();
    written(next);
    assert_eq!(block_on(store.load(&name)).unwrap().unwrap().bytes, b"after", "{what}");
}

#[test]
fn a_first_swap_is_stopped_at_every_call() {
    for (lacks, local) in KINDS {
        let [calls, _] = calls_of_swaps(&Folder::new(&target_dir(), lacks, local));
        assert!(calls > 5, "{calls} calls");
        for fault in (0..calls).flat_map(faults) {
            let folder = Folder::new(&target_dir(), lacks, local);
            let store = folder.store();
            store.sys().arm(Some(fault));
            let answer = block_on(store.swap(&trial("x"), None, b"first"));
            let what = format!("{fault:?} of {:?} with {lacks:?}", store.sys().calls());
            check(&folder, None, b"first", answer, &what);
        }
    }
}

#[test]
fn a_swap_is_stopped_at_every_call() {
    for (lacks, local) in KINDS {
        let [_, calls] = calls_of_swaps(&Folder::new(&target_dir(), lacks, local));
        assert!(calls > 4, "{calls} calls");
        for fault in (0..calls).flat_map(faults) {
            let folder = Folder::new(&target_dir(), lacks, local);
            let store = folder.store();
            let first = written(block_on(store.swap(&trial("x"), None, b"first")).unwrap());
            store.sys().arm(Some(fault));
            let answer = block_on(store.swap(&trial("x"), Some(&first), b"second"));
            let what = format!("{fault:?} of {:?} with {lacks:?}", store.sys().calls());
            check(&folder, Some(b"first"), b"second", answer, &what);
        }
    }
}

/// Runs on another thread, for on this one a call is under way.
fn elsewhere(act: impl FnOnce() + Send + 'static) {
    std::thread::spawn(act).join().unwrap();
}

/// Before every call of a swap, others swap twice, so that what was read is superseded and marked. Either the swap
/// has lost and is nowhere in the history, or it has won and the others went on from it.
#[test]
fn a_swap_is_overtaken_at_every_call() {
    for (lacks, local) in KINDS {
        let [_, calls] = calls_of_swaps(&Folder::new(&target_dir(), lacks, local));
        for at in 0..calls {
            let folder = Folder::new(&target_dir(), lacks, local);
            let (store, others) = (folder.store(), folder.store());
            let first = written(block_on(store.swap(&trial("x"), None, b"first")).unwrap());
            let (tell, told) = mpsc::channel();
            let overtake = move || {
                for n in 0..2 {
                    let got = block_on(others.load(&trial("x"))).unwrap().unwrap();
                    let next = [&got.bytes[..], format!("+{n}").as_bytes()].concat();
                    written(
                        block_on(others.swap(&trial("x"), Some(&got.head.version), &next)).unwrap(),
                    );
                }
                tell.send(()).unwrap();
            };
            store.sys().before_change(at, || elsewhere(overtake));
            let answer = block_on(store.swap(&trial("x"), Some(&first), b"mine")).unwrap();
            told.try_recv().unwrap_or_else(|_| panic!("nobody came before call {at}"));
            let got = block_on(folder.store().load(&trial("x"))).unwrap().unwrap();
            let history = String::from_utf8(got.bytes).unwrap();
            let what = format!("before call {at} with {lacks:?}: {history}");
            match answer {
                Swap::Written(_) => assert_eq!(history, "mine+0+1", "{what}"),
                Swap::Lost => assert_eq!(history, "first+0+1", "{what}"),
            }
        }
    }
}

/// The number of the call that links a version, once a store knows what its filesystem can do.
fn call_that_links(store: &FaultyFolder) -> usize {
    let name = trial("probe");
    let one = written(block_on(store.swap(&name, None, b"1")).unwrap());
    store.sys().arm(None);
    written(block_on(store.swap(&name, Some(&one), b"2")).unwrap());
    store.sys().calls().iter().position(|call| call.starts_with("link")).unwrap()
}

/// A writer stalls right after it has linked its version. Others go on from it for so long that what it had read is
/// marked. It has won all the same, and nothing that was built on it is undone.
#[test]
fn a_slow_winner_has_won() {
    let folder = Folder::new(&target_dir(), Lacks::default(), true);
    let (slow, others, name) = (folder.store(), folder.store(), trial("x"));
    let first = written(block_on(slow.swap(&name, None, b"first 0")).unwrap());
    let link = call_that_links(&slow);
    let go_on = move || {
        let name = trial("x");
        for n in 1..=130 {
            let got = block_on(others.load(&name)).unwrap().unwrap();
            let text = String::from_utf8(got.bytes).unwrap();
            let next = format!("{} {n}", text.split_once(' ').unwrap().0);
            let swap = others.swap(&name, Some(&got.head.version), next.as_bytes());
            written(block_on(swap).unwrap());
        }
    };
    slow.sys().before_change(link + 1, || elsewhere(go_on));
    let swap = block_on(slow.swap(&name, Some(&first), b"mine 0")).unwrap();
    assert!(!slow.sys().still_waiting(), "the others came");
    assert!(matches!(swap, Swap::Written(_)));
    assert_eq!(block_on(folder.store().load(&name)).unwrap().unwrap().bytes, b"mine 130");
    let two = std::fs::read(folder.dir.path().join("versions/x/2")).unwrap();
    assert_eq!(two, b"superseded\n", "its own version is kept as a mark");
}

/// A writer that sleeps for days before it links finds the names freed, and has lost.
#[test]
fn a_writer_that_slept_for_days_has_lost() {
    let dir = tempfile::tempdir_in(target_dir()).unwrap();
    let clock = SkippingClock::default();
    let env = || Env::new(std::sync::Arc::new(clock.clone()), std::sync::Arc::new(SystemChance));
    let store = || faulty_folder(dir.path(), &clock, env()).unwrap();
    let (late, name) = (store(), trial("x"));
    let first = written(block_on(late.swap(&name, None, b"first")).unwrap());
    let (others, skipping) = (store(), clock.clone());
    let mut version = first.clone();
    let days = move || {
        for n in 0..400 {
            let text = format!("n{n}");
            version = written(
                block_on(others.swap(&trial("x"), Some(&version), text.as_bytes())).unwrap(),
            );
            if n == 200 {
                skipping.skip(Duration::from_secs(3 * 24 * 3600), Duration::ZERO);
                version = block_on(others.load(&trial("x"))).unwrap().unwrap().head.version;
            }
        }
    };
    // Just before it links, after the file was written and synced.
    let link = call_that_links(&late);
    late.sys().before_change(link, || elsewhere(days));
    let swap = block_on(late.swap(&name, Some(&first), b"late")).unwrap();
    assert!(!late.sys().still_waiting(), "the others came");
    assert_eq!(swap, Swap::Lost);
    let got = block_on(store().load(&name)).unwrap().unwrap();
    assert_eq!(got.bytes, b"n399");
    let names = std::fs::read_dir(dir.path().join("versions/x")).unwrap();
    let mut numbers: Vec<u64> =
        names.map(|it| it.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(
        numbers[0] > 2,
        "old marks were freed, and what was linked late was taken back: {numbers:?}"
    );
    assert!(numbers.len() >= 64);
}

/// What was read more than an hour ago is not relied on.
#[test]
fn what_was_read_long_ago_is_not_swapped() {
    let dir = tempfile::tempdir_in(target_dir()).unwrap();
    let clock = SkippingClock::default();
    let env = Env::new(std::sync::Arc::new(clock.clone()), std::sync::Arc::new(SystemChance));
    let (store, name) = (faulty_folder(dir.path(), &clock, env).unwrap(), trial("x"));
    let first = written(block_on(store.swap(&name, None, b"first")).unwrap());
    clock.skip(Duration::from_secs(3601), Duration::ZERO);
    assert_eq!(block_on(store.swap(&name, Some(&first), b"late")).unwrap(), Swap::Lost);
    let again = block_on(store.load(&name)).unwrap().unwrap();
    assert_eq!(again.head.version, first);
    written(block_on(store.swap(&name, Some(&again.head.version), b"second")).unwrap());
}

/// Something else where the versions should be is reported, not written over.
#[test]
fn a_folder_without_versions_is_damaged() {
    let folder = Folder::new(&target_dir(), Lacks::default(), true);
    std::fs::create_dir_all(folder.dir.path().join("versions/x")).unwrap();
    let error = block_on(folder.store().load(&trial("x"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}
