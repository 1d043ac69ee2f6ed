//! The report for people.

use anyhow::Result;
use dfq::doctor::{Outcome, Report};

use crate::output::{self, Table, thousands};

pub(super) fn print(report: &Report, quiet: bool) -> Result<()> {
    if !quiet {
        if report.store != report.address {
            output::line(&format!("{}: {}", report.address, report.store))?;
        }
        checks(report)?;
        if !report.speed.is_empty() {
            output::line("")?;
            speed(report)?;
        }
        output::line("")?;
        promises(report)?;
        if !report.advice.is_empty() {
            output::line("")?;
        }
        for advice in &report.advice {
            output::line(advice)?;
        }
        output::line("")?;
    }
    let verdict = report.verdict.name();
    output::line(&match &report.cause {
        Some(cause) => format!("{verdict}: {}", output::printable(cause)),
        None => verdict.to_owned(),
    })
}

fn checks(report: &Report) -> Result<()> {
    let mut table = Table::new(&["CHECK", "RESULT", "DETAIL"]);
    for check in &report.checks {
        let outcome = match check.outcome {
            Outcome::Yes => "ok",
            Outcome::No => "NO",
            Outcome::Note => "note",
            Outcome::Unknown => "?",
        };
        table.row([check.name.to_owned(), outcome.to_owned(), check.detail.clone()]);
    }
    print_whole(&table)
}

fn speed(report: &Report) -> Result<()> {
    let mut table = Table::new(&["OPERATION", "CLIENTS", "MEDIAN", "P95", "PER SECOND"]);
    for speed in &report.speed {
        table.row([
            speed.operation.name().to_owned(),
            speed.clients.to_string(),
            millis(speed.median_ms),
            millis(speed.p95_ms),
            thousands(speed.per_second.round() as u64),
        ]);
    }
    print_whole(&table)
}

fn millis(millis: f64) -> String {
    if millis < 1.0 { format!("{:.0} µs", millis * 1000.0) } else { format!("{millis:.1} ms") }
}

fn promises(report: &Report) -> Result<()> {
    let mut table = Table::new(&["PROMISE", "VERDICT", "WHY"]);
    for kept in &report.promises {
        table.row([
            kept.promise.name().to_owned(),
            kept.verdict.name().to_owned(),
            kept.why.join("; "),
        ]);
    }
    print_whole(&table)
}

/// Reasons are not cut at the terminal's edge: they are what was asked for.
fn print_whole(table: &Table) -> Result<()> {
    for line in table.lines(None) {
        output::line(&line)?;
    }
    Ok(())
}
