//! A walk through the history: what is in the stores at each moment.
//!
//! Invariant: rules that look at a moment see what was there when the entry was made, with all changes before it.
//! What a power cut took or brought back is put in place, and held against nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::Violation;
use super::facts::Facts;
use super::names::{self, Kind};
use crate::history::{Ask, Changed, Entry, Event, How, QueueNo, What};
use crate::world::Pid;

/// A lease, as its file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) worker: Option<Pid>,
    pub(super) lease_id: String,
    pub(super) state: Option<String>,
    pub(super) not_before: Option<Timestamp>,
    pub(super) heartbeat_at: Option<Timestamp>,
    pub(super) created_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) moving: bool,
}

impl Lease {
    /// For how long it holds.
    pub(super) fn length(&self) -> Option<Duration> {
        let length = self.expires_at?.duration_since(self.heartbeat_at?);
        Some(Duration::try_from(length).unwrap_or(Duration::ZERO))
    }
}

/// A file of a life.
#[derive(Clone, Debug)]
pub(super) struct File<T> {
    pub(super) made: Duration,
    pub(super) by: Pid,
    pub(super) written: Duration,
    /// When it was last written, on the store's clock.
    pub(super) wall: Timestamp,
    /// What it says; nothing if it cannot be read.
    pub(super) says: Option<T>,
}

/// A task, as its file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) n: Option<i64>,
    pub(super) not_before: Option<Timestamp>,
    pub(super) moves: u64,
}

/// A record, as its file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) lease_id: String,
    pub(super) forgotten: bool,
}

/// All that is there of one life.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) task: Option<File<Task>>,
    pub(super) scheduled: BTreeMap<String, Option<i64>>,
    pub(super) leases: BTreeMap<u32, File<Lease>>,
    pub(super) completed: Option<File<Record>>,
    pub(super) failed: Option<File<Record>>,
    /// When anything of it last changed.
    pub(super) touched: Duration,
}

impl Life {
    pub(super) fn records(&self) -> impl Iterator<Item = &File<Record>> {
        self.completed.iter().chain(&self.failed)
    }

    /// The highest lease below this attempt that was not withdrawn.
    pub(super) fn current(&self, below: u32) -> Option<(u32, &File<Lease>)> {
        let withdrawn = |file: &File<Lease>| file.is("withdrawn");
        let current = self.leases.range(..below).rev().find(|(_, file)| !withdrawn(file));
        current.map(|(attempt, file)| (*attempt, file))
    }

    /// Whether there is a lease above this attempt that counts.
    pub(super) fn is_superseded(&self, attempt: u32) -> bool {
        self.leases.range(attempt + 1..).any(|(_, file)| !file.is("withdrawn"))
    }
}

impl File<Lease> {
    /// When it runs out on the store's clock: the later of its age and its word, unless that is a day off.
    pub(super) fn runs_out(&self, queue_lease: Duration) -> Timestamp {
        let length = self.says.as_ref().and_then(Lease::length).unwrap_or(queue_lease);
        let by_age = self.wall.saturating_add(length).unwrap_or(Timestamp::MAX);
        let day = jiff::SignedDuration::from_hours(24);
        let believable = by_age.saturating_add(day).unwrap_or(Timestamp::MAX);
        let word = self.says.as_ref().and_then(|it| it.expires_at);
        word.filter(|word| *word <= believable).map_or(by_age, |word| word.max(by_age))
    }

    pub(super) fn is(&self, state: &str) -> bool {
        self.says.as_ref().is_some_and(|it| it.state.as_deref() == Some(state))
    }

    /// Whether it goes on, or was lost.
    pub(super) fn has_no_state(&self) -> bool {
        self.says.as_ref().is_some_and(|it| it.state.is_none())
    }

    pub(super) fn is_of(&self, lease_id: &str) -> bool {
        self.says.as_ref().is_some_and(|it| it.lease_id == lease_id)
    }
}

