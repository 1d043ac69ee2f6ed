//! The types of columns, and how their values are written and read.
//!
//! Invariant: what a column takes is read back as the same value. Only integers may become floats, and every integer is a
//! float too, so rows that were written before are read alike.

use std::borrow::Cow;

use serde_json::Value;

use super::Manner;
use crate::error::{Error, Result};
use crate::index::ulid::read_time;
use crate::index::usv;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Float,
    /// True or false.
    Boolean,
    /// A time, as RFC 3339 writes it.
    Datetime,
    /// Any JSON, as compact text.
    Json,
}

impl Kind {
    /// What Frictionless calls it.
    pub(super) fn frictionless(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Float => "number",
            Self::Boolean => "boolean",
            Self::Datetime => "datetime",
            Self::Json => "any",
        }
    }

    pub(super) fn parse(name: &str) -> Self {
        match name {
            "integer" => Self::Integer,
            "number" => Self::Float,
            "boolean" => Self::Boolean,
            "datetime" => Self::Datetime,
            "any" | "object" | "array" => Self::Json,
            _ => Self::String,
        }
    }

    /// Its name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Json => "json",
            other => other.frictionless(),
        }
    }

    /// The type of a column whose first value this is; null has none.
    pub(super) fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => return None,
            Value::Bool(_) => Self::Boolean,
            Value::Number(number) if number.is_f64() => Self::Float,
            Value::Number(_) => Self::Integer,
            Value::String(_) => Self::String,
            Value::Array(_) | Value::Object(_) => Self::Json,
        })
    }

    /// Whether a column of this type takes a value.
    pub(super) fn takes(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null)
            | (Self::Json, _)
            | (Self::String, Value::String(_))
            | (Self::Float, Value::Number(_))
            | (Self::Boolean, Value::Bool(_)) => true,
            (Self::Integer, Value::Number(number)) => !number.is_f64(),
            (Self::Datetime, Value::String(text)) => read_time(text).is_some(),
            _ => false,
        }
    }

    /// The text of a value that the column takes; none for null.
    pub(super) fn text(self, value: &Value) -> Option<Cow<'_, str>> {
        match value {
            Value::Null => None,
            Value::String(text) if self != Self::Json => Some(text.into()),
            value => Some(value.to_string().into()),
        }
    }

    /// What a field stands for. What is not of this type is text: others may have written it.
    pub(super) fn read(self, field: &[u8], manner: Manner) -> Value {
        let text = match manner {
            Manner::Ours => usv::unescape(field),
            Manner::Theirs(_) => {
                Some(String::from_utf8_lossy(field)).filter(|text| !text.is_empty())
            }
        };
        let Some(text) = text else { return Value::Null };
        let parsed = match self {
            Self::String | Self::Datetime => None,
            Self::Integer | Self::Float => {
                serde_json::from_str(&text).ok().filter(Value::is_number)
            }
            Self::Boolean => text.parse().ok().map(Value::Bool),
            Self::Json => serde_json::from_str(&text).ok(),
        };
        parsed.unwrap_or_else(|| Value::String(text.into_owned()))
    }
}

impl std::str::FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all =
            [Self::String, Self::Integer, Self::Float, Self::Boolean, Self::Datetime, Self::Json];
        all.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            Error::invalid(format!(
                "'{name}' is not a type; there are string, integer, float, boolean, datetime and json"
            ))
        })
    }
}

/// A column of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub kind: Kind,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind }
    }
}
