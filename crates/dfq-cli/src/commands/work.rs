//! `dfq work`: run a command for each task.
//!
//! `template` makes its arguments, `child` starts and stops processes, `once` runs one for each task,
//! `stream` keeps one for each slot, `output` passes on what they print, `progress` says how it goes,
//! `records` puts it into an index, `summary` tells what came of it, `halt` decides when to stop rather than burn the queue. Leases, retries and give-backs are the
//! library's `Worker`.

pub(crate) mod answer;
mod child;
pub(crate) mod halt;
mod merging;
mod once;
mod output;
mod progress;
mod records;
mod stream;
mod summary;
pub(crate) mod template;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::meter::Meter;
use dfq::queue::Detail;
use dfq::worker::{Job, Stopper, TaskResult, Until, Worker};
use dfq::{Env, Error, ErrorKind, OpenOptions, Queue};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::args::duration;
use crate::context::Context;
use crate::exit::{Answer, invalid};
use halt::{Halt, Limit};
use merging::Merging;
use once::Once;
use output::Logs;
use progress::Progress;
use records::Records;
use stream::Slots;
use template::Template;

/// Run a command for each task
///
/// The task's JSON is on the command's stdin. In its arguments, {.field} and {.a.b} stand for members
/// of the task and {} for all of it; no shell comes between. DFQ_TASK_ID, DFQ_ATTEMPT, DFQ_FENCE,
/// DFQ_QUEUE and DFQ_RECEIPT are in its environment.
///
/// Exit status 0 completes the task; 65 fails it at once; 75 gives it back after a pause without
/// counting. Any other, a signal or --timeout, tries the task again after the queue's backoff, with the
/// end of stderr kept. A command that is not there, or ends with 126 or 127 for ten different tasks in a
/// row before any was completed, stops the worker.
///
/// With --index, what a command prints is put into an index before its task is completed: a JSON object, or several.
/// If it prints anything else, the attempt has failed.
///
/// Several queues are worked on in the order given: the second only while the first has nothing to do.
/// SIGTERM or Ctrl-C stops claiming, lets commands finish within --grace, and gives the rest back; a
/// second one stops at once.
#[derive(Args, Debug)]
#[command(override_usage = "dfq work [OPTIONS] QUEUE… -- COMMAND [ARG…]")]
pub(crate) struct Work {
    /// The queues, the most urgent first
    #[arg(value_name = "QUEUE", required = true)]
    queues: Vec<String>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// How many tasks at once
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    jobs: u16,
    /// Keep one command running in each slot: a task on each line of its stdin, an answer on each line
    /// of its stdout: {"ok":true}, {"retry":"why","delay":"5m"}, {"fail":"why"} or {"release":"why"},
    /// best with the task's "id" in it
    #[arg(long)]
    stream: bool,
    /// Put what commands print into this index (see `dfq index`): JSON objects, or [] for none. With --stream, an answer
    /// {"ok":true} has them as "record":{…} or "records":[…]
    #[arg(long, value_name = "INDEX")]
    index: Option<String>,
    /// The member of these objects that is the key [default: the name of the index's key]
    #[arg(long, value_name = "FIELD", requires = "index")]
    key_field: Option<String>,
    /// For how long a claim holds if this worker dies, instead of the queue's own lease
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// Stop a command that takes longer
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Give tasks up after so many failures, instead of the queue's own limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: Option<u32>,
    /// Only tasks whose schema_version lies in this range, as 1..2
    #[arg(long, value_name = "A..B", value_parser = schema_range)]
    schema: Option<(i64, i64)>,
    /// End when nothing is left; waits for backoffs, for delayed tasks, and for other workers' tasks
    #[arg(long, conflicts_with = "until")]
    drain: bool,
    /// End when nothing can be claimed now (idle), or when nothing is left (drained)
    #[arg(long, value_enum)]
    until: Option<UntilName>,
    /// Stop claiming after this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    stop_after: Option<Duration>,
    /// End after so many tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Stop when so many commands failed, as fail=10, or such a part of them, as fail=50%
    #[arg(long, value_name = "fail=N|N%")]
    halt: Option<Limit>,
    /// How long commands may go on after a signal
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "20s")]
    grace: Duration,
    /// While there is nothing to do, look for tasks at least this often, where the store does not tell
    /// of new ones; the wait grows from look to look up to this. In a bucket, one of the idle workers looks for all
    /// [default: 5s, in a bucket 15s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,
    /// Put each command's output into a file here instead of printing it
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Let values that begin with a dash be whole arguments
    #[arg(long)]
    allow_dash: bool,
    /// Merge the queue's folder with its bucket meanwhile, as `dfq supervise` does; for synced queues
    #[arg(long)]
    supervise: bool,
    /// Go on though `dfq doctor` found the store unsafe: tasks may be done twice
    #[arg(long)]
    allow_unsafe: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UntilName {
    Idle,
    Drained,
}

