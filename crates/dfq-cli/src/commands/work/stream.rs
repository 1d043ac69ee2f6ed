//! A process for each slot: it gets task after task, and gives one answer to each.
//!
//! A line in is what `dfq poll` prints; a line out is one answer. The two sides take turns, so a
//! child that dies, hangs or talks nonsense has one task at the most, and only that one is tried again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dfq::clock::Running;
use dfq::worker::{Job, TaskResult};
use futures::FutureExt;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};

use super::WorkContext;
use super::answer::{self, Answer};
use super::child::{self, Group, describe};
use super::once::{NOT_EXECUTABLE, NOT_FOUND, give_back, is_passing, stopped, was_stopped_with_us};
use super::output::{Outlet, Stream, last_words};
use super::records::MOST_BYTES;

/// An answer longer than this is none; with records, as long as those may be.
const LONGEST_ANSWER: usize = 1 << 20;

/// How long a child that is not needed any more has to end by itself, once its stdin is closed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long before a child that died is started anew: from the first, doubling, to the second.
const RESTART: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

#[derive(Serialize)]
struct TaskLine<'a> {
    id: &'a str,
    attempt: u32,
    fence: u64,
    receipt: String,
    queue: &'a str,
    task: &'a RawValue,
}

/// One child per slot, made when it is first needed.
pub(super) struct Slots {
    context: Arc<WorkContext>,
    command: Vec<String>,
    idle: Mutex<Vec<Slot>>,
    /// Numbers in use.
    numbers: Mutex<BTreeSet<usize>>,
    /// How many children in a row died before their first answer.
    stillborn: Mutex<u32>,
}

/// A running child.
struct Slot {
    number: usize,
    group: Group,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: Running<()>,
    outlet: Outlet,
    /// It has given an answer before.
    proven: bool,
    /// It says which task an answer is about, and must go on doing so.
    names_tasks: bool,
}

/// What came of one task.
enum Turn {
    Answered(Answer),
    /// The child cannot be used any more.
    Broken(String),
    /// The child ended without a word about the task.
    Silent(String),
    TimedOut(Duration),
    Stopped,
}

impl Slots {
    pub(super) fn new(context: Arc<WorkContext>, command: &[String]) -> Self {
        Self {
            context,
            command: command.to_vec(),
            idle: Mutex::default(),
            numbers: Mutex::default(),
            stillborn: Mutex::default(),
        }
    }

    pub(super) async fn handle(&self, job: Job) -> TaskResult {
        let mut slot = self.idle_or_new(&job).await;
        // Twice at the most: an answer is due from a child that is new.
        loop {
            match self.handle_with(slot, &job).await {
                Some(result) => return result,
                // One that ends in good order between two tasks did nothing to this one. A new one gets
                // it: those that are idle may be about to end as well.
                None => slot = self.start_anew(&job).await,
            }
        }
    }

    /// `None` if the child turned out to have ended in good order before it took the task.
    async fn handle_with(&self, slot: Result<Slot, TaskResult>, job: &Job) -> Option<TaskResult> {
        let mut slot = match slot {
            Ok(slot) => slot,
            Err(result) => return Some(result),
        };
        self.context.progress.started();
        let _ = slot.outlet.take_tail();
        let turn = slot.turn(&self.context, job).await;
        self.context.progress.stopped();
        Some(match turn {
            Turn::Answered(answer) => {
                slot.proven = true;
                *lock(&self.stillborn) = 0;
                self.context.halt.not_the_machine();
                lock(&self.idle).push(slot);
                match answer.result {
                    TaskResult::Release { reason, delay } => {
                        give_back(job, reason.unwrap_or_default(), delay)
                    }
                    TaskResult::Ack => self.record(job, answer.records).await,
                    result => result,
                }
            }
            Turn::Stopped => {
                self.discard(slot, false).await;
                stopped()
            }
            Turn::TimedOut(after) => {
                let outlet = slot.outlet.clone();
                self.discard(slot, false).await;
                let what = format!("timed out after {}", crate::output::duration(after));
                TaskResult::Retry { error: with_tail(what, &outlet), delay: None }
            }
            Turn::Silent(what) => {
                let (proven, outlet) = (slot.proven, slot.outlet.clone());
                let status = self.discard(slot, true).await;
                if proven && status.is_some_and(|status| status.success()) {
                    return None;
                }
                self.broken(job, proven, &outlet, status, what).await
            }
            Turn::Broken(what) => {
                let (proven, outlet) = (slot.proven, slot.outlet.clone());
                let status = self.discard(slot, true).await;
                self.broken(job, proven, &outlet, status, what).await
            }
        })
    }

