//! A folder with a queue in it, and workers that can be made to die at any call.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use dfq::clock::{SkippingClock, SystemChance};
use dfq::conformance::faulty::{FaultyFolder, faulty_folder, open_faulty};
use dfq::{Env, OpenOptions, PollRequest, Queue, Settings};

pub(crate) use dfq::conformance::faulty::FaultyQueue as Faulty;

/// Nobody sits it out: a run puts its clock forward. So no machine is too slow to act within it.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

/// Outside a runtime, calls run right here.
pub(crate) fn run<T>(call: impl Future<Output = T>) -> T {
    futures::executor::block_on(call)
}

pub(crate) struct World {
    dir: tempfile::TempDir,
    clock: SkippingClock,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { dir, clock: SkippingClock::default() }
    }

    pub(crate) fn store(&self) -> FaultyFolder {
        faulty_folder(self.dir.path(), &self.clock, self.env()).unwrap()
    }

    fn env(&self) -> Env {
        Env::new(Arc::new(self.clock.clone()), Arc::new(SystemChance))
    }

    /// Lets time pass for everybody.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.skip(time, Duration::ZERO);
    }

    /// A worker like a new process.
    pub(crate) fn worker(&self) -> Faulty {
        let create = Some(Settings { lease: LEASE, ..Settings::default() });
        let options = OpenOptions { env: self.env(), create, ..OpenOptions::default() };
        run(open_faulty(self.store(), options)).unwrap()
    }

    /// Another worker does all that is left; answers the records in the end, sorted.
    pub(crate) fn drain(&self) -> Vec<String> {
        let queue = self.worker();
        run(queue.resume()).unwrap();
        for rounds in 0.. {
            assert!(rounds < 1000, "the queue is never drained");
            let polled = run(queue.poll(PollRequest::new(10))).unwrap();
            let found = polled.deliveries.len();
            run(queue.ack(polled.deliveries.into_iter().map(|held| held.receipt).collect()));
            match polled.idle.next {
                None if found == 0 => break,
                // What others hold is looked at again each second; there are many in a lease.
                Some(next) if found == 0 => self.pass(next.max(LEASE / 5)),
                _ => {}
            }
        }
        let mut records: Vec<String> = self.files("completed");
        records.extend(self.files("failed"));
        let short = |path: &String| {
            let mut parts = path.trim_end_matches(".json").split('/');
            let (place, name) = (parts.next().unwrap(), parts.next_back().unwrap());
            format!("{place}/{name}")
        };
        let mut records: Vec<String> = records.iter().map(short).collect();
        records.sort();
        records
    }

    /// Nothing is left of finished tasks, and nothing is out of place.
    pub(crate) fn assert_clean(&self, story: &dyn Fn() -> String) {
        for place in ["pending", "scheduled"] {
            assert_eq!(self.files(place), Vec::<String>::new(), "{}", story());
        }
        let problems = run(self.worker().check(false)).unwrap();
        assert_eq!(problems, [], "{}", story());
    }

    fn files(&self, place: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.dir.path().join(place)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let path = path.strip_prefix(self.dir.path()).unwrap();
                    found.push(path.display().to_string());
                }
            }
        }
        found
    }
}
