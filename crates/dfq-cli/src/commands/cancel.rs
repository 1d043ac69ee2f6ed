//! `dfq cancel`: tasks that are not finished go to the failed ones.

use anyhow::Result;
use clap::Args;
use dfq::queue::{Cancelled, Place, TaskState, TaskView};
use dfq::{ErrorKind, TaskId};

use crate::args::{Careful, Which};
use crate::context::Context;
use crate::exit::Answer;
use crate::many::{self, Job, Told, Words};
use crate::output;

/// Give tasks up that are not finished
///
/// They go to the failed ones, from where `dfq retry` brings them back. A worker that has one of them
/// learns it within ten seconds. Tasks given by ID are cancelled at once, `-` reads ids from stdin.
/// With --all or --where, dfq says how many there are and asks first. That there are none is no
/// error.
#[derive(Args, Debug)]
pub(crate) struct Cancel {
    /// The queue
    queue: String,
    #[command(flatten)]
    which: Which,
    /// At most so many, of those that --all or --where find
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    limit: Option<usize>,
    /// Why; kept with the tasks
    #[arg(long, value_name = "TEXT", default_value = "cancelled")]
    reason: String,
    #[command(flatten)]
    careful: Careful,
}

const WORDS: Words =
    Words { verb: "cancel", done: "cancelled", nothing: "nothing to cancel", question: "" };

impl Cancel {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let named = many::named(&self.which.ids)?;
        let queue = context.open(&self.queue).await?;
        let queue = &*queue;
        // In this order: what comes due meanwhile is found in the second place.
        let places = [Place::Scheduled, Place::Pending];
        let ids = many::meant(context, &self.which, named, queue, &places, self.limit).await?;
        let named = !self.which.ids.is_empty();
        let job = Job { context, queue, words: WORDS, careful: self.careful, named };
        job.run(ids, check_state, async |batch: Vec<TaskId>| {
            let answers = queue.cancel(batch.clone(), self.reason.clone()).await;
            let told = |(id, answer): (&TaskId, dfq::Result<Cancelled>)| {
                answer.map(|cancelled| told(id, cancelled))
            };
            batch.iter().zip(answers).map(told).collect()
        })
        .await
    }
}

fn told(id: &TaskId, cancelled: Cancelled) -> Told {
    let mut line = format!("{}: cancelled", output::printable(id.as_str()));
    if let Some(worker) = &cancelled.held_by {
        let worker = output::printable(worker);
        line += &format!("; {worker} was working on it, and is told within 10 s");
    }
    Told { status: WORDS.done, generation: None, worker_id: cancelled.held_by, line }
}

fn check_state(view: &TaskView) -> dfq::Result<()> {
    match view.state {
        TaskState::Completed | TaskState::Failed => {
            let message = format!("task '{}' has {} already", view.key.id(), view.state.name());
            Err(dfq::Error::new(ErrorKind::AlreadyCompleted, message))
        }
        _ => Ok(()),
    }
}
