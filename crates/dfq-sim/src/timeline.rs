//! A history for people: what each process did when, and what became of each file.
//!
//! Invariant: it leaves out only what did not concern a task that something is wrong with, unless all is asked for.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use crate::check::Violation;
use crate::history::{Answer, Ask, Changed, Entry, Event, How, What};
use crate::plan::Plan;
use crate::world::Pid;

/// How wide a process's column is, up to so many columns.
const COLUMN: usize = 4;
const COLUMNS: u32 = 10;

/// The story of a run.
pub struct Timeline<'a> {
    /// What was to happen.
    pub plan: &'a Plan,
    /// What happened.
    pub entries: &'a [Entry],
    /// What was wrong.
    pub violations: &'a [Violation],
    /// Every call, whatever it was about.
    pub all: bool,
}

impl fmt::Display for Timeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "The plan\n{:#?}\n", self.plan)?;
        writeln!(f, "By process")?;
        for entry in self.entries {
            if let Some(text) = self.told(&entry.what) {
                line(f, entry.at, entry.pid, &text)?;
            }
        }
        writeln!(f, "\nBy file")?;
        let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Entry { at, pid, what } in self.entries {
            let What::Changed(_, changed) = what else { continue };
            if self.concerns(&changed.name) {
                let text = format!("{:>14}  {pid}  {}", seconds(*at), content(changed));
                files.entry(&changed.name).or_default().push(text);
            }
        }
        for (name, changes) in files {
            writeln!(f, "{name}")?;
            changes.iter().try_for_each(|change| writeln!(f, "  {change}"))?;
        }
        writeln!(f, "\nWhat is wrong")?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}

impl Timeline<'_> {
    /// Whether a text speaks of a task that something is wrong with.
    fn concerns(&self, text: &str) -> bool {
        let parts = text.split(['/', ' ']).filter(|part| part.len() > 2 || !part.is_empty());
        self.all || parts.map(|part| part.trim_end_matches(".json")).any(|part| self.is_named(part))
    }

    fn is_named(&self, part: &str) -> bool {
        const FOLDERS: [&str; 12] = [
            "pending",
            "completed",
            "failed",
            "scheduled",
            "lease",
            "task",
            "tmp",
            "floors",
            "→",
            "workers",
            "read",
            "stat",
        ];
        let word = |violation: &Violation| {
            violation.text.split(['/', ' ', ',', '"', '@']).any(|word| word == part)
        };
        !FOLDERS.contains(&part) && self.violations.iter().any(word)
    }

    fn told(&self, what: &What) -> Option<String> {
        match what {
            What::Call(text) => self.concerns(text).then(|| format!("  {text}")),
            What::Changed(queue, changed) => {
                let shown = !changed.name.starts_with("workers/") && self.concerns(&changed.name);
                shown.then(|| format!("    queue {queue}: {:?} {}", changed.how, changed.name))
            }
            What::Asked(number, ask) => Some(format!("#{number} {}", asked(ask))),
            What::Told(number, answer) => told(answer).map(|text| format!("#{number} → {text}")),
            What::Began(_, receipt) => Some(format!("begins to work on {receipt}")),
            What::Ended(_, receipt) => Some(format!("ends its work on {receipt}")),
            What::Happened(event) => Some(happened(event)),
        }
    }
}

fn seconds(at: Duration) -> String {
    format!("{:.6}", at.as_secs_f64())
}

fn line(f: &mut fmt::Formatter<'_>, at: Duration, pid: Pid, text: &str) -> fmt::Result {
    let indent = COLUMN * (pid.0 % COLUMNS) as usize;
    writeln!(f, "{:>14} {:indent$}{pid} {text}", seconds(at), "")
}

fn content(changed: &Changed) -> String {
    match changed.how {
        How::Removed => "is removed".to_owned(),
        how => format!("{how:?}: {}", String::from_utf8_lossy(&changed.bytes).trim_end()),
    }
}

fn asked(ask: &Ask) -> String {
    let mut text = ask.verb.to_owned();
    for task in &ask.tasks {
        let later = if task.later { " later" } else { "" };
        let _ = write!(text, " {}={}{later}", task.id.as_deref().unwrap_or("-"), task.n);
    }
    for receipt in &ask.receipts {
        let _ = write!(text, " {receipt}");
    }
    for id in &ask.ids {
        let _ = write!(text, " {id}");
    }
    text
}

/// Nothing to be told of: a poll that found nothing.
fn told(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Claimed(Ok(all)) if all.is_empty() => None,
        Answer::Claimed(Ok(all)) => {
            let one = |it: &crate::history::Claimed| {
                format!("{} until {} (fence {})", it.receipt, seconds(it.alive_until), it.fence)
            };
            Some(all.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        Answer::Claimed(Err(error)) => Some(format!("{error:?}")),
        Answer::Pushed(each) => Some(format!("{each:?}")),
        Answer::Alive(each) => Some(format!("{each:?}")),
        Answer::Each(each) => Some(format!("{each:?}")),
        Answer::Whole(whole) => Some(format!("{whole:?}")),
    }
}

fn happened(event: &Event) -> String {
    match event {
        Event::Started(text) => format!("── {text}"),
        Event::Killed(pid) => format!("── {pid} is killed"),
        Event::Stalled(pid, until) => format!("── {pid} stands still until {}", seconds(*until)),
        Event::PowerCut => "══ the power fails".to_owned(),
        Event::Jumped(text) => format!("── a clock is set: {text}"),
        Event::Calm => "══ from here on nothing goes wrong".to_owned(),
        Event::Note(text) => format!("({text})"),
    }
}
