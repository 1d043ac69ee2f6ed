//! The same random calls on the model and on the filesystem of this machine have the same answers.

use std::fmt::Debug;
use std::path::Path;

use rustix::io::Errno;

use dfq::store::EntryKind;
use dfq::store::fs::{Meta, RealSys, Sys, SysResult};

use super::*;
use crate::disk::errno_name;

const PATHS: [&str; 18] = [
    "a", "b", "c", "a", "b", "a/a", "a/b", "b/a", "b/b", "c/x", "a/a/a", "a/a/b", "b/a/c", "a/b/x",
    ".", "a/.", "", "a/./a",
];

const VERBS: [&str; 23] = [
    "open_dir",
    "hold_dir",
    "read",
    "read_part",
    "stat",
    "file_meta",
    "exists",
    "list",
    "mkdir",
    "mkdir",
    "mkdir",
    "create",
    "create_unnamed",
    "write",
    "sync_file",
    "sync_dir",
    "link_file",
    "link",
    "rename",
    "rename_new",
    "unlink",
    "rmdir",
    "touch",
];

/// One call, with the handles and paths that chance chose.
#[derive(Debug)]
struct Step {
    verb: &'static str,
    dirs: [usize; 2],
    file: usize,
    paths: [&'static str; 2],
    slot: usize,
}

const HANDLES: usize = 5;

impl Step {
    fn new(chance: &mut impl FnMut() -> u64) -> Self {
        let mut below = |bound: usize| (chance() % bound as u64) as usize;
        // Mostly from the root, where more is to be met.
        let mut dir = || below(HANDLES * 2).saturating_sub(HANDLES);
        let dirs = [dir(), dir()];
        Self {
            verb: VERBS[below(VERBS.len())],
            dirs,
            file: below(HANDLES),
            paths: [PATHS[below(PATHS.len())], PATHS[below(PATHS.len())]],
            slot: below(HANDLES - 1) + 1,
        }
    }
}

/// The open handles of one side; the first folder is the root.
struct Side<S: Sys> {
    sys: S,
    dirs: Vec<S::Dir>,
    files: Vec<Option<S::File>>,
}

fn shown<T: Debug>(answer: SysResult<T>) -> String {
    answer.map_or_else(errno_name, |answer| format!("{answer:?}"))
}

/// Without numbers and times, and without the size of a folder, which is the filesystem's own affair.
fn described(meta: Meta) -> (EntryKind, Option<u64>) {
    (meta.kind, (meta.kind == EntryKind::File).then_some(meta.size))
}

impl<S: Sys> Side<S> {
    fn new(sys: S, root: impl Fn() -> S::Dir) -> Self {
        let dirs = (0..HANDLES).map(|_| root()).collect();
        Self { sys, dirs, files: (0..HANDLES).map(|_| None).collect() }
    }

    fn keep_dir(&mut self, slot: usize, dir: SysResult<S::Dir>) -> String {
        shown(dir.map(|dir| self.dirs[slot] = dir))
    }

    fn keep_file(&mut self, slot: usize, file: SysResult<S::File>) -> String {
        shown(file.map(|file| self.files[slot] = Some(file)))
    }

    fn list(&self, at: &S::Dir, path: &str) -> SysResult<Vec<(String, EntryKind)>> {
        let mut listing = self.sys.list(at, path)?;
        let mut seen = Vec::new();
        while let Some(entry) = self.sys.next(&mut listing) {
            let entry = entry?;
            seen.push((entry.name.unwrap_or_default(), entry.kind));
        }
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(seen)
    }

