//! Task files and terminal records: the caller's JSON with one member put in.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::lease::StateDoc;
use super::{Time, hex, is_generation, time, timestamp, unhex};
use crate::error::{Error, Result};
use crate::model::{
    AttemptSummary, Carried, Journey, LeaseState, Outcome, Payload, Record, TaskId, TaskKey,
    TaskMeta,
};

/// The one member that is ours.
const RESERVED: &str = "_dfq";

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_u64(number: &u64) -> bool {
    *number == 0
}

fn one() -> u32 {
    1
}

/// `_dfq` in a task file, and with everything from `outcome` on in a terminal record.
#[derive(Serialize, Deserialize)]
struct Reserved {
    id: String,
    #[serde(default = "one")]
    generation: u32,
    #[serde(default)]
    push_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Time>,
    #[serde(default, skip_serializing_if = "is_zero")]
    attempts_before: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    failed_before: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    lost_before: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    moves: u32,
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    fence_before: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// The payload is no object and sits under `payload`.
    #[serde(default, skip_serializing_if = "is_false")]
    wrapped: bool,

    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    cancelled: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    forgotten: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attempts: Vec<AttemptDoc>,
    /// A task file that was no JSON: its text, or its bytes in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_hex: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct AttemptDoc {
    attempt: u32,
    worker_id: String,
    created_at: Time,
    heartbeat_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateDoc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Reserved {
    fn of(meta: &TaskMeta, wrapped: bool) -> Self {
        Self {
            id: meta.id.as_str().to_owned(),
            generation: meta.generation,
            push_id: meta.push_id.clone(),
            created_at: time(meta.created_at),
            attempts_before: meta.attempts_before,
            failed_before: meta.carried.failed,
            lost_before: meta.carried.lost,
            moves: meta.journey.moves,
            fence_before: meta.journey.fence,
            max_attempts: meta.max_attempts,
            not_before: time(meta.not_before),
            node: meta.node.clone(),
            wrapped,
            outcome: None,
            reason: None,
            cancelled: false,
            forgotten: false,
            moved_to: None,
            finished_at: None,
            worker_id: None,
            lease_id: None,
            attempts: Vec::new(),
            damaged_text: None,
            damaged_hex: None,
        }
    }

    /// Takes out what a task file holds.
    fn meta(&mut self) -> Result<TaskMeta> {
        if !is_generation(self.generation) {
            return Err(Error::invalid(format!("there is no generation {}", self.generation)));
        }
        Ok(TaskMeta {
            id: TaskId::new(std::mem::take(&mut self.id))?,
            generation: self.generation,
            push_id: std::mem::take(&mut self.push_id),
            created_at: timestamp(self.created_at),
            attempts_before: self.attempts_before,
            carried: Carried { failed: self.failed_before, lost: self.lost_before },
            journey: Journey { moves: self.moves, fence: self.fence_before },
            max_attempts: self.max_attempts,
            not_before: timestamp(self.not_before),
            node: self.node.take(),
        })
    }
}

/// The members of an object, in order, without looking into their values.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The text of one member of an object; of several by that name the last, as most parsers do.
pub(crate) fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let members: Members<'a> = serde_json::from_str(json).ok()?;
    let found = members.0.into_iter().rev().find(|(key, _)| key == name);
    found.map(|(_, value)| value.get())
}

/// Whether this is a JSON object with a member `_dfq`, readable or not.
pub(crate) fn has_reserved(json: &str) -> bool {
    member(json, RESERVED).is_some()
}

/// Takes a payload apart from the `_dfq` beside it, if there is one.
fn split(text: &str) -> Result<(Payload, Option<Reserved>)> {
    let not_json = |e| Error::invalid(format!("not valid JSON: {e}"));
    if !text.trim_start().starts_with('{') {
        serde_json::from_str::<&RawValue>(text).map_err(not_json)?;
        return Ok((Payload::trusted(text), None));
    }
    let members: Members<'_> = serde_json::from_str(text).map_err(not_json)?;
    let mut ours = members.0.iter().filter(|(key, _)| key == RESERVED);
    let Some((_, value)) = ours.next() else {
        return Ok((Payload::trusted(text), None));
    };
    if ours.next().is_some() {
        return Err(Error::invalid(format!("it has more than one member '{RESERVED}'")));
    }
    let reserved: Reserved = serde_json::from_str(value.get())
        .map_err(|e| Error::invalid(format!("its _dfq member cannot be read: {e}")))?;
    if reserved.wrapped {
        let inner = members.0.iter().find(|(key, _)| key == "payload");
        let (_, inner) = inner.ok_or_else(|| Error::invalid("a wrapped task without a payload"))?;
        return Ok((Payload::trusted(inner.get()), Some(reserved)));
    }
    Ok((Payload::trusted(&without_member(text, value.get())), Some(reserved)))
}

