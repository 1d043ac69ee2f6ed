//! Copying and moving tasks from one queue to another, whatever their providers.
//!
//! Invariant: a task leaves its queue only after the other has it, durably, and at a later stage of its
//! journey. Whatever is interrupted is run again, and then knows by its `push_id` what has arrived before,
//! where the other queue can tell.
//!
//! | from | copied | moved |
//! | --- | --- | --- |
//! | what can be listed | page by page, as it is seen | claimed by name, pushed, ended with a record of where it went |
//! | SQS | received, pushed, given back at the end | received, pushed, deleted |
//!
//! Ids, payloads, limits, attempts and the time still to wait go along; finished tasks stay behind.

mod listed;
mod received;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Carried, Journey, NewTask, Payload, Receipt, TaskId, TaskMeta};
use crate::queue::{Earlier, Pushed, Queue, Release};

/// How many tasks are under way at once, and about how many bytes of them.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// The same where a task that is sent a second time is there twice: so many may be, after a crash.
const CAREFUL_BATCH: usize = 100;

/// Whether tasks stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They do.
    Copy,
    /// They do not.
    Move,
}

/// Brings tasks from one queue to another.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use dfq::transfer::{Mode, Transfer};
/// use dfq::{Env, NewTask, OpenOptions};
///
/// let old = dfq::open("memory://transfer-doc-old", OpenOptions::create()).await?;
/// let new = dfq::open("memory://transfer-doc-new", OpenOptions::create()).await?;
/// old.push(vec![NewTask::from_json(r#"{"id": "a", "n": 1}"#)?]).await;
///
/// let report = Transfer::new(old.clone(), new.clone(), Mode::Move, Env::system())?
///     .run(&mut |_| {})
///     .await?;
/// assert_eq!((report.done, report.refused, report.held), (1, 0, 0));
/// assert_eq!(new.peek(1).await?[0].payload.as_ref().unwrap().as_json(), r#"{"id": "a", "n": 1}"#);
/// # Ok::<(), dfq::Error>(()) }).unwrap();
/// ```
pub struct Transfer {
    from: Arc<dyn Queue>,
    to: Arc<dyn Queue>,
    mode: Mode,
    env: Env,
    again: bool,
    lease: Duration,
    stop: CancellationToken,
    report: Report,
    /// Told of already, and not tried again.
    refused: BTreeSet<TaskId>,
    /// Something has arrived and could not be ended where it was.
    in_both_queues: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tasks that the other queue has now.
    pub done: u64,
    /// Tasks that it did not take; they are where they were.
    pub refused: u64,
    /// Tasks that stayed because somebody has them, or that cannot be had yet.
    pub held: u64,
    /// It was told to stop, so there may be more.
    pub stopped: bool,
}

/// What happens meanwhile.
#[derive(Debug)]
pub enum Event<'a> {
    /// So many more tasks are in the other queue.
    Done(u64),
    /// The other queue did not take this one.
    Refused(&'a TaskId, &'a Error),
    /// Nothing can be done for so long: tasks are held, by an earlier run that was interrupted, or by
    /// another that goes on.
    Waiting(Duration),
}

/// A task on its way.
struct Parcel {
    task: NewTask,
    id: TaskId,
    /// The proof that it is ours to move.
    receipt: Option<Receipt>,
    /// Nobody is to have it before this time.
    due: Option<Timestamp>,
}

impl Transfer {
    /// Prepares to bring the tasks of one queue to another.
    pub fn new(from: Arc<dyn Queue>, to: Arc<dyn Queue>, mode: Mode, env: Env) -> Result<Self> {
        if from.identity() == to.identity() {
            let address = from.address();
            return Err(Error::invalid(format!("both queues are the same one: {address}")));
        }
        let (report, refused) = (Report::default(), BTreeSet::new());
        let lease = Duration::from_secs(60);
        let stop = CancellationToken::new();
        let (again, in_both_queues) = (false, false);
        Ok(Self { from, to, mode, env, again, lease, stop, report, refused, in_both_queues })
    }

    /// Starts the next life of a task where the other queue has finished one of the same id. Otherwise
    /// such a task is refused.
    #[must_use]
    pub fn again(mut self, again: bool) -> Self {
        self.again = again;
        self
    }

