//! What only a directory has: the mount that it is on, and the system calls that work there.

use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::Serialize;

use super::verdict::{Check, Outcome, Promise};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Verdict;
use crate::store::fs::{RealSys, Sys};

/// What a directory is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The filesystem, such as `ext4`, `nfs v4.2` or `fuse.s3fs`.
    pub filesystem: String,
    /// The device or server behind it.
    pub source: String,
    /// Where it is mounted.
    pub point: String,
    /// Who can see it.
    pub reach: Reach,
    /// Written to the device in an order that a power cut can spoil.
    pub without_barriers: bool,
    /// Kind of device, if the kernel says: `SD card or eMMC`, `hard disk`, `NVMe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<&'static str>,
}

/// Who can see what is written to a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// This machine.
    #[default]
    Local,
    /// This machine, until it is switched off.
    Memory,
    /// Several machines.
    Network,
    /// Whatever a program makes of it.
    UserSpace,
}

const NETWORK: [&str; 14] = [
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "lustre", "gpfs", "afs",
    "ocfs2", "gfs2", "beegfs",
];

impl Mount {
    /// The mount of a path, as `/proc/self/mountinfo` has it.
    pub(super) fn of(path: &Path) -> Self {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut mount = Self::find(&table, path).unwrap_or_else(|| Self {
            filesystem: "an unknown filesystem".to_owned(),
            ..Self::default()
        });
        mount.medium = device_number(path).and_then(|(major, minor)| medium(major, minor));
        mount
    }

    fn find(table: &str, path: &Path) -> Option<Self> {
        let mounts = table.lines().filter_map(Self::parse);
        let holds = |mount: &Self| path.starts_with(PathBuf::from(&mount.point));
        // Of several at the same place the last one counts: it hides the others.
        mounts.filter(holds).max_by_key(|mount| mount.point.len())
    }

    /// One line: `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue`.
    fn parse(line: &str) -> Option<Self> {
        let (first, second) = line.split_once(" - ")?;
        let point = unescape(first.split(' ').nth(4)?);
        let mut second = second.split(' ');
        let (kind, source, options) = (second.next()?, second.next()?, second.next().unwrap_or(""));
        let option = |name: &str| options.split(',').find_map(|option| option.strip_prefix(name));
        let has = |name: &str| options.split(',').any(|option| option == name);
        let filesystem = match option("vers=") {
            Some(version) if kind.starts_with("nfs") => format!("nfs v{version}"),
            Some(version) if kind == "cifs" => format!("cifs (SMB {version})"),
            _ => kind.to_owned(),
        };
        let reach = match kind {
            "tmpfs" | "ramfs" => Reach::Memory,
            kind if NETWORK.contains(&kind) => Reach::Network,
            // These are disks; FUSE is only how they are read.
            "fuseblk" => Reach::Local,
            kind if kind == "fuse" || kind.starts_with("fuse.") => Reach::UserSpace,
            _ => Reach::Local,
        };
        let without_barriers = has("nobarrier") || has("barrier=0");
        let source = unescape(source);
        Some(Self { filesystem, source, point, reach, without_barriers, medium: None })
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        let what = match self.reach {
            Reach::Local => "a local filesystem",
            Reach::Memory => "memory",
            Reach::Network => "a network filesystem",
            Reach::UserSpace => "a filesystem in user space",
        };
        let medium = self.medium.map(|medium| format!(", {medium}")).unwrap_or_default();
        let Self { filesystem, source, .. } = self;
        match source.as_str() {
            "" | "none" => format!("{filesystem} ({what}{medium})"),
            source if source == filesystem => format!("{filesystem} ({what}{medium})"),
            source => format!("{filesystem} on {source} ({what}{medium})"),
        }
    }

    pub(super) fn check(&self, several_places: bool) -> Check {
        let mut check = Check::note("mount", self.describe());
        let across = "raced on this machine only; `dfq doctor --peer` on two machines at once shows \
                      more";
        let owner = [Promise::OneOwner, Promise::OneCompletion];
        check = match self.reach {
            Reach::Memory => {
                let why = "kept in memory: it survives any process, and no reboot";
                check.meaning(Promise::Durable, Verdict::Safe, Some(why))
            }
            Reach::Local => {
                let why = "for the processes of this machine, which alone can see it";
                check.meaning(Promise::OneOwner, Verdict::Safe, Some(why))
            }
            _ if several_places => check,
            Reach::Network => check.meaning(Promise::OneOwner, Verdict::Safe, Some(across)),
            Reach::UserSpace => owner.into_iter().fold(check, |check, promise| {
                let why = "proven for this one mount only: what others get is up to the program \
                           behind it; try two mounts with `dfq doctor --peer`";
                check.meaning(promise, Verdict::Degraded, Some(why))
            }),
        };
        if self.without_barriers {
            let why = "mounted without write barriers: a power cut can undo what was fsynced";
            check = check.meaning(Promise::Durable, Verdict::Degraded, Some(why));
        }
        check
    }
}