/// `text` less the member whose value is the slice `value` of it, and less one comma.
fn without_member(text: &str, value: &str) -> String {
    let value_start = value.as_ptr() as usize - text.as_ptr() as usize;
    let mut end = value_start + value.len();
    let before_colon = text[..value_start].trim_end().trim_end_matches(':').trim_end();
    let open_quote = before_colon[..before_colon.len() - 1].rfind('"').unwrap_or(0);
    let mut start = open_quote;
    let head = text[..open_quote].trim_end();
    if head.ends_with(',') {
        start = head.len() - 1;
    } else if let Some(comma) = text[end..].trim_start().strip_prefix(',') {
        end = text.len() - comma.len();
    }
    format!("{}{}", &text[..start], &text[end..])
}

/// A payload, and what a task file noted beside it.
pub(crate) fn split_payload(text: &str) -> Result<(Payload, Option<TaskMeta>)> {
    let (payload, reserved) = split(text)?;
    Ok((payload, reserved.map(|mut reserved| reserved.meta()).transpose()?))
}

/// `payload` with `reserved` put in.
fn join(payload: Option<&Payload>, mut reserved: Reserved) -> Vec<u8> {
    let text = payload.map_or("{}", Payload::as_json);
    reserved.wrapped = !is_object(text);
    let mut out = splice(text, &serde_json::to_string(&reserved).unwrap_or_default());
    out.push('\n');
    out.into_bytes()
}

/// A payload with nothing but its id beside it, on one line.
pub(crate) fn with_id(payload: &Payload, id: &TaskId) -> String {
    #[derive(Serialize)]
    struct Named<'a> {
        id: &'a str,
        #[serde(skip_serializing_if = "is_false")]
        wrapped: bool,
    }
    let text = payload.as_json();
    let named = Named { id: id.as_str(), wrapped: !is_object(text) };
    let joined = splice(text, &serde_json::to_string(&named).unwrap_or_default());
    // In JSON these stand between tokens only: in a string they are escaped.
    joined.replace(['\n', '\r'], " ")
}

fn is_object(json: &str) -> bool {
    json.starts_with('{')
}

/// The JSON `text` with the member `_dfq` put in last; one that is no object becomes `payload` of one.
fn splice(text: &str, ours: &str) -> String {
    let Some(open) = text.strip_suffix('}').filter(|_| is_object(text)) else {
        return format!("{{\"payload\":{text},\"{RESERVED}\":{ours}}}");
    };
    let members = open.trim_end();
    let comma = if members.len() > 1 { "," } else { "" };
    format!("{members}{comma}\"{RESERVED}\":{ours}{}}}", &open[members.len()..])
}

/// The content of a task file.
pub(crate) fn encode_task(payload: &Payload, meta: &TaskMeta) -> Vec<u8> {
    join(Some(payload), Reserved::of(meta, false))
}

/// Reads a task file, found under the name of `key`.
pub(crate) fn decode_task(bytes: &[u8], key: &TaskKey) -> Result<(Payload, TaskMeta)> {
    let text = utf8(bytes)?;
    let (payload, meta) = split_payload(text)?;
    let meta = meta.unwrap_or_else(|| bare_meta(key));
    if meta.id != *key.id() || meta.generation != key.generation() {
        return Err(Error::invalid(format!(
            "it says that it is task '{}' (life {}), but lies where '{}' (life {}) belongs",
            meta.id,
            meta.generation,
            key.id(),
            key.generation()
        )));
    }
    Ok((payload, meta))
}

/// What is known of a task whose file says nothing: written by another program, or unreadable.
pub(crate) fn bare_meta(key: &TaskKey) -> TaskMeta {
    TaskMeta {
        id: key.id().clone(),
        generation: key.generation(),
        push_id: String::new(),
        created_at: None,
        attempts_before: 0,
        carried: Carried::default(),
        journey: Journey::default(),
        max_attempts: None,
        not_before: None,
        node: None,
    }
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|e| Error::invalid(format!("not UTF-8: {e}")))
}

