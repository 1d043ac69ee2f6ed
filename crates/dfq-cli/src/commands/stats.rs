//! `dfq stats`: how many tasks there are, once or again and again, and alarms on it.

pub(crate) mod alarm;

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::Queue;
use dfq::queue::{Detail, Stats as Counted};
use jiff::Timestamp;
use serde::Serialize;

use crate::args::duration;
use crate::commands::supervise::state::{Merge, MergeJson};
use crate::context::Context;
use crate::cost;
use crate::exit::{Answer, invalid, not_found, unsupported};
use crate::output::{self, Table};
use alarm::Alarm;

/// Count tasks
///
/// Pending tasks are ready (for a worker), leased (a worker has them), stale (their worker went
/// silent), in backoff (until their next attempt) or damaged. In a directory dfq looks into each to tell which;
/// --fast only counts them. In a bucket it goes by the listing, and looks into 100 of those that have a
/// lease: what is split by that is an estimate, marked with ~, and so is the number of tasks if there are
/// very many. --exact estimates nothing, and says first what that costs. SQS estimates all numbers and tells no others; a task that waits for its next
/// attempt counts as leased there, and those in the dead-letter queue as failed.
///
/// --fail-if takes METRIC OP VALUE, as 'failed>0' or 'oldest>1h': a metric is pending, ready, leased,
/// stale, backoff, damaged, scheduled, completed, failed or oldest (the age of the oldest pending
/// task; never true if there is none), OP one of > >= < <= =. If it holds for any queue the exit
/// status is 1, and stderr says which. With --watch, that ends the watching.
#[derive(Args, Debug)]
pub(crate) struct Stats {
    /// The queues; without any, all in dfq.toml that exist
    #[arg(value_name = "QUEUE")]
    queues: Vec<String>,
    /// Do not look into pending tasks, only count them; in a large bucket, estimate
    #[arg(long)]
    fast: bool,
    /// Estimate nothing; in a bucket, say first what that costs
    #[arg(long, conflicts_with = "fast")]
    exact: bool,
    /// Count again and again, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// How often with --watch
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s", requires = "watch")]
    every: Duration,
    /// Exit with status 1 if this holds; may be given more than once
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Alarm>,
}

/// A queue, and what was counted in it.
struct Line {
    name: String,
    counted: Counted,
    /// The store tells all of it, not only estimates of some.
    tells_all: bool,
    now: Timestamp,
    /// How it is merged, if it is a node of a synced queue.
    merge: Option<Merge>,
}

/// What only a store that can be looked into tells.
const BY_LOOKING: [&str; 5] = ["stale", "backoff", "damaged", "completed", "oldest"];

impl Line {
    /// How the merge goes, in a line or two.
    fn of_merge(&self) -> Vec<String> {
        let Some(merge) = &self.merge else { return Vec::new() };
        let line = format!("{}: {}", self.name, merge.line());
        std::iter::once(line).chain(merge.trouble()).collect()
    }
}

#[derive(Serialize)]
struct LineJson<'a> {
    at: String,
    queue: &'a str,
    pending: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<u64>,
    scheduled: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
    failed: u64,
    paused: bool,
    /// All were counted; if not, some are estimates.
    exact: bool,
    /// Which.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    estimated: Vec<&'static str>,
    /// When the oldest pending task was pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    merge: Option<MergeJson>,
}

