//! `dfq index compact`: merges what was put into the shards, once or again and again.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::ErrorKind;
use dfq::index::{CompactOptions, CompactReport, Index, Progress};
use indicatif::ProgressBar;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::args::duration;
use crate::context::Context;
use crate::exit::{Answer, invalid, stop_signal};
use crate::many::{MAX_SENTENCES, progress};
use crate::output::{self, bytes, count, thousands};

/// Merge what was put into the sorted shards
///
/// May be run at any time, beside writers, readers, and others that compact: each shard is locked for a while, and even
/// without the lock no update would be lost. Killed at any point, it loses nothing, and the next run goes on.
///
/// Without --all it looks at one random page of the inbox. If that is all there is (up to 1,000 files), it merges it into
/// all of its shards, else into one. So many machines can do it now and then without meeting.
///
/// Exit status 1 means that something could not be merged: the message says what. A signal lets it finish the shards that
/// it has begun; a second one ends it at once.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    dfq index compact ./domains --all\n  \
    dfq index compact s3://bucket/domains --every 5m --all")]
pub(crate) struct Compact {
    /// The index
    index: String,
    /// Everything that is in the inbox
    #[arg(long)]
    all: bool,
    /// Shards merged at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Go on until a signal comes, with a pause of this length after each round
    #[arg(long, value_name = "TIME", value_parser = duration)]
    every: Option<Duration>,
    /// The most shards in one round
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=256))]
    max_shards: Option<u16>,
    /// Lock no shard: others do the same work and lose. For tests, which show that nothing rests on the lock
    #[arg(long, hide = true)]
    no_lock: bool,
}

#[derive(Serialize)]
struct ReportJson<'a> {
    shards: usize,
    files: u64,
    rows: u64,
    bytes_written: u64,
    locked: usize,
    lost: usize,
    set_aside: u64,
    unreadable: &'a [String],
    failed: &'a [String],
    stopped: bool,
}

impl Compact {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        if self.every.is_some_and(|every| every.is_zero()) {
            return Err(invalid("--every 0 would never pause; say how long, as 5m"));
        }
        let index = context.open_index(&self.index).await?;
        let stop = CancellationToken::new();
        // The second signal ends it at once, as a kill would.
        let (first, second) = (stop_signal(stop.clone()), CancellationToken::new());
        let (sender, mut told_to) = tokio::sync::watch::channel(0);
        let signals = context.env.spawn(async move {
            let number = first.await;
            let _ = sender.send(number);
            stop_signal(second).await
        });
        let rounds = self.rounds(context, &index, &stop);
        let answer = tokio::select! {
            answer = rounds => answer?,
            Ok(signal) = signals => return Ok(Answer::Killed(signal)),
        };
        // With --every a signal is how it ends.
        if self.every.is_some() || !stop.is_cancelled() {
            return Ok(answer);
        }
        let _ = told_to.changed().await;
        Ok(Answer::Killed(*told_to.borrow()))
    }

    async fn rounds(
        &self,
        context: &Context,
        index: &Index,
        stop: &CancellationToken,
    ) -> Result<Answer> {
        loop {
            let answer = match self.round(context, index, stop).await {
                // The store may be back by the next round.
                Err(error) if self.every.is_some() && is_down(&error) => {
                    crate::exit::report(&error);
                    Answer::No
                }
                answer => answer?,
            };
            let Some(every) = self.every else { return Ok(answer) };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(answer),
                () = context.env.clock().sleep(every) => {}
            }
        }
    }

    async fn round(
        &self,
        context: &Context,
        index: &Index,
        stop: &CancellationToken,
    ) -> Result<Answer> {
        let shown = !context.quiet && !context.json && std::io::stderr().is_terminal();
        let bar = shown.then(|| progress(0));
        let options = CompactOptions {
            all: self.all,
            workers: usize::from(self.workers),
            max_shards: self.max_shards.map(usize::from),
            lock: !self.no_lock,
            progress: bar.clone().map(shown_by),
            stop: stop.clone(),
        };
        let report = index.compact(options).await;
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let report = report?;
        tell(context, &report, stop.is_cancelled())?;
        Ok(Answer::yes_if(
            report.failed.is_empty() && report.unreadable.is_empty() && report.set_aside == 0,
        ))
    }
}

fn is_down(error: &anyhow::Error) -> bool {
    error.downcast_ref::<dfq::Error>().is_some_and(|it| it.kind() == ErrorKind::Unavailable)
}

/// Shows on a bar how far it is.
pub(super) fn shown_by(bar: ProgressBar) -> Progress {
    Arc::new(move |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })
}

fn tell(context: &Context, report: &CompactReport, stopped: bool) -> Result<()> {
    let CompactReport { unreadable, failed, .. } = report;
    if context.json {
        return output::json_line(&ReportJson {
            shards: report.shards,
            files: report.files,
            rows: report.rows,
            bytes_written: report.bytes_written,
            locked: report.locked,
            lost: report.lost,
            set_aside: report.set_aside,
            unreadable,
            failed,
            stopped,
        });
    }
    for (what, all) in [("not merged", unreadable), ("not compacted", failed)] {
        let most = usize::try_from(MAX_SENTENCES).unwrap_or(usize::MAX);
        for why in all.iter().take(most) {
            output::note!("dfq: {what}: {}", output::printable(why));
        }
        if all.len() > most {
            let more = thousands((all.len() - most) as u64);
            output::note!("dfq: and {more} more of this kind; --json tells of each");
        }
    }
    if !context.quiet {
        output::note!("dfq: {}", sentence(report, stopped));
    }
    Ok(())
}

fn sentence(report: &CompactReport, stopped: bool) -> String {
    let mut line = match report.files {
        0 => "nothing was merged".to_owned(),
        files => format!(
            "{} from {} merged into {}, {} written",
            count(report.rows, "record"),
            count(files, "file"),
            count(report.shards as u64, "shard"),
            bytes(report.bytes_written)
        ),
    };
    for (number, what) in [
        (report.locked as u64, "locked by others, who merge it"),
        (report.lost as u64, "changed by others meanwhile, to be merged next time"),
        (report.failed.len() as u64, "not compacted"),
    ] {
        if number > 0 {
            line += &format!("; {} {what}", count(number, "shard"));
        }
    }
    if report.set_aside > 0 {
        let files = count(report.set_aside, "file");
        line +=
            &format!("; {files} too old to be merged, put aside (`dfq index check` tells of them)");
    }
    if !report.unreadable.is_empty() {
        line += &format!("; {} not readable, left", count(report.unreadable.len() as u64, "file"));
    }
    if stopped {
        line += "; interrupted";
    }
    line
}