/// The content of a terminal record.
pub(crate) fn encode_record(record: &Record) -> Vec<u8> {
    let mut reserved = Reserved::of(&record.meta, false);
    reserved.outcome = Some(Cow::Borrowed(match record.outcome {
        Outcome::Completed => "completed",
        Outcome::Failed => "failed",
    }));
    reserved.reason.clone_from(&record.reason);
    reserved.cancelled = record.cancelled;
    reserved.forgotten = record.forgotten;
    reserved.moved_to.clone_from(&record.moved_to);
    reserved.finished_at = time(record.finished_at);
    reserved.worker_id.clone_from(&record.worker_id);
    reserved.lease_id.clone_from(&record.lease_id);
    reserved.attempts = record.attempts.iter().map(attempt_doc).collect();
    if let Some(bytes) = &record.damaged {
        match std::str::from_utf8(bytes) {
            Ok(text) => reserved.damaged_text = Some(text.to_owned()),
            Err(_) => reserved.damaged_hex = Some(hex(bytes)),
        }
    }
    let mut file = join(record.payload.as_ref(), reserved);
    if record.forgotten {
        pad(&mut file);
    } else if shows_rewritten(file.len() as u64) {
        file.push(b'\n');
    }
    file
}

/// Records that were written a second time, by a purge or a removal, have a length that is a multiple of this.
/// Others never do. So a page of keys shows them: their age is not the time of their last write.
const REWRITTEN_LENGTH: u64 = 64;

/// Whether a record of this length may have been written anew, or marked as forgotten.
pub(crate) fn shows_rewritten(length: u64) -> bool {
    length.is_multiple_of(REWRITTEN_LENGTH)
}

/// Ends a file with white space to the length of one that was written anew.
fn pad(file: &mut Vec<u8>) {
    while !shows_rewritten(file.len() as u64 + 1) {
        file.push(b' ');
    }
    file.push(b'\n');
}

fn attempt_doc(summary: &AttemptSummary) -> AttemptDoc {
    AttemptDoc {
        attempt: summary.attempt,
        worker_id: summary.worker_id.clone(),
        created_at: Time(summary.created_at),
        heartbeat_at: Time(summary.heartbeat_at),
        state: summary.state.map(StateDoc::from),
        error: summary.error.clone(),
    }
}

/// Whether these are the bytes of a record that a purge is about to remove.
pub(crate) fn is_forgotten(record: &[u8]) -> bool {
    let reserved = utf8(record).and_then(split).ok().and_then(|(_, reserved)| reserved);
    reserved.is_some_and(|reserved| reserved.forgotten)
}

/// The same file with other white space at its end, as the nonce has it: its ETag tells it from all that it
/// has been, and to a reader it is the same.
pub(crate) fn respaced(file: &[u8], nonce: &str) -> Vec<u8> {
    let mut respaced = file.trim_ascii_end().to_vec();
    respaced.extend(nonce.bytes().map(|byte| if byte % 2 == 0 { b' ' } else { b'\t' }));
    pad(&mut respaced);
    respaced
}

/// Reads a terminal record, found under the name of `key` among those of `outcome`. A file without
/// `_dfq` is one that another program moved there: it is the payload.
pub(crate) fn decode_record(bytes: &[u8], outcome: Outcome, key: &TaskKey) -> Result<Record> {
    let (payload, reserved) = split(utf8(bytes)?)?;
    let mut record = Record {
        outcome,
        payload: Some(payload),
        meta: bare_meta(key),
        lease_id: None,
        worker_id: None,
        finished_at: None,
        reason: None,
        cancelled: false,
        forgotten: false,
        moved_to: None,
        damaged: None,
        attempts: Vec::new(),
    };
    let Some(mut reserved) = reserved else { return Ok(record) };
    record.meta = reserved.meta()?;
    let text = reserved.damaged_text.map(String::into_bytes);
    let no_hex = || Error::invalid("its damaged_hex is not hex");
    let bytes = || reserved.damaged_hex.as_deref().map(|hex| unhex(hex).ok_or_else(no_hex));
    record.damaged = text.map(Ok).or_else(bytes).transpose()?;
    if record.damaged.is_some() {
        record.payload = None;
    }
    record.lease_id = reserved.lease_id;
    record.worker_id = reserved.worker_id;
    record.finished_at = timestamp(reserved.finished_at);
    record.reason = reserved.reason;
    record.cancelled = reserved.cancelled;
    record.forgotten = reserved.forgotten;
    record.moved_to = reserved.moved_to;
    let summary = |doc: AttemptDoc| AttemptSummary {
        attempt: doc.attempt,
        worker_id: doc.worker_id,
        created_at: doc.created_at.0,
        heartbeat_at: doc.heartbeat_at.0,
        state: doc.state.map(LeaseState::from),
        error: doc.error,
    };
    record.attempts = reserved.attempts.into_iter().map(summary).collect();
    Ok(record)
}
