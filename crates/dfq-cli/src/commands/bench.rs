//! `dfq bench`: what a store gives, measured through the library: a folder beside what the bare
//! filesystem does, a bucket and SQS by what they charge.
//!
//! Invariant: it writes only into a folder or a queue that it made, never into a queue's tree, and removes
//! what it made however it ends.

mod bucket;
mod measure;
mod part;
mod requests;
mod scratch;
mod sqs;

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::address::Address;
use dfq::model::Durability;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::exit::{Answer, unsupported};
use crate::output::{self, Table, thousands};
use measure::{Figures, Measure};
use scratch::Scratch;

/// Measure push, claim and ack on a store
///
/// Makes queues of its own in a fresh folder below ADDRESS, and removes them. If ADDRESS is a queue, the
/// folder stands beside it; if it does not exist, it is made and removed again.
///
/// In a folder, everything runs in this one process: what several machines get from a shared store may
/// differ. In a bucket and in SQS, worker processes do the tasks, and what is told is how many requests of
/// each kind a task takes, and what a million tasks cost. In SQS a queue of its own is made, in the account
/// and region at hand: sqs://any, or sqs://any.fifo for a FIFO queue.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// A folder or a part of a bucket on the store to be measured, or a queue on it; or sqs://any
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// How many tasks each row is measured with
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tasks: u32,
    /// How many workers at once in the parallel rows; in a bucket or SQS, how many processes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// How large a task is
    #[arg(long, value_name = "BYTES", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    size: u32,
    /// What a push or ack that returned survives: a power cut, or only the process; a bucket and SQS
    /// decide that themselves
    #[arg(long, value_enum, default_value = "durable")]
    durability: Survives,
    /// Be one of the worker processes
    #[arg(long, hide = true)]
    part: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Survives {
    Durable,
    Relaxed,
}

/// How many tasks go into one call in the rows for batches.
const BATCH: usize = 64;

/// One line of the table.
#[derive(Serialize)]
struct Row {
    operation: &'static str,
    /// Tasks in one call.
    batch: usize,
    workers: usize,
    tasks: u64,
    tasks_per_second: f64,
    /// Of one call, in milliseconds.
    p50_ms: f64,
    p99_ms: f64,
}

/// What it ran on, for programs.
#[derive(Serialize)]
struct Ground<'a> {
    folder: &'a str,
    filesystem: &'a str,
    durability: &'static str,
    version: &'static str,
}

