//! How the merge of a node's folder goes, for those who look: in a line or two, in JSON, and in full for `--status`.

use std::time::Duration;

use anyhow::Result;
use dfq::config::Target;
use dfq::meter::Prices;
use dfq::queue::TaskView;
use dfq::synced::{self, LeftToOthers, Status, TaskHere};
use dfq::{Address, OpenOptions};
use jiff::Timestamp;
use serde::Serialize;

use super::told::sentence;
use crate::context::Context;
use crate::exit::{Answer, invalid};
use crate::output::{self, count};

/// A folder that was not merged for so many periods is behind.
const OLD_PERIODS: f64 = 5.0;

/// The merge of a queue, as its supervisor wrote it down.
pub(crate) struct Merge {
    /// The queue as it is typed.
    queue: String,
    status: Status,
    prices: Prices,
    now: Timestamp,
}

/// The same for programs.
#[derive(Debug, Serialize)]
pub(crate) struct MergeJson {
    node: String,
    hub: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    behind_seconds: Option<f64>,
    /// It was not merged for five periods.
    late: bool,
    up: u64,
    down: u64,
    requests: u64,
    bytes_sent: u64,
    bytes_received: u64,
    dollars: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dollars_a_day: Option<f64>,
    conflicts: u64,
    /// What keeps it from merging.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// How to look at the merge of a folder, once or again and again.
pub(crate) struct Look {
    queue: String,
    target: Target,
    options: OpenOptions,
    prices: Prices,
}

impl Look {
    /// At a queue as it is typed. Only a folder can be a node.
    pub(crate) fn new(context: &Context, queue: &str) -> Result<Option<Self>> {
        let target = context.target(queue)?;
        if !matches!(target.address, Address::Directory(_)) {
            return Ok(None);
        }
        let options = context.access(&target, OpenOptions::existing());
        Ok(Some(Self { queue: output::shell(queue), target, options, prices: context.prices() }))
    }

    /// Nothing, if the queue is not a node of a synced one.
    pub(crate) async fn look(&self) -> Result<Option<Merge>> {
        let status = synced::status(&self.target.address, self.options.clone()).await?;
        let Some(mut status) = status else { return Ok(None) };
        if status.hub.is_empty() {
            status.hub = self.target.hub.as_ref().map(ToString::to_string).unwrap_or_default();
        }
        let (queue, prices, now) =
            (self.queue.clone(), self.prices, self.options.env.clock().wall());
        Ok(Some(Merge { queue, status, prices, now }))
    }

    /// What a node knows of a task. Nothing, if this is not one.
    pub(crate) async fn task(&self, view: &TaskView) -> Result<TaskHere> {
        Ok(synced::task_here(&self.target.address, self.options.clone(), view).await?)
    }

    /// How many tasks workers here leave to other nodes for now.
    pub(crate) async fn count_left(&self) -> Result<LeftToOthers> {
        Ok(synced::count_left_to_others(&self.target.address, self.options.clone()).await?)
    }
}

impl Merge {
    /// Nothing, if the queue is not a node of a synced one.
    pub(crate) async fn of(context: &Context, queue: &str) -> Result<Option<Self>> {
        match Look::new(context, queue)? {
            Some(look) => look.look().await,
            None => Ok(None),
        }
    }

    /// It was not merged for long.
    pub(crate) fn is_late(&self) -> bool {
        let every = self.status.every_s;
        self.status.behind_s.is_none_or(|behind| behind > every * OLD_PERIODS)
    }

    fn requests(&self) -> u64 {
        self.status.requests.values().map(|count| count.sent).sum()
    }

    fn dollars(&self) -> f64 {
        self.prices.dollars(&self.status.requests)
    }

    fn dollars_a_day(&self) -> Option<f64> {
        self.status.dollars_a_day(&self.prices, self.now)
    }

    /// `24 requests, 1.2 KiB sent, 3.0 KiB received, $0.0001`.
    fn cost(&self) -> String {
        let (bytes, dollars) = (&self.status.bytes, output::dollars(self.dollars()));
        let (sent, received) = (output::bytes(bytes.sent), output::bytes(bytes.received));
        format!(
            "{}, {sent} sent, {received} received, ${dollars}",
            count(self.requests(), "request")
        )
    }

