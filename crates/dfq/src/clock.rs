//! Where time and chance come in, who we are, and where work starts.
//!
//! Invariant: nothing else in this crate reads a clock, sleeps, draws a random number, or starts a task or a
//! thread (clippy enforces it), so a test can replay any run from a [`ManualClock`], a [`SeededChance`] and a
//! [`Runner`] of its own.
//!
//! Three notions of time are kept apart:
//! - [`Clock::monotonic`]: how long *this process* has held something. Counts time spent suspended,
//!   so that a laptop that slept through its lease knows it.
//! - the **store's** clock ([`crate::queue`] derives it from modification times): what leases are
//!   judged by, because it is the only clock that all workers share.
//! - [`Clock::wall`]: this machine's calendar, for `created_at` and for names of workers. Never
//!   compared with another machine's.

mod host;
mod running;
#[cfg(any(test, feature = "conformance"))]
mod skipping;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rand::{Rng, SeedableRng, rngs::StdRng};

pub use host::Host;
pub use running::{Ended, Runner, Running, TokioRunner, Work};
#[cfg(any(test, feature = "conformance"))]
pub use skipping::SkippingClock;

/// A source of time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// This machine's calendar time.
    fn wall(&self) -> Timestamp;
    /// Time since an arbitrary start that never runs backwards and does not stop in suspend.
    fn monotonic(&self) -> Duration;
    /// Completes once `monotonic` has advanced by `duration`.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// A source of chance.
pub trait Chance: Send + Sync + fmt::Debug {
    /// 64 uniformly distributed bits.
    fn next_u64(&self) -> u64;
}

/// The outside world as the queue sees it, apart from storage: time, chance, who we are, and where work runs.
#[derive(Clone, Debug)]
pub struct Env {
    clock: Arc<dyn Clock>,
    chance: Arc<dyn Chance>,
    runner: Arc<dyn Runner>,
    host: Arc<Host>,
}

impl Env {
    /// The real world.
    pub fn system() -> Self {
        Self::new(Arc::new(SystemClock), Arc::new(SystemChance))
    }

    /// A world of the caller's making, in which tokio runs what there is to be done.
    pub fn new(clock: Arc<dyn Clock>, chance: Arc<dyn Chance>) -> Self {
        Self { clock, chance, runner: Arc::new(TokioRunner), host: Arc::new(Host::system()) }
    }

    /// The same world, in which work runs elsewhere.
    #[must_use]
    pub fn with_runner(self, runner: Arc<dyn Runner>) -> Self {
        Self { runner, ..self }
    }

    /// The same world, seen by another process.
    #[must_use]
    pub fn with_host(self, host: Host) -> Self {
        Self { host: Arc::new(host), ..self }
    }

    /// Who we are, as leases and workers' records show it.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Time since an arbitrary start; see [`Clock::monotonic`].
    pub fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// 64 random bits.
    pub fn next_u64(&self) -> u64 {
        self.chance.next_u64()
    }

    /// A uniformly distributed index below `bound`, which must not be zero.
    pub fn below(&self, bound: usize) -> usize {
        debug_assert!(bound > 0, "no index lies below zero");
        // The bias is below bound / 2^64, which no shuffle can show.
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A fraction in `0.0..1.0`.
    pub fn fraction(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts `items` into random order.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// 128 random bits in hex: unique for every push and every lease.
    pub fn nonce(&self) -> String {
        format!("{:016x}{:016x}", self.next_u64(), self.next_u64())
    }

    /// A UUIDv7: unique, and sorted by the time of its making.
    pub fn uuid_v7(&self) -> String {
        let millis = u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0);
        let mut random = [0_u8; 10];
        random[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        random[8..].copy_from_slice(&self.next_u64().to_le_bytes()[..2]);
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().to_string()
    }
}

impl Default for Env {
    fn default() -> Self {
        Self::system()
    }
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the seam")]
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        // Not `Instant`: CLOCK_MONOTONIC stands still while the machine is suspended, and a worker
        // that wakes up would then believe in a lease that others have long taken over.
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(id);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or(0),
            u32::try_from(now.tv_nsec).unwrap_or(0),
        )
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep_by(|| SystemClock.monotonic(), duration))
    }
}

