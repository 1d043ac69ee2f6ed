//! The machine's clocks, with stretches of time cut out: for tests on real files and real servers that
//! would otherwise sit out leases.
//!
//! Invariant: time never runs backwards, and every clock that a test gives to its parts skips the same
//! stretches. A modification time is translated when it is read ([`SkippingClock::shown`]), so the
//! filesystem itself needs to know nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

use super::{Clock, SystemClock, lock};

/// The machine's clocks, which a test can put forward.
#[derive(Clone, Debug, Default)]
pub struct SkippingClock {
    skips: Arc<Mutex<Vec<Skip>>>,
    /// Written while the clock is put forward.
    still: Arc<RwLock<()>>,
    moved: Arc<tokio::sync::Notify>,
}

/// A stretch that was cut out.
#[derive(Clone, Copy, Debug)]
struct Skip {
    /// On the machine's calendar.
    at: Timestamp,
    by: Duration,
}

impl SkippingClock {
    /// Puts the clock forward. Returns once whatever is written to a filesystem carries a later time,
    /// on one whose times are `tick` apart.
    #[allow(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn skip(&self, by: Duration, tick: Duration) {
        let _alone = self.still.write().unwrap_or_else(PoisonError::into_inner);
        let now = coarse_calendar().max(SystemClock.wall());
        let tick = i128::try_from(tick.as_nanos()).unwrap_or(0).max(1);
        let end_of_tick = (now.as_nanosecond() / tick + 1) * tick - 1;
        let at = Timestamp::from_nanosecond(end_of_tick).unwrap_or(now);
        lock(&self.skips).push(Skip { at, by });
        self.moved.notify_waiters();
        while coarse_calendar() <= at {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Keeps the clock from being put forward while something is written: within a tick, its time would not
    /// tell whether that was before or after.
    pub fn stands_still(&self) -> RwLockReadGuard<'_, ()> {
        self.still.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this clock's calendar showed at a time of the machine's.
    pub fn shown(&self, real: Timestamp) -> Timestamp {
        let skips = lock(&self.skips);
        skips.iter().filter(|skip| skip.at < real).fold(real, |shown, skip| shown + skip.by)
    }

    fn skipped(&self) -> Duration {
        lock(&self.skips).iter().map(|skip| skip.by).sum()
    }
}

/// The calendar that filesystems take their times from; it lags by up to a kernel tick.
fn coarse_calendar() -> Timestamp {
    #[cfg(target_os = "linux")]
    let id = ClockId::RealtimeCoarse;
    #[cfg(not(target_os = "linux"))]
    let id = ClockId::Realtime;
    let now = clock_gettime(id);
    let nanos = i32::try_from(now.tv_nsec).unwrap_or(0);
    Timestamp::new(now.tv_sec, nanos).unwrap_or(Timestamp::UNIX_EPOCH)
}

impl Clock for SkippingClock {
    fn wall(&self) -> Timestamp {
        SystemClock.wall() + self.skipped()
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic() + self.skipped()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let clock = self.clone();
        let until = self.monotonic().saturating_add(duration);
        Box::pin(async move {
            loop {
                let moved = clock.moved.notified();
                let left = until.saturating_sub(clock.monotonic());
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    biased;
                    () = moved => {}
                    () = SystemClock.sleep(left) => {}
                }
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "real sleepers")]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_sleeper_wakes_when_its_time_is_skipped() {
        let clock = SkippingClock::default();
        let sleeper = tokio::spawn(clock.sleep(HOUR));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.skip(HOUR, Duration::ZERO);
        sleeper.await.unwrap();
    }

    #[test]
    fn files_are_as_old_as_the_time_that_passed_since() {
        for tick in [Duration::ZERO, Duration::from_secs(1)] {
            let clock = SkippingClock::default();
            let written = || {
                let file = tempfile::tempfile().unwrap();
                clock.shown(
                    Timestamp::try_from(file.metadata().unwrap().modified().unwrap()).unwrap(),
                )
            };
            let before = written();
            clock.skip(HOUR, tick);
            let after = written();
            assert!(after.duration_since(before) >= jiff::SignedDuration::from_hours(1));
            assert!(after <= clock.wall());
        }
    }
}
