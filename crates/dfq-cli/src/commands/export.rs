//! `dfq export`: tasks as JSON lines that `dfq push` takes back, one page of them in memory at a time.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use clap::Args;
use dfq::queue::TaskView;

use crate::context::Context;
use crate::cost;
use crate::exit::Answer;
use crate::output;
use crate::select::{Selection, StateName};

/// Print tasks as JSON lines that `dfq push --jsonl -` takes back
///
/// Each line is the task as it was pushed, with its id in the member "_dfq"; only line breaks within a
/// task become spaces. Attempts, delays and limits stay behind. Without --state, all tasks that are
/// not finished. Exit status 1 means that some could not be read and were left out.
///
/// dfq export ./old | dfq push ./new --jsonl -
#[derive(Args, Debug)]
pub(crate) struct Export {
    /// The queue
    queue: String,
    #[command(flatten)]
    selection: Selection,
}

impl Export {
    pub(crate) async fn run(mut self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        if self.selection.state.is_empty() {
            self.selection.state = vec![StateName::Pending, StateName::Scheduled];
        }
        let mut out = output::sink();
        let (mut written, mut unreadable) = (0, 0);
        let each = |view: TaskView| {
            match &view.payload {
                Some(payload) => {
                    writeln!(out, "{}", payload.with_id(view.key.id()))?;
                    written += 1;
                }
                None => unreadable += 1,
            }
            Ok(ControlFlow::Continue(()))
        };
        cost::say_first(context, &*queue, &self.selection).await?;
        self.selection.visit(&*queue, each).await?;
        out.flush()?;
        if unreadable > 0 {
            let left = output::count(unreadable, "task");
            let name = output::shell(&self.queue);
            crate::output::note!(
                "dfq: left out {left} that cannot be read; `dfq check {name}` tells more"
            );
        } else if !context.quiet {
            crate::output::note!("dfq: {} exported", output::count(written, "task"));
        }
        Ok(Answer::yes_if(unreadable == 0))
    }
}
