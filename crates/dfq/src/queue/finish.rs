//! Letting go of a task: ack and fail by a terminal record, nack and release by a word in one's own
//! lease.
//!
//! The record is the commit. It is created if absent and durable before the task's file goes; who
//! finds one there already reads whose it is. Batches share the waiting for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::claim::signed;
use super::core::Core;
use super::discover::Note;
use super::hold::{Held, Holding, Over, is_lost};
use super::judge::{self, Seen};
use super::strategy::Forgetting;
use super::{Answers, Nack, Nacked, Release};
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::model::{Lease, LeaseState, Outcome, Payload, Receipt, Record, TaskKey, TaskMeta};
use crate::planted::{self, Planted};
use crate::store::{Created, Tree, removed_until};

/// The longest error text kept: the end of it, which is where the reason usually is.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// So many records share the waiting for a disk. Before each such part of a batch the leases are checked once more.
const TOGETHER: usize = 128;

fn tail(text: String) -> String {
    if text.len() <= MAX_ERROR_BYTES {
        return text;
    }
    let from = (text.len() - MAX_ERROR_BYTES..text.len()).find(|at| text.is_char_boundary(*at));
    format!("…{}", &text[from.unwrap_or(text.len())..])
}

/// How a task ends.
#[derive(Clone, Debug)]
enum End {
    Completed,
    /// For this reason.
    Failed(String),
    /// It lives on at this address.
    Moved(String),
}

impl End {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Completed | Self::Moved(_) => Outcome::Completed,
            Self::Failed(_) => Outcome::Failed,
        }
    }
}

/// What a failed attempt leads to.
enum Tried {
    /// Another, after this time.
    Again(Duration),
    /// The end, for this reason.
    Enough(String),
}

/// A task about to be finished.
struct Finishing<T: Tree> {
    receipt: Receipt,
    held: Arc<Held<T>>,
    record: Record,
}

impl<T: Tree> Core<T> {
    pub(super) async fn ack(&self, receipts: Vec<Receipt>) -> Answers<()> {
        self.finish(receipts.into_iter().map(|receipt| (receipt, End::Completed)).collect()).await
    }

    pub(super) async fn fail(&self, failures: Vec<(Receipt, String)>) -> Answers<()> {
        let ends = failures.into_iter().map(|(receipt, why)| (receipt, End::Failed(tail(why))));
        self.finish(ends.collect()).await
    }

    pub(super) async fn moved(&self, departures: Vec<(Receipt, String)>) -> Answers<()> {
        let ends = departures.into_iter().map(|(receipt, to)| (receipt, End::Moved(to)));
        self.finish(ends.collect()).await
    }

    async fn finish(&self, mut ends: Vec<(Receipt, End)>) -> Answers<()> {
        // Nothing twice.
        let asked: Vec<Receipt> = ends.iter().map(|(receipt, _)| receipt.clone()).collect();
        ends.sort_by(|a, b| a.0.cmp(&b.0));
        ends.dedup_by(|a, b| a.0 == b.0);
        let mut answers = BTreeMap::new();
        let mut batch = Vec::with_capacity(ends.len());
        // What other processes have claimed is looked for at once; then it is known.
        let adopting = asked.iter().map(|receipt| self.held(receipt)).collect();
        let _: Vec<Result<_>> = self.each(adopting).await;
        for (receipt, end) in ends {
            match self.prepare_end(&receipt, &end).await {
                Ok(Some(finishing)) => batch.push(finishing),
                Ok(None) => _ = answers.insert(receipt, Ok(())),
                Err(error) => {
                    _ = answers.insert(receipt.clone(), Err(self.give_up(&receipt, error)))
                }
            }
        }
        let file = |finishing: &Finishing<T>| {
            let path = self.record_path(finishing.record.outcome, finishing.receipt.key());
            (path, format::encode_record(&finishing.record))
        };
        let records: Vec<_> = batch.iter().map(file).collect();
        let began = self.env.monotonic();
        if planted::is(Planted::TaskRemovedFirst) {
            self.clean_up_after(&batch.iter().collect::<Vec<_>>()).await;
            let _ = self.tree.flush().await;
        }
        let created = self.commit_owned(&batch, &records).await;
        let mut done = Vec::with_capacity(batch.len());
        for (finishing, created) in batch.iter().zip(created) {
            let answer = match created {
                Ok(created) => self.conclude(finishing, created).await,
                // An earlier call may have done it, whose answer was lost.
                Err(error) if is_lost(&error) => {
                    self.conclude(finishing, Created::Exists).await.map_err(|_| error)
                }
                Err(error) => Err(error),
            };
            match answer {
                Ok(()) => done.push(finishing),
                Err(error) => {
                    let error = self.give_up(&finishing.receipt, error);
                    answers.insert(finishing.receipt.clone(), Err(error));
                }
            }
        }
        // After a suspend, skip the clean-up where a late removal could meet a new task of that name.
        let in_time = self.env.monotonic() < removed_until(began);
        if self.strategy.forgetting == Forgetting::Floors || in_time {
            self.clean_up_after(&done).await;
        }
        for finishing in done {
            self.let_go(&finishing.receipt);
            self.note(Note::Gone(finishing.receipt.key().clone()));
            answers.insert(finishing.receipt.clone(), Ok(()));
        }
        let unanswered = || Err(Error::new(ErrorKind::Unavailable, "the end was not recorded"));
        let answer = |receipt| answers.get(receipt).cloned().unwrap_or_else(unanswered);
        asked.iter().map(answer).collect()
    }

