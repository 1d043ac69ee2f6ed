//! What must be true at every moment, by the changes of all places in the order in which they happened.
//!
//! Invariant: what is held against the queue here is certain: it rests on the true time and on what was in the places.
//! Where requests are late or doubled, what somebody has done is seen at another time than he did it; rules about
//! that are for plans without such.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::plan::{Deed, LEASE, PERIOD};
use super::town::{Town, lock};
use crate::check::Violation;
use crate::history::{Changed, How, What};
use crate::world::Pid;

/// Clocks of different speeds, and times that are rounded.
const SLACK: Duration = Duration::from_secs(5);

/// So long a request takes at the most, where none is late.
const REQUEST: Duration = Duration::from_secs(60);

/// A name that means something in a merge.
enum Named<'a> {
    Task(&'a str),
    Lease(&'a str, u32),
    Record(&'a str),
}

fn named(name: &str) -> Option<Named<'_>> {
    match name.split('/').collect::<Vec<_>>()[..] {
        ["pending", _, stem, "task.json"] => Some(Named::Task(stem)),
        ["pending", _, stem, file] => Some(Named::Lease(stem, attempt(file)?)),
        ["completed" | "failed", _, file] => Some(Named::Record(file.strip_suffix(".json")?)),
        _ => None,
    }
}

fn attempt(file: &str) -> Option<u32> {
    match file.strip_prefix("lease")?.strip_suffix(".json")? {
        "" => Some(1),
        number => number.strip_prefix('.')?.parse().ok(),
    }
}

/// The id and the number of a life.
pub(super) fn life_of(stem: &str) -> (&str, u64) {
    match stem.split_once('@') {
        Some((id, life)) => (id, life.parse().unwrap_or(1)),
        None => (stem, 1),
    }
}

fn stem_of(id: &str, life: u64) -> String {
    if life == 1 { id.to_owned() } else { format!("{id}@{life}") }
}

fn parsed(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

fn push_of(task: &[u8]) -> Option<String> {
    parsed(task)?["_dfq"]["push_id"].as_str().map(str::to_owned)
}

struct Lease {
    bytes: Arc<[u8]>,
    changed: Duration,
}

/// What is in a place by now.
#[derive(Default)]
struct Place {
    tasks: BTreeSet<String>,
    leases: BTreeMap<(String, u32), Lease>,
    /// How many records a life has.
    records: BTreeMap<String, u32>,
    floors: BTreeMap<String, u64>,
    /// Which pushes were there, and as which life.
    were_there: BTreeSet<(String, String)>,
}

impl Place {
    fn has_ended(&self, stem: &str) -> bool {
        self.records.get(stem).is_some_and(|records| *records > 0)
    }

    fn learns(&mut self, floors: &[u8]) {
        let Some(value) = parsed(floors) else { return };
        for floor in value["floors"].as_array().into_iter().flatten() {
            if let (Some(id), Some(life)) = (floor["id"].as_str(), floor["generation"].as_u64()) {
                let known = self.floors.entry(id.to_owned()).or_default();
                *known = (*known).max(life);
            }
        }
    }
}

struct Watch<'a> {
    town: &'a Town,
    places: Vec<Place>,
    /// Tasks that were put beside their record, and whose passes have not ended since of those who may have done that.
    to_take_back: BTreeMap<(usize, String), BTreeSet<Pid>>,
    wrong: Vec<Violation>,
}

/// All that was wrong at some moment.
pub(super) fn check(town: &Town) -> Vec<Violation> {
    let places = town.houses.iter().map(|_| Place::default()).chain([Place::default()]);
    let places = places.collect();
    let mut watch = Watch { town, places, to_take_back: BTreeMap::new(), wrong: Vec::new() };
    let passes = lock(&town.ended_passes).clone();
    let mut passes = passes.into_iter().peekable();
    for entry in town.history.entries() {
        while let Some((_, pid)) = passes.next_if(|(ended, _)| *ended < entry.at) {
            watch.pass_ended(pid);
        }
        if let What::Changed(place, changed) = &entry.what {
            watch.changed(*place, entry.pid, entry.at, changed);
        }
    }
    watch.wrong
}

impl Watch<'_> {
    fn wrong(&mut self, rule: &'static str, text: String) {
        self.wrong.push(Violation { rule, text });
    }

    fn name(&self, place: usize) -> String {
        match place < self.town.houses.len() {
            true => format!("node {place}"),
            false => "the hub".to_owned(),
        }
    }

    fn is_hub(&self, place: usize) -> bool {
        place == self.town.houses.len()
    }

    fn changed(&mut self, place: usize, pid: Pid, at: Duration, changed: &Changed) {
        let Changed { name, how, bytes, .. } = changed;
        if name.starts_with("floors/") && *how != How::Removed {
            return self.places[place].learns(bytes);
        }
        match (named(name), how) {
            (Some(Named::Task(stem)), How::Created) => {
                self.task_came(place, pid, at, stem, changed)
            }
            (Some(Named::Task(stem)), How::Replaced) => {
                self.to_take_back.remove(&(place, stem.to_owned()));
                let push = push_of(bytes).map(|push| (stem.to_owned(), push));
                self.places[place].were_there.extend(push);
            }
            (Some(Named::Task(stem)), How::Removed) => {
                self.to_take_back.remove(&(place, stem.to_owned()));
                self.places[place].tasks.remove(stem);
            }
            (Some(Named::Lease(stem, attempt)), How::Created | How::Replaced) => {
                if *how == How::Created {
                    self.lease_came(place, pid, at, (stem, attempt), bytes);
                }
                let lease = Lease { bytes: Arc::clone(bytes), changed: at };
                self.places[place].leases.insert((stem.to_owned(), attempt), lease);
            }
            (Some(Named::Lease(stem, attempt)), How::Removed) => {
                self.places[place].leases.remove(&(stem.to_owned(), attempt));
            }
            (Some(Named::Record(stem)), How::Created) => {
                self.check_lives(place, stem);
                *self.places[place].records.entry(stem.to_owned()).or_default() += 1;
            }
            (Some(Named::Record(stem)), How::Removed) => {
                // It was forgotten: whoever looks afterwards may not see it.
                self.to_take_back.remove(&(place, stem.to_owned()));
                let records = self.places[place].records.entry(stem.to_owned()).or_default();
                *records = records.saturating_sub(1);
            }
            _ => {}
        }
    }

    fn task_came(
        &mut self,
        place: usize,
        pid: Pid,
        at: Duration,
        stem: &str,
        Changed { name, bytes, .. }: &Changed,
    ) {
        self.check_lives(place, stem);
        let push = push_of(bytes).map(|push| (stem.to_owned(), push));
        let there = &mut self.places[place];
        there.tasks.insert(stem.to_owned());
        let was_there = push.is_some_and(|push| !there.were_there.insert(push));
        if !there.has_ended(stem) || self.town.plan.stormy {
            return;
        }
        // The hub does not know who has asked for what. These may have.
        let by = match self.is_hub(place) {
            true => self.town.history.senders(name, at.saturating_sub(REQUEST)),
            false => BTreeSet::from([pid]),
        };
        let is_user = |pid: &Pid| lock(&self.town.users).contains_key(pid);
        if !by.is_empty() && !by.iter().any(is_user) {
            self.to_take_back.insert((place, stem.to_owned()), by);
        }
        // Whoever reads the hub's tasks before its records has seen that this one is over.
        if was_there && self.is_hub(place) {
            let text = format!("task '{stem}' has a record, and is there again");
            self.wrong("what was seen to end in the hub is not put there again", text);
        }
    }

    /// Lives of an id follow each other, in every place, at any time (R4).
    fn check_lives(&mut self, place: usize, stem: &str) {
        let (id, life) = life_of(stem);
        let there = &self.places[place];
        let floor = there.floors.get(id).copied().unwrap_or(0);
        if life > floor + 1 && !there.has_ended(&stem_of(id, life - 1)) {
            let name = self.name(place);
            let text = format!("{name}: '{stem}' came before the end of the life before it");
            self.wrong("lives come one after the other", text);
        }
    }

    fn lease_came(
        &mut self,
        place: usize,
        pid: Pid,
        at: Duration,
        (stem, attempt): (&str, u32),
        bytes: &[u8],
    ) {
        let there = &self.places[place];
        if attempt < 2 || !there.tasks.contains(stem) {
            return;
        }
        let Some(before) = there.leases.get(&(stem.to_owned(), attempt - 1)) else {
            let name = self.name(place);
            let text =
                format!("{name}: '{stem}' has a lease of attempt {attempt}, and none before");
            return self.wrong("leases come one after the other", text);
        };
        let (Some(lease), Some(before_it)) = (parsed(bytes), parsed(&before.bytes)) else { return };
        let node = lock(&self.town.users).get(&pid).copied();
        let is_misled =
            |step: &super::Step| Some(step.node) == node && matches!(step.deed, Deed::Unlock(_));
        let is_taken_over = node == Some(place)
            && lease["state"].is_null()
            && before_it["state"].is_null()
            && before_it["node"].is_string()
            && before_it["node"] != lease["node"]
            && !self.town.plan.steps.iter().any(is_misled);
        let waited = at.saturating_sub(before.changed);
        if is_taken_over && waited + SLACK < LEASE + PERIOD * 2 {
            let text = format!(
                "node {place}: attempt {attempt} of '{stem}' began {waited:?} after the lease of another node came"
            );
            self.wrong("other nodes' leases hold for two periods more", text);
        }
    }

    /// A pass that came to its end leaves no task that it has put beside a record (R6).
    fn pass_ended(&mut self, pid: Pid) {
        let mut left = Vec::new();
        self.to_take_back.retain(|at, by| {
            if by.remove(&pid) && by.is_empty() {
                left.push(at.clone());
            }
            !by.is_empty()
        });
        for (place, stem) in left {
            let text = format!("{}: '{stem}' was over when a pass put it there", self.name(place));
            self.wrong("whoever brings a task looks whether it is over", text);
        }
    }
}
