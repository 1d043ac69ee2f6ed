//! Which node this is, who its neighbours are, and what both mean to workers.
//!
//! Invariant: a node's id is in its folder and nowhere else, so whoever uses the folder is that node. It is only
//! ever used to tell one's own leases from others', and to share out tasks.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::clock::lock;
use crate::error::{Error, Result};
use crate::format;
use crate::layout;
use crate::model::{Synced, TaskId, TaskKey};
use crate::queue::core::Core;
use crate::store::{Created, Tree};

/// How long what was read of the neighbours counts.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// A node that was not heard of for so many periods has no part in sharing out tasks.
pub(super) const SILENT_PERIODS: u32 = 5;

/// The longest wait of another node's task that is believed.
const LONGEST_DELAY: Duration = Duration::from_secs(24 * 3600);

/// Who a folder is, as `sync/node.json` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The node's id.
    pub node: String,
    /// Nonces that this folder has shown to the hub, as an earlier version noted them; see `nonces`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nonces: Vec<String>,
    /// The hub has had a record of this node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub known: bool,
    /// The other place, as it was last called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
}

/// What the last pass that came to its end has told, as `sync/nodes.json` says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Neighbours {
    /// The nodes that were heard of lately, this one among them.
    pub nodes: Vec<String>,
    /// When that pass began, on this folder's clock.
    pub began: Option<Timestamp>,
    /// Tasks that were pushed here and written after this time, on this folder's clock, never went up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Timestamp>,
    /// When that pass began, on the hub's clock, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_there: Option<Timestamp>,
    /// What that pass has left out: how paths in `pending/` begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlooked: Vec<String>,
    /// When this folder's clock was last seen to have been set, by what it showed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_set: Option<Timestamp>,
}

/// What a process remembers of these.
#[derive(Debug, Default)]
pub(in crate::queue) struct Nodes {
    own: Option<String>,
    neighbours: Neighbours,
    read: Option<Duration>,
    /// When a task was last claimed that hashes to this node.
    own_work: Option<Duration>,
}

impl Nodes {
    /// Notes that a task was claimed.
    pub(super) fn note_work(&mut self, id: &TaskId, now: Duration) {
        let own = node_of(id, &self.neighbours.nodes);
        if own.is_some() && own == self.own.as_ref() {
            self.own_work = Some(now);
        }
    }

    /// Whether a task of this node's own was claimed within this time.
    pub(super) fn has_work(&self, within: Duration, now: Duration) -> bool {
        self.own_work.is_some_and(|last| now.saturating_sub(last) < within)
    }
}

/// What a worker must know to judge other nodes' leases.
#[derive(Clone, Debug)]
pub(in crate::queue) struct Elsewhere {
    pub(in crate::queue) node: String,
    pub(in crate::queue) period: Duration,
    /// When the last pass began that came to its end. Nothing, if it has left this task out.
    pub(in crate::queue) passed: Option<Timestamp>,
    /// When this folder's clock was seen to have been set, by the last pass and by this process.
    pub(in crate::queue) clock_set: [Option<Timestamp>; 2],
    /// The longest wait between attempts.
    pub(in crate::queue) longest_wait: Duration,
    /// For how long a task that was given back here is left to the node that it hashes to.
    pub(in crate::queue) left: Duration,
}

impl<T: Tree> Core<T> {
    /// How this place is synced, if it is a node's folder.
    pub(in crate::queue) fn as_node(&self) -> Option<&Synced> {
        self.settings.synced.as_ref().filter(|synced| !synced.hub)
    }

    /// This node's id, if this is one. The first who asks makes it. An error if it cannot be read and never was: others
    /// would take a lease without it for one of their own.
    pub(in crate::queue) async fn node(&self) -> Result<Option<String>> {
        if self.as_node().is_none() {
            return Ok(None);
        }
        match self.identity().await {
            Ok(identity) => {
                lock(&self.nodes).own = Some(identity.node.clone());
                Ok(Some(identity.node))
            }
            Err(error) => {
                let known = lock(&self.nodes).own.clone();
                tracing::warn!(%error, "this node's id cannot be read");
                known.map(Some).ok_or(error)
            }
        }
    }

