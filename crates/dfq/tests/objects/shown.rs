//! The content of a swapped name under its plain name: stopped at every call, overtaken, and changed by hand.

use dfq::conformance::objects::{shown, written};
use dfq::store::Objects;
use dfq::store::fs::fault::{Fault, Lacks};
use dfq::store::objects::{List, Swap};
use futures::executor::block_on;
use rustix::io::Errno;

use super::{Folder, LIKE_NFS, LIKE_SMB, target_dir};

/// In memory where there is room: hundreds of folders are made, and each is synced.
fn new_folder(lacks: Lacks, local: bool) -> Folder {
    let memory = std::path::Path::new("/dev/shm");
    match tempfile::tempdir_in(memory) {
        Ok(_) => Folder::new(memory, lacks, local),
        Err(_) => Folder::new(&target_dir(), lacks, local),
    }
}

const NAME: &str = "shards/5e.usv";

const KINDS: [(Lacks, bool); 3] = [
    (Lacks { unnamed: false, links: false, rename_new: false }, true),
    (LIKE_NFS, false),
    (LIKE_SMB, false),
];

fn calls_of_swaps(lacks: Lacks, local: bool) -> [usize; 2] {
    let folder = new_folder(lacks, local);
    let (store, name) = (folder.store(), shown(NAME));
    let first = written(block_on(store.swap(&name, None, b"first")).unwrap());
    let born = store.sys().calls().len();
    store.sys().arm(None);
    written(block_on(store.swap(&name, Some(&first), b"second")).unwrap());
    [born, store.sys().calls().len()]
}

fn plain(folder: &Folder) -> Option<Vec<u8>> {
    block_on(folder.store().get(NAME, None)).unwrap().map(|got| got.bytes)
}

fn aside(folder: &Folder) -> Vec<Vec<u8>> {
    let store = folder.store();
    let part = block_on(store.list(List::below("aside/")).next(100)).unwrap();
    let read = |name: &str| block_on(store.get(name, None)).unwrap().unwrap().bytes;
    part.files.iter().map(|file| read(&file.name)).collect()
}

/// Another process goes on. Afterwards the plain name shows what counts, and nothing of ours was taken for anything else.
fn check(folder: &Folder, what: &str) {
    let (store, name) = (folder.store(), shown(NAME));
    let there = block_on(store.load(&name)).unwrap().map(|got| got.head.version);
    written(block_on(store.swap(&name, there.as_ref(), b"after")).unwrap());
    assert_eq!(plain(folder).as_deref(), Some(&b"after"[..]), "{what}");
    assert_eq!(aside(folder), Vec::<Vec<u8>>::new(), "{what}");
}

#[test]
fn a_swap_that_is_shown_is_stopped_at_every_call() {
    for (lacks, local) in KINDS {
        let [born, next] = calls_of_swaps(lacks, local);
        for (begun, calls) in [(false, born), (true, next)] {
            for at in 0..calls {
                for fault in [
                    Fault::StopBefore(at),
                    Fault::StopAfter(at),
                    Fault::Repeat(at),
                    Fault::Fail(at, Errno::NOSPC),
                    Fault::Fail(at, Errno::IO),
                    Fault::Fail(at, Errno::NOENT),
                ] {
                    let folder = new_folder(lacks, local);
                    let (store, name) = (folder.store(), shown(NAME));
                    let swap = |version, bytes| block_on(store.swap(&name, version, bytes));
                    let first = begun.then(|| written(swap(None, b"first").unwrap()));
                    store.sys().arm(Some(fault));
                    let _ = swap(first.as_ref(), b"second");
                    let what = format!("{fault:?} of {:?} with {lacks:?}", store.sys().calls());
                    check(&folder, &what);
                }
            }
        }
    }
}

#[test]
fn what_somebody_put_under_the_plain_name_is_kept() {
    for (lacks, local) in KINDS {
        let folder = new_folder(lacks, local);
        let (store, name) = (folder.store(), shown(NAME));
        let first = written(block_on(store.swap(&name, None, b"first")).unwrap());
        // As an editor does: a new file, renamed.
        block_on(store.put(NAME, b"by hand")).unwrap();
        let swapped = block_on(folder.store().swap(&name, Some(&first), b"second")).unwrap();
        let second = written(swapped);
        assert_eq!(plain(&folder).as_deref(), Some(&b"second"[..]));
        assert_eq!(aside(&folder), [b"by hand".to_vec()]);
        // One that is removed is shown again.
        std::fs::remove_file(folder.dir.path().join(NAME)).unwrap();
        written(block_on(store.swap(&name, Some(&second), b"third")).unwrap());
        assert_eq!(plain(&folder).as_deref(), Some(&b"third"[..]));
        assert_eq!(aside(&folder).len(), 1);
    }
}

/// A file that was there before is replaced only by its own bytes.
#[test]
fn a_file_that_was_there_before_is_taken_over_with_its_bytes() {
    for (lacks, local) in KINDS {
        let folder = new_folder(lacks, local);
        let (store, name) = (folder.store(), shown(NAME));
        block_on(store.put(NAME, b"as it was")).unwrap();
        let first = written(block_on(store.swap(&name, None, b"as it was")).unwrap());
        let swapped = block_on(store.swap(&name, Some(&first), b"second")).unwrap();
        assert!(matches!(swapped, Swap::Written(_)));
        assert_eq!(plain(&folder).as_deref(), Some(&b"second"[..]));
        assert_eq!(aside(&folder), Vec::<Vec<u8>>::new());
    }
}

#[test]
fn many_writers_leave_the_last_content_to_be_seen() {
    for (lacks, local) in KINDS {
        let folder = new_folder(lacks, local);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let folder = &folder;
                scope.spawn(move || {
                    let (store, name) = (folder.store(), shown(NAME));
                    for n in 0..30 {
                        let there = block_on(store.load(&name)).unwrap();
                        let version = there.map(|got| got.head.version);
                        let bytes = format!("{writer} {n}");
                        block_on(store.swap(&name, version.as_ref(), bytes.as_bytes())).unwrap();
                    }
                });
            }
        });
        let last = block_on(folder.store().load(&shown(NAME))).unwrap().unwrap().bytes;
        assert_eq!(plain(&folder), Some(last));
        // What two of them replaced at the same moment may have been taken for somebody else's: kept, never lost.
        let left = aside(&folder).len();
        assert!(left < 20, "{left} files were set aside");
    }
}
