//! The bytes in the files: JSON that a person can read and edit.
//!
//! Invariant: what the caller pushed comes out byte for byte. `task.json` is the caller's object
//! with one member, `_dfq`, put in before the closing brace; a terminal record is the same with a
//! longer `_dfq`. Reading is lenient (the seeds' files, files edited by hand), writing is strict.

mod diagnosis;
mod floor;
mod lease;
mod settings;
mod task;

use std::borrow::Cow;

use jiff::{Timestamp, civil, tz::TimeZone};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::layout;
use crate::model::Generation;

pub(crate) use diagnosis::{decode_diagnosis, encode_diagnosis};
pub(crate) use floor::{Floor, LONGEST_FLOOR, decode_floor, decode_floors, encode_floors};
pub(crate) use lease::{decode_lease, encode_lease};
pub(crate) use settings::{check_compatible, decode_settings, encode_settings};
pub(crate) use task::{
    bare_meta, decode_record, decode_task, encode_record, encode_task, has_reserved, is_forgotten,
    member, respaced, shows_rewritten, split_payload, with_id,
};

/// A point in time: RFC 3339, UTC, microseconds. Reads offsets, and takes a time without any (the
/// seeds' Python may print such) for UTC.
#[derive(Clone, Copy)]
struct Time(Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.6}", self.0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let naive = || {
            let local: civil::DateTime = text.parse()?;
            Ok::<_, jiff::Error>(local.to_zoned(TimeZone::UTC)?.timestamp())
        };
        text.parse().or_else(|_| naive()).map(Self).map_err(de::Error::custom)
    }
}

fn time(timestamp: Option<Timestamp>) -> Option<Time> {
    timestamp.map(Time)
}

fn timestamp(time: Option<Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

/// Any value as one line of JSON.
pub(crate) fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = serde_json::to_vec(value).unwrap_or_default();
    out.push(b'\n');
    out
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// By what a push is known once its task is forgotten: a part of its `push_id`, or where it has none of the SHA-256
/// of its file.
pub(crate) fn push_mark(push_id: &str, file: &[u8]) -> String {
    const DIGITS: usize = 16;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match push_id.get(..DIGITS) {
        Some(digits) if digits.bytes().all(is_digit) => digits.to_owned(),
        // Another program's, in which anything can be.
        _ if !push_id.is_empty() => hex(&Sha256::digest(push_id)[..DIGITS / 2]),
        _ => hex(&Sha256::digest(file)[..DIGITS / 2]),
    }
}

/// Whether a life of this number can have a name.
fn is_generation(number: Generation) -> bool {
    (1..=layout::MAX_GENERATION).contains(&number)
}

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !text.len().is_multiple_of(2) || !digits {
        return None;
    }
    let pairs = (0..text.len()).step_by(2).map(|at| &text[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

#[cfg(test)]
mod tests;
