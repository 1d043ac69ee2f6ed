//! What arrives in a queue's folders, by name, as it arrives: new tasks and records.
//!
//! Invariant: nothing that arrives after the start is left out in silence. Where the kernel had to drop something, the
//! answer is that all must be looked at.

use std::collections::BTreeSet;
#[cfg(not(target_os = "linux"))]
use std::path::Path;

/// What has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// These names, relative to the queue's root: folders of tasks, and records.
    Names(BTreeSet<String>),
    /// Something, and nobody knows what.
    Unknown,
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::{BTreeMap, BTreeSet};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::{Path, PathBuf};

    use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
    use tokio::io::unix::AsyncFd;

    use super::News;
    use crate::layout;
    use crate::model::Outcome;

    /// Watches the folders of a queue. A folder that comes later is watched once it is there, and what it holds by then
    /// counts as arrived.
    pub struct Arrivals {
        events: AsyncFd<OwnedFd>,
        root: PathBuf,
        /// The path below the root of each folder that is watched.
        watched: BTreeMap<i32, String>,
    }

    impl std::fmt::Debug for Arrivals {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Arrivals").field("root", &self.root).finish_non_exhaustive()
        }
    }

    fn places() -> [&'static str; 4] {
        let records = layout::outcome_dir;
        let [done, failed] = [records(Outcome::Completed), records(Outcome::Failed)];
        [layout::PENDING, layout::SCHEDULED, done, failed]
    }

    impl Arrivals {
        /// Starts to watch; `None` if the kernel will not, outside a runtime, or on a network filesystem, where other
        /// machines' changes are not seen.
        pub fn start(root: &Path) -> Option<Self> {
            tokio::runtime::Handle::try_current().ok()?;
            if !super::super::watch::is_local(&std::fs::File::open(root).ok()?) {
                return None;
            }
            let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
            let fd = inotify::init(flags).ok()?;
            #[allow(deprecated, reason = "an OwnedFd keeps its promise without unsafe code")]
            let events = AsyncFd::new(fd).ok()?;
            let mut arrivals = Self { events, root: root.to_owned(), watched: BTreeMap::new() };
            arrivals.watch("")?;
            let mut there = BTreeSet::new();
            for place in places() {
                arrivals.enter(place, &mut there);
            }
            Some(arrivals)
        }

        fn watch(&mut self, below: &str) -> Option<()> {
            let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
            let path = self.root.join(below);
            let id = inotify::add_watch(&self.events, path, flags).ok()?;
            self.watched.insert(id, below.to_owned());
            Some(())
        }

        /// Watches a folder, and those below it. What is in it counts as arrived.
        fn enter(&mut self, below: &str, arrived: &mut BTreeSet<String>) {
            if self.watch(below).is_none() {
                return;
            }
            let Ok(entries) = std::fs::read_dir(self.root.join(below)) else { return };
            for entry in entries.flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                self.note(below, &name, arrived);
            }
        }

        /// A name in a folder that is watched.
        fn note(&mut self, folder: &str, name: &str, arrived: &mut BTreeSet<String>) {
            if folder.is_empty() {
                if places().contains(&name) {
                    self.enter(name, arrived);
                }
                return;
            }
            let path = layout::below(folder, name);
            match folder.contains('/') {
                true => _ = arrived.insert(path),
                false => self.enter(&path, arrived),
            }
        }

        /// Waits for arrivals. Answers `None` once the runtime it was made on is gone.
        pub async fn next(&mut self) -> Option<News> {
            loop {
                let mut ready = self.events.readable().await.ok()?;
                let (mut seen, mut is_unknown) = (Vec::new(), false);
                {
                    let mut buffer = [MaybeUninit::uninit(); 8192];
                    let mut reader = inotify::Reader::new(&self.events, &mut buffer);
                    while let Ok(event) = reader.next() {
                        is_unknown |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                        if event.events().contains(ReadFlags::IGNORED) {
                            seen.push((event.wd(), None));
                        } else if let Some(name) = event.file_name().and_then(|it| it.to_str().ok())
                        {
                            seen.push((event.wd(), Some(name.to_owned())));
                        }
                    }
                }
                ready.clear_ready();
                drop(ready);
                let mut arrived = BTreeSet::new();
                for (id, name) in seen {
                    let Some(name) = name else {
                        self.watched.remove(&id);
                        continue;
                    };
                    if let Some(folder) = self.watched.get(&id).cloned() {
                        self.note(&folder, &name, &mut arrived);
                    }
                }
                if is_unknown {
                    return Some(News::Unknown);
                }
                if !arrived.is_empty() {
                    return Some(News::Names(arrived));
                }
            }
        }
    }
}

#[cfg(target_os = "linux")]
pub use linux::Arrivals;

/// Where nothing tells of arrivals, there are none.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub struct Arrivals(std::convert::Infallible);

#[cfg(not(target_os = "linux"))]
impl Arrivals {
    /// Nothing can be watched here.
    pub fn start(_: &Path) -> Option<Self> {
        None
    }

    /// Never comes to be called.
    pub async fn next(&mut self) -> Option<News> {
        match self.0 {}
    }
}
