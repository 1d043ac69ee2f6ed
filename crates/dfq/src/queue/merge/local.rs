//! What a supervisor keeps in its node's folder, for itself and for people: what it did, and that it is the one.
//!
//! Invariant: nothing that is merged depends on it. Two supervisors may merge one folder at once; that one rests
//! only saves work.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::node::Neighbours;
use crate::error::Result;
use crate::format;
use crate::layout;
use crate::queue::TreeQueue;
use crate::queue::claim::signed;
use crate::store::{Created, Tree};

/// Which process merges a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorDoc {
    /// Tells this run of it from any other.
    pub nonce: String,
    /// The machine.
    pub host: String,
    /// The process there.
    pub pid: u32,
}

impl<T: Tree> TreeQueue<T> {
    /// Which node this folder is, and with which hub it was last merged.
    pub async fn node(&self) -> Result<super::Identity> {
        self.core.identity().await
    }

    /// Notes with which hub this folder is merged, for a supervisor that is told nothing else.
    pub async fn set_hub(&self, hub: &str) -> Result<()> {
        let identity = self.core.identity().await?;
        self.core.put_identity(&super::Identity { with: Some(hub.to_owned()), ..identity }).await
    }

    /// What the last pass has told.
    pub async fn neighbours(&self) -> Neighbours {
        self.core.neighbours().await
    }

    /// Says that this process merges the folder, unless another has said so within `fresh`. Answers that one.
    pub async fn take_turn(
        &self,
        own: &SupervisorDoc,
        fresh: Duration,
    ) -> Result<Option<SupervisorDoc>> {
        let (tree, path) = (&self.core.tree, layout::supervisor());
        if let Some(stored) = tree.read(&path).await? {
            let there = serde_json::from_slice::<SupervisorDoc>(&stored.bytes).ok();
            if let Some(other) = there.filter(|it| it.nonce != own.nonce) {
                let age = tree.now().await?.duration_since(stored.modified);
                if age.abs() < signed(fresh) {
                    return Ok(Some(other));
                }
            }
            tree.replace(&path, &format::line(own)).await?;
        } else if tree.create(&path, &format::line(own)).await? == Created::Exists {
            // Two began at once, and this is not the first.
            let stored = tree.read(&path).await?;
            return Ok(stored.and_then(|it| serde_json::from_slice(&it.bytes).ok()));
        }
        Ok(None)
    }

    /// Another may merge the folder from now on.
    pub async fn end_turn(&self, own: &SupervisorDoc) -> Result<()> {
        let path = layout::supervisor();
        let stored = self.core.tree.read(&path).await?;
        let there = stored.and_then(|it| serde_json::from_slice::<SupervisorDoc>(&it.bytes).ok());
        match there.is_some_and(|it| it.nonce == own.nonce) {
            true => self.core.tree.remove_file(&path).await,
            false => Ok(()),
        }
    }

    /// Writes down what has come of the passes.
    pub async fn put_status<S: Serialize>(&self, status: &S) -> Result<()> {
        self.core.tree.replace(&layout::merge_report(), &format::line(status)).await
    }

    /// What has come of the passes, if that can be read.
    pub async fn status<S: DeserializeOwned>(&self) -> Result<Option<S>> {
        let stored = self.core.tree.read(&layout::merge_report()).await?;
        Ok(stored.and_then(|it| serde_json::from_slice(&it.bytes).ok()))
    }
}
