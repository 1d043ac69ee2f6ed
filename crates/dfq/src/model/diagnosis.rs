//! What the doctor found, as it stays with the store in `doctor.json`: for the processes that come later.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How far a store can be trusted, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The promise is kept.
    Safe,
    /// It can be used, but something is lost.
    Degraded,
    /// It must not be used.
    Refused,
}

impl Verdict {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Degraded => "degraded",
            Self::Refused => "refused",
        }
    }
}

/// What is remembered of an examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The verdict.
    pub verdict: Verdict,
    /// Why it is not better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What was examined, for people.
    #[serde(default)]
    pub store: String,
    /// When, by the calendar of the machine that examined it; for people.
    pub examined_at: Timestamp,
    /// By which machine.
    #[serde(default)]
    pub host: String,
    /// With which dfq.
    #[serde(default)]
    pub version: String,
}