/// `\040` and its like stand for white space.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()).filter(|_| byte == b'\\') {
            Some(code) => {
                bytes.push(code);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn device_number(path: &Path) -> Option<(u32, u32)> {
    let stat = rustix::fs::stat(path).ok()?;
    Some((rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)))
}

/// What the kernel calls the device.
fn medium(major: u32, minor: u32) -> Option<&'static str> {
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let text = device.to_string_lossy().into_owned();
    if text.contains("/mmcblk") {
        return Some("SD card or eMMC");
    }
    if text.contains("/nvme") {
        return Some("NVMe");
    }
    // A partition's queue is that of its disk.
    let rotational = [device.join("queue/rotational"), device.join("../queue/rotational")];
    let says = rotational.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    // Virtual disks often say that they turn; a "no" can be believed.
    (says.trim() == "0").then_some("not a turning disk")
}

/// The calls that the queue would use, and some that it would not.
pub(super) fn calls(root: &Path, scratch: &str) -> Result<Vec<Check>> {
    let folder = root.join(scratch).join("calls");
    let failed = |error: std::io::Error| {
        let message = format!("'{}' cannot be written: {error}", folder.display());
        Error::new(ErrorKind::Unavailable, message)
    };
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let dir = RealSys::open_root(&folder).map_err(|errno| failed(errno.into()))?;
    let sys = RealSys;
    let made = |name: &str| sys.create(&dir, name).is_ok();
    let unnamed = sys.create_unnamed(&dir, ".").and_then(|f| sys.link_file(&f, &dir, "unnamed"));
    let links = made("a") && sys.link("a", &dir, "linked", &dir).is_ok();
    let refuses = made("b") && sys.link("a", &dir, "b", &dir).is_err();
    let fresh = made("c") && sys.rename_new(&dir, "c", &dir, "moved").is_ok();
    let keeps = made("d") && fresh && sys.rename_new(&dir, "d", &dir, "moved").is_err();
    let renames = made("e") && made("f") && sys.rename(&dir, "e", &dir, "f").is_ok();
    let supported = |works: bool, fallback: &str| match works {
        true => (Outcome::Yes, "works".to_owned()),
        false => (Outcome::Note, format!("not here; {fallback}")),
    };
    let check = |name, (outcome, detail): (Outcome, String)| Check::new(name, outcome, detail);
    let mut checks = vec![
        check("O_TMPFILE", supported(unnamed.is_ok(), "named files are used instead")),
        check("link", supported(links && refuses, "RENAME_NOREPLACE would do")),
        check("RENAME_NOREPLACE", supported(fresh && keeps, "link would do")),
        match renames {
            true => Check::yes("rename", "works"),
            false => Check::breaks("rename", "files cannot be renamed", &[Promise::AtLeastOnce]),
        },
    ];
    checks.push(names(&sys, &dir));
    checks.push(long_names(&sys, &dir));
    checks.push(locks(&dir));
    Ok(checks)
}

/// Whether names that differ only in case, or in how a letter is composed, are told apart.
fn names(sys: &RealSys, dir: &OwnedFd) -> Check {
    const NAME: &str = "names";
    let _ = sys.create(dir, "Case");
    let folds = sys.exists(dir, "cASE") == Ok(true);
    // Names of ours are plain ASCII, so how letters are composed concerns other programs' files only.
    let _ = sys.create(dir, "caf\u{e9}");
    let normalises = sys.exists(dir, "cafe\u{301}") == Ok(true);
    if folds {
        let why = "upper and lower case are the same here: an id that differs from another only in \
                   that may be taken for it";
        return Check::new(NAME, Outcome::No, why).meaning(
            Promise::AtLeastOnce,
            Verdict::Degraded,
            None,
        );
    }
    match normalises {
        true => Check::note(NAME, "case is kept; é and é are the same, which ids do not mind"),
        false => Check::yes(NAME, "kept as they are"),
    }
}

/// The longest name we make: an id of 200 bytes, its life and an ending.
const LONGEST: usize = 200 + "@1000000000.json".len();

