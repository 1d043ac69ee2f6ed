//! Which nonces this folder has shown to its hub, or may have: a file for each, in `sync/check-ins/`.
//!
//! Invariant: a nonce is here, durably, before the hub can show it. Each has a file of its own, so supervisors that check
//! in at once cannot undo what the other has noted. The files also say who this folder is, should that be lost.

use serde::{Deserialize, Serialize};

use super::node::Identity;
use crate::error::Result;
use crate::format;
use crate::layout;
use crate::queue::core::Core;
use crate::store::Tree;
use crate::store::objects::{List, Listed};

/// So many nonces are kept: a request that was given up may still arrive.
const KEPT: usize = 16;

/// Names in one request.
const PAGE: usize = 1000;

/// What a file says.
#[derive(Debug, Serialize, Deserialize)]
struct CheckInDoc {
    node: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    with: Option<String>,
}

impl<T: Tree> Core<T> {
    /// Notes that the hub may show this nonce from now on.
    pub(super) async fn add_nonce(&self, identity: &Identity, nonce: &str) -> Result<()> {
        let Identity { node, with, .. } = identity.clone();
        let path = layout::check_in(nonce);
        self.tree.create(&path, &format::line(&CheckInDoc { node, with })).await.map(|_| ())
    }

    /// Whether this folder may have shown it.
    pub(super) async fn has_nonce(&self, identity: &Identity, nonce: &str) -> Result<bool> {
        let is_noted = identity.nonces.iter().any(|known| known == nonce);
        Ok(is_noted || self.tree.head(&layout::check_in(nonce)).await?.is_some())
    }

    /// The nonces that are kept, the newest first.
    pub(super) async fn check_ins(&self) -> Result<Vec<Listed>> {
        let mut listing = self.tree.list(List::below(layout::below(layout::CHECK_INS, "")));
        let mut files = Vec::new();
        loop {
            let part = listing.next(PAGE).await?;
            files.extend(part.files);
            if part.end {
                files.sort_by_key(|file| std::cmp::Reverse(file.head.modified));
                return Ok(files);
            }
        }
    }

    /// Removes old ones, but for those that the hub showed last.
    pub(super) async fn drop_old_nonces(&self, shown: &[&str]) -> Result<()> {
        let shown: Vec<String> = shown.iter().map(|nonce| layout::check_in(nonce)).collect();
        for file in self.check_ins().await?.into_iter().skip(KEPT) {
            if !shown.contains(&file.name) {
                self.tree.remove_file(&file.name).await?;
            }
        }
        Ok(())
    }

    /// Who this folder was when it last checked in. The hub is taken to know it.
    pub(super) async fn identity_by_nonces(&self) -> Result<Option<Identity>> {
        for file in self.check_ins().await? {
            let stored = self.tree.read(&file.name).await?;
            let doc = stored.and_then(|it| serde_json::from_slice::<CheckInDoc>(&it.bytes).ok());
            if let Some(CheckInDoc { node, with }) = doc {
                return Ok(Some(Identity { node, nonces: Vec::new(), known: true, with }));
            }
        }
        Ok(None)
    }
}
