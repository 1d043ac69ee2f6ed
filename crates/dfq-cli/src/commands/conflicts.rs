//! `dfq conflicts`: tasks that lost against another of the same id.

use anyhow::Result;
use clap::Args;
use dfq::address::Address;
use dfq::synced::{self, Conflict};
use dfq::{NewTask, OpenOptions, Pushed, TaskId};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::context::Context;
use crate::exit::{Answer, invalid, not_found, unsupported};
use crate::output::{self, Table, count};

/// Show tasks that lost against another of the same id
///
/// If one id is pushed on two machines with different payloads before they are merged, one of the two is done, the same
/// everywhere. The other is kept here. --push gives it an id of its own and pushes it; --drop removes it.
#[derive(Args, Debug)]
pub(crate) struct Conflicts {
    /// The queue
    queue: String,
    /// Only these ids
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Push them again, each as a task of its own
    #[arg(long, conflicts_with = "drop")]
    push: bool,
    /// Remove them
    #[arg(long)]
    drop: bool,
}

#[derive(Serialize)]
struct ConflictJson {
    id: String,
    generation: u32,
    mark: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Box<RawValue>>,
    /// The text of what cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_text: Option<String>,
}

impl Conflicts {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let target = context.target(&self.queue)?;
        if !matches!(target.address, Address::Directory(_)) {
            return Err(unsupported(format!(
                "{} keeps no conflicts: they are in the folders of the nodes that met them",
                target.address
            )));
        }
        let options = || context.access(&target, OpenOptions::existing());
        let mut found = synced::conflicts(&target.address, options()).await?;
        if !self.ids.is_empty() {
            found.retain(|it| self.ids.iter().any(|id| id == it.key.id().as_str()));
            if found.is_empty() {
                return Err(not_found(format!(
                    "no conflict of '{}' is kept",
                    self.ids.join("', '")
                )));
            }
        }
        if self.push {
            return self.push(context, &found).await;
        }
        if self.drop {
            for conflict in &found {
                synced::drop_conflict(&target.address, options(), conflict).await?;
            }
            return self.end(context, found.len(), "removed");
        }
        show(context, &found)
    }

    /// Pushes what lost, each under an id made of its own and its mark. So one that was cut short pushes none twice.
    async fn push(&self, context: &Context, found: &[Conflict]) -> Result<Answer> {
        let target = context.target(&self.queue)?;
        let queue = context.open(&self.queue).await?;
        let (mut pushed, mut unreadable) = (0, 0);
        for conflict in found {
            let Some(payload) = conflict.payload.clone() else {
                unreadable += 1;
                continue;
            };
            let id = own_id(conflict)?;
            let task = NewTask::new(payload).id(id.clone());
            match queue.push(vec![task]).await.remove(0)? {
                Pushed::Created(_) => pushed += 1,
                there if !context.quiet => {
                    crate::output::note!("dfq: '{id}' is there already ({there:?})");
                }
                _ => {}
            }
            let options = context.access(&target, OpenOptions::existing());
            synced::drop_conflict(&target.address, options, conflict).await?;
        }
        if unreadable > 0 {
            return Err(invalid(format!(
                "{} cannot be read, and stay; look at them with `dfq conflicts {} --json`",
                count(unreadable, "conflict"),
                output::shell(&self.queue)
            )));
        }
        self.end(context, pushed, "pushed")
    }

    fn end(&self, context: &Context, number: usize, what: &str) -> Result<Answer> {
        if !context.quiet {
            crate::output::note!("dfq: {what} {}", count(number as u64, "task"));
        }
        Ok(Answer::Yes)
    }
}

/// An id for one that lost.
fn own_id(conflict: &Conflict) -> Result<TaskId> {
    let id = format!("{}.{}", conflict.key.id(), conflict.mark);
    match TaskId::new(&id) {
        Ok(id) => Ok(id),
        // It would be too long: the mark alone tells it from others.
        Err(_) => Ok(TaskId::new(format!("conflict.{}", conflict.mark))?),
    }
}

fn show(context: &Context, found: &[Conflict]) -> Result<Answer> {
    if context.json {
        for Conflict { key, mark, payload, bytes } in found {
            let damaged = || String::from_utf8_lossy(bytes).into_owned();
            output::json_line(&ConflictJson {
                id: key.id().to_string(),
                generation: key.generation(),
                mark: mark.clone(),
                task: payload.as_ref().and_then(output::raw),
                damaged_text: payload.is_none().then(damaged),
            })?;
        }
        return Ok(Answer::yes_if(found.is_empty()));
    }
    if found.is_empty() {
        if !context.quiet {
            crate::output::note!("dfq: no task has lost against another");
        }
        return Ok(Answer::Yes);
    }
    let mut table = Table::new(&["ID", "LIFE", "MARK", "TASK"]);
    for Conflict { key, mark, payload, .. } in found {
        let task = payload.as_ref().map_or("(cannot be read)", |payload| payload.as_json());
        table.row([
            output::id(key.id().as_str()),
            key.generation().to_string(),
            mark.clone(),
            output::printable(task),
        ]);
    }
    table.print()?;
    Ok(Answer::No)
}
