//! Where a measurement may write in a bucket.
//!
//! Invariant: it writes only below a prefix that it made, never into a queue's tree, and removes all that
//! is below it however it ends.

use anyhow::Result;
use dfq::address::{Address, BucketAddress};
use dfq::store::bucket::Bucket;
use dfq::{ErrorKind, OpenOptions};
use tokio_util::sync::CancellationToken;

use super::Bench;
use super::requests::{self, Store};
use crate::context::Context;
use crate::exit::{Answer, invalid};

pub(super) async fn run(
    bench: &Bench,
    context: &Context,
    address: BucketAddress,
) -> Result<Answer> {
    let stop = CancellationToken::new();
    let signal = context.env.spawn(crate::exit::stop_signal(stop.clone()));
    let below = outside_of_queues(context, &address).await?;
    let scratch = below.below(&format!("dfq-bench-{:016x}", context.env.next_u64()));
    let options = context.access_s3(OpenOptions::existing());
    let queue = Address::Bucket(scratch.clone());
    let store = Store { name: below.to_string(), queue, options: options.clone() };
    let measured = tokio::select! {
        measured = requests::measure(bench, context, &store) => measured,
        () = stop.cancelled() => Ok(()),
    };
    // Removed before anything else is said: whoever reads us may go away.
    let (env, meter) = (options.env.clone(), options.meter.clone());
    let removed = Bucket::open(&scratch, &options.s3, env, meter).await?.remove_all().await;
    measured?;
    removed?;
    if stop.is_cancelled() {
        return Ok(Answer::Killed(signal.await.unwrap_or(2)));
    }
    Ok(Answer::Yes)
}

/// The address itself, or the nearest above it that does not belong to a queue.
async fn outside_of_queues(context: &Context, address: &BucketAddress) -> Result<BucketAddress> {
    let mut outside = address.clone();
    let mut here = Some(address.clone());
    while let Some(folder) = here {
        let above = |prefix: &str| BucketAddress { prefix: prefix.to_owned(), ..folder.clone() };
        here = match folder.prefix.rsplit_once('/') {
            Some((up, _)) => Some(above(up)),
            None if folder.prefix.is_empty() => None,
            None => Some(above("")),
        };
        let existing = context.access_s3(OpenOptions::existing());
        match dfq::open(&Address::Bucket(folder.clone()), existing).await {
            Ok(_) => {
                outside = here.clone().ok_or_else(|| {
                    invalid(format!("{folder} is a queue, and there is no place beside it"))
                })?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(outside)
}