fn long_names(sys: &RealSys, dir: &OwnedFd) -> Check {
    const NAME: &str = "long names";
    match sys.create(dir, &"n".repeat(LONGEST)) {
        Ok(_) => Check::yes(NAME, "long enough for any id"),
        Err(_) => {
            let longest =
                (1..LONGEST).rev().find(|length| sys.create(dir, &"n".repeat(*length)).is_ok());
            let room = longest.unwrap_or(0).saturating_sub(LONGEST - 200);
            let why = format!("ids of more than {room} bytes cannot be stored here");
            Check::new(NAME, Outcome::No, why).meaning(
                Promise::AtLeastOnce,
                Verdict::Degraded,
                None,
            )
        }
    }
}

/// Whether a second lock on the same file is refused. Nothing here relies on that.
fn locks(dir: &OwnedFd) -> Check {
    const NAME: &str = "locks";
    let open = || {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::openat(dir, "locked", flags, Mode::from_bits_retain(0o666))
    };
    let (Ok(first), Ok(second)) = (open(), open()) else {
        return Check::new(NAME, Outcome::Unknown, "the file to be locked cannot be opened");
    };
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let taken = rustix::fs::flock(&first, exclusive).is_ok();
    let refused = rustix::fs::flock(&second, exclusive).is_err();
    match (taken, refused) {
        (true, true) => Check::yes(NAME, "flock works; the queue does not use it"),
        (true, false) => Check::note(NAME, "flock only pretends; the queue does not use it"),
        _ => Check::note(NAME, "no flock; the queue does not use it"),
    }
}

/// Whether this machine's own changes are reported.
#[cfg(target_os = "linux")]
pub(super) fn notices(root: &Path, scratch: &str, reach: Reach) -> Check {
    use rustix::fs::inotify;
    const NAME: &str = "inotify";
    let folder = root.join(scratch).join("watched");
    let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
    let noticed = std::fs::create_dir_all(&folder).is_ok()
        && inotify::init(flags).is_ok_and(|watch| {
            inotify::add_watch(&watch, &folder, inotify::WatchFlags::CREATE).is_ok()
                && std::fs::write(folder.join("file"), b"").is_ok()
                && {
                    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
                    inotify::Reader::new(&watch, &mut buffer).next().is_ok()
                }
        });
    let polled = "idle workers find new tasks by polling";
    match (noticed, reach) {
        (true, Reach::Local | Reach::Memory) => {
            Check::yes(NAME, "idle workers are woken by a push")
        }
        (true, _) => Check::note(NAME, format!("tells of this machine's changes only; {polled}")),
        (false, _) => Check::note(NAME, format!("not here; {polled}")),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn notices(_: &Path, _: &str, _: Reach) -> Check {
    Check::note("inotify", "not on this system; idle workers find new tasks by polling")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
36 22 0:31 / /data rw,noatime shared:1 - nfs4 nas:/export rw,vers=4.2,rsize=1048576
37 22 0:32 / /data/old rw - nfs nas:/old rw,vers=3,hard
38 22 0:33 / /with\040space rw - fuse.s3fs s3fs rw,user_id=0
39 22 0:34 / /dev/shm rw - tmpfs tmpfs rw
40 22 8:1 / /fast rw - ext4 /dev/sda1 rw,nobarrier";

    fn at(path: &str) -> Mount {
        Mount::find(TABLE, Path::new(path)).unwrap()
    }

    #[test]
    fn what_a_path_is_on() {
        let words = |path| at(path).describe();
        assert_eq!(words("/home/x"), "ext4 on /dev/vda (a local filesystem)");
        assert_eq!(words("/data/jobs"), "nfs v4.2 on nas:/export (a network filesystem)");
        assert_eq!(words("/data/old/jobs"), "nfs v3 on nas:/old (a network filesystem)");
        assert_eq!(words("/with space/jobs"), "fuse.s3fs on s3fs (a filesystem in user space)");
        assert_eq!(words("/dev/shm/jobs"), "tmpfs (memory)");
        // A name that only begins like a mount is not on it.
        assert_eq!(words("/database"), "ext4 on /dev/vda (a local filesystem)");
    }

    #[test]
    fn a_mount_without_barriers_is_not_durable() {
        let means = at("/fast/jobs").check(false).means;
        assert!(
            means.iter().any(|m| (m.promise, m.verdict) == (Promise::Durable, Verdict::Degraded))
        );
        assert!(at("/home").check(false).means.iter().all(|m| m.verdict == Verdict::Safe));
    }
}
