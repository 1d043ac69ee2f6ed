//! What is put into an index, and what is read from it.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::ulid::read_time;
use crate::error::{Error, Result};
use crate::layout;
use crate::model::MAX_ENCODED_ID_BYTES;

/// The field from which a record's own time is taken.
const UPDATED_AT: &str = "updated_at";

/// A record to be put into an index.
///
/// ```
/// use dfq::index::Record;
/// let record = Record::from_json(r#"{"domain": "example.com", "employees": 12}"#, "domain")?;
/// assert_eq!(record.key(), "example.com");
/// assert_eq!(record.fields()["employees"], 12);
/// # Ok::<(), dfq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub(super) key: String,
    pub(super) fields: Map<String, Value>,
    pub(super) updated_at: Option<Timestamp>,
}

impl Record {
    /// A record without fields.
    pub fn new(key: impl Into<String>) -> Result<Self> {
        let key = key.into();
        check_key(&key)?;
        Ok(Self { key, fields: Map::new(), updated_at: None })
    }

    /// With a field. One that is null is the same as none.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// With the time at which what it says became true: of two records of a key, the later one counts. Without, it is
    /// the time of the put.
    #[must_use]
    pub fn updated_at(mut self, time: Timestamp) -> Self {
        self.updated_at = Some(time);
        self
    }

    /// Reads a JSON object, of which one member is the key. If it has a member `updated_at`, that is the record's time
    /// too.
    pub fn from_json(text: &str, key_field: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("the record is not JSON: {error}")))?;
        match value {
            Value::Object(fields) => Self::from_fields(fields, key_field),
            _ => Err(Error::invalid("the record is not a JSON object")),
        }
    }

    /// Takes the members of an object, of which one is the key; see [`Record::from_json`].
    pub fn from_fields(mut fields: Map<String, Value>, key_field: &str) -> Result<Self> {
        let key = match fields.shift_remove(key_field) {
            Some(Value::String(key)) => key,
            Some(Value::Number(key)) => key.to_string(),
            Some(_) => {
                return Err(Error::invalid(format!("'{key_field}' is not a text or a number")));
            }
            None => return Err(Error::invalid(format!("the record has no '{key_field}'"))),
        };
        let updated_at = match fields.get(UPDATED_AT) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(read_time(text).ok_or_else(|| {
                let shown: String = text.chars().take(40).collect();
                Error::invalid(format!(
                    "'{UPDATED_AT}' is '{}', which is not a time (try 2026-11-19T08:30:00Z)",
                    shown.escape_debug()
                ))
            })?),
            Some(_) => return Err(Error::invalid(format!("'{UPDATED_AT}' is not a text"))),
        };
        Ok(Self { updated_at, fields, ..Self::new(key)? })
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }
}

/// A key is a text that takes at most 200 bytes in the name of a file, without control characters.
pub(super) fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("a key must not be empty"));
    }
    if let Some(control) = key.chars().find(char::is_ascii_control) {
        return Err(Error::invalid(format!(
            "key '{}' holds the control character U+{:04X}; keys cannot",
            key.escape_debug(),
            u32::from(control)
        )));
    }
    let encoded = layout::encoded_len(key);
    if encoded > MAX_ENCODED_ID_BYTES {
        let start: String = key.chars().take(24).collect();
        return Err(Error::invalid(format!(
            "key '{}…' takes {encoded} bytes in a file name, the limit is {MAX_ENCODED_ID_BYTES}; \
             use a shorter key or a hash",
            start.escape_debug()
        )));
    }
    Ok(())
}

/// A record as an index has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The fields that are not null, in the order of the columns.
    pub fields: Map<String, Value>,
    /// The time by which it counts. An index that dfq did not make may have none.
    pub updated_at: Option<Timestamp>,
    /// Tells it from other records of that time. Only an index that dfq made has it.
    pub ulid: Option<String>,
    /// Its row, if that was asked for.
    pub(super) row: Option<Vec<u8>>,
}

impl Entry {
    /// Its row as it lies in a shard, without the end, if [`ScanOptions::rows`](super::ScanOptions::rows) asked for it. A
    /// row that is shorter than the columns is filled up with nulls.
    pub fn row(&self) -> Option<&[u8]> {
        self.row.as_deref()
    }

    /// A JSON object with the key as its first member.
    pub fn to_json(&self, key_field: &str) -> Value {
        let mut members = Map::with_capacity(self.fields.len() + 1);
        members.insert(key_field.to_owned(), Value::String(self.key.clone()));
        members.extend(self.fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        Value::Object(members)
    }
}
