//! `dfq demo`: a queue, some workers, one of them killed, and the proof that nothing was lost.
//!
//! The workers are processes of their own, as typed by hand; what is said at the end is read from the
//! queue's records. However it ends, no worker is left running, nor the folder unless it is to be kept.

mod crew;
mod proof;
mod stage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::queue::{Detail, Stats};
use dfq::{ErrorKind, NewTask, OpenOptions, Queue, Settings, TaskId};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::exit::{Answer, stop_signal, unwritable};
use crate::output;
use crew::{Crew, Killed};
use proof::Proof;
use stage::Stage;

/// See it at work: some workers, one killed in mid-task, and nothing lost
///
/// Makes a queue in a temporary folder, pushes tasks, starts three workers, kills one of them while it
/// has tasks, and shows how the others take these over when their leases have run out. It takes about
/// ten seconds and leaves nothing behind. Exit status 1 means that something was lost or done twice.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// How many tasks
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(50..=100_000))]
    tasks: u32,
    /// Keep the folder, to look around in it
    #[arg(long)]
    keep: bool,
}

/// For how long a claim holds here: short, so that the take-over can be watched.
const LEASE: Duration = Duration::from_secs(3);

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// When nothing has moved for so long, something is wrong.
const STUCK: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Summary<'a> {
    tasks: u32,
    completed: u64,
    failed: u64,
    lost: u64,
    completed_twice: u64,
    held_when_killed: usize,
    taken_over: usize,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<&'a Path>,
}

impl Demo {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let name = format!("dfq-demo-{:08x}", context.env.next_u64() as u32);
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).map_err(|error| unwritable(&folder, &error))?;
        let stop = CancellationToken::new();
        let signal = context.env.spawn(stop_signal(stop.clone()));
        let mut crew = Crew::new(&folder);
        let played = tokio::select! {
            played = self.play(context, &folder, &mut crew) => Some(played),
            () = stop.cancelled() => None,
        };
        crew.dismiss().await;
        if self.keep && context.json {
            // Its summary says where.
        } else if self.keep {
            output::line(&format!("Kept: {}", folder.display()))?;
        } else {
            std::fs::remove_dir_all(&folder).map_err(|error| unwritable(&folder, &error))?;
        }
        match played {
            Some(answer) => answer,
            None => Ok(Answer::Killed(signal.await.unwrap_or(2))),
        }
    }

    async fn play(&self, context: &Context, folder: &Path, crew: &mut Crew) -> Result<Answer> {
        let stage = Stage::new(context, u64::from(self.tasks));
        let path = folder.join("jobs");
        stage.line(&format!("$ cd {}", folder.display()))?;
        stage.line("$ dfq init ./jobs --lease 3s")?;
        let settings = Settings { lease: LEASE, ..Settings::default() };
        let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
        let queue = dfq::open(&path, options).await?;
        self.push(&stage, &*queue).await?;

        stage.line(&format!("$ {}        # three of these", crew.command_line()))?;
        crew.hire(3)?;
        let mut show = Show { context, stage: &stage, queue, began: context.env.monotonic() };
        let killed = show.kill_one(crew, u64::from(self.tasks)).await?;
        show.watch(crew, &killed).await?;
        let elapsed = context.env.monotonic() - show.began;
        stage.clear();

        let ids = (1..=self.tasks).map(task_id).collect::<dfq::Result<Vec<_>>>()?;
        let proof = Proof::read(&*show.queue, &ids, &killed).await?;
        if context.json {
            output::json_line(&Summary {
                tasks: self.tasks,
                completed: proof.completed,
                failed: proof.failed,
                lost: proof.lost,
                completed_twice: proof.twice,
                held_when_killed: killed.tasks.len(),
                taken_over: proof.taken_over.len(),
                seconds: (elapsed.as_secs_f64() * 10.0).round() / 10.0,
                folder: self.keep.then_some(folder),
            })?;
        } else {
            stage.tree(&path, proof.taken_over.first())?;
            for line in proof.lines(u64::from(self.tasks), &killed, elapsed) {
                stage.line(&line)?;
            }
        }
        Ok(Answer::yes_if(proof.holds(&killed)))
    }

    async fn push(&self, stage: &Stage<'_>, queue: &dyn Queue) -> Result<()> {
        let mut numbers = (1..=self.tasks).peekable();
        let example = task_json(1);
        let tasks = output::count(self.tasks.into(), "task");
        stage.line(&format!("$ dfq push ./jobs        # {tasks} such as {example}"))?;
        while numbers.peek().is_some() {
            let batch: Vec<NewTask> = numbers
                .by_ref()
                .take(500)
                .map(|number| NewTask::from_json(&task_json(number)))
                .collect::<dfq::Result<_>>()?;
            queue.push(batch).await.into_iter().collect::<dfq::Result<Vec<_>>>()?;
        }
        Ok(())
    }
}

