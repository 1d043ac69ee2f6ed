//! Where a measurement may write in SQS: a queue of its own, in the account and region of the one named.
//!
//! Invariant: no other queue is touched, and its own is removed however it ends.

use anyhow::Result;
use dfq::OpenOptions;
use dfq::address::{Address, SqsAddress};
use dfq::config::Target;
use dfq::sqs::Sqs;
use tokio_util::sync::CancellationToken;

use super::Bench;
use super::requests::{self, Store};
use crate::context::Context;
use crate::exit::{Answer, invalid};

pub(super) async fn run(
    bench: &Bench,
    context: &Context,
    named: &SqsAddress,
    target: &Target,
) -> Result<Answer> {
    if matches!(named, SqsAddress::Url(_)) {
        return Err(invalid(format!(
            "{named} is one queue, and a queue of its own is made to measure; write sqs://NAME, and set \
             AWS_REGION"
        )));
    }
    let stop = CancellationToken::new();
    let signal = context.env.spawn(crate::exit::stop_signal(stop.clone()));
    let kind = if named.name().ends_with(".fifo") { ".fifo" } else { "" };
    let own = SqsAddress::Name(format!("dfq-bench-{:016x}{kind}", context.env.next_u64()));
    let mut options = context.access(target, OpenOptions::existing());
    // Nothing fails here, and the dead letters of others are theirs.
    options.sqs.dead_letter = None;
    let queue = Address::Sqs(own.clone());
    let store = Store { name: "SQS".to_owned(), queue, options: options.clone() };
    let measured = tokio::select! {
        measured = requests::measure(bench, context, &store) => measured,
        () = stop.cancelled() => Ok(()),
    };
    let removed = Sqs::remove(&own, &options).await;
    measured?;
    removed?;
    if stop.is_cancelled() {
        return Ok(Answer::Killed(signal.await.unwrap_or(2)));
    }
    Ok(Answer::Yes)
}
