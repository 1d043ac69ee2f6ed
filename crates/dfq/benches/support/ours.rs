//! The library, called as a program without a runtime calls it: on its own thread.

use std::path::Path;
use std::time::Duration;

use dfq::model::Durability;
use dfq::store::fs::Filesystem;
use dfq::{Env, NewTask, OpenOptions, PollRequest, Queue, Receipt, Settings, TreeQueue};
use futures::executor::block_on;

/// 300 bytes, as a caller would push them.
pub(crate) fn payload() -> String {
    let head = r#"{"schema_version":1,"domain":"example.com","company_slug":"example","note":""#;
    format!("{head}{}\"}}", "x".repeat(300 - head.len() - 2))
}

/// What the library writes in a task's life.
#[derive(Clone)]
pub(crate) struct Samples {
    pub(crate) task: Vec<u8>,
    pub(crate) lease: Vec<u8>,
    pub(crate) record: Vec<u8>,
}

pub(crate) struct Ours(TreeQueue<Filesystem>);

impl Ours {
    pub(crate) fn open(dir: &Path, durable: bool) -> Self {
        let durability = if durable { Durability::Durable } else { Durability::Relaxed };
        let settings = Settings { durability, ..Settings::default() };
        let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
        let tree = Filesystem::create(dir, Env::system()).unwrap();
        Self(block_on(TreeQueue::open(tree, options)).unwrap())
    }

    /// Pushes a batch, from JSON text as a caller has it.
    pub(crate) fn push(&self, payload: &str, count: usize, delay: Option<Duration>) {
        let task = || {
            let task = NewTask::from_json(payload).unwrap();
            delay.into_iter().fold(task, NewTask::delay)
        };
        for answer in block_on(self.0.push((0..count).map(|_| task()).collect())) {
            answer.unwrap();
        }
    }

    /// Pushes many, in batches.
    pub(crate) fn fill(&self, count: usize, delay: Option<Duration>) {
        let payload = payload();
        for at in (0..count).step_by(1024) {
            self.push(&payload, 1024.min(count - at), delay);
        }
    }

    pub(crate) fn claim(&self, max: usize) -> Vec<Receipt> {
        let polled = block_on(self.0.poll(PollRequest::new(max))).unwrap();
        polled.deliveries.into_iter().map(|delivery| delivery.receipt).collect()
    }

    /// Claims exactly so many, of a queue that holds them.
    pub(crate) fn claim_all(&self, count: usize, batch: usize) -> Vec<Receipt> {
        let mut claimed = Vec::with_capacity(count);
        while claimed.len() < count {
            let more = self.claim(batch.min(count - claimed.len()));
            assert!(!more.is_empty(), "there are tasks, and none was found");
            claimed.extend(more);
        }
        claimed
    }

    pub(crate) fn ack(&self, receipts: Vec<Receipt>) {
        for answer in block_on(self.0.ack(receipts)) {
            answer.unwrap();
        }
    }

    /// Claims and acks until there is nothing left.
    pub(crate) fn drain(&self, batch: usize) -> usize {
        let mut done = 0;
        loop {
            let claimed = self.claim(batch);
            if claimed.is_empty() {
                return done;
            }
            done += claimed.len();
            self.ack(claimed);
        }
    }
}

/// Takes one task through its life and keeps what was written.
pub(crate) fn samples(dir: &Path) -> Samples {
    let only_file = |place: &str, name: &str| {
        let found = std::fs::read_dir(dir.join(place)).unwrap().next().unwrap().unwrap().path();
        let entry = std::fs::read_dir(found).unwrap().next().unwrap().unwrap().path();
        std::fs::read(entry.join(name)).or_else(|_| std::fs::read(entry)).unwrap()
    };
    let queue = Ours::open(dir, false);
    queue.push(&payload(), 1, None);
    let claimed = queue.claim(1);
    let (task, lease) = (only_file("pending", "task.json"), only_file("pending", "lease.json"));
    queue.ack(claimed);
    Samples { task, lease, record: only_file("completed", "") }
}
