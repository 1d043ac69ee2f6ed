//! What must be true at every change of the store, in the order in which the changes happened.
//!
//! Invariant: what is held against the index here is certain: it rests on what was in the store, and on the true time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::plan::{DAY, HOUR};
use super::rows::{self, Row};
use super::yard::Yard;
use crate::check::Violation;
use crate::history::{Changed, Event, How, What};
use crate::plan::Store;
use crate::world::Pid;

/// How long deletions are kept, and how long after its time a file is merged (I4).
pub(super) const KEPT: Duration = DAY.saturating_mul(90);
pub(super) const MERGED_WITHIN: Duration = DAY.saturating_mul(45);

/// So much may lie between a decision and what is seen of it.
pub(super) const SLACK: Duration = HOUR.saturating_mul(3);

const MARK: &[u8] = b"superseded\n";

/// What has become of a file of the inbox.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// When it was first there with this content.
    pub(super) created: Duration,
    /// What the store's clock showed then, in milliseconds.
    pub(super) wall: i64,
    /// When it was first found under `aside/`.
    pub(super) aside: Option<Duration>,
}

/// A name that means something.
enum Named<'a> {
    Inbox,
    Aside(&'a str),
    Shard(&'a str, u64),
    Columns(u64),
}

fn named(name: &str, in_bucket: bool) -> Option<Named<'_>> {
    if name.starts_with("inbox/") {
        return Some(Named::Inbox);
    }
    if let Some(path) = name.strip_prefix("aside/") {
        return Some(Named::Aside(path));
    }
    if in_bucket {
        return match name.strip_prefix("shards/") {
            Some(shard) => Some(Named::Shard(shard.strip_suffix(".usv")?, 1)),
            None => (name == "datapackage.json").then_some(Named::Columns(1)),
        };
    }
    let (of, number) = name.strip_prefix("versions/")?.rsplit_once('/')?;
    let number = number.parse().ok()?;
    match of.strip_prefix("shards/") {
        Some(shard) => Some(Named::Shard(shard.strip_suffix(".usv")?, number)),
        None => (of == "datapackage.json").then_some(Named::Columns(number)),
    }
}

type Rows = Arc<BTreeMap<String, Row>>;

/// What was seen of the store.
pub(super) struct Watch {
    in_bucket: bool,
    /// By name and content.
    pub(super) files: BTreeMap<(String, Arc<[u8]>), File>,
    /// What is in the inbox.
    inbox: BTreeMap<String, Arc<[u8]>>,
    /// The versions of each shard that are there, by their numbers.
    shards: BTreeMap<String, BTreeMap<u64, Rows>>,
    columns: BTreeMap<u64, Vec<String>>,
    /// Rows that were in the inbox at some time.
    known: BTreeSet<(String, String)>,
    /// Deletions by key.
    deletions: BTreeMap<String, Vec<Row>>,
    /// When the store's clock was set back.
    pub(super) set_back: Vec<Duration>,
    last_wall: i64,
    pub(super) power_cuts: Vec<Duration>,
    /// Nothing goes wrong any more from then on.
    pub(super) calm: Duration,
    pub(super) wrong: Vec<Violation>,
}

impl Watch {
    /// Goes through all that happened.
    pub(super) fn through(yard: &Yard) -> Self {
        let mut watch = Self {
            in_bucket: matches!(yard.plan.store, Store::Bucket(_)),
            files: BTreeMap::new(),
            inbox: BTreeMap::new(),
            shards: BTreeMap::new(),
            columns: BTreeMap::new(),
            known: BTreeSet::new(),
            deletions: BTreeMap::new(),
            set_back: Vec::new(),
            last_wall: i64::MIN,
            power_cuts: Vec::new(),
            calm: Duration::MAX,
            wrong: Vec::new(),
        };
        for entry in yard.history.entries() {
            match &entry.what {
                What::Changed(_, changed) => watch.changed(entry.pid, entry.at, changed),
                What::Happened(Event::PowerCut) => watch.power_cuts.push(entry.at),
                What::Happened(Event::Jumped(text)) if text.starts_with("machine 0 by -") => {
                    watch.set_back.push(entry.at);
                }
                What::Happened(Event::Calm) => watch.calm = entry.at,
                _ => {}
            }
        }
        watch
    }

    fn wrong(&mut self, rule: &'static str, text: String) {
        self.wrong.push(Violation { rule, text });
    }

    fn changed(&mut self, pid: Pid, at: Duration, changed: &Changed) {
        let Changed { name, how, bytes, wall } = changed;
        let wall = wall.as_millisecond();
        self.last_wall = wall;
        // On a disk what nobody did came of a power cut. In a bucket the network does everything.
        let by_itself = !self.in_bucket && pid == Pid::WORLD;
        match named(name, self.in_bucket) {
            Some(Named::Inbox) if *how == How::Removed => {
                let was = self.inbox.remove(name);
                if let Some(was) = was.filter(|_| !by_itself) {
                    self.left_inbox(name, &was, wall);
                }
            }
            Some(Named::Inbox) => self.came_in(name, bytes, at, wall, by_itself),
            Some(Named::Aside(path)) if *how != How::Removed => {
                self.set_aside(path, bytes, at, wall);
            }
            Some(Named::Shard(shard, number)) => {
                self.shard_changed(shard, number, *how, bytes, wall, by_itself);
            }
            Some(Named::Columns(number)) => {
                if *how == How::Removed || **bytes == *MARK {
                    self.columns.remove(&number);
                } else {
                    self.columns_changed(number, bytes, by_itself);
                }
            }
            _ => {}
        }
    }

