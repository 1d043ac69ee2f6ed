//! Merging beside the work, for queues that are synced; and a warning, if nobody merges them.

use std::time::Duration;

use anyhow::Result;
use dfq::Env;
use dfq::clock::Running;
use dfq::synced::{How, LeftToOthers};
use tokio_util::sync::CancellationToken;

use crate::commands::supervise::state::{Look, Merge};
use crate::commands::supervise::{self, told};
use crate::context::Context;
use crate::exit::{invalid, stop_signal};

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
            if Merge::of(context, name).await?.is_none() {
                continue;
            }
            let target = context.target(name)?;
            let how = How { stop: stop.clone(), ..How::default() };
            let mut supervisor = supervise::open(context, &target, how).await?;
            let (mut told, env) = (told::Told::new(context, &supervisor), context.env.clone());
            told.on_stderr();
            // A folder in the middle may be on a network that hangs: the work goes on.
            running.push(context.env.spawn_blocking(async move {
                if let Err(error) = supervisor.run(|event| told.tell(event)).await {
                    told.say(&format!("the merge has ended, and the work goes on: {error}"));
                    return;
                }
                // What was done last is to be seen elsewhere, too.
                tokio::select! {
                    _ = supervisor.last(|event| told.tell(event)) => {}
                    () = env.clock().sleep(LAST) => told.say("what was done last is not merged yet; the next pass does that"),
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
    pub(super) fn watch(context: &Context, queues: &[String]) -> Result<Self> {
        let stop = CancellationToken::new();
        let mut running = Vec::new();
        for name in queues {
            let Some(look) = Look::new(context, name)? else { continue };
            let (env, stop) = (context.env.clone(), stop.clone());
            running.push(context.env.spawn(async move {
                let mut warned = false;
                // Until it is known that it is not synced.
                while let Some(merge) = look.look().await.transpose() {
                    let late = merge.ok().filter(Merge::is_late).and_then(|it| it.trouble());
                    if let Some(late) = late.as_ref().filter(|_| !warned) {
                        crate::output::note!("dfq: {}", crate::output::printable(late));
                    }
                    warned = late.is_some();
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = env.clock().sleep(LOOK_EVERY) => {}
                    }
                }
            }));
        }
        Ok(Self { env: context.env.clone(), stop, running })
    }

    /// Merges once more, and ends; at once after another signal.
    pub(super) async fn end(self) {
        self.stop.cancel();
        let last = futures::future::join_all(self.running);
        tokio::select! {
            _ = last => {}
            _ = stop_signal(CancellationToken::new()) => {}
            () = self.env.clock().sleep(LAST * 2) => {}
        }
    }
}

/// Makes the folders that are not there yet.
pub(super) async fn make_folders(context: &Context, queues: &[String]) -> Result<()> {
    for name in queues {
        let target = context.target(name)?;
        if target.hub.is_some() {
            supervise::make_folder(context, &target, None, false).await?;
        }
    }
    Ok(())
}

/// How many tasks workers here leave to other nodes for now. Nothing, if no queue is synced.
pub(super) async fn count_left(
    context: &Context,
    queues: &[String],
) -> Result<Option<LeftToOthers>> {
    let mut left = None;
    for name in queues {
        if let Some(look) = Look::new(context, name)?
            && look.look().await?.is_some()
        {
            let (before, more) = (left.unwrap_or_default(), look.count_left().await?);
            let LeftToOthers { tasks, at_least } = before;
            let at_least = at_least || more.at_least;
            left = Some(LeftToOthers { tasks: tasks + more.tasks, at_least });
        }
    }
    Ok(left)
}
