//! What a worker says about itself: a live line on a terminal, plain lines otherwise.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dfq::Env;
use dfq::worker::{Became, Settled, TaskResult};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::mpsc::Receiver;

use super::output::Stream;
use crate::output;

/// Counts, and where they are shown.
pub(super) struct Progress {
    env: Env,
    began: Duration,
    /// Nothing if stderr is no terminal.
    bar: Option<ProgressBar>,
    quiet: bool,
    verbose: bool,
    counts: Counts,
    /// Tasks left in the queues, when that was last counted, less those done since.
    left: AtomicU64,
    left_known: AtomicBool,
    /// When the latest tasks were completed.
    recent: Mutex<VecDeque<Duration>>,
    /// To the thread that writes what commands print. Writing blocks when nobody reads (a pager that
    /// waits, a terminal that was stopped), and nothing else may block with it.
    writer: tokio::sync::mpsc::Sender<(Vec<u8>, Stream)>,
    writing: Arc<Writing>,
}

/// How far the thread that writes has come.
#[derive(Default)]
struct Writing {
    /// What it has not written yet, counted until it has.
    unwritten: AtomicU64,
    /// It is at it now, and perhaps nobody reads.
    busy: AtomicBool,
}

#[derive(Default)]
struct Counts {
    completed: AtomicU64,
    retried: AtomicU64,
    failed: AtomicU64,
    running: AtomicU64,
}

/// How many of the latest completions the rate is taken from.
const RECENT: usize = 500;

/// Writes that may wait for a slow reader before the commands themselves have to wait.
const QUEUED_WRITES: usize = 64;

/// A reader has stopped if so many looks in a row, so long apart, find the same write under way: after five seconds.
/// A machine that stalls costs the reader one look, not all.
const LAST_WORDS: (u32, Duration) = (2500, Duration::from_millis(2));

fn write_all(mut lines: Receiver<(Vec<u8>, Stream)>, bar: Option<&ProgressBar>, writing: &Writing) {
    let mut unheard = false;
    while let Some((lines, stream)) = lines.blocking_recv() {
        let write = || match stream {
            Stream::Out => std::io::stdout().lock().write_all(&lines),
            Stream::Err => std::io::stderr().lock().write_all(&lines),
        };
        writing.busy.store(true, Ordering::SeqCst);
        let written = match bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        };
        writing.busy.store(false, Ordering::SeqCst);
        writing.unwritten.fetch_sub(1, Ordering::SeqCst);
        // The work goes on without a reader; but that is said once.
        if written.is_err() && !std::mem::replace(&mut unheard, true) {
            tracing::warn!("nobody reads what the commands print any more");
        }
    }
}

impl Progress {
    pub(super) fn new(env: Env, quiet: bool, verbose: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let (writer, lines) = tokio::sync::mpsc::channel(QUEUED_WRITES);
        let (above, writing) = (bar.clone(), Arc::new(Writing::default()));
        let left = Arc::clone(&writing);
        let thread = std::thread::Builder::new().name("dfq-writer".to_owned());
        // Without the thread, sending fails and nothing is printed; the work goes on.
        #[allow(clippy::disallowed_methods, reason = "a terminal cannot be simulated")]
        let started = thread.spawn(move || write_all(lines, above.as_ref(), &left));
        if let Err(error) = started {
            tracing::error!(%error, "what commands print is lost");
        }
        Self {
            began: env.monotonic(),
            env,
            bar,
            quiet,
            verbose,
            counts: Counts::default(),
            left: AtomicU64::new(0),
            left_known: AtomicBool::new(false),
            recent: Mutex::default(),
            writer,
            writing,
        }
    }

    /// Whether there is a live line, worth counting the queue for.
    pub(super) fn is_live(&self) -> bool {
        self.bar.is_some()
    }

