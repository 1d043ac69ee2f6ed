//! What a pass knows of time: for how long this folder was away, and whether its clock was set.
//!
//! Invariant: a machine without a clock of its own is years off until the network tells it the time. So what is meant to
//! last for days is told by the hub's clock, where that is known, and workers hear of a clock that was set before they
//! judge another node's lease by a pass that came after.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::node::Neighbours;
use super::pass::Merge;
use crate::clock::lock;
use crate::error::{Error, Result};
use crate::layout;
use crate::queue::claim::signed;
use crate::store::Tree;

/// How exactly a bucket tells the time.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// For so long a floor is followed. The hub keeps it for two days more.
pub(super) const HORIZON: SignedDuration = SignedDuration::from_hours(90 * 24);

impl<H: Tree, T: Tree> Merge<H, T> {
    /// Notes that the folder's clock was set while this process ran.
    pub(super) async fn note_jump(&mut self) -> Result<()> {
        let (jumped, set) = {
            let clock = lock(&self.here.clock);
            (clock.jumped(), clock.set_at())
        };
        if jumped == self.jumped {
            return Ok(());
        }
        self.note_clock_set(set).await?;
        self.jumped = jumped;
        Ok(())
    }

    /// After the hub was listed: notes what its clock shows, and whether the folder's was set since the last pass of
    /// whatever process.
    ///
    /// Both clocks are taken for the moment at which this pass began, however long the hub took to answer.
    pub(super) async fn compare_clocks(&mut self, now: Timestamp, mono: Duration) -> Result<()> {
        let told = self.there.tree.told_time();
        self.began_there = told.and_then(|(told, at)| {
            let since = signed(at.saturating_sub(mono)) - signed(mono.saturating_sub(at));
            told.saturating_sub(since).ok()
        });
        let Neighbours { began, began_there, .. } = self.here.neighbours().await;
        let (Some(began), Some(began_there), Some(now_there)) =
            (began, began_there, self.began_there)
        else {
            return Ok(());
        };
        let apart = now.duration_since(began) - now_there.duration_since(began_there);
        match apart.abs() > signed(self.here.period().max(TOLD_WITHIN)) {
            true => self.note_clock_set(Some(now)).await,
            false => Ok(()),
        }
    }

    async fn note_clock_set(&self, clock_set: Option<Timestamp>) -> Result<()> {
        let known = self.here.neighbours().await;
        self.here.put_neighbours(&Neighbours { clock_set, ..known }).await
    }

    /// What the hub's clock shows. Floors have their times from it.
    pub(super) async fn now_there(&self) -> Result<Timestamp> {
        match self.there.tree.told_time() {
            Some((told, _)) => Ok(told),
            None => self.there.now().await,
        }
    }

    /// An error if this folder was away for so long that purges which it has not heard of are forgotten by now.
    pub(super) async fn check_absence(&self) -> Result<()> {
        let now = self.here.env.monotonic();
        let is_here = |merged| signed(now.saturating_sub(merged)) < HORIZON;
        if self.options.sure || self.merged.is_some_and(is_here) {
            return Ok(());
        }
        let away = match (self.here.neighbours().await.began_there, self.began_there) {
            (Some(last), Some(now)) => now.duration_since(last),
            _ => match self.last_merged().await? {
                Some(last) => self.here.now().await?.duration_since(last),
                None => return Ok(()),
            },
        };
        if away < HORIZON {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "this folder was last merged {} days ago, and its hub remembers purges for {} days: tasks that were done and \
             purged meanwhile may be done again. To merge it all the same, say --yes",
            away.as_hours() / 24,
            HORIZON.as_hours() / 24
        )))
    }

    /// When this folder was last merged, on its own clock. Nothing, if it never was.
    async fn last_merged(&self) -> Result<Option<Timestamp>> {
        let began = self.here.neighbours().await.began;
        if began.is_some() || !self.identity.known {
            return Ok(began);
        }
        // That file is not synced, so a power cut may have spoiled it. What each check-in notes is.
        let checked_in = self.here.check_ins().await?.into_iter().next().map(|it| it.head);
        let identity = self.here.tree.head(&layout::node_identity()).await?;
        Ok(checked_in.or(identity).map(|head| head.modified))
    }
}
