//! The checker: what the history of a run must never show.
//!
//! Invariant: whatever is held against the queue here is certain. It rests on the true time, on what clients were
//! told, and on what was in the store; where two things overlapped, neither is taken to have come first.

mod answers;
mod claim;
mod claims;
mod costs;
mod ends;
mod facts;
mod files;
mod names;
mod parsed;
mod records;
mod walk;

pub(crate) use names::stem;

use std::fmt;

use crate::stage::Stage;
use facts::Facts;
use walk::{Born, Walk};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: &'static str,
    /// How.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// All that is wrong with a run.
pub fn check(stage: &Stage) -> Vec<Violation> {
    let facts = Facts::of(stage);
    let Walk { born, wrong: mut found, .. } = Walk::through(&facts, &stage.history.entries());
    for (rule, wrong) in
        claims::ALL.iter().chain(&records::ALL).chain(&ends::ALL).chain(&costs::ALL)
    {
        found.extend(wrong(&facts, &born).into_iter().map(|text| Violation { rule, text }));
    }
    found
}

/// A promise and how it is checked: what broke it.
type Rule = (&'static str, fn(&Facts, &[Born]) -> Vec<String>);
