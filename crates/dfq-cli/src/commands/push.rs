//! `dfq push`: add tasks.
//!
//! One rule for input that turns out to be bad half-way: what came before the bad line is pushed,
//! nothing after it is, and the message says so. (Input may be endless, so it cannot be read through
//! first.) The same push again does no harm where tasks have ids: those in the queue are left alone.
//!
//! What is said to be pushed was answered so by the store. A push that is interrupted waits for the answers to what
//! it has sent; interrupted once more, it leaves these out.

pub(crate) mod interrupt;
pub(crate) mod source;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::{NewTask, Outcome, Pushed, TaskId};
use serde::Serialize;

use crate::args::duration;
use crate::context::Context;
use crate::exit::{Answer, invalid};
use crate::output;
use interrupt::{Interrupted, Interrupts};
use source::{Input, Source};

/// Add tasks, and print their ids
///
/// A task is any JSON, or one object made of key=value (a string) and key:=value (JSON). Without
/// TASK, --jsonl and --lines, JSON lines are read from stdin if that is not a terminal.
///
/// A task's id is --id, --id-field or --id-hash, or else its own string member "id", or else a fresh
/// UUID. An id that is in the queue, or has been through it, is not pushed again; that is no error.
///
/// If a line is bad, the lines before it are pushed and those after it are not. Interrupted (Ctrl-C), it waits for
/// what is on its way, and says how many were pushed; interrupted twice, it does not wait.
#[derive(Args, Debug)]
#[command(override_usage = "dfq push [OPTIONS] QUEUE [JSON… | key=value…]\n       \
    … | dfq push [OPTIONS] QUEUE [--jsonl - | --lines -]")]
pub(crate) struct Push {
    /// The queue; made if it is not there
    queue: String,
    /// JSON, or key=value
    #[arg(value_name = "TASK", conflicts_with_all = ["jsonl", "lines"])]
    tasks: Vec<String>,
    /// A task of each line of JSON in this file; `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    jsonl: Option<PathBuf>,
    /// A task {"line": …} of each line in this file; `-` is stdin
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// The id, if there is one task only
    #[arg(long, value_name = "ID", conflicts_with_all = ["id_field", "id_hash", "jsonl", "lines"])]
    id: Option<String>,
    /// The id is this member of the task, a string or a whole number
    #[arg(long, value_name = "FIELD", conflicts_with = "id_hash")]
    id_field: Option<String>,
    /// The id is the SHA-256 of the task's JSON: the same task is pushed once
    #[arg(long)]
    id_hash: bool,
    /// Push ids that have finished anew
    #[arg(long)]
    again: bool,
    /// Hand the tasks out no earlier than after this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// How many failures end these tasks, instead of the queue's own limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: Option<u32>,
    /// Go on though `dfq doctor` found the store unsafe: tasks may be done twice
    #[arg(long)]
    allow_unsafe: bool,
}

#[derive(Default)]
struct Tally {
    created: u64,
    pending: u64,
    finished: u64,
}

impl Tally {
    fn total(&self) -> u64 {
        self.created + self.pending + self.finished
    }

    /// How far a push came that did not come to its end.
    fn so_far(&self) -> String {
        let there = match self.pending + self.finished {
            0 => String::new(),
            there => format!(", {} there already", output::thousands(there)),
        };
        format!("pushed so far: {}{there}", output::count(self.created, "task"))
    }
}

#[derive(Serialize)]
struct PushedJson<'a> {
    id: &'a str,
    status: &'static str,
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
}

