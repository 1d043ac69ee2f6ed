//! What a process can do: the steps of a plan, by the verbs of the library.

use std::sync::Arc;
use std::time::Duration;

use dfq::model::Outcome;
use dfq::queue::{Detail, Purge};
use dfq::transfer::{Mode, Transfer};
use dfq::worker::{Job, TaskResult, Until, Worker};
use dfq::{Env, Nack, NewTask, PollRequest, Queue, Receipt, Release, Result, TaskId};

use crate::gate::Door;
use crate::history::{Event, QueueNo, What};
use crate::plan::{Pull, Says, Step, Work};
use crate::stage::Stage;

/// The ids that plans use, some of them with something special.
const IDS: [&str; 6] = ["a", "b", "page/1 ä", "..", "d@2", "e"];

/// A process at work: what it has open.
pub(crate) struct Hands {
    stage: Arc<Stage>,
    door: Arc<Door>,
    host: usize,
    env: Env,
    refused: Vec<&'static str>,
    open: [Option<Arc<dyn Queue>>; 2],
}

fn id(number: u8) -> TaskId {
    #[allow(clippy::unwrap_used, reason = "all of them are ids")]
    TaskId::new(IDS[usize::from(number) % IDS.len()]).unwrap()
}

impl Hands {
    pub(crate) fn new(
        stage: &Arc<Stage>,
        door: &Arc<Door>,
        host: usize,
        env: &Env,
        actor: usize,
    ) -> Self {
        let refused = stage.troubles.get(actor).map(|it| it.folders()).unwrap_or_default();
        let (stage, door, env) = (Arc::clone(stage), Arc::clone(door), env.clone());
        Self { stage, door, host, env, refused, open: [None, None] }
    }

    pub(crate) async fn queue(&mut self, queue: QueueNo) -> Result<Arc<dyn Queue>> {
        if let Some(open) = &self.open[queue] {
            return Ok(Arc::clone(open));
        }
        let opened =
            self.stage.open(queue, self.host, &self.door, &self.env, &self.refused).await?;
        self.open[queue] = Some(Arc::clone(&opened));
        Ok(opened)
    }

    pub(crate) async fn close(&self) {
        for queue in self.open.iter().flatten() {
            queue.close().await;
        }
    }

    async fn rest(&self, time: Duration) {
        self.env.clock().sleep(time).await;
    }

    fn note(&self, text: impl Into<String>) {
        self.stage.history.add(self.door.pid, What::Happened(Event::Note(text.into())));
    }

    /// Does one step. An error means that the queue cannot be opened; what the verbs answer is in the history.
    pub(crate) async fn take(&mut self, step: &Step) -> Result<()> {
        if let Step::Wait(time) = step {
            self.rest(*time).await;
            return Ok(());
        }
        if *step == Step::Reopen {
            self.close().await;
            self.open = [None, None];
            return Ok(());
        }
        if let Step::Work(Work { elsewhere: true, .. }) | Step::Transfer { .. } = step {
            self.queue(1).await?;
        }
        let queue = self.queue(0).await?;
        match step {
            Step::Wait(_) | Step::Reopen | Step::Cut => {}
            Step::Spoil { id: number, lease, torn } => self.spoil(*number, *lease, *torn).await,
            Step::Push { ids, again, delay } => {
                let task = |number: &u8| self.task(*number, *again, *delay);
                queue.push(ids.iter().filter_map(task).collect()).await;
            }
            Step::Work(work) => {
                let queue = if work.elsewhere { self.queue(1).await? } else { queue };
                self.work(queue, *work, Until::Stopped).await;
            }
            Step::Pull(pull) => self.pull(&queue, *pull).await,
            Step::Retry(number) => _ = queue.retry(vec![id(*number)]).await,
            Step::Cancel(number) => _ = queue.cancel(vec![id(*number)], "planned".into()).await,
            Step::Unlock(number) => _ = queue.unlock(vec![id(*number)]).await,
            Step::Pause => _ = queue.pause(None).await,
            Step::Resume => self.until_done(|| queue.resume()).await,
            Step::Purge { completed, older_than } => {
                let outcome = if *completed { Outcome::Completed } else { Outcome::Failed };
                let purge = Purge { outcome, older_than: *older_than, dry_run: false };
                _ = queue.purge(purge).await;
            }
            Step::Transfer { moves, back } => self.transfer(*moves, *back).await?,
            Step::Check { repair } => _ = queue.check(*repair).await,
            Step::Tidy => _ = queue.tidy().await,
            Step::Look => {
                _ = queue.stats(Detail::Exact).await;
                _ = queue.list(None).await;
                _ = queue.peek(3).await;
                _ = queue.get(id(0)).await;
                _ = queue.workers().await;
            }
        }
        Ok(())
    }

    async fn until_done<F>(&self, act: impl Fn() -> F)
    where
        F: Future<Output = Result<()>>,
    {
        while act().await.is_err() {
            self.rest(Duration::from_secs(1)).await;
        }
    }

    fn task(&self, number: u8, again: bool, delay: Option<Duration>) -> Option<NewTask> {
        let n = self.stage.next_task();
        let later = if delay.is_some() { ", \"later\": 1" } else { "" };
        let task = NewTask::from_json(&format!("{{\"n\": {n}{later}}}")).ok()?.id(id(number));
        let task = if again { task.again() } else { task };
        Some(match delay {
            Some(delay) => task.delay(delay),
            None => task,
        })
    }

