//! `dfq poll`: claim tasks for a script that does the rest by itself.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::{OpenOptions, PollRequest};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::args::duration;
use crate::context::Context;
use crate::exit::Answer;
use crate::output;

/// Claim tasks, and print them as JSON lines
///
/// Each line has id, attempt, fence, receipt and task. The claim holds for the lease, whatever
/// becomes of this process; `dfq heartbeat` renews it, and `dfq ack`, `nack`, `fail` or `release`
/// ends it. Exit status 1 means that nothing could be claimed.
#[derive(Args, Debug)]
pub(crate) struct Poll {
    /// The queue
    queue: String,
    /// At most so many tasks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    batch: u16,
    /// For how long the claim holds without a heartbeat, instead of the queue's own lease
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// Wait so long for something to claim
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    wait: Duration,
    /// Go on though `dfq doctor` found the store unsafe: tasks may be done twice
    #[arg(long)]
    allow_unsafe: bool,
}

#[derive(Serialize)]
struct Claimed<'a> {
    id: &'a str,
    attempt: u32,
    fence: u64,
    receipt: String,
    task: Option<Box<RawValue>>,
}

/// How long at the most between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Poll {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let options = OpenOptions { allow_unsafe: self.allow_unsafe, ..OpenOptions::existing() };
        let queue = context.open_with(&self.queue, options).await?;
        let until = context.env.monotonic() + self.wait;
        let request =
            PollRequest { lease: self.lease, ..PollRequest::new(usize::from(self.batch)) };
        loop {
            let polled = queue.poll(request.clone()).await?;
            for delivery in &polled.deliveries {
                output::json_line(&Claimed {
                    id: delivery.id().as_str(),
                    attempt: delivery.attempt,
                    fence: delivery.fence,
                    receipt: delivery.receipt.to_string(),
                    task: output::raw(&delivery.payload),
                })?;
            }
            if !polled.deliveries.is_empty() {
                return Ok(Answer::Yes);
            }
            let left = until.saturating_sub(context.env.monotonic());
            if left.is_zero() && !polled.idle.more {
                if polled.idle.paused && !context.quiet {
                    crate::output::note!(
                        "dfq: {} is paused; `dfq resume` goes on",
                        queue.address()
                    );
                }
                return Ok(Answer::No);
            }
            if !polled.idle.more {
                let next = polled.idle.next.unwrap_or(LOOK_EVERY).max(Duration::from_millis(1));
                queue.wait(left.min(LOOK_EVERY).min(next)).await;
            }
        }
    }
}
