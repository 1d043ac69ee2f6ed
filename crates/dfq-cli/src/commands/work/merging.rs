//! Merging beside the work, for queues that are synced; and a warning, if nobody merges them.

use std::time::Duration;

use anyhow::Result;
use dfq::clock::Running;
use dfq::config::Target;
use dfq::synced::{self, How};
use dfq::{Address, Env, OpenOptions};
use tokio_util::sync::CancellationToken;

use crate::commands::supervise::{self, told};
use crate::context::Context;
use crate::exit::invalid;

/// How often a worker looks whether its queues are merged.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How long the last merge may take, which brings to others what was done here.
const LAST: Duration = Duration::from_secs(30);

/// What goes on beside the work.
pub(super) struct Merging {
    env: Env,
    stop: CancellationToken,
    running: Vec<Running<()>>,
}

impl Merging {
    /// Merges those of the queues that are synced.
    pub(super) async fn start(context: &Context, queues: &[String]) -> Result<Self> {
        let stop = CancellationToken::new();
        let mut running = Vec::new();
        for name in queues {
            let target = context.target(name)?;
            if !is_synced(context, &target).await? {
                continue;
            }
            let how = How { stop: stop.clone(), ..How::default() };
            let mut supervisor = supervise::open(context, &target, how).await?;
            let (mut told, env) = (told::Told::new(context, &supervisor), context.env.clone());
            told.on_stderr();
            running.push(context.env.spawn(async move {
                if let Err(error) = supervisor.run(|event| told.tell(event)).await {
                    told.say(&format!("not merged any more: {error}"));
                    return;
                }
                // What was done last is to be seen elsewhere, too.
                tokio::select! {
                    _ = supervisor.last(|event| told.tell(event)) => {}
                    () = env.clock().sleep(LAST) => told.say("what was done last is not merged yet"),
                }
            }));
        }
        match running.is_empty() {
            true => {
                Err(invalid("none of these queues is synced, so there is nothing to supervise"))
            }
            false => Ok(Self { env: context.env.clone(), stop, running }),
        }
    }

    /// Warns, if one of the queues is synced and was not merged for long.
    pub(super) async fn watch(context: &Context, queues: &[String]) -> Result<Self> {
        let stop = CancellationToken::new();
        let mut running = Vec::new();
        for name in queues {
            let target = context.target(name)?;
            if !is_synced(context, &target).await? {
                continue;
            }
            let options = context.access(&target, OpenOptions::existing());
            let (name, env, stop) = (name.clone(), context.env.clone(), stop.clone());
            running.push(context.env.spawn(async move {
                let mut warned = None;
                loop {
                    let status = synced::status(&target.address, options.clone()).await;
                    let warning = status.ok().flatten().and_then(|it| told::too_old(&name, &it));
                    if warning.is_some() && warned.is_none() {
                        let text = warning.as_deref().unwrap_or_default();
                        crate::output::note!("dfq: {}", crate::output::printable(text));
                    }
                    warned = warning;
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = env.clock().sleep(LOOK_EVERY) => {}
                    }
                }
            }));
        }
        Ok(Self { env: context.env.clone(), stop, running })
    }

    /// Merges once more, and ends.
    pub(super) async fn end(self) {
        self.stop.cancel();
        for task in self.running {
            tokio::select! {
                _ = task => {}
                () = self.env.clock().sleep(LAST * 2) => {}
            }
        }
    }
}

/// Makes the folders that are not there yet.
pub(super) async fn make_folders(context: &Context, queues: &[String]) -> Result<()> {
    for name in queues {
        let target = context.target(name)?;
        if target.hub.is_some() {
            supervise::make_folder(context, &target, None).await?;
        }
    }
    Ok(())
}

async fn is_synced(context: &Context, target: &Target) -> Result<bool> {
    if !matches!(target.address, Address::Directory(_)) {
        return Ok(false);
    }
    let options = context.access(target, OpenOptions::existing());
    Ok(synced::status(&target.address, options).await?.is_some())
}
