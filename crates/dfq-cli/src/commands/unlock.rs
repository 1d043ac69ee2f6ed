//! `dfq unlock`: takes tasks from whoever has them.

use std::cell::Cell;

use anyhow::Result;
use clap::Args;
use dfq::queue::{Place, TaskState, TaskView, Unlocked};
use dfq::{ErrorKind, TaskId};

use crate::args::Careful;
use crate::context::Context;
use crate::exit::Answer;
use crate::many::{self, Job, Told, Words};
use crate::output;

/// Take tasks from whoever has them, so that others can claim them at once
///
/// For workers that are known to be gone, when their leases are too long to wait for. A worker that
/// is alive after all may work on until its next heartbeat, beside the task's next worker.
///
/// A task given by ID is also freed from its backoff; `-` reads ids from stdin. With --all or
/// --worker, dfq says how many there are and asks first. That there are none is no error.
#[derive(Args, Debug)]
pub(crate) struct Unlock {
    /// The queue
    queue: String,
    #[command(flatten)]
    which: Held,
    #[command(flatten)]
    careful: Careful,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct Held {
    /// The tasks' ids
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All that this worker has; `dfq workers` lists them
    #[arg(long, value_name = "WORKER")]
    worker: Option<String>,
    /// All that any worker has
    #[arg(long)]
    all: bool,
}

const WORDS: Words = Words {
    verb: "unlock",
    done: "unlocked",
    nothing: "nothing to unlock: no worker has a task",
    question: " (a worker that is alive may work on until its next heartbeat)",
};

impl Unlock {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let named = many::named(&self.which.ids)?;
        let queue = context.open(&self.queue).await?;
        let queue = &*queue;
        let ids = match self.which.ids.is_empty() {
            false => named,
            true => {
                let meant = |view: &TaskView| match (&view.state, &self.which.worker) {
                    (TaskState::Leased { worker_id, .. }, Some(worker)) => worker_id == worker,
                    (state, _) => matches!(state, TaskState::Leased { .. }),
                };
                many::found(context, queue, &[Place::Pending], None, meant).await?
            }
        };
        let mut words = WORDS;
        if self.which.worker.is_some() {
            words.nothing = "nothing to unlock: this worker has no task";
        }
        let named = !self.which.ids.is_empty();
        let job = Job { context, queue, words, careful: self.careful, named };
        let taken = Cell::new(false);
        let answer = job
            .run(ids, check_state, async |batch: Vec<TaskId>| {
                let answers = queue.unlock(batch.clone()).await;
                let told = |(id, answer): (&TaskId, dfq::Result<Unlocked>)| {
                    let unlocked = answer?;
                    taken.set(taken.get() || unlocked != Unlocked::WasFree);
                    Ok(told(id, unlocked))
                };
                batch.iter().zip(answers).map(told).collect()
            })
            .await?;
        if named && taken.get() && !context.quiet && !context.json {
            crate::output::note!(
                "dfq: a worker that is alive may work on until its next heartbeat"
            );
        }
        Ok(answer)
    }
}

fn told(id: &TaskId, unlocked: Unlocked) -> Told {
    let id = output::printable(id.as_str());
    match unlocked {
        Unlocked::From(worker) => Told {
            status: WORDS.done,
            generation: None,
            line: format!("{id}: free, was with {}", output::printable(&worker)),
            worker_id: Some(worker),
        },
        Unlocked::WasFree => Told {
            status: "free",
            generation: None,
            worker_id: None,
            line: format!("{id}: was free already"),
        },
    }
}

fn check_state(view: &TaskView) -> dfq::Result<()> {
    match view.state {
        TaskState::Completed | TaskState::Failed | TaskState::Scheduled { .. } => {
            let message = format!("task '{}' is not pending", view.key.id());
            Err(dfq::Error::new(ErrorKind::NotFound, message))
        }
        _ => Ok(()),
    }
}