/// How long a command may take to end after it was told to, before its task is given back anyway.
const CLEANUP: Duration = Duration::from_secs(5);

/// How often the queues are counted for the live line.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// What every handler shares.
struct WorkContext {
    env: Env,
    meter: Meter,
    timeout: Option<Duration>,
    progress: Arc<Progress>,
    logs: Option<Logs>,
    halt: Halt,
    /// Where what commands print is put.
    records: Option<Records>,
    /// Stop commands without asking them first.
    hard: CancellationToken,
}

impl Work {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let template = Template::new(&self.command, self.allow_dash)?;
        if let Err(why) = child::check_program(&template.program) {
            crate::output::note!("dfq: {}; nothing was claimed", crate::output::printable(&why));
            return Ok(Answer::Halted);
        }
        make_room(u64::from(self.jobs))?;
        if self.stream && template.has_fields() {
            return Err(invalid(
                "with --stream the command is started before there is a task; it reads tasks from stdin",
            ));
        }
        if self.supervise {
            merging::make_folders(context, &self.queues).await?;
        }
        let mut queues = Vec::with_capacity(self.queues.len());
        let mut worker_id = None;
        for queue in &self.queues {
            let options = OpenOptions {
                worker_id: worker_id.clone(),
                max_attempts: self.max_attempts,
                allow_unsafe: self.allow_unsafe,
                ..OpenOptions::existing()
            };
            let opened = context.open_with(queue, options).await?;
            worker_id = Some(opened.worker_id().to_owned());
            queues.push(opened);
        }
        let records = match &self.index {
            None => None,
            Some(index) => {
                let mut place = context.index_place(index, self.key_field.as_deref()).await?;
                let key = place.key_field();
                Some(Records::new(place.make().await?, key))
            }
        };
        let progress = Progress::new(context.env.clone(), context.quiet, context.verbose);
        let work_context = Arc::new(WorkContext {
            env: context.env.clone(),
            meter: context.meter.clone(),
            timeout: self.timeout,
            progress: Arc::new(progress),
            logs: self.log_dir.as_deref().map(|dir| Logs::new(dir, &queues)).transpose()?,
            halt: Halt::new(self.halt),
            records,
            hard: CancellationToken::new(),
        });
        let merging = match self.supervise {
            true => Merging::start(context, &self.queues).await?,
            false => Merging::watch(context, &self.queues)?,
        };
        let answer = self.work(context, &work_context, template, &queues).await;
        // Told to stop at once, it does not merge what was done last.
        if !matches!(answer, Ok(Answer::Killed(_))) {
            merging.end().await;
        }
        answer
    }

    async fn work(
        &self,
        context: &Context,
        work_context: &Arc<WorkContext>,
        template: Template,
        queues: &[Arc<dyn Queue>],
    ) -> Result<Answer> {
        let slots =
            self.stream.then(|| Arc::new(Slots::new(Arc::clone(work_context), &self.command)));
        let worker = match &slots {
            Some(slots) => {
                let slots = Arc::clone(slots);
                self.worker(work_context, queues, move |job| {
                    let slots = Arc::clone(&slots);
                    async move { slots.handle(job).await }
                })
            }
            None => {
                let once = Arc::new(Once::new(Arc::clone(work_context), template));
                self.worker(work_context, queues, move |job| {
                    let once = Arc::clone(&once);
                    async move { once.handle(job).await }
                })
            }
        };
        let stopper = worker.stopper();
        work_context.halt.stops(stopper.clone());
        let killed = Arc::new(AtomicI32::new(0));
        let aside = [
            work_context.env.spawn(obey_signals(
                stopper.clone(),
                Arc::clone(work_context),
                Arc::clone(&killed),
            )?),
            work_context.env.spawn(stop_after(work_context.env.clone(), self.stop_after, stopper)),
            work_context.env.spawn(count(
                work_context.env.clone(),
                Arc::clone(&work_context.progress),
                queues.to_vec(),
            )),
        ];
        let addresses: Vec<_> = queues.iter().map(|queue| queue.address()).collect();
        work_context.progress.say(&format!(
            "working on {}, {} at once",
            addresses.join(", "),
            self.jobs
        ));
        let ended = worker.run().await;
        if let Some(slots) = slots {
            slots.close().await;
        }
        for task in aside {
            task.abort();
        }
        work_context.progress.finish();
        // The summary in JSON is written from here, so whatever commands have printed must be out before.
        let is_read = work_context.progress.flush().await;
        if let Ok(report) = &ended {
            let left = match self.until {
                Some(UntilName::Idle) => merging::count_left(context, &self.queues).await.ok(),
                _ => None,
            };
            summary::tell(context, work_context, report, left.flatten())?;
        }
        if is_read {
            work_context.progress.flush().await;
        }
        let report = ended?;
        Ok(match (killed.load(Ordering::SeqCst), work_context.halt.reason()) {
            (signal @ 1.., _) => Answer::Killed(u8::try_from(signal).unwrap_or(15)),
            (_, Some(_)) => Answer::Halted,
            _ => Answer::yes_if(report.failed == 0 && report.unrecorded == 0),
        })
    }

    fn worker<H, F>(
        &self,
        work_context: &Arc<WorkContext>,
        queues: &[Arc<dyn Queue>],
        handler: H,
    ) -> Worker
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = TaskResult> + Send + 'static,
    {
        let (observer, counter) = (Arc::clone(work_context), Arc::clone(work_context));
        let counted = move |job| {
            let (handled, counter) = (handler(job), Arc::clone(&counter));
            async move {
                let result = handled.await;
                counter.halt.ended(&result);
                result
            }
        };
        let mut worker = Worker::new(Arc::clone(&queues[0]), counted)
            .concurrency(usize::from(self.jobs))
            .grace(self.grace)
            .cleanup(CLEANUP)
            .limit(self.limit.unwrap_or(u64::MAX))
            .env(work_context.env.clone())
            .meter(work_context.meter.clone())
            .until(match (self.drain, self.until) {
                (true, _) | (_, Some(UntilName::Drained)) => Until::Drained,
                (_, Some(UntilName::Idle)) => Until::Idle,
                _ => Until::Stopped,
            })
            .observe(move |settled| observer.progress.settled(settled));
        for queue in &queues[1..] {
            worker = worker.then(Arc::clone(queue));
        }
        if let Some(idle) = self.idle {
            worker = worker.idle_at_most(idle);
        }
        if let Some(lease) = self.lease {
            worker = worker.lease(lease);
        }
        if let Some((lowest, highest)) = self.schema {
            worker = worker.schema(lowest, highest);
        }
        worker
    }
}

