//! The only place where names in the tree are built or parsed, for every provider and both layouts: by [`Names`]
//! where the layout counts, by functions where it does not. A test sees to it that no other module joins a path.
//!
//! Invariant: every name built here parses back to what it was built from, and no id, however odd,
//! leads out of its folder. Names that nobody here could have built are foreign: parsing answers
//! `None`, and callers leave such files alone.
//!
//! ```text
//! queue.json  paused.json  unlocked.json  doctor.json
//! pending/<sh>/<stem>/task.json  lease.json  lease.2.json …
//! scheduled/<due>/<stem>/task.json
//! completed/<sh>/<stem>.json     failed/<sh>/<stem>.json
//! workers/<worker>.json          tmp/   (filesystem only: what is being written)
//! versions/<name>/1  2  3 …      (filesystem only: the versions of a name that is swapped)
//! inbox/<sh>/…  shards/<sh>.usv  (an index: see `index`)
//! ```
//! `<stem>` is the encoded id, with `@g` appended from the second life on; in the flat layout there
//! is no `<sh>`.

mod index;
mod swapped;
mod synced;

use std::time::Duration;

use jiff::{Timestamp, Unit, civil, tz::TimeZone};
use sha2::{Digest, Sha256};

use crate::model::{Generation, Layout, Outcome, TaskId, TaskKey};

pub(crate) use index::*;
pub use swapped::Swapped;
#[cfg(feature = "doctor")]
pub(crate) use swapped::trial_of_the_doctor;
pub(crate) use swapped::{
    VERSIONS, merged, parse_version_name, record_that_a_purge_swaps, set_aside, trial_of_a_purge,
    trial_of_an_index, versions_dir, watch,
};
#[cfg(any(test, feature = "conformance"))]
pub(crate) use swapped::{shown_for_trial, swapped_for_trial};
pub(crate) use synced::*;

/// The queue's settings.
pub(crate) const SETTINGS: &str = "queue.json";
/// Present while the queue is paused.
pub(crate) const PAUSED: &str = "paused.json";
/// Rewritten by every unlock, so that workers forget what they remember of backoffs.
pub(crate) const UNLOCKED: &str = "unlocked.json";

/// The most bytes that are read of a task or a record, and of anything else. What is larger stays where it
/// is and counts as damaged: nobody reads a file that somebody made a terabyte long.
const LARGEST: (u64, u64) = (LONGEST_READ, 1 << 20);
pub(crate) const LONGEST_READ: u64 = 64 << 20;

/// The most bytes that are read of a file, by its name.
pub(crate) fn read_limit(path: &str) -> u64 {
    let completed = outcome_dir(Outcome::Completed);
    let large = [completed, outcome_dir(Outcome::Failed), FLOORS, SYNC, CONFLICTS, INBOX];
    let in_large = |dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
    if in_large(SHARDS) {
        return LARGEST_SHARD;
    }
    let is_large = path.ends_with(TASK) || large.into_iter().any(in_large);
    if is_large { LARGEST.0 } else { LARGEST.1 }
}

/// What the doctor found out about the store.
pub(crate) const DOCTOR: &str = "doctor.json";
/// Tasks to be done.
pub(crate) const PENDING: &str = "pending";
/// Tasks that are not due yet.
pub(crate) const SCHEDULED: &str = "scheduled";
/// What purges have forgotten.
pub(crate) const FLOORS: &str = "floors";
/// Who is alive.
pub(crate) const WORKERS: &str = "workers";
/// What is being written and has no name yet.
pub(crate) const TMP: &str = "tmp";
/// The task itself, within its folder.
pub(crate) const TASK: &str = "task.json";
/// What the names of leases begin with, within a task's folder.
pub(crate) const LEASE: &str = "lease.";

/// Nobody tries that often; a lease that says so is somebody else's file.
const MAX_ATTEMPTS: u32 = 1_000_000_000;

/// Nobody lives that often; a name that says so is somebody else's.
pub(crate) const MAX_GENERATION: Generation = 1_000_000_000;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// One of the 256 parts of a folder; the flat layout has only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Shard(u8);

impl Shard {
    pub(crate) const FIRST: Self = Self(0);

    /// Its number.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    fn digits(self) -> [char; 2] {
        [self.0 >> 4, self.0 & 15].map(|digit| char::from(HEX[usize::from(digit)]))
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if name.len() != 2 || !name.bytes().all(lower_hex) {
            return None;
        }
        u8::from_str_radix(name, 16).ok().map(Self)
    }
}

