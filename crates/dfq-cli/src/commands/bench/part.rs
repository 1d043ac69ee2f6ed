//! One of the worker processes of a measurement: claims and acks until nothing is left, and tells what it
//! asked of the store.

use std::time::Duration;

use anyhow::Result;
use dfq::config::Target;
use dfq::meter::{self, Counts};
use dfq::queue::WorkerRecord;
use dfq::{OpenOptions, PollRequest, Queue};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::requests::Habits;
use crate::context::Context;
use crate::exit::Answer;
use crate::output;

/// How long to wait for what is not to be had yet, where a queue says that something is left.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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

fn record(context: &Context, queue: &dyn Queue, slots: usize) -> WorkerRecord {
    WorkerRecord {
        worker_id: queue.worker_id().to_owned(),
        host: context.env.host().name.clone(),
        pid: context.env.host().pid,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: context.env.clock().wall(),
        concurrency: slots,
        ..WorkerRecord::default()
    }
}

/// Opens the queue, waits for a line on stdin, and works.
pub(super) async fn run(context: &Context, target: &Target) -> Result<Answer> {
    let existing = context.access(target, OpenOptions::existing());
    let queue = dfq::open(&target.address, existing).await?;
    let habits = Habits::of(&target.address);
    if habits.has_tree {
        // Workers share the shards among those whose records they see.
        queue.put_worker(record(context, &*queue, habits.slots)).await?;
    }
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
        let polled = queue.poll(PollRequest::new(habits.slots)).await?;
        count(&mut part.claim);
        if polled.deliveries.is_empty() {
            if polled.idle.more {
                continue;
            }
            if habits.has_tree || polled.idle.next.is_none() {
                break;
            }
            // SQS shows what it has in its own time.
            queue.wait(LOOK_AGAIN).await;
            continue;
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