/// A lease that was just created to claim a task, and what stood there then.
#[derive(Clone, Debug)]
pub(super) struct Born {
    pub(super) queue: QueueNo,
    pub(super) stem: String,
    pub(super) attempt: u32,
    pub(super) lease_id: String,
    pub(super) at: Duration,
    pub(super) wall: Timestamp,
    /// Failures and lost leases before it.
    pub(super) failed: u32,
    pub(super) lost: u32,
    /// The lease before it had run out on the store's clock.
    pub(super) ran_out: bool,
    /// There was a lease to be judged.
    pub(super) judged: bool,
    pub(super) task: Option<Task>,
}

/// A record that went from a bucket.
#[derive(Clone, Debug)]
pub(super) struct Forgotten {
    pub(super) queue: QueueNo,
    pub(super) at: Duration,
    pub(super) name: String,
    /// Whose it was.
    pub(super) id: String,
    pub(super) life: u32,
    /// Where the task of the next life would be.
    pub(super) next: String,
}

/// What was so when something was asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Then {
    /// The receipts above which there was another lease.
    pub(super) superseded: Vec<bool>,
    /// Tasks that could be had.
    pub(super) free: Vec<String>,
}

/// The stores as they are at one moment.
pub(super) struct Walk<'a> {
    pub(super) facts: &'a Facts,
    pub(super) lives: BTreeMap<(QueueNo, String), Life>,
    pub(super) floors: BTreeMap<(QueueNo, String), Vec<(String, u32)>>,
    pub(super) paused: BTreeSet<QueueNo>,
    pub(super) asked: BTreeMap<u64, (Duration, Pid, Ask, Then)>,
    pub(super) born: Vec<Born>,
    /// Claims that were handed out.
    pub(super) given: BTreeSet<(QueueNo, String, u32, String)>,
    /// Leases that were removed: their names and their nonces, and when.
    pub(super) removed: BTreeMap<(QueueNo, String, String), Duration>,
    /// Records that went from a bucket.
    pub(super) forgotten: Vec<Forgotten>,
    pub(super) wrong: Vec<Violation>,
    cut: Option<Duration>,
}

impl<'a> Walk<'a> {
    /// Goes through a whole history.
    pub(super) fn through(facts: &'a Facts, entries: &[Entry]) -> Self {
        let mut walk = Self {
            facts,
            lives: BTreeMap::new(),
            floors: BTreeMap::new(),
            paused: BTreeSet::new(),
            asked: BTreeMap::new(),
            born: Vec::new(),
            given: BTreeSet::new(),
            removed: BTreeMap::new(),
            forgotten: Vec::new(),
            wrong: Vec::new(),
            cut: None,
        };
        for (index, entry) in entries.iter().enumerate() {
            walk.enter(entry, &entries[index + 1..]);
        }
        walk
    }

    fn enter(&mut self, Entry { at, pid, what }: &Entry, after: &[Entry]) {
        match what {
            What::Changed(queue, changed) => {
                let by_a_cut = self.cut == Some(*at) && *pid == Pid::WORLD;
                if !by_a_cut {
                    self.check_change(*at, *pid, *queue, changed, after);
                }
                self.put_in_place(*at, *pid, *queue, changed, by_a_cut);
            }
            What::Asked(number, ask) => {
                let then = self.then(*at, ask);
                self.asked.insert(*number, (*at, *pid, ask.clone(), then));
            }
            What::Told(number, answer) => {
                if let Some((asked, _, ask, then)) = self.asked.remove(number) {
                    self.check_answer(asked, *at, *pid, &ask, &then, answer);
                }
            }
            What::Happened(Event::PowerCut) => self.cut = Some(*at),
            _ => {}
        }
    }

    pub(super) fn breaks(&mut self, rule: &'static str, text: String) {
        self.wrong.push(Violation { rule, text });
    }

    pub(super) fn life(&self, queue: QueueNo, stem: &str) -> Option<&Life> {
        self.lives.get(&(queue, stem.to_owned()))
    }

    /// Whether a purge has said of this life that it is forgotten.
    pub(super) fn is_forgotten(&self, queue: QueueNo, stem: &str) -> bool {
        let (id, life) = names::id_and_life(stem);
        let floors = self.floors.iter().filter(|((of, _), _)| *of == queue);
        floors.flat_map(|(_, floors)| floors).any(|(of, floor)| of == id && *floor >= life)
    }

