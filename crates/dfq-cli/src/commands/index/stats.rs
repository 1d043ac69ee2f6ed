//! `dfq index stats`: how much there is.

use anyhow::Result;
use clap::Args;
use dfq::index::IndexStats;

use crate::context::Context;
use crate::exit::Answer;
use crate::output::{self, bytes, count, thousands};

/// Show how much there is in an index, and what waits to be compacted
///
/// Costs a read and a listing of the inbox, never a look at each shard: records and deletions are counted as of the last
/// compaction, and what was put since is counted in files.
#[derive(Args, Debug)]
pub(crate) struct Stats {
    /// The index
    index: String,
}

impl Stats {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let index = context.open_index(&self.index).await?;
        let stats = index.stats().await?;
        if context.json {
            output::json_line(&stats)?;
            return Ok(Answer::Yes);
        }
        let now = context.env.clock().wall();
        for (name, text) in describe(&index.key_column(), &stats, now) {
            output::line(&format!("{name:<10} {}", output::printable(&text)))?;
        }
        Ok(Answer::Yes)
    }
}

fn describe(key: &str, stats: &IndexStats, now: jiff::Timestamp) -> Vec<(&'static str, String)> {
    let compacted = stats.compacted_at.map_or_else(
        || "never".to_owned(),
        |at| format!("{} ({})", output::time(at), output::ago(at, now)),
    );
    let more = if stats.inbox_has_more { "more than " } else { "" };
    let inbox = match stats.inbox_files {
        0 => "empty".to_owned(),
        files => {
            format!("{more}{}, {}, not compacted", count(files, "file"), bytes(stats.inbox_bytes))
        }
    };
    let deletions = match stats.deletions {
        0 => String::new(),
        some => format!(", and {} kept", count(some, "deletion")),
    };
    let mut lines = vec![
        ("records", format!("{}{deletions}", thousands(stats.records))),
        ("shards", format!("{}, {}", thousands(stats.shards), bytes(stats.bytes))),
        ("columns", format!("{}, the key is {key}", stats.columns)),
        ("compacted", compacted),
        ("inbox", inbox),
    ];
    if stats.aside_files > 0 {
        let files = count(stats.aside_files, "file");
        lines.push(("aside", format!("{files}; `dfq index check` tells of them")));
    }
    if stats.old_files > 0 {
        let old = count(stats.old_files, "file");
        lines.push(("superseded", format!("{old}, {}", bytes(stats.old_bytes))));
    }
    lines
}
