//! What came of a worker's work, told when it ends.

use anyhow::Result;
use dfq::synced::LeftToOthers;
use dfq::worker::Report;
use serde::Serialize;

use super::WorkContext;
use crate::context::Context;

#[derive(Serialize)]
struct Summary {
    completed: u64,
    retried: u64,
    failed: u64,
    released: u64,
    lost: u64,
    unrecorded: u64,
    /// In a synced queue, with `--until idle`: tasks that nobody has claimed, because other nodes come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_to_others: Option<u64>,
    /// There may be more of these: not all were looked at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    left_is_a_minimum: bool,
    seconds: f64,
    halted: Option<String>,
}

/// Tells it, in a line or in JSON. `left` tasks were left to other nodes of a synced queue.
pub(super) fn tell(
    context: &Context,
    work_context: &WorkContext,
    report: &Report,
    left: Option<LeftToOthers>,
) -> Result<()> {
    let Report { completed, retried, failed, released, lost, unrecorded } = *report;
    let halted = work_context.halt.reason();
    if let Some(why) = &halted {
        work_context.progress.tell(&format!("stopped: {why}"));
    }
    let took = work_context.progress.elapsed();
    if context.json {
        let seconds = took.as_secs_f64();
        let left_to_others = left.map(|left| left.tasks);
        let left_is_a_minimum = left.is_some_and(|left| left.at_least);
        let summary = Summary {
            completed,
            retried,
            failed,
            released,
            lost,
            unrecorded,
            left_to_others,
            left_is_a_minimum,
            seconds,
            halted,
        };
        return crate::output::json_line(&summary);
    }
    let mut line = format!("{} completed", crate::output::count(completed, "task"));
    for (count, what) in [
        (retried, "to be tried again"),
        (failed, "failed"),
        (released, "given back"),
        (lost, "lost to others"),
        (unrecorded, "done, but not recorded: they will be done again"),
    ] {
        if count > 0 {
            line += &format!(", {} {what}", crate::output::thousands(count));
        }
    }
    if let Some(left) = left.filter(|left| left.tasks > 0) {
        let at_least = if left.at_least { "at least " } else { "" };
        let tasks = crate::output::thousands(left.tasks);
        line += &format!(", {at_least}{tasks} left to other nodes for now");
    }
    work_context.progress.say(&format!("{line}, in {}", crate::output::duration(took)));
    Ok(())
}