    fn put_in_place(
        &mut self,
        at: Duration,
        pid: Pid,
        queue: QueueNo,
        changed: &Changed,
        by_a_cut: bool,
    ) {
        let Changed { name, how, bytes, wall } = changed;
        // What a power cut leaves is as old as it was.
        let wall = if by_a_cut { &Timestamp::MIN } else { wall };
        if name == "paused.json" {
            match how {
                How::Removed => self.paused.remove(&queue),
                _ => self.paused.insert(queue),
            };
            return;
        }
        let Some((kind, stem)) = names::parse(name) else { return };
        if kind == Kind::Floor {
            match how {
                How::Removed => _ = self.floors.remove(&(queue, name.clone())),
                _ => _ = self.floors.insert((queue, name.clone()), floors(bytes)),
            }
            return;
        }
        let life = self.lives.entry((queue, stem.to_owned())).or_default();
        life.touched = at;
        let gone = *how == How::Removed;
        match kind {
            Kind::Task => put(&mut life.task, gone, at, pid, *wall, task(bytes)),
            Kind::Completed => put(&mut life.completed, gone, at, pid, *wall, record(bytes)),
            Kind::Failed => put(&mut life.failed, gone, at, pid, *wall, record(bytes)),
            Kind::Scheduled if gone => _ = life.scheduled.remove(name),
            Kind::Scheduled => {
                life.scheduled.insert(name.clone(), task(bytes).and_then(|it| it.n));
            }
            Kind::Lease(attempt) => {
                let mut file = life.leases.remove(&attempt);
                put(&mut file, gone, at, pid, *wall, lease(bytes));
                life.leases.extend(file.map(|file| (attempt, file)));
            }
            Kind::Floor => {}
        }
    }
}

fn put<T>(
    file: &mut Option<File<T>>,
    gone: bool,
    at: Duration,
    by: Pid,
    wall: Timestamp,
    says: Option<T>,
) {
    *file = match (gone, file.take()) {
        (true, _) => None,
        (false, None) => Some(File { made: at, by, written: at, wall, says }),
        (false, Some(old)) => Some(File { written: at, wall, says, ..old }),
    };
}

fn value(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// What a lease's file says.
pub(super) fn lease(bytes: &[u8]) -> Option<Lease> {
    let value = value(bytes)?;
    let worker = value["worker_id"].as_str()?;
    let pid = worker.strip_prefix('p').and_then(|it| it.split('-').next()?.parse().ok());
    Some(Lease {
        worker: pid.map(Pid),
        lease_id: text(&value["lease_id"]),
        state: value["state"].as_str().map(str::to_owned),
        not_before: time(&value["not_before"]),
        heartbeat_at: time(&value["heartbeat_at"]),
        created_at: time(&value["created_at"]),
        expires_at: time(&value["expires_at"]),
        moving: value["moving"].as_bool().unwrap_or(false),
    })
}

/// What a task's file says.
pub(super) fn task(bytes: &[u8]) -> Option<Task> {
    let value = value(bytes)?;
    Some(Task {
        n: value["n"].as_i64(),
        not_before: time(&value["_dfq"]["not_before"]),
        moves: value["_dfq"]["moves"].as_u64().unwrap_or(0),
    })
}

/// What a record's file says.
pub(super) fn record(bytes: &[u8]) -> Option<Record> {
    let value = value(bytes)?;
    let ours = &value["_dfq"];
    let forgotten = ours["forgotten"].as_bool().unwrap_or(false);
    Some(Record { lease_id: text(&ours["lease_id"]), forgotten })
}

/// Which lives a file of floors says are forgotten.
fn floors(bytes: &[u8]) -> Vec<(String, u32)> {
    let value = value(bytes).unwrap_or_default();
    let one = |it: &Value| {
        let life = u32::try_from(it["generation"].as_u64()?).ok()?;
        Some((names::encoded(it["id"].as_str()?), life))
    };
    value["floors"].as_array().map(|all| all.iter().filter_map(one).collect()).unwrap_or_default()
}

/// Somebody wrote this who knows nothing of queues.
pub(super) fn is_spoiled(bytes: &Arc<[u8]>) -> bool {
    bytes.windows(7).any(|part| part == b"spoiled") && value(bytes).is_none()
}
