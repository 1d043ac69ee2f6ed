//! What a task costs in a bucket: requests by kind, measured with worker processes of their own.
//!
//! Invariant: it writes only below a prefix that it made, never into a queue's tree, and removes all that
//! is below it however it ends.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dfq::config::{Address, BucketAddress};
use dfq::meter::{self, Counts, Prices, RequestKind};
use dfq::store::bucket::Bucket;
use dfq::{ErrorKind, NewTask, OpenOptions, Queue, TaskId};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use super::part::{Part, SLOTS};
use super::{BATCH, Bench};
use crate::context::Context;
use crate::exit::{Answer, invalid};
use crate::output::{self, Table, dollars, thousands};

/// What it ran on, for programs.
#[derive(Serialize)]
struct Ground<'a> {
    address: &'a str,
    version: &'static str,
    tasks: u32,
    bytes: u32,
    workers: u16,
    /// Tasks that each of them claims and acks in one call.
    slots: usize,
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    operation: &'static str,
    tasks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_per_second: Option<f64>,
    requests: Counts,
    dollars_per_million_tasks: f64,
    /// Of a claim: how often somebody else had been faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    collisions: Option<u64>,
}

/// How long worker processes may take to start.
const START: Duration = Duration::from_secs(30);

pub(super) async fn run(
    bench: &Bench,
    context: &Context,
    address: BucketAddress,
) -> Result<Answer> {
    let stop = CancellationToken::new();
    let signal = tokio::spawn(crate::exit::stop_signal(stop.clone()));
    let below = outside_of_queues(context, &address).await?;
    let place = below.below(&format!("dfq-bench-{:016x}", context.env.next_u64()));
    let measured = tokio::select! {
        measured = measure(bench, context, &below, &place) => measured,
        () = stop.cancelled() => Ok(()),
    };
    // Removed before anything else is said: whoever reads us may go away.
    let options = context.access_s3(OpenOptions::existing());
    let removed = Bucket::open(&place, &options).await?.remove_all().await;
    measured?;
    removed?;
    if stop.is_cancelled() {
        return Ok(Answer::Killed(signal.await.unwrap_or(2)));
    }
    Ok(Answer::Yes)
}

