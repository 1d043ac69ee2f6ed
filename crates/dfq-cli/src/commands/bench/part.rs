//! One of the worker processes of a measurement: claims and acks until nothing is left, and tells what it
//! asked of the store.

use anyhow::Result;
use dfq::config::BucketAddress;
use dfq::meter::{self, Counts};
use dfq::queue::WorkerRecord;
use dfq::{OpenOptions, PollRequest, Queue};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::context::Context;
use crate::exit::Answer;
use crate::output;

/// Tasks that a process claims and acks in one call, as `dfq work -j 16` would.
pub(super) const SLOTS: usize = 16;

/// What a process did.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) tasks: u64,
    pub(super) claim: Counts,
    pub(super) ack: Counts,
}

impl Part {
    pub(super) fn add(&mut self, other: &Self) {
        self.tasks += other.tasks;
        meter::add(&mut self.claim, &other.claim);
        meter::add(&mut self.ack, &other.ack);
    }
}

fn record(context: &Context, queue: &dyn Queue) -> WorkerRecord {
    WorkerRecord {
        worker_id: queue.worker_id().to_owned(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: context.env.clock().wall(),
        seen_at: None,
        stopped_at: None,
        concurrency: SLOTS,
        running: 0,
        completed: 0,
        retried: 0,
        failed: 0,
        released: 0,
        lost: 0,
        requests: Counts::new(),
    }
}

/// Opens the queue, waits for a line on stdin, and works.
pub(super) async fn run(context: &Context, address: BucketAddress) -> Result<Answer> {
    let address = dfq::config::Address::Bucket(address);
    let queue = dfq::open(&address, context.access_s3(OpenOptions::existing())).await?;
    // Workers share the shards among those whose records they see.
    queue.put_worker(record(context, &*queue)).await?;
    output::line("ready")?;
    BufReader::new(tokio::io::stdin()).lines().next_line().await?;
    // What goes on in the background counts for the call during which it left.
    let (mut part, mut counted) = (Part::default(), Counts::new());
    let mut count = |sum: &mut Counts| {
        let now = context.meter.counts();
        meter::add(sum, &meter::since(&now, &counted));
        counted = now;
    };
    loop {
        let polled = queue.poll(PollRequest::new(SLOTS)).await?;
        count(&mut part.claim);
        if polled.deliveries.is_empty() {
            if polled.idle.more {
                continue;
            }
            break;
        }
        let receipts = polled.deliveries.into_iter().map(|delivery| delivery.receipt).collect();
        let acked = queue.ack(receipts).await.into_iter().collect::<dfq::Result<Vec<_>>>()?;
        part.tasks += acked.len() as u64;
        count(&mut part.ack);
    }
    queue.close().await;
    count(&mut part.ack);
    output::json_line(&part)?;
    Ok(Answer::Yes)
}
