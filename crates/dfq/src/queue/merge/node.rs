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
use crate::model::{Synced, TaskId};
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
    /// What this folder last wrote into the node's record in the hub, and what it may have written since. A record
    /// that says neither is of another folder with this id: one of the two is a copy.
    #[serde(default)]
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
    /// When the last pass began that came to its end.
    pub(in crate::queue) passed: Option<Timestamp>,
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

    /// This node's id. The first who asks makes it.
    pub(in crate::queue) async fn node(&self) -> Option<String> {
        self.as_node()?;
        match self.identity().await {
            Ok(identity) => {
                lock(&self.nodes).own = Some(identity.node.clone());
                Some(identity.node)
            }
            Err(error) => {
                tracing::warn!(%error, "this node's id cannot be read");
                lock(&self.nodes).own.clone()
            }
        }
    }

    /// This node's id, as it was last read.
    pub(in crate::queue) async fn own_node(&self) -> Option<String> {
        self.as_node()?;
        let known = lock(&self.nodes).own.clone();
        match known {
            Some(node) => Some(node),
            None => self.node().await,
        }
    }

    pub(in crate::queue) async fn identity(&self) -> Result<Identity> {
        let path = layout::node_identity();
        for _ in 0..3 {
            if let Some(stored) = self.tree.read(&path).await? {
                return serde_json::from_slice(&stored.bytes)
                    .map_err(|error| Error::damaged(format!("'{path}' cannot be read: {error}")));
            }
            let identity = self.new_identity();
            if self.tree.create(&path, &format::line(&identity)).await? == Created::New {
                return Ok(identity);
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
        // Durably: a hub must not hear of a nonce that the folder then forgets.
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

    /// What is known of other nodes, if this is one.
    pub(in crate::queue) async fn elsewhere(&self) -> Option<Elsewhere> {
        let period = self.as_node()?.period;
        let node = self.own_node().await?;
        let passed = self.neighbours().await.began;
        // A delay may be asked for that is longer than any backoff.
        let longest_wait = self.settings.backoff.max.max(LONGEST_DELAY);
        Some(Elsewhere { node, period, passed, longest_wait, left: Duration::ZERO })
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
