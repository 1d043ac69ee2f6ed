//! What a supervisor tells: a line for each pass that did something, and its status.

use std::time::Duration;

use anyhow::Result;
use dfq::config::Target;
use dfq::meter::{Counts, Prices};
use dfq::synced::{self, Event, Passed, Status, Supervisor};
use dfq::{Env, OpenOptions};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Answer, invalid};
use crate::output::{self, count};

/// A cadence that costs more than this a day says so.
const DEAR: f64 = 0.01;

/// A folder that was not merged for so many periods is behind.
const OLD_PERIODS: f64 = 5.0;

/// A page of a listing has so many names.
const PAGE: u64 = 1000;

#[derive(Serialize)]
struct PassJson<'a> {
    at: String,
    whole: bool,
    seconds: f64,
    requests: &'a Counts,
    dollars: f64,
    #[serde(flatten)]
    passed: &'a Passed,
}

/// Tells what comes of passes.
pub(crate) struct Told {
    env: Env,
    prices: Prices,
    json: bool,
    quiet: bool,
    verbose: bool,
    places: String,
    every: Duration,
    said_price: bool,
    troubles: Vec<String>,
    left: u64,
}

impl Told {
    pub(crate) fn new(context: &Context, supervisor: &Supervisor) -> Self {
        let (node, hub) = supervisor.places();
        Self {
            env: context.env.clone(),
            prices: context.prices(),
            json: context.json,
            quiet: context.quiet,
            verbose: context.verbose,
            places: format!("node '{node}' with {hub}"),
            every: supervisor.every(),
            said_price: false,
            troubles: Vec::new(),
            left: 0,
        }
    }

    /// Nothing was left undone.
    pub(crate) fn is_well(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn begin(&self) {
        self.say(&format!("merging {} every {}", self.places, output::duration(self.every)));
    }

    /// Tells it in words, whatever stdout is for.
    pub(crate) fn on_stderr(&mut self) {
        self.json = false;
    }

    pub(crate) fn say(&self, text: &str) {
        if !self.quiet {
            output::note!("dfq: {}", output::printable(text));
        }
    }

    pub(crate) fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Passed { passed, took, requests, whole } => {
                self.left = passed.left;
                self.pass(passed, took, &requests, whole);
            }
            Event::Failed(error) => {
                self.say(&format!(
                    "not merged: {error}; the folder works on, and it is tried again"
                ));
            }
            Event::Rests(other) => self.say(&format!(
                "process {} on {} merges this folder already; this one rests until that has ended",
                other.pid, other.host
            )),
        }
    }

    fn pass(&mut self, passed: &Passed, took: Duration, requests: &Counts, whole: bool) {
        if self.json {
            let line = PassJson {
                at: output::time(self.env.clock().wall()),
                whole,
                seconds: took.as_secs_f64(),
                requests,
                dollars: self.prices.dollars(requests),
                passed,
            };
            // Whoever reads it may have gone; the merge goes on.
            let _ = output::json_line(&line);
        } else if !passed.is_calm() || self.verbose {
            self.say(&format!("{} in {}", sentence(passed), output::duration(took)));
        }
        if whole {
            for trouble in passed.troubles.iter().filter(|it| !self.troubles.contains(it)) {
                self.say(trouble);
            }
            self.troubles.clone_from(&passed.troubles);
            self.price(passed.listed);
        }
    }

    /// Says once what it costs to look so often, if that is much.
    fn price(&mut self, listed: u64) {
        let pages = (listed / PAGE + 1) as f64;
        let passes = 86_400.0 / self.every.as_secs_f64().max(0.001);
        // And now and then a node tells of itself.
        let each = pages * self.prices.list + (self.prices.put + self.prices.get) / 3.0;
        let dollars = passes * each / 1e6;
        if !self.said_price && dollars > DEAR && requests_cost(&self.places) {
            self.say(&format!(
                "to look every {} costs about ${} a day, at {} a pass; --every changes that",
                output::duration(self.every),
                output::dollars(dollars),
                count(pages as u64, "page")
            ));
            self.said_price = true;
        }
    }
}

/// Only buckets charge for requests.
fn requests_cost(places: &str) -> bool {
    places.contains("://")
}

