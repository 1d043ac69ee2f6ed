//! From a queue that can be listed.
//!
//! Scheduled tasks come first: one that comes due meanwhile is then met twice, never missed.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{Event, Mode, Parcel, Transfer, batches};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{TaskId, TaskMeta};
use crate::queue::{ListCursor, MoveClaim, Place, TaskState, TaskView, fence};

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
        let mut met = (!self.to.capabilities().deduplicates).then(BTreeSet::<String>::new);
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
                        let push = &view.meta.push_id;
                        let twice = met.as_mut().is_some_and(|met| match place {
                            Place::Scheduled => !met.insert(push.clone()),
                            _ => !push.is_empty() && met.contains(push),
                        });
                        if !twice {
                            parcels.extend(self.copy_of(view, now, tell));
                        }
                    }
                    self.deliver(parcels, tell).await?;
                }
                cursor = page.next;
            }
        }
        Ok(())
    }

    fn copy_of(
        &mut self,
        view: TaskView,
        now: Timestamp,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Option<Parcel> {
        let due = self.due(&view.meta, &view.state, now);
        let attempts = view.attempts.last().map_or(0, |last| last.attempt);
        let given = fence(view.key.generation(), attempts);
        let fence = view.meta.journey.fence.saturating_add(given);
        match view.payload {
            Some(payload) => {
                Some(self.parcel((payload, view.meta), view.earlier, fence, None, due))
            }
            None => {
                self.refuse_damaged(view.key.id(), tell);
                None
            }
        }
    }

    fn refuse_damaged(&mut self, id: &TaskId, tell: &mut (dyn FnMut(Event<'_>) + Send)) {
        let error = Error::new(ErrorKind::Damaged, format!("task '{id}' cannot be read"));
        self.refuse(id, &error, tell);
    }

    /// Pass after pass, until one finds nothing more to move: tasks may be pushed meanwhile.
    pub(super) async fn move_listed(
        &mut self,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<()> {
        let mut patience = FIRST_LOOK;
        loop {
            let before = self.report.done;
            self.in_both_queues = false;
            let mut waits = self.pass(tell).await?;
            if self.report.done > before {
                patience = FIRST_LOOK;
            } else if self.in_both_queues {
                waits = waits.max(Some(patience));
            }
            match waits {
                _ if self.stop.is_cancelled() => return Ok(()),
                Some(wait) => {
                    if patience == FIRST_LOOK {
                        tell(Event::Waiting(wait));
                    }
                    // Whoever has them may be about to let them go.
                    let wait = (wait + AFTER_A_LEASE).min(patience);
                    patience = patience.saturating_mul(2).min(self.lease.max(FIRST_LOOK));
                    tokio::select! {
                        biased;
                        () = self.stop.cancelled() => return Ok(()),
                        () = self.env.clock().sleep(wait) => {}
                    }
                }
                // A run that was killed may have left what has gone already. A worker would clean it
                // away, but who moves a queue may have none any more.
                None if self.report.done == before => return self.from.tidy().await,
                None => {}
            }
        }
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
        mut batch: Vec<TaskView>,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<Option<Duration>> {
        let now = self.from.now().await;
        let longest = self.to.capabilities().max_delay;
        batch.retain(|view| {
            if view.payload.is_none() {
                self.refuse_damaged(view.key.id(), tell);
                return false;
            }
            let wait = promised(&view.meta, &view.state, now).map(|due| due.duration_since(now));
            let wait = wait.and_then(|wait| Duration::try_from(wait).ok());
            let too_long = wait.zip(longest).is_some_and(|(wait, longest)| wait > longest);
            if too_long {
                self.refuse_delay(view.key.id(), tell);
            }
            !too_long
        });
        let began = self.env.monotonic();
        let taken = self.from.claim_to_move(batch.clone(), self.lease).await;
        let (mut parcels, mut waits, mut trouble) = (Vec::new(), None, None);
        for (view, taken) in batch.into_iter().zip(taken) {
            match taken {
                Ok(MoveClaim::Ours(delivery)) => {
                    // Of a task that is in the queue twice, another than was listed may have been had.
                    let same = delivery.meta.push_id == view.meta.push_id;
                    let state = if same { &view.state } else { &TaskState::Ready };
                    let due = self.due(&delivery.meta, state, now);
                    let task = (delivery.payload, delivery.meta);
                    let receipt = Some(delivery.receipt);
                    parcels.push(self.parcel(task, delivery.earlier, delivery.fence, receipt, due));
                }
                Ok(MoveClaim::Held { for_now, moving: true }) => {
                    waits = waits.max(Some(for_now.min(self.lease)));
                }
                Ok(MoveClaim::Held { .. }) => self.report.held += 1,
                Ok(MoveClaim::Gone) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Damaged) => {
                    self.refuse(view.key.id(), &error, tell);
                }
                Err(error) => trouble = Some(error),
            }
        }
        if self.env.monotonic().saturating_sub(began) > self.lease / 3 {
            parcels = self.renew_before(parcels).await;
        }
        self.deliver(parcels, tell).await?;
        trouble.map_or(Ok(waits), Err)
    }

    /// Where it took long to claim them all, those that were claimed first may be lost already.
    async fn renew_before(&mut self, parcels: Vec<Parcel>) -> Vec<Parcel> {
        let receipts = parcels.iter().filter_map(|parcel| parcel.receipt.clone()).collect();
        let renewed = self.from.heartbeat(receipts).await;
        let ours = parcels.into_iter().zip(renewed).filter(|(_, renewed)| renewed.is_ok());
        ours.map(|(parcel, _)| parcel).collect()
    }

    fn refuse_delay(&mut self, id: &TaskId, tell: &mut (dyn FnMut(Event<'_>) + Send)) {
        let can = self.to.capabilities();
        let longest = can.max_delay.unwrap_or_default().as_secs() / 60;
        let message =
            format!("task '{id}': {} can delay a task by at most {longest} minutes", can.provider);
        self.refuse(id, &Error::new(ErrorKind::Unsupported, message), tell);
    }

    /// When a task may be had, if that is not yet.
    fn due(&self, meta: &TaskMeta, state: &TaskState, now: Timestamp) -> Option<Timestamp> {
        let promised = promised(meta, state, now);
        let TaskState::Backoff { until } = *state else { return promised };
        // Nobody was promised a backoff.
        let longest = self.to.capabilities().max_delay.unwrap_or(Duration::MAX);
        let backoff = until.min(now.checked_add(longest).unwrap_or(Timestamp::MAX));
        promised.or(Some(backoff)).filter(|due| *due > now)
    }
}

/// When a task was asked to be done, if that is not yet: wherever it lies, since whoever moves it makes it
/// pending first.
fn promised(meta: &TaskMeta, state: &TaskState, now: Timestamp) -> Option<Timestamp> {
    let due = match state {
        TaskState::Scheduled { due } => meta.not_before.or(Some(*due)),
        _ => meta.not_before,
    };
    due.filter(|due| *due > now)
}
