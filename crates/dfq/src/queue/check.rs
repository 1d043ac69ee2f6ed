//! Looking for what should not be there, and mending what can be mended without a guess.
//!
//! A mend does only what the next worker that meets the thing would do; everything else, above all
//! files that we did not write, is named and left alone.

use std::sync::Arc;

use super::Problem;
use super::core::Core;
use crate::error::Result;
use crate::format;
use crate::layout::{self, Names, Shard};
use crate::model::{Layout, Outcome, TaskKey};
use crate::store::{EntryKind, Tree};

/// What was found so far.
struct Findings {
    problems: Vec<Problem>,
    repair: bool,
}

impl Findings {
    fn note(&mut self, path: &str, what: &str) {
        self.add(path, what, false);
    }

    fn add(&mut self, path: &str, what: &str, mended: bool) {
        self.problems.push(Problem { path: path.to_owned(), what: what.to_owned(), mended });
    }
}

impl<T: Tree> Core<T> {
    pub(super) async fn check(self: &Arc<Self>, repair: bool) -> Result<Vec<Problem>> {
        let mut findings = Findings { problems: Vec::new(), repair };
        let ours = [
            layout::SETTINGS,
            layout::PAUSED,
            layout::UNLOCKED,
            layout::DOCTOR,
            layout::PENDING,
            layout::SCHEDULED,
            "completed",
            "failed",
            layout::FLOORS,
            layout::WORKERS,
            layout::TMP,
            layout::VERSIONS,
            layout::SYNC,
            layout::CONFLICTS,
        ];
        self.each_entry(".", |entry| {
            if !ours.contains(&entry.name.as_str()) {
                findings.note(&entry.name, "not a part of the queue");
            }
        })
        .await?;
        for place in [layout::PENDING, "completed", "failed"] {
            let mut shards = Vec::new();
            if self.layout() == Layout::Sharded {
                self.each_entry(place, |entry| match Shard::parse(&entry.name) {
                    Some(shard) if entry.kind == EntryKind::Folder => shards.push(shard),
                    _ => findings.note(&layout::below(place, &entry.name), "not a shard"),
                })
                .await?;
            } else {
                shards = Names(Layout::Flat).shards();
            }
            for shard in shards {
                self.check_shard(place, shard, &mut findings).await?;
            }
        }
        for shard in self.names().shards() {
            for (path, what) in self.check_floors(shard).await? {
                findings.note(&path, &what);
            }
        }
        let leftovers = self.purge_leftovers(self.now_or_wall().await, !repair).await?;
        if leftovers > 0 {
            let what = format!("{leftovers} left behind by killed processes or silent workers");
            findings.add(layout::TMP, &what, repair);
        }
        Ok(findings.problems)
    }

    async fn check_shard(
        self: &Arc<Self>,
        place: &str,
        shard: Shard,
        findings: &mut Findings,
    ) -> Result<()> {
        let dir = self.names().shard_dir(place, shard);
        let mut keys = Vec::new();
        let visited = self
            .each_entry(&dir, |entry| {
                let (key, wanted) = match place {
                    layout::PENDING => {
                        (self.names().parse_task_dir(shard, &entry.name), EntryKind::Folder)
                    }
                    _ => (self.names().parse_record_name(shard, &entry.name), EntryKind::File),
                };
                match key.filter(|_| entry.kind == wanted) {
                    Some(key) => keys.push(key),
                    None => findings.note(
                        &layout::below(&dir, &entry.name),
                        "does not belong here: no task that we named, or in the wrong folder",
                    ),
                }
            })
            .await;
        if let Err(error) = visited {
            findings.note(&dir, &error.to_string());
        }
        for key in keys {
            if place == layout::PENDING {
                self.check_task(&key, findings).await?;
            } else {
                let outcome =
                    if place == "completed" { Outcome::Completed } else { Outcome::Failed };
                let path = self.record_path(outcome, &key);
                match self.tree.read(&path).await {
                    Ok(None) => {}
                    Ok(Some(stored)) => {
                        if let Err(error) = format::decode_record(&stored.bytes, outcome, &key) {
                            findings.note(&path, &format!("cannot be read: {error}"));
                        }
                    }
                    Err(error) => findings.note(&path, &error.to_string()),
                }
            }
        }
        Ok(())
    }

    async fn check_task(self: &Arc<Self>, key: &TaskKey, findings: &mut Findings) -> Result<()> {
        let dir = self.task_dir(key);
        let task_dir = match self.tree.open(&dir).await {
            Ok(Some(task_dir)) => task_dir,
            Ok(None) => return Ok(()),
            Err(error) => {
                findings.note(&dir, &error.to_string());
                return Ok(());
            }
        };
        let stored = match self.tree.read_task(&task_dir, None, &self.record_paths(key)).await {
            Ok(stored) => stored,
            Err(error) => {
                findings.note(&dir, &error.to_string());
                return Ok(());
            }
        };
        let remains = match &stored.task {
            None => Some("has no task.json; whoever meets it removes it"),
            Some(_) if stored.finished => Some("has finished; whoever meets it removes it"),
            Some(_) => None,
        };
        if let Some(what) = remains {
            if findings.repair {
                self.clean_task_dir(key, &task_dir).await?;
            }
            findings.add(&dir, what, findings.repair);
            return Ok(());
        }
        if let Some(task) = &stored.task
            && let Err(error) = format::decode_task(&task.bytes, key)
        {
            let what = format!("{error}; whoever claims it sets it aside in failed/");
            let mended = findings.repair && self.set_aside_damaged(key).await?;
            findings.add(&layout::task_file(&dir), &what, mended);
        }
        let history = match self.history(&task_dir).await {
            Ok(history) => history,
            Err(error) => {
                findings.note(&dir, &error.to_string());
                return Ok(());
            }
        };
        for seen in history.iter().filter(|seen| seen.lease.is_none()) {
            let path = layout::lease_file(&dir, seen.attempt);
            findings.note(&path, "cannot be read; it is judged by its age");
        }
        Ok(())
    }
}
