//! Names in a place of a synced queue.

use super::{
    Names, PENDING, SCHEDULED, TASK, WORKERS, below, decode, encode, encode_segment, outcome_dir,
    parse_canonical_stem, parse_scheduled_path, stem,
};
use crate::model::{Outcome, TaskId, TaskKey};

/// What a node knows of its merges; never merged itself.
pub(crate) const SYNC: &str = "sync";
/// Tasks that lost against another of the same id; never merged.
pub(crate) const CONFLICTS: &str = "conflicts";

/// Who a node's folder is.
pub(crate) fn node_identity() -> String {
    below(SYNC, "node.json")
}

/// An identity that could not be read, as it was found.
pub(crate) fn damaged_identity() -> String {
    below(SYNC, "node.damaged.json")
}

/// Nonces that a node may have shown to its hub.
pub(crate) const CHECK_INS: &str = "sync/check-ins";

/// One of them.
pub(crate) fn check_in(nonce: &str) -> String {
    below(CHECK_INS, &format!("{}.json", encode_segment(nonce)))
}

/// What a node's last pass has told.
pub(crate) fn neighbours() -> String {
    below(SYNC, "nodes.json")
}

/// What a node's last pass found to be alike.
pub(crate) fn merge_memory() -> String {
    below(SYNC, "memory.json")
}

/// The pause that a node has taken over from the hub.
pub(crate) fn mirrored_pause() -> String {
    below(SYNC, "paused.json")
}

/// What a node's last passes came to.
pub(crate) fn merge_report() -> String {
    below(SYNC, "status.json")
}

/// A node's record in the hub. No worker's record has such a name.
pub(crate) fn node_record(node: &str) -> String {
    let mut path = format!("{WORKERS}/");
    encode(&mut path, node);
    path.push_str(NODE);
    path
}

const NODE: &str = ".node";

/// The node of a record found under `workers/`.
pub(crate) fn parse_node_name(name: &str) -> Option<String> {
    decode(name.strip_suffix(NODE)?)
}

/// A task that lost against another of the same id.
pub(crate) fn conflict_path(key: &TaskKey, mark: &str) -> String {
    below(CONFLICTS, &format!("{}.{}.json", stem(key), encode_segment(mark)))
}

/// The task of a file found under `conflicts/`, and the mark of its push.
pub(crate) fn parse_conflict_name(name: &str) -> Option<(TaskKey, String)> {
    let (stem, mark) = name.strip_suffix(".json")?.rsplit_once('.')?;
    Some((parse_canonical_stem(stem)?, decode(mark)?))
}

/// All names of `completed/` and `failed/` come before this one, and all others of a queue that are merged after it.
pub(crate) fn after_records() -> String {
    format!("{}~", outcome_dir(Outcome::Failed))
}

/// Which process merges a node's folder.
pub(crate) fn supervisor() -> String {
    below(SYNC, "supervisor.json")
}

impl Names {
    /// How the names of all tasks begin that share a shard with this id.
    pub(crate) fn pending_prefix(self, id: &TaskId) -> String {
        let dir = self.task_dir(&TaskKey::new(id.clone(), 1));
        dir.rsplit_once('/').map_or(dir.clone(), |(shard, _)| below(shard, ""))
    }

    /// Whether a path below `floors/` is that of a file of floors.
    pub(crate) fn is_floor_path(self, path: &str) -> bool {
        let is_name = |name: &str| !name.contains('/') && super::is_floor_name(name);
        self.split_shard(path).is_some_and(|(_, name)| is_name(name))
    }

    /// The task of a folder or a record anywhere in a queue.
    pub(crate) fn parse_any_path(self, path: &str) -> Option<TaskKey> {
        let (place, rest) = path.split_once('/')?;
        let key = match place {
            PENDING => self.parse_task_path(rest),
            SCHEDULED => parse_scheduled_path(&below(rest, TASK)).map(|(_, key)| key),
            _ => [Outcome::Completed, Outcome::Failed]
                .into_iter()
                .find(|outcome| outcome_dir(*outcome) == place)
                .and_then(|_| self.parse_record_path(rest)),
        };
        key.filter(|key| !key.is_verbatim())
    }
}
