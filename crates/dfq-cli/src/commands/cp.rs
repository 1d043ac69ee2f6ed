//! `dfq cp` and `dfq mv`: tasks from one queue to another, of whatever kind.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::config::Target;
use dfq::queue::{Detail, Stats};
use dfq::transfer::{Event, Mode, Report, Transfer};
use dfq::{OpenOptions, Queue, Settings};
use indicatif::ProgressBar;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::args::duration;
use crate::context::{Context, confirm};
use crate::exit::{Answer, stop_signal};
use crate::many::{MAX_SENTENCES, progress};
use crate::output;

/// Copy all tasks that are not finished to another queue, of whatever kind
///
/// Ids, payloads, limits, attempts and the time still to wait are kept. If TO is not there it is made,
/// with the settings of FROM, and starts paused: as long as both have workers, tasks are done twice.
///
/// Run it again after an interruption: what TO has already is not copied twice. An SQS queue cannot
/// tell, so there it is. From SQS at most 120,000 can be copied, and every task counts as tried once more:
/// one that was on its last attempt goes to the dead letters when it is next received.
#[derive(Args, Debug)]
pub(crate) struct Cp {
    #[command(flatten)]
    route: Route,
    /// Do not ask, though TO holds tasks and cannot tell whether they are the same
    #[arg(short, long)]
    yes: bool,
}

/// Move all tasks that are not finished to another queue, of whatever kind
///
/// Ids, payloads, limits, attempts and the time still to wait are kept. A task is in FROM until TO has
/// it, and nobody can claim it in between. Tasks that workers have stay; exit status 1 says so. If TO is
/// not there it is made, with the settings of FROM. FROM keeps a record of each task in completed/ that
/// says where it went, until `dfq gc` removes it.
///
/// Run it again after an interruption: nothing is lost, and nothing is in TO twice; in an SQS queue, up
/// to 100 tasks may be. What was under way is claimed in FROM for the time of --lease; if workers of FROM
/// are to leave it alone after that too, pause FROM. From SQS every interrupted run counts as one more
/// attempt at what it had.
#[derive(Args, Debug)]
pub(crate) struct Mv {
    #[command(flatten)]
    route: Route,
}

#[derive(Args, Debug)]
struct Route {
    /// Where the tasks are
    from: String,
    /// Where they are to be
    to: String,
    /// Start tasks anew where another of the same id has finished in TO; otherwise they stay
    #[arg(long)]
    again: bool,
    /// For how long tasks under way are claimed; after a crash the next run waits for so long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1m")]
    lease: Duration,
    /// Go on though `dfq doctor` found a store unsafe: tasks may be done twice
    #[arg(long)]
    allow_unsafe: bool,
}

#[derive(Serialize)]
struct RefusedJson<'a> {
    id: &'a str,
    error: String,
}

#[derive(Serialize)]
struct ReportJson {
    done: u64,
    refused: u64,
    held: u64,
    stopped: bool,
}

impl Cp {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        self.route.go(context, Mode::Copy, self.yes).await
    }
}

impl Mv {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        self.route.go(context, Mode::Move, true).await
    }
}

impl Route {
    async fn go(&self, context: &Context, mode: Mode, yes: bool) -> Result<Answer> {
        let options = OpenOptions { allow_unsafe: self.allow_unsafe, ..OpenOptions::existing() };
        let from = context.open_with(&self.from, options).await?;
        let stop = CancellationToken::new();
        // The second signal ends it at once, as a kill would.
        let (first, second) = (stop_signal(stop.clone()), CancellationToken::new());
        let mut signals = context.env.spawn(async move {
            first.await;
            stop_signal(second).await
        });
        let (to, made) = self.open_target(context, &*from).await?;
        let transfer =
            Transfer::new(Arc::clone(&from), Arc::clone(&to), mode, context.env.clone())?
                .again(self.again)
                .lease(self.lease)
                .stop_on(stop);
        if mode == Mode::Copy && !self.may_copy(context, &*to, made, yes).await? {
            return Ok(Answer::No);
        }
        let stats = from.stats(Detail::Counts).await?;
        let mut teller = Teller::new(context, stats.pending + stats.scheduled);
        let mut tell = |event: Event<'_>| teller.tell(&event);
        let ended = tokio::select! {
            report = transfer.run(&mut tell) => Ok(report),
            Ok(signal) = &mut signals => Err(signal),
        };
        signals.abort();
        teller.finish();
        let report = match ended {
            Ok(report) => report,
            Err(signal) => return Ok(Answer::Killed(signal)),
        };
        self.sum_up(context, mode, report?, &teller)
    }

