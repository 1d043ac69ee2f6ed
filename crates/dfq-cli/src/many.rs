//! What touches many tasks (`retry`, `cancel`, `unlock`): find them, say how many, ask, do it in
//! batches, tell what was done and what was not.
//!
//! Tasks given by id are done without a question, and one that cannot be done is trouble. Tasks found
//! by a search are counted and asked about first; one that finished between the count and the deed is
//! no trouble, but is told. Only ids are kept in memory. Every task is done as a whole or not at all, so
//! that an interruption leaves nothing half-done.

use std::collections::BTreeSet;
use std::io::BufRead;

use anyhow::Result;
use dfq::queue::{ListCursor, Place, TaskState, TaskView};
use dfq::{ErrorKind, Queue, TaskId};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::{Careful, Which};
use crate::context::{Context, confirm};
use crate::exit::Answer;
use crate::{cost, output, select};

/// How many tasks are done in one go.
const BATCH: usize = 500;

/// How many tasks may be looked at before a terminal is shown that something happens.
const PATIENCE: u64 = 5_000;

/// How many sentences about single tasks a person will read.
pub(crate) const MAX_SENTENCES: u64 = 10;

/// The ids as typed; `-` alone means one on each line of stdin. Each is meant once.
pub(crate) fn named(ids: &[String]) -> Result<Vec<TaskId>> {
    let read: Vec<String> = match ids {
        [dash] if dash == "-" => {
            let lines = std::io::stdin().lock().lines();
            let lines: Vec<String> = lines.collect::<std::io::Result<_>>()?;
            lines.into_iter().filter(|line| !line.is_empty()).collect()
        }
        _ => ids.to_vec(),
    };
    let mut seen = BTreeSet::new();
    let mut ids = select::task_ids(&read)?;
    ids.retain(|id| seen.insert(id.clone()));
    Ok(ids)
}

/// The tasks that were named, or those in these places that fit all conditions.
pub(crate) async fn meant(
    context: &Context,
    which: &Which,
    named: Vec<TaskId>,
    queue: &dyn Queue,
    places: &[Place],
    limit: Option<usize>,
) -> Result<Vec<TaskId>> {
    if !which.ids.is_empty() {
        return Ok(named);
    }
    let fits = |view: &TaskView| which.conditions.iter().all(|condition| condition.matches(view));
    found(context, queue, places, limit, fits).await
}

/// The ids of those tasks in these places that match, at most so many.
pub(crate) async fn found(
    context: &Context,
    queue: &dyn Queue,
    places: &[Place],
    limit: Option<usize>,
    matches: impl Fn(&TaskView) -> bool,
) -> Result<Vec<TaskId>> {
    cost::say_first_of(context, queue, places).await?;
    let limit = limit.unwrap_or(usize::MAX);
    let mut ids = Vec::new();
    let mut search = SearchProgress::default();
    // A scheduled task may come due while we look, and then stands in two places.
    let mut scheduled = BTreeSet::new();
    for place in places {
        let mut cursor = Some(ListCursor::at(*place));
        while let Some(from) = cursor.take().filter(|from| from.place() == *place) {
            let page = queue.list(Some(from)).await?;
            search.add(page.tasks.len(), ids.len());
            for view in page.tasks.iter().filter(|view| matches(view)) {
                if ids.len() >= limit {
                    return Ok(ids);
                }
                let id = view.key.id();
                if scheduled.contains(id) || !is_last_life(queue, view).await? {
                    continue;
                }
                if *place == Place::Scheduled {
                    scheduled.insert(id.clone());
                }
                ids.push(id.clone());
            }
            cursor = page.next;
        }
    }
    Ok(ids)
}

/// A failed record stays when the task is tried anew: it then tells of an earlier life.
async fn is_last_life(queue: &dyn Queue, view: &TaskView) -> Result<bool> {
    if view.state != TaskState::Failed {
        return Ok(true);
    }
    let last = queue.get(view.key.id().clone()).await?;
    Ok(last.is_some_and(|last| last.key == view.key))
}