    /// Is a worker, and stops at the end of its time.
    pub(crate) async fn work(&self, queue: Arc<dyn Queue>, work: Work, until: Until) {
        let handler = {
            let (stage, env, pid) = (Arc::clone(&self.stage), self.env.clone(), self.door.pid);
            let number = usize::from(work.elsewhere);
            move |job: Job| {
                let (env, receipt) = (env.clone(), job.delivery.receipt.clone());
                stage.history.add(pid, What::Began(number, receipt.clone()));
                let history = Arc::clone(&stage.history);
                let at_its_end =
                    AtEnd(Some(move || history.add(pid, What::Ended(number, receipt))));
                async move {
                    let _at_its_end = at_its_end;
                    env.clock().sleep(work.busy.mul_f64(env.fraction())).await;
                    said(env.below(100), work.fails)
                }
            }
        };
        let worker = Worker::new(queue, handler)
            .env(self.env.clone())
            .concurrency(work.slots)
            .grace(Duration::from_secs(2))
            .until(until);
        let stopper = worker.stopper();
        let (env, hard) = (self.env.clone(), self.env.below(4) == 0);
        self.env.spawn(async move {
            env.clock().sleep(work.lasts).await;
            if hard { stopper.stop_now() } else { stopper.stop() }
        });
        match worker.run().await {
            Ok(report) => self.note(format!("worked: {report:?}")),
            Err(error) => self.note(format!("stopped working: {error}")),
        }
    }

    /// Uses the verbs one by one, and is not careful with its leases.
    async fn pull(&self, queue: &Arc<dyn Queue>, pull: Pull) {
        for _ in 0..pull.rounds {
            let Ok(polled) = queue.poll(PollRequest::new(pull.max)).await else {
                self.rest(Duration::from_secs(1)).await;
                continue;
            };
            let receipts: Vec<_> = polled.deliveries.into_iter().map(|it| it.receipt).collect();
            if receipts.is_empty() {
                self.rest(Duration::from_secs(1)).await;
                continue;
            }
            self.rest(pull.keeps / 2).await;
            if pull.renews {
                _ = queue.heartbeat(receipts.clone()).await;
            }
            self.rest(pull.keeps / 2).await;
            self.say(queue, pull.says, receipts).await;
        }
    }

    async fn say(&self, queue: &Arc<dyn Queue>, says: Says, receipts: Vec<Receipt>) {
        match says {
            Says::Nothing => {}
            Says::Done => _ = queue.ack(receipts).await,
            Says::DoneTwice => {
                _ = queue.ack(receipts.clone()).await;
                _ = queue.ack(receipts).await;
            }
            Says::Failed => {
                let nack = |receipt| Nack { receipt, error: "planned".into(), delay: None };
                _ = queue.nack(receipts.into_iter().map(nack).collect()).await;
            }
            Says::Back => {
                let back = |receipt| Release { receipt, delay: None, reason: None };
                _ = queue.release(receipts.into_iter().map(back).collect()).await;
            }
        }
    }

    /// Writes over the first file there is of a task.
    async fn spoil(&self, number: u8, lease: bool, torn: bool) {
        let bytes: &[u8] = if torn { b"{\"spoiled\":" } else { b"spoiled\n" };
        let stem = stem_of(&id(number));
        let wanted = |name: &&String| {
            let mut parts = name.rsplit('/');
            let file = parts.next().unwrap_or_default();
            let life = parts.next().unwrap_or_default().split('@').next().unwrap_or_default();
            name.starts_with("pending/") && life == stem && file.starts_with("lease") == lease
        };
        let files = self.stage.files(0);
        let Some(name) = files.keys().rfind(wanted) else { return };
        self.note(format!("{name} is spoiled"));
        let stage = Arc::clone(&self.stage);
        if let Err(error) = stage.overwrite(0, self.host, &self.door, &self.env, name, bytes).await
        {
            self.note(format!("it cannot be: {error}"));
        }
    }

    async fn transfer(&mut self, moves: bool, back: bool) -> Result<()> {
        let (here, there) =
            (self.queue(usize::from(back)).await?, self.queue(usize::from(!back)).await?);
        let mode = if moves { Mode::Move } else { Mode::Copy };
        let transfer = Transfer::new(here, there, mode, self.env.clone())?;
        let report = transfer.lease(self.stage.plan.lease).again(true).run(&mut |_| {}).await;
        self.note(format!("transferred: {report:?}"));
        Ok(())
    }
}

/// The name of an id's first life.
fn stem_of(id: &TaskId) -> String {
    crate::check::stem(&dfq::TaskKey::new(id.clone(), 1))
}

/// What a handler says, by chance.
fn said(chance: usize, fails: u32) -> TaskResult {
    let fails = fails as usize;
    if chance < fails {
        TaskResult::Retry { error: "planned".into(), delay: None }
    } else if chance < fails + fails / 4 {
        TaskResult::Fail { reason: "planned".into() }
    } else if chance < fails + fails / 2 {
        TaskResult::Release { reason: None, delay: None }
    } else {
        TaskResult::Ack
    }
}

/// Does something when it is dropped.
struct AtEnd<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}
