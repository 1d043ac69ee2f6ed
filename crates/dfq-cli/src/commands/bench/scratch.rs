//! Where a measurement may write: a fresh folder on the store that is meant, in nobody's queue.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use dfq::{Env, ErrorKind, OpenOptions};

use crate::context::absolute;
use crate::exit::{invalid, unwritable};

/// The folder, and what has to go with it.
pub(super) struct Scratch {
    below: PathBuf,
    folder: PathBuf,
    filesystem: &'static str,
    /// Folders that had to be made to get there, the deepest first.
    made: Vec<PathBuf>,
}

impl Scratch {
    pub(super) async fn make(address: &Path, env: &Env) -> Result<Self> {
        let address = absolute(address);
        if address.exists() && !address.is_dir() {
            return Err(invalid(format!("'{}' is not a folder", address.display())));
        }
        let below = outside_of_queues(&address).await?;
        let made: Vec<PathBuf> =
            below.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        let folder = below.join(format!("dfq-bench-{:016x}", env.next_u64()));
        let mut scratch = Self { below, folder, filesystem: "", made };
        if let Err(error) = std::fs::create_dir_all(&scratch.folder) {
            let error = unwritable(&scratch.below, &error);
            let _ = scratch.remove();
            return Err(error);
        }
        scratch.filesystem = filesystem(&scratch.folder);
        Ok(scratch)
    }

    /// The folder that was asked for, or the nearest that is in no queue.
    pub(super) fn below(&self) -> &Path {
        &self.below
    }

    /// What it writes into.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn filesystem(&self) -> &'static str {
        self.filesystem
    }

    /// Removes everything that was made, and nothing else.
    pub(super) fn remove(self) -> Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("{} cannot be removed: {error}", self.folder.display());
                return Err(dfq::Error::new(ErrorKind::Unavailable, message).into());
            }
        }
        for folder in &self.made {
            // Somebody else may have come to use it meanwhile: then it stays.
            let _ = std::fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// The folder itself, or the nearest above it that does not belong to a queue.
async fn outside_of_queues(address: &Path) -> Result<PathBuf> {
    let mut outside = address.to_owned();
    for folder in address.ancestors() {
        if folder.is_dir() && dfq::open(folder, OpenOptions::existing()).await.is_ok() {
            let Some(above) = folder.parent() else {
                return Err(invalid("the root folder is a queue, and there is no place beside it"));
            };
            outside = above.to_owned();
        }
    }
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    let there = address.ancestors().find_map(device);
    if there != outside.ancestors().find_map(device) {
        return Err(invalid(format!(
            "'{}' is a queue that fills its whole filesystem, and is not to be written into; name a \
             folder beside it",
            address.display()
        )));
    }
    Ok(outside)
}

/// The name of the filesystem that a folder is on.
#[cfg(target_os = "linux")]
fn filesystem(folder: &Path) -> &'static str {
    let Ok(stat) = rustix::fs::statfs(folder) else { return "an unknown filesystem" };
    // As in linux/magic.h and the filesystems' own headers; the type's width differs by machine.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits matter")]
    match stat.f_type as u32 {
        0xEF53 => "ext4 (or ext2, ext3)",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs (memory)",
        0x8584_58F6 => "ramfs (memory)",
        0x794C_7630 => "overlayfs",
        0x6969 => "nfs",
        0xFF53_4D42 | 0xFE53_4D42 => "cifs (SMB)",
        0x6573_5546 => "fuse",
        0x2FC1_2FC1 => "zfs",
        0xF2F5_2010 => "f2fs",
        0xCA45_1A4E => "bcachefs",
        0x0102_1997 => "9p",
        0x6A65_6A63 => "virtiofs",
        0x4D44 => "vfat",
        0x2011_BAB0 => "exfat",
        0x7366_746E => "ntfs",
        0x00C3_6400 => "ceph",
        0x0BD0_0BD0 => "lustre",
        0x0116_1970 => "gfs2",
        0x5346_4846 => "drvfs (WSL)",
        0xF15F => "ecryptfs",
        _ => "an unknown filesystem",
    }
}

#[cfg(not(target_os = "linux"))]
fn filesystem(_folder: &Path) -> &'static str {
    "an unknown filesystem"
}
