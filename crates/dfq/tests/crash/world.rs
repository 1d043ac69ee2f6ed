//! A folder with a queue in it, and workers that can be made to die at any call.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::{Duration, SystemTime};

use dfq::store::fs::fault::FaultSys;
use dfq::store::fs::{Filesystem, RealSys};
use dfq::{Env, OpenOptions, PollRequest, Queue, Settings, TreeQueue};

pub(crate) type Faulty = TreeQueue<Filesystem<FaultSys<RealSys>>>;

/// Long enough for a busy machine to act within it, short enough to wait for.
pub(crate) const LEASE: Duration = Duration::from_millis(400);

/// Outside a runtime, calls run right here.
pub(crate) fn run<T>(call: impl Future<Output = T>) -> T {
    futures::executor::block_on(call)
}

pub(crate) fn store(dir: &Path) -> (Filesystem<FaultSys<RealSys>>, FaultSys<RealSys>) {
    let sys = FaultSys::new(RealSys);
    let root = RealSys::open_root(dir).unwrap();
    let shown = dir.display().to_string();
    (Filesystem::with(sys.clone(), root, shown, Env::system(), false), sys)
}

pub(crate) struct World {
    dir: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// A worker like a new process.
    pub(crate) fn worker(&self) -> Faulty {
        let settings = Settings { lease: LEASE, ..Settings::default() };
        let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
        run(TreeQueue::open(store(self.dir.path()).0, options)).unwrap()
    }

    /// Another worker does all that is left; answers the records in the end, sorted.
    pub(crate) fn drain(&self) -> Vec<String> {
        let queue = self.worker();
        run(queue.resume()).unwrap();
        let give_up = SystemTime::now() + Duration::from_secs(60);
        loop {
            assert!(SystemTime::now() < give_up, "the queue is never drained");
            let polled = run(queue.poll(PollRequest::new(10))).unwrap();
            let found = polled.deliveries.len();
            // A lease may run out on a busy machine; then it is somebody's again, ours too.
            run(queue.ack(polled.deliveries.into_iter().map(|held| held.receipt).collect()));
            match polled.idle.next {
                None if found == 0 => break,
                next => {
                    let wait = next.unwrap_or_default().min(Duration::from_millis(20));
                    std::thread::sleep(if found > 0 { Duration::ZERO } else { wait });
                }
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

    /// Makes finished records look old.
    pub(crate) fn age_records(&self, by: Duration) {
        for path in self.files("completed") {
            let file =
                std::fs::File::options().write(true).open(self.dir.path().join(path)).unwrap();
            file.set_modified(SystemTime::now() - by).unwrap();
        }
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
