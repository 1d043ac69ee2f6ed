//! What is scheduled, and for when: folder by folder on a disk, by pages of keys in a bucket.

use std::collections::BTreeSet;

use super::core::Core;
use super::strategy::Finding;
use crate::error::Result;
use crate::layout::{self, Due};
use crate::model::TaskKey;
use crate::store::{EntryKind, Scanned, Tree};

/// Keys in one request.
const PAGE: usize = 1000;

impl<T: Tree> Core<T> {
    /// Everything that is scheduled, with the time when it is due; what is due first comes first.
    pub(super) async fn scheduled(&self) -> Result<Vec<(Due, TaskKey)>> {
        let mut tasks = Vec::new();
        if self.strategy.finding == Finding::Pages {
            let mut after: Option<String> = None;
            loop {
                let (page, resume) = self.scheduled_page(after.as_deref()).await?;
                tasks.extend(page);
                after = resume;
                if after.is_none() {
                    return Ok(tasks);
                }
            }
        }
        for due in self.due_folders().await? {
            self.each_entry(&layout::due_dir(due), |entry| {
                let key = layout::parse_canonical_stem(&entry.name);
                tasks.extend(key.map(|key| (due, key)));
            })
            .await?;
        }
        Ok(tasks)
    }

    /// The next of what is scheduled, what is due first first, and the path after which to go on; for stores that
    /// list in pages.
    pub(super) async fn scheduled_page(
        &self,
        after: Option<&str>,
    ) -> Result<(Vec<(Due, TaskKey)>, Option<String>)> {
        let page = self.tree.scan(layout::SCHEDULED, after, PAGE).await?;
        let task = |file: &Scanned| {
            let task = layout::parse_scheduled_path(&file.path);
            if task.is_none() {
                tracing::warn!(name = file.path, "not a task in scheduled/");
            }
            task
        };
        let tasks = page.files.iter().filter_map(task).collect();
        let resume = page.files.last().map(|file| file.path.clone()).filter(|_| !page.end);
        Ok((tasks, resume))
    }

    /// The times at which a task may be scheduled. Where it costs less to look into a folder than to list it, these
    /// are all times.
    pub(super) async fn dues_of(&self, key: &TaskKey) -> Result<Vec<Due>> {
        if self.strategy.finding == Finding::Shards {
            return self.due_folders().await;
        }
        let tasks = self.scheduled().await?.into_iter();
        Ok(tasks.filter(|(_, scheduled)| scheduled == key).map(|(due, _)| due).collect())
    }

    /// Scheduled tasks that are not in their first life.
    pub(super) async fn scheduled_lives(&self) -> Result<BTreeSet<TaskKey>> {
        let tasks = self.scheduled().await?.into_iter().map(|(_, key)| key);
        Ok(tasks.filter(|key| key.generation() > 1).collect())
    }

    /// All times at which something is scheduled.
    pub(super) async fn due_folders(&self) -> Result<Vec<Due>> {
        let mut due = Vec::new();
        self.each_entry(layout::SCHEDULED, |entry| match Due::parse(&entry.name) {
            Some(time) if entry.kind == EntryKind::Folder => due.push(time),
            _ => tracing::warn!(name = entry.name, "not a time in scheduled/"),
        })
        .await?;
        due.sort_unstable();
        Ok(due)
    }
}
