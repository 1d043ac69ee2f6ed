//! The proof of a claim that travels with a delivery: task, life, attempt, and the lease's nonce.

use std::fmt;
use std::str::FromStr;

use super::id::TaskKey;
use crate::error::{Error, Result};
use crate::layout;

/// What `ack`, `nack`, `heartbeat` and the like take. Prints as one word without spaces and parses
/// back, so that a shell script can carry it: `order-17@2/3/5f0c…`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    pub(crate) key: TaskKey,
    pub(crate) attempt: u32,
    pub(crate) lease_id: String,
}

impl Receipt {
    pub(crate) fn new(key: TaskKey, attempt: u32, lease_id: String) -> Self {
        Self { key, attempt, lease_id }
    }

    /// The task.
    pub fn key(&self) -> &TaskKey {
        &self.key
    }

    /// Which attempt at it.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stem = layout::stem(&self.key);
        write!(f, "{stem}/{}/{}", self.attempt, self.lease_id)
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Receipt {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid(format!("'{}' is not a receipt", text.escape_debug()));
        // From the right: a name that another program chose may hold anything but a slash.
        let mut parts = text.rsplitn(3, '/');
        let lease_id = parts.next().filter(|id| !id.is_empty()).ok_or_else(bad)?;
        let attempt = parts.next().and_then(|n| n.parse().ok()).ok_or_else(bad)?;
        let key = parts.next().and_then(layout::parse_stem).ok_or_else(bad)?;
        if attempt == 0 {
            return Err(bad());
        }
        Ok(Self::new(key, attempt, lease_id.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TaskId;

    #[test]
    fn a_receipt_survives_printing() {
        for id in ["a", "a/b c@2", "päivä", "..", "%41", "@"] {
            for generation in [1, 2, 70] {
                let key = TaskKey::new(TaskId::new(id).unwrap(), generation);
                let receipt = Receipt::new(key, 3, "00ff".into());
                let text = receipt.to_string();
                assert!(!text.contains(char::is_whitespace), "{text}");
                assert_eq!(text.parse::<Receipt>().unwrap(), receipt);
            }
        }
        let foreign = Receipt::new(TaskKey::verbatim(TaskId::new("a b").unwrap()), 1, "0".into());
        assert_eq!(foreign.to_string().parse::<Receipt>().unwrap(), foreign);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "a", "a/1", "a/x/y", "a/0/y", "/1/y", "a/1/"] {
            assert!(text.parse::<Receipt>().is_err(), "{text}");
        }
    }
}