    /// Says something above the live line, unless asked to be quiet.
    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            self.tell(text);
        }
    }

    /// The same however quiet. Never waits: if whoever reads has stopped reading, it is left unsaid.
    pub(super) fn tell(&self, text: &str) {
        self.writing.unwritten.fetch_add(1, Ordering::SeqCst);
        let line = format!("dfq: {text}\n").into_bytes();
        if self.writer.try_send((line, Stream::Err)).is_err() {
            self.writing.unwritten.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Passes whole lines of a command's output on, as fast as whoever reads them takes them.
    pub(super) async fn pass_on(&self, lines: Vec<u8>, stream: Stream) {
        // An error means that there is no writer; a task that waits here may be dropped.
        if let Ok(permit) = self.writer.reserve().await {
            self.writing.unwritten.fetch_add(1, Ordering::SeqCst);
            permit.send((lines, stream));
        }
    }

    /// Waits until all of it is written, but not long for a reader that has stopped. Answers whether it is.
    pub(super) async fn flush(&self) -> bool {
        let (looks, pause) = LAST_WORDS;
        let (mut in_vain, mut before) = (0, 0);
        loop {
            let left = self.writing.unwritten.load(Ordering::SeqCst);
            if left == 0 || in_vain >= looks || self.writer.is_closed() {
                return left == 0;
            }
            // A thread that has not come to write yet is only waiting for the machine.
            let stuck = left == before && self.writing.busy.load(Ordering::SeqCst);
            (in_vain, before) = (if stuck { in_vain + 1 } else { 0 }, left);
            self.env.clock().sleep(pause).await;
        }
    }

    pub(super) fn started(&self) {
        self.counts.running.fetch_add(1, Ordering::Relaxed);
        self.refresh();
    }

    pub(super) fn stopped(&self) {
        self.counts.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// So many tasks are left in the queues.
    pub(super) fn left(&self, tasks: u64) {
        self.left.store(tasks, Ordering::Relaxed);
        self.left_known.store(true, Ordering::Relaxed);
        self.refresh();
    }

    /// Takes note of a task that is done with, and says so if it did not go well.
    pub(super) fn settled(&self, settled: &Settled<'_>) {
        let id = output::printable(&settled.receipt.key().to_string());
        let error = match settled.result {
            TaskResult::Retry { error, .. } => last_line(error),
            TaskResult::Fail { reason } => last_line(reason),
            TaskResult::Release { reason, .. } => {
                reason.as_deref().map_or_else(String::new, last_line)
            }
            TaskResult::Ack => String::new(),
        };
        let ended = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        match settled.became {
            Became::Completed => {
                ended(&self.counts.completed);
                self.count_down();
                self.note_completion();
                if self.verbose {
                    self.say(&format!("{id}: done"));
                }
            }
            Became::Retried(wait) => {
                ended(&self.counts.retried);
                self.say(&format!("{id}: {error}; again in {}", output::duration(wait)));
            }
            Became::Failed => {
                ended(&self.counts.failed);
                self.count_down();
                self.say(&format!("{id}: failed: {error}"));
            }
            Became::Released if !error.is_empty() => {
                self.say(&format!("{id}: given back: {error}"))
            }
            Became::Released => self.say(&format!("{id}: given back")),
            Became::Lost => {
                self.say(&format!("{id}: somebody else has it now; its result is dropped"))
            }
            Became::Unrecorded => {
                self.say(&format!("{id}: its result cannot be recorded; it will be done again"))
            }
        }
        self.refresh();
    }

    fn count_down(&self) {
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(1))
        });
    }

    fn note_completion(&self) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back(self.env.monotonic());
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    /// Completions a second, of late.
    fn rate(&self) -> Option<f64> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let span = (self.env.monotonic() - *recent.front()?).as_secs_f64();
        (recent.len() > 1 && span > 0.0).then(|| recent.len() as f64 / span)
    }

    fn refresh(&self) {
        let Some(bar) = &self.bar else { return };
        let Counts { completed, retried, failed, running } = &self.counts;
        let read = |count: &AtomicU64| output::thousands(count.load(Ordering::Relaxed));
        let mut line = format!("{} running, {} done", read(running), read(completed));
        for (count, name) in [(retried, "retried"), (failed, "failed")] {
            if count.load(Ordering::Relaxed) > 0 {
                line += &format!(", {} {name}", read(count));
            }
        }
        if self.left_known.load(Ordering::Relaxed) {
            line += &format!(", about {} left", read(&self.left));
        }
        if let Some(rate) = self.rate() {
            line += &format!(", {rate:.1}/s");
        }
        bar.set_message(line);
    }

    /// How long the worker has been at it.
    pub(super) fn elapsed(&self) -> Duration {
        self.env.monotonic() - self.began
    }

    /// Takes the live line away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The end of an error is where its reason usually is.
fn last_line(error: &str) -> String {
    let last = error.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or(error);
    let first = error.lines().next().unwrap_or_default();
    let text = if first == last { last.to_owned() } else { format!("{first} … {last}") };
    output::cut(&output::printable(&text), 200)
}
