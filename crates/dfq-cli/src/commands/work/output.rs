//! What commands print, passed on by whole lines, and the end of it kept for the record of a failure.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dfq::clock::Running;
use dfq::{Env, Queue, Receipt};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::progress::Progress;
use super::records::MOST_BYTES;

/// A line longer than this is passed on in pieces: it must not fill the memory.
const LONGEST_LINE: usize = 1 << 20;

/// How much of what a command said last is kept with a failure.
const TAIL: usize = 4096;

/// How long to wait for the rest of the output of a command that has ended: one of its children may
/// live on and hold the pipe. So many steps of so long: a machine that stalls uses up one step, and what
/// was there all the while is read in the next.
const LAST_WORDS: (u32, Duration) = (20, Duration::from_millis(50));

/// Where a stream of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// Where the output of one command goes.
#[derive(Clone)]
pub(super) struct Outlet {
    progress: Arc<Progress>,
    log: Option<Arc<Mutex<File>>>,
    tail: Arc<Mutex<Vec<u8>>>,
    /// What the command says on stdout, if that is kept instead of being printed.
    kept: Option<Arc<Mutex<Vec<u8>>>>,
}

impl Outlet {
    /// To our own stdout and stderr, or into a file for this attempt.
    pub(super) fn new(progress: &Arc<Progress>, log: Option<File>) -> Self {
        let log = log.map(|file| Arc::new(Mutex::new(file)));
        Self { progress: Arc::clone(progress), log, tail: Arc::default(), kept: None }
    }

    /// Keeps what the command says on stdout, a little more than `MOST_BYTES` of it at the most. It is not printed; if there
    /// is a log, it goes there too.
    pub(super) fn keeping(self) -> Self {
        Self { kept: Some(Arc::default()), ..self }
    }

    /// What was kept.
    pub(super) fn take_kept(&self) -> Vec<u8> {
        let kept = self.kept.as_ref();
        kept.map(|kept| std::mem::take(&mut *lock(kept))).unwrap_or_default()
    }

    /// Passes on everything that a stream says.
    pub(super) async fn pass_on(&self, mut from: impl AsyncRead + Unpin, stream: Stream) {
        let mut line = Vec::new();
        let mut part = [0; 8192];
        while let Ok(read) = from.read(&mut part).await {
            if read == 0 {
                break;
            }
            let end = part[..read].iter().rposition(|byte| *byte == b'\n');
            let whole = end.map_or(0, |end| line.len() + end + 1);
            line.extend_from_slice(&part[..read]);
            let whole = if line.len() - whole > LONGEST_LINE { line.len() } else { whole };
            if whole > 0 {
                let rest = line.split_off(whole);
                self.write(std::mem::replace(&mut line, rest), stream).await;
            }
        }
        if !line.is_empty() {
            line.push(b'\n');
            self.write(line, stream).await;
        }
    }

    /// One write, so that no other command's output comes between.
    async fn write(&self, lines: Vec<u8>, stream: Stream) {
        if stream == Stream::Err {
            let mut tail = lock(&self.tail);
            tail.extend_from_slice(&lines);
            let over = tail.len().saturating_sub(TAIL);
            tail.drain(..over);
        }
        let kept = self.kept.as_ref().filter(|_| stream == Stream::Out);
        if let Some(kept) = kept {
            let mut kept = lock(kept);
            let room = (MOST_BYTES + 1).saturating_sub(kept.len());
            kept.extend_from_slice(&lines[..lines.len().min(room)]);
        }
        match &self.log {
            Some(log) => {
                let written = lock(log).write_all(&lines);
                if let Err(error) = written {
                    tracing::warn!(%error, "the log cannot be written");
                }
            }
            None if kept.is_some() => {}
            None => self.progress.pass_on(lines, stream).await,
        }
    }

    /// What the command said last on stderr; asked once for each task.
    pub(super) fn take_tail(&self) -> String {
        let tail = std::mem::take(&mut *lock(&self.tail));
        String::from_utf8_lossy(&tail).trim().to_owned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the output of a command that has ended is passed on, or stops passing it on.
pub(super) async fn last_words(env: &Env, mut passing_on: Running<()>) {
    let (steps, step) = LAST_WORDS;
    for _ in 0..steps {
        tokio::select! {
            biased;
            _ = &mut passing_on => return,
            () = env.clock().sleep(step) => {}
        }
    }
    passing_on.abort();
}

/// The folder of `--log-dir`.
pub(super) struct Logs {
    folder: PathBuf,
    /// If there are several, each has a folder of its own there: an id may be in all of them.
    queues: Vec<String>,
}

impl Logs {
    pub(super) fn new(folder: &Path, queues: &[Arc<dyn Queue>]) -> anyhow::Result<Self> {
        let folder = folder.to_owned();
        let queues: Vec<_> = queues.iter().map(|queue| queue.address().to_owned()).collect();
        let logs = Self { folder, queues };
        for at in 0..logs.queues.len() {
            let folder = logs.folder_of(at);
            std::fs::create_dir_all(&folder).map_err(|error| {
                crate::exit::invalid(format!("--log-dir {}: {error}", folder.display()))
            })?;
        }
        Ok(logs)
    }

    fn folder_of(&self, queue: usize) -> PathBuf {
        let name = self.queues[queue].rsplit('/').next().unwrap_or_default();
        match self.queues.len() {
            1 => self.folder.clone(),
            _ => self.folder.join(format!("{}-{name}", queue + 1)),
        }
    }

    /// A file for one attempt, named as the task is in the queue.
    pub(super) fn open(&self, queue: &str, receipt: &Receipt) -> std::io::Result<File> {
        let queue = self.queues.iter().position(|known| known == queue).unwrap_or(0);
        let receipt = receipt.to_string();
        let mut parts = receipt.split('/');
        let (stem, attempt) = (parts.next().unwrap_or("task"), parts.next().unwrap_or("1"));
        File::options()
            .create(true)
            .append(true)
            .open(self.folder_of(queue).join(format!("{stem}.{attempt}.log")))
    }

    /// A file for one slot of `--stream`.
    pub(super) fn open_slot(&self, slot: usize) -> std::io::Result<File> {
        File::options().create(true).append(true).open(self.folder.join(format!("slot-{slot}.log")))
    }
}