impl Bench {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let target = context.target(&self.address)?;
        if self.part {
            return part::run(context, &target).await;
        }
        let path = match &target.address {
            Address::Directory(path) => path,
            Address::Bucket(address) => return bucket::run(&self, context, address.clone()).await,
            Address::Sqs(named) => return sqs::run(&self, context, named, &target).await,
            elsewhere @ Address::Other { .. } => {
                let what = "only a folder, a bucket or SQS can be measured";
                return Err(unsupported(format!("{elsewhere} is none of them: {what}")));
            }
        };
        let stop = CancellationToken::new();
        let signal = context.env.spawn(crate::exit::stop_signal(stop.clone()));
        let scratch = Scratch::make(path, &context.env).await?;
        let measured = self.measure(context, &scratch, &stop).await;
        // Removed before anything else is said: whoever reads us may go away.
        let removed = scratch.remove();
        let rows = measured?;
        removed?;
        if stop.is_cancelled() {
            return Ok(Answer::Killed(signal.await.unwrap_or(2)));
        }
        if !context.json && !context.quiet {
            self.explain(&rows);
        }
        Ok(Answer::Yes)
    }

    async fn measure(
        &self,
        context: &Context,
        scratch: &Scratch,
        stop: &CancellationToken,
    ) -> Result<Vec<Row>> {
        let durability = match self.durability {
            Survives::Durable => Durability::Durable,
            Survives::Relaxed => Durability::Relaxed,
        };
        let word = if self.durability == Survives::Durable { "durable" } else { "relaxed" };
        let folder = output::printable(&scratch.below().display().to_string());
        let ground = Ground {
            folder: &folder,
            filesystem: scratch.filesystem(),
            durability: word,
            version: env!("CARGO_PKG_VERSION"),
        };
        if context.json {
            output::json_line(&ground)?;
        } else {
            let Ground { filesystem, version, .. } = ground;
            let tasks = format!("{} tasks of {} bytes", thousands(self.tasks.into()), self.size);
            let build = if cfg!(debug_assertions) { " (a debug build, slower)" } else { "" };
            output::line(&format!(
                "dfq {version}{build} on {filesystem} at {folder}, {word}, {tasks}"
            ))?;
        }
        let measure = Measure {
            env: context.env.clone(),
            folder: scratch.folder().to_owned(),
            durability,
            tasks: self.tasks as usize,
            size: self.size as usize,
            stop: stop.clone(),
        };
        let mut rows = Rows { context, table: Table::new(&HEAD), rows: Vec::new() };
        rows.add("write, fsync, rename", 1, 1, measure.raw().await?)?;
        let one = vec![(1, 1), (BATCH, 1)];
        let many = usize::from(self.workers);
        let parallel = if many > 1 { vec![(1, many), (BATCH, many)] } else { Vec::new() };
        let bar = crate::many::progress(4 * u64::from(self.tasks));
        for (batch, workers) in one.into_iter().chain(parallel) {
            let [push, claim, ack] = measure.queue(batch, workers).await?;
            if stop.is_cancelled() {
                break;
            }
            bar.inc(u64::from(self.tasks));
            rows.add("push", batch, workers, push)?;
            rows.add("claim", batch, workers, claim)?;
            rows.add("ack", batch, workers, ack)?;
        }
        bar.finish_and_clear();
        if !context.json && !stop.is_cancelled() {
            rows.table.print()?;
        }
        Ok(rows.rows)
    }

    /// What the figures mean, as far as this run shows it.
    fn explain(&self, rows: &[Row]) {
        let p50 = |operation: &str| {
            rows.iter().find(|row| row.operation == operation && row.batch == 1).map(|r| r.p50_ms)
        };
        crate::output::note!(
            "Times are of one call: half of the calls took no longer than p50, 99 of 100 no longer \
             than p99."
        );
        if self.durability == Survives::Relaxed {
            crate::output::note!("Relaxed: nothing waited for the disk, except in the first row.");
            return;
        }
        if let (Some(raw), Some(push)) = (p50("write, fsync, rename"), p50("push"))
            && raw > 0.0
        {
            crate::output::note!(
                "A single push took {:.1} times the bare write, fsync and rename of {} bytes: that \
                 wait is the store's own; batches and workers share it.",
                push / raw,
                measure::RAW_BYTES
            );
        }
    }
}

const HEAD: [&str; 6] = ["OPERATION", "PER CALL", "WORKERS", "TASKS/S", "P50", "P99"];

struct Rows<'a> {
    context: &'a Context,
    table: Table,
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn add(
        &mut self,
        operation: &'static str,
        batch: usize,
        workers: usize,
        figures: Figures,
    ) -> Result<()> {
        // Microseconds are as fine as this gets.
        let millis = |percent| figures.percentile(percent).as_micros() as f64 / 1000.0;
        let row = Row {
            operation,
            batch,
            workers,
            tasks: figures.tasks,
            tasks_per_second: figures.rate().round(),
            p50_ms: millis(50),
            p99_ms: millis(99),
        };
        if self.context.json {
            output::json_line(&row)?;
        } else {
            self.table.row([
                operation.to_owned(),
                batch.to_string(),
                workers.to_string(),
                thousands(row.tasks_per_second.round() as u64),
                format!("{:.2} ms", row.p50_ms),
                format!("{:.2} ms", row.p99_ms),
            ]);
        }
        self.rows.push(row);
        Ok(())
    }
}
