//! What time it is on the store's clock: the only one that all workers share.
//!
//! A sample is the modification time of something just written. Between samples, this process's
//! monotonic clock carries it on. The estimate is never ahead of the truth, so that no lease is taken
//! for stale too early.
//!
//! A store's clock can jump (a Raspberry Pi has none of its own until the network tells it the time).
//! Two samples that disagree with the monotonic clock show that. After a jump, times written before it
//! mean nothing, so for one lease's length leases are judged only by having been *watched* without
//! change; see [`crate::queue::judge`].

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::planted::{self, Planted};

/// A disagreement between the clocks that is no jitter.
const JUMP: SignedDuration = SignedDuration::from_secs(1);

/// Samples of the store's clock. All times in are this process's monotonic ones.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    last: Option<Sample>,
    jumped: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    store: Timestamp,
    taken: Duration,
}

impl StoreClock {
    /// Notes that the store's clock, which ticks every `tick`, showed `store` between `asked` and `now`.
    pub(super) fn sample(
        &mut self,
        store: Timestamp,
        asked: Duration,
        now: Duration,
        tick: Duration,
    ) {
        if let (Some(earliest), Some(latest)) = (self.at(asked), self.at(now)) {
            let slack = JUMP.saturating_add(SignedDuration::try_from(tick).unwrap_or(JUMP));
            let jumped =
                earliest.duration_since(store) > slack || store.duration_since(latest) > slack;
            if jumped && !planted::is(Planted::JumpNotNoticed) {
                self.jumped = Some(now);
            }
        }
        self.last = Some(Sample { store, taken: now });
    }

    /// Whether it is time for another sample.
    pub(super) fn wants_sample(&self, now: Duration, life: Duration) -> bool {
        self.last.is_none_or(|last| now.saturating_sub(last.taken) >= life)
    }

    /// What the store's clock shows now, or a little less.
    pub(super) fn at(&self, now: Duration) -> Option<Timestamp> {
        let last = self.last?;
        Some(last.store + now.saturating_sub(last.taken))
    }

    /// When a jump was last noticed, by the monotonic clock.
    pub(super) fn jumped(&self) -> Option<Duration> {
        self.jumped
    }

    /// What the store's clock showed when a jump was last noticed.
    pub(super) fn set_at(&self) -> Option<Timestamp> {
        let last = self.last?;
        last.store.checked_sub(last.taken.saturating_sub(self.jumped?)).ok()
    }

    /// Whether times written up to `age` ago can be believed.
    pub(super) fn steady_for(&self, age: Duration, now: Duration) -> bool {
        self.jumped.is_none_or(|jumped| now.saturating_sub(jumped) >= age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn store(secs: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + secs).unwrap()
    }

    #[test]
    fn the_monotonic_clock_carries_a_sample_on() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.at(at(0)), None);
        clock.sample(store(0), at(100), at(100), Duration::ZERO);
        assert_eq!(clock.at(at(107)), Some(store(7)));
        assert!(!clock.wants_sample(at(105), at(10)));
        assert!(clock.wants_sample(at(110), at(10)));
        assert!(clock.steady_for(at(60), at(101)));
    }

    #[test]
    fn a_jump_either_way_is_noticed_and_forgotten_in_time() {
        for jump in [3600, -3600] {
            let mut clock = StoreClock::default();
            clock.sample(store(0), at(100), at(100), Duration::ZERO);
            assert_eq!(clock.set_at(), None);
            clock.sample(store(10 + jump), at(110), at(110), Duration::ZERO);
            clock.sample(store(12 + jump), at(112), at(112), Duration::ZERO);
            assert_eq!(clock.set_at(), Some(store(10 + jump)));
            assert!(!clock.steady_for(at(60), at(169)));
            assert!(clock.steady_for(at(60), at(170)));
        }
    }
}
