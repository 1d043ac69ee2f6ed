//! A server that nothing in a test can hold up, and a clock that leaps together with it.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{SkippingClock, SystemChance};
use dfq::meter::Meter;
use dfq::options::S3Options;
use dfq::store::bucket::Bucket;
use dfq::{Env, NewTask, OpenOptions, Queue, Settings, TaskId, TreeQueue};
use dfq_s3_server::{Fault, Lies, Options, RequestInfo, Server};

/// A server with a runtime of its own.
pub(crate) struct Elsewhere {
    pub(crate) server: Server,
    pub(crate) clock: SkippingClock,
    leapt_ms: AtomicI64,
    _runtime: tokio::runtime::Runtime,
}

impl Elsewhere {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(Options::default())).unwrap();
        let clock = SkippingClock::default();
        Self { server, clock, leapt_ms: AtomicI64::new(0), _runtime: runtime }
    }

    /// Time as it passes here.
    pub(crate) fn env(&self) -> Env {
        Env::new(Arc::new(self.clock.clone()), Arc::new(SystemChance))
    }

    /// Lets time pass, for the server and for all that is in this [`Elsewhere::env`].
    pub(crate) fn pass(&self, time: Duration) {
        let more = i64::try_from(time.as_millis()).unwrap();
        let clock_offset_ms = self.leapt_ms.fetch_add(more, Ordering::SeqCst) + more;
        self.server.set_lies(Lies { clock_offset_ms, ..Lies::default() });
        self.clock.skip(time, Duration::ZERO);
    }

    pub(crate) async fn bucket(&self, env: Env, meter: &Meter) -> Bucket {
        let (key, secret) = (self.server.access_key(), self.server.secret_key());
        let s3 = S3Options {
            endpoint: Some(self.server.endpoint()),
            region: Some("us-east-1".to_owned()),
            credentials: Some((key.to_owned(), secret.to_owned())),
            ..S3Options::default()
        };
        Bucket::s3(self.server.bucket(), "jobs", s3, env, meter.clone()).await.unwrap()
    }

    /// A queue on the time of `env`.
    pub(crate) async fn queue_in(
        &self,
        env: Env,
        lease: Duration,
        meter: &Meter,
    ) -> Arc<dyn Queue> {
        let bucket = self.bucket(env.clone(), meter).await;
        let create = Some(Settings { lease, ..Settings::default() });
        let options = OpenOptions { env, create, ..OpenOptions::default() };
        Arc::new(TreeQueue::open(bucket, options).await.unwrap())
    }

    /// The leases as they are.
    pub(crate) fn leases(&self) -> Vec<String> {
        let objects = self.server.objects().into_iter();
        let leases = objects.filter(|(key, _)| key.ends_with("/lease.json"));
        leases.map(|(_, object)| format!("{object:?}")).collect()
    }

    /// Lets requests hang, as long as `hangs` says so of them; answers which it has said that of so far.
    pub(crate) fn hang(
        &self,
        hangs: impl Fn(&RequestInfo) -> bool + Send + 'static,
    ) -> Arc<Mutex<Vec<RequestInfo>>> {
        let hung = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&hung);
        self.server.on(move |request| {
            hangs(request).then(|| {
                noted.lock().unwrap().push(request.clone());
                Fault::Delay(Duration::from_secs(3600))
            })
        });
        hung
    }
}

pub(crate) fn task(n: usize) -> NewTask {
    NewTask::from_json("{}").unwrap().id(TaskId::new(format!("t{n}")).unwrap())
}

/// Waits for something that comes by itself, however slow the machine; but not for what never comes.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{what} does not come");
}
