//! A full disk.

use rustix::io::Errno;

use super::*;
use crate::disk::Room;

#[test]
fn a_full_disk_refuses_what_needs_room() {
    let world = World::new(Traits::default());
    let (sys, root) = (world.sys(), world.disk.root());
    sys.mkdir(&root, "a").unwrap();
    let file = put(&sys, "a/x", b"1234567890");
    let used = world.disk.used();
    assert_eq!(used, Room { bytes: 4096 + 64 + 64 + 10, inodes: 2 });
    world.disk.set_capacity(Some(Room { bytes: used.bytes + 4, ..used }));

    assert_eq!(sys.mkdir(&root, "b"), Err(Errno::NOSPC));
    assert_eq!(sys.create(&root, "b").unwrap_err(), Errno::NOSPC);
    assert_eq!(sys.link("a/x", &root, "b", &root), Err(Errno::NOSPC));
    // As much as fits.
    assert_eq!(sys.write(&file, b"abcdefgh"), Err(Errno::NOSPC));
    assert_eq!(world.disk.files()["a/x"], b"1234567890abcd");
    let unnamed = sys.create_unnamed(&root, "a").unwrap();
    assert_eq!(sys.write(&unnamed, b"1"), Err(Errno::NOSPC));
    assert_eq!(sys.link_file(&unnamed, &root, "b"), Err(Errno::NOSPC));

    sys.rename(&root, "a/x", &root, "b").unwrap();
    sys.touch(&root, "b").unwrap();
    sys.unlink(&root, "b").unwrap();
    // It is still open.
    assert_eq!(sys.write(&unnamed, &[0; 65]), Err(Errno::NOSPC));
    assert_eq!(world.disk.used().bytes, used.bytes + 4);
    drop(file);
    sys.write(&unnamed, &[0; 10]).unwrap();
    assert_eq!(sys.link_file(&unnamed, &root, "b"), Err(Errno::NOSPC));
    drop(unnamed);
    drop(sys.create(&root, "b").unwrap());
    assert_eq!(sys.mkdir(&root, "c"), Err(Errno::NOSPC));
    sys.rmdir(&root, "a").unwrap();
    sys.unlink(&root, "b").unwrap();
    assert_eq!(world.disk.used(), Room { bytes: 0, inodes: 0 });
    sys.mkdir(&root, "c").unwrap();
    world.check();
}

#[test]
fn files_can_run_out_before_bytes() {
    let capacity = Some(Room { bytes: 1 << 20, inodes: 2 });
    let world = World::new(Traits { capacity, ..Traits::default() });
    let (sys, root) = (world.sys(), world.disk.root());
    drop((put(&sys, "a", b"1"), put(&sys, "b", b"2")));
    assert_eq!(sys.create(&root, "c").unwrap_err(), Errno::NOSPC);
    sys.link("a", &root, "c", &root).unwrap();
    sys.unlink(&root, "a").unwrap();
    assert_eq!(sys.mkdir(&root, "d"), Err(Errno::NOSPC));
    sys.unlink(&root, "c").unwrap();
    sys.mkdir(&root, "d").unwrap();
}

/// What is taken is counted as it changes; it must be what one finds by counting.
#[test]
fn room_is_counted_well() {
    for seed in 0..50 {
        let world = World::seeded(Traits::default(), seed);
        let (sys, root) = (world.sys(), world.disk.root());
        let mut chance = chance(seed);
        let paths = ["a", "b", "a/a", "a/b", "b/a"];
        for _ in 0..300 {
            let (path, other) = (chance() % 5, chance() % 5);
            let (path, other) = (paths[path as usize], paths[other as usize]);
            match chance() % 7 {
                0 => _ = sys.mkdir(&root, path),
                1 => _ = sys.create(&root, path).map(|file| sys.write(&file, b"123")),
                2 => _ = sys.rename(&root, path, &root, other),
                3 => _ = sys.unlink(&root, path),
                4 => _ = sys.rmdir(&root, path),
                5 => _ = sys.link(path, &root, other, &root),
                _ => {
                    let file = sys.create_unnamed(&root, ".").unwrap();
                    sys.write(&file, b"12").unwrap();
                    let _ = sys.link_file(&file, &root, path);
                }
            }
        }
        let counted = world.disk.used();
        world.disk.sync();
        world.disk.power_cut(&mut chance);
        assert_eq!(world.disk.used(), counted, "seed {seed}");
    }
}