    /// Makes the record, if the task is ours to finish. `None` if this receipt has finished it before.
    async fn prepare_end(&self, receipt: &Receipt, end: &End) -> Result<Option<Finishing<T>>> {
        let outcome = end.outcome();
        let ours = async {
            let held = self.held(receipt).await?;
            let holding = held.holding.lock().await;
            self.check_owned(&holding, receipt)?;
            // Nobody takes over while our clock says that we own it, but for an operator; and should
            // the record come too late, it is read back whose it is. So where looks cost, none.
            if self.strategy.looks.before_an_end {
                self.check_unchallenged(&held, receipt).await?;
            }
            let Holding { lease, payload, meta, history, .. } = &*holding;
            let mut lease = lease.next();
            let (mut reason, mut moved_to) = (None, None);
            match end {
                End::Completed => {}
                End::Failed(why) => {
                    lease.state = Some(LeaseState::Failed);
                    lease.error = Some(why.clone());
                    reason = Some(why.clone());
                }
                End::Moved(to) => moved_to = Some(to.clone()),
            }
            let record =
                self.record_of(outcome, payload.clone(), meta.clone(), &lease, history).await?;
            drop(holding);
            let record = Record { reason, moved_to, ..record };
            Ok::<_, Error>(Finishing { receipt: receipt.clone(), held, record })
        };
        match ours.await {
            Ok(finishing) => Ok(Some(finishing)),
            Err(error) if is_lost(&error) => match self.over(receipt, "it is gone").await? {
                // Called twice, or the answer to the first call was lost.
                Over::ByUs(done) if done == outcome => {
                    self.clean_finished(receipt.key()).await?;
                    self.let_go(receipt);
                    Ok(None)
                }
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Creates records, each before its lease ends. Calls that block cannot be given up; they share the waiting
    /// for the disk instead, so many at a time.
    async fn commit_owned(
        &self,
        batch: &[Finishing<T>],
        records: &[(String, Vec<u8>)],
    ) -> Answers<Created> {
        if planted::is(Planted::RecordReplaced) {
            return self.put_records(records).await;
        }
        if self.tree.properties().blocking {
            let mut answers = Vec::with_capacity(records.len());
            for (batch, records) in batch.chunks(TOGETHER).zip(records.chunks(TOGETHER)) {
                answers.extend(self.commit_in_time(batch, records).await);
            }
            return answers;
        }
        let one = |(finishing, record)| self.commit_one_owned(finishing, record);
        self.each(batch.iter().zip(records).map(one).collect()).await
    }

    /// Creates those of some records whose leases have not run out yet: the records before them, or the look at all
    /// of the batch, may have taken long.
    async fn commit_in_time(
        &self,
        batch: &[Finishing<T>],
        records: &[(String, Vec<u8>)],
    ) -> Answers<Created> {
        let mut checked = Vec::with_capacity(batch.len());
        for Finishing { held, receipt, .. } in batch {
            checked.push(self.check_owned(&*held.holding.lock().await, receipt));
        }
        if checked.iter().all(Result::is_ok) {
            return self.tree.create_all(records, self.durable()).await;
        }
        let in_time = records.iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
        let in_time: Vec<_> = in_time.map(|(record, _)| record.clone()).collect();
        let mut created = self.tree.create_all(&in_time, self.durable()).await.into_iter();
        let answer = |checked: Result<()>| {
            checked.and_then(|()| created.next().unwrap_or(Ok(Created::Exists)))
        };
        checked.into_iter().map(answer).collect()
    }

    async fn commit_one_owned(
        &self,
        finishing: &Finishing<T>,
        record: &(String, Vec<u8>),
    ) -> Result<Created> {
        let commit = async {
            let mut answers =
                self.tree.create_all(std::slice::from_ref(record), self.durable()).await;
            answers.pop().unwrap_or(Ok(Created::Exists))
        };
        self.while_owned(&finishing.held, commit).await
    }

    /// Whose record it is that ends the task.
    async fn conclude(&self, finishing: &Finishing<T>, created: Created) -> Result<()> {
        let Finishing { receipt, record, .. } = finishing;
        if created == Created::Exists {
            match self.over(receipt, "it is gone").await? {
                Over::ByUs(done) if done == record.outcome => {}
                Over::ByUs(_) => return Err(self.lost(receipt, "it is gone").await?),
                Over::Lost(error) => {
                    let _ = self.clean_finished(receipt.key()).await;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The tasks are done, durably. If their remains cannot be removed now, whoever meets them will.
    async fn clean_up_after(&self, done: &[&Finishing<T>]) {
        // No heartbeat renews them from here on: it would bring a lease back.
        for finishing in done.iter().filter(|_| !planted::is(Planted::HeartbeatCrossesAck)) {
            finishing.held.holding.lock().await.until = Duration::ZERO;
        }
        let remains = |finishing: &&Finishing<T>| {
            let attempts = finishing.record.attempts.iter().rev();
            attempts.map(|attempt| attempt.attempt).collect::<Vec<u32>>()
        };
        // Another place's task may have taken the place of the one that was claimed.
        let mut done = done.to_vec();
        let mut kept = Vec::with_capacity(done.len());
        for finishing in &done {
            kept.push(
                self.keep_loser(finishing.receipt.key(), &finishing.held.task_dir).await.is_ok(),
            );
        }
        let mut kept = kept.into_iter();
        done.retain(|_| kept.next().unwrap_or(true)); // the rest is for the next who meets it
        let task_dirs = done.iter().map(|finishing| &finishing.held.task_dir);
        let cleaned = self.tree.discard(task_dirs.zip(done.iter().map(remains)).collect()).await;
        for (finishing, cleaned) in done.iter().zip(cleaned) {
            if let Err(error) = cleaned {
                let key = finishing.receipt.key();
                tracing::warn!(%key, %error, "finished task not cleaned up yet");
            }
        }
    }

    /// Forgets a task that an error says is not ours any more.
    fn give_up(&self, receipt: &Receipt, error: Error) -> Error {
        if is_lost(&error) {
            self.let_go(receipt);
        }
        error
    }

    /// The record of a task that ends with this lease.
    pub(super) async fn record_of(
        &self,
        outcome: Outcome,
        payload: Payload,
        meta: TaskMeta,
        lease: &Lease,
        history: &[Seen],
    ) -> Result<Record> {
        let mut attempts = judge::summaries(history);
        attempts.push(judge::summary(lease));
        Ok(Record {
            outcome,
            payload: Some(payload),
            meta,
            lease_id: lease.lease_id.clone(),
            worker_id: Some(lease.worker_id.clone()),
            finished_at: Some(self.now().await?),
            reason: None,
            cancelled: false,
            forgotten: false,
            moved_to: None,
            damaged: None,
            attempts,
        })
    }

    /// Creates one record; that there is one already is fine.
    pub(super) async fn commit_one(&self, key: &TaskKey, record: &Record) -> Result<Created> {
        let file = (self.record_path(record.outcome, key), format::encode_record(record));
        let mut answers = self.tree.create_all(&[file], self.durable()).await;
        answers.pop().unwrap_or(Ok(Created::Exists))
    }

    pub(super) async fn nack(&self, nacks: Vec<Nack>) -> Answers<Nacked> {
        let mut answers = Vec::with_capacity(nacks.len());
        let mut hopeless = Vec::new();
        let trying = |nack: Nack| async move { (nack.receipt.clone(), self.nack_one(nack).await) };
        let tried = self.each(nacks.into_iter().map(trying).collect()).await;
        for (index, (receipt, tried)) in tried.into_iter().enumerate() {
            answers.push(match tried {
                Ok(Tried::Again(wait)) => Ok(Nacked::Again(wait)),
                Ok(Tried::Enough(error)) => {
                    hopeless.push((index, (receipt, error)));
                    Ok(Nacked::GivenUp)
                }
                Err(error) => Err(self.give_up(&receipt, error)),
            });
        }
        let (indices, failures): (Vec<usize>, Vec<_>) = hopeless.into_iter().unzip();
        for (index, failed) in indices.into_iter().zip(self.fail(failures).await) {
            if let Err(error) = failed {
                answers[index] = Err(error);
            }
        }
        answers
    }

    /// Gives the task back for a later attempt, or answers the error if this was the last.
    async fn nack_one(&self, nack: Nack) -> Result<Tried> {
        let (receipt, error) = (&nack.receipt, tail(nack.error));
        let held = self.held(receipt).await?;
        let holding = held.holding.lock().await;
        let earlier = judge::tally(&holding.history).and(holding.meta.carried);
        let failures = earlier.failed.saturating_add(1);
        if failures >= holding.meta.max_attempts.unwrap_or(self.settings.max_attempts) {
            return Ok(Tried::Enough(error));
        }
        let backoff = || self.settings.backoff.wait(failures, self.env.fraction());
        let wait = nack.delay.unwrap_or_else(backoff);
        let not_before = self.now().await?.saturating_add(signed(wait)).unwrap_or(Timestamp::MAX);
        let mut lease = holding.lease.next();
        lease.state = Some(LeaseState::Failed);
        lease.error = Some(error);
        lease.not_before = Some(not_before);
        self.hand_back(&held, &holding, receipt, &lease).await?;
        drop(holding);
        self.let_go(receipt);
        let due = self.env.monotonic().saturating_add(wait);
        self.note(Note::Rests(receipt.key().clone(), due));
        Ok(Tried::Again(wait))
    }

    pub(super) async fn release(&self, releases: Vec<Release>) -> Answers<()> {
        let releasing = |release: Release| async move {
            let receipt = release.receipt.clone();
            let answer = self.release_one(release).await;
            answer.map_err(|error| self.give_up(&receipt, error))
        };
        let answers = self.each(releases.into_iter().map(releasing).collect()).await;
        // Whoever waits for work can have it at once.
        self.tree.ring().await;
        answers
    }

    async fn release_one(&self, release: Release) -> Result<()> {
        let receipt = &release.receipt;
        let held = self.held(receipt).await?;
        let holding = held.holding.lock().await;
        let mut lease = holding.lease.next();
        lease.state = Some(LeaseState::Released);
        lease.error = release.reason.map(tail);
        if let Some(delay) = release.delay {
            let until = self.now().await?.saturating_add(signed(delay));
            lease.not_before = Some(until.unwrap_or(Timestamp::MAX));
        }
        self.hand_back(&held, &holding, receipt, &lease).await?;
        drop(holding);
        self.let_go(receipt);
        self.note(Note::Wakes(receipt.key().clone(), receipt.attempt));
        Ok(())
    }

    async fn hand_back(
        &self,
        held: &Held<T>,
        holding: &Holding,
        receipt: &Receipt,
        lease: &Lease,
    ) -> Result<()> {
        self.check_owned(holding, receipt)?;
        match self.check_own_file(held, receipt).await {
            // An earlier call wrote it, and only its answer was lost.
            Err(error) if is_lost(&error) && self.says(held, lease).await? => return Ok(()),
            checked => _ = checked?,
        }
        self.check_unchallenged(held, receipt).await?;
        self.while_owned(held, self.write_own(held, receipt, lease)).await
    }

    /// Whether our own file says already that the task was given back in this way, and why.
    async fn says(&self, held: &Held<T>, lease: &Lease) -> Result<bool> {
        let stored = self.tree.read_lease(&held.task_dir, lease.attempt).await?;
        let there = stored.and_then(|stored| format::decode_lease(&stored.bytes, lease.attempt));
        Ok(there.is_some_and(|there| {
            there.state.is_some()
                && (there.lease_id, there.state, there.error)
                    == (lease.lease_id.clone(), lease.state, lease.error.clone())
        }))
    }

    /// The error of an operation on a task that has finished.
    pub(super) fn already_over(&self, key: &TaskKey, outcome: Outcome) -> Error {
        let how = match outcome {
            Outcome::Completed => "completed",
            Outcome::Failed => "failed",
        };
        Error::new(ErrorKind::AlreadyCompleted, format!("task '{key}' has {how} already"))
    }
}