fn task_id(number: u32) -> dfq::Result<TaskId> {
    TaskId::new(format!("task-{number:03}"))
}

/// Tasks of different lengths, a fifth of a second on average.
fn task_json(number: u32) -> String {
    let hundredths = 10 + number * 7 % 21;
    format!(r#"{{"id":"task-{number:03}","seconds":0.{hundredths}}}"#)
}

/// What happens between the first task and the last.
struct Show<'a> {
    context: &'a Context,
    stage: &'a Stage<'a>,
    queue: Arc<dyn Queue>,
    began: Duration,
}

impl Show<'_> {
    fn elapsed(&self) -> Duration {
        self.context.env.monotonic() - self.began
    }

    /// Kills a worker that has tasks, once some are done.
    async fn kill_one(&mut self, crew: &mut Crew, tasks: u64) -> Result<Killed> {
        let mut watch = Progress::new(self.elapsed());
        loop {
            let stats = self.refresh(&mut watch).await?;
            if stats.completed >= tasks / 6
                && let Some(killed) = crew.kill_one_with_tasks(&*self.queue).await?
            {
                let held = output::count(killed.tasks.len() as u64, "task");
                self.stage.event(
                    self.elapsed(),
                    &format!("kill -9 {}: a worker dies in the middle of {held}", killed.pid),
                )?;
                return Ok(killed);
            }
            crew.see_to(self.elapsed() - watch.moved_at > STUCK)?;
            if crew.is_done() {
                let message = "the workers were done before one could be killed; try more --tasks";
                return Err(dfq::Error::new(ErrorKind::Unavailable, message).into());
            }
            self.context.env.clock().sleep(LOOK_EVERY).await;
        }
    }

    /// Shows how it goes on until the workers have ended by themselves.
    async fn watch(&mut self, crew: &mut Crew, killed: &Killed) -> Result<()> {
        let mut watch = Progress::new(self.elapsed());
        let mut orphans = killed.tasks.clone();
        loop {
            self.refresh(&mut watch).await?;
            let mut taken = Vec::new();
            for id in &orphans {
                let view = self.queue.get(id.clone()).await?;
                let last = view.and_then(|view| view.attempts.last().cloned());
                if last.is_some_and(|last| last.worker_id != killed.worker_id) {
                    taken.push(id.clone());
                }
            }
            orphans.retain(|id| !taken.contains(id));
            if !taken.is_empty() {
                let names: Vec<&str> = taken.iter().map(TaskId::as_str).collect();
                let left = match orphans.len() {
                    0 => "none of the dead worker's tasks is left".to_owned(),
                    left => format!("{left} of the dead worker's tasks to go"),
                };
                let sentence = format!("taken over: {}; {left}", names.join(", "));
                self.stage.event(self.elapsed(), &sentence)?;
            }
            crew.see_to(self.elapsed() - watch.moved_at > STUCK)?;
            if crew.is_done() {
                // Whatever they did after the last look.
                self.refresh(&mut watch).await?;
                return Ok(());
            }
            self.context.env.clock().sleep(LOOK_EVERY).await;
        }
    }

    async fn refresh(&self, watch: &mut Progress) -> Result<Stats> {
        let stats = self.queue.stats(Detail::States).await?;
        let elapsed = self.elapsed();
        if stats.completed != watch.completed {
            (watch.completed, watch.moved_at) = (stats.completed, elapsed);
        }
        self.stage.counts(elapsed, &stats)?;
        Ok(stats)
    }
}

/// Whether something moves.
struct Progress {
    completed: u64,
    moved_at: Duration,
}

impl Progress {
    fn new(now: Duration) -> Self {
        Self { completed: 0, moved_at: now }
    }
}

/// Where a worker writes what it has to say.
fn log_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("worker-{number}.log"))
}
