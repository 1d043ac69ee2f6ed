//! `dfq failed`: what went wrong, task by task or by kind of error.

mod groups;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use anyhow::Result;
use clap::Args;
use dfq::Queue;
use dfq::queue::TaskView;
use jiff::Timestamp;
use serde::Serialize;

use crate::commands::ls::attempts;
use crate::context::Context;
use crate::exit::Answer;
use crate::output::{self, Rows, TaskJson};
use crate::select::{Condition, Selection, StateName, last_error};
use groups::{Group, Groups};

/// Show failed tasks and why, the newest first
///
/// With --group, the errors: alike ones are counted together, whatever their numbers, ids and
/// addresses, the most frequent first. `dfq retry` starts failed tasks again.
#[derive(Args, Debug)]
pub(crate) struct Failed {
    /// The queue
    queue: String,
    /// Count alike errors
    #[arg(long)]
    group: bool,
    /// Only tasks with field=value, field!=value or field~part; field is a member of the task as
    /// `a.b`, or id, error or worker. May be given more than once: all must hold
    #[arg(long = "where", value_name = "CONDITION")]
    conditions: Vec<Condition>,
    /// At most so many tasks or groups; `dfq ls --state failed` lists all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
}

/// A failed task, ordered by when it failed.
struct Failure(TaskView);

impl Failure {
    fn rank(&self) -> (Option<Timestamp>, &str) {
        (self.0.finished_at, self.0.key.id().as_str())
    }
}

impl Ord for Failure {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Failure {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Failure {}

/// The newest failures of a queue, newest first, and how many there are in all.
pub(super) async fn newest(
    queue: &dyn Queue,
    conditions: &[Condition],
    limit: usize,
) -> Result<(Vec<TaskView>, u64)> {
    let mut kept = BinaryHeap::new();
    let mut all = 0;
    let each = |view: TaskView| {
        all += 1;
        kept.push(Reverse(Failure(view)));
        if kept.len() > limit {
            kept.pop();
        }
        Ok(ControlFlow::Continue(()))
    };
    selection(conditions).visit(queue, each).await?;
    let sorted = kept.into_sorted_vec().into_iter().map(|Reverse(failure)| failure.0);
    Ok((sorted.collect(), all))
}

fn selection(conditions: &[Condition]) -> Selection {
    Selection {
        state: vec![StateName::Failed],
        conditions: conditions.to_vec(),
        ..Selection::default()
    }
}

#[derive(Serialize)]
struct GroupJson<'a> {
    error: &'a str,
    count: u64,
    example: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_at: Option<String>,
}

impl Failed {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        if self.group {
            return self.groups(context, &*queue).await;
        }
        let (views, all) = newest(&*queue, &self.conditions, self.limit).await?;
        if context.json {
            views.iter().try_for_each(|view| output::json_line(&TaskJson::new(view)))?;
        } else {
            let now = queue.now().await;
            let mut rows = Rows::new(&["ID", "ATTEMPTS", "FAILED", "ERROR"]);
            for view in &views {
                rows.row([
                    view.key.id().to_string(),
                    attempts(view).to_string(),
                    view.finished_at.map_or("-".to_owned(), |at| output::ago(at, now)),
                    last_error(view).unwrap_or_default(),
                ])?;
            }
            rows.end()?;
        }
        self.tell_rest(context, views.len(), all, "failed task");
        Ok(Answer::Yes)
    }

    async fn groups(&self, context: &Context, queue: &dyn Queue) -> Result<Answer> {
        let mut groups = Groups::default();
        let each = |view: TaskView| {
            let error = last_error(&view).unwrap_or_default();
            groups.add(&error, view.key.id(), view.finished_at);
            Ok(ControlFlow::Continue(()))
        };
        selection(&self.conditions).visit(queue, each).await?;
        let groups = groups.most_frequent();
        let all = groups.len();
        let shown = &groups[..all.min(self.limit)];
        if context.json {
            for Group { error, count, example, last_at } in shown {
                let (last_at, example) = (last_at.map(output::time), example.as_str());
                output::json_line(&GroupJson { error, count: *count, example, last_at })?;
            }
        } else {
            let now = queue.now().await;
            let mut rows = Rows::new(&["TASKS", "LAST", "EXAMPLE", "ERROR"]);
            for group in shown {
                rows.row([
                    output::thousands(group.count),
                    group.last_at.map_or("-".to_owned(), |at| output::ago(at, now)),
                    group.example.to_string(),
                    group.error.clone(),
                ])?;
            }
            rows.end()?;
        }
        self.tell_rest(context, shown.len(), all as u64, "kind of error");
        Ok(Answer::Yes)
    }

    fn tell_rest(&self, context: &Context, shown: usize, all: u64, noun: &str) {
        if context.quiet {
            return;
        }
        if all == 0 {
            let which = if self.conditions.is_empty() { "" } else { " such" };
            crate::output::note!("dfq: there is no{which} failed task");
        } else if (shown as u64) < all {
            let noun = if noun == "kind of error" { "kinds of error" } else { "failed tasks" };
            let all = output::thousands(all);
            crate::output::note!(
                "dfq: {} of {all} {noun} are shown (--limit)",
                output::thousands(shown as u64)
            );
        }
    }
}
