//! What the last pass found to be alike in both places, so that the next need not read it.
//!
//! Invariant: it is a cache. Lost, torn or of another queue, it is empty, and everything is compared. It holds only
//! what the very answers of a pass said: fingerprints of names and versions that were read and found alike. Nothing is
//! ever removed on its word.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Side;
use super::look::Met;
use crate::error::Result;
use crate::format;
use crate::layout;
use crate::model::TaskId;
use crate::queue::core::Core;
use crate::store::{Tree, Version};

/// What tells a state of names and versions from any other.
pub(super) type Print = u128;

const THERE: &str = "there";

/// More than this is written down now and then only: it would wear a memory card out.
const LARGE: usize = 5_000;

/// More than this is not written down: the file could not be read again.
const MOST_WRITTEN: usize = 1_500_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Ids whose tasks are alike.
    tasks: BTreeSet<Print>,
    /// Records that the other place has, too.
    records: BTreeSet<Print>,
    /// Files of floors in the hub that are known here.
    floors: BTreeSet<String>,
    /// When a pass that listed records, too, began, on this folder's clock.
    thorough: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct MemoryDoc {
    queue_id: String,
    node: String,
    tasks: Vec<String>,
    records: Vec<String>,
    floors: Vec<String>,
    #[serde(default)]
    thorough: Option<Timestamp>,
}

fn print(parts: &[&str]) -> Print {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    u128::from_be_bytes(bytes)
}

/// What tells this state of an id from any other.
pub(super) fn print_of(id: &TaskId, here: &Met, there: &Met) -> Print {
    let mut parts: Vec<String> = vec![id.as_str().to_owned()];
    for met in [here, there] {
        for (life, task) in &met.pending {
            parts.push(format!("p{life}"));
            parts.extend(task.task.clone());
            for (attempt, tag) in &task.leases {
                parts.push(format!("l{attempt}"));
                parts.push(tag.clone());
            }
        }
        for ((life, due), tag) in &met.scheduled {
            parts.push(format!("s{life} {}", due.name()));
            parts.push(tag.clone());
        }
        parts.push("|".to_owned());
    }
    print(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What tells a path from any other.
pub(super) fn print_of_path(path: &str) -> Print {
    print(&[path])
}

impl Memory {
    pub(super) async fn load<T: Tree>(core: &Core<T>, queue_id: &str, node: &str) -> Self {
        let stored = core.tree.read(&layout::merge_memory()).await.ok().flatten();
        let doc = stored.and_then(|it| serde_json::from_slice::<MemoryDoc>(&it.bytes).ok());
        let Some(doc) = doc.filter(|doc| doc.queue_id == queue_id && doc.node == node) else {
            return Self::default();
        };
        let prints = |texts: Vec<String>| {
            texts.iter().filter_map(|text| u128::from_str_radix(text, 16).ok()).collect()
        };
        Self {
            tasks: prints(doc.tasks),
            records: prints(doc.records),
            floors: doc.floors.into_iter().collect(),
            thorough: doc.thorough,
        }
    }

    pub(super) async fn save<T: Tree>(
        &self,
        core: &Core<T>,
        queue_id: &str,
        node: &str,
    ) -> Result<()> {
        if self.tasks.len() + self.records.len() > MOST_WRITTEN {
            return Ok(());
        }
        let texts = |prints: &BTreeSet<Print>| prints.iter().map(|it| format!("{it:x}")).collect();
        let doc = MemoryDoc {
            queue_id: queue_id.to_owned(),
            node: node.to_owned(),
            tasks: texts(&self.tasks),
            records: texts(&self.records),
            floors: self.floors.iter().cloned().collect(),
            thorough: self.thorough,
        };
        core.tree.replace(&layout::merge_memory(), &format::line(&doc)).await
    }

    /// Whether records are to be listed again.
    pub(super) fn is_thorough_due(&self, now: Timestamp, every: SignedDuration) -> bool {
        let rested = self.thorough.map(|last| now.duration_since(last));
        rested.is_none_or(|rested| rested < SignedDuration::ZERO || rested >= every)
    }

    pub(super) fn set_thorough(&mut self, began: Timestamp) {
        self.thorough = Some(began);
    }

    pub(super) fn has_task(&self, print: Print) -> bool {
        self.tasks.contains(&print)
    }

    /// From here on these ids count as alike, and no others.
    pub(super) fn set_tasks(&mut self, tasks: BTreeSet<Print>) {
        self.tasks = tasks;
    }

    /// Whether a record of this version is known to be in the other place, too.
    pub(super) fn has_record(&self, path: &str, version: &Version) -> bool {
        self.records.contains(&print(&[path, version.tag()]))
    }

    /// From here on it is not known that the other place has this record.
    pub(super) fn forget_record(&mut self, path: &str, tag: &str) {
        self.records.remove(&print(&[path, tag]));
    }

    /// Whether a listing has shown what is known to be in both places. Notes what it has shown.
    pub(super) fn has_shown_record(
        &self,
        path: &str,
        tag: &str,
        side: Side,
        shown: &mut BTreeSet<Print>,
    ) -> bool {
        let print = match side {
            Side::Here => print(&[path, tag]),
            Side::There => print(&[path, THERE, tag]),
        };
        let known = self.records.contains(&print);
        if known {
            shown.insert(print);
        }
        known
    }

    /// From here on no records are known but these.
    pub(super) fn set_records(&mut self, records: BTreeSet<Print>) {
        self.records = records;
    }

    /// It takes long to write it down.
    pub(super) fn is_large(&self) -> bool {
        self.tasks.len() + self.records.len() > LARGE
    }

    /// Both places have this record, in these versions.
    pub(super) fn add_record(&mut self, path: &str, here: &Version, there: &Version) {
        self.records.insert(print(&[path, here.tag()]));
        self.records.insert(print(&[path, THERE, there.tag()]));
    }

    pub(super) fn has_floor(&self, path: &str) -> bool {
        self.floors.contains(path)
    }

    /// The files of floors in the hub, all of which are known here.
    pub(super) fn set_floors(&mut self, floors: impl IntoIterator<Item = String>) {
        self.floors = floors.into_iter().collect();
    }
}