/// A second signal so soon belongs to the first: `timeout` sends one to us and one to our group, and who
/// closes a session sends TERM and then HUP.
const SAME_STOP: Duration = Duration::from_millis(250);

/// The first signal stops gently, the second hard, the third at once. A signal that whoever started us
/// wants ignored (`nohup`) stays so.
fn obey_signals(
    stopper: Stopper,
    work_context: Arc<WorkContext>,
    killed: Arc<AtomicI32>,
) -> Result<impl Future<Output = ()>> {
    let ignored = ignored_signals();
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let heard = kinds.into_iter().filter(|kind| !ignored.contains(&kind.as_raw_value()));
    let mut signals = heard
        .map(|kind| signal(kind).map(|signal| (signal, kind.as_raw_value())))
        .collect::<std::io::Result<Vec<_>>>()?;
    let next = async move |signals: &mut Vec<(tokio::signal::unix::Signal, i32)>| {
        let each = signals.iter_mut().map(|(signal, number)| {
            Box::pin(async move {
                signal.recv().await;
                *number
            })
        });
        match each.len() {
            0 => std::future::pending().await,
            _ => futures::future::select_all(each).await.0,
        }
    };
    Ok(async move {
        next(&mut signals).await;
        let since = work_context.env.monotonic();
        stopper.stop();
        work_context.progress.say("stopping: commands may finish; once more stops them");
        let number = loop {
            let number = next(&mut signals).await;
            if work_context.env.monotonic() - since >= SAME_STOP {
                break number;
            }
        };
        killed.store(number, Ordering::SeqCst);
        work_context.hard.cancel();
        stopper.stop_now();
        work_context.progress.say("stopping now: tasks are given back");
        let number = next(&mut signals).await;
        std::process::exit(128 + number);
    })
}

