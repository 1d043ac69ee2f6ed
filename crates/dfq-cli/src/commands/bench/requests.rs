//! What a task costs where every request is charged: requests by kind, measured with worker processes of
//! their own.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dfq::address::Address;
use dfq::meter::{self, Counts, Prices, RequestKind};
use dfq::{NewTask, OpenOptions, Queue, Settings, TaskId};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::Bench;
use super::part::Part;
use crate::context::Context;
use crate::output::{self, Table, dollars, thousands};

/// A store that is measured.
pub(super) struct Store {
    /// What to call it.
    pub(super) name: String,
    /// A queue of our own on it, which is not there yet.
    pub(super) queue: Address,
    /// How to get at it.
    pub(super) options: OpenOptions,
}

/// How a kind of store is used best, and what it charges for.
pub(super) struct Habits {
    /// Tasks in one push.
    push: usize,
    /// Tasks that a worker process claims and acks in one call, as `dfq work -j` would.
    pub(super) slots: usize,
    /// Ids are looked for when they are pushed, and workers see each other's records.
    pub(super) has_tree: bool,
    /// Requests as a price list sums them up.
    classes: &'static [(&'static str, &'static [RequestKind])],
}

const BUCKET: Habits = Habits {
    push: super::BATCH,
    slots: 16,
    has_tree: true,
    classes: &[
        ("PUT", &[RequestKind::Put]),
        ("GET, HEAD", &[RequestKind::Get, RequestKind::Head]),
        ("LIST", &[RequestKind::List]),
        ("DELETE", &[RequestKind::Delete]),
    ],
};

/// SQS takes ten messages in a request.
const SQS: Habits = Habits {
    push: 80,
    slots: 10,
    has_tree: false,
    classes: &[
        ("SEND", &[RequestKind::Send]),
        ("RECEIVE", &[RequestKind::Receive]),
        ("REMOVE", &[RequestKind::Remove]),
        ("OTHER", &[RequestKind::Hide, RequestKind::Manage]),
    ],
};

impl Habits {
    pub(super) fn of(queue: &Address) -> &'static Self {
        match queue {
            Address::Sqs(_) => &SQS,
            _ => &BUCKET,
        }
    }
}

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

pub(super) async fn measure(bench: &Bench, context: &Context, store: &Store) -> Result<()> {
    let habits = Habits::of(&store.queue);
    let (name, slots) = (output::printable(&store.name), habits.slots);
    let ground = Ground {
        address: &name,
        version: env!("CARGO_PKG_VERSION"),
        tasks: bench.tasks,
        bytes: bench.size,
        workers: bench.workers,
        slots,
    };
    if context.json {
        output::json_line(&ground)?;
    } else {
        let tasks = format!("{} tasks of {} bytes", thousands(bench.tasks.into()), bench.size);
        let plural = if bench.workers == 1 { "" } else { "es" };
        let workers = format!("{} worker process{plural}", bench.workers);
        let version = ground.version;
        output::line(&format!(
            "dfq {version} on {name}, {tasks}, {workers} with {slots} tasks at once each"
        ))?;
    }
    let mut rows = Vec::new();
    let bar = crate::many::progress(2 * u64::from(bench.tasks));
    let create = Some(Settings::default());
    let options = OpenOptions { create, ..store.options.clone() };
    let queue = dfq::open(&store.queue, options).await?;
    let own = if habits.has_tree { bench.tasks / 2 } else { 0 };
    for (operation, tasks, ids) in
        [("push", bench.tasks - own, false), ("push, own ids", own, true)]
    {
        if ids && !habits.has_tree {
            continue;
        }
        let before = context.meter.counts();
        let began = context.env.monotonic();
        push(bench, &*queue, habits.push, tasks, ids).await?;
        let took = context.env.monotonic() - began;
        let requests = meter::since(&context.meter.counts(), &before);
        bar.inc(tasks.into());
        rows.push(Row::new(operation, tasks.into(), Some(took), requests, &context.prices()));
    }
    let (part, took) = drain(bench, context, &store.queue).await?;
    bar.finish_and_clear();
    let (pushed, done) = (u64::from(bench.tasks), part.tasks);
    // SQS may hand a task out twice.
    anyhow::ensure!(
        done == pushed || (done > pushed && !habits.has_tree),
        "{pushed} tasks were pushed and {done} were done: the store does not show what it has",
    );
    let prices = &context.prices();
    let collisions = part.claim.get(&RequestKind::Put).map_or(0, |puts| puts.no);
    let mut claim = Row::new("claim", part.tasks, Some(took), part.claim, prices);
    claim.collisions = habits.has_tree.then_some(collisions);
    rows.push(claim);
    rows.push(Row::new("ack", part.tasks, Some(took), part.ack, prices));
    report(context, habits, &rows)
}

