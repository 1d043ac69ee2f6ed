//! From a queue that can be listed.
//!
//! Scheduled tasks come first: one that comes due meanwhile is then met twice, never missed.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{Event, Mode, Parcel, Transfer, batches};
use crate::error::{Error, ErrorKind, Result};
use crate::model::TaskId;
use crate::queue::{Detail, ListCursor, Place, Taken, TaskState, TaskView};

/// What is not finished.
const PLACES: [Place; 2] = [Place::Scheduled, Place::Pending];

/// How soon to look again for what is held, the first time; then twice as long, and so on.
const FIRST_LOOK: Duration = Duration::from_millis(500);

/// Between a lease's end and the next try, so that everybody's clock agrees that it has ended.
const AFTER_A_LEASE: Duration = Duration::from_millis(200);

fn size(view: &TaskView) -> usize {
    view.payload.as_ref().map_or(0, |payload| payload.as_json().len())
}

impl Transfer {
    pub(super) async fn copy_listed(
        &mut self,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<()> {
        // Where a task that is sent twice is there twice, what was met twice must be known here.
        let mut met = (!self.to.capabilities().deduplicates).then(HashSet::<TaskId>::new);
        for place in PLACES {
            let mut cursor = Some(ListCursor::at(place));
            while let Some(from) = cursor.take().filter(|from| from.place() == place) {
                let page = self.from.list(Some(from)).await?;
                for batch in batches(page.tasks, self.batch(), size) {
                    if self.stop.is_cancelled() {
                        return Ok(());
                    }
                    let now = self.from.now().await;
                    let mut parcels = Vec::with_capacity(batch.len());
                    for view in batch {
                        let id = view.key.id();
                        let twice = met.as_mut().is_some_and(|met| match place {
                            Place::Scheduled => !met.insert(id.clone()),
                            _ => met.contains(id),
                        });
                        if !twice {
                            let due = self.due(&view, now);
                            parcels.extend(self.parcel_of(view, due, tell));
                        }
                    }
                    self.deliver(parcels, tell).await?;
                }
                cursor = page.next;
            }
        }
        Ok(())
    }

    fn parcel_of(
        &mut self,
        view: TaskView,
        due: Option<Timestamp>,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Option<Parcel> {
        match view.payload {
            Some(payload) => Some(self.parcel(payload, view.meta, view.earlier, None, due)),
            None => {
                let id = view.key.id();
                let error = Error::new(ErrorKind::Damaged, format!("task '{id}' cannot be read"));
                self.refuse(id, &error, tell);
                None
            }
        }
    }

    /// Pass after pass, until one finds nothing more to move: tasks may be pushed meanwhile.
    pub(super) async fn move_listed(
        &mut self,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<()> {
        let mut patience = FIRST_LOOK;
        loop {
            let before = self.report.done;
            let waits = self.pass(tell).await?;
            if self.report.done > before {
                patience = FIRST_LOOK;
            }
            match waits {
                _ if self.stop.is_cancelled() => return Ok(()),
                Some(wait) => {
                    if patience == FIRST_LOOK {
                        tell(Event::Waiting(wait));
                    }
                    // Whoever has them may be about to let them go.
                    let wait = (wait + AFTER_A_LEASE).min(patience);
                    patience *= 2;
                    tokio::select! {
                        () = self.env.clock().sleep(wait) => {}
                        () = self.stop.cancelled() => return Ok(()),
                    }
                }
                None if self.report.done == before => return self.tidy_up().await,
                None => {}
            }
        }
    }

    /// A run that was killed may have left tasks that have gone and are not cleaned away. A worker would
    /// do that, but who moves a queue may have none any more.
    async fn tidy_up(&self) -> Result<()> {
        let pending = self.from.stats(Detail::Exact).await?.pending;
        if pending > self.report.held + self.report.refused {
            self.from.check(true).await?;
        }
        Ok(())
    }

    /// Moves all that can be had. Answers how long others hold some that they mean to move.
    async fn pass(&mut self, tell: &mut (dyn FnMut(Event<'_>) + Send)) -> Result<Option<Duration>> {
        debug_assert_eq!(self.mode, Mode::Move);
        self.report.held = 0;
        let mut waits: Option<Duration> = None;
        for place in PLACES {
            let mut cursor = Some(ListCursor::at(place));
            while let Some(from) = cursor.take().filter(|from| from.place() == place) {
                let mut page = self.from.list(Some(from)).await?;
                page.tasks.retain(|view| !self.refused.contains(view.key.id()));
                for batch in batches(page.tasks, self.batch(), size) {
                    if self.stop.is_cancelled() {
                        return Ok(None);
                    }
                    let held = self.move_batch(batch, tell).await?;
                    waits = waits.max(held);
                }
                cursor = page.next;
            }
        }
        Ok(waits)
    }

    async fn move_batch(
        &mut self,
        batch: Vec<TaskView>,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<Option<Duration>> {
        let now = self.from.now().await;
        let taken = self.from.take(batch.clone(), self.lease).await;
        if let Some(Err(error)) = taken.first()
            && taken.iter().all(Result::is_err)
        {
            return Err(error.clone());
        }
        let (mut parcels, mut waits) = (Vec::new(), None);
        let mut trouble = None;
        for (view, taken) in batch.into_iter().zip(taken) {
            match taken {
                Ok(Taken::Ours(delivery)) => {
                    let due = self.due(&view, now);
                    let (payload, meta) = (delivery.payload, delivery.meta);
                    let receipt = Some(delivery.receipt);
                    parcels.push(self.parcel(payload, meta, delivery.earlier, receipt, due));
                }
                Ok(Taken::Held { for_now, moving: true }) => {
                    waits = waits.max(Some(for_now.min(self.lease)));
                }
                Ok(Taken::Held { .. }) => self.report.held += 1,
                Ok(Taken::Gone) => {}
                Err(error) if super::is_trouble(&error) => trouble = Some(error),
                Err(error) => self.refuse(view.key.id(), &error, tell),
            }
        }
        self.deliver(parcels, tell).await?;
        trouble.map_or(Ok(waits), Err)
    }

    /// When a task may be had, if that is not yet.
    fn due(&self, view: &TaskView, now: Timestamp) -> Option<Timestamp> {
        let due = match view.state {
            TaskState::Scheduled { due } => view.meta.not_before.unwrap_or(due),
            // Nobody was promised a backoff.
            TaskState::Backoff { until } => {
                let longest = self.to.capabilities().max_delay.unwrap_or(Duration::MAX);
                until.min(now.checked_add(longest).unwrap_or(Timestamp::MAX))
            }
            _ => return None,
        };
        Some(due).filter(|due| *due > now)
    }
}