/// The first byte of an id's SHA-256.
pub(crate) fn hash_byte(id: &TaskId) -> u8 {
    Sha256::digest(id.as_str().as_bytes())[0]
}

/// Every name in the tree of a queue with this layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names(pub(crate) Layout);

impl Names {
    /// The shard of a task.
    pub(crate) fn shard(self, key: &TaskKey) -> Shard {
        match self.0 {
            Layout::Flat => Shard(0),
            Layout::Sharded => Shard(key.hash_byte()),
        }
    }

    /// All shards of a layout.
    pub(crate) fn shards(self) -> Vec<Shard> {
        match self.0 {
            Layout::Flat => vec![Shard(0)],
            Layout::Sharded => (0..=255).map(Shard).collect(),
        }
    }

    /// A path below `pending/` after which the keys of a shard begin, for listings in the order of keys;
    /// nothing if they begin at the beginning. It is not the shard's own name: a server that keeps folders
    /// (SeaweedFS) takes "after 62" for "without the folder 62".
    pub(crate) fn before_shard(self, number: usize) -> Option<String> {
        let before = number.checked_sub(1).filter(|_| self.0 == Layout::Sharded)?;
        let before = Shard(u8::try_from(before).ok().filter(|before| *before < u8::MAX)?);
        Some(before.digits().into_iter().chain(['~']).collect())
    }

    /// `<place>/<sh>` or, flat, `<place>`.
    pub(crate) fn shard_dir(self, place: &str, shard: Shard) -> String {
        // With room for an id of the usual length and an ending.
        let mut path = String::with_capacity(place.len() + 3 + 48);
        path.push_str(place);
        if self.0 == Layout::Sharded {
            path.push('/');
            path.extend(shard.digits());
        }
        path
    }

    fn in_shard(self, place: &str, key: &TaskKey) -> String {
        let mut path = self.shard_dir(place, self.shard(key));
        path.push('/');
        push_stem(&mut path, key);
        path
    }

    /// The folder of a pending task.
    pub(crate) fn task_dir(self, key: &TaskKey) -> String {
        self.in_shard(PENDING, key)
    }

    /// The terminal record of a task.
    pub(crate) fn record_path(self, outcome: Outcome, key: &TaskKey) -> String {
        let mut path = self.in_shard(outcome_dir(outcome), key);
        path.push_str(".json");
        path
    }

    /// A file of floors of a shard.
    pub(crate) fn floor_path(self, shard: Shard, name: &str) -> String {
        below(&self.shard_dir(FLOORS, shard), name)
    }

    /// The task of a folder found under `pending/`, if it lies where it belongs. Only flat trees can
    /// come from programs that do not encode names as we do.
    pub(crate) fn parse_task_dir(self, found_in: Shard, name: &str) -> Option<TaskKey> {
        match self.0 {
            Layout::Flat => parse_stem(name),
            Layout::Sharded => parse_canonical_stem(name).filter(|key| self.shard(key) == found_in),
        }
    }

    /// The task of a file found under `completed/` or `failed/`.
    pub(crate) fn parse_record_name(self, found_in: Shard, name: &str) -> Option<TaskKey> {
        self.parse_task_dir(found_in, name.strip_suffix(".json")?)
    }

    /// The task of a folder, by its path below `pending/`.
    pub(crate) fn parse_task_path(self, path: &str) -> Option<TaskKey> {
        let (shard, name) = self.split_shard(path)?;
        self.parse_task_dir(shard, name)
    }

    /// The task of a record, by its path below `completed/` or `failed/`.
    pub(crate) fn parse_record_path(self, path: &str) -> Option<TaskKey> {
        let (shard, name) = self.split_shard(path)?;
        self.parse_record_name(shard, name)
    }

    fn split_shard(self, path: &str) -> Option<(Shard, &str)> {
        match self.0 {
            Layout::Flat => Some((Shard::FIRST, path)),
            Layout::Sharded => {
                let (shard, name) = path.split_once('/')?;
                Some((Shard::parse(shard)?, name))
            }
        }
    }
}

/// Puts workers into an order that has nothing to do with their names.
pub(crate) fn rank_of(worker_id: &str) -> [u8; 8] {
    let digest = Sha256::digest(worker_id.as_bytes());
    std::array::from_fn(|at| digest[at])
}

