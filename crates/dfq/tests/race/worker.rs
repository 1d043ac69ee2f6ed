//! A worker process: claims, works a little or not at all, and lets go in every way there is.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dfq::queue::Answers;
use dfq::{Env, ErrorKind, Nack, NewTask, PollRequest, Queue, Receipt, Release};

use crate::journal::{self, Answer, Event, Journal, Verb};
use crate::site::{ENDPOINT, Pace, Site};
use crate::{now, one_in, seeded};

/// Set in a worker's environment, to the seed of its behaviour.
pub(crate) const SEED: &str = "DFQ_RACE_WORKER_SEED";
/// Present once there is nothing more to come.
pub(crate) const LAST: &str = "last";

pub(crate) fn main(dir: &Path, journal: &str, seed: &str) -> ExitCode {
    let seed = seed.parse().expect("the seed is a number");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let journal = Journal::create(&dir.join(journal)).expect("a journal of its own");
        let site = Site { dir: dir.to_owned(), endpoint: std::env::var(ENDPOINT).ok() };
        let queue = site.open(None).await.expect("the queue can be opened");
        let other = site.open(None).await.expect("the queue can be opened twice");
        let pace = site.pace();
        let mut worker = Worker { queue, other, pace, env: seeded(seed), journal };
        worker.run(&dir.join(LAST)).await;
    });
    ExitCode::SUCCESS
}

struct Worker {
    queue: Arc<dyn Queue>,
    /// A handle that knows nothing of what the first one claimed, as a separate `dfq ack` would.
    other: Arc<dyn Queue>,
    pace: Pace,
    env: Env,
    journal: Journal,
}

fn answer_of<T>(answer: dfq::Result<T>, left: impl FnOnce(T) -> Duration) -> Answer {
    match answer {
        Ok(value) => Answer::Ok(u64::try_from(left(value).as_nanos()).unwrap_or(u64::MAX)),
        Err(error) => error.into(),
    }
}

impl Worker {
    async fn run(&mut self, last: &Path) {
        let parent = rustix::process::getppid();
        // A parent that died cannot stop us.
        while rustix::process::getppid() == parent {
            let Pace { shortest_lease, longest_lease, .. } = self.pace;
            let spread = (longest_lease - shortest_lease).as_millis() as usize;
            let lease = shortest_lease + Duration::from_millis(self.env.below(spread) as u64);
            let request = PollRequest { lease: Some(lease), ..PollRequest::new(self.batch()) };
            // Looked for before the poll, so that nothing arrives between the two.
            let leave = last.exists();
            let from = now(&self.env);
            let polled = self.queue.poll(request).await;
            let to = now(&self.env);
            let polled = match polled {
                Ok(polled) => polled,
                // It lost a request; or the machine was so slow that what it claimed had to be given back.
                Err(error) if error.kind() == ErrorKind::Unavailable => continue,
                Err(error) => {
                    self.journal.note([&Event::Trouble(format!("poll: {error:?}"))]);
                    return;
                }
            };
            let claim = |delivery: &dfq::Delivery| Event::Claim {
                receipt: delivery.receipt.clone(),
                fence: delivery.fence,
                from,
                to,
                lease: lease.as_nanos() as u64,
            };
            self.journal.note(&polled.deliveries.iter().map(claim).collect::<Vec<_>>());
            if !polled.deliveries.is_empty() {
                let receipts = polled.deliveries.into_iter().map(|d| d.receipt).collect();
                self.work(receipts, lease).await;
            } else if !polled.idle.more {
                match polled.idle.next {
                    None if leave => return,
                    next => {
                        let at_most = self.pace.idle;
                        self.queue.wait(next.map_or(at_most, |next| next.min(at_most))).await;
                    }
                }
            }
        }
    }

    fn batch(&self) -> usize {
        [1, 2, 4, 8, 16, 64][self.env.below(6)]
    }

    async fn work(&mut self, receipts: Vec<Receipt>, lease: Duration) {
        let queue = Arc::clone(if one_in(&self.env, 8) { &self.other } else { &self.queue });
        if one_in(&self.env, self.pace.oversleep) {
            // A handler that forgets its heartbeats.
            self.pause(lease + lease.mul_f64(self.env.fraction())).await;
            return self.ack(&*queue, receipts).await;
        }
        match self.env.below(63) {
            // Mostly it is done at once: the time goes into the queue's own calls, so that this is
            // where signals hit.
            0..40 => self.ack(&*queue, receipts).await,
            40..48 => {
                for receipt in receipts {
                    self.ack(&*queue, vec![receipt]).await;
                }
            }
            48..52 => {
                for _ in 0..=self.env.below(4) {
                    self.beat(&*queue, &receipts).await;
                    self.pause(lease / 4).await;
                }
                self.ack(&*queue, receipts).await;
            }
            52 => {
                self.pause(lease).await;
                self.beat(&*queue, &receipts).await;
                self.ack(&*queue, receipts).await;
            }
            53..56 => self.ack_while_beating(&*queue, receipts).await,
            56..59 => self.release(&*queue, receipts).await,
            59..62 => self.nack(&*queue, receipts).await,
            // Simply forgotten.
            _ => {}
        }
    }

