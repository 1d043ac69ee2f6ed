//! What reads files, names and messages that others can write, for those who fuzz it.
//!
//! Thin: each function is one of the library's own, made visible. Properties are checked in the crate `dfq-fuzz`.

use jiff::Timestamp;

use crate::config::Config;
use crate::error::Result;
use crate::format;
use crate::layout::{self, Due, Names, Shard};
use crate::model::{
    Diagnosis, Generation, Layout, Lease, Outcome, Payload, Record, Settings, TaskId, TaskKey,
    TaskMeta,
};

#[cfg(feature = "sqs")]
pub use crate::sqs::parsers::*;

/// Reads a task file.
pub fn decode_task(bytes: &[u8], key: &TaskKey) -> Result<(Payload, TaskMeta)> {
    format::decode_task(bytes, key)
}

/// Writes a task file.
pub fn encode_task(payload: &Payload, meta: &TaskMeta) -> Vec<u8> {
    format::encode_task(payload, meta)
}

/// Takes a payload apart from its `_dfq`.
pub fn split_payload(text: &str) -> Result<(Payload, Option<TaskMeta>)> {
    format::split_payload(text)
}

/// Whether there is a member `_dfq`.
pub fn has_reserved(json: &str) -> bool {
    format::has_reserved(json)
}

/// Reads a terminal record.
pub fn decode_record(bytes: &[u8], outcome: Outcome, key: &TaskKey) -> Result<Record> {
    format::decode_record(bytes, outcome, key)
}

/// Writes a terminal record.
pub fn encode_record(record: &Record) -> Vec<u8> {
    format::encode_record(record)
}

/// A record with other white space at its end.
pub fn respaced(file: &[u8], nonce: &str) -> Vec<u8> {
    format::respaced(file, nonce)
}

/// Whether a record of this length was written a second time.
pub fn shows_rewritten(length: u64) -> bool {
    format::shows_rewritten(length)
}

/// Whether a record is about to be purged.
pub fn is_forgotten(record: &[u8]) -> bool {
    format::is_forgotten(record)
}

/// Reads a lease file.
pub fn decode_lease(bytes: &[u8], attempt: u32) -> Option<Lease> {
    format::decode_lease(bytes, attempt)
}

/// Writes a lease file.
pub fn encode_lease(lease: &Lease) -> Vec<u8> {
    format::encode_lease(lease)
}

/// Whether this version may use a queue with this `queue.json`.
pub fn check_compatible(bytes: &[u8]) -> Result<()> {
    format::check_compatible(bytes)
}

/// Reads `queue.json`.
pub fn decode_settings(bytes: &[u8]) -> Result<Settings> {
    format::decode_settings(bytes)
}

/// Writes `queue.json`.
pub fn encode_settings(settings: &Settings) -> Vec<u8> {
    format::encode_settings(settings)
}

/// Reads `doctor.json`.
pub fn decode_diagnosis(bytes: &[u8]) -> Result<Diagnosis> {
    format::decode_diagnosis(bytes)
}

/// Writes `doctor.json`.
pub fn encode_diagnosis(diagnosis: &Diagnosis) -> Vec<u8> {
    format::encode_diagnosis(diagnosis)
}

/// A floor: the id, its last life that was forgotten, the fence, and when.
pub type Floor = (TaskId, Generation, u64, Timestamp);

/// The longest line in a file of floors.
pub const LONGEST_FLOOR: usize = format::LONGEST_FLOOR;

/// Reads a file of floors.
pub fn decode_floors(file: &[u8]) -> Option<Vec<Floor>> {
    let floors = format::decode_floors(file)?.into_iter();
    Some(floors.map(|floor| (floor.id, floor.generation, floor.fence, floor.at)).collect())
}

/// Writes a file of floors.
pub fn encode_floors(floors: &[Floor]) -> Vec<u8> {
    let floor = |(id, generation, fence, at): &Floor| format::Floor {
        id: id.clone(),
        generation: *generation,
        fence: *fence,
        at: *at,
        pushes: Vec::new(),
    };
    format::encode_floors(&floors.iter().map(floor).collect::<Vec<_>>())
}