/// The address itself, or the nearest above it that does not belong to a queue.
async fn outside_of_queues(context: &Context, address: &BucketAddress) -> Result<BucketAddress> {
    let mut outside = address.clone();
    let mut here = Some(address.clone());
    while let Some(folder) = here {
        let above = |prefix: &str| BucketAddress { prefix: prefix.to_owned(), ..folder.clone() };
        here = match folder.prefix.rsplit_once('/') {
            Some((up, _)) => Some(above(up)),
            None if folder.prefix.is_empty() => None,
            None => Some(above("")),
        };
        let existing = context.access_s3(OpenOptions::existing());
        match dfq::open(&Address::Bucket(folder.clone()), existing).await {
            Ok(_) => {
                outside = here.clone().ok_or_else(|| {
                    invalid(format!("{folder} is a queue, and there is no place beside it"))
                })?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(outside)
}

async fn measure(
    bench: &Bench,
    context: &Context,
    below: &BucketAddress,
    place: &BucketAddress,
) -> Result<()> {
    let below = output::printable(&below.to_string());
    let ground = Ground {
        address: &below,
        version: env!("CARGO_PKG_VERSION"),
        tasks: bench.tasks,
        bytes: bench.size,
        workers: bench.workers,
        slots: SLOTS,
    };
    if context.json {
        output::json_line(&ground)?;
    } else {
        let tasks = format!("{} tasks of {} bytes", thousands(bench.tasks.into()), bench.size);
        let plural = if bench.workers == 1 { "" } else { "es" };
        let workers = format!("{} worker process{plural}", bench.workers);
        let version = ground.version;
        output::line(&format!(
            "dfq {version} on {below}, {tasks}, {workers} with {SLOTS} tasks at once each"
        ))?;
    }
    let mut rows = Vec::new();
    let bar = crate::many::progress(2 * u64::from(bench.tasks));
    let options = context.access_s3(OpenOptions::create());
    let queue = dfq::open(&Address::Bucket(place.clone()), options).await?;
    let own = bench.tasks / 2;
    for (operation, tasks, ids) in
        [("push", bench.tasks - own, false), ("push, own ids", own, true)]
    {
        let before = context.meter.counts();
        let began = context.env.monotonic();
        push(bench, &*queue, tasks, ids).await?;
        let took = context.env.monotonic() - began;
        let requests = meter::since(&context.meter.counts(), &before);
        bar.inc(tasks.into());
        rows.push(Row::new(operation, tasks.into(), Some(took), requests, &context.prices()));
    }
    let (part, took) = drain(bench, context, place).await?;
    bar.finish_and_clear();
    anyhow::ensure!(
        part.tasks == u64::from(bench.tasks),
        "{} tasks were pushed and {} were done: the store does not show what it has",
        bench.tasks,
        part.tasks
    );
    let prices = &context.prices();
    let collisions = part.claim.get(&RequestKind::Put).map_or(0, |puts| puts.no);
    let mut claim = Row::new("claim", part.tasks, Some(took), part.claim, prices);
    claim.collisions = Some(collisions);
    rows.push(claim);
    rows.push(Row::new("ack", part.tasks, Some(took), part.ack, prices));
    report(context, &rows, collisions)
}

async fn push(bench: &Bench, queue: &dyn Queue, tasks: u32, own_ids: bool) -> Result<()> {
    let text = "x".repeat((bench.size as usize).saturating_sub(r#"{"text":""}"#.len()));
    let task = NewTask::from_json(&format!(r#"{{"text":"{text}"}}"#))?;
    let numbers: Vec<u32> = (0..tasks).collect();
    for numbers in numbers.chunks(BATCH) {
        let named = |number: &u32| -> dfq::Result<NewTask> {
            match own_ids {
                true => Ok(task.clone().id(TaskId::new(format!("own-{number}"))?)),
                false => Ok(task.clone()),
            }
        };
        let batch = numbers.iter().map(named).collect::<dfq::Result<_>>()?;
        queue.push(batch).await.into_iter().collect::<dfq::Result<Vec<_>>>()?;
    }
    Ok(())
}

/// A worker process that waits for the word to begin.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Lets processes of their own do all tasks; answers what they did, and how long it took.
async fn drain(
    bench: &Bench,
    context: &Context,
    place: &BucketAddress,
) -> Result<(Part, Duration)> {
    let mut processes = Vec::new();
    for _ in 0..bench.workers {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "--part", &place.to_string()]);
        if let Some(file) = context.config.file() {
            command.arg("--config").arg(file);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("a worker process cannot be started")?;
        let stdout = child.stdout.take().context("a worker process without an output")?;
        processes.push(Process { child, lines: BufReader::new(stdout).lines() });
    }
    for process in &mut processes {
        let ready = async { process.lines.next_line().await };
        tokio::select! {
            ready = ready => {
                ready?.context("a worker process ended before it began")?;
            }
            () = context.env.clock().sleep(START) => anyhow::bail!("a worker process does not start"),
        }
    }
    let began = context.env.monotonic();
    for process in &mut processes {
        let mut stdin = process.child.stdin.take().context("a worker process without an input")?;
        stdin.write_all(b"go\n").await?;
    }
    let mut sum = Part::default();
    for process in &mut processes {
        let line = process.lines.next_line().await?.context("a worker process ended too early")?;
        let part: Part = serde_json::from_str(&line)?;
        context.meter.add(&part.claim);
        context.meter.add(&part.ack);
        sum.add(&part);
    }
    Ok((sum, context.env.monotonic() - began))
}

impl Row {
    fn new(
        operation: &'static str,
        tasks: u64,
        took: Option<Duration>,
        requests: Counts,
        prices: &Prices,
    ) -> Self {
        let seconds = took.map(|took| took.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let each = if tasks > 0 { 1e6 / tasks as f64 } else { 0.0 };
        Self {
            operation,
            tasks,
            tasks_per_second: seconds.map(|seconds| (tasks as f64 / seconds).round()),
            dollars_per_million_tasks: prices.dollars(&requests) * each,
            requests,
            collisions: None,
        }
    }

    fn per_task(&self, kinds: &[RequestKind]) -> f64 {
        let sent = |kind| self.requests.get(kind).map_or(0, |count| count.sent);
        let sent: u64 = kinds.iter().map(sent).sum();
        if self.tasks > 0 { sent as f64 / self.tasks as f64 } else { 0.0 }
    }
}

/// Kinds of requests as a price list sums them up.
const CLASSES: [(&str, &[RequestKind]); 4] = [
    ("PUT", &[RequestKind::Put]),
    ("GET, HEAD", &[RequestKind::Get, RequestKind::Head]),
    ("LIST", &[RequestKind::List]),
    ("DELETE", &[RequestKind::Delete]),
];

fn report(context: &Context, rows: &[Row], collisions: u64) -> Result<()> {
    if context.json {
        return rows.iter().try_for_each(output::json_line);
    }
    let mut head = vec!["OPERATION", "TASKS", "TASKS/S"];
    head.extend(CLASSES.iter().map(|(name, _)| *name));
    head.extend(["FAILED", "$ PER MILLION TASKS"]);
    let mut table = Table::new(&head);
    for row in rows {
        let rate = row.tasks_per_second.map_or_else(String::new, |rate| thousands(rate as u64));
        let per_task = CLASSES.iter().map(|(_, kinds)| format!("{:.4}", row.per_task(kinds)));
        let failed: u64 = row.requests.values().map(|count| count.failed).sum();
        let mut cells = vec![row.operation.to_owned(), thousands(row.tasks), rate];
        cells.extend(per_task);
        cells.extend([thousands(failed), dollars(row.dollars_per_million_tasks)]);
        table.row(cells);
    }
    table.print()?;
    let life: f64 = ["push", "claim", "ack"]
        .iter()
        .filter_map(|name| rows.iter().find(|row| row.operation == *name))
        .map(|row| row.dollars_per_million_tasks)
        .sum();
    let claims = rows.iter().find(|row| row.operation == "claim").map_or(0, |row| row.tasks);
    let share = if claims > 0 { 100.0 * collisions as f64 / claims as f64 } else { 0.0 };
    output::line(&format!(
        "push, claim and ack: ${} per million tasks; collisions: {} ({share:.2} % of claims)",
        dollars(life),
        thousands(collisions),
    ))?;
    if !context.quiet {
        crate::output::note!(
            "Requests are per task, retries and opening the queue among them. A collision is a lease \
             that somebody else had created already."
        );
    }
    Ok(())
}
