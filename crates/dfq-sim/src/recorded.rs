//! A queue whose every question and answer is noted.
//!
//! Invariant: it changes nothing. What was asked is noted before the queue is asked, what it answered afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dfq::clock::Clock;
use dfq::model::Settings;
use dfq::queue::{
    Answers, Cancelled, Capabilities, Detail, ListCursor, ListPage, MoveClaim, Nacked, Paused,
    Polled, Problem, Purge, Purged, Stats, TaskView, Unlocked, WorkerRecord,
};
use dfq::{Error, Nack, NewTask, PollRequest, Pushed, Queue, Receipt, Release, Result, TaskId};
use jiff::Timestamp;

use crate::check::stem;
use crate::history::{Answer, Ask, Claimed, History, QueueNo, Refused, Task, What};
use crate::node::Node;
use crate::world::Pid;

/// A queue as one process has it open.
pub struct Recorded {
    /// The queue itself.
    pub inner: Arc<dyn Queue>,
    /// Where it is noted.
    pub history: Arc<History>,
    /// Which queue it is.
    pub queue: QueueNo,
    /// Who asks.
    pub pid: Pid,
    /// Where that one runs.
    pub node: Arc<Node>,
    /// Whose clock is the store's.
    server: Arc<Node>,
    /// It has polled before.
    polled: AtomicBool,
}

fn each<T: std::fmt::Debug>(answers: &Answers<T>) -> Answer {
    Answer::Each(answers.iter().map(brief).collect())
}

fn whole<T: std::fmt::Debug>(answer: &Result<T>) -> Answer {
    Answer::Whole(brief(answer))
}

fn brief<T: std::fmt::Debug>(answer: &Result<T>) -> std::result::Result<String, Refused> {
    answer.as_ref().map(|it| format!("{it:?}")).map_err(Refused::from)
}

impl Recorded {
    /// A queue as this process has it open, there.
    pub fn new(
        inner: Arc<dyn Queue>,
        history: Arc<History>,
        queue: QueueNo,
        pid: Pid,
        node: Arc<Node>,
        server: Arc<Node>,
    ) -> Self {
        Self { inner, history, queue, pid, node, server, polled: AtomicBool::new(false) }
    }

    /// What its process has looked at of these tasks.
    fn with_looks(&self, mut claimed: Vec<Claimed>) -> Vec<Claimed> {
        for claimed in &mut claimed {
            claimed.looks = self.history.looks(self.pid, &stem(&claimed.key));
        }
        claimed
    }

    fn looked_above(&self, receipt: &Receipt) -> Option<Duration> {
        let looks = self.history.looks(self.pid, &stem(receipt.key()));
        looks.get(&format!("lease.{}.json", receipt.attempt() + 1)).copied()
    }

    fn about(&self, verb: &'static str) -> Ask {
        Ask {
            queue: self.queue,
            verb,
            tasks: vec![],
            receipts: vec![],
            ids: vec![],
            first: false,
            wall: self.server.wall(),
        }
    }

    fn claims(&self, verb: &'static str, receipts: Vec<Receipt>) -> Ask {
        Ask { receipts, ..self.about(verb) }
    }

    fn ids(&self, verb: &'static str, ids: &[TaskId]) -> Ask {
        Ask { ids: ids.iter().map(TaskId::to_string).collect(), ..self.about(verb) }
    }

    async fn noted<R>(
        &self,
        ask: Ask,
        work: impl Future<Output = R>,
        answer: impl FnOnce(&R) -> Answer,
    ) -> R {
        let number = self.history.asked(self.pid, ask);
        let answered = work.await;
        self.history.add(self.pid, What::Told(number, answer(&answered)));
        answered
    }

    /// The true time until which something holds that holds for so long by this machine's clock.
    fn alive(&self, valid_for: Duration) -> Duration {
        self.node.true_time(self.node.monotonic().saturating_add(valid_for))
    }
}

#[async_trait]
impl Queue for Recorded {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn settings(&self) -> &Settings {
        self.inner.settings()
    }

    fn address(&self) -> &str {
        self.inner.address()
    }

    fn identity(&self) -> &str {
        self.inner.identity()
    }

    fn worker_id(&self) -> &str {
        self.inner.worker_id()
    }

    fn heartbeat_every(&self, lease: Duration) -> Duration {
        self.inner.heartbeat_every(lease)
    }

    async fn push(&self, tasks: Vec<NewTask>) -> Answers<Pushed> {
        let about = |task: &NewTask| {
            let id = task.chosen_id().ok().flatten().map(|id| id.to_string());
            let member = |name: &str| task.payload().integer_member(name);
            Task { id, n: member("n").unwrap_or(-1), later: member("later").is_some() }
        };
        let ask = Ask { tasks: tasks.iter().map(about).collect(), ..self.about("push") };
        self.noted(ask, self.inner.push(tasks), |pushed| {
            Answer::Pushed(
                pushed.iter().map(|it| it.as_ref().cloned().map_err(Refused::from)).collect(),
            )
        })
        .await
    }

    async fn poll(&self, request: PollRequest) -> Result<Polled> {
        let first = !self.polled.swap(true, Ordering::Relaxed);
        let ask = Ask { first, ..self.about("poll") };
        let claimed = |polled: &Result<Polled, Error>| {
            // What is told is for how long, from now on.
            let all = Claimed::all(polled, |it| self.alive(it.valid_for));
            Answer::Claimed(all.map(|all| self.with_looks(all)))
        };
        let (asked, before) = (self.history.now(), self.history.calls_of(self.pid));
        let polled = self.noted(ask, self.inner.poll(request), claimed).await;
        self.history.polled(self.pid, self.queue, asked, before);
        polled
    }