    /// When it was merged, and what that took since the supervisor began.
    pub(crate) fn line(&self) -> String {
        let Status { behind_s, up, down, last, started_at, hub, conflicts, .. } = &self.status;
        let mut line =
            behind_s.map_or("never merged".to_owned(), |it| format!("merged {}", ago(it)));
        if let Some((last, started)) = last.as_ref().zip(*started_at) {
            line += &format!(": {} up, {} down", output::thousands(*up), output::thousands(*down));
            if self.requests() > 0 {
                line += &format!(", {}", self.cost());
            }
            let ran = last.at.duration_since(started).unsigned_abs();
            line += &format!(", in {}", output::duration(ran));
        }
        if !hub.is_empty() {
            line += &format!("; the hub is {hub}");
        }
        if *conflicts > 0 {
            let (kept, queue) = (count(*conflicts, "conflict"), &self.queue);
            line += &format!("; {kept} in {queue} (see `dfq conflicts {queue}`)");
        }
        line
    }

    /// What keeps it from being merged, if anything.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (queue, behind) = (&self.queue, self.status.behind_s);
        let when = behind
            .map_or("was never merged".to_owned(), |it| format!("was last merged {}", ago(it)));
        match (&self.status.error, self.is_late()) {
            (Some(error), _) => Some(format!("{queue} {when}; now that fails: {error}")),
            (None, true) => Some(format!(
                "{queue} {when}: other machines see nothing new of it; run `dfq supervise {queue}`"
            )),
            (None, false) => None,
        }
    }

    pub(crate) fn json(&self) -> MergeJson {
        let status = &self.status;
        MergeJson {
            node: status.node.clone(),
            hub: status.hub.clone(),
            behind_seconds: status.behind_s,
            late: self.is_late(),
            up: status.up,
            down: status.down,
            requests: self.requests(),
            bytes_sent: status.bytes.sent,
            bytes_received: status.bytes.received,
            dollars: self.dollars(),
            dollars_a_day: self.dollars_a_day(),
            conflicts: status.conflicts,
            error: status.error.clone(),
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let status = &self.status;
        let mut rows = vec![
            ("node", status.node.clone()),
            ("hub", status.hub.clone()),
            ("last merged", status.behind_s.map_or_else(|| "never".to_owned(), ago)),
        ];
        if let Some(last) = &status.last {
            let (did, names) = (sentence(&last.passed), count(last.passed.listed, "name"));
            let took = output::duration(Duration::from_secs_f64(last.seconds.max(0.0)));
            rows.push(("last pass", format!("{did} in {took}; {names} listed")));
        }
        let (number, noun) = (status.passes, if status.passes == 1 { "pass" } else { "passes" });
        let passes = format!("{} {noun}", output::thousands(number));
        let (up, down) = (output::thousands(status.up), output::thousands(status.down));
        rows.push(("since it began", format!("{passes}: {up} up, {down} down")));
        let a_day =
            self.dollars_a_day().map(|it| format!(", about ${} a day", output::dollars(it)));
        rows.push(("requests", self.cost() + &a_day.unwrap_or_default()));
        rows.push(("nodes heard of", status.nodes.join(", ")));
        rows.push(("conflicts", output::thousands(status.conflicts)));
        rows.extend(status.error.clone().map(|error| ("failing", error)));
        rows
    }
}

#[derive(Serialize)]
struct StatusJson<'a> {
    queue: &'a str,
    #[serde(flatten)]
    status: &'a Status,
    dollars: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dollars_a_day: Option<f64>,
}

/// `--status`. Exit status 1, if the folder is behind or cannot be merged.
pub(crate) async fn print(context: &Context, queue: &str) -> Result<Answer> {
    let Some(merge) = Merge::of(context, queue).await? else {
        return Err(invalid(format!("'{queue}' is not a node of a synced queue")));
    };
    let (trouble, status) = (merge.trouble(), &merge.status);
    let answer = Answer::yes_if(trouble.is_none());
    if context.json {
        let (dollars, dollars_a_day) = (merge.dollars(), merge.dollars_a_day());
        output::json_line(&StatusJson { queue, status, dollars, dollars_a_day })?;
        return Ok(answer);
    }
    for (name, value) in merge.rows() {
        output::line(&format!("{name:<16}{}", output::printable(&value)))?;
    }
    // An error has a row of its own.
    if let Some(trouble) = trouble.filter(|_| status.error.is_none()) {
        output::note!("dfq: {}", output::printable(&trouble));
    }
    Ok(answer)
}

fn ago(seconds: f64) -> String {
    format!("{} ago", output::duration(Duration::from_secs_f64(seconds.max(0.0))))
}
