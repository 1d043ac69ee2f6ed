//! What the screen shows, as lines: a pure function of what was found and of the screen's size.

use dfq::queue::WorkerRecord;

use super::snapshot::Snapshot;
use crate::commands::stats::figures;
use crate::commands::workers::{Life, seen};
use crate::output::{self, Table, cut, printable};

/// Lines for a screen of this size: never more, never wider, and nothing in them that a terminal
/// would obey.
pub(super) fn lines(snapshots: &[Snapshot], width: usize, height: usize) -> Vec<String> {
    if width == 0 || height == 0 {
        return Vec::new();
    }
    let mut lines = vec![head(snapshots)];
    if snapshots.is_empty() {
        lines.push("looking…".to_owned());
    }
    let room = height.saturating_sub(1);
    for (at, snapshot) in snapshots.iter().enumerate() {
        // What earlier queues did not need is there for the later ones.
        let share = room.saturating_sub(lines.len() - 1) / (snapshots.len() - at);
        lines.extend(queue(snapshot, share));
    }
    lines.truncate(height);
    lines.iter().map(|line| cut(&printable(line), width)).collect()
}

fn head(snapshots: &[Snapshot]) -> String {
    match snapshots.first() {
        Some(snapshot) => {
            format!("dfq top  {}  q quits, r looks again", output::time(snapshot.now))
        }
        None => "dfq top  q quits".to_owned(),
    }
}

/// One queue in so many lines: counts first, then as much of each part as there is room for.
fn queue(snapshot: &Snapshot, room: usize) -> Vec<String> {
    let paused = if snapshot.stats.paused { "  PAUSED" } else { "" };
    let mut lines = vec![String::new(), format!("{}{paused}", snapshot.name)];
    lines.extend(counts(snapshot));
    lines.extend(snapshot.merge.iter().cloned());
    let parts = [workers(snapshot), leases(snapshot), failures(snapshot)];
    let parts: Vec<Vec<String>> = parts.into_iter().filter(|part| part.len() > 1).collect();
    let mut left = room.saturating_sub(lines.len());
    for (at, mut part) in parts.iter().cloned().enumerate() {
        // A blank line, a head, and at least one row.
        let share = left / (parts.len() - at);
        if share < 3 {
            continue;
        }
        part.truncate(share - 1);
        left -= part.len() + 1;
        lines.push(String::new());
        lines.extend(part);
    }
    lines
}

/// Two lines, so that they fit on a usual terminal: what is to be done, and what else there is.
fn counts(snapshot: &Snapshot) -> [String; 2] {
    let (mut pending, mut other) = (Vec::new(), Vec::new());
    for (name, figure) in figures(&snapshot.stats, snapshot.tells_all, snapshot.now) {
        let rate =
            snapshot.rates.filter(|_| figure != "-").and_then(|(completed, failed)| match name {
                "completed" => Some(completed),
                "failed" => Some(failed),
                _ => None,
            });
        let rate = rate.map_or_else(String::new, |rate| format!(" ({rate:.1}/s)"));
        match name {
            "scheduled" | "completed" | "failed" | "oldest" => &mut other,
            _ => &mut pending,
        }
        .push(format!("{name} {figure}{rate}"));
    }
    [pending.join("  "), other.join("  ")]
}

fn workers(snapshot: &Snapshot) -> Vec<String> {
    let mut table =
        Table::new(&["WORKER", "STATE", "SEEN", "RUNNING", "COMPLETED", "RETRIED", "FAILED"]);
    let current = |worker: &&WorkerRecord| Life::of(worker, snapshot.now) != Life::Stopped;
    for worker in snapshot.workers.iter().filter(current) {
        table.row([
            worker.worker_id.clone(),
            Life::of(worker, snapshot.now).name().to_owned(),
            seen(worker, snapshot.now),
            format!("{}/{}", worker.running, worker.concurrency),
            output::thousands(worker.completed),
            output::thousands(worker.retried),
            output::thousands(worker.failed),
        ]);
    }
    table.lines(None)
}

fn leases(snapshot: &Snapshot) -> Vec<String> {
    let mut table = Table::new(&["LEASED", "SINCE", "ENDS", "BY"]);
    for lease in &snapshot.leases {
        table.row([
            cut(&printable(&lease.id), 40),
            lease.since.map_or("-".to_owned(), |since| output::ago(since, snapshot.now)),
            output::relative(lease.until, snapshot.now),
            lease.worker_id.clone(),
        ]);
    }
    table.lines(None)
}

fn failures(snapshot: &Snapshot) -> Vec<String> {
    let mut table = Table::new(&["FAILED", "WHEN", "ERROR"]);
    for failure in &snapshot.failures {
        table.row([
            cut(&printable(&failure.id), 40),
            failure.at.map_or("-".to_owned(), |at| output::ago(at, snapshot.now)),
            failure.error.clone(),
        ]);
    }
    table.lines(None)
}

#[cfg(test)]
mod tests;
