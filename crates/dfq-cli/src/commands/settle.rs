//! `dfq ack`, `nack`, `fail`, `heartbeat` and `release`: what a script says about tasks that it claimed
//! by `dfq poll`, or that `dfq work` gave it as `DFQ_RECEIPT`.

use std::io::BufRead;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::queue::Nacked;
use dfq::{Queue, Receipt, Result as Answered};
use serde::Serialize;

use crate::args::duration;
use crate::context::Context;
use crate::exit::{self, Answer};
use crate::many::MAX_SENTENCES;
use crate::output;

/// The queue, and which of its tasks.
#[derive(Args, Debug)]
struct Claims {
    /// The queue
    queue: String,
    /// What `dfq poll` gave; `-` reads them from stdin, one on each line
    #[arg(value_name = "RECEIPT", required = true)]
    receipts: Vec<String>,
}

impl Claims {
    fn receipts(&self) -> Result<Vec<Receipt>> {
        let read = |text: &str| text.parse::<Receipt>().map_err(anyhow::Error::from);
        if self.receipts != ["-"] {
            return self.receipts.iter().map(|text| read(text)).collect();
        }
        let mut receipts = Vec::new();
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            if !line.trim().is_empty() {
                receipts.push(read(line.trim())?);
            }
        }
        Ok(receipts)
    }
}

/// How many are settled in one go.
const BATCH: usize = 500;

/// What became of one task.
struct Reply {
    /// In one word, for programs.
    status: &'static str,
    /// For how long something holds from now on.
    wait: Option<Duration>,
    /// For people, if there is more to say than that it was done.
    line: Option<String>,
}

impl Reply {
    fn plainly(status: &'static str) -> Self {
        Self { status, wait: None, line: None }
    }
}

#[derive(Serialize)]
struct ReplyJson<'a> {
    id: &'a str,
    receipt: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Settles each, and says what became of it; the answer is that of the first that went wrong.
async fn settle<T>(
    context: &Context,
    claims: &Claims,
    act: impl AsyncFn(&dyn Queue, Vec<Receipt>) -> Vec<Answered<T>>,
    said: impl Fn(T) -> Reply,
) -> Result<Answer> {
    let receipts = claims.receipts()?;
    let queue = context.open(&claims.queue).await?;
    let (mut first, mut refused) = (None, 0);
    for batch in receipts.chunks(BATCH) {
        let answers = act(&*queue, batch.to_vec()).await;
        for (receipt, answer) in batch.iter().zip(answers) {
            let (reply, error) = match answer {
                Ok(told) => (said(told), None),
                Err(error) => {
                    first.get_or_insert(error.kind());
                    refused += 1;
                    (Reply::plainly("refused"), Some(error))
                }
            };
            if context.json {
                output::json_line(&ReplyJson {
                    id: receipt.key().id().as_str(),
                    receipt: receipt.to_string(),
                    status: reply.status,
                    seconds: reply.wait.map(|wait| wait.as_secs_f64()),
                    error: error.map(|error| error.to_string()),
                })?;
            } else if let Some(error) = error {
                if refused <= MAX_SENTENCES {
                    exit::report(&error.into());
                }
            } else if let Some(line) = reply.line.filter(|_| !context.quiet) {
                let id = output::printable(&receipt.key().to_string());
                output::line(&format!("{id}: {line}"))?;
            }
        }
    }
    if refused > MAX_SENTENCES && !context.json {
        let more = output::thousands(refused - MAX_SENTENCES);
        crate::output::note!("dfq: and {more} more of this kind; --json tells of each");
    }
    Ok(first.map_or(Answer::Yes, Answer::Told))
}

/// Done: move claimed tasks to the completed ones
#[derive(Args, Debug)]
pub(crate) struct Ack {
    #[command(flatten)]
    claims: Claims,
}

impl Ack {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let act = async |queue: &dyn Queue, receipts| queue.ack(receipts).await;
        settle(context, &self.claims, act, |()| Reply::plainly("completed")).await
    }
}

/// Failed: try claimed tasks again after a backoff, or give up if that was once too often
#[derive(Args, Debug)]
pub(crate) struct Nack {
    #[command(flatten)]
    claims: Claims,
    /// What went wrong; kept with the task
    #[arg(long, value_name = "TEXT", default_value = "nacked without a reason")]
    error: String,
    /// When to try again, instead of the queue's backoff
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
}

impl Nack {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let nack = |receipt| dfq::Nack { receipt, error: self.error.clone(), delay: self.delay };
        let act = async |queue: &dyn Queue, receipts: Vec<Receipt>| {
            queue.nack(receipts.into_iter().map(nack).collect()).await
        };
        settle(context, &self.claims, act, |nacked| match nacked {
            Nacked::Again(wait) => Reply {
                status: "again",
                wait: Some(wait),
                line: Some(format!("again in {}", output::duration(wait))),
            },
            Nacked::GivenUp => Reply {
                status: "failed",
                wait: None,
                line: Some("failed, that was its last attempt".to_owned()),
            },
        })
        .await
    }
}

/// Hopeless: move claimed tasks to the failed ones at once
#[derive(Args, Debug)]
pub(crate) struct Fail {
    #[command(flatten)]
    claims: Claims,
    /// Why; kept with the task
    #[arg(long, value_name = "TEXT", default_value = "failed without a reason")]
    reason: String,
}

impl Fail {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let act = async |queue: &dyn Queue, receipts: Vec<Receipt>| {
            let failure = |receipt| (receipt, self.reason.clone());
            queue.fail(receipts.into_iter().map(failure).collect()).await
        };
        settle(context, &self.claims, act, |()| Reply::plainly("failed")).await
    }
}

/// Still at it: renew the leases of claimed tasks, and print for how long each holds
#[derive(Args, Debug)]
pub(crate) struct Heartbeat {
    #[command(flatten)]
    claims: Claims,
}

impl Heartbeat {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let act = async |queue: &dyn Queue, receipts| queue.heartbeat(receipts).await;
        settle(context, &self.claims, act, |holds| Reply {
            status: "held",
            wait: Some(holds),
            line: Some(format!("holds for {}", output::duration(holds))),
        })
        .await
    }
}

/// Not now: give claimed tasks back without counting the attempt
#[derive(Args, Debug)]
pub(crate) struct Release {
    #[command(flatten)]
    claims: Claims,
    /// Nobody should try before this time has passed
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// Why; kept with the task
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Release {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let (delay, reason) = (self.delay, self.reason);
        let release = |receipt| dfq::Release { receipt, delay, reason: reason.clone() };
        let act = async |queue: &dyn Queue, receipts: Vec<Receipt>| {
            queue.release(receipts.into_iter().map(release).collect()).await
        };
        settle(context, &self.claims, act, |()| Reply::plainly("released")).await
    }
}
