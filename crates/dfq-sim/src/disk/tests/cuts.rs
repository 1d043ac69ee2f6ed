//! What a power cut leaves.

use std::collections::{BTreeMap, BTreeSet};

use dfq::store::fs::Sys;

use super::*;
use crate::disk::Order;

const ORDERS: [Order; 3] = [Order::Any, Order::Journal, Order::AtOnce];

fn with_order(order: Order) -> World {
    World::new(Traits { order, ..Traits::default() })
}

fn cut(world: &World, seed: u64) -> BTreeMap<String, Vec<u8>> {
    world.disk.power_cut(&mut chance(seed));
    world.check();
    world.disk.files()
}

/// A folder published as the library does it, and a record linked as the library does it.
fn publish(sys: &DiskSys) {
    let root = sys.root();
    sys.mkdir(&root, "tmp").unwrap();
    sys.mkdir(&root, "pending").unwrap();
    sys.sync_dir(&root, ".").unwrap();
    sys.mkdir(&root, "tmp/x").unwrap();
    let task = put(sys, "tmp/x/task", b"the task");
    sys.sync_file(&task).unwrap();
    sys.sync_dir(&root, "tmp/x").unwrap();
    sys.rename_new(&root, "tmp/x", &root, "pending/x").unwrap();
    sys.sync_dir(&root, "pending").unwrap();
    let record = sys.create_unnamed(&root, "pending").unwrap();
    sys.write(&record, b"the record").unwrap();
    sys.sync_file(&record).unwrap();
    sys.link_file(&record, &root, "pending/record").unwrap();
    sys.sync_dir(&root, "pending").unwrap();
}

#[test]
fn what_was_synced_is_there() {
    for order in ORDERS {
        for seed in 0..1000 {
            let world = with_order(order);
            let (sys, root) = (world.sys(), world.disk.root());
            publish(&sys);
            // Things that were not, around it.
            drop(put(&sys, "pending/x/lease", b"1"));
            sys.rename(&root, "pending/record", &root, "pending/moved").unwrap();
            sys.rename(&root, "pending/moved", &root, "pending/record").unwrap();
            drop(put(&sys, "tmp/y", b"2"));
            let files = cut(&world, seed);
            assert_eq!(files["pending/x/task"], b"the task", "seed {seed}");
            let record = ["pending/record", "pending/moved"].map(|path| files.get(path));
            assert_eq!(record.into_iter().flatten().collect::<Vec<_>>(), [b"the record"]);
            assert!(!files.contains_key("tmp/x/task"));
        }
    }
}

#[test]
fn a_rename_is_never_half() {
    for order in [Order::Any, Order::Journal] {
        let mut ends = BTreeSet::new();
        for seed in 0..300 {
            let world = with_order(order);
            let (sys, root) = (world.sys(), world.disk.root());
            publish(&sys);
            sys.mkdir(&root, "failed").unwrap();
            sys.sync_dir(&root, ".").unwrap();
            sys.rename(&root, "pending/x", &root, "failed/x").unwrap();
            sys.rename(&root, "pending/record", &root, "failed/record").unwrap();
            let files = cut(&world, seed);
            assert_eq!(files.len(), 2, "seed {seed}: {:?}", files.keys());
            ends.insert(files.into_keys().collect::<Vec<_>>());
        }
        // On their own, or in their order.
        assert_eq!(ends.len(), if order == Order::Any { 4 } else { 3 }, "{ends:?}");
    }
}

#[test]
fn what_was_not_synced_is_lost_and_kept() {
    for order in [Order::Any, Order::Journal] {
        let mut contents = BTreeSet::new();
        let mut touched = BTreeSet::new();
        for seed in 0..300 {
            let world = with_order(order);
            let (sys, root) = (world.sys(), world.disk.root());
            drop(put(&sys, "old", b"old"));
            world.disk.sync();
            world.clock.advance(Duration::from_secs(1));
            sys.unlink(&root, "old").unwrap();
            sys.mkdir(&root, "a").unwrap();
            drop(put(&sys, "a/new", b"new"));
            sys.touch(&root, ".").unwrap();
            let files = cut(&world, seed);
            touched.insert(sys.stat(&root, ".").unwrap().modified);
            contents.insert((files.contains_key("old"), files.get("a/new").cloned()));
        }
        let new: BTreeSet<_> = contents.iter().filter_map(|(_, new)| new.as_deref()).collect();
        let all: [&[u8]; 6] = [b"", b"\0\0\0", b"n", b"ne", b"new", b""];
        assert_eq!(new, all.into_iter().collect());
        let without = |old| contents.contains(&(old, None));
        assert!(without(true) && without(false), "{contents:?}");
        assert_eq!(contents.iter().any(|(old, new)| *old && new.is_some()), order == Order::Any);
        assert_eq!(touched.len(), 2);
    }
}

/// A content that was synced stays whole when more was written to the file.
#[test]
fn a_synced_beginning_is_kept() {
    for seed in 0..100 {
        let world = with_order(Order::Any);
        let (sys, root) = (world.sys(), world.disk.root());
        let file = put(&sys, "a", b"begun");
        sys.sync_file(&file).unwrap();
        sys.sync_dir(&root, ".").unwrap();
        sys.write(&file, b" and more").unwrap();
        let bytes = &cut(&world, seed)["a"];
        assert!(bytes.starts_with(b"begun") && bytes.len() <= 14, "{bytes:?}");
    }
}