    fn perform(&mut self, step: &Step) -> String {
        let (sys, [path, other], slot) = (&self.sys, step.paths, step.slot);
        let [at, to] = step.dirs.map(|dir| &self.dirs[dir]);
        let file = self.files[step.file].as_ref().ok_or(Errno::BADF);
        let content = |(bytes, meta)| (bytes, described(meta));
        match step.verb {
            "open_dir" => {
                let dir = sys.open_dir(at, path);
                self.keep_dir(slot, dir)
            }
            "hold_dir" => {
                let dir = sys.hold_dir(at, path);
                self.keep_dir(slot, dir)
            }
            "read" => shown(sys.read(at, path, 9).map(content)),
            "read_part" => shown(sys.read_part(at, path, 2, 3).map(content)),
            "stat" => {
                let same = sys.stat(to, other).ok().map(|meta| meta.inode);
                shown(sys.stat(at, path).map(|it| (described(it), Some(it.inode) == same)))
            }
            "file_meta" => shown(file.and_then(|file| sys.file_meta(file)).map(described)),
            "exists" => shown(sys.exists(at, path)),
            "list" => shown(self.list(at, path)),
            "mkdir" => shown(sys.mkdir(at, path)),
            "create" => {
                let file = sys.create(at, path);
                self.keep_file(slot, file)
            }
            "create_unnamed" => {
                // In a removed folder, tmpfs makes one, and ext4 refuses with `PERM`.
                let probe = format!("./{path}/probe");
                if let Err(errno) = sys.mkdir(at, &probe) {
                    return errno_name(errno);
                }
                sys.rmdir(at, &probe).unwrap();
                let file = sys.create_unnamed(at, path);
                self.keep_file(slot, file)
            }
            "write" => shown(file.and_then(|file| sys.write(file, b"1234"))),
            "sync_file" => shown(file.and_then(|file| sys.sync_file(file))),
            "sync_dir" => shown(sys.sync_dir(at, path).map(drop)),
            "link_file" => shown(file.and_then(|file| sys.link_file(file, at, path))),
            "link" => shown(sys.link(path, to, other, at)),
            "rename" => shown(sys.rename(at, path, to, other)),
            "rename_new" => shown(sys.rename_new(at, path, to, other)),
            "unlink" => shown(sys.unlink(at, path)),
            "rmdir" => shown(sys.rmdir(at, path)),
            "touch" => shown(sys.touch(at, path)),
            verb => unreachable!("{verb}"),
        }
    }
}

fn files_of(root: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let (mut files, mut folders) = (std::collections::BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(below, std::fs::read(path).unwrap());
            }
        }
    }
    files
}

fn compare(base: &Path, seeds: std::ops::Range<u64>, steps: usize) {
    let mut answers = std::collections::BTreeMap::<String, usize>::new();
    for seed in seeds {
        let dir = tempfile::tempdir_in(base).unwrap();
        let open_root = || RealSys::open_root(dir.path()).unwrap();
        let has_unnamed = RealSys.create_unnamed(&open_root(), ".").is_ok();
        let world = World::seeded(Traits { has_unnamed, ..Traits::default() }, seed);
        let sys = world.sys();
        let mut model = Side::new(sys.clone(), || sys.root());
        let mut real = Side::new(RealSys, open_root);
        let mut chance = chance(seed);
        let mut history = Vec::new();
        for _ in 0..steps {
            let step = Step::new(&mut chance);
            let (ours, theirs) = (model.perform(&step), real.perform(&step));
            assert_eq!(ours, theirs, "seed {seed}: {step:?}\nafter {history:#?}");
            let short = ours.split(['(', '[']).next().unwrap_or_default();
            *answers.entry(format!("{}: {short}", step.verb)).or_default() += 1;
            if history.len() == 30 {
                history.remove(0);
            }
            history.push(format!("{step:?} {ours}"));
        }
        assert_eq!(world.disk.files(), files_of(dir.path()), "seed {seed}");
        world.check();
    }
    // Else the steps would prove little.
    for seen in ["rename: ENOTEMPTY", "rename: EINVAL", "rename: EISDIR", "rmdir: ENOTEMPTY"] {
        assert!(answers.contains_key(seen), "{seen} was never seen: {answers:#?}");
    }
}

#[test]
fn the_model_answers_as_the_disk_does() {
    compare(&std::env::temp_dir(), 0..10, 2000);
}

#[test]
fn the_model_answers_as_memory_does() {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        compare(memory, 100..120, 2000);
    }
}

#[test]
fn a_handle_is_of_the_folder_and_not_of_the_name() {
    let world = World::new(Traits::default());
    let (sys, root) = (world.sys(), world.disk.root());
    sys.mkdir(&root, "a").unwrap();
    let held = sys.hold_dir(&root, "a").unwrap();
    sys.rename(&root, "a", &root, "b").unwrap();
    sys.mkdir(&root, "a").unwrap();
    let file = sys.create(&held, "x").unwrap();
    sys.write(&file, b"1").unwrap();
    assert_eq!(world.disk.files().keys().collect::<Vec<_>>(), ["b/x"]);
    sys.unlink(&root, "b/x").unwrap();
    sys.rmdir(&root, "b").unwrap();
    assert_eq!(sys.create(&held, "x").unwrap_err(), Errno::NOENT);
    sys.write(&file, b"2").unwrap();
    assert_eq!(sys.file_meta(&file).unwrap().size, 2);
    assert_eq!(world.told(), ["+b/x", "=b/x", "-b/x"]);
}

