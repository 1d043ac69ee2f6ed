//! The system calls, one method each: the seam at which a test interrupts, fails or reorders every
//! single call that changes the tree.
//!
//! Paths are relative to an open directory. Nothing that opens or changes follows a symbolic link in
//! the last part of a path, so that a link where a folder should be is an error and not somewhere else.

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{self, Errno};

use crate::store::EntryKind;

/// A system call's answer.
pub type SysResult<T> = Result<T, Errno>;

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Folder, file or neither.
    pub kind: EntryKind,
    /// The last modification.
    pub modified: Timestamp,
    /// Bytes taken.
    pub size: u64,
    /// Tells it from anything else that has, or had, its name.
    pub inode: u64,
}

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Its name; `None` if that is no text.
    pub name: Option<String>,
    /// What it is.
    pub kind: EntryKind,
}

/// What the filesystem provider needs of an operating system.
pub trait Sys: Send + Sync + Debug + 'static {
    /// An open directory.
    type Dir: Send + Sync + 'static;
    /// An open file.
    type File: Send + Sync + 'static;
    /// A directory being read.
    type Listing: Send + 'static;

    // Calls that change nothing.

    /// Opens a directory.
    fn open_dir(&self, at: &Self::Dir, path: &str) -> SysResult<Self::Dir>;
    /// Opens a directory only to use paths within it, which is cheaper.
    fn hold_dir(&self, at: &Self::Dir, path: &str) -> SysResult<Self::Dir>;
    /// Reads a whole file; `FBIG` if it has more than `limit` bytes.
    fn read(&self, at: &Self::Dir, path: &str, limit: u64) -> SysResult<(Vec<u8>, Meta)>;
    /// Reads a part of a file, and describes it.
    fn read_part(
        &self,
        at: &Self::Dir,
        path: &str,
        from: u64,
        length: usize,
    ) -> SysResult<(Vec<u8>, Meta)>;
    /// Describes a path.
    fn stat(&self, at: &Self::Dir, path: &str) -> SysResult<Meta>;
    /// Describes an open file.
    fn file_meta(&self, file: &Self::File) -> SysResult<Meta>;
    /// Whether a path exists.
    fn exists(&self, at: &Self::Dir, path: &str) -> SysResult<bool>;
    /// Begins to read a directory.
    fn list(&self, at: &Self::Dir, path: &str) -> SysResult<Self::Listing>;
    /// Reads its next entry.
    fn next(&self, listing: &mut Self::Listing) -> Option<SysResult<DirEntry>>;

    // Calls that change the tree.

    /// Makes a directory.
    fn mkdir(&self, at: &Self::Dir, path: &str) -> SysResult<()>;
    /// Makes an empty file, if absent.
    fn create(&self, at: &Self::Dir, path: &str) -> SysResult<Self::File>;
    /// Makes an empty file without a name on the filesystem of a directory.
    fn create_unnamed(&self, at: &Self::Dir, dir: &str) -> SysResult<Self::File>;
    /// Writes all of `bytes` to a new file.
    fn write(&self, file: &Self::File, bytes: &[u8]) -> SysResult<()>;
    /// Starts writing a file back, so that a later `sync_file` has less to wait for.
    fn start_sync(&self, file: &Self::File);
    /// Waits until a file is on the disk.
    fn sync_file(&self, file: &Self::File) -> SysResult<()>;
    /// Waits until a directory's entries are on the disk; answers which directory that was.
    fn sync_dir(&self, at: &Self::Dir, path: &str) -> SysResult<u64>;
    /// Gives an open file a (further) name, if absent.
    fn link_file(&self, file: &Self::File, at: &Self::Dir, path: &str) -> SysResult<()>;
    /// Gives a named file a further name, if absent.
    fn link(&self, from: &str, at: &Self::Dir, path: &str, root: &Self::Dir) -> SysResult<()>;
    /// Renames, replacing what is there.
    fn rename(&self, at: &Self::Dir, from: &str, to_at: &Self::Dir, to: &str) -> SysResult<()>;
    /// Renames, if absent.
    fn rename_new(&self, at: &Self::Dir, from: &str, to_at: &Self::Dir, to: &str) -> SysResult<()>;
    /// Removes a file's name.
    fn unlink(&self, at: &Self::Dir, path: &str) -> SysResult<()>;
    /// Removes an empty directory.
    fn rmdir(&self, at: &Self::Dir, path: &str) -> SysResult<()>;
    /// Sets the modification time of a file or directory to now.
    fn touch(&self, at: &Self::Dir, path: &str) -> SysResult<()>;
}

/// The system calls of the machine we run on.
#[derive(Clone, Copy, Debug)]
pub struct RealSys;

/// Files are readable by all whom the umask lets, as the seeds' are.
const FILE_MODE: Mode = Mode::from_bits_retain(0o666);
const DIR_MODE: Mode = Mode::from_bits_retain(0o777);
const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FILE_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

