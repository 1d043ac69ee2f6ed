//! Why one task does not run.

use dfq::Settings;
use dfq::queue::{TaskState, TaskView};

use super::{Finding, Surroundings};
use crate::commands::show::failures;
use crate::commands::workers::Life;
use crate::output;
use crate::select::last_error;

pub(super) fn findings(
    view: &TaskView,
    settings: &Settings,
    around: &Surroundings,
) -> Vec<Finding> {
    let id = view.key.id().to_string();
    let mut findings = vec![state(view, around).ids(std::slice::from_ref(&id))];
    let claimable = matches!(view.state, TaskState::Ready | TaskState::Stale { .. });
    let waits = matches!(view.state, TaskState::Backoff { .. } | TaskState::Scheduled { .. });
    if claimable || waits {
        findings.extend(around.pause());
    }
    // Idle workers are the answer only to a task that nothing else keeps.
    if claimable || (waits && around.alive().next().is_none()) {
        findings.push(around.about_workers());
    }
    if claimable {
        let schema = view.payload.as_ref().and_then(|p| p.integer_member("schema_version"));
        if let Some(schema) = schema.filter(|schema| *schema != 1) {
            let text = format!(
                "It has schema_version {schema}: workers with --schema may leave it alone."
            );
            findings.push(Finding::new("schema", text));
        }
    }
    if !matches!(view.state, TaskState::Completed | TaskState::Failed) {
        findings.extend(attempts(view, settings));
    }
    findings
}

fn state(view: &TaskView, around: &Surroundings) -> Finding {
    let (id, now, name) = (view.key.id(), around.now, &around.name);
    let typed = output::shell(id.as_str());
    let say = |text: String| Finding::new(view.state.name(), text);
    match &view.state {
        TaskState::Ready if around.node.is_some() => say(format!("{id} is ready.")),
        TaskState::Ready => say(format!("{id} is ready: the next worker that polls may take it.")),
        TaskState::Claimed => say(format!("{id} has a lease.")),
        TaskState::Leased { worker_id, until } => {
            let holder = around.describe(worker_id);
            let ends = output::relative(*until, now);
            let mut text = format!("{id} is leased by {holder}; the lease ends {ends}.");
            let worker = around.workers.iter().find(|worker| worker.worker_id == *worker_id);
            if worker.map(|worker| Life::of(worker, now)) != Some(Life::Alive) {
                text += &format!(
                    " Unless renewed, another worker takes over then; `dfq unlock {name} {typed}` allows it now."
                );
            }
            say(text).until(Some(*until)).worker(worker_id)
        }
        TaskState::Stale { worker_id } => {
            let holder = around.describe(worker_id);
            say(format!(
                "{id} is stale: {holder} let its lease run out. Whoever polls next takes over."
            ))
            .worker(worker_id)
        }
        TaskState::Backoff { until } => {
            let when = output::relative(*until, now);
            say(format!(
                "{id} is in backoff: its next try is {when}; `dfq unlock {name} {typed}` allows it now."
            ))
            .until(Some(*until))
        }
        TaskState::Scheduled { due } if *due <= now => {
            say(format!("{id} is due: the next poll hands it out.")).until(Some(*due))
        }
        TaskState::Scheduled { due } => {
            say(format!("{id} is scheduled: it is due {}.", output::relative(*due, now)))
                .until(Some(*due))
        }
        TaskState::Completed => {
            let by = view.attempts.last().map(|last| format!(" by {}", last.worker_id));
            let when = view.finished_at.map(|at| format!(" {}", output::ago(at, now)));
            let (by, when) = (by.unwrap_or_default(), when.unwrap_or_default());
            say(format!("{id} was completed{when}{by}."))
        }
        TaskState::Failed => {
            let when = view.finished_at.map(|at| format!(" {}", output::ago(at, now)));
            let why = last_error(view).map(|why| format!(": {why}"));
            let (when, why) = (when.unwrap_or_default(), why.unwrap_or_default());
            let tries = output::count(view.attempts.len() as u64, "attempt");
            say(format!(
                "{id} failed{when} after {tries}{why}. `dfq retry {name} {typed}` starts it again."
            ))
        }
        TaskState::Damaged => {
            let why = view.reason.as_deref().unwrap_or("its file cannot be read");
            say(format!(
                "{id} is damaged ({why}); the next worker sets it aside among the failed ones."
            ))
        }
    }
}

/// How the attempts so far went, and how many are left.
fn attempts(view: &TaskView, settings: &Settings) -> Option<Finding> {
    let failures = failures(view);
    if failures == 0 {
        return None;
    }
    let limit = view.meta.max_attempts.unwrap_or(settings.max_attempts);
    let left = match limit.saturating_sub(failures) {
        0 => "none is left".to_owned(),
        1 => "the next failure ends it".to_owned(),
        left => format!("{left} more end it"),
    };
    let why =
        last_error(view).map_or_else(String::new, |error| format!(" The last error: {error}"));
    let text = format!("It failed {failures} of {limit} times, {left}.{why}");
    Some(Finding::new("failures", text).count(u64::from(failures)))
}
