//! Rules about what clients are told, by what was in the store when they asked and when they were answered.
//!
//! Invariant: an answer is held against the queue only if it was wrong at every moment between question and answer.

use std::time::Duration;

use dfq::queue::Pushed;
use dfq::{ErrorKind, Receipt};
use jiff::{SignedDuration, Timestamp};

use super::claim::lease_id;
use super::names::{lease_file, stem};
use super::walk::{File, Forgotten, Lease, Life, Then, Walk};
use crate::history::{Answer, Ask, Claimed, QueueNo, Refused};
use crate::world::Pid;

/// What has been so for less time, one may not have seen yet: listings and times lag behind.
const SETTLED: Duration = Duration::from_secs(1);

/// How far the store's clock may seem off.
const SLACK: SignedDuration = SignedDuration::from_secs(3);

impl Walk<'_> {
    /// What is so when something is asked.
    pub(super) fn then(&self, at: Duration, ask: &Ask) -> Then {
        let above = |receipt: &Receipt| {
            let life = self.life(ask.queue, &stem(receipt.key()));
            life.is_some_and(|life| life.is_superseded(receipt.attempt()))
        };
        let free = if ask.first { self.free(ask.queue, at, ask.wall) } else { Vec::new() };
        Then { superseded: ask.receipts.iter().map(above).collect(), free }
    }

    /// Tasks that whoever looks now must find free, or left by somebody who is dead.
    fn free(&self, queue: QueueNo, at: Duration, wall: Timestamp) -> Vec<String> {
        let facts = self.facts;
        if self.paused.contains(&queue) || facts.short_of_room || facts.refuses {
            return Vec::new();
        }
        let is_free = |life: &Life| {
            let Some(task) = life.task.as_ref().and_then(|it| it.says.as_ref()) else {
                return false;
            };
            let waits = task.not_before.is_some_and(|until| until + SLACK > wall);
            let young = life.touched + SETTLED > at;
            if waits || young || life.records().next().is_some() {
                return false;
            }
            let Some((_, current)) = life.current(u32::MAX) else { return true };
            match &current.says {
                // What a power cut has left may be of any age.
                _ if current.wall == Timestamp::MIN => false,
                Some(lease) if lease.state.is_some() => {
                    lease.not_before.is_none_or(|until| until + SLACK < wall)
                }
                _ => current.runs_out(facts.lease) + SLACK < wall,
            }
        };
        let here = self.lives.iter().filter(|((of, _), life)| *of == queue && is_free(life));
        here.map(|((_, stem), _)| stem.clone()).collect()
    }

    pub(super) fn check_answer(
        &mut self,
        asked: Duration,
        told: Duration,
        pid: Pid,
        ask: &Ask,
        then: &Then,
        answer: &Answer,
    ) {
        match answer {
            Answer::Claimed(Ok(all)) => {
                for claimed in all {
                    let receipt = &claimed.receipt;
                    let (stem, attempt) = (stem(receipt.key()), receipt.attempt());
                    self.given.insert((ask.queue, stem, attempt, lease_id(receipt)));
                    self.check_claim(told, pid, ask.queue, claimed);
                }
                if ask.verb == "poll" {
                    self.check_leftovers(asked, told, pid, ask.queue);
                }
                if all.is_empty() && ask.first {
                    self.check_nothing_free(asked, told, pid, ask.queue, then);
                }
            }
            Answer::Alive(each) => {
                for ((receipt, answer), above) in
                    ask.receipts.iter().zip(each).zip(&then.superseded)
                {
                    match answer {
                        Ok((until, looked)) => {
                            let beat = (asked, *until, *looked);
                            self.check_beat(told, pid, ask.queue, receipt, beat, *above);
                        }
                        Err(Refused(ErrorKind::ClaimLost, _)) => {
                            self.check_lost_beat(asked, pid, ask.queue, receipt);
                        }
                        Err(_) => {}
                    }
                }
            }
            Answer::Each(each) if ask.verb == "cancel" => {
                for (id, answer) in ask.ids.iter().zip(each) {
                    self.check_cancel((asked, told), ask.queue, id, answer.is_ok());
                }
            }
            Answer::Each(each) => {
                for (receipt, answer) in ask.receipts.iter().zip(each) {
                    self.check_end((asked, told), ask, receipt, answer);
                }
            }
            Answer::Pushed(each) => {
                for (number, answer) in each.iter().enumerate() {
                    let n = ask.tasks.get(number).map(|task| task.n);
                    self.check_push(asked, pid, ask, n, answer);
                }
            }
            Answer::Whole(Ok(_)) if ask.verb == "purge" && self.facts.orderly => {
                self.check_purge((asked, told), pid, ask.queue);
            }
            Answer::Claimed(Err(Refused(ErrorKind::Invalid, text))) => {
                // All plans have leases that are long enough.
                self.breaks("a lease that is long enough is not refused", format!("{pid}: {text}"));
            }
            Answer::Claimed(Err(_)) | Answer::Whole(_) => {}
        }
    }

    /// Until when an owner may believe to have a lease that was written then.
    fn latest_end(&self, file: &File<Lease>) -> Duration {
        let length = file.says.as_ref().and_then(|it| it.length());
        let lease = length.unwrap_or(self.facts.lease);
        let margin = (lease / 10).min(Duration::from_secs(10));
        // The clocks of machines differ by so much at the most.
        let clocks = lease / 400 + Duration::from_millis(2);
        file.written + lease + clocks - margin
    }

    fn lease(&self, queue: QueueNo, receipt: &Receipt) -> Option<(&Life, &File<Lease>)> {
        let life = self.life(queue, &stem(receipt.key()))?;
        let lease = life.leases.get(&receipt.attempt())?;
        lease.is_of(&lease_id(receipt)).then_some((life, lease))
    }

    fn check_claim(&mut self, told: Duration, pid: Pid, queue: QueueNo, claimed: &Claimed) {
        let (receipt, looks) = (&claimed.receipt, &claimed.looks);
        let Some((life, lease)) = self.lease(queue, receipt) else { return };
        let (attempt, made) = (receipt.attempt(), lease.made);
        let latest = self.latest_end(lease);
        let mut wrong = Vec::new();
        if claimed.alive_until > latest && self.facts.sound(pid) {
            let text =
                format!("{receipt} of {pid} holds until {:?}, not {latest:?}", claimed.alive_until);
            wrong.push(("a lease counts from before it is written, less a margin", text));
        }
        let above = looks.get(&lease_file(attempt + 1));
        let next = life.leases.get(&(attempt + 1)).filter(|next| !next.is("withdrawn"));
        if let (Some(looked), Some(next)) = (above, next)
            && next.made < *looked
            && told < claimed.alive_until
        {
            let text = format!(
                "{receipt} was handed to {pid} at {told:?}, with a lease above it since {:?}",
                next.made
            );
            wrong.push(("whoever has created a lease looks for a higher one", text));
        }
        let judged = self.born.iter().rev().find(|it| {
            it.queue == queue && it.attempt == attempt && it.lease_id == lease_id(receipt)
        });
        let judged = judged.is_some_and(|it| it.judged && it.stem == stem(receipt.key()));
        let looked_back =
            (1..attempt).any(|it| looks.get(&lease_file(it)).is_some_and(|at| *at >= made));
        if judged && !looked_back {
            let text = format!("{receipt} was handed to {pid} at {told:?}");
            wrong.push(("whoever has created a lease looks at the one it judged", text));
        }
        for (rule, text) in wrong {
            self.breaks(rule, text);
        }
    }

    /// A lease that nobody knows of must not be left behind.
    fn check_leftovers(&mut self, asked: Duration, told: Duration, pid: Pid, queue: QueueNo) {
        // Another poll may be about to hand it out.
        let alone = !self.asked.values().any(|(_, of, ask, _)| *of == pid && ask.verb == "poll");
        let unclear = !self.facts.orderly || !self.facts.jumps.is_empty() || !alone;
        if !self.facts.sound(pid) || unclear {
            return;
        }
        let mut left = Vec::new();
        for ((of, stem), life) in &self.lives {
            if *of != queue || life.task.is_none() || life.records().next().is_some() {
                continue;
            }
            for (attempt, file) in &life.leases {
                let Some(lease) = file.says.as_ref().filter(|it| it.state.is_none()) else {
                    continue;
                };
                let claim = (queue, stem.clone(), *attempt, lease.lease_id.clone());
                let ours = lease.worker == Some(pid) && !self.given.contains(&claim);
                let half = lease.created_at.map(|it| it + self.facts.lease / 2);
                let now =
                    file.made >= asked && half.is_some_and(|half| self.facts.wall(told) < half);
                if ours && now && !lease.moving {
                    left.push(format!("attempt {attempt} of {stem} by {pid}, at {:?}", file.made));
                }
            }
        }
        for text in left {
            self.breaks("whoever has created a lease has the task, or withdraws", text);
        }
    }

    fn check_nothing_free(
        &mut self,
        asked: Duration,
        told: Duration,
        pid: Pid,
        queue: QueueNo,
        then: &Then,
    ) {
        // What has changed meanwhile is somebody's.
        let still = |stem: &&String| {
            self.life(queue, stem).is_some_and(|life| life.touched < asked && life.task.is_some())
        };
        let unclear = self.paused.contains(&queue)
            || !self.facts.sound(pid)
            || self.facts.jumps.iter().any(|at| (asked..=told).contains(at))
            || !self.facts.orderly
            || told > asked + self.facts.lease;
        let free: Vec<String> = then.free.iter().filter(still).cloned().collect();
        if !free.is_empty() && !unclear {
            let text =
                format!("{pid} was given nothing at {told:?}, although {free:?} could be had");
            self.breaks("whoever looks finds what is free", text);
        }
    }

    fn check_beat(
        &mut self,
        told: Duration,
        pid: Pid,
        queue: QueueNo,
        receipt: &Receipt,
        (asked, until, looked): (Duration, Duration, Option<Duration>),
        above: bool,
    ) {
        let mut wrong = Vec::new();
        // Whoever slept over its last look may find nothing any more, and learns it when it is done.
        if above && !self.facts.stalled(pid) {
            let text = format!("{receipt} by {pid} at {told:?}, though somebody else had it");
            wrong.push(("a heartbeat finds out that the task is another's", text));
        }
        if let Some((_, lease)) = self.lease(queue, receipt)
            && self.facts.sound(pid)
        {
            let (latest, written) = (self.latest_end(lease), lease.written);
            // What is told not to hold any more may have ended before.
            if until > latest && until > told {
                let text = format!("{receipt} of {pid} holds until {until:?}, not {latest:?}");
                wrong.push(("a lease counts from before it is written, less a margin", text));
            }
            let new = written >= asked && !self.gave_up_a_beat(pid, receipt);
            if new && self.facts.orderly && looked.is_none_or(|looked| looked < written) {
                let text = format!("{receipt} of {pid}, written at {written:?}");
                wrong.push(("a heartbeat looks for a higher lease after its write", text));
            }
        }
        if self.is_over(queue, receipt, asked) {
            let text = format!("a heartbeat of {receipt} by {pid} at {asked:?} was accepted");
            wrong.push(("nothing is taken from an owner whose lease has ended", text));
        }
        for (rule, text) in wrong {
            self.breaks(rule, text);
        }
    }

    /// Whether a heartbeat of this claim was given up, so that its request may still be on its way.
    pub(super) fn gave_up_a_beat(&self, pid: Pid, receipt: &Receipt) -> bool {
        let of_it = |ask: &Ask| ask.verb == "heartbeat" && ask.receipts.contains(receipt);
        self.asked.values().any(|(_, of, ask, _)| *of == pid && of_it(ask))
    }

    /// Whether the lease of a receipt had ended long before, by what its owner was told.
    fn is_over(&self, queue: QueueNo, receipt: &Receipt, at: Duration) -> bool {
        let claim = self.facts.find(queue, receipt);
        let steady = self.facts.jumps.is_empty();
        // A renewal that its owner had given up may have been carried out all the same.
        let file = self.lease(queue, receipt);
        let old = file.is_none_or(|(_, file)| at > file.written + self.facts.lease);
        steady && old && claim.is_some_and(|it| at > it.alive_at(at) + self.facts.lease / 2)
    }

    fn check_lost_beat(&mut self, asked: Duration, pid: Pid, queue: QueueNo, receipt: &Receipt) {
        let Some((life, lease)) = self.lease(queue, receipt) else { return };
        let open = life.task.is_some() && life.records().next().is_none();
        // A request that was about to be sent when its process stopped is sent when it goes on.
        let clear = self.facts.sound(pid) && self.facts.orderly && !self.facts.stalled(pid);
        if open && clear && lease.has_no_state() && lease.written >= asked {
            let text = format!("{receipt} of {pid}, which it wrote at {:?}", lease.written);
            self.breaks("who finds that a lease is lost does not leave it young", text);
        }
    }

    fn check_cancel(
        &mut self,
        (asked, told): (Duration, Duration),
        queue: QueueNo,
        id: &str,
        well: bool,
    ) {
        let records = self.facts.records.iter().filter(|it| it.queue == queue && it.cancelled);
        let during = |made: Duration| (asked..=told).contains(&made);
        let done = records.into_iter().any(|it| it.id == id && during(it.made));
        if well && !done {
            let text = format!("{id} at {told:?}");
            self.breaks("what is said to be cancelled has such a record", text);
        }
    }

    fn check_end(
        &mut self,
        (asked, told): (Duration, Duration),
        ask: &Ask,
        receipt: &Receipt,
        answer: &Result<String, Refused>,
    ) {
        let (queue, verb) = (ask.queue, ask.verb);
        let ours = lease_id(receipt);
        let life = self.life(queue, &stem(receipt.key()));
        let record = life.and_then(|life| match verb {
            "ack" | "moved" => life.completed.as_ref(),
            "fail" if life.completed.is_none() => life.failed.as_ref(),
            _ => None,
        });
        let is_ours = |it: &super::walk::Record| it.lease_id == ours;
        let record = record.filter(|it| it.says.as_ref().is_some_and(is_ours));
        let made = record.map(|it| it.made);
        let lost =
            matches!(answer, Err(Refused(ErrorKind::AlreadyCompleted | ErrorKind::ClaimLost, _)));
        if let (true, true, Some(made)) = (lost, self.facts.orderly, made) {
            let text =
                format!("{verb} of {receipt} was refused at {told:?}; its record is from {made:?}");
            self.breaks("who has recorded an end is told so", text);
        }
        if answer.is_err() {
            return;
        }
        let over = self.is_over(queue, receipt, asked);
        let recorded = facts_made(self, queue, receipt).is_some_and(|made| made <= asked);
        let slept = self.facts.find(queue, receipt).is_some_and(|it| self.facts.stalled(it.pid));
        if over && !recorded && !slept {
            let text = format!("{verb} of {receipt} at {asked:?} was accepted");
            self.breaks("nothing is taken from an owner whose lease has ended", text);
        }
        if self.facts.in_bucket
            && self.facts.orderly
            && matches!(verb, "ack" | "fail")
            && let (Some(made), Some(claim)) = (made, self.facts.find(queue, receipt))
        {
            let lease = self.facts.lease;
            let margin = (lease / 10).min(Duration::from_secs(10)).max(Duration::from_secs(1));
            let end = claim.alive_at(told) + margin + lease / 400;
            if asked < end && made > end {
                let text = format!("{verb} of {receipt} was recorded at {made:?}, after {end:?}");
                self.breaks("an owner gives a write up when its lease ends", text);
            }
        }
    }

    /// A purge looks for the next life of each id when the record of the last has gone.
    fn check_purge(&mut self, (asked, told): (Duration, Duration), pid: Pid, queue: QueueNo) {
        let looked = |name: &str| self.facts.looks.get(&(pid, name.to_owned())).copied();
        let mut wrong = Vec::new();
        let ours = |it: &&Forgotten| {
            it.queue == queue && (asked..=told).contains(&it.at) && looked(&it.name).is_some()
        };
        let ours: Vec<&Forgotten> = self.forgotten.iter().filter(ours).collect();
        for Forgotten { at, id, life, next, .. } in &ours {
            // Only the last life of an id can be followed by another.
            let is_last = !ours.iter().any(|it| it.id == *id && it.life > *life);
            if is_last && looked(next).is_none_or(|looked| looked < *at) {
                wrong.push(format!("{pid} did not look for {next} after {at:?}"));
            }
        }
        for text in wrong {
            self.breaks("a purge looks for the next life", text);
        }
    }

    fn check_push(
        &mut self,
        asked: Duration,
        pid: Pid,
        ask: &Ask,
        n: Option<i64>,
        answer: &Result<Pushed, Refused>,
    ) {
        let queue = ask.queue;
        match answer {
            // What is brought back may never have gone, and what comes late may find that another was first.
            Ok(Pushed::Pending(key)) if !self.facts.copies && self.facts.orderly => {
                let Some(life) = self.life(queue, &stem(key)) else { return };
                let task = life.task.as_ref().and_then(|it| it.says.as_ref()).and_then(|it| it.n);
                let mut there = life.scheduled.values().copied().chain([task]).flatten();
                if there.any(|it| Some(it) == n) {
                    let text = format!("{key:?} by {pid}, asked at {asked:?}");
                    self.breaks("who has pushed a task is told so", text);
                }
            }
            Ok(Pushed::Created(key)) if ask.verb == "retry" && key.generation() > 1 => {
                let before = dfq::TaskKey::new(key.id().clone(), key.generation() - 1);
                let life = self.life(queue, &stem(&before));
                let completed = life.and_then(|life| life.completed.as_ref());
                if completed.is_some_and(|it| it.made < asked) {
                    let text = format!("{before:?} was begun again by {pid}");
                    self.breaks("what has completed is not retried", text);
                }
            }
            Err(Refused(_, text))
                if text.contains("cannot be pushed")
                    && self.facts.sound(pid)
                    && self.facts.orderly =>
            {
                let text = format!("{pid} asked at {asked:?}: {text}");
                self.breaks("what can be pushed is pushed", text);
            }
            _ => {}
        }
    }
}

/// When a record of this claim was made.
fn facts_made(walk: &Walk<'_>, queue: QueueNo, receipt: &Receipt) -> Option<Duration> {
    let ours = lease_id(receipt);
    let records = walk.facts.records.iter();
    records.filter(|it| it.queue == queue && it.lease_id == ours).map(|it| it.made).min()
}
