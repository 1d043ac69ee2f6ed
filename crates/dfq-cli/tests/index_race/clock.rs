//! A calendar that is wrong, for a process that is this program and does what `dfq` does.

use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dfq::Env;
use dfq::clock::{Clock, SystemChance, SystemClock};
use jiff::{SignedDuration, Timestamp};

/// In the environment of such a process: by how many seconds its calendar is ahead.
const AHEAD: &str = "DFQ_INDEX_RACE_AHEAD";

#[derive(Debug)]
struct Shifted(SignedDuration);

impl Clock for Shifted {
    fn wall(&self) -> Timestamp {
        SystemClock.wall() + self.0
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        SystemClock.sleep(duration)
    }
}

/// The world of this process, if it is to be such a one.
pub(crate) fn wrong() -> Option<Env> {
    let ahead: i64 = std::env::var(AHEAD).ok()?.parse().ok()?;
    let clock = Shifted(SignedDuration::from_secs(ahead));
    Some(Env::new(Arc::new(clock), Arc::new(SystemChance)))
}

/// Makes a process such a one.
pub(crate) fn shift(command: &mut Command, seconds: i64) {
    command.env(AHEAD, seconds.to_string());
}

/// The calendar by which all writes are noted, in milliseconds. Stores on this machine go by it too.
pub(crate) fn now() -> i64 {
    SystemClock.wall().as_millisecond()
}
