//! `dfq check`: looks for everything in a queue that should not be there, and mends what can be.

use anyhow::Result;
use clap::Args;
use dfq::queue::{Detail, Problem, Stats};
use serde::Serialize;

use crate::context::Context;
use crate::exit::Answer;
use crate::output::{self, Table, thousands};

/// Look for what is not in order in a queue, and mend it if asked to
///
/// May be run at any time, beside workers. Exit status 1 means that something is left that is not in
/// order. With --repair, what a worker would see to in passing is done now; files that are not dfq's
/// are named and left alone.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// The queue
    queue: String,
    /// Mend what can be mended without a guess
    #[arg(long)]
    repair: bool,
    /// Only look, as without --repair
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct ProblemJson<'a> {
    path: &'a str,
    what: &'a str,
    mended: bool,
}

#[derive(Serialize)]
struct SummaryJson {
    in_order: bool,
    problems: usize,
    mended: usize,
    pending: u64,
    scheduled: u64,
    completed: u64,
    failed: u64,
}

impl Check {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        let problems = queue.check(self.repair && !self.dry_run).await?;
        let stats = queue.stats(Detail::Counts).await?;
        let mended = problems.iter().filter(|problem| problem.mended).count();
        let in_order = mended == problems.len();
        if context.json {
            for Problem { path, what, mended } in &problems {
                output::json_line(&ProblemJson { path, what, mended: *mended })?;
            }
            output::json_line(&SummaryJson {
                in_order,
                problems: problems.len(),
                mended,
                pending: stats.pending,
                scheduled: stats.scheduled,
                completed: stats.completed,
                failed: stats.failed,
            })?;
        } else {
            self.print(context, &problems, mended, &stats)?;
        }
        Ok(Answer::yes_if(in_order))
    }

    fn print(
        &self,
        context: &Context,
        problems: &[Problem],
        mended: usize,
        stats: &Stats,
    ) -> Result<()> {
        if !problems.is_empty() {
            let mut table = Table::new(&["MENDED", "PATH", "WHAT"]);
            for Problem { path, what, mended } in problems {
                let mended = if *mended { "yes" } else { "no" };
                table.row([mended.to_owned(), path.clone(), what.clone()]);
            }
            table.print()?;
        }
        if context.quiet {
            return Ok(());
        }
        let left = (problems.len() - mended) as u64;
        let done = match mended {
            0 => String::new(),
            number => format!("{} mended; ", output::count(number as u64, "thing")),
        };
        if left == 0 {
            let Stats { pending, scheduled, completed, failed, .. } = stats;
            let numbers = [(pending, "pending"), (scheduled, "scheduled")]
                .into_iter()
                .chain([(completed, "completed"), (failed, "failed")])
                .map(|(number, state)| format!("{} {state}", thousands(*number)));
            let numbers: Vec<String> = numbers.collect();
            return output::line(&format!("{done}in order: {}", numbers.join(", ")));
        }
        let hint = match self.repair && !self.dry_run {
            true => "look at the paths above",
            false => "--repair mends what can be mended",
        };
        crate::output::note!("dfq: {done}{} not in order; {hint}", output::count(left, "thing"));
        Ok(())
    }
}