    fn came_in(&mut self, name: &str, bytes: &Arc<[u8]>, at: Duration, wall: i64, by_itself: bool) {
        self.inbox.insert(name.to_owned(), Arc::clone(bytes));
        let file = File { created: at, wall, aside: None };
        self.files.entry((name.to_owned(), Arc::clone(bytes))).or_insert(file);
        let Some(rows) = rows::parse(bytes) else { return };
        let columns = self.columns.last_key_value().map_or(0, |(_, columns)| columns.len());
        for row in rows {
            if row.width > columns && !by_itself {
                let text = format!("{name} has {} fields, of {columns} columns", row.width);
                self.wrong("columns are there before what needs them", text);
            }
            self.known.insert((row.key.clone(), row.stamp.ulid.clone()));
            if row.deleted {
                self.deletions.entry(row.key.clone()).or_default().push(row);
            }
        }
    }

    /// Whether a deletion may be forgotten by then.
    fn is_forgotten(deletion: &Row, wall: i64) -> bool {
        let age = wall.saturating_sub(deletion.stamp.millis());
        age >= millis(KEPT.saturating_sub(SLACK))
    }

    /// What is removed from the inbox is in the shard, or was set aside.
    fn left_inbox(&mut self, name: &str, was: &Arc<[u8]>, wall: i64) {
        let key = (name.to_owned(), Arc::clone(was));
        if self.files.get(&key).is_some_and(|file| file.aside.is_some()) {
            return;
        }
        let shard = name.split('/').nth(1).unwrap_or_default();
        let Some(rows) = rows::parse(was) else {
            let text = format!("{name} is gone");
            return self.wrong("nothing unreadable is destroyed", text);
        };
        let held = self.shards.get(shard).and_then(|versions| versions.last_key_value());
        let held = held.map(|(_, rows)| Arc::clone(rows)).unwrap_or_default();
        for row in rows {
            let is_held = held.get(&row.key).is_some_and(|held| held.stamp >= row.stamp);
            let was_deleted = |it: &Row| it.stamp >= row.stamp && Self::is_forgotten(it, wall);
            let deletions = self.deletions.get(&row.key);
            if !is_held && !deletions.is_some_and(|all| all.iter().any(was_deleted)) {
                let text = format!("{name} is gone, and '{}' is not in the shard", row.key);
                self.wrong("what leaves the inbox is in the shard", text);
            }
        }
    }

    fn set_aside(&mut self, path: &str, bytes: &Arc<[u8]>, at: Duration, wall: i64) {
        let Some(file) = self.files.get_mut(&(path.to_owned(), Arc::clone(bytes))) else { return };
        file.aside.get_or_insert(at);
        let Some(rows) = rows::parse(bytes) else { return };
        let is_old = |row: &Row| {
            wall.saturating_sub(row.stamp.millis()) >= millis(MERGED_WITHIN.saturating_sub(SLACK))
        };
        if !rows.iter().any(is_old) {
            let text = format!("{path} is not 45 days old");
            self.wrong("only what is old is set aside", text);
        }
    }

    fn shard_changed(
        &mut self,
        shard: &str,
        number: u64,
        how: How,
        bytes: &Arc<[u8]>,
        wall: i64,
        by_itself: bool,
    ) {
        let versions = self.shards.entry(shard.to_owned()).or_default();
        let before = versions.last_key_value().map(|(number, rows)| (*number, Arc::clone(rows)));
        if how == How::Removed || **bytes == *MARK {
            versions.remove(&number);
            return;
        }
        let Some(rows) = rows::parse(bytes) else {
            if !by_itself {
                self.wrong("a shard is whole", format!("{shard}, version {number}"));
            }
            return;
        };
        let sorted = rows.windows(2).all(|two| two[0].key.as_bytes() < two[1].key.as_bytes());
        let rows: Rows = Arc::new(rows.into_iter().map(|row| (row.key.clone(), row)).collect());
        versions.insert(number, Arc::clone(&rows));
        // On a disk what has a lower number than the highest counts for nothing.
        if by_itself || before.as_ref().is_some_and(|(highest, _)| *highest > number) {
            return;
        }
        if !sorted {
            self.wrong("a shard is sorted, each key once", format!("{shard}, version {number}"));
        }
        for (key, row) in before.iter().flat_map(|(_, rows)| rows.iter()) {
            let is_there = rows.get(key).is_some_and(|now| now.stamp >= row.stamp);
            let may_be_gone = row.deleted && Self::is_forgotten(row, wall);
            if !is_there && !may_be_gone {
                let text = format!("'{key}' in {shard}, version {number}: {:?}", row.stamp);
                self.wrong("what was merged stays, or gives way to what is later", text);
            }
        }
        for (key, row) in rows.iter() {
            if !self.known.contains(&(key.clone(), row.stamp.ulid.clone())) {
                let text = format!("'{key}' in {shard}, version {number}: {:?}", row.stamp);
                self.wrong("what is merged was put", text);
            }
        }
    }

    fn columns_changed(&mut self, number: u64, bytes: &[u8], by_itself: bool) {
        let file: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
        let fields = file["resources"][0]["schema"]["fields"].as_array();
        let names = fields.into_iter().flatten().filter_map(|field| field["name"].as_str());
        let names: Vec<String> = names.map(str::to_owned).collect();
        if by_itself {
            // A mark that a power cut has torn stands for nothing.
            match names.is_empty() {
                true => self.columns.remove(&number),
                false => self.columns.insert(number, names),
            };
            return;
        }
        let before = self.columns.last_key_value().map(|(_, before)| before);
        if before.is_some_and(|before| !names.starts_with(before)) {
            self.wrong("columns are only appended", format!("{names:?} after {before:?}"));
        }
        self.columns.insert(number, names);
    }
}

pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