/// Shows on a terminal that a long search goes on.
#[derive(Default)]
struct SearchProgress {
    tasks: u64,
    bar: Option<ProgressBar>,
}

impl SearchProgress {
    fn add(&mut self, tasks: usize, found: usize) {
        self.tasks += tasks as u64;
        if self.tasks > PATIENCE {
            let bar = self.bar.get_or_insert_with(ProgressBar::new_spinner);
            bar.set_message(format!("looked at {} tasks, {found} found", self.tasks));
            bar.tick();
        }
    }
}

impl Drop for SearchProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How a command speaks.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    /// What is done: `retry`.
    pub(crate) verb: &'static str,
    /// What has been done: `retried`.
    pub(crate) done: &'static str,
    /// What is said when a search finds no task.
    pub(crate) nothing: &'static str,
    /// What follows the number of tasks in the question.
    pub(crate) question: &'static str,
}

/// What became of one task.
#[derive(Serialize)]
pub(crate) struct Told {
    /// In one word: that of [`Words::done`], or one that [`spared`] knows.
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worker_id: Option<String>,
    /// The same for people.
    #[serde(skip)]
    pub(crate) line: String,
}

#[derive(Serialize)]
struct ToldJson<'a> {
    id: &'a str,
    #[serde(flatten)]
    told: &'a Told,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// One command at work.
pub(crate) struct Job<'a> {
    pub(crate) context: &'a Context,
    pub(crate) queue: &'a dyn Queue,
    pub(crate) words: Words,
    pub(crate) careful: Careful,
    /// The tasks were given by id.
    pub(crate) named: bool,
}

#[derive(Default)]
struct Tally {
    done: u64,
    /// Nothing had to be done, and why.
    spared: Vec<(&'static str, u64)>,
    refused: u64,
    first: Option<ErrorKind>,
}

impl Job<'_> {
    /// Does it: `check_state` says whether it could be done to a task as it is, `act` does it to a batch.
    pub(crate) async fn run(
        &self,
        ids: Vec<TaskId>,
        check_state: impl Fn(&TaskView) -> dfq::Result<()>,
        act: impl AsyncFn(Vec<TaskId>) -> Vec<dfq::Result<Told>>,
    ) -> Result<Answer> {
        if ids.is_empty() {
            self.say(self.words.nothing);
            return Ok(Answer::Yes);
        }
        if self.careful.dry_run {
            return self.rehearse(ids, check_state).await;
        }
        if !self.named {
            let (verb, number) =
                (capital(self.words.verb), output::count(ids.len() as u64, "task"));
            let question = format!("{verb} {number}{}?", self.words.question);
            if !confirm(self.careful.yes, &question)? {
                self.say("nothing was changed");
                return Ok(Answer::No);
            }
        }
        self.carry_out(ids, act).await
    }

    /// `--dry-run`: the ids that would be touched, and no more.
    async fn rehearse(
        &self,
        ids: Vec<TaskId>,
        check_state: impl Fn(&TaskView) -> dfq::Result<()>,
    ) -> Result<Answer> {
        let mut tally = Tally::default();
        for id in ids {
            let possible = match self.named {
                false => Ok(()), // found just now, in the right state
                true => match self.queue.get(id.clone()).await? {
                    None => {
                        let message = format!("there is no task '{id}'");
                        Err(dfq::Error::new(ErrorKind::NotFound, message))
                    }
                    Some(view) => check_state(&view),
                },
            };
            let told = possible.map(|()| Told {
                status: "would",
                generation: None,
                worker_id: None,
                line: output::id(id.as_str()),
            });
            self.tell(&id, told, true, &mut tally)?;
        }
        self.say_skipped(&tally);
        self.say(&format!("would {} {}", self.words.verb, output::count(tally.done, "task")));
        Ok(tally.first.map_or(Answer::Yes, Answer::Told))
    }

