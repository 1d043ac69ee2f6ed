//! The model in tokio's virtual time.
#![allow(clippy::disallowed_methods, reason = "this is the world of the tests")]

mod conformance;
mod faults;
mod queue;
mod served;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::Env;
use dfq::clock::{Clock, SeededChance};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{Bucket, Luck, SimObjects, Tap, Traits, Weather, lock};
use crate::seam::{Call, Change, Witness};

/// Tokio's clock, which is moved on whenever there is nothing to do.
#[derive(Clone, Debug)]
struct VirtualClock(Instant);

const START: i64 = 1_800_000_000;

impl Clock for VirtualClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_second(START).unwrap() + self.0.elapsed()
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Notes every change, and every request and answer.
#[derive(Debug, Default)]
struct History {
    lines: Mutex<Vec<String>>,
    dead: AtomicBool,
}

impl History {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.lines))
    }

    fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }
}

impl Witness for History {
    fn changed(&self, change: Change<'_>) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        lock(&self.lines).push(match change {
            Change::Created(name, bytes) => format!("+{name}={}", text(bytes)),
            Change::Replaced(name, bytes) => format!("={name}={}", text(bytes)),
            Change::Removed(name) => format!("-{name}"),
        });
    }
}

impl Tap for History {
    fn sent(&self, call: &Call) -> Luck {
        lock(&self.lines).push(format!("{} {}", call.verb, call.path));
        Luck::AsDrawn
    }

    fn answered(&self, call: &Call, answer: &str) {
        lock(&self.lines).push(format!("{} {}: {answer}", call.verb, call.path));
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

/// A bucket, a process and what was heard of both.
struct World {
    env: Env,
    bucket: Bucket,
    changes: Arc<History>,
    weather: Arc<Mutex<Weather>>,
}

impl World {
    fn new(seed: u64, traits: Traits) -> Self {
        let clock = Arc::new(VirtualClock(Instant::now()));
        let world = |seed| Env::new(clock.clone(), Arc::new(SeededChance::new(seed)));
        let (changes, shows) = (Arc::new(History::default()), clock.clone());
        let told: Arc<dyn Witness> = changes.clone();
        let bucket = Bucket::new(traits, world(seed), move || shows.wall(), told);
        let weather = Arc::new(Mutex::new(Weather::still()));
        Self { env: world(seed ^ 1), bucket, changes, weather }
    }

    fn still() -> Self {
        Self::new(7, Traits::s3())
    }

    fn set(&self, weather: Weather) {
        *lock(&self.weather) = weather;
    }

    fn line(&self) -> SimObjects {
        self.line_of(Arc::new(()))
    }

    fn line_of(&self, tap: Arc<dyn Tap>) -> SimObjects {
        self.bucket.line(self.env.clone(), Arc::clone(&self.weather), tap)
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