/// The file is synced, its name is not.
#[test]
fn a_name_needs_a_sync_of_its_folder() {
    let lost = |seed| {
        let world = with_order(Order::Any);
        let sys = world.sys();
        let file = put(&sys, "a", b"1");
        sys.sync_file(&file).unwrap();
        let files = cut(&world, seed);
        assert!(files.values().all(|bytes| bytes == b"1"));
        files.is_empty()
    };
    let lost = (0..200).filter(|seed| lost(*seed)).count();
    assert!((20..180).contains(&lost), "{lost}");
}

/// Whoever syncs the removal of a folder has synced what was moved out of it before.
#[test]
fn a_removed_folder_takes_nothing_with_it() {
    for seed in 0..300 {
        let world = with_order(Order::Any);
        let (sys, root) = (world.sys(), world.disk.root());
        for folder in ["a", "a/due", "b"] {
            sys.mkdir(&root, folder).unwrap();
        }
        drop(put(&sys, "a/due/x", b"1"));
        world.disk.sync();
        sys.rename(&root, "a/due/x", &root, "b/x").unwrap();
        sys.rmdir(&root, "a/due").unwrap();
        if seed % 2 == 0 {
            sys.sync_dir(&root, "a").unwrap();
        }
        let files = cut(&world, seed);
        let moved = files.contains_key("b/x");
        assert!(moved != files.contains_key("a/due/x"), "seed {seed}: {:?}", files.keys());
        assert!(moved || seed % 2 == 1);
        assert!(moved || sys.exists(&root, "a/due").unwrap());
    }
}

/// Any calls, any syncs, any number of cuts: the tree stays whole, and what everybody sees after a cut is all saved.
#[test]
fn cuts_leave_a_whole_tree() {
    for order in ORDERS {
        for seed in 0..150 {
            let world = World::seeded(Traits { order, ..Traits::default() }, seed);
            let (sys, root) = (world.sys(), world.disk.root());
            let mut chance = chance(seed);
            for _ in 0..8 {
                random_changes(&sys, &mut chance);
                world.disk.power_cut(&mut chance);
                world.check();
                check_names(&world);
                let files = world.disk.files();
                world.disk.power_cut(&mut chance);
                assert_eq!(world.disk.files(), files, "a cut with nothing to lose");
                random_changes(&sys, &mut chance);
                world.disk.sync();
                let files = world.disk.files();
                world.disk.power_cut(&mut chance);
                assert_eq!(world.disk.files(), files, "a cut after a sync of everything");
                let _ = names(&sys, &root, ".");
            }
        }
    }
}

/// Every entry leads to a node that knows it.
fn check_names(world: &World) {
    let volume = lock(&world.disk.volume);
    let mut entries = BTreeSet::new();
    for (dir, node) in &volume.nodes {
        for (name, ino) in node.body.entries().into_iter().flatten() {
            assert!(volume.nodes[ino].names.contains(&(*dir, name.clone())));
            entries.insert((*ino, *dir, name.clone()));
        }
    }
    for (ino, node) in &volume.nodes {
        assert!(node.names.len() <= 1 || !node.is_folder());
        for (dir, name) in &node.names {
            assert!(entries.contains(&(*ino, *dir, name.clone())));
        }
    }
}

fn random_changes(sys: &DiskSys, chance: &mut impl FnMut() -> u64) {
    let paths = ["a", "b", "c", "a/a", "a/b", "b/a", "b/b", "a/a/a", "b/a/a", "b/a/b"];
    let root = sys.root();
    for _ in 0..40 {
        let (roll, path, other) = (chance() % 9, chance() % 10, chance() % 10);
        let (path, other) = (paths[path as usize], paths[other as usize]);
        // What fails, fails.
        match roll {
            0 | 1 => _ = sys.mkdir(&root, path),
            2 => _ = sys.create(&root, path).map(|file| sys.write(&file, path.as_bytes())),
            3 => _ = sys.rename(&root, path, &root, other),
            4 => _ = sys.rename_new(&root, path, &root, other),
            5 => _ = sys.unlink(&root, path),
            6 => _ = sys.rmdir(&root, path),
            7 => _ = sys.link(path, &root, other, &root),
            _ => _ = sys.sync_dir(&root, path),
        }
    }
}

/// After a while, everything is on the disk by itself.
#[test]
fn old_changes_are_written_back() {
    let world = with_order(Order::Any);
    let sys = world.sys();
    drop(put(&sys, "a", b"1"));
    world.clock.advance(Duration::from_secs(31));
    drop(put(&sys, "b", b"2"));
    for seed in 0..20 {
        assert_eq!(cut(&world, seed)["a"], b"1");
    }
}

/// Nodes that nothing leads to are forgotten.
#[test]
fn memory_is_bounded() {
    let world = with_order(Order::Any);
    let (sys, root) = (world.sys(), world.disk.root());
    for round in 0..20_000 {
        drop(put(&sys, "a", b"1"));
        sys.unlink(&root, "a").unwrap();
        if round % 100 == 0 {
            world.clock.advance(Duration::from_secs(1));
        }
    }
    let volume = lock(&world.disk.volume);
    assert!(volume.nodes.len() < 10_000, "{}", volume.nodes.len());
    assert!(volume.journal.len() < 10_000, "{}", volume.journal.len());
}