    /// A child that died or talks nonsense loses the task it had, and is replaced.
    async fn broken(
        &self,
        job: &Job,
        proven: bool,
        outlet: &Outlet,
        status: Option<std::process::ExitStatus>,
        what: String,
    ) -> TaskResult {
        if let Some(status) = status
            && was_stopped_with_us(&self.context, status).await
        {
            return stopped();
        }
        let what = match &status {
            Some(status) => format!("{what} ({})", describe(*status)),
            None => what,
        };
        if !proven {
            *lock(&self.stillborn) += 1;
            if let Some(NOT_EXECUTABLE | NOT_FOUND) = status.and_then(|status| status.code()) {
                let why = with_tail(format!("the command cannot be run: {what}"), outlet);
                return self.context.halt.could_not_run(job.delivery.id().as_str(), why);
            }
        }
        TaskResult::Retry { error: with_tail(what, outlet), delay: None }
    }

    /// What becomes of a task that the child says is done, with these records.
    async fn record(
        &self,
        job: &Job,
        records: Option<Vec<serde_json::Map<String, serde_json::Value>>>,
    ) -> TaskResult {
        let wrong = |error: &str| TaskResult::Retry { error: error.to_owned(), delay: None };
        match (&self.context.records, records) {
            (None, None) => TaskResult::Ack,
            (None, Some(_)) => {
                wrong("the command answered with a record, and --index names no index for it")
            }
            (Some(_), None) => wrong(
                "the command answered without a record; with --index the answer has a \"record\", or \"records\", [] if \
                 there is nothing to be put",
            ),
            (Some(index), Some(records)) => index.put(&self.context, job, records).await,
        }
    }

    fn cannot_go_on(&self, why: String) -> TaskResult {
        self.context.halt.now(&why);
        TaskResult::Release { reason: Some(why), delay: None }
    }

    /// A child that is idle and alive, or a new one.
    async fn idle_or_new(&self, job: &Job) -> Result<Slot, TaskResult> {
        loop {
            let Some(mut slot) = lock(&self.idle).pop() else { break };
            if slot.is_quiet() {
                return Ok(slot);
            }
            self.discard(slot, true).await;
        }
        self.start_anew(job).await
    }

    /// A new child, after a pause if the last ones died at once.
    async fn start_anew(&self, job: &Job) -> Result<Slot, TaskResult> {
        let deaths = *lock(&self.stillborn);
        if deaths > 0 {
            let pause = RESTART.0.saturating_mul(1 << deaths.min(16)).min(RESTART.1);
            self.context.env.clock().sleep(pause).await;
        }
        let number = {
            let mut numbers = lock(&self.numbers);
            let free = (1..).find(|number| !numbers.contains(number)).unwrap_or(1);
            numbers.insert(free);
            free
        };
        self.start(number, job).inspect_err(|_| _ = lock(&self.numbers).remove(&number))
    }

