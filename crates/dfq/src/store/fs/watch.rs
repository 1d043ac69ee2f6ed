//! Waking up when another process on this machine has done something, by inotify.
//!
//! One watch is enough for all pushes: each ends with a rename out of `tmp/`. A bell that somebody
//! rings is a new modification time of `tmp/`. Programs that push without us make folders right under
//! `pending/`, and a pause is a file in the root.

use std::os::fd::{AsFd, BorrowedFd};

use crate::store::Properties;

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;

    use rustix::fs::inotify;
    use tokio::io::unix::AsyncFd;

    use crate::layout;

    pub(super) struct Watcher(AsyncFd<OwnedFd>);

    impl Watcher {
        /// Watches the tree below `root`; `None` if the kernel will not, or outside a runtime.
        pub(super) fn start(root: &str) -> Option<Self> {
            tokio::runtime::Handle::try_current().ok()?;
            let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
            let fd = inotify::init(flags).ok()?;
            let arrivals = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
            let tmp = inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::ATTRIB;
            let pauses = arrivals | inotify::WatchFlags::DELETE;
            inotify::add_watch(&fd, layout::below(root, layout::TMP), tmp).ok()?;
            // These only add to it.
            let _ = inotify::add_watch(&fd, layout::below(root, layout::PENDING), arrivals);
            let _ = inotify::add_watch(&fd, root, pauses);
            #[allow(deprecated, reason = "an OwnedFd keeps its promise without unsafe code")]
            AsyncFd::new(fd).ok().map(Self)
        }

        /// Waits for something to look at. Answers `false` once the runtime it was made on is gone.
        pub(super) async fn event(&self) -> bool {
            loop {
                let Ok(mut ready) = self.0.readable().await else { return false };
                let mut buffer = [MaybeUninit::uninit(); 4096];
                let mut events = inotify::Reader::new(&self.0, &mut buffer);
                let mut worth_a_look = false;
                while let Ok(event) = events.next() {
                    // Only a push moves a folder out of `tmp/`; leases are renewed by moving files.
                    let file_moved = event.events().contains(inotify::ReadFlags::MOVED_FROM)
                        && !event.events().contains(inotify::ReadFlags::ISDIR);
                    worth_a_look |= !file_moved;
                }
                ready.clear_ready();
                if worth_a_look {
                    return true;
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod linux {
    pub(super) struct Watcher;

    impl Watcher {
        pub(super) fn start(_: &str) -> Option<Self> {
            None
        }

        pub(super) async fn event(&self) -> bool {
            std::future::pending().await
        }
    }
}

/// The watcher, once somebody waits.
#[derive(Default)]
pub(super) struct Watch(tokio::sync::Mutex<Option<linux::Watcher>>);

impl Watch {
    /// Waits until something may have changed. Never, where nobody tells.
    pub(super) async fn changed(&self, properties: &Properties) {
        if !properties.notices_changes {
            return std::future::pending().await;
        }
        let mut watcher = self.0.lock().await;
        if watcher.is_none() {
            *watcher = linux::Watcher::start(&properties.address);
            if watcher.is_some() {
                // Whatever happened before the watch began has gone unnoticed: look once more.
                return;
            }
        }
        match &*watcher {
            Some(watching) => {
                if !watching.event().await {
                    *watcher = None;
                }
            }
            None => std::future::pending().await,
        }
    }
}

/// Whether the kernel sees all changes to this directory: not on a network filesystem, where other
/// machines make them.
pub(super) fn is_local(dir: &impl AsFd) -> bool {
    filesystem_type(dir.as_fd()).is_some_and(|magic| !NETWORK.contains(&magic))
}

/// NFS, SMB (three ages), FUSE, 9p, Ceph, AFS, Lustre, GPFS.
const NETWORK: [u64; 10] = [
    0x6969,
    0x517B,
    0xFF53_4D42,
    0xFE53_4D42,
    0x6573_5546,
    0x0102_1997,
    0x00C3_6400,
    0x5346_414F,
    0x0BD0_0BD0,
    0x4750_4653,
];

#[cfg(target_os = "linux")]
fn filesystem_type(dir: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstatfs(dir).ok()?;
    // Some of the numbers are negative as the 32-bit integers that they once were.
    Some(u64::from(stat.f_type as u32))
}

#[cfg(not(target_os = "linux"))]
fn filesystem_type(_: BorrowedFd<'_>) -> Option<u64> {
    None
}
