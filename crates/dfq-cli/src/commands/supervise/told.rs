//! What a supervisor tells: a line for each pass that did something, and what keeps it from merging.

use std::time::Duration;

use dfq::Env;
use dfq::meter::{Bytes, Counts, Prices};
use dfq::synced::{Event, Passed, Supervisor};
use serde::Serialize;

use crate::context::Context;
use crate::output::{self, count};

/// A cadence that costs more than this a day says so.
const DEAR: f64 = 0.01;

/// A page of a listing has so many names.
const PAGE: u64 = 1000;

#[derive(Serialize)]
struct PassJson<'a> {
    at: String,
    whole: bool,
    seconds: f64,
    requests: &'a Counts,
    bytes: Bytes,
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
    /// How often the queue asks for a pass.
    period: Duration,
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
            period: supervisor.period(),
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
            Event::Passed { passed, took, requests, bytes, whole } => {
                self.left = passed.left;
                self.pass(passed, took, (&requests, bytes), whole);
            }
            Event::Failed(error) => {
                let every = output::duration(self.every);
                self.say(&format!("not merged: {error}; it is tried again every {every}"));
            }
            Event::Rests(other) => self.say(&format!(
                "process {} on {} merges this folder already; this one rests until that has ended",
                other.pid, other.host
            )),
        }
    }

    fn pass(
        &mut self,
        passed: &Passed,
        took: Duration,
        (requests, bytes): (&Counts, Bytes),
        whole: bool,
    ) {
        if self.json {
            let line = PassJson {
                at: output::time(self.env.clock().wall()),
                whole,
                seconds: took.as_secs_f64(),
                requests,
                bytes,
                dollars: self.prices.dollars(requests),
                passed,
            };
            // The merge goes on, though nobody may read this any more.
            let _ = output::json_line(&line);
        } else if !passed.is_calm() || self.verbose {
            let mut text = format!("{} in {}", sentence(passed), output::duration(took));
            if bytes != Bytes::default() {
                let (sent, received) = (output::bytes(bytes.sent), output::bytes(bytes.received));
                text += &format!("; {sent} sent, {received} received");
            }
            self.say(&text);
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
        let a_day = |every: Duration| 86_400.0 / every.as_secs_f64().max(0.001);
        // And once in three periods a node tells of itself.
        let check_ins = a_day(self.period * 3) * (self.prices.put + self.prices.get);
        let price = |every: Duration| (a_day(every) * pages * self.prices.list + check_ins) / 1e6;
        let dollars = price(self.every);
        if !self.said_price && dollars > DEAR && requests_cost(&self.places) {
            let hint = match self.every < self.period {
                true => format!(
                    "without --every, every {}, it is ${}",
                    output::duration(self.period),
                    output::dollars(price(self.period))
                ),
                false => {
                    "a longer period (sync_every) costs less, and must be the same on all machines"
                        .to_owned()
                }
            };
            self.say(&format!(
                "to look every {} costs about ${} a day, at {} a pass; {hint}",
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

/// What a pass did.
pub(super) fn sentence(passed: &Passed) -> String {
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
