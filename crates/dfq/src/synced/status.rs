//! What a supervisor did, as `sync/status.json` tells it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::error::Result;
use crate::meter::{Bytes, Counts, Prices};
use crate::options::OpenOptions;
use crate::provider;
use crate::queue::merge::{Conflict, LeftToOthers, Passed, TaskHere};
use crate::queue::{Queue, TaskView};

/// What has come of a supervisor's passes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// This node.
    pub node: String,
    /// The hub's address.
    pub hub: String,
    /// The supervisor's process.
    pub pid: u32,
    /// When it started, by this machine's calendar.
    pub started_at: Option<Timestamp>,
    /// How often it merges, in seconds.
    pub every_s: f64,
    /// The last whole pass that came to its end.
    pub last: Option<LastPass>,
    /// Whole passes so far.
    pub passes: u64,
    /// Files written to the hub so far.
    pub up: u64,
    /// Files written to the folder so far.
    pub down: u64,
    /// Requests to the hub so far.
    pub requests: Counts,
    /// What went to the hub and came from it so far, if it is a bucket.
    #[serde(default)]
    pub bytes: Bytes,
    /// What keeps it from merging now.
    pub error: Option<String>,
    /// Since when, by this machine's calendar.
    pub failing_since: Option<Timestamp>,
    /// Tasks in `conflicts/`; counted when it is asked for.
    #[serde(default)]
    pub conflicts: u64,
    /// Other nodes that were heard of lately.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// How long ago the last whole pass began, on the folder's clock; filled in when it is asked for.
    #[serde(default)]
    pub behind_s: Option<f64>,
}

/// A whole pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastPass {
    /// When it ended, by this machine's calendar.
    pub at: Timestamp,
    /// How long it took.
    pub seconds: f64,
    /// What came of it.
    pub passed: Passed,
}

impl Status {
    /// What it costs a day, going by its requests so far. Nothing, before it has run for some passes.
    pub fn dollars_a_day(&self, prices: &Prices, now: Timestamp) -> Option<f64> {
        let ran = now.duration_since(self.started_at?).as_secs_f64();
        (self.passes > 2 && ran > 0.0).then(|| prices.dollars(&self.requests) * 86_400.0 / ran)
    }
}

/// What a folder's supervisor did last. Nothing, if the folder is not synced.
pub async fn status(folder: &Address, options: OpenOptions) -> Result<Option<Status>> {
    let queue = provider::open_folder(folder, options).await?;
    let Some(synced) = queue.settings().synced.clone().filter(|synced| !synced.hub) else {
        return Ok(None);
    };
    let mut status: Status = queue.status().await?.unwrap_or_default();
    // What others count on, whatever this supervisor was told.
    status.every_s = synced.period.as_secs_f64();
    let neighbours = queue.neighbours().await;
    status.conflicts = queue.count_conflicts().await?;
    status.nodes = neighbours.nodes;
    if let Some(began) = neighbours.began {
        // Also where nothing can be written.
        status.behind_s = Some(queue.now().await.duration_since(began).as_secs_f64());
    }
    Ok(Some(status))
}

/// What a node's folder knows of a task beyond what any queue knows.
pub async fn task_here(
    folder: &Address,
    options: OpenOptions,
    view: &TaskView,
) -> Result<TaskHere> {
    provider::open_folder(folder, options).await?.task_here(view).await
}

/// How many tasks nobody has claimed because workers of this node leave them to other nodes for now.
pub async fn count_left_to_others(folder: &Address, options: OpenOptions) -> Result<LeftToOthers> {
    provider::open_folder(folder, options).await?.count_left_to_others().await
}

/// The tasks in a folder that lost against another of the same id.
pub async fn conflicts(folder: &Address, options: OpenOptions) -> Result<Vec<Conflict>> {
    provider::open_folder(folder, options).await?.conflicts().await
}

/// Removes one of them, which somebody has dealt with.
pub async fn drop_conflict(
    folder: &Address,
    options: OpenOptions,
    conflict: &Conflict,
) -> Result<()> {
    provider::open_folder(folder, options).await?.drop_conflict(conflict).await
}
