//! The merge of two places of one queue: a node's folder, *here*, and the hub, *there*, which is a bucket or another
//! folder.
//!
//! Invariant: it is a merge and not a copy. What two places have of a life is joined by rules that do not depend on who
//! asks, in which order, or how often (`order`). So any number of passes, cut short anywhere, in any order, lead to the
//! same state. Nothing is removed because it is missing elsewhere: only a record or a floor removes.
//!
//! `look` lists both places and finds the ids that have changed; `view` reads what each place has of one id; `plan`
//! is pure, and says what is to be done; `apply` does that, one step after the other, any of which may be the
//! last; `one` and `pass` put these together, and `memory` keeps what was found to be alike, as a cache. `check_in` tells
//! the hub which nodes there are; `onlook` tells people what a node knows of a task. Decision 31 and
//! FORMAT.md ("Queues that are synced") have the rules, R1 to R13.

mod adopt;
mod allowed;
mod apply;
mod check_in;
mod clocks;
mod conflicts;
mod hub;
mod local;
mod look;
mod memory;
mod node;
mod nonces;
mod one;
mod onlook;
mod order;
mod pass;
mod plan;
mod renumber;
mod sharing;
mod view;

pub use conflicts::Conflict;
pub use local::SupervisorDoc;
pub use node::{Identity, Neighbours};
pub use onlook::{LeftToOthers, TaskHere};
pub use pass::{Arrived, Merge, MergeOptions, Passed};

pub(crate) use check_in::check_new_folder;
pub(crate) use hub::check_alike;
pub(in crate::queue) use node::{Elsewhere, Nodes};

use async_trait::async_trait;

use crate::error::Result;
use crate::store::Tree;

/// A merge of whatever kinds of places.
#[async_trait]
pub trait Merging: Send + Sync {
    /// This node.
    fn node(&self) -> &str;
    /// Merges both places once; see [`Merge::pass`].
    async fn pass(&mut self, thorough: bool) -> Result<Passed>;
    /// Merges what has arrived here; see [`Merge::merge_arrived`].
    async fn merge_arrived(&mut self, paths: &[String]) -> Result<Arrived>;
    /// Writes down what was found to be alike; see [`Merge::save`].
    async fn save(&mut self) -> Result<()>;
}

#[async_trait]
impl<H: Tree, T: Tree> Merging for Merge<H, T> {
    fn node(&self) -> &str {
        self.node()
    }

    async fn pass(&mut self, thorough: bool) -> Result<Passed> {
        self.pass(thorough).await
    }

    async fn merge_arrived(&mut self, paths: &[String]) -> Result<Arrived> {
        self.merge_arrived(paths).await
    }

    async fn save(&mut self) -> Result<()> {
        self.save().await
    }
}

/// One of the two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Here,
    There,
}
