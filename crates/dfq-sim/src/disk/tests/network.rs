//! Machines that see the disk over the network.

use rustix::io::Errno;

use super::*;

const LAG: Duration = Duration::from_secs(3);

/// Two clients, and the disk that they share.
fn clients() -> (World, DiskSys, DiskSys) {
    let world = World::new(Traits::default());
    let [one, two] = [1, 2].map(|id| world.on(Mount::network(id, LAG)));
    (world, one, two)
}

#[test]
fn what_was_missing_is_missed_for_a_while() {
    let (world, one, two) = clients();
    let root = world.disk.root();
    assert_eq!(two.exists(&root, "a"), Ok(false));
    drop(put(&one, "a", b"1"));
    assert_eq!(one.exists(&root, "a"), Ok(true));
    assert_eq!(two.exists(&root, "a"), Ok(false));
    assert_eq!(two.read(&root, "a", 9).unwrap_err(), Errno::NOENT);
    world.clock.advance(LAG);
    assert_eq!(two.exists(&root, "a"), Ok(true));
    assert_eq!(two.read(&root, "a", 9).unwrap().0, b"1");
}

#[test]
fn to_open_or_list_a_folder_or_to_change_it_shows_what_is_there() {
    for way in 0..4 {
        let (world, one, two) = clients();
        let root = world.disk.root();
        assert_eq!(two.exists(&root, "a"), Ok(false));
        drop(put(&one, "a", b"1"));
        assert_eq!(two.exists(&root, "a"), Ok(false));
        match way {
            0 => drop(two.open_dir(&root, ".").unwrap()),
            1 => assert_eq!(names(&two, &root, "."), ["a"]),
            2 => two.mkdir(&root, "b").unwrap(),
            _ => assert_eq!(two.mkdir(&root, "a"), Err(Errno::EXIST)),
        }
        assert_eq!(two.exists(&root, "a"), Ok(true), "way {way}");
    }
    // To hold a folder does not.
    let (world, one, two) = clients();
    let root = world.disk.root();
    assert_eq!(two.exists(&root, "a"), Ok(false));
    drop(put(&one, "a", b"1"));
    let held = two.hold_dir(&root, ".").unwrap();
    assert_eq!(two.exists(&held, "a"), Ok(false));
}

/// Who links or renames a file that is still open shows it without its content.
#[test]
fn what_is_written_is_seen_when_it_is_synced_or_closed() {
    for way in 0..4 {
        let (world, one, two) = clients();
        let root = world.disk.root();
        let file = put(&one, "a", b"1");
        assert_eq!(two.read(&root, "a", 9).unwrap().0, b"");
        match way {
            0 => one.sync_file(&file).unwrap(),
            1 => drop(file),
            2 => assert_eq!(one.file_meta(&file).unwrap().size, 1),
            _ => assert_eq!(one.read(&root, "a", 9).unwrap().0, b"1"),
        }
        assert_eq!(two.read(&root, "a", 9).unwrap().0, b"1", "way {way}");
        world.check();
    }
    let (world, one, _) = clients();
    world.disk.set_capacity(Some(crate::disk::Room { bytes: 70, inodes: 9 }));
    let file = put(&one, "a", b"12345678");
    assert_eq!(one.sync_file(&file), Err(Errno::NOSPC));
}

#[test]
fn what_has_gone_is_seen_for_a_while() {
    let (world, one, two) = clients();
    let root = world.disk.root();
    drop(put(&one, "a", b"1"));
    assert_eq!(two.stat(&root, "a").unwrap().size, 1);
    one.unlink(&root, "a").unwrap();
    assert_eq!(one.stat(&root, "a").unwrap_err(), Errno::NOENT);
    assert_eq!(two.stat(&root, "a").unwrap().size, 1);
    // But it cannot be read, and no call that changes anything believes in it.
    assert_eq!(two.read(&root, "a", 9).unwrap_err(), Errno::NOENT);
    assert_eq!(two.exists(&root, "a"), Ok(false));
    assert_eq!(two.unlink(&root, "a"), Err(Errno::NOENT));
}

#[test]
fn attributes_lag_behind_and_contents_do_not() {
    let (world, one, two) = clients();
    let root = world.disk.root();
    let file = put(&one, "a", b"1");
    one.sync_file(&file).unwrap();
    assert_eq!(two.stat(&root, "a").unwrap().size, 1);
    world.clock.advance(Duration::from_secs(1));
    one.write(&file, b"2").unwrap();
    one.sync_file(&file).unwrap();
    assert_eq!((one.stat(&root, "a").unwrap().size, two.stat(&root, "a").unwrap().size), (2, 1));
    assert_eq!(two.read(&root, "a", 9).unwrap().0, b"12");
    assert_eq!(two.stat(&root, "a").unwrap().size, 2);
}

