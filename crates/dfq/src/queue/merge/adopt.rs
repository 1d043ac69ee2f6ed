//! Makes a queue a place of a synced one, and undoes that.
//!
//! Invariant: nobody works meanwhile. A worker that knows nothing of other nodes would judge their leases by clocks
//! that are not its own.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Settings, Synced};
use crate::queue::core::Core;
use crate::queue::{Queue, TreeQueue};
use crate::store::Tree;

/// A worker's record that is younger than so many of its own periods is of one that may be alive.
const SILENT_AFTER: u64 = 4;

impl<T: Tree> TreeQueue<T> {
    /// Makes this a place of a synced queue, or takes that back, and answers what it was before. Refused while a worker is alive.
    /// It has to be opened again then.
    pub async fn set_synced(&self, synced: Option<Synced>) -> Result<Settings> {
        self.check_nobody_works().await?;
        let core = &self.core;
        if let Some(synced) = &synced
            && let Some(other) = &core.settings.synced
            && synced != other
        {
            let address = &core.tree.properties().address;
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{address} is synced already, as a {} of the queue '{}'; `dfq supervise --leave` ends that",
                    if other.hub { "hub" } else { "node" },
                    other.queue_id
                ),
            ));
        }
        let settings = Settings { synced, ..core.settings.clone() };
        settings.check()?;
        core.put_settings(&settings).await?;
        Ok(core.settings.clone())
    }

    async fn check_nobody_works(&self) -> Result<()> {
        let now = self.now().await;
        let mut alive = BTreeSet::new();
        for worker in self.workers().await? {
            let every = worker.every_s.unwrap_or(15).saturating_mul(SILENT_AFTER);
            let heard = SignedDuration::from_secs(i64::try_from(every).unwrap_or(i64::MAX));
            let silent = worker.seen_at.map(|seen| now.duration_since(seen));
            if worker.stopped_at.is_none() && silent.is_some_and(|silent| silent < heard) {
                alive.insert(worker.worker_id);
            }
        }
        let Some(first) = alive.first() else { return Ok(()) };
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{} of {} alive, such as '{first}'; stop them all first (`dfq workers` shows them; one that was \
                 killed counts for some minutes)",
                alive.len(),
                if alive.len() == 1 { "worker is" } else { "workers are" },
            ),
        ))
    }
}

impl<T: Tree> Core<T> {
    async fn put_settings(&self, settings: &Settings) -> Result<()> {
        self.tree.put(layout::SETTINGS, &format::encode_settings(settings)).await
    }
}