impl Stats {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        if let Some(alarm) = self.fail_if.iter().find(|alarm| self.fast && !alarm.is_cheap()) {
            return Err(invalid(format!("'{alarm}' needs more than a count: leave out --fast")));
        }
        let queues = self.open(context).await?;
        self.check_alarms(&queues)?;
        if !self.watch {
            let lines = self.count(context, &queues).await?;
            self.print(context, &lines)?;
            for text in lines.iter().flat_map(Line::of_merge).filter(|_| !context.quiet) {
                crate::output::note!("dfq: {}", output::printable(&text));
            }
            return Ok(Answer::yes_if(!self.alarmed(&lines)));
        }
        let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
        let repaint = std::io::stdout().is_terminal() && !context.json;
        let mut painted = 0;
        loop {
            let lines = tokio::select! {
                lines = self.count(context, &queues) => lines?,
                _ = &mut stop => return Ok(Answer::Yes),
            };
            if repaint {
                let width = output::terminal_width();
                let mut shown = table(&lines).lines(width);
                let merges = lines.iter().flat_map(Line::of_merge).map(|it| output::printable(&it));
                shown.extend(
                    merges.map(|text| width.map_or(text.clone(), |it| output::cut(&text, it))),
                );
                painted = repaint_over(painted, &shown)?;
            } else if context.json {
                self.print(context, &lines)?;
            } else {
                lines.iter().try_for_each(|line| output::line(&one_line(line)))?;
            }
            if self.alarmed(&lines) {
                return Ok(Answer::No);
            }
            tokio::select! {
                () = context.env.clock().sleep(self.every.max(Duration::from_millis(100))) => {}
                _ = &mut stop => return Ok(Answer::Yes),
            }
        }
    }

    /// An alarm that can never go off is no alarm.
    fn check_alarms(&self, queues: &[(String, Arc<dyn Queue>)]) -> Result<()> {
        let damage = self.fail_if.iter().find(|alarm| alarm.metric() == "damaged");
        let remote = queues.iter().find(|(_, queue)| queue.capabilities().remote);
        if let (Some(alarm), Some((name, _))) = (damage, remote) {
            let name = output::printable(name);
            return Err(unsupported(format!(
                "{name}: a listing does not show damage, so '{alarm}' cannot be watched for; `dfq check` \
                 looks for it"
            )));
        }
        for (name, queue) in queues.iter().filter(|(_, queue)| !queue.capabilities().inspect) {
            let untold = |alarm: &&Alarm| BY_LOOKING.contains(&alarm.metric());
            if let Some(alarm) = self.fail_if.iter().find(untold) {
                let provider = queue.capabilities().provider;
                let (name, metric) = (output::printable(name), alarm.metric());
                return Err(unsupported(format!(
                    "{name}: {provider} does not tell '{metric}', so '{alarm}' cannot be watched for"
                )));
            }
        }
        Ok(())
    }

    async fn open(&self, context: &Context) -> Result<Vec<(String, Arc<dyn Queue>)>> {
        open_all(context, &self.queues).await
    }

    async fn count(
        &self,
        context: &Context,
        queues: &[(String, Arc<dyn Queue>)],
    ) -> Result<Vec<Line>> {
        let detail = match (self.fast, self.exact) {
            (true, _) => Detail::Counts,
            (_, true) => Detail::Exact,
            _ => Detail::States,
        };
        let mut lines = Vec::with_capacity(queues.len());
        for (name, queue) in queues {
            if self.exact {
                self.say_price(context, name, &**queue).await?;
            }
            let counted = queue.stats(detail).await?;
            let (name, tells_all) = (name.clone(), queue.capabilities().inspect);
            let merge = Merge::of(context, &name).await.unwrap_or(None);
            lines.push(Line { name, counted, tells_all, now: queue.now().await, merge });
        }
        Ok(lines)
    }

    /// Says what exact numbers cost before they are asked for, if they cost anything.
    async fn say_price(&self, context: &Context, name: &str, queue: &dyn Queue) -> Result<()> {
        if queue.capabilities().remote && !context.quiet {
            let counted = queue.stats(Detail::States).await?;
            if counted.exact_requests > 0 {
                let name = output::printable(name);
                let price = price(context, &counted);
                crate::output::note!("dfq: {name}: exact numbers take {price}");
            }
        }
        Ok(())
    }

    fn print(&self, context: &Context, lines: &[Line]) -> Result<()> {
        if context.json {
            return lines.iter().try_for_each(|line| output::json_line(&LineJson::new(line)));
        }
        table(lines).print()?;
        for line in lines.iter().filter(|line| !line.counted.is_exact()) {
            let name = output::printable(&line.name);
            crate::output::note!("dfq: {name}: {}", estimate_note(context, &line.counted));
        }
        Ok(())
    }

    /// Says which alarms hold, and answers whether any does.
    fn alarmed(&self, lines: &[Line]) -> bool {
        let mut any = false;
        for line in lines {
            for alarm in &self.fail_if {
                if let Some(value) = alarm.holds(&line.counted, line.now) {
                    let name = output::printable(&line.name);
                    crate::output::note!("dfq: {name}: {} is {value} ({alarm})", alarm.metric());
                    any = true;
                }
            }
        }
        any
    }
}

