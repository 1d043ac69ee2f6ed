//! From a queue that only hands tasks out: SQS.
//!
//! Nobody can say for sure that nothing is left there, so it is asked several times. Every task that is
//! received counts as an attempt there, also if it is given back.

use std::time::Duration;

use super::{Event, Mode, Transfer, batches};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Receipt;
use crate::queue::{Delivery, Detail, Earlier, PollRequest};

/// How often nothing must have come before nothing is taken to be left.
const SILENCES: u32 = 3;

/// How long to wait for something to come, each time.
const LISTEN: Duration = Duration::from_secs(2);

/// How many messages SQS hands out at once, and how much of them this process holds.
const MOST_HELD: usize = 120_000;
const MOST_HELD_BYTES: usize = 1024 * 1024 * 1024;

/// For how long messages stay hidden that are copied, should the copy be killed.
const HIDDEN: Duration = Duration::from_secs(15 * 60);

/// What is copied stays hidden from others until all of it has been seen.
#[derive(Default)]
struct Hidden {
    receipts: Vec<Receipt>,
    bytes: usize,
    renewed: Duration,
}

impl Transfer {
    pub(super) async fn receive_all(
        &mut self,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<()> {
        let mut hidden = Hidden { renewed: self.env.monotonic(), ..Hidden::default() };
        let done = self.receive_until_silent(&mut hidden, tell).await;
        for answer in self.from.release_unrun(hidden.receipts).await {
            if let Err(error) = answer {
                tracing::warn!(%error, "not given back; it comes back after its lease");
            }
        }
        self.from.close().await;
        done
    }

    async fn receive_until_silent(
        &mut self,
        hidden: &mut Hidden,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<()> {
        let (mut silences, mut last) = (0, self.env.monotonic());
        while !self.stop.is_cancelled() {
            let request =
                PollRequest { lease: Some(self.hiding()), ..PollRequest::new(self.batch()) };
            let mut got = self.from.poll(request).await?.deliveries;
            got.retain(|delivery| !self.refused.contains(delivery.id()));
            self.renew(hidden).await;
            if !got.is_empty() {
                (silences, last) = (0, self.env.monotonic());
                for batch in batches(got, self.batch(), size) {
                    self.pass_on(batch, hidden, tell).await?;
                }
                continue;
            }
            let states = self.from.stats(Detail::States).await?.states.unwrap_or_default();
            let elsewhere = states.leased.saturating_sub(hidden.receipts.len() as u64);
            silences = if states.ready == 0 { silences + 1 } else { 0 };
            // What a killed run had received comes back after its lease. What workers have may not, nor
            // what stands in line behind it in a group.
            let patient = self.env.monotonic().saturating_sub(last) > self.lease + LISTEN * 2;
            let nothing_comes = self.mode == Mode::Copy || elsewhere == 0;
            if patient || silences >= SILENCES && nothing_comes {
                let delayed = self.from.stats(Detail::Counts).await?.scheduled;
                self.report.held = states.ready + elsewhere + delayed;
                return Ok(());
            }
            if elsewhere > 0 && silences == SILENCES {
                tell(Event::Waiting(self.lease));
            }
            self.from.wait(LISTEN).await;
        }
        Ok(())
    }

    async fn pass_on(
        &mut self,
        batch: Vec<Delivery>,
        hidden: &mut Hidden,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<()> {
        let mut parcels = Vec::with_capacity(batch.len());
        let now = self.from.now().await;
        for delivery in batch {
            if self.mode == Mode::Copy {
                hidden.bytes += size(&delivery);
                hidden.receipts.push(delivery.receipt.clone());
            }
            // How they ended nobody has kept. They counted there as if they had failed.
            let lost = delivery.meta.carried.lost;
            let failed = delivery.attempt.saturating_sub(lost).saturating_sub(1);
            let earlier = Earlier { failed, lost, released: 0 };
            let Delivery { payload, meta, receipt, fence, .. } = delivery;
            let due = meta.not_before.filter(|due| *due > now);
            parcels.push(self.parcel((payload, meta), earlier, fence, Some(receipt), due));
        }
        self.deliver(parcels, tell).await?;
        if hidden.receipts.len() < MOST_HELD && hidden.bytes < MOST_HELD_BYTES {
            return Ok(());
        }
        let message = format!(
            "a copy must hold all tasks of {} until it has seen the last, and there are too many of \
             them (more than {MOST_HELD}, or than {} MiB); move them instead",
            self.from.address(),
            MOST_HELD_BYTES / (1024 * 1024)
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// For how long messages are hidden. A copy hides all of them until the end, and cannot renew many
    /// often.
    fn hiding(&self) -> Duration {
        if self.mode == Mode::Copy { self.lease.max(HIDDEN) } else { self.lease }
    }

    /// Keeps what was copied hidden for another while.
    async fn renew(&self, hidden: &mut Hidden) {
        let now = self.env.monotonic();
        if now.saturating_sub(hidden.renewed) < self.hiding() / 3 {
            return;
        }
        hidden.renewed = now;
        for answer in self.from.heartbeat(hidden.receipts.clone()).await {
            if let Err(error) = answer {
                tracing::warn!(%error, "a task may be copied twice");
            }
        }
    }
}

fn size(delivery: &Delivery) -> usize {
    delivery.payload.as_json().len()
}