async fn push(
    bench: &Bench,
    queue: &dyn Queue,
    at_once: usize,
    tasks: u32,
    own_ids: bool,
) -> Result<()> {
    let text = "x".repeat((bench.size as usize).saturating_sub(r#"{"text":""}"#.len()));
    let task = NewTask::from_json(&format!(r#"{{"text":"{text}"}}"#))?;
    let numbers: Vec<u32> = (0..tasks).collect();
    for numbers in numbers.chunks(at_once) {
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
async fn drain(bench: &Bench, context: &Context, queue: &Address) -> Result<(Part, Duration)> {
    let mut processes = Vec::new();
    for _ in 0..bench.workers {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "--part", &queue.to_string()]);
        if let Some(file) = context.config.file() {
            command.arg("--config").arg(file);
        }
        if std::env::var_os("DFQ_LOG").is_none() {
            // Their warnings would be ours once more.
            command.env("DFQ_LOG", "error");
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

fn report(context: &Context, habits: &Habits, rows: &[Row]) -> Result<()> {
    if context.json {
        return rows.iter().try_for_each(output::json_line);
    }
    let mut head = vec!["OPERATION", "TASKS", "TASKS/S"];
    head.extend(habits.classes.iter().map(|(name, _)| *name));
    head.extend(["FAILED", "$ PER MILLION TASKS"]);
    let mut table = Table::new(&head);
    for row in rows {
        let rate = row.tasks_per_second.map_or_else(String::new, |rate| thousands(rate as u64));
        let per_task =
            habits.classes.iter().map(|(_, kinds)| format!("{:.4}", row.per_task(kinds)));
        let failed: u64 = row.requests.values().map(|count| count.failed).sum();
        let mut cells = vec![row.operation.to_owned(), thousands(row.tasks), rate];
        cells.extend(per_task);
        cells.extend([thousands(failed), dollars(row.dollars_per_million_tasks)]);
        table.row(cells);
    }
    table.print()?;
    let (mut requests, mut price) = (0.0, 0.0);
    for row in rows.iter().filter(|row| ["push", "claim", "ack"].contains(&row.operation)) {
        requests += row.per_task(&RequestKind::ALL);
        price += row.dollars_per_million_tasks;
    }
    let price = dollars(price);
    let mut line =
        format!("push, claim and ack: {requests:.2} requests a task, ${price} per million tasks");
    let claim = rows.iter().find(|row| row.collisions.is_some());
    if let Some(Row { tasks, collisions: Some(collisions), .. }) = claim {
        let share = if *tasks > 0 { 100.0 * *collisions as f64 / *tasks as f64 } else { 0.0 };
        let collisions = thousands(*collisions);
        line += &format!("; collisions: {collisions} ({share:.2} % of claims)");
    }
    output::line(&line)?;
    if !context.quiet {
        let collision = match claim {
            Some(_) => " A collision is a lease that somebody else had created already.",
            None => "",
        };
        crate::output::note!(
            "Requests are per task, retries and opening the queue among them.{collision}"
        );
    }
    Ok(())
}
