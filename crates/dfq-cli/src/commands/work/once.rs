//! A process for each task.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use dfq::ErrorKind;
use dfq::worker::{Job, TaskResult};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::WorkContext;
use super::child::{self, Group, describe};
use super::output::{Outlet, Stream, last_words};
use super::template::Template;

/// By these exit statuses a command says more than that it failed.
const HOPELESS: i32 = 65;
const NOT_NOW: i32 = 75;
pub(super) const NOT_EXECUTABLE: i32 = 126;
pub(super) const NOT_FOUND: i32 = 127;

/// Signals that are sent to a whole group, or session, or step, when it is to stop: HUP, INT and TERM.
const STOPPING: [i32; 3] = [1, 2, 15];

/// How long after the command our own signal may come, when both were sent one.
const SIGNAL_LAG: Duration = Duration::from_secs(1);

/// How long a task that was given back waits: from the first, doubling, to the second.
const GIVEN_BACK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Given back more often than this, it counts as a failure: something must end a task that nobody
/// ever wants to do.
const MAX_GIVEN_BACK: u32 = 20;

/// How long to wait when the machine is short of processes, memory or open files.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Runs the command once for each task.
pub(super) struct Once {
    context: Arc<WorkContext>,
    template: Template,
}

/// What became of a process.
enum Ended {
    Exit(ExitStatus),
    TimedOut(Duration),
    /// The lease is lost, or the worker stops.
    Stopped,
}

impl Once {
    pub(super) fn new(context: Arc<WorkContext>, template: Template) -> Self {
        Self { context, template }
    }

    pub(super) async fn handle(&self, job: Job) -> TaskResult {
        let mut command = match self.command(&job) {
            Ok(command) => command,
            Err(result) => return result,
        };
        let log = match self
            .context
            .logs
            .as_ref()
            .map(|logs| logs.open(job.queue.address(), &job.delivery.receipt))
        {
            None => None,
            Some(Ok(file)) => Some(file),
            Some(Err(error)) => return self.cannot_go_on(format!("--log-dir: {error}")),
        };
        let outlet = Outlet::new(&self.context.progress, log);
        let outlet = if self.context.records.is_some() { outlet.keeping() } else { outlet };
        let group = loop {
            match Group::start(&mut command) {
                Ok(group) => break group,
                // Kept and tried again: who gives it back would only claim the next one.
                Err(error) if is_passing(&error) => {
                    tracing::warn!(%error, "the command cannot be started now; trying again");
                    tokio::select! {
                        () = self.context.env.clock().sleep(SHORTAGE) => {}
                        () = job.cancelled() => return stopped(),
                    }
                }
                Err(error) => return self.not_started(&job, &error),
            }
        };
        self.context.progress.started();
        let ended = self.watch(group, &job, &outlet).await;
        self.context.progress.stopped();
        let ended = match ended {
            Ended::Exit(status) if was_stopped_with_us(&self.context, status).await => {
                Ended::Stopped
            }
            ended => ended,
        };
        match (self.judge(ended, &job, &outlet), &self.context.records) {
            (TaskResult::Ack, Some(records)) => {
                records.put_output(&self.context, &job, &outlet.take_kept()).await
            }
            (result, _) => result,
        }
    }

    /// What becomes of a task whose command the system will not start.
    fn not_started(&self, job: &Job, error: &std::io::Error) -> TaskResult {
        let program = &self.template.program;
        if error.raw_os_error() == Some(rustix::io::Errno::TOOBIG.raw_os_error()) {
            self.context.halt.not_the_machine();
            let reason =
                "its values are too long to be arguments; let the command read them from stdin";
            return TaskResult::Retry { error: reason.to_owned(), delay: None };
        }
        let why = format!("'{program}' cannot be run: {error}");
        self.context.halt.could_not_run(job.delivery.id().as_str(), why)
    }

