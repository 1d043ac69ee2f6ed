//! `dfq pause` and `dfq resume`: a mark in the queue that every poll honours.

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::exit::Answer;

/// Hand out no tasks until `dfq resume`
///
/// Tasks that workers have already are finished; pushes go on.
#[derive(Args, Debug)]
pub(crate) struct Pause {
    /// The queue
    queue: String,
    /// Why, for those who look
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Pause {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        queue.pause(self.reason).await?;
        if !context.quiet {
            crate::output::note!(
                "dfq: {} is paused; `dfq resume {}` goes on",
                queue.address(),
                crate::output::shell(&self.queue)
            );
        }
        Ok(Answer::Yes)
    }
}

/// Hand out tasks again
#[derive(Args, Debug)]
pub(crate) struct Resume {
    /// The queue
    queue: String,
}

impl Resume {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        queue.resume().await?;
        if !context.quiet {
            crate::output::note!("dfq: {} goes on", queue.address());
        }
        Ok(Answer::Yes)
    }
}
