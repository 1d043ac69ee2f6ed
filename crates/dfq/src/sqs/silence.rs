//! Whether nothing is left, which SQS never says.
//!
//! A short poll asks some of its servers, so it may bring nothing although messages are there. The counts
//! are estimates that lag behind, by a minute or more. A long poll asks all servers.
//!
//! Invariant: a queue counts as empty only after [`ENOUGH`] long polls in a row that brought nothing, each
//! as long as [`longest_wait`] allows. For "nothing is left" the counts must have been zero all that time.
//! One message, or one thing that this process puts there, and counting begins anew.

use std::time::Duration;

use super::Core;
use crate::clock::lock;

/// The longest that SQS waits for messages.
const MAX_WAIT_SECONDS: u32 = 20;

/// So many empty long polls in a row are believed. With 20 seconds each they take the minute by which the
/// counts may lag.
const ENOUGH: u32 = 3;

/// How long an answer may take beyond the time for which SQS was asked to wait.
const ANSWER: Duration = Duration::from_secs(1);

/// For how many seconds a long poll waits at the most. The lease counts from before the request, so no more
/// than a quarter of it may go into the waiting.
pub(super) fn longest_wait(lease_seconds: u32) -> u32 {
    (lease_seconds / 4).clamp(1, MAX_WAIT_SECONDS)
}

/// For how long to wait until such a long poll has been answered.
pub(super) fn listening(lease_seconds: u32) -> Duration {
    Duration::from_secs(longest_wait(lease_seconds).into()) + ANSWER
}

/// How long nothing has come.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Long polls in a row that brought nothing.
    polls: u32,
    /// Those of them since the counts last said that something is there.
    agreed: u32,
}

impl Silence {
    /// A long poll brought nothing.
    fn lasts(&mut self) {
        self.polls = self.polls.saturating_add(1);
        self.agreed = self.agreed.saturating_add(1);
    }

    /// Takes note of whether the counts say that something is there, claimable or not. Answers whether it
    /// is proven that nothing can be claimed, and if they say nothing, that nothing is left.
    fn proves(&mut self, counted: bool) -> bool {
        if counted {
            self.agreed = 0;
            return self.polls >= ENOUGH;
        }
        self.agreed >= ENOUGH
    }
}

impl Core {
    /// A long poll of the full length brought nothing.
    pub(super) fn silence_lasts(&self) {
        lock(&self.silence).lasts();
    }

    /// Something came, or this process has put something there.
    pub(super) fn silence_ends(&self) {
        *lock(&self.silence) = Silence::default();
    }

    /// Whether it is proven that nothing is there, given what the counts say.
    pub(super) fn silence_proves(&self, counted: bool) -> bool {
        lock(&self.silence).proves(counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_in_a_row_prove_it() {
        let mut silence = Silence::default();
        for _ in 0..ENOUGH {
            assert!(!silence.proves(false));
            silence.lasts();
        }
        assert!(silence.proves(false) && silence.proves(false));
    }

    /// What others hold cannot be claimed; but it is not gone before as many silences again.
    #[test]
    fn counts_have_a_say_in_whether_anything_is_left() {
        let mut silence = Silence::default();
        for _ in 0..ENOUGH {
            silence.lasts();
        }
        assert!(silence.proves(true), "nothing can be claimed");
        for _ in 0..ENOUGH {
            assert!(!silence.proves(false), "it may have come back");
            silence.lasts();
        }
        assert!(silence.proves(false));
    }

    #[test]
    fn a_long_poll_takes_no_large_part_of_the_lease() {
        let waits = [1, 4, 8, 60, 80, 43_200].map(longest_wait);
        assert_eq!(waits, [1, 1, 2, 15, 20, 20]);
    }
}
