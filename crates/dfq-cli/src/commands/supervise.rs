//! `dfq supervise`: merges a folder with its bucket, so that workers here and elsewhere share a queue.

pub(crate) mod told;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::address::Address;
use dfq::config::Target;
use dfq::synced::{self, How, Supervisor};
use dfq::{ErrorKind, OpenOptions, Settings};
use tokio_util::sync::CancellationToken;

use crate::args::duration;
use crate::context::{Context, whole};
use crate::exit::{Answer, invalid, stop_signal};
use told::Told;

/// Merge a folder with its bucket, again and again
///
/// Workers, pushes and all other commands use the folder, also while there is no network. The supervisor of each
/// machine merges its folder with the bucket, up and down: at the period of the queue, and what is pushed or done
/// here within a second. It may be killed at any time, and the next one goes on from there. Of several on one folder,
/// all but one rest.
///
/// QUEUE is a name whose provider is 'synced' in dfq.toml, or a folder; the first time, say --with. A task may be done
/// on two machines if both claim it within one period; leases must be at least two periods long.
#[derive(Args, Debug)]
pub(crate) struct Supervise {
    /// The queue
    queue: String,
    /// The bucket in the middle, or another folder; by default the one of dfq.toml, or the last one
    #[arg(long, value_name = "BUCKET")]
    with: Option<String>,
    /// How often; more often than the queue's own period costs more, less often is refused
    #[arg(long, value_name = "TIME", value_parser = duration)]
    every: Option<Duration>,
    /// Merge once, and end
    #[arg(long, conflicts_with_all = ["status", "adopt", "leave"])]
    once: bool,
    /// Tell how it goes: when the last pass was, what it did, and what it costs
    #[arg(long, conflicts_with_all = ["adopt", "leave"])]
    status: bool,
    /// Make an existing queue, and an existing bucket, places of a synced one, while no worker is alive
    #[arg(long, conflicts_with = "leave")]
    adopt: bool,
    /// Make the folder an ordinary queue again, while no worker is alive. The bucket stays as it is
    #[arg(long)]
    leave: bool,
    /// Go on though the folder was away for months, or is new where another was
    #[arg(short, long)]
    yes: bool,
}

/// How often queues are merged that nobody says more of.
const EVERY: Duration = Duration::from_secs(60);

impl Supervise {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let mut target = context.target(&self.queue)?;
        if let Some(with) = &self.with {
            target.hub = Some(context.target(with)?.address);
        }
        if self.status {
            return told::print_status(context, &self.queue, &target).await;
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
        make_folder(context, &target, self.every).await?;
        let stop = CancellationToken::new();
        let how = How { every: self.every, sure: self.yes, stop: stop.clone() };
        let mut supervisor = open(context, &target, how).await?;
        let mut told = Told::new(context, &supervisor);
        if self.once {
            let signal = context.env.spawn(stop_signal(stop));
            supervisor.once(|event| told.tell(event)).await?;
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

/// Makes the folder if it is not there yet: as its hub says, else as dfq.toml says.
pub(crate) async fn make_folder(
    context: &Context,
    target: &Target,
    every: Option<Duration>,
) -> Result<()> {
    let existing = context.access(target, OpenOptions::existing());
    match dfq::open(&target.address, existing.clone()).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Ok(()),
    }
    let Some(hub) = &target.hub else {
        return Err(invalid(format!(
            "there is no queue at {}; to make one that is merged with a bucket, say --with s3://bucket/prefix",
            whole(&target.address)
        )));
    };
    let configured = target.settings.synced.as_ref().map(|synced| synced.period);
    let every = configured.or(every).unwrap_or(EVERY);
    let settings: Settings =
        synced::settings_for(hub, target.settings.clone(), every, existing).await?;
    context.create(target, settings, false).await?;
    Ok(())
}