impl RealSys {
    /// Opens the queue's root, which may well be reached through symbolic links.
    pub fn open_root(path: &std::path::Path) -> SysResult<OwnedFd> {
        fs::openat(CWD, path, DIR_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())
    }
}

fn kind_of(kind: FileType) -> EntryKind {
    match kind {
        FileType::Directory => EntryKind::Folder,
        FileType::RegularFile => EntryKind::File,
        _ => EntryKind::Other,
    }
}

/// Modification times are taken for one between these: anybody can set them to anything, and they are
/// reckoned with. (1653 and 5138)
const TIMES: (i64, i64) = (-10_000_000_000, 100_000_000_000);

fn meta_of(stat: &fs::Stat) -> Meta {
    let nanos = i32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let seconds = stat.st_mtime.clamp(TIMES.0, TIMES.1);
    Meta {
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
        modified: Timestamp::new(seconds, nanos).unwrap_or(Timestamp::UNIX_EPOCH),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        inode: stat.st_ino,
    }
}

/// Repeats a call that a signal interrupted.
fn again<T>(mut call: impl FnMut() -> SysResult<T>) -> SysResult<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

/// Opens a file to be read, if it is one.
fn open_file(at: &OwnedFd, path: &str) -> SysResult<(OwnedFd, Meta)> {
    // Non-blocking: a FIFO that somebody put there must not hang the worker.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | FILE_FLAGS;
    let file = again(|| fs::openat(at, path, flags, Mode::empty()))?;
    let meta = meta_of(&fs::fstat(&file)?);
    match meta.kind {
        EntryKind::File => Ok((file, meta)),
        _ => Err(Errno::ISDIR),
    }
}

impl Sys for RealSys {
    type Dir = OwnedFd;
    type File = OwnedFd;
    type Listing = fs::Dir;

    fn open_dir(&self, at: &OwnedFd, path: &str) -> SysResult<OwnedFd> {
        again(|| fs::openat(at, path, DIR_FLAGS, Mode::empty()))
    }

    #[cfg(target_os = "linux")]
    fn hold_dir(&self, at: &OwnedFd, path: &str) -> SysResult<OwnedFd> {
        again(|| fs::openat(at, path, DIR_FLAGS.union(OFlags::PATH), Mode::empty()))
    }

    #[cfg(not(target_os = "linux"))]
    fn hold_dir(&self, at: &OwnedFd, path: &str) -> SysResult<OwnedFd> {
        self.open_dir(at, path)
    }