#[test]
fn the_witness_hears_of_every_file_in_a_folder_that_moves() {
    let world = World::new(Traits::default());
    let (sys, root) = (world.sys(), world.disk.root());
    sys.mkdir(&root, "tmp").unwrap();
    sys.mkdir(&root, "tmp/x").unwrap();
    drop(put(&sys, "tmp/x/task", b"1"));
    world.told();
    sys.rename_new(&root, "tmp/x", &root, "x").unwrap();
    assert_eq!(world.told(), ["-tmp/x/task", "+x/task"]);
    let file = sys.create_unnamed(&root, ".").unwrap();
    sys.write(&file, b"2").unwrap();
    sys.link_file(&file, &root, "x/lease").unwrap();
    sys.link("x/lease", &root, "other", &root).unwrap();
    sys.rename(&root, "other", &root, "x/task").unwrap();
    assert_eq!(world.told(), ["+x/lease", "+other", "-other", "=x/task"]);
    world.check();
}

#[test]
fn a_gate_fails_repeats_and_kills() {
    let world = World::new(Traits::default());
    let (sys, root) = (world.sys(), world.disk.root());
    let fate = |fate| *lock(&world.gate.0) = Some(fate);
    fate(Fate::Failed(Errno::IO));
    assert_eq!(sys.mkdir(&root, "a"), Err(Errno::IO));
    assert_eq!(sys.exists(&root, "a"), Ok(false));
    fate(Fate::Repeated);
    assert_eq!(sys.mkdir(&root, "a"), Err(Errno::EXIST));
    fate(Fate::Repeated);
    drop(sys.create(&root, "a/x").unwrap());
    fate(Fate::Repeated);
    assert_eq!(sys.rename(&root, "a/x", &root, "a/y"), Err(Errno::NOENT));
    fate(Fate::Failed(Errno::OWNERDEAD));
    assert_eq!(sys.unlink(&root, "a/y"), Err(Errno::OWNERDEAD));
    assert_eq!(names(&sys, &root, "a"), ["y"]);
    let answered = lock(&world.gate.1);
    assert_eq!(answered[..3], ["mkdir a: EIO", "exists a: no", "mkdir a: EEXIST"]);
    assert_eq!(answered.last().unwrap(), "next a: end");
}

#[test]
fn what_is_there_all_the_time_is_listed_once() {
    let (mut seen_new, mut seen_gone) = ([0, 0], [0, 0]);
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let world = World::seeded(Traits::default(), seed);
        let (sys, root) = (world.sys(), world.disk.root());
        for number in 0..20 {
            drop(sys.create(&root, &format!("{number}")).unwrap());
        }
        orders.insert(names(&sys, &root, "."));
        let mut chance = chance(seed);
        let (mut listing, mut seen) = (sys.list(&root, ".").unwrap(), Vec::new());
        let mut step = 0;
        while let Some(entry) = sys.next(&mut listing) {
            seen.push(entry.unwrap().name.unwrap());
            match chance() % 3 {
                0 => drop(sys.create(&root, &format!("new{step}")).unwrap()),
                1 if step < 10 => sys.unlink(&root, &format!("{}", step + 10)).unwrap(),
                _ => {}
            }
            step += 1;
        }
        let count = |name: &str| seen.iter().filter(|it| *it == name).count();
        for number in 0..10 {
            assert_eq!(count(&number.to_string()), 1, "seed {seed}");
        }
        (0..20).for_each(|number| seen_new[count(&format!("new{number}")).min(1)] += 1);
        (10..20).for_each(|number| seen_gone[count(&number.to_string()).min(1)] += 1);
    }
    assert!(orders.len() > 190, "{}", orders.len());
    assert!(seen_new.into_iter().chain(seen_gone).all(|times| times > 50));
}

#[test]
fn times_are_rounded_down() {
    let tick = Duration::from_secs(2);
    let world = World::new(Traits { tick, ..Traits::default() });
    let (sys, root) = (world.sys(), world.disk.root());
    let at = |seconds: u64| Timestamp::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
    world.clock.advance(Duration::from_millis(3_700));
    sys.mkdir(&root, "a").unwrap();
    let modified = |path| sys.stat(&root, path).unwrap().modified;
    assert_eq!((modified("a"), modified(".")), (at(2), at(2)));
    world.clock.advance(Duration::from_secs(10));
    drop(sys.create(&root, "a/x").unwrap());
    assert_eq!((modified("a"), modified("."), modified("a/x")), (at(12), at(2), at(12)));
    world.clock.advance(Duration::from_secs(10));
    sys.touch(&root, "a/x").unwrap();
    assert_eq!((modified("a"), modified("a/x")), (at(12), at(22)));
}