    fn start(&self, number: usize, job: &Job) -> Result<Slot, TaskResult> {
        let log = match self.context.logs.as_ref().map(|logs| logs.open_slot(number)) {
            None => None,
            Some(Ok(file)) => Some(file),
            Some(Err(error)) => return Err(self.cannot_go_on(format!("--log-dir: {error}"))),
        };
        let outlet = Outlet::new(&self.context.progress, log);
        let mut command = child::command(&self.command[0]);
        command.args(&self.command[1..]).env("DFQ_SLOT", number.to_string());
        let mut group = Group::start(&mut command).map_err(|error| match is_passing(&error) {
            true => {
                let reason = Some(format!("the command cannot be started now: {error}"));
                TaskResult::Release { reason, delay: Some(RESTART.1) }
            }
            false => {
                let why = format!("'{}' cannot be run: {error}", self.command[0]);
                self.context.halt.could_not_run(job.delivery.id().as_str(), why)
            }
        })?;
        let child = group.child();
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(self.cannot_go_on("the command has no pipes".to_owned()));
        };
        let passing_on = outlet.clone();
        Ok(Slot {
            number,
            group,
            stdin,
            stdout: BufReader::new(stdout),
            stderr: self
                .context
                .env
                .spawn(async move { passing_on.pass_on(stderr, Stream::Err).await }),
            outlet,
            proven: false,
            names_tasks: false,
        })
    }

    /// Ends a child; if it may be dying by itself, waits for that first, to learn how.
    async fn discard(&self, mut slot: Slot, dying: bool) -> Option<std::process::ExitStatus> {
        let WorkContext { env, hard, .. } = &*self.context;
        drop(slot.stdin);
        let mut status = None;
        if dying {
            tokio::select! {
                biased;
                ended = slot.group.wait() => status = ended.ok(),
                () = env.clock().sleep(Duration::from_millis(500)) => {}
            }
        }
        if status.is_none() {
            slot.group.stop(env, hard).await;
        }
        last_words(env, slot.stderr).await;
        lock(&self.numbers).remove(&slot.number);
        status
    }

    /// Lets all children end.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        let WorkContext { env, hard, .. } = &*self.context;
        let closing = idle.into_iter().map(|mut slot| async move {
            drop(slot.stdin);
            let ended = tokio::select! {
                ended = slot.group.wait() => ended.is_ok(),
                () = env.clock().sleep(LAST_WORDS) => false,
                () = hard.cancelled() => false,
            };
            if !ended {
                slot.group.stop(env, hard).await;
            }
            last_words(env, slot.stderr).await;
        });
        futures::future::join_all(closing).await;
    }
}

impl Slot {
    /// Whether it waits for a task. One that has ended does not; nor does one that says more than it
    /// was asked, whose words would be taken for the next task's answer.
    fn is_quiet(&mut self) -> bool {
        let said = self.stdout.fill_buf().now_or_never();
        match said {
            None => matches!(self.group.child().try_wait(), Ok(None)),
            Some(Ok([]) | Err(_)) => false,
            Some(Ok(said)) => {
                let said = String::from_utf8_lossy(said);
                let said = crate::output::cut(&crate::output::printable(said.trim()), 200);
                tracing::warn!("a command that had no task said '{said}'; it is started anew");
                false
            }
        }
    }

    /// One task, one answer.
    async fn turn(&mut self, context: &WorkContext, job: &Job) -> Turn {
        let line = match task_line(job) {
            Ok(line) => line,
            Err(error) => {
                let result = TaskResult::Fail { reason: error.to_string() };
                return Turn::Answered(Answer { result, records: None });
            }
        };
        let longest = if context.records.is_some() { MOST_BYTES } else { LONGEST_ANSWER };
        let Self { stdin, stdout, names_tasks, .. } = self;
        let talk = async {
            if let Err(error) = stdin.write_all(line.as_bytes()).await {
                return Turn::Silent(format!("the command does not take tasks: {error}"));
            }
            let mut answer = Vec::new();
            match (&mut *stdout).take(longest as u64).read_until(b'\n', &mut answer).await {
                Ok(0) => Turn::Silent("the command died in mid-task".to_owned()),
                Err(error) => Turn::Broken(format!("the command cannot be heard: {error}")),
                Ok(_) => answer::read(&answer, job.delivery.id().as_str(), names_tasks)
                    .map_or_else(Turn::Broken, Turn::Answered),
            }
        };
        let overtime = async {
            match context.timeout {
                Some(timeout) => context.env.clock().sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            turn = talk => turn,
            () = job.cancelled() => Turn::Stopped,
            () = overtime => Turn::TimedOut(context.timeout.unwrap_or_default()),
        }
    }
}

fn task_line(job: &Job) -> serde_json::Result<String> {
    let delivery = &job.delivery;
    // In JSON a line end can only stand between words, where a space is as good.
    let task = delivery.payload.as_json().replace(['\n', '\r'], " ");
    let line = TaskLine {
        id: delivery.id().as_str(),
        attempt: delivery.attempt,
        fence: delivery.fence,
        receipt: delivery.receipt.to_string(),
        queue: job.queue.address(),
        task: &RawValue::from_string(task)?,
    };
    Ok(serde_json::to_string(&line)? + "\n")
}

fn with_tail(what: String, outlet: &Outlet) -> String {
    match outlet.take_tail() {
        said if said.is_empty() => what,
        said => format!("{what}: {said}"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