    fn read(&self, at: &OwnedFd, path: &str, limit: u64) -> SysResult<(Vec<u8>, Meta)> {
        let (file, meta) = open_file(at, path)?;
        if meta.size > limit {
            return Err(Errno::FBIG);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.size).unwrap_or(0) + 1);
        loop {
            if bytes.len() as u64 > limit {
                return Err(Errno::FBIG); // it grew meanwhile
            }
            let room = bytes.capacity() - bytes.len();
            if room == 0 {
                bytes.reserve(4096);
            }
            match io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
                Ok(0) => return Ok((bytes, meta)),
                // A short read of a regular file is its end, unless it grew meanwhile.
                Ok(_) if bytes.len() < bytes.capacity() && bytes.len() as u64 >= meta.size => {
                    return Ok((bytes, meta));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn read_part(
        &self,
        at: &OwnedFd,
        path: &str,
        from: u64,
        length: usize,
    ) -> SysResult<(Vec<u8>, Meta)> {
        let (file, meta) = open_file(at, path)?;
        // Callers ask for much more than there may be.
        let there = usize::try_from(meta.size.saturating_sub(from)).unwrap_or(length);
        let length = length.min(there);
        let mut bytes = vec![0; length];
        let mut read = 0;
        while read < length {
            match again(|| io::pread(&file, &mut bytes[read..], from + read as u64))? {
                0 => break,
                more => read += more,
            }
        }
        bytes.truncate(read);
        Ok((bytes, meta))
    }

    fn stat(&self, at: &OwnedFd, path: &str) -> SysResult<Meta> {
        if path == "." {
            return self.file_meta(at); // every poll asks for this; nothing has to be looked up
        }
        fs::statat(at, path, AtFlags::SYMLINK_NOFOLLOW).map(|stat| meta_of(&stat))
    }

    fn file_meta(&self, file: &OwnedFd) -> SysResult<Meta> {
        fs::fstat(file).map(|stat| meta_of(&stat))
    }

    fn exists(&self, at: &OwnedFd, path: &str) -> SysResult<bool> {
        match fs::accessat(at, path, fs::Access::EXISTS, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn list(&self, at: &OwnedFd, path: &str) -> SysResult<fs::Dir> {
        fs::Dir::new(self.open_dir(at, path)?)
    }

    fn next(&self, listing: &mut fs::Dir) -> Option<SysResult<DirEntry>> {
        loop {
            let entry = match listing.read()? {
                Ok(entry) => entry,
                Err(errno) => return Some(Err(errno)),
            };
            let name = entry.file_name().to_str().ok();
            if matches!(name, Some("." | "..")) {
                continue;
            }
            let mut kind = kind_of(entry.file_type());
            if entry.file_type() == FileType::Unknown {
                // Some filesystems do not say.
                let stat = listing
                    .fd()
                    .and_then(|fd| fs::statat(fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW));
                kind = stat.map_or(EntryKind::Other, |stat| meta_of(&stat).kind);
            }
            let name = name.map(str::to_owned);
            return Some(Ok(DirEntry { name, kind }));
        }
    }

    fn mkdir(&self, at: &OwnedFd, path: &str) -> SysResult<()> {
        fs::mkdirat(at, path, DIR_MODE)
    }

    fn create(&self, at: &OwnedFd, path: &str) -> SysResult<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | FILE_FLAGS;
        again(|| fs::openat(at, path, flags, FILE_MODE))
    }

    #[cfg(target_os = "linux")]
    fn create_unnamed(&self, at: &OwnedFd, dir: &str) -> SysResult<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        again(|| fs::openat(at, dir, flags, FILE_MODE))
    }

    #[cfg(not(target_os = "linux"))]
    fn create_unnamed(&self, _: &OwnedFd, _: &str) -> SysResult<OwnedFd> {
        Err(Errno::OPNOTSUPP)
    }

    fn write(&self, file: &OwnedFd, mut bytes: &[u8]) -> SysResult<()> {
        while !bytes.is_empty() {
            match io::write(file, bytes) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn start_sync(&self, file: &OwnedFd) {
        // The kernel starts writeback of dirty pages here and cannot drop them while they are being
        // written. A batch that does this for all its files before it waits for the first shares the
        // journal's commits: 2.4 times faster on ext4 than fsync after fsync.
        #[cfg(target_os = "linux")]
        let _ = fs::fadvise(file, 0, None, fs::Advice::DontNeed);
        #[cfg(not(target_os = "linux"))]
        let _ = file;
    }

    fn sync_file(&self, file: &OwnedFd) -> SysResult<()> {
        again(|| fs::fsync(file))
    }

    fn sync_dir(&self, at: &OwnedFd, path: &str) -> SysResult<u64> {
        let dir = self.open_dir(at, path)?;
        match again(|| fs::fsync(&dir)) {
            // Some network filesystems have nothing to sync in a directory and say so.
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(fs::fstat(&dir)?.st_ino),
            Err(errno) => Err(errno),
        }
    }

    fn link_file(&self, file: &OwnedFd, at: &OwnedFd, path: &str) -> SysResult<()> {
        // Linking an open file directly needs a privilege on older kernels; by way of /proc it needs
        // none, but /proc may be missing in a container.
        match fs::linkat(file, "", at, path, AtFlags::EMPTY_PATH) {
            Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {
                let by_fd = format!("/proc/self/fd/{}", file.as_raw_fd());
                fs::linkat(CWD, by_fd, at, path, AtFlags::SYMLINK_FOLLOW)
            }
            answer => answer,
        }
    }

    fn link(&self, from: &str, at: &OwnedFd, path: &str, root: &OwnedFd) -> SysResult<()> {
        fs::linkat(root, from, at, path, AtFlags::empty())
    }

    fn rename(&self, at: &OwnedFd, from: &str, to_at: &OwnedFd, to: &str) -> SysResult<()> {
        fs::renameat(at, from, to_at, to)
    }

    #[cfg(target_os = "linux")]
    fn rename_new(&self, at: &OwnedFd, from: &str, to_at: &OwnedFd, to: &str) -> SysResult<()> {
        fs::renameat_with(at, from, to_at, to, RenameFlags::NOREPLACE)
    }

    #[cfg(not(target_os = "linux"))]
    fn rename_new(&self, _: &OwnedFd, _: &str, _: &OwnedFd, _: &str) -> SysResult<()> {
        Err(Errno::INVAL)
    }

    fn unlink(&self, at: &OwnedFd, path: &str) -> SysResult<()> {
        fs::unlinkat(at, path, AtFlags::empty())
    }

    fn rmdir(&self, at: &OwnedFd, path: &str) -> SysResult<()> {
        fs::unlinkat(at, path, AtFlags::REMOVEDIR)
    }

    fn touch(&self, at: &OwnedFd, path: &str) -> SysResult<()> {
        let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
        let times = fs::Timestamps { last_access: now, last_modification: now };
        fs::utimensat(at, path, &times, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// How far apart two writes must be to carry different times: a kernel tick, with room.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The same on filesystems that keep whole seconds, or (FAT) every other.
pub(crate) const COARSE: Duration = Duration::from_secs(2);
