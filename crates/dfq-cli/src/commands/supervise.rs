//! `dfq supervise`: merges a folder with its bucket, so that workers here and elsewhere share a queue.

pub(crate) mod state;
pub(crate) mod told;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::address::Address;
use dfq::config::Target;
use dfq::synced::{self, How, NewNode, Supervisor};
use dfq::{ErrorKind, OpenOptions};
use tokio_util::sync::CancellationToken;

use crate::args::duration;
use crate::context::{Context, whole};
use crate::exit::{Answer, invalid, not_found, stop_signal};
use told::Told;

/// Merge a folder with its bucket, again and again
///
/// Workers, pushes and all other commands use the folder, also while there is no network. The supervisor of each
/// machine merges its folder with the bucket, up and down, once in each period of the queue. What is pushed or done
/// here goes up within a second. It may be killed at any time, and the next one goes on from there. Of several on one
/// folder, all but one rest.
///
/// QUEUE is a name whose provider is 'synced' in dfq.toml, or a folder; the first time, say --with. A task may be done
/// on two machines if both claim it within one period. Leases must be at least two periods long.
///
/// If there is no folder yet, it is made, but only if the bucket answers and knows of no folder in its place: a disk may
/// not be mounted. --yes makes it anyway.
#[derive(Args, Debug)]
pub(crate) struct Supervise {
    /// The queue
    queue: String,
    /// The bucket in the middle, or another folder; by default the one of dfq.toml, or the last one
    #[arg(long, value_name = "BUCKET")]
    with: Option<String>,
    /// How often, at least 1s; more often than the queue's own period costs more, less often is refused
    #[arg(long, value_name = "TIME", value_parser = duration)]
    every: Option<Duration>,
    /// Merge once, and end
    #[arg(long, conflicts_with_all = ["status", "adopt", "leave"])]
    once: bool,
    /// Tell how it goes: when the last pass was, what it did, and what it costs. Exit status 1 if it does not go well
    #[arg(long, conflicts_with_all = ["adopt", "leave"])]
    status: bool,
    /// Make an existing queue, and an existing bucket, places of a synced one, while no worker is alive
    #[arg(long, conflicts_with = "leave")]
    adopt: bool,
    /// Make the folder an ordinary queue again, while no worker is alive. The bucket stays as it is
    #[arg(long)]
    leave: bool,
    /// Go on though the folder was away for months, is new where another was, or is with another bucket than before; or make
    /// it though the bucket does not answer
    #[arg(short, long)]
    yes: bool,
}

/// How often a queue is merged if neither dfq.toml nor --every says it.
const EVERY: Duration = Duration::from_secs(60);

impl Supervise {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let mut target = context.target(&self.queue)?;
        if let Some(with) = &self.with {
            target.hub = Some(match context.target(with)?.address {
                Address::Directory(path) => Address::Directory(std::path::absolute(path)?),
                elsewhere => elsewhere,
            });
        }
        if let Some(every) = self.every {
            synced::check_every(every)?;
        }
        if (self.status || self.leave || self.adopt) && is_missing(context, &target).await? {
            return Err(no_queue(&target));
        }
        if self.status {
            return state::print(context, &self.queue).await;
        }
        if self.leave {
            return self.leave(context, &target).await;
        }
        if self.adopt {
            return self.adopt(context, &target).await;
        }
        if !matches!(target.address, Address::Directory(_)) {
            let there = &target.address;
            return Err(invalid(format!(
                "{there} is not a folder on this machine: name that of a node"
            )));
        }
        make_folder(context, &target, self.every, self.yes).await?;
        let stop = CancellationToken::new();
        let how = How { every: self.every, sure: self.yes, stop: stop.clone() };
        let mut supervisor = open(context, &target, how).await?;
        let mut told = Told::new(context, &supervisor);
        if self.once {
            let signal = context.env.spawn(stop_signal(stop));
            if !supervisor.once(|event| told.tell(event)).await? {
                told.say("stopped in the middle of a pass; the next one goes on from there");
                return Ok(Answer::Killed(signal.await.unwrap_or(15)));
            }
            signal.abort();
            return Ok(Answer::yes_if(told.is_well()));
        }
        let signal = context.env.spawn(stop_signal(stop));
        told.begin();
        supervisor.run(|event| told.tell(event)).await?;
        signal.abort();
        Ok(Answer::Yes)
    }

    async fn leave(&self, context: &Context, target: &Target) -> Result<Answer> {
        synced::leave(&target.address, context.access(target, OpenOptions::existing())).await?;
        if !context.quiet {
            crate::output::note!(
                "dfq: {} is an ordinary queue now, which nobody merges",
                whole(&target.address)
            );
        }
        Ok(Answer::Yes)
    }

    async fn adopt(&self, context: &Context, target: &Target) -> Result<Answer> {
        let Some(hub) = &target.hub else {
            return Err(invalid("say with which bucket: --adopt --with s3://bucket/prefix"));
        };
        let configured = target.settings.synced.as_ref().map(|synced| synced.period);
        let every = self.every.or(configured).unwrap_or(EVERY);
        let options = context.access(target, OpenOptions::existing());
        synced::adopt(&target.address, hub, every, options).await?;
        if !context.quiet {
            crate::output::note!(
                "dfq: {} is merged with {hub} from now on: run `dfq supervise {} --with {hub}`",
                whole(&target.address),
                crate::output::shell(&self.queue)
            );
        }
        Ok(Answer::Yes)
    }
}

/// Opens a supervisor of this folder.
pub(crate) async fn open(context: &Context, target: &Target, how: How) -> Result<Supervisor> {
    let options = context.access(target, OpenOptions::existing());
    Ok(Supervisor::open(&target.address, target.hub.clone(), options, how).await?)
}

/// Makes the folder if it is not there yet: as its hub says, else as dfq.toml says. If it should be there already, or if
/// that cannot be known, only if the caller is `sure`.
pub(crate) async fn make_folder(
    context: &Context,
    target: &Target,
    every: Option<Duration>,
    sure: bool,
) -> Result<()> {
    if !is_missing(context, target).await? {
        return Ok(());
    }
    let (Some(hub), Address::Directory(folder)) = (&target.hub, &target.address) else {
        return Err(no_queue(target));
    };
    let configured = target.settings.synced.as_ref().map(|synced| synced.period);
    let period = configured.or(every).unwrap_or(EVERY);
    let node = NewNode { folder, hub, wanted: target.settings.clone(), period, sure };
    let settings = node.settings(context.access(target, OpenOptions::existing())).await?;
    context.create(target, settings, false).await?;
    Ok(())
}

async fn is_missing(context: &Context, target: &Target) -> Result<bool> {
    match dfq::open(&target.address, context.access(target, OpenOptions::existing())).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        opened => Ok(opened.map(|_| false)?),
    }
}

fn no_queue(target: &Target) -> anyhow::Error {
    let there = whole(&target.address);
    let typed = crate::output::shell(&there);
    not_found(format!(
        "there is no queue at {there}; `dfq supervise {typed} --with s3://bucket/prefix` makes one that is merged with \
         that bucket"
    ))
}
