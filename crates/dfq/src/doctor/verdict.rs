//! From what was found to a verdict for each promise.
//!
//! Invariant: a verdict is the worst that any check says of a promise, and always carries that check's
//! words. A check says at its own place what its result means for the queue.

use crate::model::Verdict;
use serde::Serialize;

/// What the queue promises, as far as it depends on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// A push or ack that returned is not lost.
    Durable,
    /// Every pushed task ends completed or failed.
    AtLeastOnce,
    /// Two workers never hold the same attempt.
    OneOwner,
    /// There is exactly one completion record.
    OneCompletion,
    /// What cannot be read is kept.
    NothingDestroyed,
    /// What a poll costs does not grow with the queue.
    CheapPolls,
    /// Compaction of an index: replaces what nobody else has replaced. No promise of a queue.
    Index,
}

impl Promise {
    /// Those of a queue, in their order.
    pub const ALL: [Self; 7] = [
        Self::Durable,
        Self::AtLeastOnce,
        Self::OneOwner,
        Self::OneCompletion,
        Self::NothingDestroyed,
        Self::CheapPolls,
        Self::Index,
    ];

    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Durable => "durable push and ack",
            Self::AtLeastOnce => "at least once",
            Self::OneOwner => "one owner per attempt",
            Self::OneCompletion => "one completion",
            Self::NothingDestroyed => "nothing destroyed",
            Self::CheapPolls => "cheap polls",
            Self::Index => "index (not the queue)",
        }
    }

    /// Whether a queue needs it.
    fn of_a_queue(self) -> bool {
        self != Self::Index
    }
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should be.
    Yes,
    /// Not as it should be.
    No,
    /// Good to know.
    Note,
    /// It could not be found out.
    Unknown,
}

/// What a check means for a promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Meaning {
    /// Which promise.
    pub promise: Promise,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// In words.
    pub detail: String,
    /// What it means.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub means: Vec<Meaning>,
    /// It is about who asked, not about the store: nothing to be held against the store.
    #[serde(skip)]
    pub about_the_caller: bool,
}

impl Check {
    pub(super) fn new(name: &'static str, outcome: Outcome, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { name, outcome, detail, means: Vec::new(), about_the_caller: false }
    }

    pub(super) fn yes(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Outcome::Yes, detail)
    }

    pub(super) fn note(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Outcome::Note, detail)
    }

    /// Breaks these promises, for the reason in its detail.
    pub(super) fn breaks(name: &'static str, detail: impl Into<String>, all: &[Promise]) -> Self {
        let mut check = Self::new(name, Outcome::No, detail);
        for promise in all {
            check = check.meaning(*promise, Verdict::Refused, None);
        }
        check
    }

    /// Adds what it means for a promise; the detail says why, unless there is something better.
    pub(super) fn meaning(mut self, promise: Promise, verdict: Verdict, why: Option<&str>) -> Self {
        let why = why.unwrap_or(&self.detail).to_owned();
        self.means.push(Meaning { promise, verdict, why });
        self
    }
}

/// What becomes of a promise on this store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Which promise.
    pub promise: Promise,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why, or what else is to be known.
    pub why: Vec<String>,
}

/// The verdict for each promise; for the index only if something was said about it.
pub(super) fn promises(checks: &[Check]) -> Vec<Kept> {
    let kept = |promise: Promise| {
        let said: Vec<&Meaning> =
            checks.iter().flat_map(|c| &c.means).filter(|m| m.promise == promise).collect();
        if said.is_empty() && !promise.of_a_queue() {
            return None;
        }
        let verdict = said.iter().map(|m| m.verdict).max().unwrap_or(Verdict::Safe);
        let mut why: Vec<String> = Vec::new();
        for meaning in said.iter().filter(|m| m.verdict == verdict) {
            if !meaning.why.is_empty() && !why.contains(&meaning.why) {
                why.push(meaning.why.clone());
            }
        }
        if let (Promise::Index, Verdict::Refused, Some(first)) = (promise, verdict, why.first_mut())
        {
            *first = format!("no index can be compacted here: {first}");
        }
        Some(Kept { promise, verdict, why })
    };
    Promise::ALL.into_iter().filter_map(kept).collect()
}

/// The worst of what a queue needs, and why; optionally only what is the store's own fault.
pub(super) fn overall(checks: &[Check], store_only: bool) -> (Verdict, Option<String>) {
    let counted = checks.iter().filter(|check| !(store_only && check.about_the_caller));
    let said = counted.flat_map(|check| &check.means).filter(|m| m.promise.of_a_queue());
    // Of several as bad the last: races come last, and show most.
    let worst = said.reduce(|worst, m| if m.verdict >= worst.verdict { m } else { worst });
    match worst {
        Some(worst) if worst.verdict > Verdict::Safe => (worst.verdict, Some(worst.why.clone())),
        _ => (Verdict::Safe, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_word_counts_and_is_repeated() {
        let checks = [
            Check::yes("a", "fine").meaning(Promise::OneOwner, Verdict::Safe, Some("one machine")),
            Check::note("b", "slow").meaning(Promise::OneOwner, Verdict::Degraded, None),
            Check::breaks("c", "two winners", &[Promise::OneOwner, Promise::Index]),
        ];
        let kept = promises(&checks);
        let owner = kept.iter().find(|kept| kept.promise == Promise::OneOwner).unwrap();
        assert_eq!(
            (owner.verdict, &owner.why[..]),
            (Verdict::Refused, &["two winners".into()][..])
        );
        assert_eq!(overall(&checks, false), (Verdict::Refused, Some("two winners".to_owned())));
        assert_eq!(overall(&checks[..2], false), (Verdict::Degraded, Some("slow".to_owned())));
        assert_eq!(overall(&checks[..1], false), (Verdict::Safe, None));
    }

    #[test]
    fn an_index_that_cannot_be_had_is_nothing_against_the_queue() {
        let checks = [Check::breaks("swap", "If-Match ignored", &[Promise::Index])];
        assert_eq!(overall(&checks, false).0, Verdict::Safe);
        assert_eq!(promises(&checks).last().unwrap().verdict, Verdict::Refused);
        assert!(promises(&[]).iter().all(|kept| kept.promise != Promise::Index));
    }

    #[test]
    fn what_the_caller_may_not_do_is_not_the_stores_fault() {
        let mut denied = Check::breaks("delete", "not allowed", &[Promise::AtLeastOnce]);
        denied.about_the_caller = true;
        assert_eq!(overall(&[denied.clone()], false).0, Verdict::Refused);
        assert_eq!(overall(&[denied], true).0, Verdict::Safe);
    }
}
