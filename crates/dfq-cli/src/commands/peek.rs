//! `dfq peek`: what a worker would be given now; claims nothing.

use anyhow::Result;
use clap::Args;
use dfq::Queue;
use dfq::queue::{ListCursor, Place, TaskState, TaskView};

use crate::commands::ls;
use crate::context::Context;
use crate::exit::Answer;
use crate::output::{self, Rows, TaskJson};

/// Show tasks that could be claimed now, and claim none
///
/// Which of them is up to chance, as it is for workers; the oldest of those shown stands first. Exit
/// status 1 means that nothing could be claimed.
#[derive(Args, Debug)]
pub(crate) struct Peek {
    /// The queue
    queue: String,
    /// At most so many tasks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
}

impl Peek {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        if queue.paused().await?.is_some() {
            if !context.quiet {
                let name = output::shell(&self.queue);
                crate::output::note!(
                    "dfq: {name} is paused: nothing is handed out until `dfq resume {name}`"
                );
            }
            return Ok(Answer::No);
        }
        let views = claimable(&*queue, usize::from(self.batch)).await?;
        if context.json {
            for view in &views {
                output::json_line(&TaskJson::new(view))?;
            }
        } else {
            let now = queue.now().await;
            let mut rows = Rows::new(&["ID", "STATE", "ATTEMPTS", "AGE", "TASK"]);
            for view in &views {
                let mut cells = ls::row(view, now);
                cells[4] = view.payload.as_ref().map_or("", |payload| payload.as_json()).to_owned();
                rows.row(cells)?;
            }
            rows.end()?;
            if views.is_empty() && !context.quiet {
                let name = output::shell(&self.queue);
                crate::output::note!("dfq: nothing to claim; `dfq explain {name}` says why");
            }
        }
        Ok(Answer::yes_if(!views.is_empty()))
    }
}

/// Tasks that a poll would find. It would also move scheduled ones that have come due.
async fn claimable(queue: &dyn Queue, max: usize) -> Result<Vec<TaskView>> {
    let mut views = queue.peek(max).await?;
    if views.len() < max {
        let now = queue.now().await;
        let is_due =
            |view: &TaskView| matches!(view.state, TaskState::Scheduled { due } if due <= now);
        let scheduled = queue.list(Some(ListCursor::at(Place::Scheduled))).await?.tasks;
        let room = max - views.len();
        views.extend(scheduled.into_iter().filter(is_due).take(room));
    }
    views.sort_by(|a, b| (a.meta.created_at, a.key.id()).cmp(&(b.meta.created_at, b.key.id())));
    Ok(views)
}
