//! `dfq ls`: tasks, one on each line, as they are found; never all of them in memory.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::model::LeaseState;
use dfq::queue::TaskView;
use jiff::Timestamp;

use crate::context::Context;
use crate::cost;
use crate::exit::Answer;
use crate::output::{self, Rows, TaskJson};
use crate::select::{Selection, StateName, last_error};

/// List tasks
///
/// Pending tasks come first, then scheduled, completed and failed ones, in the order of their folders,
/// not of their age. Without --limit all of them are listed, however many there are.
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// The queue
    queue: String,
    #[command(flatten)]
    selection: Selection,
    /// How to print them [default: table; with --json: json]
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs, a line each
    Json,
    /// Only the ids
    Name,
}

/// The columns of a table of tasks.
pub(super) const HEAD: [&str; 5] = ["ID", "STATE", "ATTEMPTS", "AGE", "LAST ERROR"];

/// A task in such a table.
pub(super) fn row(view: &TaskView, now: Timestamp) -> [String; 5] {
    [
        view.key.id().to_string(),
        output::state(&view.state, now),
        attempts(view).to_string(),
        output::age(view.meta.created_at, now),
        last_error(view).unwrap_or_default(),
    ]
}

/// How often a task was tried, as far as anybody did try.
pub(super) fn attempts(view: &TaskView) -> usize {
    let withdrawn = |state| state == Some(LeaseState::Withdrawn);
    view.attempts.iter().filter(|attempt| !withdrawn(attempt.state)).count()
}

impl Ls {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        let default = if context.json { Format::Json } else { Format::Table };
        let format = self.output.unwrap_or(default);
        let mut selection = self.selection;
        // What a table shows of a task stands in its leases; a name alone takes no look at all.
        selection.looks = match format {
            Format::Json => None,
            _ if !selection.needs_no_payload() => None,
            // Only the task's own file shows that.
            _ if selection.state.contains(&StateName::Damaged) => None,
            Format::Name if selection.picks_nothing() => Some(0),
            _ => Some(usize::MAX),
        };
        cost::say_first(context, &*queue, &selection).await?;
        if format == Format::Table {
            let now = queue.now().await;
            let mut rows = Rows::new(&HEAD);
            let mut found = false;
            let each = |view: TaskView| {
                found = true;
                rows.row(row(&view, now))?;
                Ok(ControlFlow::Continue(()))
            };
            selection.visit(&*queue, each).await?;
            rows.end()?;
            if !found && !context.quiet {
                crate::output::note!("dfq: no such task in {}", queue.address());
            }
            return Ok(Answer::Yes);
        }
        let mut out = output::sink();
        let each = |view: TaskView| {
            match format {
                Format::Name => writeln!(out, "{}", output::id(view.key.id().as_str()))?,
                _ => writeln!(out, "{}", serde_json::to_string(&TaskJson::new(&view))?)?,
            }
            Ok(ControlFlow::Continue(()))
        };
        selection.visit(&*queue, each).await?;
        out.flush()?;
        Ok(Answer::Yes)
    }
}
