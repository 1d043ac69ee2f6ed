//! `dfq workers`: who works on a queue, and whether they still do.

use anyhow::Result;
use clap::Args;
use dfq::queue::WorkerRecord;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::context::Context;
use crate::exit::Answer;
use crate::output::{self, Table};

/// Show who works on a queue
///
/// A worker writes its record every 15 seconds; in a bucket every minute, or every two while it has nothing to do.
/// One that has not done so for twice as long and half a minute is silent: dead, stopped short, or cut off from the
/// store. Scripts that use `dfq poll` leave no record.
#[derive(Args, Debug)]
pub(crate) struct Workers {
    /// The queue
    queue: String,
}

/// A worker is silent once two records are due, and the second is so late.
const SLACK: SignedDuration = SignedDuration::from_secs(30);

/// How often a worker writes its record if it does not say.
const EVERY: i64 = 15;

/// What can be said of a worker from afar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    Alive,
    Silent,
    Stopped,
}

impl Life {
    pub(super) fn of(worker: &WorkerRecord, now: Timestamp) -> Self {
        let silence = worker.seen_at.map(|seen| now.duration_since(seen));
        let every = worker.every_s.and_then(|every| every.try_into().ok()).unwrap_or(EVERY);
        let patience = SignedDuration::from_secs(every).saturating_mul(2).saturating_add(SLACK);
        match (worker.stopped_at, silence) {
            (Some(_), _) => Self::Stopped,
            (None, Some(silence)) if silence <= patience => Self::Alive,
            _ => Self::Silent,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Silent => "silent",
            Self::Stopped => "stopped",
        }
    }
}

/// How long ago a worker was last seen.
pub(super) fn seen(worker: &WorkerRecord, now: Timestamp) -> String {
    worker.seen_at.map_or_else(|| "never".to_owned(), |seen| output::ago(seen, now))
}

#[derive(Serialize)]
struct WorkerJson<'a> {
    state: &'static str,
    seen_at: Option<String>,
    #[serde(flatten)]
    record: &'a WorkerRecord,
}

const HEAD: [&str; 13] = [
    "WORKER",
    "STATE",
    "SEEN",
    "RUNNING",
    "COMPLETED",
    "RETRIED",
    "FAILED",
    "RELEASED",
    "LOST",
    "STARTED",
    "HOST",
    "PID",
    "VERSION",
];

fn row(worker: &WorkerRecord, now: Timestamp) -> [String; 13] {
    [
        worker.worker_id.clone(),
        Life::of(worker, now).name().to_owned(),
        seen(worker, now),
        format!("{}/{}", worker.running, worker.concurrency),
        worker.completed.to_string(),
        worker.retried.to_string(),
        worker.failed.to_string(),
        worker.released.to_string(),
        worker.lost.to_string(),
        output::ago(worker.started_at, now),
        worker.host.clone(),
        worker.pid.to_string(),
        worker.version.clone(),
    ]
}

impl Workers {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        let mut workers = queue.workers().await?;
        let now = queue.now().await;
        // Stable: by name within each.
        workers.sort_by_key(|worker| Life::of(worker, now));
        if context.json {
            for worker in &workers {
                let state = Life::of(worker, now).name();
                let seen_at = worker.seen_at.map(output::time);
                output::json_line(&WorkerJson { state, seen_at, record: worker })?;
            }
            return Ok(Answer::Yes);
        }
        if workers.is_empty() {
            if !context.quiet {
                crate::output::note!("dfq: no worker has been seen in {}", queue.address());
            }
            return Ok(Answer::Yes);
        }
        let requests =
            |worker: &WorkerRecord| worker.requests.values().map(|count| count.sent).sum::<u64>();
        // Only some stores charge for them.
        let charged = workers.iter().any(|worker| requests(worker) > 0);
        let last = if charged { &["REQUESTS"][..] } else { &[] };
        let mut table = Table::new(&[&HEAD, last].concat());
        for worker in &workers {
            let requests = charged.then(|| output::thousands(requests(worker)));
            table.row(row(worker, now).into_iter().chain(requests));
        }
        table.print()?;
        Ok(Answer::Yes)
    }
}