/// Reads `workers/watch` and writes it again.
pub fn rewrite_watch(bytes: &[u8]) -> Option<Vec<u8>> {
    crate::queue::rewrite_watch(bytes)
}

/// Reads the text of a `dfq.toml`.
pub fn config(text: &str) -> Result<Config> {
    Config::from_text(text)
}

/// A listing without the keys that cannot be ours.
#[cfg(feature = "bucket")]
pub fn without_foreign_keys(listing: Vec<u8>) -> Vec<u8> {
    crate::store::bucket::without_foreign_keys(listing.into()).to_vec()
}

/// The name of a task.
pub fn stem(key: &TaskKey) -> String {
    layout::stem(key)
}

/// The task of a name, ours or another program's.
pub fn parse_stem(name: &str) -> Option<TaskKey> {
    layout::parse_stem(name)
}

/// The task of a name that we built.
pub fn parse_canonical_stem(name: &str) -> Option<TaskKey> {
    layout::parse_canonical_stem(name)
}

/// The path of a pending task's folder.
pub fn task_dir(layout: Layout, key: &TaskKey) -> String {
    Names(layout).task_dir(key)
}

/// The task of a folder, by its path below `pending/`.
pub fn parse_task_path(layout: Layout, path: &str) -> Option<TaskKey> {
    Names(layout).parse_task_path(path)
}

/// The path of a task's record.
pub fn record_path(layout: Layout, outcome: Outcome, key: &TaskKey) -> String {
    Names(layout).record_path(outcome, key)
}

/// The task of a record, by its path below `completed/` or `failed/`.
pub fn parse_record_path(layout: Layout, path: &str) -> Option<TaskKey> {
    Names(layout).parse_record_path(path)
}

/// The number of a shard, by its name.
pub fn parse_shard(name: &str) -> Option<u8> {
    Shard::parse(name).map(Shard::number)
}

/// The file of an attempt.
pub fn lease_name(attempt: u32) -> String {
    layout::lease_name(attempt)
}

/// The attempt of a file.
pub fn parse_lease_name(name: &str) -> Option<u32> {
    layout::parse_lease_name(name)
}

/// The path of a worker's record.
pub fn worker_path(worker_id: &str) -> String {
    layout::worker_path(worker_id)
}

/// The worker of a file below `workers/`.
pub fn parse_worker_name(name: &str) -> Option<String> {
    layout::parse_worker_name(name)
}

/// A name as one part of a path.
pub fn encode_segment(name: &str) -> String {
    layout::encode_segment(name)
}

/// Undoes [`encode_segment`].
pub fn decode_segment(segment: &str) -> Option<String> {
    layout::decode_segment(segment)
}

/// The number of a version, by its name.
pub fn parse_version_name(name: &str) -> Option<u64> {
    layout::parse_version_name(name)
}

/// The time of a folder below `scheduled/`.
pub fn parse_due(name: &str) -> Option<Timestamp> {
    Due::parse(name).map(Due::at)
}

/// The name and the time of the folder for a task that is to wait.
pub fn due_after(now: Timestamp, delay: std::time::Duration) -> Option<(String, Timestamp)> {
    Due::after(now, delay).map(|due| (due.name(), due.at()))
}

/// The path below `scheduled/` of a task that is due then.
pub fn scheduled_path(now: Timestamp, key: &TaskKey) -> Option<String> {
    let dir = layout::scheduled_dir(Due::after(now, std::time::Duration::ZERO)?, key);
    layout::task_file(&dir).strip_prefix("scheduled/").map(str::to_owned)
}

/// The task of a path below `scheduled/`, and when it is due.
pub fn parse_scheduled_path(path: &str) -> Option<(Timestamp, TaskKey)> {
    layout::parse_scheduled_path(path).map(|(due, key)| (due.at(), key))
}
