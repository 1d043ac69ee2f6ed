//! The targets, by what they read.

pub(crate) mod command;
pub(crate) mod files;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod queue;

use dfq::{TaskId, TaskKey};
use serde::de::IgnoredAny;

/// Words of the files.
pub(crate) const JSON: &[&str] = &[
    "\"_dfq\":",
    "\"id\":",
    "\"generation\":",
    "\"push_id\":",
    "\"created_at\":",
    "\"not_before\":",
    "\"wrapped\":true",
    "\"payload\":",
    "\"fence_before\":",
    "\"max_attempts\":",
    "\"damaged_hex\":",
    "\"damaged_text\":",
    "\"forgotten\":true",
    "\"attempts\":[",
    "\"state\":\"released\"",
    "\"state\":\"withdrawn\"",
    "\"expires_at\":",
    "\"heartbeat_at\":",
    "\"lease_id\":",
    "\"worker_id\":",
    "\"moving\":true",
    "\"requires\":",
    "\"format\":",
    "\"layout\":\"flat\"",
    "\"lease_seconds\":",
    "\"\\u005fdfq\":",
    "\"ok\":true",
    "\"retry\":",
    "\"delay\":",
    "\"release\":",
    "\"fail\":",
    "{\"_dfq\":{\"id\":\"a\"}}",
    "\"verdict\":\"safe\"",
    "\"bell\":",
    "{\"floors\":[\n",
    "\n]}\n",
    "[[[[",
    "{\"a\":",
    "null",
];

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

fn is_json(input: &[u8]) -> bool {
    text(input).is_some_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// The same where members that nobody knows may hold any bytes.
fn is_json_bytes(input: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(input).is_ok()
}

fn key(id: &str, generation: u32) -> TaskKey {
    TaskKey::new(TaskId::new(id).unwrap(), generation)
}

/// The first byte as a choice, and the rest.
fn choice(input: &[u8]) -> (u8, &[u8]) {
    input.split_first().map_or((0, input), |(first, rest)| (*first, rest))
}
