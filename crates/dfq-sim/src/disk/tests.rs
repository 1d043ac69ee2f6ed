//! What the model promises.

mod agrees;
mod cuts;
mod network;
mod queue;
mod room;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rand::{Rng, SeedableRng, rngs::StdRng};

use dfq::clock::{Clock, ManualClock};
use dfq::store::fs::Sys;

use super::{Disk, DiskSys, Mount, Traits, lock};
use crate::seam::{Call, Change, Fate, Gate, Witness};

/// Lets every call through, unless a test says otherwise for the next one.
#[derive(Debug, Default)]
struct Open(Mutex<Option<Fate>>, Mutex<Vec<String>>);

impl Gate for Open {
    fn enter(&self, _: &Call) -> Fate {
        lock(&self.0).take().unwrap_or(Fate::Done)
    }

    fn answered(&self, call: &Call, answer: &dyn fmt::Display) {
        lock(&self.1).push(format!("{} {}: {answer}", call.verb, call.path));
    }
}

/// Writes down what changed, and keeps the files as they should be by that.
#[derive(Debug, Default)]
struct Record(Mutex<Vec<String>>, Mutex<std::collections::BTreeMap<String, Vec<u8>>>);

impl Witness for Record {
    fn changed(&self, change: Change<'_>) {
        let mut files = lock(&self.1);
        let (line, fits) = match change {
            Change::Created(path, bytes) => {
                (format!("+{path}"), files.insert(path.to_owned(), bytes.to_vec()).is_none())
            }
            Change::Replaced(path, bytes) => {
                (format!("={path}"), files.insert(path.to_owned(), bytes.to_vec()).is_some())
            }
            Change::Removed(path) => (format!("-{path}"), files.remove(path).is_some()),
        };
        assert!(fits, "{line} does not fit what was told before");
        lock(&self.0).push(line);
    }
}

/// A disk, and what a test wants of it.
struct World {
    disk: Disk,
    clock: ManualClock,
    record: Arc<Record>,
    gate: Arc<Open>,
}

impl World {
    fn new(traits: Traits) -> Self {
        Self::seeded(traits, 1)
    }

    fn seeded(traits: Traits, seed: u64) -> Self {
        let clock = ManualClock::default();
        let record = Arc::new(Record::default());
        let shown = clock.clone();
        let disk =
            Disk::new(traits, seed, move || shown.wall(), Arc::<Record>::clone(&record) as _);
        Self { disk, clock, record, gate: Arc::default() }
    }

    fn sys(&self) -> DiskSys {
        self.on(Mount::local())
    }

    fn on(&self, mount: Mount) -> DiskSys {
        DiskSys::new(self.disk.clone(), mount, Arc::<Open>::clone(&self.gate) as _)
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.record.0))
    }

    /// What was told is what is there.
    fn check(&self) {
        assert_eq!(self.disk.files(), *lock(&self.record.1));
    }
}

fn chance(seed: u64) -> impl FnMut() -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    move || rng.next_u64()
}

/// Makes a file, whole.
fn put(sys: &DiskSys, path: &str, bytes: &[u8]) -> super::File {
    let file = sys.create(&sys.root(), path).unwrap();
    sys.write(&file, bytes).unwrap();
    file
}

fn names<S: Sys>(sys: &S, at: &S::Dir, path: &str) -> Vec<String> {
    let mut listing = sys.list(at, path).unwrap();
    let mut names = Vec::new();
    while let Some(entry) = sys.next(&mut listing) {
        names.push(entry.unwrap().name.unwrap());
    }
    names
}
