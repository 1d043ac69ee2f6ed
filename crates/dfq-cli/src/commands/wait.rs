//! `dfq wait`: return once a queue has nothing left to do.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::Queue;
use dfq::queue::{Capabilities, Detail, ListCursor, Place, Stats};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::duration;
use crate::commands::stats::estimated;
use crate::context::Context;
use crate::exit::Answer;
use crate::output;

/// Wait until nothing is pending or scheduled
///
/// Exit status 0: everything is done and nothing lies among the failed tasks. 1: everything is done,
/// but there are failed tasks, from now or from before; or --timeout has passed. With --json, the
/// member "outcome" tells these apart: completed, failed or timeout.
#[derive(Args, Debug)]
pub(crate) struct Wait {
    /// The queue
    queue: String,
    /// Wait no longer than this
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
}

#[derive(Serialize)]
struct WaitJson {
    outcome: &'static str,
    pending: u64,
    scheduled: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
    failed: u64,
    /// Which of these are estimates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    estimated: Vec<&'static str>,
}

/// Where a look is a request, the time between two: first, and at the most, doubling.
const REMOTE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// The shortest time between two looks, whatever happens in the queue.
const AT_LEAST: Duration = Duration::from_millis(200);
/// The longest.
const AT_MOST: Duration = Duration::from_secs(5);
/// A look may take up one part of so many of the time.
const SHARE: u32 = 5;
/// So few are looked into: folders that a crash left of finished tasks are counted as names.
const FEW: u64 = 100;

impl Wait {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        let began = context.env.monotonic();
        let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
        let (mut shown, mut remote_pause) = (None, REMOTE.0);
        let remote = queue.capabilities().remote;
        loop {
            let round_began = context.env.monotonic();
            let stats = read_stats(&*queue).await?;
            let left = stats.pending + stats.scheduled;
            let shown = shown.get_or_insert_with(|| Shown::new(context, &self.queue, &stats));
            shown.update(&stats);
            let now = context.env.monotonic();
            let time = self
                .timeout
                .map_or(Duration::MAX, |timeout| began.saturating_add(timeout).saturating_sub(now));
            if left == 0 || time.is_zero() {
                shown.clear();
                return self.conclude(context, &*queue, &stats, now.saturating_sub(began));
            }
            let pause = match remote {
                true => remote_pause,
                false => (now.saturating_sub(round_began) * SHARE).clamp(AT_LEAST, AT_MOST),
            };
            remote_pause = (remote_pause * 2).min(REMOTE.1);
            let pause = pause.min(time);
            tokio::select! {
                () = rest(context, &*queue, pause) => {}
                _ = &mut stop => {
                    shown.clear();
                    return Ok(Answer::Killed(2));
                }
            }
        }
    }

    fn conclude(
        &self,
        context: &Context,
        queue: &dyn Queue,
        stats: &Stats,
        took: Duration,
    ) -> Result<Answer> {
        // Some stores count, but cannot be looked into.
        let inspect = queue.capabilities().inspect;
        let Stats { pending, scheduled, completed, failed, .. } = *stats;
        let outcome = match (pending + scheduled, failed) {
            (0, 0) => "completed",
            (0, _) => "failed",
            _ => "timeout",
        };
        if context.json {
            let completed = inspect.then_some(completed);
            let mut estimated = estimated(stats);
            estimated.retain(|name| inspect || *name != "completed");
            output::json_line(&WaitJson {
                outcome,
                pending,
                scheduled,
                completed,
                failed,
                estimated,
            })?;
        } else if !context.quiet || outcome != "completed" {
            let name = output::shell(&self.queue);
            let hint = |command: &str| match inspect {
                true => format!("; `dfq {command} {name}`"),
                false => String::new(),
            };
            let took = output::duration(took);
            match outcome {
                "completed" => crate::output::note!("dfq: nothing is left after {took}"),
                "failed" => {
                    let failed = output::count(failed, "failed task");
                    let hint = hint("failed");
                    crate::output::note!(
                        "dfq: nothing is left after {took}, but there are {failed}{hint}"
                    );
                }
                _ => {
                    let about = if stats.estimates.pending { "about " } else { "" };
                    let left = output::count(pending + scheduled, "task");
                    let left = format!("{about}{left}");
                    let hint = hint("explain");
                    crate::output::note!("dfq: {left} left after {took}{hint}");
                }
            }
        }
        Ok(Answer::yes_if(outcome == "completed"))
    }
}

/// Counts cheaply, and exactly once it matters.
async fn read_stats(queue: &dyn Queue) -> Result<Stats> {
    let mut stats = queue.stats(Detail::Counts).await?;
    let is_over = stats.pending == 0 && !stats.estimates.pending;
    if stats.scheduled > 0 || stats.pending > FEW || is_over {
        return Ok(stats);
    }
    let Capabilities { remote, inspect, .. } = queue.capabilities();
    if !(remote && inspect) {
        return Ok(queue.stats(Detail::States).await?);
    }
    // Only what is pending is looked into: there may be many records.
    stats.pending = 0;
    let mut cursor = Some(ListCursor::at(Place::Pending).briefly(usize::MAX));
    while let Some(from) = cursor.take().filter(|from| from.place() == Place::Pending) {
        let page = queue.list(Some(from)).await?;
        stats.pending += page.tasks.len() as u64;
        cursor = page.next;
    }
    stats.estimates.pending = false;
    Ok(stats)
}

/// Waits for `pause`, or less if something happens, but never no time at all.
async fn rest(context: &Context, queue: &dyn Queue, pause: Duration) {
    let began = context.env.monotonic();
    queue.wait(pause).await;
    let rested = context.env.monotonic().saturating_sub(began);
    let more = AT_LEAST.min(pause).saturating_sub(rested);
    if !more.is_zero() {
        context.env.clock().sleep(more).await;
    }
}

/// What is seen of it while it lasts: a bar on a terminal, else one line.
struct Shown(Option<ProgressBar>);

impl Shown {
    fn new(context: &Context, name: &str, stats: &Stats) -> Self {
        let left = stats.pending + stats.scheduled;
        if context.quiet || left == 0 {
            return Self(None);
        }
        if stats.paused {
            let name = output::shell(name);
            crate::output::note!("dfq: {name} is paused; `dfq resume {name}` goes on");
        }
        if !std::io::stderr().is_terminal() {
            if !context.json {
                crate::output::note!("dfq: waiting for {}", output::count(left, "task"));
            }
            return Self(None);
        }
        let bar = ProgressBar::new(left);
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(Some(bar))
    }

    fn update(&self, stats: &Stats) {
        let Some(bar) = &self.0 else { return };
        let left = stats.pending + stats.scheduled;
        // More may have come than was there at first.
        bar.set_length(bar.length().unwrap_or(left).max(left));
        bar.set_position(bar.length().unwrap_or(left).saturating_sub(left));
        let failed = match stats.failed {
            0 => String::new(),
            failed => format!(", {} failed", output::thousands(failed)),
        };
        bar.set_message(format!("{} left{failed}", output::thousands(left)));
    }

    fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
