//! What is to be done about one id so that both places have the same. Pure: no store, no clock, no chance.
//!
//! Invariant: done in this order, each step leaves both places in a state that all who use them understand, so
//! that any may be the last. For each place: lives ascend; records come before what is removed for their sake, a task
//! before its leases, and leases ascend without gaps (R4). Bytes that are about to go without an end of their own are
//! kept first (R7).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::Side;
use super::order::{Claimed, Ended, Task, first_claim, first_end, first_task, is_alike, push_of};
use super::view::{Both, Content, Life};
use crate::format;
use crate::layout::{self, Due};
use crate::model::{Generation, Outcome, Record, TaskId, TaskKey};
use crate::planted::{self, Planted};
use crate::queue::OUTCOMES;
use crate::store::Version;

/// One step. `over` is the version that is replaced; without one, the name must be free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Writes a record.
    Record { side: Side, key: TaskKey, outcome: Outcome, bytes: Vec<u8>, over: Option<Version> },
    /// Keeps, here, the bytes of a task that loses; `mark` tells its push.
    Keep { key: TaskKey, mark: String, bytes: Vec<u8> },
    /// Writes a task.
    Task { side: Side, key: TaskKey, bytes: Vec<u8>, over: Option<Version> },
    /// Writes a delayed task.
    Schedule { side: Side, due: Due, key: TaskKey, bytes: Vec<u8>, over: Option<Version> },
    /// Removes a delayed task.
    Unschedule { side: Side, due: Due, key: TaskKey },
    /// Removes a task and its leases: it is over.
    End { side: Side, key: TaskKey, leases: Vec<u32> },
    /// Removes a record that a purge has forgotten.
    Forget { side: Side, key: TaskKey, outcome: Outcome },
    /// Writes a lease.
    Lease { side: Side, key: TaskKey, attempt: u32, bytes: Vec<u8>, over: Option<Version> },
    /// Gives a task here, whose life was forgotten while it was not known, the number of another life.
    Renumber { key: TaskKey, due: Option<Due> },
    /// Ends a task here that nobody can read.
    SetAside { key: TaskKey },
}

/// What is known besides the files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances<'a> {
    /// This node.
    pub(super) node: &'a str,
    /// What the hub's clock shows, if it is known: renewals go up only now and then.
    pub(super) now_there: Option<Timestamp>,
}

/// A life as it can be read.
#[derive(Default)]
struct Read<'a> {
    task: Option<Task<'a>>,
    /// There is a pending task, and it cannot be read.
    has_damaged_task: bool,
    scheduled: BTreeMap<Due, Task<'a>>,
    leases: BTreeMap<u32, Claimed<'a>>,
    records: [Option<Ended<'a>>; 2],
}

impl<'a> Read<'a> {
    fn of(key: &TaskKey, life: &'a Life) -> Self {
        let task = |content: &'a Content| Task::read(key, &content.bytes);
        let record = |at: usize| {
            life.records[at].as_ref().and_then(|it| Ended::read(OUTCOMES[at], key, &it.bytes))
        };
        let claimed = |(attempt, it): (&u32, &'a Content)| {
            Some((*attempt, Claimed::read(*attempt, &it.bytes)?))
        };
        let pending = life.task.as_ref().and_then(task);
        Self {
            has_damaged_task: life.task.is_some() && pending.is_none(),
            task: pending,
            scheduled: life
                .scheduled
                .iter()
                .filter_map(|(due, it)| Some((*due, task(it)?)))
                .collect(),
            leases: life.leases.iter().filter_map(claimed).collect(),
            records: [record(0), record(1)],
        }
    }
}

/// What is to be done about an id.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// What cannot be read.
    pub(super) troubles: Vec<String>,
    /// Something is to be done later: the places are not alike.
    pub(super) put_off: bool,
}

