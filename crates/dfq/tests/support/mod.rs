//! What several test files need.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

pub(crate) mod pair;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dfq::clock::{SkippingClock, SystemChance};
use dfq::conformance::faulty::{faulty_folder, open_faulty};
use dfq::store::fs::RealSys;
use dfq::store::fs::fault::FaultSys;
use dfq::{Delivery, Env, NewTask, OpenOptions, PollRequest, Queue, Settings, TaskId};

pub(crate) use dfq::conformance::faulty::FaultyQueue as Faulty;

/// Where folders for queues are made.
fn scratch() -> PathBuf {
    std::env::var_os("DFQ_TEST_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()).into()
}

/// A number of tasks or rounds: the first, or the second if the tests may take long (`./test --long`).
pub(crate) fn short_or_long(short: usize, long: usize) -> usize {
    if std::env::var_os("DFQ_TEST_LONG").is_some() { long } else { short }
}

/// A folder for a queue, and a clock that can be put forward.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    clock: SkippingClock,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::on(SkippingClock::default())
    }

    fn on(clock: SkippingClock) -> Self {
        Self { dir: tempfile::tempdir_in(scratch()).unwrap(), clock }
    }

    /// On a filesystem in memory, which keeps any time; where there is none, in an ordinary folder.
    pub(crate) fn in_memory() -> Self {
        let site = Self::new();
        let dir = tempfile::tempdir_in("/dev/shm");
        Self { dir: dir.unwrap_or(site.dir), clock: site.clock }
    }

    /// Another folder, on the same clock.
    pub(crate) fn another(&self) -> Self {
        Self::on(self.clock.clone())
    }

    /// The time of [`Site::faulty`], and chance.
    pub(crate) fn env(&self) -> Env {
        Env::new(Arc::new(self.clock.clone()), Arc::new(SystemChance))
    }

    /// Lets time pass for all that is in this [`Site::env`].
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.skip(time, Duration::ZERO);
    }

    /// Lets a whole lease pass and more, no faster than the lease in this file is renewed.
    pub(crate) fn outlive(&self, lease: &str, renewed_every: Duration, length: Duration) {
        let rounds = length.as_nanos() / renewed_every.as_nanos() + 2;
        for _ in 0..rounds {
            let before = self.read(lease);
            self.pass(renewed_every);
            while self.read(lease) == before {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// A copy of a frozen tree.
    pub(crate) fn copy_of(tree: &str) -> Self {
        let site = Self::new();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(tree);
        copy(&from, &site.path("q"));
        site
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub(crate) async fn queue(&self) -> Arc<dyn Queue> {
        self.queue_with(Settings::default()).await
    }

    pub(crate) async fn queue_with(&self, settings: Settings) -> Arc<dyn Queue> {
        let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
        dfq::open(self.path("q"), options).await.unwrap()
    }

    /// A queue whose system calls are counted, and can be made to fail, on the clock of this site.
    pub(crate) async fn faulty(&self, settings: Settings) -> (Arc<Faulty>, FaultSys<RealSys>) {
        std::fs::create_dir_all(self.path("q")).unwrap();
        let folder = faulty_folder(&self.path("q"), &self.clock, self.env()).unwrap();
        let sys = folder.sys().clone();
        let create = Some(settings);
        let options = OpenOptions { env: self.env(), create, ..OpenOptions::default() };
        (Arc::new(open_faulty(folder, options).await.unwrap()), sys)
    }

    /// Puts text into a file below the queue, making folders as needed.
    pub(crate) fn write(&self, below: &str, content: impl AsRef<[u8]>) {
        let path = self.path("q").join(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, below: &str) -> String {
        std::fs::read_to_string(self.path("q").join(below)).unwrap()
    }

    pub(crate) fn exists(&self, below: &str) -> bool {
        self.path("q").join(below).symlink_metadata().is_ok()
    }

    /// Makes a file look as if it was last written so long ago.
    pub(crate) fn age(&self, below: &str, by: Duration) {
        let file = std::fs::File::options().write(true).open(self.path("q").join(below)).unwrap();
        file.set_modified(SystemTime::now() - by).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) fn task(name: &str) -> NewTask {
    NewTask::from_json(r#"{"x":1}"#).unwrap().id(id(name))
}

pub(crate) fn id(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

pub(crate) async fn push(queue: &dyn Queue, name: &str) {
    queue.push(vec![task(name)]).await.remove(0).unwrap();
}

pub(crate) async fn poll(queue: &dyn Queue) -> Vec<Delivery> {
    let mut got = queue.poll(PollRequest::new(100)).await.unwrap().deliveries;
    got.sort_by(|a, b| a.key.cmp(&b.key));
    got
}

pub(crate) async fn ack_all(queue: &dyn Queue, held: Vec<Delivery>) {
    for answer in queue.ack(held.into_iter().map(|held| held.receipt).collect()).await {
        answer.unwrap();
    }
}
