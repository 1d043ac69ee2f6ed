//! Whether a store keeps the condition of a swap, before anything rests on it.
//!
//! Invariant: in a bucket, neither a shard nor columns that are there are swapped before this handle has seen that a right
//! version is taken, and that one that was superseded is refused. Some servers refuse every ETag, which a swap finds out by
//! itself, and some take any, which it cannot: it would have written by then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Swapped};
use crate::store::objects::{Swap, Version};

impl Core {
    /// An error of the kind `Unsupported` if the store keeps no conditions. Asked once, on an object of its own.
    pub(super) async fn prove_swap(&self) -> Result<()> {
        // In a folder no server is asked.
        if !self.objects.properties().remote || self.swap_proven.load(Ordering::Relaxed) {
            return Ok(());
        }
        let nonce = self.env.nonce();
        let name = layout::trial_of_an_index(&nonce);
        let tried = self.try_swaps(&name, &nonce).await;
        // What is left of it harms nobody.
        let _ = self.objects.remove(&[name.as_str().to_owned()], Duration::MAX).await;
        tried?;
        self.swap_proven.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn try_swaps(&self, name: &Swapped, nonce: &str) -> Result<()> {
        let swap = |version: Option<Version>, what: &str| {
            let bytes = format!("{what} {nonce}").into_bytes();
            async move { self.objects.swap(name, version.as_ref(), &bytes).await }
        };
        let address = &self.objects.properties().address;
        let says = |what: &str| {
            let message = format!(
                "{address} {what}; what was put can be looked up, but keep the index in a folder, or where `dfq doctor` \
                 says that one can be compacted"
            );
            Error::new(ErrorKind::Unsupported, message)
        };
        let loses = || says("says that an object was changed that nobody has changed");
        let Swap::Written(first) = swap(None, "first").await? else { return Err(loses()) };
        let Swap::Written(_) = swap(Some(first.clone()), "second").await? else {
            return Err(loses());
        };
        match swap(Some(first), "stale").await? {
            Swap::Lost => Ok(()),
            Swap::Written(_) => {
                Err(says("ignores If-Match: it replaced an object that had changed"))
            }
        }
    }
}