    /// Opens TO, or makes it after FROM; answers whether it was made.
    async fn open_target(
        &self,
        context: &Context,
        from: &dyn Queue,
    ) -> Result<(Arc<dyn Queue>, bool)> {
        let settings = |target: &Target| match target.name {
            Some(_) => target.settings.clone(),
            None => Settings { created_at: None, ..from.settings().clone() },
        };
        context.open_or_create_with(&self.to, self.allow_unsafe, settings).await
    }

    /// Sees to it that a copy does no harm.
    async fn may_copy(
        &self,
        context: &Context,
        to: &dyn Queue,
        made: bool,
        yes: bool,
    ) -> Result<bool> {
        let name = output::shell(&self.to);
        let can = to.capabilities();
        let stats = to.stats(Detail::Counts).await?;
        let Stats { pending, scheduled, completed, failed, .. } = stats;
        // One that is in use goes on as it is.
        if can.pause && (made || pending + scheduled + completed + failed == 0) && !stats.paused {
            let reason =
                format!("a copy of {}, to be resumed when that is not used any more", self.from);
            to.pause(Some(reason)).await?;
            if !context.quiet {
                crate::output::note!("dfq: {name} is paused; `dfq resume {name}` starts it");
            }
        } else if !can.pause && !context.quiet {
            crate::output::note!(
                "dfq: {} cannot be paused: its workers start at once",
                can.provider
            );
        }
        if can.deduplicates {
            return Ok(true);
        }
        let there = pending + scheduled;
        if there == 0 {
            return Ok(true);
        }
        let question = format!(
            "{name} holds about {}, and {} cannot tell whether they are the same: what is copied twice \
             is there twice. Copy?",
            output::count(there, "task"),
            can.provider
        );
        confirm(yes, &question)
    }

    fn sum_up(
        &self,
        context: &Context,
        mode: Mode,
        report: Report,
        teller: &Teller,
    ) -> Result<Answer> {
        let Report { done, refused, held, stopped } = report;
        let answer = Answer::yes_if(refused == 0 && held == 0 && !stopped);
        if context.json {
            output::json_line(&ReportJson { done, refused, held, stopped })?;
            return Ok(answer);
        }
        if refused > MAX_SENTENCES {
            let more = output::thousands(refused - MAX_SENTENCES);
            crate::output::note!("dfq: and {more} more of this kind; --json tells of each");
        }
        if context.quiet {
            return Ok(answer);
        }
        let done_word = if mode == Mode::Copy { "copied" } else { "moved" };
        let mut line = format!("{} {done_word}", output::count(done, "task"));
        if refused > 0 {
            line += &format!(", {} not", output::thousands(refused));
        }
        if held > 0 {
            line += &format!(
                ", {} not, which others have or which are not due",
                output::thousands(held)
            );
        }
        line += &format!(", in {}", output::duration(teller.elapsed(context)));
        if stopped {
            line += "; stopped, run it again to go on";
        }
        crate::output::note!("dfq: {line}");
        Ok(answer)
    }
}

/// Says what happens.
struct Teller {
    json: bool,
    began: Duration,
    refused: u64,
    bar: Option<ProgressBar>,
}

impl Teller {
    fn new(context: &Context, tasks: u64) -> Self {
        let shown = !context.quiet && !context.json && std::io::stderr().is_terminal();
        let bar = shown.then(|| progress(tasks));
        Self { json: context.json, began: context.env.monotonic(), refused: 0, bar }
    }

    fn tell(&mut self, event: &Event<'_>) {
        match event {
            Event::Done(tasks) => {
                if let Some(bar) = &self.bar {
                    bar.inc(*tasks);
                }
            }
            Event::Refused(id, error) => self.refuse(id.as_str(), error),
            Event::Waiting(time) => {
                let time = output::duration(*time);
                self.aside(|| {
                    crate::output::note!(
                        "dfq: an interrupted run, or another one, has claimed some; waiting up to {time}"
                    );
                });
            }
        }
    }

    fn refuse(&mut self, id: &str, error: &dfq::Error) {
        self.refused += 1;
        if self.json {
            let _ = output::json_line(&RefusedJson { id, error: error.to_string() });
        } else if self.refused <= MAX_SENTENCES {
            self.aside(|| {
                crate::exit::report(&error.clone().into());
            });
        }
    }

    /// Prints above the bar.
    fn aside(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn elapsed(&self, context: &Context) -> Duration {
        context.env.monotonic().saturating_sub(self.began)
    }
}