/// Says what is to be done about an id.
pub(super) fn plan(id: &TaskId, both: &Both, circumstances: Circumstances<'_>) -> Plan {
    let none = Life::default();
    let lives = both.here.keys().chain(both.there.keys()).copied();
    let mut lives: Vec<Generation> = lives.collect();
    lives.sort_unstable();
    lives.dedup();
    let mut planner = Planner { plan: Plan::default(), both, circumstances };
    planner.wait_for_floors(id, &mut lives);
    if planted::is(Planted::MergeInAnyOrder) {
        lives.reverse();
    }
    for side in [Side::There, Side::Here] {
        for generation in &lives {
            let key = TaskKey::new(id.clone(), *generation);
            let [here, there] =
                [&both.here, &both.there].map(|view| view.get(generation).unwrap_or(&none));
            let (own, read) = match side {
                Side::Here => (here, [Read::of(&key, here), Read::of(&key, there)]),
                Side::There => (there, [Read::of(&key, there), Read::of(&key, here)]),
            };
            let [read, other] = &read;
            let life = OneLife { side, key, files: own, read, other };
            let begins = planner.plan.steps.len();
            planner.plan_life(&life);
            if planted::is(Planted::MergeInAnyOrder) {
                planner.plan.steps[begins..].reverse();
            }
        }
    }
    planner.plan
}

/// A life in the place that is being planned for, and as it can be read in the other.
struct OneLife<'a> {
    side: Side,
    key: TaskKey,
    files: &'a Life,
    read: &'a Read<'a>,
    other: &'a Read<'a>,
}

struct Planner<'a> {
    plan: Plan,
    both: &'a Both,
    circumstances: Circumstances<'a>,
}

