//! The workers: real processes of this very program.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Result;
use dfq::queue::{ListCursor, Place, TaskState};
use dfq::{ErrorKind, Queue, TaskId};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::exit::unwritable;
use crate::output;

/// What each worker is told.
const WORK: [&str; 10] =
    ["work", "./jobs", "-j", "4", "--lease", "3s", "--drain", "--", "sleep", "{.seconds}"];

/// All workers that were started.
pub(super) struct Crew {
    folder: PathBuf,
    workers: Vec<Hand>,
}

struct Hand {
    number: usize,
    child: Child,
    ended: bool,
}

/// The worker that died, and what it had.
pub(super) struct Killed {
    pub(super) pid: u32,
    pub(super) worker_id: String,
    pub(super) tasks: Vec<TaskId>,
}

impl Crew {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), workers: Vec::new() }
    }

    /// As one would type it.
    pub(super) fn command_line(&self) -> String {
        format!("dfq {}", WORK.join(" "))
    }

    pub(super) fn hire(&mut self, workers: usize) -> Result<()> {
        let program = std::env::current_exe()?;
        for number in 1..=workers {
            let log = super::log_of(&self.folder, number);
            let said = std::fs::File::create(&log).map_err(|error| unwritable(&log, &error))?;
            let mut command = Command::new(&program);
            command.args(WORK).current_dir(&self.folder).stdin(Stdio::null());
            command.stdout(said.try_clone()?).stderr(said);
            // Ctrl-C is for us, and we tell them.
            command.process_group(0).kill_on_drop(true);
            self.workers.push(Hand { number, child: command.spawn()?, ended: false });
        }
        Ok(())
    }

    /// Kills a worker that has tasks at this moment, if there is one. It is stopped while we look, so
    /// that what it has then is what it dies with.
    pub(super) async fn kill_one_with_tasks(
        &mut self,
        queue: &dyn Queue,
    ) -> Result<Option<Killed>> {
        let records = queue.workers().await?;
        for hand in self.workers.iter_mut().rev().filter(|hand| !hand.ended) {
            let Some(pid) = hand.child.id() else { continue };
            let Some(record) = records.iter().find(|record| record.pid == pid) else { continue };
            signal(pid, Signal::STOP);
            let tasks = tasks_of(queue, &record.worker_id).await;
            match tasks {
                Ok(tasks) if !tasks.is_empty() => {
                    hand.child.start_kill()?;
                    hand.child.wait().await?;
                    hand.ended = true;
                    let worker_id = record.worker_id.clone();
                    return Ok(Some(Killed { pid, worker_id, tasks }));
                }
                other => {
                    signal(pid, Signal::CONT);
                    other?;
                }
            }
        }
        Ok(None)
    }

    /// Notices who has ended, and whether that was well; `stuck` says that nothing has moved for long.
    pub(super) fn see_to(&mut self, stuck: bool) -> Result<()> {
        for hand in self.workers.iter_mut().filter(|hand| !hand.ended) {
            match hand.child.try_wait()? {
                None if stuck => return Err(trouble(&self.folder, hand.number, "does nothing")),
                None => {}
                Some(status) if status.success() => hand.ended = true,
                Some(status) => {
                    let what = format!("ended with {status}");
                    return Err(trouble(&self.folder, hand.number, &what));
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_done(&self) -> bool {
        self.workers.iter().all(|hand| hand.ended)
    }

    /// Ends everyone who still runs, and waits for it: nobody is to write into the folder any more.
    pub(super) async fn dismiss(&mut self) {
        for hand in self.workers.iter_mut().filter(|hand| !hand.ended) {
            let _ = hand.child.start_kill();
            let _ = hand.child.wait().await;
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may just have ended; then there is nothing to be told.
        let _ = kill_process(pid, signal);
    }
}

/// The tasks that a worker has now.
async fn tasks_of(queue: &dyn Queue, worker: &str) -> Result<Vec<TaskId>> {
    let mut tasks = Vec::new();
    let mut cursor = Some(ListCursor::at(Place::Pending));
    while let Some(from) = cursor.take().filter(|from| from.place() == Place::Pending) {
        let page = queue.list(Some(from)).await?;
        let held = page.tasks.into_iter().filter(|view| {
            matches!(&view.state, TaskState::Leased { worker_id, .. } if worker_id == worker)
        });
        tasks.extend(held.map(|view| view.key.id().clone()));
        cursor = page.next;
    }
    Ok(tasks)
}

/// A worker that did not do what it should, with the last that it said.
fn trouble(folder: &Path, number: usize, what: &str) -> anyhow::Error {
    let said = std::fs::read_to_string(super::log_of(folder, number)).unwrap_or_default();
    let last = said.lines().last().map(output::printable).unwrap_or_default();
    let message = format!("worker {number} {what}; the last it said: {last}");
    dfq::Error::new(ErrorKind::Unavailable, message).into()
}
