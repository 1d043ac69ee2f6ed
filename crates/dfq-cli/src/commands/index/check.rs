//! `dfq index check`: looks for everything in an index that is not as it should be, and mends what can be.

use std::io::IsTerminal;

use anyhow::Result;
use clap::Args;
use dfq::index::{CheckOptions, CheckReport, Finding};
use serde::Serialize;

use crate::context::Context;
use crate::exit::Answer;
use crate::many::progress;
use crate::output::{self, Table, bytes, count, thousands};

/// Look for what is not in order in an index, and mend it if asked to
///
/// Reads every shard and everything in the inbox. May be run at any time, beside writers and others that compact. Exit
/// status 1 means that something is left that is not in order.
///
/// --repair destroys nothing that cannot be read: odd bytes are copied below aside/ first. A shard that was changed by
/// hand is written anew from all rows that can be read.
#[derive(Args, Debug)]
pub(crate) struct Check {
    /// The index
    index: String,
    /// Mend what can be mended without a guess
    #[arg(long)]
    repair: bool,
}

#[derive(Serialize)]
struct FindingJson<'a> {
    path: &'a str,
    problem: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<&'a str>,
}

#[derive(Serialize)]
struct SummaryJson {
    in_order: bool,
    problems: u64,
    repaired: u64,
    shards: usize,
    records: u64,
    deletions: u64,
    bytes: u64,
    inbox_files: u64,
    aside_files: u64,
}

impl Check {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let index = context.open_index(&self.index).await?;
        let shown = !context.quiet && !context.json && std::io::stderr().is_terminal();
        let bar = shown.then(|| progress(0));
        let options = CheckOptions {
            repair: self.repair,
            progress: bar.clone().map(super::compact::shown_by),
        };
        let report = index.check(options).await;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let report = report?;
        let problems = report.findings.len() as u64 + report.more_findings;
        let repaired = report.findings.iter().filter(|it| it.repaired.is_some()).count() as u64;
        if context.json {
            print_json(&report, problems, repaired)?;
        } else {
            self.print(context, &report, problems - repaired, repaired)?;
        }
        Ok(Answer::yes_if(problems == repaired))
    }

    fn print(
        &self,
        context: &Context,
        report: &CheckReport,
        left: u64,
        repaired: u64,
    ) -> Result<()> {
        if !report.findings.is_empty() {
            let mut table = Table::new(&["REPAIRED", "PATH", "WHAT"]);
            for Finding { path, problem, repaired } in &report.findings {
                let (mended, what) = match repaired {
                    Some(how) => ("yes", format!("{problem}; {how}")),
                    None => ("no", problem.clone()),
                };
                table.row([mended.to_owned(), path.clone(), what]);
            }
            table.print()?;
        }
        if report.more_findings > 0 {
            let more = thousands(report.more_findings);
            output::note!("dfq: and {more} more");
        }
        if context.quiet {
            return Ok(());
        }
        let done = match repaired {
            0 => String::new(),
            number => format!("{} repaired; ", count(number, "thing")),
        };
        if left == 0 {
            let inbox = match report.inbox_files {
                0 => "an empty inbox".to_owned(),
                files => format!("{} in the inbox", count(files, "file")),
            };
            return output::line(&format!(
                "{done}in order: {} and {} in {}, {}; {inbox}",
                count(report.records, "record"),
                count(report.deletions, "deletion"),
                count(report.shards as u64, "shard"),
                bytes(report.bytes)
            ));
        }
        let hint = match self.repair {
            true => "look at the paths above",
            false => "--repair mends what can be mended",
        };
        output::note!("dfq: {done}{} not in order; {hint}", count(left, "thing"));
        Ok(())
    }
}

fn print_json(report: &CheckReport, problems: u64, repaired: u64) -> Result<()> {
    for Finding { path, problem, repaired } in &report.findings {
        output::json_line(&FindingJson { path, problem, repaired: repaired.as_deref() })?;
    }
    output::json_line(&SummaryJson {
        in_order: problems == repaired,
        problems,
        repaired,
        shards: report.shards,
        records: report.records,
        deletions: report.deletions,
        bytes: report.bytes,
        inbox_files: report.inbox_files,
        aside_files: report.aside_files,
    })
}