/// The runtime's timers stand still while the machine is suspended. So a long sleep is many short ones, and
/// after each it is asked how late it is.
const LONGEST_TIMER: Duration = Duration::from_secs(1);

#[allow(clippy::disallowed_methods, reason = "this is the seam")]
async fn sleep_by(now: impl Fn() -> Duration, duration: Duration) {
    let until = now().saturating_add(duration);
    loop {
        let left = until.saturating_sub(now());
        tokio::time::sleep(left.min(LONGEST_TIMER)).await;
        if left <= LONGEST_TIMER {
            return;
        }
    }
}

/// The operating system's randomness.
#[derive(Clone, Copy, Debug)]
pub struct SystemChance;

impl Chance for SystemChance {
    #[allow(clippy::disallowed_methods, reason = "this is the seam")]
    fn next_u64(&self) -> u64 {
        rand::rng().next_u64()
    }
}

/// Chance that a seed decides.
#[derive(Debug)]
pub struct SeededChance(Mutex<StdRng>);

impl SeededChance {
    /// The same seed gives the same sequence.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Chance for SeededChance {
    fn next_u64(&self) -> u64 {
        lock(&self.0).next_u64()
    }
}

/// A clock that moves only when told to. A sleeper wakes when the clock has passed its hour.
#[derive(Clone, Debug)]
pub struct ManualClock {
    elapsed: Arc<Mutex<Duration>>,
    start: Timestamp,
    moved: Arc<tokio::sync::Notify>,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { elapsed: Arc::default(), start, moved: Arc::default() }
    }

    /// Moves time on.
    pub fn advance(&self, by: Duration) {
        *lock(&self.elapsed) += by;
        self.moved.notify_waiters();
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::starting_at(Timestamp::UNIX_EPOCH + Duration::from_secs(1_800_000_000))
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        self.start + *lock(&self.elapsed)
    }

    fn monotonic(&self) -> Duration {
        *lock(&self.elapsed)
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let clock = self.clone();
        let until = self.monotonic() + duration;
        Box::pin(async move {
            loop {
                let moved = clock.moved.notified();
                if clock.monotonic() >= until {
                    return;
                }
                moved.await;
            }
        })
    }
}

/// Locks a mutex whose data stays valid even if another thread panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "real sleepers")]
mod tests {
    use super::*;

    fn env(seed: u64) -> Env {
        Env::new(Arc::new(ManualClock::default()), Arc::new(SeededChance::new(seed)))
    }

    #[test]
    fn a_seed_decides_everything() {
        let draw = |seed| {
            let env = env(seed);
            let mut order: Vec<u32> = (0..100).collect();
            env.shuffle(&mut order);
            (env.nonce(), env.uuid_v7(), order)
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut order: Vec<u32> = (0..1000).collect();
        env(1).shuffle(&mut order);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_manual_sleeper_wakes_when_time_has_passed() {
        let clock = ManualClock::default();
        let sleeper = tokio::spawn(clock.sleep(Duration::from_secs(10)));
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    /// The machine is suspended for hours, which its timers do not notice.
    #[tokio::test(start_paused = true)]
    #[allow(clippy::disallowed_methods, reason = "timers that stand still are the point")]
    async fn a_sleeper_notices_that_the_machine_was_suspended() {
        let suspended = Arc::new(Mutex::new(Duration::ZERO));
        let (began, slept) = (tokio::time::Instant::now(), Arc::clone(&suspended));
        let clock = move || began.elapsed() + *lock(&slept);
        let sleeper = tokio::spawn(sleep_by(clock, Duration::from_secs(3600)));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!sleeper.is_finished());
        *lock(&suspended) = Duration::from_secs(7200);
        sleeper.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    }

    #[test]
    fn system_time_moves_forward() {
        let clock = SystemClock;
        let before = clock.monotonic();
        assert!(clock.monotonic() >= before);
    }
}