/// A folder that was replaced is found under its name for a while, until it is of no use.
#[test]
fn a_remembered_folder_may_be_another_by_now() {
    let (world, one, two) = clients();
    let root = world.disk.root();
    one.mkdir(&root, "a").unwrap();
    let old = two.stat(&root, "a").unwrap().inode;
    one.rmdir(&root, "a").unwrap();
    one.mkdir(&root, "a").unwrap();
    assert_eq!(two.stat(&root, "a").unwrap().inode, old);
    // The server does not know it, so the name is looked up again.
    drop(put(&two, "a/x", b"1"));
    let new = two.stat(&root, "a").unwrap().inode;
    assert!(new != old && world.disk.files().contains_key("a/x"));
}

#[test]
fn handles_of_what_others_removed_are_stale() {
    let (world, one, two) = clients();
    let root = world.disk.root();
    one.mkdir(&root, "a").unwrap();
    let held = two.hold_dir(&root, "a").unwrap();
    let mine = one.hold_dir(&root, "a").unwrap();
    let at_server = world.sys().hold_dir(&root, "a").unwrap();
    let file = put(&two, "a/x", b"1");
    let mut listing = two.list(&root, "a").unwrap();
    one.unlink(&root, "a/x").unwrap();
    assert_eq!(two.write(&file, b"2"), Err(Errno::STALE));
    assert_eq!(two.sync_file(&file), Err(Errno::STALE));
    one.rmdir(&root, "a").unwrap();
    assert_eq!(two.create(&held, "y").unwrap_err(), Errno::STALE);
    assert_eq!(two.mkdir(&held, "y"), Err(Errno::STALE));
    assert_eq!(two.read(&held, "y", 9).unwrap_err(), Errno::STALE);
    assert_eq!(two.list(&held, ".").unwrap_err(), Errno::STALE);
    assert_eq!(two.next(&mut listing).unwrap().unwrap_err(), Errno::STALE);
    assert_eq!(two.file_meta(&file).unwrap_err(), Errno::STALE);
    // Who removed it, and the server itself, know that it is gone.
    assert_eq!(one.create(&mine, "y").unwrap_err(), Errno::NOENT);
    assert_eq!(world.sys().create(&at_server, "y").unwrap_err(), Errno::NOENT);
}

#[test]
fn a_client_has_no_unnamed_files_and_no_renames_that_do_not_replace() {
    let (world, one, _) = clients();
    let root = world.disk.root();
    assert_eq!(one.create_unnamed(&root, ".").unwrap_err(), Errno::OPNOTSUPP);
    drop(put(&one, "a", b"1"));
    assert_eq!(one.rename_new(&root, "a", &root, "b"), Err(Errno::INVAL));
    assert_eq!(one.rename_new(&root, "c", &root, "b"), Err(Errno::NOENT));
    drop(put(&one, "b", b"1"));
    assert_eq!(one.rename_new(&root, "a", &root, "b"), Err(Errno::EXIST));
}

/// Clients live on when the server's power goes.
#[test]
fn handles_survive_a_power_cut_with_what_they_are_of() {
    let mut lost = 0;
    for seed in 0..100 {
        let (world, one, _) = clients();
        let root = world.disk.root();
        one.mkdir(&root, "kept").unwrap();
        world.disk.sync();
        one.mkdir(&root, "new").unwrap();
        let [kept, new] = ["kept", "new"].map(|path| one.hold_dir(&root, path).unwrap());
        world.disk.power_cut(&mut chance(seed));
        world.clock.advance(LAG);
        one.mkdir(&kept, "x").unwrap();
        match one.mkdir(&new, "x") {
            Ok(()) => assert_eq!(one.exists(&root, "new/x"), Ok(true)),
            Err(errno) => {
                assert_eq!((errno, one.exists(&root, "new")), (Errno::STALE, Ok(false)));
                lost += 1;
            }
        }
    }
    assert!((10..90).contains(&lost), "{lost}");
}

/// With no lag, a client sees what a local process sees.
#[test]
fn a_client_without_lag_is_up_to_date() {
    let world = World::new(Traits::default());
    let (one, two) = (world.sys(), world.on(Mount::network(1, Duration::ZERO)));
    let root = world.disk.root();
    let mut chance = chance(1);
    let paths = ["a", "b", "a/a", "a/b", "b/a"];
    for _ in 0..3000 {
        let (path, other) = (chance() % 5, chance() % 5);
        let (path, other) = (paths[path as usize], paths[other as usize]);
        let (roll, sys) = (chance() % 5, if chance().is_multiple_of(2) { &one } else { &two });
        match roll {
            0 => _ = sys.mkdir(&root, path),
            1 => _ = sys.create(&root, path),
            2 => _ = sys.rename(&root, path, &root, other),
            3 => _ = sys.unlink(&root, path),
            _ => _ = sys.rmdir(&root, path),
        }
        for path in paths {
            assert_eq!(one.exists(&root, path), two.exists(&root, path));
            assert_eq!(one.stat(&root, path), two.stat(&root, path));
        }
    }
}
