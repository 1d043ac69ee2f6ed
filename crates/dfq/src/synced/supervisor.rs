//! The loop that merges a folder with its hub: whole passes on time, and what arrives in between at once.
//!
//! Invariant: it can be stopped, killed or cut off anywhere, and the next pass goes on from there. While the hub does
//! not answer, the folder works on.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::status::{LastPass, Status};
use crate::address::Address;
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::{Bytes, Counts, since};
use crate::model::{Settings, Synced};
use crate::options::OpenOptions;
use crate::provider;
use crate::queue::merge::{Arrived, MergeOptions, Merging, Passed, SupervisorDoc};
use crate::queue::{Queue, TreeQueue};
use crate::store::fs::{Arrivals, Filesystem, News};

/// Arrivals are collected for so long.
const COLLECT: Duration = Duration::from_millis(100);

/// Whole passes that arrivals ask for are at least so far apart.
const SHORTEST: Duration = Duration::from_secs(1);

/// The longest time between two signs that this process merges the folder.
const LONGEST_TURN: Duration = Duration::from_secs(10);

/// How to supervise.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// How often whole passes begin; at most the queue's own period, which is the default.
    pub every: Option<Duration>,
    /// Go on though the folder was away for long, or is empty though it was a node's.
    pub sure: bool,
    /// Ends it, also in the middle of a pass.
    pub stop: CancellationToken,
}

