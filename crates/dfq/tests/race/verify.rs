//! Compares the workers' accounts with each other and with the tree.
//!
//! Whatever is held against the queue here is certain: "after" means that one call had returned
//! before the other began.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use dfq::Receipt;
use dfq_s3_server::Faults;

use crate::crew::Told;
use crate::journal::{self, Answer, Event, Verb};
use crate::site::{Found, Site};

/// One life of one task.
type Life = (String, u32);

/// What is known of one claim.
struct Claim {
    receipt: Receipt,
    journal: String,
    fence: u64,
    /// The poll.
    from: u64,
    to: u64,
    lease: u64,
    /// Until when it held by its owner's own account.
    alive: u64,
    /// When its owner began to let go of it.
    let_go: Option<u64>,
    /// Its owner gave it back, or was about to.
    given_back: bool,
    acking: bool,
    calls: Vec<Call>,
}

/// A call that was answered.
struct Call {
    verb: Verb,
    from: u64,
    to: u64,
    answer: Answer,
}

impl Claim {
    fn acked(&self) -> Option<&Call> {
        self.calls
            .iter()
            .find(|call| call.verb == Verb::Ack && matches!(call.answer, Answer::Ok(_)))
    }
}

#[derive(Default)]
struct Findings {
    wrong: Vec<String>,
    lives: BTreeMap<Life, Vec<Claim>>,
    /// Lives that somebody was told exist, and lives that somebody may have pushed.
    pushed: BTreeSet<Life>,
    maybe: BTreeSet<Life>,
    counts: BTreeMap<&'static str, usize>,
}

fn life(receipt: &Receipt) -> Life {
    (receipt.key().id().to_string(), receipt.key().generation())
}

pub(crate) async fn verify(site: &Site, told: &Told) -> Result<String, String> {
    let mut found = Findings::default();
    found.pushed.extend(told.tasks.iter().map(|id| (id.clone(), 1)));
    for name in &told.journals {
        // One killed before it could begin has none.
        let path = site.dir.join(name);
        if path.exists() {
            found.read(name, journal::read(&path)?);
        }
    }
    found.maybe.extend(found.pushed.iter().cloned());
    found.check_claims();
    found.check_calls();
    let failed = site.records("failed", told.own_server).await?;
    let completed = site.records("completed", told.own_server).await?;
    found.check_records(&failed, &completed, told);
    found.check_that_it_raced(told);
    found.conclude(told)
}

impl Findings {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn read(&mut self, journal: &str, events: Vec<Event>) {
        let mut own: BTreeMap<Receipt, Claim> = BTreeMap::new();
        let stray = |receipt: &Receipt| format!("{journal} did not claim {receipt}");
        for event in events {
            match event {
                Event::Claim { receipt, fence, from, to, lease } => {
                    // An owner leaves the last tenth of its lease unused, and the lease counts from
                    // some time within the poll.
                    let claim = Claim {
                        receipt: receipt.clone(),
                        journal: journal.to_owned(),
                        fence,
                        from,
                        to,
                        lease,
                        alive: from + lease - lease / 10,
                        let_go: None,
                        given_back: false,
                        acking: false,
                        calls: Vec::new(),
                    };
                    self.count("claims");
                    if own.insert(receipt, claim).is_some() {
                        self.wrong.push(format!("{journal} was handed the same claim twice"));
                    }
                }
                Event::Begin { verb, receipt, from } => match own.get_mut(&receipt) {
                    None => self.wrong.push(stray(&receipt)),
                    Some(claim) => {
                        if verb != Verb::Beat {
                            claim.let_go.get_or_insert(from);
                        }
                        claim.given_back |= matches!(verb, Verb::Nack | Verb::Release);
                        claim.acking |= verb == Verb::Ack;
                    }
                },
                Event::End { verb, receipt, from, to, answer } => {
                    self.count(match (verb, &answer) {
                        (Verb::Ack, Answer::Ok(_)) => "acks",
                        (Verb::Ack, Answer::ClaimLost) => "ClaimLost",
                        (Verb::Ack, Answer::AlreadyCompleted) => "AlreadyCompleted",
                        (Verb::Beat, Answer::Ok(_)) => "heartbeats",
                        (Verb::Beat, Answer::ClaimLost | Answer::AlreadyCompleted) => {
                            "lost heartbeats"
                        }
                        (Verb::Nack | Verb::Release, Answer::Ok(_)) => "given back",
                        (_, Answer::Unknown) => "unanswered",
                        _ => "lost otherwise",
                    });
                    if let Answer::Other(error) = &answer {
                        self.wrong.push(format!("{journal}: {verb} of {receipt}: {error}"));
                    }
                    match own.get_mut(&receipt) {
                        None => self.wrong.push(stray(&receipt)),
                        Some(claim) => {
                            if let (Verb::Beat, Answer::Ok(left)) = (verb, &answer) {
                                claim.alive = claim.alive.max(from + left);
                            }
                            claim.calls.push(Call { verb, from, to, answer });
                        }
                    }
                }
                Event::Again { receipt } => {
                    let (id, generation) = life(&receipt);
                    self.maybe.insert((id, generation + 1));
                }
                Event::Pushed { id, generation } => {
                    self.count("pushed again");
                    _ = self.pushed.insert((id, generation));
                }
                Event::Trouble(what) => self.wrong.push(format!("{journal}: {what}")),
            }
        }
        for (receipt, claim) in own {
            self.lives.entry(life(&receipt)).or_default().push(claim);
        }
    }

