//! What the audience sees: a live bar on a terminal, plain lines elsewhere, the tree at the end.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use dfq::TaskId;
use dfq::queue::Stats;
use indicatif::{ProgressBar, ProgressStyle};

use crate::context::Context;
use crate::output::{self, thousands};

/// How often counts are printed where there is no bar.
const COUNTS_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Stage<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    next_counts: Cell<Duration>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(context: &'a Context, tasks: u64) -> Self {
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bar = (terminal && !context.json).then(|| {
            let bar = ProgressBar::new(tasks);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} completed{msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { context, bar, next_counts: Cell::new(Duration::ZERO) }
    }

    pub(super) fn line(&self, text: &str) -> Result<()> {
        if self.context.json {
            return Ok(());
        }
        match &self.bar {
            // Above the bar, which would otherwise be in the way.
            Some(bar) => bar.suspend(|| output::line(text)),
            None => output::line(text),
        }
    }

    /// Something happened.
    pub(super) fn event(&self, at: Duration, what: &str) -> Result<()> {
        self.line(&format!("{:>5.1} s  {what}", at.as_secs_f64()))
    }

    /// How many tasks are where.
    pub(super) fn counts(&self, at: Duration, stats: &Stats) -> Result<()> {
        let states = stats.states.unwrap_or_default();
        let dead = match states.stale {
            0 => String::new(),
            stale => format!(", {stale} of a dead worker"),
        };
        let rest = format!(", {} at work{dead}, {} waiting", states.leased, states.ready);
        if let Some(bar) = &self.bar {
            bar.set_position(stats.completed);
            bar.set_message(rest);
            return Ok(());
        }
        if at < self.next_counts.get() {
            return Ok(());
        }
        self.next_counts.set(at + COUNTS_EVERY);
        self.event(at, &format!("{} completed{rest}", thousands(stats.completed)))
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// The queue as it lies there: its folders, and the record of a task that was taken over.
    pub(super) fn tree(&self, queue: &Path, taken: Option<&TaskId>) -> Result<()> {
        self.line("")?;
        self.line("jobs/")?;
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(queue)?.flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for entry in entries {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if entry.is_dir() {
                let files = files_below(&entry);
                let number = match files.len() {
                    0 => "empty".to_owned(),
                    number => output::count(number as u64, "file"),
                };
                self.line(&format!("  {:<12} {number}", format!("{name}/")))?;
            } else {
                self.line(&format!("  {name}"))?;
            }
        }
        let Some(id) = taken else { return Ok(()) };
        let named = |path: &PathBuf| path.file_stem().is_some_and(|stem| *stem == *id.as_str());
        let Some(record) = files_below(queue).into_iter().find(named) else { return Ok(()) };
        let shown = record.strip_prefix(queue).unwrap_or(&record);
        let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&record)?)?;
        self.line(&format!(
            "\njobs/{}: the attempt of the worker that was killed, and its successor's",
            shown.display()
        ))?;
        self.line(&serde_json::to_string_pretty(&value)?)
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}