    /// This node's id, as it was last read.
    pub(in crate::queue) async fn own_node(&self) -> Option<String> {
        self.as_node()?;
        let known = lock(&self.nodes).own.clone();
        match known {
            Some(node) => Some(node),
            None => self.node().await.ok().flatten(),
        }
    }

    pub(in crate::queue) async fn identity(&self) -> Result<Identity> {
        let path = layout::node_identity();
        for _ in 0..3 {
            let stored = self.tree.read(&path).await?;
            let said = stored.as_ref().and_then(|it| serde_json::from_slice(&it.bytes).ok());
            if let Some(identity) = said {
                return Ok(identity);
            }
            // Lost, or spoiled by a power cut.
            let known = self.identity_by_nonces().await?;
            let identity = known.unwrap_or_else(|| self.new_identity());
            match stored {
                Some(stored) => {
                    self.tree.create(&layout::damaged_identity(), &stored.bytes).await?;
                    self.put_identity(&identity).await?;
                    tracing::warn!(
                        node = identity.node,
                        "'{path}' could not be read; written anew"
                    );
                    return Ok(identity);
                }
                None if self.tree.create(&path, &format::line(&identity)).await?
                    == Created::New =>
                {
                    return Ok(identity);
                }
                None => {}
            }
        }
        Err(Error::damaged(format!("'{path}' comes and goes")))
    }

    pub(super) fn new_identity(&self) -> Identity {
        let host = layout::encode_segment(&self.env.host().name);
        let node = format!("{host}-{:08x}", self.env.next_u64() as u32);
        Identity { node, nonces: Vec::new(), known: false, with: None }
    }

    pub(super) async fn put_identity(&self, identity: &Identity) -> Result<()> {
        self.tree.put(&layout::node_identity(), &format::line(identity)).await
    }

    pub(super) async fn put_neighbours(&self, neighbours: &Neighbours) -> Result<()> {
        lock(&self.nodes).read = None;
        self.tree.replace(&layout::neighbours(), &format::line(neighbours)).await
    }

    /// How often this place is merged.
    pub(super) fn period(&self) -> Duration {
        self.settings.synced.as_ref().map_or(Duration::ZERO, |synced| synced.period)
    }

    /// What is known of the last pass.
    pub(super) async fn neighbours(&self) -> Neighbours {
        let now = self.env.monotonic();
        {
            let nodes = lock(&self.nodes);
            if nodes.read.is_some_and(|read| now.saturating_sub(read) < READ_AGAIN) {
                return nodes.neighbours.clone();
            }
        }
        let stored = self.tree.read(&layout::neighbours()).await.ok().flatten();
        let neighbours = stored.and_then(|it| serde_json::from_slice(&it.bytes).ok());
        let mut nodes = lock(&self.nodes);
        nodes.read = Some(now);
        nodes.neighbours = neighbours.unwrap_or_default();
        nodes.neighbours.clone()
    }

    /// What is known of other nodes, if this is one, for those who judge their leases of this task.
    pub(in crate::queue) async fn elsewhere(&self, key: &TaskKey) -> Option<Elsewhere> {
        let period = self.as_node()?.period;
        // If that is not known, all leases are taken for others', which are left alone for longer.
        let node = self.own_node().await.unwrap_or_default();
        let Neighbours { began, unlooked, clock_set, .. } = self.neighbours().await;
        let dir = layout::below(&self.task_dir(key), "");
        let passed = began.filter(|_| !unlooked.iter().any(|it| dir.starts_with(it)));
        let clock_set = [clock_set, lock(&self.clock).set_at()];
        // A delay may be asked for that is longer than any backoff.
        let longest_wait = self.settings.backoff.max.max(LONGEST_DELAY);
        Some(Elsewhere { node, period, passed, clock_set, longest_wait, left: Duration::ZERO })
    }
}

/// To which of these nodes a task hashes: the same wherever this is asked, and few change when a node comes or goes.
pub(super) fn node_of<'a>(id: &TaskId, nodes: &'a [String]) -> Option<&'a String> {
    nodes.iter().max_by_key(|node| {
        let mut hash = Sha256::new();
        hash.update(id.as_str().as_bytes());
        hash.update([0]);
        hash.update(node.as_bytes());
        hash.finalize()
    })
}