/// The numbers of the signals that this process was started to ignore.
fn ignored_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|number| mask & (1 << (number - 1)) != 0).collect()
}

async fn stop_after(env: Env, after: Option<Duration>, stopper: Stopper) {
    if let Some(after) = after {
        env.clock().sleep(after).await;
        stopper.stop();
    }
}

/// Counts what is left, for the live line.
async fn count(env: Env, progress: Arc<Progress>, queues: Vec<Arc<dyn Queue>>) {
    while progress.is_live() {
        let began = env.monotonic();
        let mut left = 0;
        for queue in &queues {
            if let Ok(stats) = queue.stats(Detail::Counts).await {
                left += stats.pending + stats.scheduled;
            }
        }
        progress.left(left);
        // Counting lists the whole queue, so it must not be what the worker mostly does.
        let took = env.monotonic() - began;
        env.clock().sleep(COUNT_EVERY.max(took * 20)).await;
    }
}

/// Open files that a task takes: its folder, three pipes, the process, a log.
const FILES_PER_JOB: u64 = 8;

/// Open files that the worker itself takes.
const FILES_BESIDE: u64 = 64;

/// Makes sure that so many commands at once find room in the table of open files: otherwise they would
/// be claimed and given back, again and again.
fn make_room(jobs: u64) -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
    }
    let room = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let fits = room.saturating_sub(FILES_BESIDE) / FILES_PER_JOB;
    if jobs > fits {
        return Err(invalid(format!(
            "-j {jobs} takes more open files than the limit of {room} allows; use -j {fits}, or raise \
             it (ulimit -n)"
        )));
    }
    Ok(())
}

pub(crate) fn schema_range(text: &str) -> Result<(i64, i64), String> {
    let wrong = || format!("'{text}' is no range of versions; write 2 or 1..3");
    let read = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
    let (low, high) = match text.split_once("..") {
        Some((low, high)) => (read(low)?, read(high.trim_start_matches('='))?),
        None => (read(text)?, read(text)?),
    };
    if low > high {
        return Err(wrong());
    }
    Ok((low, high))
}

/// A task that this command cannot be run for, whoever tries.
fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