    async fn wait(&self, at_most: Duration) {
        self.inner.wait(at_most).await;
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn heartbeat(&self, receipts: Vec<Receipt>) -> Answers<Duration> {
        let renewed = receipts.clone();
        let ask = self.claims("heartbeat", receipts.clone());
        let alive = |beats: &Answers<Duration>| {
            let until = |(receipt, beat): (&Receipt, &Result<Duration>)| {
                let beat = beat.as_ref().map_err(Refused::from);
                beat.map(|it| (self.alive(*it), self.looked_above(receipt)))
            };
            Answer::Alive(renewed.iter().zip(beats).map(until).collect())
        };
        self.noted(ask, self.inner.heartbeat(receipts), alive).await
    }

    async fn recalled(&self) -> Result<bool> {
        self.inner.recalled().await
    }

    async fn ack(&self, receipts: Vec<Receipt>) -> Answers<()> {
        let ask = self.claims("ack", receipts.clone());
        self.noted(ask, self.inner.ack(receipts), each).await
    }

    async fn nack(&self, nacks: Vec<Nack>) -> Answers<Nacked> {
        let ask = self.claims("nack", nacks.iter().map(|it| it.receipt.clone()).collect());
        self.noted(ask, self.inner.nack(nacks), each).await
    }

    async fn fail(&self, failures: Vec<(Receipt, String)>) -> Answers<()> {
        let ask = self.claims("fail", failures.iter().map(|it| it.0.clone()).collect());
        self.noted(ask, self.inner.fail(failures), each).await
    }

    async fn release(&self, releases: Vec<Release>) -> Answers<()> {
        let ask = self.claims("release", releases.iter().map(|it| it.receipt.clone()).collect());
        self.noted(ask, self.inner.release(releases), each).await
    }

    async fn claim_to_move(&self, tasks: Vec<TaskView>, lease: Duration) -> Answers<MoveClaim> {
        let ids: Vec<TaskId> = tasks.iter().map(|it| it.key.id().clone()).collect();
        let claimed = |claims: &Answers<MoveClaim>| {
            let all = Claimed::to_move(claims, |it| self.node.true_time(it.until));
            Answer::Claimed(Ok(self.with_looks(all)))
        };
        let ask = self.ids("claim to move", &ids);
        self.noted(ask, self.inner.claim_to_move(tasks, lease), claimed).await
    }

    async fn moved(&self, departures: Vec<(Receipt, String)>) -> Answers<()> {
        let ask = self.claims("moved", departures.iter().map(|it| it.0.clone()).collect());
        self.noted(ask, self.inner.moved(departures), each).await
    }

    async fn tidy(&self) -> Result<()> {
        self.noted(self.about("tidy"), self.inner.tidy(), whole).await
    }

    async fn release_unrun(&self, receipts: Vec<Receipt>) -> Answers<()> {
        let ask = self.claims("release", receipts.clone());
        self.noted(ask, self.inner.release_unrun(receipts), each).await
    }

    async fn cancel(&self, ids: Vec<TaskId>, reason: String) -> Answers<Cancelled> {
        let ask = self.ids("cancel", &ids);
        self.noted(ask, self.inner.cancel(ids, reason), each).await
    }

    async fn unlock(&self, ids: Vec<TaskId>) -> Answers<Unlocked> {
        let ask = self.ids("unlock", &ids);
        self.noted(ask, self.inner.unlock(ids), each).await
    }

    async fn retry(&self, ids: Vec<TaskId>) -> Answers<Pushed> {
        let ask = self.ids("retry", &ids);
        let pushed = |answers: &Answers<Pushed>| {
            let each = answers.iter().map(|it| it.as_ref().cloned().map_err(Refused::from));
            Answer::Pushed(each.collect())
        };
        self.noted(ask, self.inner.retry(ids), pushed).await
    }

    async fn pause(&self, reason: Option<String>) -> Result<()> {
        self.noted(self.about("pause"), self.inner.pause(reason), whole).await
    }

    async fn resume(&self) -> Result<()> {
        self.noted(self.about("resume"), self.inner.resume(), whole).await
    }

    async fn paused(&self) -> Result<Option<Paused>> {
        self.inner.paused().await
    }

    async fn purge(&self, purge: Purge) -> Result<Purged> {
        self.noted(self.about("purge"), self.inner.purge(purge), whole).await
    }

    async fn now(&self) -> Timestamp {
        self.inner.now().await
    }

    async fn peek(&self, max: usize) -> Result<Vec<TaskView>> {
        self.inner.peek(max).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<TaskView>> {
        self.inner.get(id).await
    }

    async fn list(&self, from: Option<ListCursor>) -> Result<ListPage> {
        self.inner.list(from).await
    }

    async fn stats(&self, detail: Detail) -> Result<Stats> {
        self.inner.stats(detail).await
    }

    async fn check(&self, repair: bool) -> Result<Vec<Problem>> {
        let verb = if repair { "check --repair" } else { "check" };
        let lines = |found: &Result<Vec<Problem>>| {
            let line = |it: &Problem| (!it.mended).then(|| format!("{}: {}", it.path, it.what));
            let lines =
                |found: &Vec<Problem>| found.iter().filter_map(line).collect::<Vec<_>>().join("\n");
            Answer::Whole(found.as_ref().map(lines).map_err(Refused::from))
        };
        self.noted(self.about(verb), self.inner.check(repair), lines).await
    }

    async fn put_worker(&self, record: WorkerRecord) -> Result<()> {
        self.inner.put_worker(record).await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>> {
        self.inner.workers().await
    }
}
