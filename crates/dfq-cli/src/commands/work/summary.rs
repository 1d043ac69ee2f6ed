//! What came of a worker's work, told when it ends.

use anyhow::Result;
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
    seconds: f64,
    halted: Option<String>,
}

/// Tells it, in a line or in JSON. `left` tasks were left to other nodes of a synced queue.
pub(super) fn tell(
    context: &Context,
    work_context: &WorkContext,
    report: &Report,
    left: Option<u64>,
) -> Result<()> {
    let Report { completed, retried, failed, released, lost, unrecorded } = *report;
    let halted = work_context.halt.reason();
    if let Some(why) = &halted {
        work_context.progress.tell(&format!("stopped: {why}"));
    }
    let took = work_context.progress.elapsed();
    if context.json {
        let seconds = took.as_secs_f64();
        let left_to_others = left;
        let summary = Summary {
            completed,
            retried,
            failed,
            released,
            lost,
            unrecorded,
            left_to_others,
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
        (left.unwrap_or(0), "left to other nodes for now"),
    ] {
        if count > 0 {
            line += &format!(", {} {what}", crate::output::thousands(count));
        }
    }
    work_context.progress.say(&format!("{line}, in {}", crate::output::duration(took)));
    Ok(())
}