    async fn carry_out(
        &self,
        ids: Vec<TaskId>,
        act: impl AsyncFn(Vec<TaskId>) -> Vec<dfq::Result<Told>>,
    ) -> Result<Answer> {
        let mut tally = Tally::default();
        let mut untried = ids.len();
        let bar = (ids.len() > BATCH && !self.context.quiet).then(|| progress(ids.len() as u64));
        for batch in ids.chunks(BATCH) {
            let answers = act(batch.to_vec()).await;
            untried -= batch.len();
            let hopeless = answers.iter().all(|answer| {
                let kind = answer.as_ref().err().map(dfq::Error::kind);
                matches!(kind, Some(ErrorKind::Full | ErrorKind::Denied | ErrorKind::Unavailable))
            });
            for (id, answer) in batch.iter().zip(answers) {
                self.tell(id, answer, self.named, &mut tally)?;
            }
            if let Some(bar) = &bar {
                bar.inc(batch.len() as u64);
            }
            if hopeless {
                break; // the store is in trouble, not the tasks
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        self.say_skipped(&tally);
        if !(self.named && ids.len() == 1) {
            self.say(&self.summary(&tally, untried as u64));
        }
        Ok(tally.first.map_or(Answer::Yes, Answer::Told))
    }

    /// Counts what became of a task, and says it: to programs always, to people if they gave its id or
    /// something went wrong.
    fn tell(
        &self,
        id: &TaskId,
        answer: dfq::Result<Told>,
        aloud: bool,
        tally: &mut Tally,
    ) -> Result<()> {
        let (told, error) = match answer {
            Ok(told) => {
                if told.status == self.words.done || told.status == "would" {
                    tally.done += 1;
                } else {
                    tally.spare(told.status);
                }
                (told, None)
            }
            Err(error) => {
                let over =
                    matches!(error.kind(), ErrorKind::AlreadyCompleted | ErrorKind::NotFound);
                let status = if over && !self.named { "finished" } else { "refused" };
                let error = if status == "refused" {
                    tally.refused += 1;
                    tally.first.get_or_insert(error.kind());
                    if tally.refused <= MAX_SENTENCES && !self.context.json {
                        crate::exit::report(&error.clone().into());
                    }
                    Some(error.to_string())
                } else {
                    tally.spare(status);
                    None
                };
                (Told { status, generation: None, worker_id: None, line: String::new() }, error)
            }
        };
        if self.context.json {
            return output::json_line(&ToldJson { id: id.as_str(), told: &told, error });
        }
        if aloud && !told.line.is_empty() && !self.context.quiet {
            output::line(&told.line)?;
        }
        Ok(())
    }

    fn say_skipped(&self, tally: &Tally) {
        if tally.refused > MAX_SENTENCES {
            let more = output::thousands(tally.refused - MAX_SENTENCES);
            self.say(&format!("and {more} more of this kind; --json tells of each"));
        }
    }

    fn summary(&self, tally: &Tally, untried: u64) -> String {
        let mut parts = vec![format!("{} {}", output::count(tally.done, "task"), self.words.done)];
        for (status, number) in &tally.spared {
            parts.push(format!("{} {}", output::thousands(*number), spared(status)));
        }
        if tally.refused > 0 {
            parts.push(format!("{} not", output::thousands(tally.refused)));
        }
        if untried > 0 {
            parts.push(format!("{} not tried any more", output::thousands(untried)));
        }
        parts.join(", ")
    }

    fn say(&self, sentence: &str) {
        if !self.context.quiet && !self.context.json {
            crate::output::note!("dfq: {sentence}");
        }
    }
}

impl Tally {
    fn spare(&mut self, status: &'static str) {
        match self.spared.iter_mut().find(|(known, _)| *known == status) {
            Some((_, number)) => *number += 1,
            None => self.spared.push((status, 1)),
        }
    }
}

/// Why nothing had to be done to a task, in a sentence.
fn spared(status: &str) -> &str {
    match status {
        "pending" => "in the queue already",
        "finished" => "finished meanwhile",
        "free" => "free already",
        other => other,
    }
}

/// A bar on a terminal; nothing elsewhere.
pub(crate) fn progress(tasks: u64) -> ProgressBar {
    let bar = ProgressBar::new(tasks);
    let style = "{bar:30} {human_pos}/{human_len}, {per_sec}, {eta} left";
    bar.set_style(
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