    fn command(&self, job: &Job) -> Result<Command, TaskResult> {
        let delivery = &job.delivery;
        let args = match self.template.fill(delivery.payload.as_json()) {
            Ok(args) => args,
            // This counts as if the command had ended with 1. It never stops the worker: the next task may have
            // the member.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.context.halt.not_the_machine();
                return Err(TaskResult::Retry { error: error.to_string(), delay: None });
            }
            Err(error) => return Err(TaskResult::Fail { reason: error.to_string() }),
        };
        if delivery.id().as_str().contains('\0') {
            let reason = "its id has a NUL character, which DFQ_TASK_ID cannot hold".to_owned();
            return Err(TaskResult::Fail { reason });
        }
        let mut command = child::command(&self.template.program);
        command
            .args(args)
            .env("DFQ_TASK_ID", delivery.id().as_str())
            .env("DFQ_ATTEMPT", delivery.attempt.to_string())
            .env("DFQ_FENCE", delivery.fence.to_string())
            .env("DFQ_QUEUE", job.queue.address())
            .env("DFQ_RECEIPT", delivery.receipt.to_string());
        Ok(command)
    }

    /// Gives the task back and stops the worker: the next task would fare no better.
    fn cannot_go_on(&self, why: String) -> TaskResult {
        self.context.halt.now(&why);
        TaskResult::Release { reason: Some(why), delay: None }
    }

    /// Feeds the command and passes on what it says, until it ends or has to.
    async fn watch(&self, mut group: Group, job: &Job, outlet: &Outlet) -> Ended {
        let WorkContext { env, timeout, hard, .. } = &*self.context;
        let child = group.child();
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let payload = job.delivery.payload.clone();
        let feeding = env.spawn(async move {
            if let Some(mut stdin) = stdin {
                // A command need not read its task; that it did not is no error.
                let _ = stdin.write_all(payload.as_json().as_bytes()).await;
                let _ = stdin.write_all(b"\n").await;
            }
        });
        let passing_on = |outlet: Outlet| async move {
            let out = async {
                if let Some(stdout) = stdout {
                    outlet.pass_on(stdout, Stream::Out).await;
                }
            };
            let err = async {
                if let Some(stderr) = stderr {
                    outlet.pass_on(stderr, Stream::Err).await;
                }
            };
            tokio::join!(out, err);
        };
        let passing_on = env.spawn(passing_on(outlet.clone()));
        let overtime = async {
            match timeout {
                Some(timeout) => env.clock().sleep(*timeout).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            status = group.wait() => match status {
                Ok(status) => Ended::Exit(status),
                Err(error) => {
                    tracing::error!(%error, "lost sight of the command");
                    Ended::Stopped
                }
            },
            () = job.cancelled() => Ended::Stopped,
            () = overtime => Ended::TimedOut(timeout.unwrap_or_default()),
        };
        if !matches!(ended, Ended::Exit(_)) {
            group.stop(env, hard).await;
        }
        feeding.abort();
        last_words(env, passing_on).await;
        ended
    }

    fn judge(&self, ended: Ended, job: &Job, outlet: &Outlet) -> TaskResult {
        let said = outlet.take_tail();
        let with_reason = |what: String| match said.as_str() {
            "" => what,
            said => format!("{what}: {said}"),
        };
        let status = match ended {
            Ended::Stopped => return stopped(),
            Ended::TimedOut(after) => {
                let what = format!("timed out after {}", crate::output::duration(after));
                return TaskResult::Retry { error: with_reason(what), delay: None };
            }
            Ended::Exit(status) => status,
        };
        if let Some(NOT_EXECUTABLE | NOT_FOUND) = status.code() {
            let (program, how) = (&self.template.program, describe(status));
            let why = with_reason(format!("'{program}' says that a command cannot be run ({how})"));
            return self.context.halt.could_not_run(job.delivery.id().as_str(), why);
        }
        self.context.halt.not_the_machine();
        match status.code() {
            Some(0) => TaskResult::Ack,
            Some(HOPELESS) => TaskResult::Fail { reason: with_reason(describe(status)) },
            Some(NOT_NOW) => give_back(job, with_reason(describe(status)), None),
            _ => TaskResult::Retry { error: with_reason(describe(status)), delay: None },
        }
    }
}

/// Gives a task back that its command does not want now: after a pause, and not for ever.
pub(super) fn give_back(job: &Job, reason: String, delay: Option<Duration>) -> TaskResult {
    let times = job.delivery.earlier.released;
    if times >= MAX_GIVEN_BACK {
        let error = format!("given back {times} times; {reason}");
        return TaskResult::Retry { error, delay: None };
    }
    let pause = GIVEN_BACK.0.saturating_mul(1 << times.min(16)).min(GIVEN_BACK.1);
    TaskResult::Release { reason: Some(reason), delay: Some(delay.unwrap_or(pause)) }
}

/// Whether a command died of a signal that told the worker, too, to stop. It may come to us a little later.
pub(super) async fn was_stopped_with_us(context: &WorkContext, status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    // A shell that waited for what was killed ends with 128 and the number.
    let signal = status.signal().or_else(|| status.code().map(|code| code - 128));
    if !signal.is_some_and(|signal| STOPPING.contains(&signal)) {
        return false;
    }
    tokio::select! {
        biased;
        () = context.halt.stopping() => true,
        () = context.env.clock().sleep(SIGNAL_LAG) => false,
    }
}

/// What becomes of a task whose command was stopped.
pub(super) fn stopped() -> TaskResult {
    TaskResult::Release { reason: Some(dfq::worker::STOPPED.to_owned()), delay: None }
}

/// The machine is short of something; it is not the command that is wrong.
pub(super) fn is_passing(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