fn sentence(passed: &Passed) -> String {
    let Passed { up, down, removed, conflicts, renumbered, left, .. } = passed;
    let mut parts = vec![format!("{up} up, {down} down")];
    for (number, what) in
        [(removed, "removed"), (renumbered, "renumbered"), (left, "left for the next pass")]
    {
        if *number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    if *conflicts > 0 {
        parts.push(format!("{} kept (see `dfq conflicts`)", count(*conflicts, "conflict")));
    }
    parts.join(", ")
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

/// `--status`. Exit status 1, if the folder is behind.
pub(crate) async fn print_status(
    context: &Context,
    queue: &str,
    target: &Target,
) -> Result<Answer> {
    let options = context.access(target, OpenOptions::existing());
    let Some(status) = synced::status(&target.address, options).await? else {
        return Err(invalid(format!("'{queue}' is not a node of a synced queue")));
    };
    let (prices, now) = (context.prices(), context.env.clock().wall());
    let a_day = status.dollars_a_day(&prices, now);
    let is_well = !is_old(&status) && status.error.is_none();
    if context.json {
        let dollars = prices.dollars(&status.requests);
        output::json_line(&StatusJson { queue, status: &status, dollars, dollars_a_day: a_day })?;
        return Ok(Answer::yes_if(is_well));
    }
    let mut lines = vec![
        ("node", status.node.clone()),
        ("hub", status.hub.clone()),
        ("last merged", status.behind_s.map_or_else(|| "never".to_owned(), ago)),
    ];
    if let Some(last) = &status.last {
        let (listed, took) = (last.passed.listed, Duration::from_secs_f64(last.seconds.max(0.0)));
        let names = count(listed, "name");
        lines.push((
            "last pass",
            format!("{} in {}; {names} listed", sentence(&last.passed), output::duration(took)),
        ));
    }
    lines.push((
        "since it began",
        format!(
            "{}: {} up, {} down",
            count(status.passes, "pass").replace("passs", "passes"),
            output::thousands(status.up),
            output::thousands(status.down)
        ),
    ));
    let sent = status.requests.values().map(|count| count.sent).sum();
    let per_day = a_day.map(|it| format!(", about ${} a day", output::dollars(it)));
    let dollars = output::dollars(prices.dollars(&status.requests));
    let cost = format!("{}, ${dollars}{}", count(sent, "request"), per_day.unwrap_or_default());
    lines.push(("requests", cost));
    lines.push(("nodes heard of", status.nodes.join(", ")));
    lines.push(("conflicts", output::thousands(status.conflicts)));
    if let Some(error) = &status.error {
        lines.push(("failing", error.clone()));
    }
    for (name, value) in lines {
        output::line(&format!("{name:<16}{}", output::printable(&value)))?;
    }
    if let Some(warning) = warning(queue, &status) {
        output::note!("dfq: {}", output::printable(&warning));
    }
    Ok(Answer::yes_if(is_well))
}

fn ago(seconds: f64) -> String {
    format!("{} ago", output::duration(Duration::from_secs_f64(seconds.max(0.0))))
}

fn is_old(status: &Status) -> bool {
    status.behind_s.is_none_or(|behind| behind > status.every_s * OLD_PERIODS)
}

/// What a user of a synced queue should know, if anything.
fn warning(queue: &str, status: &Status) -> Option<String> {
    if let Some(old) = too_old(queue, status) {
        return Some(old);
    }
    let queue = output::shell(queue);
    match status.conflicts {
        0 => None,
        kept => {
            Some(format!("{} in {queue}; see `dfq conflicts {queue}`", count(kept, "conflict")))
        }
    }
}

/// That a queue was not merged for long, if so.
pub(crate) fn too_old(queue: &str, status: &Status) -> Option<String> {
    let queue = output::shell(queue);
    let when = match status.behind_s {
        None => "was never merged".to_owned(),
        Some(behind) => format!("was last merged {}", ago(behind)),
    };
    let text =
        format!("{queue} {when}: other machines see nothing of it; run `dfq supervise {queue}`");
    is_old(status).then_some(text)
}

/// The same for a queue of any kind: nothing, if it is not synced.
pub(crate) async fn warn(context: &Context, queue: &str) -> Option<String> {
    let target = context.target(queue).ok()?;
    if !matches!(target.address, dfq::Address::Directory(_)) {
        return None;
    }
    let options = context.access(&target, OpenOptions::existing());
    let status = synced::status(&target.address, options).await.ok()??;
    warning(queue, &status)
}
