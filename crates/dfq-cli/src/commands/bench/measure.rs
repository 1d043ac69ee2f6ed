//! The measuring itself.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dfq::model::Durability;
use dfq::{Env, NewTask, OpenOptions, PollRequest, Queue, Receipt, Settings};
use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;

/// What one round of the bare filesystem writes.
pub(super) const RAW_BYTES: usize = 300;

/// Rounds of the bare filesystem: enough for a p99, few enough for an SD card.
const RAW_ROUNDS: usize = 200;

/// What is measured, and where.
pub(super) struct Measure {
    pub(super) env: Env,
    pub(super) folder: PathBuf,
    pub(super) durability: Durability,
    pub(super) tasks: usize,
    pub(super) size: usize,
    pub(super) stop: CancellationToken,
}

/// How long each call took, and all of them together.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) tasks: u64,
    elapsed: Duration,
    calls: Vec<Duration>,
}

impl Figures {
    /// No more than this was needed by so many of a hundred calls.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let last = self.calls.len().saturating_sub(1);
        let at = (self.calls.len() * percent).div_ceil(100).saturating_sub(1).min(last);
        self.calls.get(at).copied().unwrap_or_default()
    }

    pub(super) fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.tasks as f64 / seconds } else { 0.0 }
    }

    fn of(parts: Vec<(u64, Vec<Duration>)>, elapsed: Duration) -> Self {
        let mut figures = Self { elapsed, ..Self::default() };
        for (tasks, calls) in parts {
            figures.tasks += tasks;
            figures.calls.extend(calls);
        }
        figures.calls.sort_unstable();
        figures
    }
}

/// One worker's part: its own handle, as a process of its own would have.
struct Part {
    queue: Arc<dyn Queue>,
    todo: usize,
    receipts: Vec<Receipt>,
}

impl Measure {
    /// What the bare filesystem needs to make a small file durable under its name.
    pub(super) async fn raw(&self) -> Result<Figures> {
        let (env, folder, stop) = (self.env.clone(), self.folder.clone(), self.stop.clone());
        let rounds = self.tasks.min(RAW_ROUNDS);
        let runner = self.env.clone();
        let rounds = runner.spawn_blocking(async move {
            let mut calls = Vec::with_capacity(rounds);
            let began = env.monotonic();
            for round in 0..rounds {
                if stop.is_cancelled() {
                    break;
                }
                let before = env.monotonic();
                write_durably(&folder, round)?;
                calls.push(env.monotonic() - before);
            }
            std::io::Result::Ok(Figures::of(
                vec![(calls.len() as u64, calls)],
                env.monotonic() - began,
            ))
        });
        rounds.result().await.map_err(|error| crate::exit::unwritable(&self.folder, &error))
    }

    /// Pushes, claims and acks all tasks in a queue of its own.
    pub(super) async fn queue(&self, batch: usize, workers: usize) -> Result<[Figures; 3]> {
        let path = self.folder.join(format!("queue-{batch}-{workers}"));
        let settings = Settings { durability: self.durability, ..Settings::default() };
        let mut parts = Vec::with_capacity(workers);
        for worker in 0..workers {
            let options = OpenOptions { create: Some(settings.clone()), ..OpenOptions::default() };
            let todo = self.tasks / workers + usize::from(worker < self.tasks % workers);
            let queue = dfq::open(&path, options).await?;
            parts.push(Part { queue, todo, receipts: Vec::new() });
        }
        let (parts, push) = self.time(parts, |part| self.push(part, batch)).await?;
        let (parts, claim) = self.time(parts, |part| self.claim(part, batch)).await?;
        let (_, ack) = self.time(parts, |part| self.ack(part, batch)).await?;
        Ok([push, claim, ack])
    }

