//! `dfq init`: make a queue with settings of one's own.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::address::Address;
use dfq::model::{Backoff, Durability, Layout, Shared};
use dfq::{ErrorKind, OpenOptions, Settings};

use crate::args::duration;
use crate::context::{Context, whole};
use crate::exit::{Answer, invalid};

/// Make a queue, with settings of one's own
///
/// The first push makes a queue too, with the settings of dfq.toml or the defaults shown here. A
/// queue's settings are kept in its queue.json and hold for everyone who uses it.
#[derive(Args, Debug)]
pub(crate) struct Init {
    /// The queue
    queue: String,
    /// How names are laid out: in 256 folders by hash, or all in one
    #[arg(long, value_enum)]
    layout: Option<LayoutName>,
    /// Who may use it: whoever their umask lets in, or every member of the folder's group
    #[arg(long, value_enum)]
    shared: Option<SharedName>,
    /// For how long a claim holds without a heartbeat [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// How many failures end a task [default: 5]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How many leases that ran out end a task [default: 10]
    #[arg(long, value_name = "N")]
    max_lost: Option<u32>,
    /// The wait after the first failure; it doubles with each further one [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    backoff: Option<Duration>,
    /// The longest wait between attempts [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    backoff_max: Option<Duration>,
    /// What a push or ack that returned survives: a power cut, or only the process
    #[arg(long, value_enum)]
    durability: Option<DurabilityName>,
    /// Go on though `dfq doctor` found the store unsafe: tasks may be done twice
    #[arg(long)]
    allow_unsafe: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutName {
    Sharded,
    Flat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SharedName {
    Umask,
    Group,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityName {
    Durable,
    Relaxed,
}

impl Init {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let target = context.target(&self.queue)?;
        let existing = context.access(&target, OpenOptions::existing());
        match dfq::open(&target.address, existing).await {
            Ok(_) => {
                let there = whole(&target.address);
                let hint = match target.address {
                    Address::Sqs(_) => "its settings are SQS's own attributes",
                    _ => "its settings stand in queue.json",
                };
                return Err(invalid(format!("{there} is a queue already; {hint}")));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let made_at = Some(context.env.clock().wall());
        let settings = Settings { created_at: made_at, ..self.settings(target.settings.clone()) };
        let made = context.create(&target, settings.clone(), self.allow_unsafe).await?;
        // Of several at once one is first; the others must not believe in settings that do not count.
        if !matches!(target.address, Address::Sqs(_)) && *made.settings() != settings {
            return Err(invalid(format!(
                "{} was made just now by somebody else, whose settings stand in queue.json",
                whole(&target.address)
            )));
        }
        Ok(Answer::Yes)
    }

    /// Flags before dfq.toml before defaults.
    fn settings(&self, configured: Settings) -> Settings {
        Settings {
            layout: self.layout.map_or(configured.layout, |layout| match layout {
                LayoutName::Sharded => Layout::Sharded,
                LayoutName::Flat => Layout::Flat,
            }),
            shared: self.shared.map_or(configured.shared, |shared| match shared {
                SharedName::Umask => Shared::Umask,
                SharedName::Group => Shared::Group,
            }),
            durability: self.durability.map_or(
                configured.durability,
                |durability| match durability {
                    DurabilityName::Durable => Durability::Durable,
                    DurabilityName::Relaxed => Durability::Relaxed,
                },
            ),
            lease: self.lease.unwrap_or(configured.lease),
            max_attempts: self.max_attempts.unwrap_or(configured.max_attempts),
            max_lost: self.max_lost.unwrap_or(configured.max_lost),
            backoff: Backoff {
                base: self.backoff.unwrap_or(configured.backoff.base),
                max: self.backoff_max.unwrap_or(configured.backoff.max),
            },
            ..configured
        }
    }
}