/// The folder of an outcome.
pub(crate) fn outcome_dir(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Failed => "failed",
    }
}

/// What has this name in a folder.
pub(crate) fn below(folder: &str, name: &str) -> String {
    format!("{folder}/{name}")
}

/// The task in its folder.
pub(crate) fn task_file(folder: &str) -> String {
    below(folder, TASK)
}

/// The lease of an attempt in its task's folder.
pub(crate) fn lease_file(folder: &str, attempt: u32) -> String {
    below(folder, &lease_name(attempt))
}

/// The folder of a due time.
pub(crate) fn due_dir(due: Due) -> String {
    format!("{SCHEDULED}/{}", due.name())
}

/// The folder of a scheduled task.
pub(crate) fn scheduled_dir(due: Due, key: &TaskKey) -> String {
    let mut path = due_dir(due);
    path.push('/');
    push_stem(&mut path, key);
    path
}

/// The task whose file this path below `scheduled/` is, and when it is due.
pub(crate) fn parse_scheduled_path(path: &str) -> Option<(Due, TaskKey)> {
    let (due, rest) = path.split_once('/')?;
    let stem = rest.strip_suffix(TASK)?.strip_suffix('/')?;
    Some((Due::parse(due)?, parse_canonical_stem(stem)?))
}

/// A worker's record.
pub(crate) fn worker_path(worker_id: &str) -> String {
    let mut path = format!("{WORKERS}/");
    encode(&mut path, worker_id);
    path.push_str(".json");
    path
}

/// The name of a new file of floors.
pub(crate) fn floor_name(nonce: &str) -> String {
    format!("{nonce}.json")
}

/// Whether a file found under `floors/` is one of floors.
pub(crate) fn is_floor_name(name: &str) -> bool {
    !name.starts_with('.') && name.ends_with(".json")
}

/// How the names of the doctor's own folders under `tmp/` begin.
pub(crate) const DOCTORS_FOLDER: &str = "doctor-";

/// A folder in which the doctor tries things out.
pub(crate) fn doctors_folder(nonce: &str) -> String {
    below(TMP, &format!("{DOCTORS_FOLDER}{nonce}"))
}

/// The file of an attempt, within its task's folder.
pub(crate) fn lease_name(attempt: u32) -> String {
    match attempt {
        1 => "lease.json".to_owned(),
        n => format!("lease.{n}.json"),
    }
}

/// Which attempt a file within a task's folder belongs to.
pub(crate) fn parse_lease_name(name: &str) -> Option<u32> {
    let middle = name.strip_prefix("lease.")?;
    if middle == "json" {
        return Some(1);
    }
    let digits = middle.strip_suffix(".json")?;
    parse_count(digits).filter(|n| (2..=MAX_ATTEMPTS).contains(n))
}

/// A number as we write it: no sign, no leading zero.
fn parse_count(digits: &str) -> Option<u32> {
    let plain = !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// A task's name: its encoded id, and its generation from the second on.
pub(crate) fn stem(key: &TaskKey) -> String {
    let mut out = String::with_capacity(key.id().as_str().len() + 4);
    push_stem(&mut out, key);
    out
}

fn push_stem(out: &mut String, key: &TaskKey) {
    if key.is_verbatim() {
        out.push_str(key.id().as_str());
        return;
    }
    encode(out, key.id().as_str());
    if key.generation() > 1 {
        out.push('@');
        out.push_str(&key.generation().to_string());
    }
}

/// The task of a name that we built.
pub(crate) fn parse_canonical_stem(name: &str) -> Option<TaskKey> {
    let (encoded, generation) = match name.split_once('@') {
        None => (name, 1),
        Some((encoded, digits)) => {
            (encoded, parse_count(digits).filter(|g| (2..=MAX_GENERATION).contains(g))?)
        }
    };
    let id = TaskId::new(decode(encoded)?).ok()?;
    Some(TaskKey::new(id, generation))
}

/// The task of a name, ours or another program's.
pub(crate) fn parse_stem(name: &str) -> Option<TaskKey> {
    parse_canonical_stem(name).or_else(|| {
        let foreign = name.starts_with('.') || name.contains(['/', '\0']);
        let id = TaskId::new(name).ok().filter(|_| !foreign)?;
        Some(TaskKey::verbatim(id))
    })
}

/// The worker of a file found under `workers/`.
pub(crate) fn parse_worker_name(name: &str) -> Option<String> {
    decode(name.strip_suffix(".json")?)
}

fn is_plain(byte: u8, first: bool) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || (byte == b'.' && !first)
}