    async fn pause(&self, duration: Duration) {
        self.env.clock().sleep(duration).await;
    }

    fn begin(&mut self, verb: Verb, receipts: &[Receipt]) -> u64 {
        let from = now(&self.env);
        let begin = |receipt: &Receipt| Event::Begin { verb, receipt: receipt.clone(), from };
        self.journal.note(&receipts.iter().map(begin).collect::<Vec<_>>());
        from
    }

    fn end<T>(
        &mut self,
        (verb, receipts): (Verb, &[Receipt]),
        (from, to): (u64, u64),
        answers: Answers<T>,
        left: impl Fn(T) -> Duration,
    ) {
        assert_eq!(receipts.len(), answers.len(), "an answer for each");
        let events = receipts.iter().zip(answers).map(|(receipt, answer)| {
            let (receipt, answer) = (receipt.clone(), answer_of(answer, &left));
            Event::End { verb, receipt, from, to, answer }
        });
        self.journal.note(&events.collect::<Vec<_>>());
    }

    async fn ack(&mut self, queue: &dyn Queue, receipts: Vec<Receipt>) {
        let from = self.begin(Verb::Ack, &receipts);
        let answers = queue.ack(receipts.clone()).await;
        let to = now(&self.env);
        let done = receipts.iter().zip(&answers).find(|(_, answer)| answer.is_ok());
        let done = done.map(|(receipt, _)| receipt.clone());
        self.end((Verb::Ack, &receipts), (from, to), answers, |()| Duration::ZERO);
        if let Some(done) = done.filter(|_| one_in(&self.env, 40)) {
            self.push_again(done).await;
        }
    }

    async fn beat(&mut self, queue: &dyn Queue, receipts: &[Receipt]) {
        let from = self.begin(Verb::Beat, receipts);
        let answers = queue.heartbeat(receipts.to_vec()).await;
        let to = now(&self.env);
        self.end((Verb::Beat, receipts), (from, to), answers, |left| left);
    }

    /// A heartbeat in flight on one thread while another finishes the task.
    async fn ack_while_beating(&mut self, queue: &dyn Queue, receipts: Vec<Receipt>) {
        let beat = self.begin(Verb::Beat, &receipts);
        let ack = self.begin(Verb::Ack, &receipts);
        let env = self.env.clone();
        let timed_beat = async { (queue.heartbeat(receipts.clone()).await, now(&env)) };
        let timed_ack = async { (queue.ack(receipts.clone()).await, now(&env)) };
        let ((left, left_at), (done, done_at)) = tokio::join!(timed_beat, timed_ack);
        self.end((Verb::Beat, &receipts), (beat, left_at), left, |left| left);
        self.end((Verb::Ack, &receipts), (ack, done_at), done, |()| Duration::ZERO);
    }

    async fn nack(&mut self, queue: &dyn Queue, receipts: Vec<Receipt>) {
        let from = self.begin(Verb::Nack, &receipts);
        let delay = Duration::from_millis(self.env.below(60) as u64);
        let nack = |receipt: &Receipt| Nack {
            receipt: receipt.clone(),
            error: "on purpose".to_owned(),
            delay: Some(delay),
        };
        let answers = queue.nack(receipts.iter().map(nack).collect()).await;
        let to = now(&self.env);
        self.end((Verb::Nack, &receipts), (from, to), answers, |_| Duration::ZERO);
    }

    async fn release(&mut self, queue: &dyn Queue, receipts: Vec<Receipt>) {
        let from = self.begin(Verb::Release, &receipts);
        let answers = queue.release(receipts.iter().cloned().map(Release::now).collect()).await;
        let to = now(&self.env);
        self.end((Verb::Release, &receipts), (from, to), answers, |()| Duration::ZERO);
    }

    /// Starts the next life of a task that has just finished.
    async fn push_again(&mut self, receipt: Receipt) {
        let id = receipt.key().id().clone();
        self.journal.note([&Event::Again { receipt }]);
        let task = NewTask::from_json("{}").map(|task| task.id(id).again());
        let pushed = match task {
            Ok(task) => self.queue.push(vec![task]).await.remove(0),
            Err(error) => Err(error),
        };
        let event = match pushed {
            Ok(pushed) => Event::Pushed {
                id: pushed.key().id().to_string(),
                generation: pushed.key().generation(),
            },
            // Pushed or not: whoever claims it will tell.
            Err(error)
                if error.kind() == ErrorKind::Unavailable && journal::unknowns_are_fine() =>
            {
                return;
            }
            Err(error) => Event::Trouble(format!("push: {error:?}")),
        };
        self.journal.note([&event]);
    }
}
