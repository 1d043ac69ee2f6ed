//! A machine: its clocks, and the environment of a process on it.
//!
//! Invariant: the monotonic clock of a machine never goes back. It may be fast or slow, by a part that stays the
//! same. The calendar may be wrong, and may jump.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dfq::Env;
use dfq::clock::{Clock, Host, Runner, SeededChance, Work};
use jiff::{SignedDuration, Timestamp};

use crate::world::{Pid, World};

/// The calendar of a machine whose clock is right, at time zero.
const START: i64 = 1_800_000_000;

/// The true calendar at a time.
pub fn calendar(at: Duration) -> Timestamp {
    Timestamp::from_second(START).unwrap_or(Timestamp::UNIX_EPOCH) + at
}

/// A machine's clocks.
pub struct Node {
    world: Arc<World>,
    /// How many millionths its clocks are fast.
    drift: i64,
    /// How long it had been up at time zero.
    up: Duration,
    /// How far its calendar is ahead.
    ahead: Mutex<SignedDuration>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} ppm, {:?} ahead)", self.drift, self.ahead())
    }
}

const MILLION: u128 = 1_000_000;

impl Node {
    /// A machine whose clocks are `drift` millionths fast, and whose calendar is `ahead`.
    pub fn new(world: &Arc<World>, drift: i64, ahead: SignedDuration) -> Arc<Self> {
        let up = Duration::from_secs(1 + world.chance() % 1_000_000);
        Arc::new(Self { world: Arc::clone(world), drift, up, ahead: Mutex::new(ahead) })
    }

    fn ahead(&self) -> SignedDuration {
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody sets the calendar.
    pub fn jump(&self, by: SignedDuration) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead = ahead.saturating_add(by);
    }

    fn speed(&self) -> u128 {
        MILLION.saturating_add_signed(i128::from(self.drift))
    }

    fn shown(&self, at: Duration) -> Duration {
        nanos(at.as_nanos() * self.speed() / MILLION)
    }

    /// What its calendar shows at a true time, if nobody sets it until then.
    pub fn wall_at(&self, at: Duration) -> Timestamp {
        let shown = calendar(self.shown(at));
        shown.saturating_add(self.ahead()).unwrap_or(shown)
    }

    /// The true time at which this machine's monotonic clock shows `shown`.
    pub fn true_time(&self, shown: Duration) -> Duration {
        nanos((shown.saturating_sub(self.up).as_nanos() * MILLION).div_ceil(self.speed()))
    }
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Clock for Node {
    fn wall(&self) -> Timestamp {
        let now = calendar(self.shown(self.world.now()));
        now.saturating_add(self.ahead()).unwrap_or(now)
    }

    fn monotonic(&self) -> Duration {
        self.up + self.shown(self.world.now())
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let until = self.true_time(self.monotonic().saturating_add(duration));
        Box::pin(self.world.at(until))
    }
}

/// Where a process's work runs: in the world.
#[derive(Debug)]
struct Place {
    world: Arc<World>,
    pid: Pid,
}

impl Runner for Place {
    fn is_running(&self) -> bool {
        true
    }

    fn spawn(&self, work: Work) {
        self.world.spawn(self.pid, work);
    }

    fn spawn_blocking(&self, work: Work) {
        self.world.spawn(self.pid, work);
    }

    fn spawn_thread(&self, _: &str, work: Work) -> std::io::Result<()> {
        self.world.spawn(self.pid, work);
        Ok(())
    }
}

/// What a process on this machine sees of the world.
pub fn env(world: &Arc<World>, node: &Arc<Node>, pid: Pid) -> Env {
    let chance = Arc::new(SeededChance::new(world.chance()));
    let place = Place { world: Arc::clone(world), pid };
    let host = Host { name: "sim".to_owned(), pid: pid.0 };
    Env::new(Arc::clone(node) as Arc<dyn Clock>, chance)
        .with_runner(Arc::new(place))
        .with_host(host)
}
