//! `dfq doctor`: whether a store keeps what a queue rests on.
//!
//! The library examines; here are the processes that race (`racers`), the ways to a store (`subjects`), and
//! what is printed (`show`).

mod racers;
mod show;
mod subjects;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::doctor::{Examination, Meeting, Report, Subject, Verdict};
use dfq::store::Tree;
use dfq::{Error, ErrorKind, OpenOptions};
use tokio_util::sync::CancellationToken;

use crate::args::duration;
use crate::context::Context;
use crate::exit::{Answer, invalid};
use racers::Racers;
use subjects::Subjects;

/// Find out whether a store is safe for a queue, and what it can carry
///
/// Tries and races instead of believing: several processes with several connections each want to create
/// the same names at the same moment, and exactly one may win. Also looks at what the mount or the
/// bucket can do, measures, and says for each of the queue's promises whether it is kept. Everything is
/// tried in a folder of its own under tmp/, beside a live queue too, and removed afterwards.
///
/// The verdict stays with the store, in doctor.json: `push`, `poll` and `work` refuse a store that was
/// refused here, unless told --allow-unsafe. Exit status 0 means safe, 14 that something is lost, 13
/// that the store is refused.
///
/// With --peer and several addresses the race goes across them, which shows what two mounts of the same
/// place are worth. With --peer and one address it goes across machines: start the same command on each
/// of them, with --peers saying how many there are; they find each other through the store.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The queue, or where one is to be: its name, a folder, s3://bucket/prefix
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,
    /// Race across several mounts of the same place, or with others who do the same elsewhere
    #[arg(long)]
    peer: bool,
    /// How many examine the same place, this one too
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=256))]
    peers: u16,
    /// How long to wait for them
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2m")]
    wait: Duration,
    /// Rounds of each race, instead of 50 or what some seconds allow
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
    /// How many race for the same name
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    clients: u16,
    /// Over how many processes they are spread
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Leave no doctor.json behind, nor change the one that is there
    #[arg(long)]
    forget: bool,
    /// Race as told on stdin: what this command starts itself again with
    #[arg(long, hide = true)]
    racer: bool,
}

impl Doctor {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        if self.racer {
            return racers::race(&self.addresses, usize::from(self.clients), &context.env).await;
        }
        if self.addresses.len() > 1 && !self.peer {
            return Err(invalid("several addresses are raced against each other: say --peer"));
        }
        let addresses = subjects::resolve(context, &self.addresses)?;
        let options = context.access_s3(OpenOptions::existing());
        let racers = |own: &Self| {
            let processes = usize::from(own.processes.min(own.clients));
            Racers::start(&addresses, processes, usize::from(own.clients), &options)
        };
        match Subjects::open(&addresses, &options).await? {
            Subjects::Directories(subjects) => {
                self.examine(context, subjects, racers(&self)?).await
            }
            Subjects::Buckets(subjects) => self.examine(context, subjects, racers(&self)?).await,
        }
    }

    async fn examine<T: Tree>(
        &self,
        context: &Context,
        subjects: Vec<Subject<T>>,
        mut racers: Racers,
    ) -> Result<Answer> {
        let stop = CancellationToken::new();
        let signal = context.env.spawn(crate::exit::stop_signal(stop.clone()));
        if !context.json && !context.quiet {
            crate::output::note!(
                "dfq: examining {}; this may take a minute",
                subjects[0].address()
            );
        }
        let clients = usize::from(self.clients);
        let meeting = (self.peer && subjects.len() == 1).then(|| Meeting {
            peers: usize::from(self.peers),
            clients: clients.div_ceil(usize::from(self.peers)).max(2),
            wait: self.wait,
        });
        let how = Examination {
            env: context.env.clone(),
            rounds: self.rounds.map(|rounds| rounds as usize),
            forget: self.forget,
            meeting,
            stop: stop.clone(),
            ..Examination::default()
        };
        let examined = dfq::doctor::examine(&subjects, &mut racers, &how).await;
        racers.end().await;
        if stop.is_cancelled() {
            return Ok(Answer::Killed(signal.await.unwrap_or(2)));
        }
        let report = examined?;
        if context.json {
            crate::output::json_line(&report)?;
        } else {
            show::print(&report, context.quiet)?;
        }
        Ok(answer(&report))
    }
}

fn answer(report: &Report) -> Answer {
    match report.verdict {
        Verdict::Safe => Answer::Yes,
        Verdict::Degraded => Answer::Degraded,
        Verdict::Refused => Answer::Told(ErrorKind::Unsafe),
    }
}

/// Something that is no business of the store's went wrong.
fn broken(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}