/// That some numbers are estimates, and what exact ones would cost.
fn estimate_note(context: &Context, counted: &Counted) -> String {
    if counted.exact_requests == 0 {
        return "these are the store's own estimates, and it has no others".to_owned();
    }
    format!("numbers with ~ are estimates; --exact takes {}", price(context, counted))
}

/// What exact numbers take.
fn price(context: &Context, counted: &Counted) -> String {
    let (listings, reads) = (counted.exact_requests, counted.exact_reads);
    let mut requests = format!("about {} LIST", output::thousands(listings));
    if reads > 0 {
        requests += &format!(" and {} GET", output::thousands(reads));
    }
    let dollars = cost::dollars(&context.prices(), listings, reads);
    format!("{requests} requests (${})", output::dollars(dollars))
}

/// The names of the numbers that are estimates.
pub(super) fn estimated(counted: &Counted) -> Vec<&'static str> {
    let estimates = counted.estimates;
    let states: &[&str] = match counted.states {
        Some(_) => &["ready", "leased", "stale", "backoff", "damaged"],
        None => &[],
    };
    let of = |is, names: &[&'static str]| if is { names.to_vec() } else { Vec::new() };
    let groups = [
        of(estimates.pending, &["pending"]),
        of(estimates.states, states),
        of(estimates.completed, &["completed"]),
        of(estimates.failed, &["failed"]),
    ];
    groups.concat()
}