impl Planner<'_> {
    /// A life whose last one has no end in either place: a purge has forgotten that since the floors were read. What
    /// comes after waits for the pass that knows the floor, so that no place gets a gap.
    fn wait_for_floors(&mut self, id: &TaskId, lives: &mut Vec<Generation>) {
        let Both { here, there, floor, .. } = self.both;
        let has_ended = |life: Generation| {
            let files = [here, there].into_iter().filter_map(|view| view.get(&life));
            life <= *floor || files.flat_map(|it| &it.records).any(Option::is_some)
        };
        let waits = |life: &Generation| *life > floor + 1 && !has_ended(life - 1);
        if let Some(at) = lives.iter().position(waits) {
            let key = TaskKey::new(id.clone(), lives[at]);
            lives.truncate(at);
            self.plan.put_off = true;
            self.plan.troubles.push(format!("the life before '{key}' has no record; it waits"));
        }
    }

    fn plan_life(&mut self, life: &OneLife<'_>) {
        if planted::is(Planted::AbsenceRemoves) && self.is_absent_there(&life.key) {
            return if life.side == Side::Here {
                self.remove(life)
            };
        }
        if self.both.binds && life.key.generation() <= self.both.floor {
            return self.forget(life);
        }
        self.report(life);
        let mut ends = Vec::new();
        for (at, outcome) in OUTCOMES.into_iter().enumerate() {
            let Some(end) =
                first_end(life.read.records[at].as_ref(), life.other.records[at].as_ref())
            else {
                continue;
            };
            ends.push(end);
            let there = life.files.records[at].as_ref();
            if there.is_none_or(|there| !is_alike(&there.bytes, end.bytes)) {
                self.keep_record(life, at, end);
                self.plan.steps.push(Step::Record {
                    side: life.side,
                    key: life.key.clone(),
                    outcome,
                    bytes: end.bytes.to_vec(),
                    over: there.map(|there| there.version.clone()),
                });
            }
        }
        // One that cannot be read says that the task is over, but not how. It is for a person to mend.
        let is_over_unreadably = life.files.records.iter().any(Option::is_some) && ends.is_empty();
        if is_over_unreadably {
            return;
        }
        match ends.is_empty() {
            false => self.end(life, &ends),
            true => self.go_on(life),
        }
    }

    /// What a copy would go by: the hub has nothing of a life that has begun here and is not over.
    fn is_absent_there(&self, key: &TaskKey) -> bool {
        let [here, there] =
            [&self.both.here, &self.both.there].map(|view| view.get(&key.generation()));
        let is_over = |life: &Life| life.records.iter().any(Option::is_some);
        let is_open = |life: &Life| !life.leases.is_empty() && !is_over(life);
        here.is_some_and(is_open) && there.is_none_or(|life| life.task.is_none() && !is_over(life))
    }

    /// Half-written, foreign and damaged files are reported, and stay where they are.
    fn report(&mut self, life: &OneLife<'_>) {
        let OneLife { side, key, files, read, .. } = life;
        let mut trouble = |what: &str| {
            let place = if *side == Side::Here { "here" } else { "in the hub" };
            self.plan.troubles.push(format!("{what} of task '{key}' cannot be read {place}"));
        };
        for (at, outcome) in OUTCOMES.into_iter().enumerate() {
            let is_bad = |it: &Content| !format::is_forgotten(&it.bytes);
            if read.records[at].is_none() && files.records[at].as_ref().is_some_and(is_bad) {
                trouble(&format!("the record in {}/", layout::outcome_dir(outcome)));
            }
        }
        for attempt in files.leases.keys().filter(|attempt| !read.leases.contains_key(attempt)) {
            trouble(&format!("the lease of attempt {attempt}"));
        }
        if *side == Side::There && files.task.is_some() && read.task.is_none() {
            trouble("the file");
        }
    }

    /// Before a record is replaced: keeps one that cannot be read, and one of another push that asked for something
    /// else and was given up. What has completed was done, and is not missed.
    fn keep_record(&mut self, life: &OneLife<'_>, at: usize, end: &Ended<'_>) {
        let OneLife { key, files, read, .. } = life;
        let Some(file) = &files.records[at] else { return };
        let is_kept = match &read.records[at] {
            Some(own) => OUTCOMES[at] == Outcome::Failed && !own.asked_the_same(end),
            None => !format::is_forgotten(&file.bytes),
        };
        if is_kept && !planted::is(Planted::MergeDropsLosers) {
            let push = read.records[at].as_ref().map_or("", |own| &own.record.meta.push_id);
            let mark = format::push_mark(push, &file.bytes);
            self.plan.steps.push(Step::Keep { key: key.clone(), mark, bytes: file.bytes.clone() });
        }
    }

    /// The life is over: nothing of the task stays but its records.
    fn end(&mut self, life: &OneLife<'_>, ends: &[&Ended<'_>]) {
        self.keep_unless(life, |task| ends.iter().any(|end| end.is_of(task)));
        self.remove(life);
    }

    fn remove(&mut self, life: &OneLife<'_>) {
        let OneLife { side, key, files, .. } = life;
        if files.task.is_some() || !files.leases.is_empty() {
            let leases = files.leases.keys().copied().collect();
            self.plan.steps.push(Step::End { side: *side, key: key.clone(), leases });
        }
        self.unschedule(life);
    }

    fn unschedule(&mut self, life: &OneLife<'_>) {
        for due in life.files.scheduled.keys() {
            let (side, key, due) = (life.side, life.key.clone(), *due);
            self.plan.steps.push(Step::Unschedule { side, due, key });
        }
    }

    /// Keeps the bytes of what is about to go, but for those tasks that have an end of their own.
    fn keep_unless(&mut self, life: &OneLife<'_>, is_over: impl Fn(&Task<'_>) -> bool) {
        let OneLife { key, files, read, .. } = life;
        let pending = files.task.iter().map(|file| (file, read.task.as_ref()));
        let scheduled = files.scheduled.iter().map(|(due, file)| (file, read.scheduled.get(due)));
        for (file, task) in pending.chain(scheduled) {
            if !task.is_some_and(&is_over) {
                self.keep(key, file, task);
            }
        }
    }

    fn keep(&mut self, key: &TaskKey, file: &Content, task: Option<&Task<'_>>) {
        if planted::is(Planted::MergeDropsLosers) {
            return;
        }
        let mark = task.map_or_else(|| format::push_mark("", &file.bytes), Task::mark);
        let bytes = file.bytes.clone();
        self.plan.steps.push(Step::Keep { key: key.clone(), mark, bytes });
    }

    /// A purge has forgotten this life. What has a record of its own here was ended by that.
    fn forget(&mut self, life: &OneLife<'_>) {
        let OneLife { side, key, files, read, .. } = life;
        let ends: Vec<_> = read.records.iter().flatten().collect();
        let both = self.both;
        let is_purged = |task: &Task<'_>| {
            both.is_purged(&task.mark()) || planted::is(Planted::MergeDropsForgotten)
        };
        let mut renumbered = false;
        if !ends.is_empty() {
            self.keep_unless(life, |task| ends.iter().any(|end| end.is_of(task)));
        } else if *side == Side::There {
            // Its own node has it still, and gives it another number.
            self.keep_unless(life, is_purged);
        } else {
            let pending = read.task.as_ref().map(|task| (None, task));
            let scheduled = read.scheduled.iter().map(|(due, task)| (Some(*due), task));
            for (due, task) in pending.into_iter().chain(scheduled) {
                if !is_purged(task) {
                    renumbered = true;
                    self.plan.steps.push(Step::Renumber { key: key.clone(), due });
                }
            }
            if !renumbered {
                self.keep_unless(life, |_| true);
            }
        }
        if renumbered {
            return; // it goes when it has another number
        }
        self.remove(life);
        for (at, outcome) in OUTCOMES.into_iter().enumerate() {
            if let Some(file) = &files.records[at] {
                self.keep_forgotten(key, file, read.records[at].as_ref());
                self.plan.steps.push(Step::Forget { side: *side, key: key.clone(), outcome });
            }
        }
    }

    /// Before a record goes with its life: keeps one that cannot be read, and one of a push that failed and that the
    /// purge did not know of.
    fn keep_forgotten(&mut self, key: &TaskKey, file: &Content, end: Option<&Ended<'_>>) {
        let is_kept = match end {
            Some(end) => {
                let Record { outcome, payload, damaged, .. } = &end.record;
                let asks = payload.is_some() || damaged.is_some();
                let is_purged = push_of(&end.record).is_some_and(|push| self.both.is_purged(&push));
                *outcome == Outcome::Failed && asks && !is_purged
            }
            None => !format::is_forgotten(&file.bytes),
        };
        if is_kept && !planted::is(Planted::MergeDropsLosers) {
            let push = end.map_or("", |end| &end.record.meta.push_id);
            let mark = format::push_mark(push, &file.bytes);
            self.plan.steps.push(Step::Keep { key: key.clone(), mark, bytes: file.bytes.clone() });
        }
    }

    /// The life is not over.
    fn go_on(&mut self, life: &OneLife<'_>) {
        let OneLife { side, key, files, read, other } = life;
        let pending = first_task(read.task.as_ref(), other.task.as_ref());
        // A pending task that nobody can read is healed by a copy that waits for its time.
        let is_damaged = read.has_damaged_task || other.has_damaged_task;
        let copies = || read.scheduled.values().chain(other.scheduled.values()).map(Some);
        let healing = || copies().fold(None, first_task).filter(|_| is_damaged);
        let Some(winner) = pending.or_else(healing) else {
            if files.task.is_some() && *side == Side::Here {
                self.plan.steps.push(Step::SetAside { key: key.clone() });
            }
            return self.schedule(life);
        };
        // Before the task is there: from then on a worker may take such a copy for one too many.
        for (due, file) in &files.scheduled {
            let task = read.scheduled.get(due);
            if !task.is_some_and(|task| asks_the_same(task, winner)) {
                self.keep(key, file, task);
            }
        }
        let there = files.task.as_ref();
        if there.is_none_or(|there| !is_alike(&there.bytes, winner.bytes)) {
            let is_over = |task: &Task<'_>| asks_the_same(task, winner);
            if let Some(there) = there
                && !read.task.as_ref().is_some_and(is_over)
            {
                self.keep(key, there, read.task.as_ref());
            }
            self.plan.steps.push(Step::Task {
                side: *side,
                key: key.clone(),
                bytes: winner.bytes.to_vec(),
                over: there.map(|there| there.version.clone()),
            });
        }
        // A copy that waits for its time is in excess: the task is there.
        if !planted::is(Planted::MergeKeepsCopies) {
            self.unschedule(life);
        }
        self.leases(life);
    }

    fn schedule(&mut self, life: &OneLife<'_>) {
        let OneLife { side, key, files, read, other } = life;
        let mut dues: Vec<Due> =
            read.scheduled.keys().chain(other.scheduled.keys()).copied().collect();
        dues.sort_unstable();
        dues.dedup();
        for due in dues {
            let own = read.scheduled.get(&due);
            let Some(winner) = first_task(own, other.scheduled.get(&due)) else { continue };
            let there = files.scheduled.get(&due);
            if there.is_some_and(|there| is_alike(&there.bytes, winner.bytes)) {
                continue;
            }
            if let Some(there) = there
                && !own.is_some_and(|own| asks_the_same(own, winner))
            {
                self.keep(key, there, own);
            }
            self.plan.steps.push(Step::Schedule {
                side: *side,
                due,
                key: key.clone(),
                bytes: winner.bytes.to_vec(),
                over: there.map(|there| there.version.clone()),
            });
        }
    }

    fn leases(&mut self, life: &OneLife<'_>) {
        let OneLife { side, key, files, read, other } = life;
        let attempts = read.leases.keys().chain(other.leases.keys()).copied().max().unwrap_or(0);
        for attempt in 1..=attempts {
            let (own, others) = (read.leases.get(&attempt), other.leases.get(&attempt));
            let there = files.leases.get(&attempt);
            let Some(winner) = first_claim(own, others) else {
                match planted::is(Planted::MergeLeavesGaps) {
                    true => continue,
                    false => return,
                }
            };
            // One that cannot be read holds its number, until its task is over.
            if there.is_some() && own.is_none() {
                return;
            }
            if there.is_some_and(|there| is_alike(&there.bytes, winner.bytes)) {
                continue;
            }
            if own.is_some_and(|own| self.is_left(*side, own, there, winner)) {
                self.plan.put_off = true;
                continue;
            }
            self.plan.steps.push(Step::Lease {
                side: *side,
                key: key.clone(),
                attempt,
                bytes: winner.bytes.to_vec(),
                over: there.map(|there| there.version.clone()),
            });
        }
    }

    /// Whether a copy of a lease may stay as it is, though there is a later one of the same claim.
    fn is_left(
        &self,
        side: Side,
        own: &Claimed<'_>,
        file: Option<&Content>,
        winner: &Claimed<'_>,
    ) -> bool {
        if !own.is_same_claim(winner) {
            return false;
        }
        match side {
            // Its owner is here, and writes it itself.
            Side::Here => winner.lease.node.as_deref() == Some(self.circumstances.node),
            // Renewals go up when others would begin to doubt.
            Side::There => {
                let (Some(file), Some(now)) = (file, self.circumstances.now_there) else {
                    return false;
                };
                let age = now.duration_since(file.modified);
                let is_renewal = own.lease.state.is_none() && winner.lease.state.is_none();
                is_renewal && age >= SignedDuration::ZERO && age < winner.lease.length() / 3
            }
        }
    }
}

fn asks_the_same(task: &Task<'_>, winner: &Task<'_>) -> bool {
    super::order::is_same_push(&task.meta, &winner.meta) || task.payload == winner.payload
}
