//! Pages of keys, put together to tasks again.

use jiff::Timestamp;

use crate::layout::{self, Names};
use crate::model::{Layout, TaskKey};
use crate::store::{Scan, Scanned, Version};

/// A task's folder as a page of keys shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Met {
    pub(super) key: TaskKey,
    pub(super) leases: Vec<MetLease>,
    /// When the task itself was written, or the record that it left; `None` if there are only leases.
    pub(super) written: Option<Timestamp>,
    /// The length of the record that it left, and which of its contents that is.
    pub(super) record: Option<(u64, Version)>,
}

impl Met {
    /// A task of which no more is known than its name.
    pub(super) fn named(key: TaskKey) -> Self {
        Self { key, leases: Vec::new(), written: None, record: None }
    }

    /// Somebody has claimed it, at some time.
    pub(super) fn is_leased(&self) -> bool {
        !self.leases.is_empty()
    }

    /// The numbers of its leases, ascending.
    pub(super) fn attempts(&self) -> Vec<u32> {
        let mut attempts: Vec<u32> = self.leases.iter().map(|lease| lease.attempt).collect();
        attempts.sort_unstable();
        attempts
    }
}

/// A lease file as a page of keys shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetLease {
    pub(super) attempt: u32,
    pub(super) modified: Timestamp,
    pub(super) version: u64,
}

/// The task folders that a page of `pending/` shows, in order, and the path after which to go on. A
/// folder that the page may have cut in two is left to the next.
pub(super) fn group(layout: Layout, page: &Scan) -> (Vec<Met>, Option<String>) {
    let mut folders: Vec<(&str, Vec<(&str, &Scanned)>)> = Vec::new();
    let mut before_last = None;
    let mut previous = None;
    for file in &page.files {
        let path = &file.path;
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        match folders.last_mut() {
            Some((last, files)) if *last == folder => files.push((name, file)),
            _ => {
                before_last = previous;
                folders.push((folder, vec![(name, file)]));
            }
        }
        previous = Some(path.clone());
    }
    let mut resume = previous.filter(|_| !page.end);
    let cut = page.files.last().is_some_and(|file| !file.path.ends_with(layout::TASK));
    if resume.is_some() && cut && folders.len() > 1 {
        folders.pop();
        resume = before_last;
    }
    let met = folders.into_iter().filter_map(|(folder, files)| {
        let Some(key) = Names(layout).parse_task_path(folder) else {
            tracing::warn!(folder, "not a task in pending/");
            return None;
        };
        let task = files.iter().find(|(name, _)| *name == layout::TASK);
        let written = task.map(|(_, file)| file.modified);
        let lease = |(name, file): &(&str, &Scanned)| {
            let attempt = layout::parse_lease_name(name)?;
            Some(MetLease { attempt, modified: file.modified, version: file.version.digest() })
        };
        let leases = files.iter().filter_map(lease).collect();
        Some(Met { leases, written, ..Met::named(key) })
    });
    (met.collect(), resume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TaskId;

    fn page(files: &[&str], end: bool) -> Scan {
        let file = |path: &&str| Scanned {
            path: (*path).to_owned(),
            modified: Timestamp::UNIX_EPOCH,
            size: 1,
            version: Version::new("7"),
        };
        Scan { files: files.iter().map(file).collect(), end }
    }

    #[test]
    fn keys_become_tasks() {
        let page =
            page(&["a/lease.2.json", "a/lease.json", "a/task.json", "b/task.json", "c/x"], true);
        let (met, resume) = group(Layout::Flat, &page);
        let version = Version::new("7").digest();
        let lease = |attempt| MetLease { attempt, modified: Timestamp::UNIX_EPOCH, version };
        let of = |name: &str, leases: &[u32], task: bool| Met {
            leases: leases.iter().map(|attempt| lease(*attempt)).collect(),
            written: task.then_some(Timestamp::UNIX_EPOCH),
            ..Met::named(TaskKey::new(TaskId::new(name).unwrap(), 1))
        };
        assert_eq!(met, [of("a", &[2, 1], true), of("b", &[], true), of("c", &[], false)]);
        assert_eq!(resume, None);
    }

    #[test]
    fn a_folder_cut_in_two_is_left_to_the_next_page() {
        let cut = page(&["a/task.json", "b/lease.json"], false);
        let (met, resume) = group(Layout::Flat, &cut);
        assert_eq!((met.len(), resume.as_deref()), (1, Some("a/task.json")));
        let whole = page(&["a/task.json", "b/task.json"], false);
        let (met, resume) = group(Layout::Flat, &whole);
        assert_eq!((met.len(), resume.as_deref()), (2, Some("b/task.json")));
        // One folder as large as a page cannot be had whole.
        let huge = page(&["a/lease.2.json", "a/lease.3.json"], false);
        let (met, resume) = group(Layout::Flat, &huge);
        assert_eq!((met.len(), resume.as_deref()), (1, Some("a/lease.3.json")));
    }

    #[test]
    fn strangers_are_no_tasks() {
        let page = page(&["note.txt", "zz/x/task.json"], true);
        assert_eq!(group(Layout::Sharded, &page).0, []);
    }
}
