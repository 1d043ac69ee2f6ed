//! `dfq show`: all that is known of one task.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use dfq::model::{AttemptSummary, LeaseState};
use dfq::queue::{TaskState, TaskView};
use dfq::{Settings, TaskId};
use jiff::Timestamp;

use crate::context::Context;
use crate::exit::{Answer, invalid, not_found};
use crate::output::{self, TaskJson};

/// Show one task: what is to be done, where it stands, and every attempt
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The queue
    queue: String,
    /// The task's id
    #[arg(value_name = "ID")]
    id: String,
}

impl Show {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let (queue, view) = find(context, &self.queue, &self.id).await?;
        if context.json {
            output::json_line(&TaskJson::new(&view))?;
            return Ok(Answer::Yes);
        }
        let mut out = output::sink();
        for (name, text) in describe(&view, queue.settings(), queue.now().await) {
            writeln!(out, "{name:<10} {}", output::printable(&text))?;
        }
        if let Some(payload) = &view.payload {
            writeln!(out)?;
            // As it was pushed, line by line: formatting it anew could change its numbers.
            for line in payload.as_json().lines() {
                writeln!(out, "{}", output::printable(&line.replace('\t', "    ")))?;
            }
        }
        out.flush()?;
        Ok(Answer::Yes)
    }
}

/// The task with this id, or an error that says what to do.
pub(super) async fn find(
    context: &Context,
    name: &str,
    id: &str,
) -> Result<(std::sync::Arc<dyn dfq::Queue>, TaskView)> {
    let id = TaskId::new(id).map_err(|error| invalid(error.to_string()))?;
    let queue = context.open(name).await?;
    let Some(view) = queue.get(id.clone()).await? else {
        let id = output::printable(id.as_str());
        let hint = format!(
            "`dfq ls {} --where 'id~PART'` finds ids by a part of them",
            output::shell(name)
        );
        return Err(not_found(format!("there is no task '{id}' in {}; {hint}", queue.address())));
    };
    Ok((queue, view))
}

fn describe(view: &TaskView, settings: &Settings, now: Timestamp) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut say = |name: &str, text: String| lines.push((name.to_owned(), text));
    let at = |at: Timestamp| format!("{} ({})", output::time(at), output::ago(at, now));
    say("id", view.key.id().to_string());
    say("state", output::state(&view.state, now));
    if view.key.generation() > 1 {
        say("life", view.key.generation().to_string());
    }
    if let Some(reason) = &view.reason {
        say("reason", reason.clone());
    }
    if let Some(created) = view.meta.created_at {
        say("pushed", at(created));
    }
    if let Some(due) = view.meta.not_before {
        say("due", format!("{} ({})", output::time(due), output::relative(due, now)));
    }
    if let Some(finished) = view.finished_at {
        say("finished", at(finished));
    }
    let limit = view.meta.max_attempts.unwrap_or(settings.max_attempts);
    let failures = failures(view);
    if failures > 0 || view.meta.max_attempts.is_some() {
        say("failures", format!("{failures} of {limit}"));
    }
    let last = view.attempts.len();
    for (number, attempt) in view.attempts.iter().enumerate() {
        let is_last = number + 1 == last;
        say(&format!("attempt {}", attempt.attempt), timeline(attempt, view, is_last, now));
    }
    lines
}

/// How many attempts count towards the limit.
pub(super) fn failures(view: &TaskView) -> u32 {
    let failed = |attempt: &&AttemptSummary| attempt.state == Some(LeaseState::Failed);
    u32::try_from(view.attempts.iter().filter(failed).count()).unwrap_or(u32::MAX)
}

/// One attempt in a line: who, when, how it went.
fn timeline(attempt: &AttemptSummary, view: &TaskView, is_last: bool, now: Timestamp) -> String {
    let started = attempt.created_at;
    let mut text = format!(
        "{} ({}) by {}",
        output::time(started),
        output::ago(started, now),
        attempt.worker_id
    );
    if attempt.heartbeat_at > started {
        text += &format!(", last seen {}", output::ago(attempt.heartbeat_at, now));
    }
    let end = match (attempt.state, &view.state) {
        (Some(state), _) => output::lease_state(state),
        (None, TaskState::Completed) if is_last => "completed",
        (None, TaskState::Failed) if is_last => "ended with the task",
        (None, TaskState::Leased { .. }) if is_last => "goes on",
        (None, _) => "lost: its lease ran out or was taken away",
    };
    text += &format!(", {end}");
    if let Some(error) = &attempt.error {
        text += &format!(": {error}");
    }
    text
}