    /// Who had a task when.
    fn check_claims(&mut self) {
        let mut takeovers = 0;
        let mut last_of_id: Option<(&str, u64)> = None;
        for ((id, _), claims) in &mut self.lives {
            claims.sort_by_key(|claim| claim.receipt.attempt());
            let shown = |claim: &Claim| format!("{} by {}", claim.receipt, claim.journal);
            for claim in claims.iter() {
                // Lives of an id follow each other here, and so do the attempts of a life.
                if let Some((_, fence)) = last_of_id.filter(|(last, _)| last == id)
                    && claim.fence <= fence
                {
                    let what = format!("fence {} of {} is not new", claim.fence, shown(claim));
                    self.wrong.push(what);
                }
                last_of_id = Some((id, claim.fence));
            }
            for pair in claims.windows(2) {
                if pair[0].receipt.attempt() == pair[1].receipt.attempt() {
                    let (a, b) = (shown(&pair[0]), shown(&pair[1]));
                    self.wrong.push(format!("held twice: {a} and {b}"));
                }
                takeovers += usize::from(!pair[0].given_back);
            }
            if claims.first().is_some_and(|first| first.receipt.attempt() > 1) {
                takeovers += 1; // from somebody who was killed before it could write that down
            }
            for (at, earlier) in claims.iter().enumerate() {
                let end = earlier.alive.min(earlier.let_go.unwrap_or(u64::MAX));
                for later in &claims[at + 1..] {
                    let names = || format!("{}, then {}", shown(earlier), shown(later));
                    if later.to < earlier.from {
                        self.wrong.push(format!("attempts out of order: {}", names()));
                    }
                    if later.to < end {
                        let early = (end - later.to) / 1_000;
                        let what = format!("handed out {early} µs too early: {}", names());
                        self.wrong.push(what);
                    }
                }
            }
        }
        *self.counts.entry("takeovers").or_default() += takeovers;
    }

    /// What the queue said, in the light of what it had said before.
    fn check_calls(&mut self) {
        for ((id, generation), claims) in &self.lives {
            let finished: Vec<_> = claims.iter().filter_map(Claim::acked).collect();
            if finished.len() > 1 {
                self.wrong.push(format!("{id}@{generation} was completed twice"));
            }
            // From then on somebody knows that it has finished.
            let calls = claims.iter().flat_map(|claim| &claim.calls);
            let known = calls.filter(|call| {
                call.answer == Answer::AlreadyCompleted
                    || (call.verb == Verb::Ack && matches!(call.answer, Answer::Ok(_)))
            });
            let over = known.map(|call| call.to).min().unwrap_or(u64::MAX);
            for (at, claim) in claims.iter().enumerate() {
                if claim.from > over {
                    self.wrong.push(format!("{} was handed out finished", claim.receipt));
                }
                let taken = claims[at + 1..].iter().map(|later| later.to).min();
                let taken = taken.unwrap_or(u64::MAX);
                // Whatever the poll did first, the lease cannot have begun after it.
                let mut ran_out = claim.to + claim.lease;
                let mut told_so = u64::MAX;
                for call in &claim.calls {
                    if call.answer == Answer::Unknown {
                        continue;
                    }
                    if !matches!(call.answer, Answer::Ok(_)) {
                        told_so = told_so.min(call.to);
                        continue;
                    }
                    let (verb, receipt) = (call.verb, &claim.receipt);
                    if call.from > over {
                        self.wrong.push(format!("{verb} of {receipt} worked on a finished task"));
                    }
                    if call.from > taken {
                        self.wrong.push(format!("{verb} of {receipt} worked after a takeover"));
                    }
                    if call.from > told_so {
                        self.wrong.push(format!("{verb} of {receipt} worked after it was lost"));
                    }
                    if call.from > ran_out {
                        self.wrong.push(format!("{verb} of {receipt} worked though it ran out"));
                    }
                    if verb == Verb::Beat {
                        ran_out = ran_out.max(call.to + claim.lease);
                    }
                }
            }
        }
    }

