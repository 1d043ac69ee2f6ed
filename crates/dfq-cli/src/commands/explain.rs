//! `dfq explain`: why nothing runs, in plain words. What stands in the way comes first.

mod node;
mod one;
mod pending;

use anyhow::Result;
use clap::Args;
use dfq::Queue;
use dfq::queue::{Detail, Paused, Stats, WorkerRecord};
use jiff::Timestamp;
use serde::Serialize;

use crate::commands::show;
use crate::commands::supervise::state::MergeJson;
use crate::commands::workers::{Life, seen};
use crate::context::Context;
use crate::exit::Answer;
use crate::output;
use node::Node;
use pending::PendingGroups;

/// Say in plain words why nothing runs, or why one task does not
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// The queue
    queue: String,
    /// Only about this task
    #[arg(value_name = "ID")]
    id: Option<String>,
}

/// One thing that there is to say.
#[derive(Debug, Serialize)]
struct Finding {
    about: &'static str,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    /// When it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// Some of the tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ids: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// The node of a synced queue that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// How the merge goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    merge: Option<MergeJson>,
}

impl Finding {
    fn new(about: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        let (count, until, ids, worker_id) = (None, None, Vec::new(), None);
        Self { about, text, count, until, ids, worker_id, node: None, merge: None }
    }

    fn count(self, count: u64) -> Self {
        Self { count: Some(count), ..self }
    }

    fn until(self, until: Option<Timestamp>) -> Self {
        Self { until: until.map(output::time), ..self }
    }

    fn ids(self, ids: &[String]) -> Self {
        Self { ids: ids.to_vec(), ..self }
    }

    fn worker(self, worker_id: &str) -> Self {
        Self { worker_id: Some(worker_id.to_owned()), ..self }
    }
}

/// What a look around the queue found, apart from its tasks.
struct Surroundings {
    /// The queue as it is typed.
    name: String,
    paused: Option<Paused>,
    workers: Vec<WorkerRecord>,
    now: Timestamp,
    /// How it is merged, if it is a node of a synced queue.
    node: Option<Node>,
}

impl Explain {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let findings = match &self.id {
            Some(id) => {
                let (queue, view) = show::find(context, &self.queue, id).await?;
                let around = Surroundings::of(context, &*queue, &self.queue).await?;
                let mut findings = one::findings(&view, queue.settings(), &around);
                if let Some(node) = &around.node {
                    node.explain_task(&view, &around, &mut findings).await?;
                }
                findings
            }
            None => {
                let queue = context.open(&self.queue).await?;
                let around = Surroundings::of(context, &*queue, &self.queue).await?;
                let stats = queue.stats(Detail::Counts).await?;
                let groups = PendingGroups::of(&*queue).await?;
                let mut findings = around.findings(&stats, &groups);
                findings.extend(groups.findings(&stats, &around));
                findings.extend(around.failures(&stats));
                if let Some(node) = &around.node {
                    node.explain_queue(&mut findings).await?;
                }
                findings
            }
        };
        for finding in &findings {
            if context.json {
                output::json_line(finding)?;
            } else {
                output::line(&output::printable(&finding.text))?;
            }
        }
        Ok(Answer::Yes)
    }
}

impl Surroundings {
    async fn of(context: &Context, queue: &dyn Queue, name: &str) -> Result<Self> {
        let (paused, workers) = (queue.paused().await?, queue.workers().await?);
        let (name, now, node) =
            (output::shell(name), queue.now().await, Node::of(context, name).await?);
        Ok(Self { name, paused, workers, now, node })
    }

    fn alive(&self) -> impl Iterator<Item = &WorkerRecord> {
        self.workers.iter().filter(|worker| Life::of(worker, self.now) == Life::Alive)
    }

    /// The pause, if there is one.
    fn pause(&self) -> Option<Finding> {
        let paused = self.paused.as_ref()?;
        let mut text = "The queue is paused".to_owned();
        if let Some(at) = paused.at {
            text += &format!(" since {} ({})", output::time(at), output::ago(at, self.now));
        }
        if let Some(by) = &paused.by {
            text += &format!(" by {by}");
        }
        if let Some(reason) = &paused.reason {
            text += &format!(": {reason}");
        }
        text += &format!(". Nothing is handed out until `dfq resume {}`.", self.name);
        Some(Finding::new("paused", text))
    }

    /// What is wrong with the workers, or that nothing is.
    fn about_workers(&self) -> Finding {
        let alive: Vec<_> = self.alive().collect();
        let number = |life| {
            let of = self.workers.iter().filter(|worker| Life::of(worker, self.now) == life);
            of.count() as u64
        };
        let start = format!("`dfq work {} -- COMMAND` starts one", self.name);
        if !alive.is_empty() {
            let running: usize = alive.iter().map(|worker| worker.running).sum();
            let room: usize = alive.iter().map(|worker| worker.concurrency).sum();
            let alive = alive.len() as u64;
            let verb = if alive == 1 { "is" } else { "are" };
            let who = output::count(alive, "worker");
            let busy = if running >= room && room > 0 { ": all busy" } else { "" };
            let text = format!("{who} {verb} alive, with {running} of {room} slots in use{busy}.");
            return Finding::new("workers", text).count(alive);
        }
        let last = self.workers.iter().filter(|worker| worker.stopped_at.is_none());
        let last = last.max_by_key(|worker| worker.seen_at);
        let text = match (number(Life::Silent), number(Life::Stopped), last) {
            (0, 0, _) => format!("No worker has been seen here; {start}."),
            (0, stopped, _) => {
                format!("No worker is alive: {} stopped in good order; {start}.", stopped)
            }
            (silent, _, Some(last)) => format!(
                "No worker is alive: {silent} went silent, the last ({}) was seen {}; {start}.",
                last.worker_id,
                seen(last, self.now)
            ),
            (silent, _, None) => format!("No worker is alive: {silent} went silent; {start}."),
        };
        Finding::new("workers", text).count(0)
    }

    fn findings(&self, stats: &Stats, groups: &PendingGroups) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.pause().into_iter().collect();
        if groups.is_empty() && stats.scheduled == 0 {
            let finished = stats.completed + stats.failed;
            let text = match finished {
                0 => format!("There are no tasks; `dfq push {}` adds some.", self.name),
                _ => format!(
                    "Nothing is left to do: {} completed, {} failed.",
                    output::thousands(stats.completed),
                    output::thousands(stats.failed)
                ),
            };
            findings.push(Finding::new("empty", text).count(finished));
        } else {
            findings.push(self.about_workers());
        }
        findings
    }

    fn failures(&self, stats: &Stats) -> Option<Finding> {
        if stats.failed == 0 {
            return None;
        }
        let failed = output::count(stats.failed, "task");
        let text = format!("{failed} failed; `dfq failed {} --group` says why.", self.name);
        Some(Finding::new("failed", text).count(stats.failed))
    }

    /// A worker, and whether it can be expected to go on.
    fn describe(&self, worker_id: &str) -> String {
        match self.workers.iter().find(|worker| worker.worker_id == worker_id) {
            None if self.node.is_some() => {
                format!(
                    "{worker_id} (which keeps no record here; perhaps it works on another node)"
                )
            }
            None => format!("{worker_id} (which keeps no record, as scripts with `dfq poll`)"),
            Some(worker) => match Life::of(worker, self.now) {
                Life::Alive => format!("{worker_id} (alive, seen {})", seen(worker, self.now)),
                Life::Silent => {
                    format!("{worker_id} (silent, last seen {})", seen(worker, self.now))
                }
                Life::Stopped => format!("{worker_id} (stopped)"),
            },
        }
    }
}