impl Push {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let mut source = self.source()?;
        let mut tally = Tally::default();
        let mut queue = None;
        let mut interrupts = Interrupts::listen()?;
        loop {
            let (inputs, ended) = tokio::select! {
                biased;
                signal = interrupts.next() => return Ok(interrupted(signal, &tally, 0)),
                batch = source.next_batch() => batch,
            };
            let mut tasks = Vec::with_capacity(inputs.len());
            let mut bad = None;
            for input in inputs {
                match input.and_then(|input| self.task(&input)) {
                    Ok(task) => tasks.push(task),
                    Err(error) => {
                        bad = Some(error);
                        break;
                    }
                }
            }
            if !tasks.is_empty() {
                // Made only now: a queue must not appear because of bad input.
                let queue = match &queue {
                    Some(queue) => queue,
                    None => {
                        queue.insert(context.open_or_create(&self.queue, self.allow_unsafe).await?)
                    }
                };
                let under_way = tasks.len();
                match interrupts.let_finish(queue.push(tasks), under_way, "task").await {
                    Ok((answers, interrupt)) => {
                        self.count(context, answers, &mut tally)?;
                        if let Some(signal) = interrupt {
                            return Ok(interrupted(signal, &tally, 0));
                        }
                    }
                    Err(Interrupted(signal)) => {
                        return Ok(interrupted(signal, &tally, under_way));
                    }
                }
            }
            if let Some(error) = bad {
                return Err(explain_rest(error, &source, &tally));
            }
            if ended {
                break;
            }
        }
        self.summarize(context, &source, &tally);
        Ok(Answer::Yes)
    }

    fn source(&self) -> Result<Source> {
        if self.id.is_some() && self.tasks.len() > 1 && source::pairs(&self.tasks).is_none() {
            return Err(invalid("--id names one task, and there are several; use --id-field"));
        }
        Source::open(&self.tasks, self.jsonl.as_deref(), self.lines.as_deref())
    }

    fn task(&self, input: &Input) -> Result<NewTask> {
        let at_line = |error: dfq::Error| match input.line {
            Some(number) => anyhow::Error::from(error.context(format!("line {number}"))),
            None => error.into(),
        };
        let mut task = NewTask::from_json(&input.json).map_err(at_line)?;
        if let Some(id) = &self.id {
            task = task.id(TaskId::new(id.as_str()).map_err(at_line)?);
        } else if let Some(field) = &self.id_field {
            let id = id_in(&input.json, field).and_then(TaskId::new).map_err(at_line)?;
            task = task.id(id);
        } else if self.id_hash {
            let hash = dfq::Payload::from_json(&input.json).map_err(at_line)?.sha256();
            task = task.id(TaskId::new(hash).map_err(at_line)?);
        }
        // Found out now, so that nothing after it is pushed.
        task.chosen_id().map_err(at_line)?;
        if self.again {
            task = task.again();
        }
        if let Some(delay) = self.delay {
            task = task.delay(delay);
        }
        if let Some(max_attempts) = self.max_attempts {
            task = task.max_attempts(max_attempts);
        }
        Ok(task)
    }

    /// Counts what was answered, and says it.
    fn count(
        &self,
        context: &Context,
        answers: Vec<dfq::Result<Pushed>>,
        tally: &mut Tally,
    ) -> Result<()> {
        let mut trouble = None;
        for answer in answers {
            match answer {
                Ok(pushed) => match self.say(context, &pushed, tally) {
                    // Whoever reads the ids has seen enough; what is to be pushed is pushed.
                    Err(error) if crate::exit::is_broken_pipe(&error) => {}
                    said => said?,
                },
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        match trouble {
            None => Ok(()),
            Some(error) => {
                let message = format!("{error}; {}", tally.so_far());
                Err(dfq::Error::new(error.kind(), message).into())
            }
        }
    }

    fn say(&self, context: &Context, pushed: &Pushed, tally: &mut Tally) -> Result<()> {
        let (status, outcome) = match pushed {
            Pushed::Created(_) => ("created", None),
            Pushed::Pending(_) => ("pending", None),
            Pushed::Finished(_, Outcome::Completed) => ("finished", Some("completed")),
            Pushed::Finished(_, Outcome::Failed) => ("finished", Some("failed")),
        };
        match pushed {
            Pushed::Created(_) => tally.created += 1,
            Pushed::Pending(_) => tally.pending += 1,
            Pushed::Finished(..) => tally.finished += 1,
        }
        let key = pushed.key();
        if context.json {
            let (id, generation) = (key.id().as_str(), key.generation());
            output::json_line(&PushedJson { id, status, generation, outcome })
        } else if context.quiet {
            Ok(())
        } else {
            output::line(&output::id(key.id().as_str()))
        }
    }

    fn summarize(&self, context: &Context, source: &Source, tally: &Tally) {
        if context.quiet || context.json {
            return;
        }
        let Tally { created, pending, finished } = tally;
        if tally.total() == 0 {
            crate::output::note!("dfq: nothing to push");
        } else if pending + finished > 0 || source.is_stream() {
            let mut parts = vec![format!("{} pushed", output::count(*created, "task"))];
            if *pending > 0 {
                parts.push(format!("{} in the queue already", output::thousands(*pending)));
            }
            if *finished > 0 {
                let number = output::thousands(*finished);
                parts.push(format!("{number} finished before (--again pushes them anew)"));
            }
            crate::output::note!("dfq: {}", parts.join(", "));
        }
    }
}

/// Says how far it came, and of how many nothing is known.
fn interrupted(signal: u8, tally: &Tally, under_way: usize) -> Answer {
    let unknown = match under_way {
        0 => String::new(),
        some => format!("; {} on the way, perhaps pushed too", output::count(some as u64, "task")),
    };
    output::note!("dfq: interrupted; {}{unknown}", tally.so_far());
    Answer::Killed(signal)
}

/// What became of the input around a bad line.
fn explain_rest(error: anyhow::Error, source: &Source, tally: &Tally) -> anyhow::Error {
    if !source.is_stream() {
        return error;
    }
    let kind = error.downcast_ref::<dfq::Error>().map_or(dfq::ErrorKind::Unavailable, |e| e.kind());
    let rest = match tally.total() {
        0 => "nothing was pushed".to_owned(),
        1 => "the task before it was pushed, nothing after".to_owned(),
        total => format!("{} before it were pushed, nothing after", output::count(total, "task")),
    };
    dfq::Error::new(kind, format!("{error:#}; {rest}")).into()
}

/// The id that a member of the task holds.
fn id_in(json: &str, field: &str) -> dfq::Result<String> {
    let wrong = |what: &str| {
        dfq::Error::new(dfq::ErrorKind::Invalid, format!("--id-field {field}: the task has {what}"))
    };
    let value: serde_json::Value =
        serde_json::from_str(json).map_err(|_| wrong("no such member"))?;
    match crate::select::member(&value, field) {
        Some(serde_json::Value::String(id)) => Ok(id.clone()),
        Some(serde_json::Value::Number(id)) if id.is_i64() || id.is_u64() => Ok(id.to_string()),
        Some(_) => Err(wrong("neither a string nor a whole number there")),
        None => Err(wrong("no such member")),
    }
}