    /// Lets all parts do something at once.
    async fn time<F>(
        &self,
        parts: Vec<Part>,
        act: impl Fn(Part) -> F,
    ) -> Result<(Vec<Part>, Figures)>
    where
        F: Future<Output = Result<(Part, u64, Vec<Duration>)>>,
    {
        let began = self.env.monotonic();
        let done = try_join_all(parts.into_iter().map(act)).await?;
        let elapsed = self.env.monotonic() - began;
        let (parts, figures) =
            done.into_iter().map(|(part, tasks, calls)| (part, (tasks, calls))).unzip();
        Ok((parts, Figures::of(figures, elapsed)))
    }

    async fn push(&self, part: Part, batch: usize) -> Result<(Part, u64, Vec<Duration>)> {
        let text = "x".repeat(self.size.saturating_sub(r#"{"text":""}"#.len()));
        let task = NewTask::from_json(&format!(r#"{{"text":"{text}"}}"#))?;
        let (mut calls, mut left) = (Vec::new(), part.todo);
        while left > 0 && !self.stop.is_cancelled() {
            let tasks = vec![task.clone(); left.min(batch)];
            left -= tasks.len();
            let before = self.env.monotonic();
            let answers = part.queue.push(tasks).await;
            calls.push(self.env.monotonic() - before);
            answers.into_iter().collect::<dfq::Result<Vec<_>>>()?;
        }
        let pushed = (part.todo - left) as u64;
        Ok((part, pushed, calls))
    }

    async fn claim(&self, mut part: Part, batch: usize) -> Result<(Part, u64, Vec<Duration>)> {
        let mut calls = Vec::new();
        let mut vain = 0;
        while part.receipts.len() < part.todo && !self.stop.is_cancelled() {
            let request = PollRequest::new(batch.min(part.todo - part.receipts.len()));
            let before = self.env.monotonic();
            let polled = part.queue.poll(request).await?;
            calls.push(self.env.monotonic() - before);
            // Others may have been faster everywhere this one looked.
            vain = if polled.deliveries.is_empty() { vain + 1 } else { 0 };
            anyhow::ensure!(vain < 1000, "the tasks that were just pushed are not to be found");
            part.receipts.extend(polled.deliveries.into_iter().map(|delivery| delivery.receipt));
        }
        let claimed = part.receipts.len() as u64;
        Ok((part, claimed, calls))
    }

    async fn ack(&self, mut part: Part, batch: usize) -> Result<(Part, u64, Vec<Duration>)> {
        let mut calls = Vec::new();
        let mut acked = 0;
        while !part.receipts.is_empty() && !self.stop.is_cancelled() {
            let receipts = part.receipts.split_off(part.receipts.len().saturating_sub(batch));
            let before = self.env.monotonic();
            let answers = part.queue.ack(receipts).await;
            calls.push(self.env.monotonic() - before);
            acked += answers.len() as u64;
            answers.into_iter().collect::<dfq::Result<Vec<_>>>().context("ack")?;
        }
        Ok((part, acked, calls))
    }
}

fn write_durably(folder: &Path, round: usize) -> std::io::Result<()> {
    let staged = folder.join(format!("raw-{round}.tmp"));
    let mut file = std::fs::File::create(&staged)?;
    file.write_all(&[b'x'; RAW_BYTES])?;
    file.sync_all()?;
    std::fs::rename(staged, folder.join(format!("raw-{round}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let millis = |numbers: std::ops::RangeInclusive<u64>| {
            let calls = numbers.map(Duration::from_millis).collect();
            Figures::of(vec![(100, calls)], Duration::from_secs(2))
        };
        let hundred = millis(1..=100);
        assert_eq!(hundred.percentile(50).as_millis(), 50);
        assert_eq!(hundred.percentile(99).as_millis(), 99);
        assert!((hundred.rate() - 50.0).abs() < f64::EPSILON);
        assert_eq!(millis(7..=7).percentile(99).as_millis(), 7);
        assert_eq!(Figures::default().percentile(50), Duration::ZERO);
    }
}
