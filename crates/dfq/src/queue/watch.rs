//! One look for all: while there is nothing to do, the workers on a bucket take turns in looking.
//!
//! Invariant: the watch only saves requests. A worker relies on another's look only if that is younger than the time
//! for which it waits itself, so nothing is left alone for more than twice that time. A worker looks for itself if it
//! cannot read or swap the watch, if it takes only some tasks, or if its last poll failed.
//!
//! The watch is one small file. It was written when somebody last began to look for all, by the store's clock. Idle
//! workers read it. One that finds it too old swaps it, and only the one that wins the swap looks. If there is more than
//! the winner can take, it *rings*: it writes into the file how many tasks are left, and others come.

use serde::{Deserialize, Serialize};

use super::claim::signed;
use super::core::Core;
use super::strategy::Finding;
use super::{Idle, PollRequest, Polled};
use crate::clock::lock;
use crate::error::{ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::store::Tree;
use crate::store::objects::{Swap, Version};

/// At least about so many come when they are called.
const FEWEST_CALLED: usize = 8;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Watch {
    /// Who looked last.
    by: String,
    /// Unlike that of any other look.
    nonce: String,
    /// When others were last called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bell: Option<Bell>,
}

impl Watch {
    fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// What the file says, written anew.
#[cfg(feature = "conformance")]
pub(crate) fn rewrite_watch(bytes: &[u8]) -> Option<Vec<u8>> {
    Watch::read(bytes).map(|watch| format::line(&watch))
}

/// A call for others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bell {
    /// Unlike that of any other call.
    nonce: String,
    /// How many tasks were left.
    tasks: usize,
    /// How many workers there were.
    workers: usize,
}

/// What this process knows of the watch.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Its own last look.
    look: Option<String>,
    /// The last call that it has heard, once it has listened.
    bell: Option<Option<String>>,
    /// This store or this role has no watch.
    off: bool,
    /// The last poll failed: who cannot look must not say that it does.
    failing: bool,
}

/// Who looks.
pub(super) enum Turn {
    /// This poll, for its own worker.
    Own,
    /// This poll, for all that are idle.
    ForAll(Box<Post>),
    /// Somebody else has, just now.
    Others,
}

/// What the one who looks for all has written.
pub(super) struct Post {
    watch: Watch,
    version: Version,
}

impl Turn {
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Self::ForAll(_))
    }
}

impl<T: Tree> Core<T> {
    /// Notes whether a poll went well.
    pub(super) fn has_looked(&self, well: bool) {
        lock(&self.heard).failing = !well;
    }

    /// Whose turn it is to look, for a poll that may rely on others.
    pub(super) async fn turn(&self, request: &PollRequest) -> Result<Turn> {
        let takes_part = {
            let heard = lock(&self.heard);
            !heard.off && !heard.failing && self.strategy.finding == Finding::Pages
        };
        // Who takes only some tasks cannot look for those who take others.
        let Some(within) = request.relies_within.filter(|_| takes_part && request.schema.is_none())
        else {
            return Ok(Turn::Own);
        };
        let file = match self.tree.load(&layout::watch()).await {
            Err(error) => return self.without_watch(error),
            Ok(file) => file,
        };
        let watch = file.as_ref().and_then(|file| Watch::read(&file.bytes)).unwrap_or_default();
        if self.is_called(watch.bell.as_ref()) {
            return Ok(Turn::Own);
        }
        let now = self.now_for_onlookers().await;
        let age = file.as_ref().map(|file| now.duration_since(file.head.modified));
        // One from the future shows that the clock was set back.
        let tick = signed(self.tree.time_resolution());
        let is_young = age.is_some_and(|age| age < signed(within) && age >= -tick);
        // Our own look is as old as what we are asked for, or we would not be asked. So whoever has looked for all goes
        // on with it, and comes back a little before others would take its place.
        let is_ours = lock(&self.heard).look.as_ref() == Some(&watch.nonce);
        if is_young && !is_ours {
            return Ok(Turn::Others);
        }
        let watch = Watch { by: self.worker_id.clone(), nonce: self.env.nonce(), ..watch };
        let expected = file.map(|file| file.head.version);
        match self.tree.swap(&layout::watch(), expected.as_ref(), &format::line(&watch)).await {
            Ok(Swap::Written(version)) => {
                lock(&self.heard).look = Some(watch.nonce.clone());
                Ok(Turn::ForAll(Box::new(Post { watch, version })))
            }
            Ok(Swap::Lost) => Ok(Turn::Others), // who was faster looks now
            Err(error) => self.without_watch(error),
        }
    }

    /// A role may not be allowed to keep a watch, and a store may not be able to.
    fn without_watch(&self, error: crate::error::Error) -> Result<Turn> {
        match error.kind() {
            ErrorKind::Denied | ErrorKind::Unsupported => {
                tracing::debug!(%error, "every worker looks for itself");
                lock(&self.heard).off = true;
                Ok(Turn::Own)
            }
            ErrorKind::Damaged => Ok(Turn::Own), // larger than anything that we write
            _ => Err(error),
        }
    }

    /// Whether somebody has rung since we last listened, and we are among those who come. About twice as many do as
    /// there are tasks, but no fewer than a few: if too few come, the next look finds the rest.
    fn is_called(&self, bell: Option<&Bell>) -> bool {
        let rung = bell.map(|bell| bell.nonce.clone());
        let before = lock(&self.heard).bell.replace(rung.clone());
        let is_news = before.is_some_and(|before| before != rung);
        bell.filter(|_| is_news).is_some_and(|bell| {
            let wanted = bell.tasks.saturating_mul(2).max(FEWEST_CALLED);
            wanted >= bell.workers || self.env.below(bell.workers) < wanted
        })
    }

    /// Calls others, who rely on our look, if it has shown more than we could take.
    pub(super) async fn ring(&self, post: Post) {
        let (tasks, workers) = {
            let found = self.discovery.lock().await;
            let workers = found.survey.workers(self.env.monotonic());
            // As long as not everything was listed and looked into there may be plenty.
            let is_all = found.survey.is_listed() && !found.survey.sieve.has_leased();
            (if is_all { found.ready.len() } else { workers.max(1) }, workers)
        };
        if tasks == 0 {
            return;
        }
        let Post { watch, version } = post;
        let bell = Some(Bell { nonce: self.env.nonce(), tasks, workers });
        let watch = Watch { nonce: self.env.nonce(), bell, ..watch };
        match self.tree.swap(&layout::watch(), Some(&version), &format::line(&watch)).await {
            Ok(Swap::Written(_)) => {
                let mut heard = lock(&self.heard);
                heard.look = Some(watch.nonce);
                heard.bell = Some(watch.bell.map(|bell| bell.nonce));
            }
            Ok(Swap::Lost) => {} // who looks now sees the same, and rings
            Err(error) => {
                tracing::debug!(%error, "others were not called; they will look themselves")
            }
        }
    }

    /// What a poll says that has left the look to others: that nothing is known to have changed.
    pub(super) async fn left_to_others(&self) -> Polled {
        let found = self.discovery.lock().await;
        let now = self.env.monotonic();
        let soonest = lock(&self.known).soonest().and_then(|at| at.checked_sub(now));
        let due = found.schedule.next_in(self.now_for_onlookers().await);
        // What has woken already is what others looked for.
        let next = soonest.into_iter().chain(due).filter(|wait| !wait.is_zero()).min();
        Polled { idle: Idle { paused: found.paused, next, ..Idle::default() }, ..Polled::default() }
    }
}