/// What people may want to hear of.
#[derive(Debug)]
pub enum Event<'a> {
    /// A pass, or the merge of what has arrived, has come to its end.
    Passed {
        /// What came of it.
        passed: &'a Passed,
        /// How long it took.
        took: Duration,
        /// What it asked of the hub.
        requests: Counts,
        /// What went to the hub and came from it, if it is a bucket.
        bytes: Bytes,
        /// It was a whole pass.
        whole: bool,
    },
    /// A pass has failed for the first time, or for another reason than the one before.
    Failed(&'a Error),
    /// Another process merges this folder, so this one rests.
    Rests(&'a SupervisorDoc),
}

/// A folder that is to be merged with its hub.
pub struct Supervisor {
    folder: TreeQueue<Filesystem>,
    hub: Address,
    options: OpenOptions,
    how: How,
    every: Duration,
    own: SupervisorDoc,
    merge: Option<Box<dyn Merging>>,
    status: Status,
}

impl Supervisor {
    /// Opens the folder, which must be a node of a synced queue. The hub may be out of reach.
    pub async fn open(
        folder: &Address,
        hub: Option<Address>,
        options: OpenOptions,
        how: How,
    ) -> Result<Self> {
        // Others may share the meter that was given; what is told is of this folder alone.
        let options = OpenOptions { meter: options.meter.for_part(), ..options };
        let local = OpenOptions { create: None, ..options.clone() };
        let queue = provider::open_folder(folder, local).await?;
        let synced = check_node(&queue, folder)?;
        let every = how.every.unwrap_or(synced.period);
        check_every(every)?;
        if every > synced.period {
            return Err(Error::invalid(format!(
                "every {every:?} is too seldom: the other nodes count on a merge every {:?}, as queue.json says; leave out \
                 --every, or name a shorter time",
                synced.period
            )));
        }
        let hub = match hub {
            Some(hub) => hub,
            None => queue.node().await?.with.ok_or_else(|| no_hub(folder))?.parse()?,
        };
        let (env, host) = (options.env.clone(), options.env.host().clone());
        let own = SupervisorDoc { nonce: env.nonce(), host: host.name.clone(), pid: host.pid };
        let status = Status {
            hub: hub.to_string(),
            node: queue.node().await?.node,
            pid: own.pid,
            started_at: Some(env.clock().wall()),
            every_s: every.as_secs_f64(),
            ..Status::default()
        };
        Ok(Self { folder: queue, hub, options, how, every, own, merge: None, status })
    }

    /// The node and its hub.
    pub fn places(&self) -> (&str, &Address) {
        (&self.status.node, &self.hub)
    }

    /// How often whole passes begin.
    pub fn every(&self) -> Duration {
        self.every
    }

    /// How often the queue asks for one.
    pub fn period(&self) -> Duration {
        self.folder.settings().synced.as_ref().map_or(self.every, |synced| synced.period)
    }

    /// One whole pass more, after it was stopped.
    pub async fn last(&mut self, mut tell: impl FnMut(Event<'_>)) -> Result<()> {
        let passed = self.pass(&mut tell).await;
        self.save().await;
        passed
    }

    /// Writes down what is known to be alike. It is a cache, so nothing is wrong if that fails.
    async fn save(&mut self) {
        if let Some(merge) = &mut self.merge
            && let Err(error) = merge.save().await
        {
            tracing::warn!(%error, "the next pass reads everything again");
        }
    }

    /// One whole pass, whoever else merges this folder; whether it came to its end before it was stopped.
    pub async fn once(&mut self, mut tell: impl FnMut(Event<'_>)) -> Result<bool> {
        let stop = self.how.stop.clone();
        let passed = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(false),
            passed = self.pass(&mut tell) => passed.map(|()| true),
        };
        self.save().await;
        passed
    }

    /// Merges until it is stopped.
    pub async fn run(&mut self, mut tell: impl FnMut(Event<'_>)) -> Result<()> {
        let stop = self.how.stop.clone();
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            ended = self.merge_on_time(&mut tell) => ended,
        };
        self.save().await;
        let _ = self.folder.end_turn(&self.own).await;
        ended
    }

    async fn merge_on_time(&mut self, tell: &mut impl FnMut(Event<'_>)) -> Result<()> {
        let env = self.options.env.clone();
        let root = match self.folder.address() {
            path if path.starts_with('/') => Arrivals::start(Path::new(path)),
            _ => None,
        };
        let mut arrivals = root;
        let mut rests = None;
        loop {
            // A turn only saves work: if it cannot be noted, as on a full disk, the merge goes on.
            let turn = self.folder.take_turn(&self.own, self.turn() * 3).await;
            if let Ok(Some(other)) = turn {
                if rests.as_ref() != Some(&other) {
                    tell(Event::Rests(&other));
                    rests = Some(other);
                }
                env.clock().sleep(self.turn()).await;
                continue;
            }
            rests = None;
            let (began, earlier) = (env.monotonic(), self.status.error.clone());
            match self.pass(tell).await {
                Err(error) if !may_pass(&error) => return Err(error),
                Err(error) if self.status.error != earlier => tell(Event::Failed(&error)),
                _ => {}
            }
            self.until_next(&env, began, &mut arrivals, tell).await?;
        }
    }

    /// How often this process says that it merges the folder.
    fn turn(&self) -> Duration {
        (self.every / 3).clamp(Duration::from_millis(100), LONGEST_TURN)
    }

    /// Waits for the next whole pass, and merges what arrives until then.
    async fn until_next(
        &mut self,
        env: &Env,
        began: Duration,
        arrivals: &mut Option<Arrivals>,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<()> {
        let (mut next, mut turn) = (began + self.every, env.monotonic() + self.turn());
        loop {
            let now = env.monotonic();
            if now >= next {
                return Ok(());
            }
            if now >= turn {
                let turn_of = self.folder.take_turn(&self.own, self.turn() * 3).await;
                if matches!(turn_of, Ok(Some(_))) {
                    return Ok(());
                }
                turn = now + self.turn();
            }
            let news = tokio::select! {
                biased;
                news = next_news(arrivals) => news,
                () = env.clock().sleep(next.min(turn).saturating_sub(now)) => continue,
            };
            let soon = next.min(began + SHORTEST).max(env.monotonic());
            match news {
                None => *arrivals = None,
                Some(News::Unknown) => next = soon,
                Some(News::Names(names)) => {
                    let mut paths: Vec<String> = names.into_iter().collect();
                    env.clock().sleep(COLLECT).await;
                    paths.extend(self.more(arrivals).await);
                    if !self.merge_arrived(&paths, tell).await {
                        next = soon;
                    }
                }
            }
        }
    }

    /// What else has arrived by now.
    async fn more(&self, arrivals: &mut Option<Arrivals>) -> Vec<String> {
        let at_once = self.options.env.clock().sleep(Duration::from_millis(1));
        tokio::select! {
            biased;
            news = next_news(arrivals) => match news {
                Some(News::Names(names)) => names.into_iter().collect(),
                _ => Vec::new(),
            },
            () = at_once => Vec::new(),
        }
    }

    /// Whether that was all.
    async fn merge_arrived(&mut self, paths: &[String], tell: &mut impl FnMut(Event<'_>)) -> bool {
        // Without a hub all waits for the next pass.
        let (began, asked) = (self.options.env.monotonic(), self.asked());
        let Some(merge) = &mut self.merge else { return true };
        match merge.merge_arrived(paths).await {
            Ok(Arrived::Nothing) => true,
            Ok(Arrived::TooMuch) => false,
            Ok(Arrived::Merged(passed)) => {
                self.status.up += passed.up;
                self.status.down += passed.down;
                let took = self.options.env.monotonic().saturating_sub(began);
                let (requests, bytes) = self.asked_since(&asked);
                tell(Event::Passed { passed: &passed, took, requests, bytes, whole: false });
                true
            }
            Err(error) => {
                tracing::debug!(%error, "what has arrived waits for the next pass");
                true
            }
        }
    }

    /// A whole pass, and what is written down of it.
    async fn pass(&mut self, tell: &mut impl FnMut(Event<'_>)) -> Result<()> {
        let env = self.options.env.clone();
        let (began, asked) = (env.monotonic(), self.asked());
        let passed = self.try_pass().await;
        let took = env.monotonic().saturating_sub(began);
        let wall: Timestamp = env.clock().wall();
        (self.status.requests, self.status.bytes) = self.asked();
        match &passed {
            Ok(passed) => {
                self.status.passes += 1;
                self.status.up += passed.up;
                self.status.down += passed.down;
                let (seconds, passed) = (took.as_secs_f64(), passed.clone());
                self.status.last = Some(LastPass { at: wall, seconds, passed });
                (self.status.error, self.status.failing_since) = (None, None);
            }
            Err(error) => {
                self.status.error = Some(error.to_string());
                self.status.failing_since.get_or_insert(wall);
            }
        }
        if let Some(merge) = &self.merge {
            self.status.node = merge.node().to_owned();
        }
        let written = self.folder.put_status(&self.status).await;
        let passed = passed?;
        // If the pass has failed, too, its own error says more.
        if let Err(error) = written {
            tracing::warn!(%error, "what the pass came to cannot be written down");
        }
        let (requests, bytes) = self.asked_since(&asked);
        tell(Event::Passed { passed: &passed, took, requests, bytes, whole: true });
        Ok(())
    }

    /// What was asked of the hub so far.
    fn asked(&self) -> (Counts, Bytes) {
        (self.options.meter.counts(), self.options.meter.bytes())
    }

    fn asked_since(&self, (requests, bytes): &(Counts, Bytes)) -> (Counts, Bytes) {
        let now = self.asked();
        (since(&now.0, requests), now.1.since(*bytes))
    }

    async fn try_pass(&mut self) -> Result<Passed> {
        if self.merge.is_none() {
            let own = self.folder.settings();
            let synced = own.synced.clone().map(|synced| Synced { hub: true, ..synced });
            let hub = Settings { synced, created_at: None, ..own.clone() };
            // One that had this node and is not there is out of reach, or was lost: nothing to make in silence.
            let is_new = self.how.sure || !self.folder.node().await?.known;
            let options = OpenOptions { create: is_new.then_some(hub), ..self.options.clone() };
            let how = MergeOptions { sure: self.how.sure };
            self.merge = Some(provider::merge(&self.folder, &self.hub, options, how).await?);
        }
        let Some(merge) = &mut self.merge else { return Ok(Passed::default()) };
        merge.pass(false).await
    }
}

/// An error if nobody may merge so often.
pub fn check_every(every: Duration) -> Result<()> {
    match every < SHORTEST {
        true => Err(Error::invalid(format!(
            "every {every:?} is too often: {SHORTEST:?} is the shortest time between two passes"
        ))),
        false => Ok(()),
    }
}

async fn next_news(arrivals: &mut Option<Arrivals>) -> Option<News> {
    match arrivals {
        Some(arrivals) => arrivals.next().await,
        None => std::future::pending().await,
    }
}

/// Whether the next pass may go better.
fn may_pass(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Incompatible | ErrorKind::Unsupported)
}

fn check_node(queue: &TreeQueue<Filesystem>, folder: &Address) -> Result<Synced> {
    match &queue.settings().synced {
        Some(synced) if !synced.hub => Ok(synced.clone()),
        Some(_) => Err(Error::invalid(format!(
            "'{folder}' is the hub of a synced queue; name the folder of a node"
        ))),
        None => Err(Error::invalid(format!(
            "'{folder}' is not a synced queue; `dfq supervise --adopt --with BUCKET` makes it one, while no worker is \
             alive"
        ))),
    }
}

fn no_hub(folder: &Address) -> Error {
    Error::invalid(format!("'{folder}' was never merged: name its bucket with --with"))
}