/// Opens the queues that were named; or all in dfq.toml, less those that are not there yet.
pub(super) async fn open_all(
    context: &Context,
    names: &[String],
) -> Result<Vec<(String, Arc<dyn Queue>)>> {
    let mut queues = Vec::new();
    for name in names {
        queues.push((name.clone(), context.open(name).await?));
    }
    if !names.is_empty() {
        return Ok(queues);
    }
    let known: Vec<String> = context.config.names().map(str::to_owned).collect();
    if known.is_empty() {
        return Err(invalid("which queue? There is no dfq.toml here that names any"));
    }
    for name in known {
        match context.open(&name).await {
            Ok(queue) => queues.push((name, queue)),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if queues.is_empty() {
        let file = context.config.file().map(|file| file.display().to_string());
        let file = file.unwrap_or_default();
        let hint = "the first `dfq push` makes one, or `dfq init`";
        return Err(not_found(format!("none of the queues in {file} exists yet; {hint}")));
    }
    Ok(queues)
}

fn is_missing(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<dfq::Error>();
    error.is_some_and(|error| error.kind() == dfq::ErrorKind::NotFound)
}

impl<'a> LineJson<'a> {
    fn new(line: &'a Line) -> Self {
        let counted = &line.counted;
        let states = counted.states;
        let looked = states.filter(|_| line.tells_all);
        let oldest = states.and_then(|states| states.oldest);
        Self {
            at: output::time(line.now),
            queue: &line.name,
            pending: counted.pending,
            ready: states.map(|states| states.ready),
            leased: states.map(|states| states.leased),
            stale: looked.map(|states| states.stale),
            backoff: looked.map(|states| states.backoff),
            damaged: looked.map(|states| states.damaged),
            scheduled: counted.scheduled,
            completed: line.tells_all.then_some(counted.completed),
            failed: counted.failed,
            paused: counted.paused,
            exact: counted.is_exact(),
            estimated: estimated(counted),
            oldest_at: oldest.map(output::time),
            oldest_seconds: oldest.map(|oldest| alarm::age(oldest, line.now).as_secs()),
            merge: line.merge.as_ref().map(Merge::json),
        }
    }
}

/// What there is to say of a queue, by name. The same for a list and for a row.
pub(super) fn figures(
    counted: &Counted,
    tells_all: bool,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let about = |exact, number| {
        let sign = if exact { "" } else { "~" };
        format!("{sign}{}", output::thousands(number))
    };
    let estimates = counted.estimates;
    let looked_at = |number| about(!estimates.states, number);
    let mut figures = vec![("pending", about(!estimates.pending, counted.pending))];
    if let Some(states) = counted.states {
        figures.extend([
            ("ready", looked_at(states.ready)),
            ("leased", looked_at(states.leased)),
            ("stale", looked_at(states.stale)),
            ("backoff", looked_at(states.backoff)),
            ("damaged", looked_at(states.damaged)),
        ]);
    }
    figures.extend([
        ("scheduled", about(tells_all, counted.scheduled)),
        ("completed", about(!estimates.completed, counted.completed)),
        ("failed", about(!estimates.failed, counted.failed)),
    ]);
    if let Some(states) = counted.states {
        figures.push(("oldest", output::age(states.oldest, now)));
    }
    if !tells_all {
        let untold = figures.iter_mut().filter(|(name, _)| BY_LOOKING.contains(name));
        untold.for_each(|(_, figure)| *figure = "-".to_owned());
    }
    figures
}

/// One queue is a list, several are a table.
fn table(lines: &[Line]) -> Table {
    if let [line] = lines {
        let mut table = Table::new(&["QUEUE", ""]);
        table.relabel(1, &line.name);
        for (name, figure) in figures(&line.counted, line.tells_all, line.now) {
            let part = matches!(name, "ready" | "leased" | "stale" | "backoff" | "damaged");
            let name = if part { format!("  {name}") } else { name.to_owned() };
            table.row([name, figure]);
        }
        if line.counted.paused {
            table.row(["paused".to_owned(), "yes".to_owned()]);
        }
        return table;
    }
    // What matters most stands where a narrow terminal does not cut it.
    let mut columns = vec!["PENDING", "READY", "LEASED", "STALE", "BACKOFF", "FAILED", "OLDEST"];
    columns.extend(["SCHEDULED", "COMPLETED", "DAMAGED"]);
    let fast = lines.iter().all(|line| line.counted.states.is_none());
    let is_damaged = |line: &Line| line.counted.states.is_some_and(|states| states.damaged > 0);
    columns.retain(|column| match *column {
        "READY" | "LEASED" | "STALE" | "BACKOFF" | "OLDEST" => !fast,
        "DAMAGED" => lines.iter().any(is_damaged),
        _ => true,
    });
    let head: Vec<&str> = std::iter::once("QUEUE").chain(columns.iter().copied()).collect();
    let mut table = Table::new(&head);
    for line in lines {
        let figures = figures(&line.counted, line.tells_all, line.now);
        let figure = |column: &&str| {
            let found = figures.iter().find(|(name, _)| name.eq_ignore_ascii_case(column));
            found.map_or_else(String::new, |(_, figure)| figure.clone())
        };
        let paused = if line.counted.paused { " (paused)" } else { "" };
        let name = format!("{}{paused}", line.name);
        table.row(std::iter::once(name).chain(columns.iter().map(figure)));
    }
    table
}

/// A queue at a moment, for a log.
fn one_line(line: &Line) -> String {
    let figures = figures(&line.counted, line.tells_all, line.now);
    let figures: Vec<String> = figures
        .iter()
        .map(|(name, figure)| format!("{name}={}", figure.replace(',', "")))
        .collect();
    let paused = if line.counted.paused { " paused" } else { "" };
    let name = output::printable(&line.name);
    format!("{} {name} {}{paused}", output::time(line.now), figures.join(" "))
}

/// Paints lines over those painted before; answers how many there are now.
fn repaint_over(painted: u16, lines: &[String]) -> Result<u16> {
    use crossterm::{cursor, terminal};
    let mut out = std::io::stdout().lock();
    if painted > 0 {
        crossterm::queue!(out, cursor::MoveToPreviousLine(painted))?;
    }
    crossterm::queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
    // More than fits would scroll away from under the cursor.
    let fits = terminal::size().map_or(24, |(_, rows)| rows.saturating_sub(1).max(1));
    let lines = &lines[..lines.len().min(usize::from(fits))];
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(u16::try_from(lines.len()).unwrap_or(fits))
}
