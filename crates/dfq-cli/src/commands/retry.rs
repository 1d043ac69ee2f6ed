//! `dfq retry`: failed tasks start anew.

use anyhow::Result;
use clap::Args;
use dfq::queue::{Place, TaskState, TaskView};
use dfq::{ErrorKind, Pushed, TaskId};

use crate::args::{Careful, Which};
use crate::context::Context;
use crate::exit::Answer;
use crate::many::{self, Job, Told, Words};
use crate::output;

/// Start failed tasks anew
///
/// A task that is retried begins a new life with all its attempts; what became of the earlier life
/// stays on record. Tasks given by ID are retried at once, `-` reads ids from stdin. With --all or
/// --where, dfq says how many there are and asks first. That there are none is no error.
#[derive(Args, Debug)]
pub(crate) struct Retry {
    /// The queue
    queue: String,
    #[command(flatten)]
    which: Which,
    /// At most so many, of those that --all or --where find
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    limit: Option<usize>,
    #[command(flatten)]
    careful: Careful,
}

const WORDS: Words =
    Words { verb: "retry", done: "retried", nothing: "nothing to retry", question: " that failed" };

impl Retry {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let named = many::named(&self.which.ids)?;
        let queue = context.open(&self.queue).await?;
        let queue = &*queue;
        let ids =
            many::meant(context, &self.which, named, queue, &[Place::Failed], self.limit).await?;
        let named = !self.which.ids.is_empty();
        let job = Job { context, queue, words: WORDS, careful: self.careful, named };
        job.run(ids, check_state, async |batch: Vec<TaskId>| {
            queue.retry(batch).await.into_iter().map(|answer| answer.map(told)).collect()
        })
        .await
    }
}

fn told(pushed: Pushed) -> Told {
    let key = pushed.key();
    let id = output::printable(key.id().as_str());
    let generation = Some(key.generation());
    let (status, line) = match pushed {
        Pushed::Created(_) => (WORDS.done, format!("{id}: starts anew")),
        Pushed::Pending(_) => ("pending", format!("{id}: is in the queue already")),
        Pushed::Finished(..) => ("finished", format!("{id}: finished meanwhile")),
    };
    Told { status, generation, worker_id: None, line }
}

fn check_state(view: &TaskView) -> dfq::Result<()> {
    let id = view.key.id();
    match view.state {
        TaskState::Failed => Ok(()),
        TaskState::Completed => {
            let message = format!("task '{id}' has completed; push it again to do it again");
            Err(dfq::Error::new(ErrorKind::AlreadyCompleted, message))
        }
        _ => Err(dfq::Error::new(ErrorKind::NotFound, format!("task '{id}' has not failed"))),
    }
}