    /// For how long tasks are claimed that are under way. It is renewed as needed; after a crash they
    /// can be had again when it has run out.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Stops in good order when this is cancelled: what is under way is brought to its end.
    #[must_use]
    pub fn stop_on(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// Brings all tasks that are not finished. An error means that one of the queues is in trouble;
    /// whatever has been done by then is done.
    pub async fn run(mut self, tell: &mut (dyn FnMut(Event<'_>) + Send)) -> Result<Report> {
        match (self.from.capabilities().inspect, self.mode) {
            (true, Mode::Copy) => self.copy_listed(tell).await?,
            (true, Mode::Move) => self.move_listed(tell).await?,
            (false, _) => self.receive_all(tell).await?,
        }
        self.report.stopped = self.stop.is_cancelled();
        Ok(self.report)
    }

    fn batch(&self) -> usize {
        if self.to.capabilities().deduplicates { BATCH } else { CAREFUL_BATCH }
    }

    /// A task as it was found, with the greatest fencing token that was given out for it.
    fn parcel(
        &self,
        (payload, meta): (Payload, TaskMeta),
        earlier: Earlier,
        fence: u64,
        receipt: Option<Receipt>,
        due: Option<Timestamp>,
    ) -> Parcel {
        let settings = self.to.settings();
        // However strict the other queue is, whoever sends a task there wants it tried.
        let max_attempts = meta.max_attempts.unwrap_or(settings.max_attempts);
        let carried = Carried {
            failed: earlier.failed.min(max_attempts.saturating_sub(1)),
            lost: earlier.lost.min(settings.max_lost.saturating_sub(1)),
        };
        let id = meta.id.clone();
        let journey = Journey { moves: meta.journey.moves.saturating_add(1), fence };
        let mut task = NewTask::arriving(payload, meta, carried, journey, due);
        if self.again {
            task = task.again();
        }
        Parcel { task, id, receipt, due }
    }

    /// Pushes tasks, and lets those go that have arrived.
    async fn deliver(
        &mut self,
        parcels: Vec<Parcel>,
        tell: &mut (dyn FnMut(Event<'_>) + Send),
    ) -> Result<()> {
        if parcels.is_empty() {
            return Ok(());
        }
        let tasks = parcels.iter().map(|parcel| parcel.task.clone()).collect();
        let receipts: Vec<_> = parcels.iter().filter_map(|parcel| parcel.receipt.clone()).collect();
        let answers = self.while_held(&receipts, self.to.push(tasks)).await;
        let (mut arrived, mut staying, mut trouble) = (Vec::new(), Vec::new(), None);
        for (parcel, answer) in parcels.into_iter().zip(answers) {
            let error = match answer {
                Ok(Pushed::Created(_)) => {
                    arrived.push(parcel);
                    continue;
                }
                Ok(Pushed::Pending(_)) => other_task(&parcel.id, "is pending there"),
                Ok(Pushed::Finished(..)) => other_task(&parcel.id, "has finished there"),
                // It may have arrived: nobody is to have it here before the next run knows.
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    trouble = Some(error);
                    continue;
                }
                Err(error) if is_trouble(&error) => {
                    trouble = Some(error);
                    staying.push(parcel);
                    continue;
                }
                Err(error) => error,
            };
            self.refuse(&parcel.id, &error, tell);
            staying.push(parcel);
        }
        self.stay(staying).await;
        let arrived = self.let_go(arrived).await?;
        self.report.done += arrived;
        tell(Event::Done(arrived));
        trouble.map_or(Ok(()), Err)
    }

    /// Ends tasks where they were, if they are moved. Answers how many have gone for good.
    async fn let_go(&mut self, arrived: Vec<Parcel>) -> Result<u64> {
        if self.mode == Mode::Copy || arrived.is_empty() {
            return Ok(arrived.len() as u64);
        }
        let to = self.to.address().to_owned();
        let departure = |parcel: &Parcel| Some((parcel.receipt.clone()?, to.clone()));
        let answers = self.from.moved(arrived.iter().filter_map(departure).collect()).await;
        let mut gone = 0;
        for (parcel, answer) in arrived.into_iter().zip(answers) {
            match answer {
                Ok(()) => gone += 1,
                Err(error) if is_trouble(&error) => return Err(error),
                // Somebody else has it, or has ended it. If it is still here it is met again, and then
                // the other queue knows it.
                Err(error) => {
                    tracing::warn!(id = %parcel.id, %error, "a task may be in both queues");
                    self.in_both_queues = true;
                }
            }
        }
        Ok(gone)
    }

    /// Gives tasks back that were claimed and are not moved.
    async fn stay(&self, parcels: Vec<Parcel>) {
        // What SQS handed out comes back by itself; not at once, or it would be handed out to us again.
        if self.mode == Mode::Copy || !self.from.capabilities().release {
            return;
        }
        let now = self.from.now().await;
        let release = |parcel: Parcel| {
            let delay = parcel.due.and_then(|due| due.duration_since(now).try_into().ok());
            Some(Release { receipt: parcel.receipt?, delay, reason: None })
        };
        for answer in self.from.release(parcels.into_iter().filter_map(release).collect()).await {
            if let Err(error) = answer {
                tracing::warn!(%error, "not given back; it can be had when its lease has run out");
            }
        }
    }

    fn refuse(&mut self, id: &TaskId, error: &Error, tell: &mut (dyn FnMut(Event<'_>) + Send)) {
        if self.refused.insert(id.clone()) {
            self.report.refused += 1;
            tell(Event::Refused(id, error));
        }
    }

    /// Renews claims while something takes its time.
    async fn while_held<R>(&self, receipts: &[Receipt], work: impl Future<Output = R>) -> R {
        tokio::pin!(work);
        let every = self.from.heartbeat_every(self.lease);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.env.clock().sleep(every), if !receipts.is_empty() => {
                    for answer in self.from.heartbeat(receipts.to_vec()).await {
                        if let Err(error) = answer {
                            tracing::warn!(%error, "a task may end up in both queues");
                        }
                    }
                }
            }
        }
    }
}

fn other_task(id: &TaskId, what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("task '{id}': another task of this id {what}"))
}

/// The store is in trouble, not the task.
fn is_trouble(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Full | ErrorKind::Denied | ErrorKind::Unavailable)
}

/// Splits what was listed or received into batches that are not too large.
fn batches<T>(all: Vec<T>, most: usize, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut batches, mut bytes) = (Vec::new(), 0);
    for one in all {
        let add = size(&one);
        let full = |last: &Vec<T>| last.len() >= most || bytes + add > BATCH_BYTES;
        if batches.last().is_none_or(full) {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += add;
        if let Some(last) = batches.last_mut() {
            last.push(one);
        }
    }
    batches
}