    /// Exactly one record a life, made by somebody who may have made it.
    fn check_records(&mut self, failed: &[Found], completed: &[Found], told: &Told) {
        if !failed.is_empty() {
            self.wrong.push(format!("{} tasks have failed", failed.len()));
        }
        let mut seen = BTreeSet::new();
        for found in completed {
            let shown = &found.name;
            let Some(record) = Record::read(found) else {
                self.wrong.push(format!("record {shown} cannot be read"));
                continue;
            };
            let generation = record.life.1;
            let name = if generation == 1 { String::new() } else { format!("@{generation}") };
            if *shown != format!("{}{name}.json", record.life.0)
                || !seen.insert(record.life.clone())
            {
                self.wrong.push(format!("record {shown} is not of its task, or not the only one"));
            }
            if !self.maybe.contains(&record.life) {
                self.wrong.push(format!("record {shown} is of a task that nobody pushed"));
            }
            let claims = self.lives.get(&record.life).map_or(&[][..], Vec::as_slice);
            let there = found.named.map_or(u64::MAX, |named| told.certainly(named));
            for late in claims.iter().filter(|claim| claim.from > there) {
                self.wrong.push(format!("{} was handed out with a record there", late.receipt));
            }
            let by = claims.iter().find(|claim| record.is_of(claim));
            let acked = claims.iter().find(|claim| claim.acked().is_some());
            match (by, acked) {
                (Some(by), Some(acked)) if by.receipt == acked.receipt => {}
                (_, Some(acked)) => {
                    let what = format!("{} was acked, but the record is not its", acked.receipt);
                    self.wrong.push(what);
                }
                (Some(by), None) => {
                    let mut acks = by.calls.iter().filter(|call| call.verb == Verb::Ack).peekable();
                    let unanswered = acks.peek().is_none();
                    if by.acking && unanswered && told.killed.contains(&by.journal) {
                        self.count("killed in mid-ack");
                    } else if acks.any(|call| call.answer == Answer::Unknown) {
                        self.count("acked without an answer");
                    } else {
                        let what = format!("{} has a record, but no ack made it", by.receipt);
                        self.wrong.push(what);
                    }
                }
                (None, None) => self.wrong.push(format!("nobody made the record {shown}")),
            }
        }
        for life in self.pushed.difference(&seen) {
            self.wrong.push(format!("{}@{} was pushed and never completed", life.0, life.1));
        }
        self.counts.insert("records", seen.len());
    }

    /// A race without incidents proves nothing.
    fn check_that_it_raced(&mut self, told: &Told) {
        self.counts.insert("kills", told.killed.len());
        self.counts.insert("stops", told.stops);
        let lost = ["ClaimLost", "AlreadyCompleted"].map(|what| self.counts.get(what).copied());
        self.counts.insert("lost acks", lost.into_iter().flatten().sum());
        for what in ["kills", "stops", "takeovers", "lost acks", "heartbeats", "given back"] {
            if self.counts.get(what).is_none_or(|count| *count == 0) {
                self.wrong.push(format!("no {what}: nothing was tried"));
            }
        }
        for (fault, count) in told.faults.iter().flatten() {
            *self.counts.entry("faults").or_default() += *count as usize;
            self.counts.insert(fault, *count as usize);
        }
        if told.faults.as_ref().is_some_and(|faults| faults.len() < Faults::NAMES.len()) {
            self.wrong.push("the server did not do all the wrong that it can".to_owned());
        }
    }

    fn conclude(self, told: &Told) -> Result<String, String> {
        let mut summary = told.setup.clone();
        for (what, count) in &self.counts {
            let _ = write!(summary, ", {what} {count}");
        }
        if self.wrong.is_empty() {
            return Ok(summary);
        }
        let first: Vec<_> = self.wrong.iter().take(20).map(String::as_str).collect();
        Err(format!("{summary}\n{} wrong:\n  {}", self.wrong.len(), first.join("\n  ")))
    }
}

/// What a terminal record says of its maker.
struct Record {
    life: Life,
    lease_id: String,
    attempt: u64,
}

impl Record {
    fn read(found: &Found) -> Option<Self> {
        let json: serde_json::Value = serde_json::from_slice(&found.bytes).ok()?;
        let meta = json.get("_dfq").filter(|meta| meta["outcome"] == "completed")?;
        let generation = u32::try_from(meta["generation"].as_u64()?).ok()?;
        Some(Self {
            life: (meta["id"].as_str()?.to_owned(), generation),
            lease_id: meta["lease_id"].as_str()?.to_owned(),
            attempt: meta["attempts"].as_array()?.last()?["attempt"].as_u64()?,
        })
    }

    fn is_of(&self, claim: &Claim) -> bool {
        let receipt = claim.receipt.to_string();
        u64::from(claim.receipt.attempt()) == self.attempt && receipt.ends_with(&self.lease_id)
    }
}
