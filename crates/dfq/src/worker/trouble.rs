//! Queues whose polls fail: how long each is left alone, and when it is plain that this will not pass.

use std::time::Duration;

use super::Until;
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};

/// How long to wait after the store failed: from the first, doubling, to the second, more or less, so that
/// not everybody comes back at once.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// So many polls in a row that were refused end a worker, and so many that found no room end one that ends
/// by itself.
const LASTING_TRIES: u32 = 5;

/// How one of the worker's queues fares. All times are monotonic.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// A poll has gone well.
    polled: bool,
    /// How many polls in a row have failed, those that failed together counted once.
    failures: u32,
    /// When the last of them was counted.
    counted: Duration,
    /// Not to be polled before this.
    rests_until: Duration,
}

impl Trouble {
    /// The last poll failed, so nothing is known of what is there.
    pub(super) fn is_there(&self) -> bool {
        self.failures > 0
    }

    /// For how long it is left alone.
    pub(super) fn rests_for(&self, now: Duration) -> Duration {
        self.rests_until.saturating_sub(now)
    }

    pub(super) fn went_well(&mut self) {
        *self = Self { polled: true, ..Self::default() };
    }

    /// A poll begun at `asked` has failed. A store that fails for a while is waited for; a queue that cannot be
    /// used is an error.
    pub(super) fn failed(
        &mut self,
        asked: Duration,
        error: Error,
        until: Until,
        env: &Env,
    ) -> Result<()> {
        let lasting = match error.kind() {
            ErrorKind::Unavailable => false,
            ErrorKind::Full => until != Until::Stopped,
            ErrorKind::Denied => true,
            _ => return Err(error),
        };
        // What was never allowed will not be; what was, is refused now and then for a moment.
        if error.kind() == ErrorKind::Denied && !self.polled {
            return Err(error);
        }
        let now = env.monotonic();
        // Polls that were under way together fail together.
        if self.failures > 0 && asked <= self.counted {
            return Ok(());
        }
        (self.failures, self.counted) = (self.failures.saturating_add(1), now);
        if lasting && self.failures >= LASTING_TRIES {
            return Err(error);
        }
        let pause = PAUSE.0.saturating_mul(1 << (self.failures - 1).min(16)).min(PAUSE.1);
        let pause = pause.mul_f64(0.5 + env.fraction());
        self.rests_until = now + pause;
        tracing::warn!(%error, "cannot poll now; trying again in {:.0} s", pause.as_secs_f64());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{ManualClock, SeededChance};

    const SECOND: Duration = Duration::from_secs(1);

    fn world() -> (ManualClock, Env) {
        let clock = ManualClock::default();
        let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
        (clock, env)
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "on purpose")
    }

    #[test]
    fn polls_that_fail_together_count_once() {
        let (clock, env) = world();
        let mut trouble = Trouble::default();
        trouble.went_well();
        for _ in 1..LASTING_TRIES {
            let asked = env.monotonic();
            clock.advance(SECOND);
            for _ in 0..8 {
                let refused = error(ErrorKind::Denied);
                trouble.failed(asked, refused, Until::Stopped, &env).unwrap();
            }
            clock.advance(trouble.rests_for(env.monotonic()));
        }
        let refused = error(ErrorKind::Denied);
        let ended = trouble.failed(env.monotonic(), refused, Until::Stopped, &env);
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn pauses_grow_until_a_poll_goes_well() {
        let (clock, env) = world();
        let mut trouble = Trouble::default();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            clock.advance(SECOND);
            let (now, down) = (env.monotonic(), error(ErrorKind::Unavailable));
            trouble.failed(now, down, Until::Idle, &env).unwrap();
            pauses.push(trouble.rests_for(now));
            clock.advance(trouble.rests_for(now));
        }
        assert!(pauses[0] <= SECOND * 2 && pauses[9] >= PAUSE.1 / 2, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= PAUSE.1.mul_f64(1.5)), "{pauses:?}");
        trouble.went_well();
        assert!(!trouble.is_there() && trouble.rests_for(env.monotonic()).is_zero());
    }
}