/// How many bytes an id takes in a name.
pub(crate) fn encoded_len(id: &str) -> usize {
    let len = |(i, b)| if is_plain(b, i == 0) { 1 } else { 3 };
    id.bytes().enumerate().map(len).sum()
}

/// Stands for itself in a name, as nearly every id does.
fn is_all_plain(text: &str) -> bool {
    text.bytes().enumerate().all(|(i, byte)| is_plain(byte, i == 0))
}

/// A campaign's or queue's name as one part of a path, which it cannot leave.
pub(crate) fn encode_segment(name: &str) -> String {
    let mut segment = String::with_capacity(name.len());
    encode(&mut segment, name);
    segment
}

/// Undoes [`encode_segment`], and accepts nothing that it could not have written.
pub(crate) fn decode_segment(segment: &str) -> Option<String> {
    decode(segment)
}

fn encode(out: &mut String, text: &str) {
    if is_all_plain(text) {
        return out.push_str(text);
    }
    for (i, byte) in text.bytes().enumerate() {
        if is_plain(byte, i == 0) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(HEX[usize::from(digit)].to_ascii_uppercase()));
            }
        }
    }
}

/// Undoes [`encode`], and accepts nothing that it could not have written.
fn decode(name: &str) -> Option<String> {
    if is_all_plain(name) {
        return Some(name.to_owned()).filter(|name| !name.is_empty());
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let pair = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok())?;
            bytes.push(u8::from_str_radix(pair, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    let mut again = String::with_capacity(name.len());
    encode(&mut again, &text);
    (again == name && !text.is_empty()).then_some(text)
}

/// When a scheduled task may be handed out, as precise as its folder's name: to the second up to ten
/// minutes ahead, to the minute beyond, rounded up so that whatever lies in a due folder is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Due(Timestamp);

/// Earlier years have no name: it would begin with a sign.
const YEAR_ZERO: Timestamp = Timestamp::constant(-62_167_219_200, 0);

const FINE_HORIZON: Duration = Duration::from_secs(600);

impl Due {
    /// The folder for a task that is to wait `delay` from `now`; `None` if that is beyond all time.
    pub(crate) fn after(now: Timestamp, delay: Duration) -> Option<Self> {
        let exact = now.checked_add(delay).ok()?;
        let step = if delay <= FINE_HORIZON { 1 } else { 60 };
        let second = exact.as_second() + i64::from(exact.subsec_nanosecond() > 0);
        let rounded = second.checked_add(step - 1)?.div_euclid(step) * step;
        Timestamp::from_second(rounded).ok().map(Self).filter(|due| due.0 >= YEAR_ZERO)
    }

    /// The folder of tasks that are due at a time that one has told.
    pub(crate) fn at_time(time: Timestamp) -> Self {
        Self(time)
    }

    /// The time itself.
    pub(crate) fn at(self) -> Timestamp {
        self.0
    }

    /// `20261115T1930Z`, or with seconds `20261115T193045Z`.
    pub(crate) fn name(self) -> String {
        let pattern = if self.0.as_second() % 60 == 0 { "%Y%m%dT%H%MZ" } else { "%Y%m%dT%H%M%SZ" };
        self.0.strftime(pattern).to_string()
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let digits = name.strip_suffix('Z')?;
        let (date, time) = digits.split_once('T')?;
        if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'T') || date.len() != 8 {
            return None;
        }
        let part = |text: &str, at: usize| text.get(at..at + 2)?.parse::<i8>().ok();
        let seconds = match time.len() {
            4 => 0,
            6 => part(time, 4)?,
            _ => return None,
        };
        let day = civil::Date::new(date[..4].parse().ok()?, part(date, 4)?, part(date, 6)?).ok()?;
        let clock = civil::Time::new(part(time, 0)?, part(time, 2)?, seconds, 0).ok()?;
        let at = day.to_datetime(clock).to_zoned(TimeZone::UTC).ok()?.timestamp();
        let due = Self(at.round(Unit::Second).ok()?);
        (due.name() == name).then_some(due)
    }
}

#[cfg(test)]
mod tests;
