//! What is planted on this thread, and how a simulation plants it.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use super::Planted;

thread_local! {
    static HERE: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Plants this bug in all that runs on this thread from now on; with `None`, all is well again.
pub fn plant(bug: Option<Planted>) {
    HERE.set(bug);
}

/// Whether this bug is planted here.
pub(crate) fn is(bug: Planted) -> bool {
    HERE.get() == Some(bug)
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Planted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.iter().copied().find(|bug| bug.name() == text);
        named.ok_or_else(|| format!("there is no planted bug '{}'", text.escape_debug()))
    }
}
