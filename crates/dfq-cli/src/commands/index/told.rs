//! What is said of records that were put, and of those that were refused.

use std::io::IsTerminal;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::context::Context;
use crate::exit::Answer;
use crate::many::MAX_SENTENCES;
use crate::output;

/// Counts what became of records, and says it.
pub(super) struct Told {
    json: bool,
    quiet: bool,
    noun: &'static str,
    pub(super) put: u64,
    refused: u64,
    bar: Option<ProgressBar>,
}

#[derive(Serialize)]
struct RefusedJson<'a> {
    line: u64,
    error: &'a str,
}

#[derive(Serialize)]
struct SummaryJson {
    put: u64,
    refused: u64,
}

impl Told {
    pub(super) fn new(context: &Context, noun: &'static str) -> Self {
        let shown = !context.quiet && !context.json && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let style = ProgressStyle::with_template("{spinner} {human_pos} records, {per_sec}");
            ProgressBar::new_spinner()
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        });
        Self { json: context.json, quiet: context.quiet, noun, put: 0, refused: 0, bar }
    }

    /// So many more are done.
    pub(super) fn done(&mut self, records: u64) {
        self.put += records;
        if let Some(bar) = &self.bar {
            bar.inc(records);
        }
    }

    /// A line is no record, or its record does not fit.
    pub(super) fn refuse(&mut self, number: u64, error: &str) -> Result<()> {
        self.refused += 1;
        if self.json {
            return output::json_line(&RefusedJson { line: number, error });
        }
        if self.refused <= MAX_SENTENCES {
            let text = output::printable(&format!("{} {number}: {error}", self.noun));
            self.aside(|| crate::output::note!("dfq: {text}"));
        }
        Ok(())
    }

    fn aside(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// How far it came.
    pub(super) fn so_far(&self, done: &str) -> String {
        format!("{done} so far: {}", output::count(self.put, "record"))
    }

    /// Takes the live line away.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Says what became of all.
    pub(super) fn sum_up(&self, done: &str) -> Result<Answer> {
        self.clear();
        let Self { put, refused, .. } = *self;
        if self.json {
            output::json_line(&SummaryJson { put, refused })?;
        } else {
            if refused > MAX_SENTENCES {
                let more = output::thousands(refused - MAX_SENTENCES);
                crate::output::note!("dfq: and {more} more of this kind; --json tells of each");
            }
            if !self.quiet || refused > 0 {
                let refusals = match refused {
                    0 => String::new(),
                    _ => format!(", {} refused", output::thousands(refused)),
                };
                crate::output::note!("dfq: {} {done}{refusals}", output::count(put, "record"));
            }
        }
        Ok(match refused {
            0 => Answer::Yes,
            _ => Answer::Told(dfq::ErrorKind::Invalid),
        })
    }
}
