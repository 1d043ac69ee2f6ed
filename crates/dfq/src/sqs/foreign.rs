//! Messages that other programs sent, such as boto3: tasks as a tree's foreign files are.
//!
//! | body | payload | id |
//! | --- | --- | --- |
//! | a JSON object without `_dfq` | the body | its text member `id`, if that can be an id |
//! | anything else | `{"body": …}` with the body as text | |
//!
//! Where the body says no id, it is the attribute `dfq.id`, or else the MessageId.
//!
//! Invariant: nothing that another program sent is rewritten in SQS. It goes to the dead letters as it came,
//! with its attributes and its group; what we have to say goes into attributes of ours beside them.

use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName};
use jiff::Timestamp;
use serde::Serialize;

use super::body::{self, ESCAPE};
use crate::error::{Error, Result};
use crate::format;
use crate::model::{Payload, TaskId, TaskKey, TaskMeta};

/// The attribute with the id of a dead letter whose body says none: its MessageId was another.
const ID: &str = "dfq.id";

/// The attribute that says why it was given up.
const REASON: &str = "dfq.reason";

/// How many attributes a message may have.
const MAX_ATTRIBUTES: usize = 10;

#[allow(clippy::disallowed_types, reason = "the type of the SDK")]
pub(super) type Attributes = std::collections::HashMap<String, MessageAttributeValue>;

/// The task in a message.
pub(super) struct Content {
    pub(super) payload: Payload,
    pub(super) meta: TaskMeta,
    /// The message as it came, if another program sent it.
    pub(super) foreign: Option<Foreign>,
}

/// What another program sent.
pub(super) struct Foreign {
    pub(super) text: String,
    /// Its group in a FIFO queue.
    pub(super) group: Option<String>,
    attributes: Attributes,
    /// The body says the id.
    says_id: bool,
}

/// Reads a message. An error says why it is not a task: it has a `_dfq` that cannot be read.
pub(super) fn read(message: &Message) -> Result<Content> {
    let text = message.body().ok_or_else(|| Error::invalid("it has no body"))?;
    let attributes = message.message_attributes();
    let named =
        |name| attributes.and_then(|all| all.get(name)).and_then(|value| value.string_value());
    let escape = named(ESCAPE);
    if escape.is_some() || format::has_reserved(text) {
        let (payload, meta) = body::decode(text, escape)?;
        return Ok(Content { payload, meta, foreign: None });
    }
    let message_id = message.message_id().ok_or_else(|| Error::invalid("it has no MessageId"))?;
    let payload = payload_of(text)?;
    let valid = |id: String| TaskId::new(id).ok();
    let said = payload.string_member("id").and_then(valid);
    let says_id = said.is_some();
    let id = match said.or_else(|| named(ID).map(str::to_owned).and_then(valid)) {
        Some(id) => id,
        None => TaskId::new(message_id)?,
    };
    let system = |name| message.attributes().and_then(|all| all.get(&name));
    let sent = system(MessageSystemAttributeName::SentTimestamp);
    let sent = sent.and_then(|milliseconds| milliseconds.parse().ok());
    let meta = TaskMeta {
        // The same each time that it is received, so that a move knows what has arrived before.
        push_id: message_id.to_owned(),
        created_at: sent.and_then(|sent| Timestamp::from_millisecond(sent).ok()),
        ..format::bare_meta(&TaskKey::new(id, 1))
    };
    let mut attributes = attributes.cloned().unwrap_or_default();
    attributes.remove(REASON); // of an earlier time
    let group = system(MessageSystemAttributeName::MessageGroupId).cloned();
    let foreign = Foreign { text: text.to_owned(), group, attributes, says_id };
    Ok(Content { payload, meta, foreign: Some(foreign) })
}

/// An object is the payload as it is. Anything else becomes the text of one member, also if it happens to be
/// JSON: a program that sends text may send `42`.
fn payload_of(text: &str) -> Result<Payload> {
    #[derive(Serialize)]
    struct Wrapped<'a> {
        body: &'a str,
    }
    match format::split_payload(text) {
        Ok((payload, _)) if payload.as_json().starts_with('{') => Ok(payload),
        _ => Payload::from_value(&Wrapped { body: text }),
    }
}

impl Foreign {
    /// What goes along to the dead letters: its own attributes, and as far as there is room in a message of
    /// `limit` bytes, its id and why it was given up.
    pub(super) fn last_attributes(&self, id: &TaskId, reason: &str, limit: usize) -> Attributes {
        let id = Some((ID, id.as_str())).filter(|_| !self.says_id);
        let reason: String = reason.chars().map(as_sqs_takes_it).collect();
        let reason = Some((REASON, reason.as_str())).filter(|(_, reason)| !reason.is_empty());
        let with = |ours: [Option<(&str, &str)>; 2]| {
            let mut all = self.attributes.clone();
            for (name, value) in ours.into_iter().flatten() {
                all.extend(text_value(value).map(|value| (name.to_owned(), value)));
            }
            all
        };
        let fits =
            |all: &Attributes| all.len() <= MAX_ATTRIBUTES && self.text.len() + size(all) <= limit;
        let all = [[id, reason], [id, None]].map(with).into_iter().find(fits);
        all.unwrap_or_else(|| self.attributes.clone())
    }
}

/// How much of a message's size attributes take.
pub(super) fn size(attributes: &Attributes) -> usize {
    let value = |value: &MessageAttributeValue| {
        let bytes = value.binary_value().map_or(0, |bytes| bytes.as_ref().len());
        value.data_type().len() + value.string_value().map_or(0, str::len) + bytes
    };
    attributes.iter().map(|(name, of)| name.len() + value(of)).sum()
}

/// A text as the value of an attribute.
pub(super) fn text_value(text: &str) -> Option<MessageAttributeValue> {
    MessageAttributeValue::builder().data_type("String").string_value(text).build().ok()
}

/// Attributes have no escapes for what SQS refuses, or what only some servers take.
fn as_sqs_takes_it(character: char) -> char {
    match character {
        '\t' | '\n' | '\r' | ' '..='\u{fffd}' => character,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

#[cfg(test)]
mod tests;
