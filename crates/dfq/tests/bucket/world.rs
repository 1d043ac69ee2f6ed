//! A server of our own with a queue on it, and the few steps that every test takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{SkippingClock, SystemChance};
use dfq::options::S3Options;
use dfq::store::bucket::Bucket;
use dfq::{
    Delivery, Env, NewTask, OpenOptions, PollRequest, Pushed, Queue, Receipt, Result, Settings,
    TreeQueue,
};
use dfq_s3_server::{Fault, Lies, Options, RequestInfo, Server};

/// Where all tests have their queue, and the name that the task of most of them has there.
pub(crate) const PREFIX: &str = "some/where";
pub(crate) const TASK: &str = "pending/ca/a/task.json";
pub(crate) const LEASE: &str = "pending/ca/a/lease.json";
pub(crate) const COMPLETED: &str = "completed/ca/a.json";
pub(crate) const SETTINGS: &str = "queue.json";

/// A lease that does not run out unless a test lets time pass.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) struct World {
    pub(crate) server: Server,
    clock: SkippingClock,
    /// Milliseconds by which the server's clock is ahead: what was skipped, and what is wrong with it.
    ahead: Mutex<(i64, i64)>,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let server = Server::start(options).await.unwrap();
        Self { server, clock: SkippingClock::default(), ahead: Mutex::default() }
    }

    pub(crate) fn env(&self) -> Env {
        Env::new(Arc::new(self.clock.clone()), Arc::new(SystemChance))
    }

    /// Lets time pass, for the server and for every worker.
    pub(crate) fn pass(&self, time: Duration) {
        self.ahead.lock().unwrap().0 += i64::try_from(time.as_millis()).unwrap();
        self.tell_the_time();
        self.clock.skip(time, Duration::ZERO);
    }

    /// Sets the server's clock wrong by so many milliseconds.
    pub(crate) fn set_clock(&self, offset: i64) {
        self.ahead.lock().unwrap().1 = offset;
        self.tell_the_time();
    }

    fn tell_the_time(&self) {
        let (passed, wrong) = *self.ahead.lock().unwrap();
        self.server.set_lies(Lies { clock_offset_ms: passed + wrong, ..Lies::default() });
    }

    /// Polls until there is something, while others' leases run out.
    pub(crate) async fn claim_in_time(&self, queue: &dyn Queue) -> Delivery {
        for _ in 0..300 {
            if let Some(delivery) = poll(queue, 1).await.unwrap_or_default().pop() {
                return delivery;
            }
            self.pass(LONG / 20);
        }
        panic!("the task is not handed out any more");
    }

    pub(crate) fn options(&self) -> S3Options {
        let (key, secret) = (self.server.access_key(), self.server.secret_key());
        S3Options {
            endpoint: Some(self.server.endpoint()),
            region: Some("us-east-1".to_owned()),
            credentials: Some((key.to_owned(), secret.to_owned())),
            ..S3Options::default()
        }
    }

    /// A worker of its own, on a queue that is made if there is none.
    pub(crate) async fn open(&self, lease: Duration) -> Result<Arc<dyn Queue>> {
        open_in(self.env(), self.server.bucket(), self.options(), lease).await
    }

    pub(crate) async fn worker(&self) -> Arc<dyn Queue> {
        self.open(LONG).await.unwrap()
    }

    /// A worker, and the task `a` pushed.
    pub(crate) async fn with_task(&self, lease: Duration) -> Arc<dyn Queue> {
        let queue = self.open(lease).await.unwrap();
        assert!(matches!(push(&*queue).await.unwrap(), Pushed::Created(_)));
        queue
    }

    /// Does this to the first request for which `which` holds. The answer tells when it has come.
    pub(crate) fn once(
        &self,
        fault: Fault,
        which: impl Fn(&RequestInfo) -> bool + Send + Sync + 'static,
    ) -> Arc<AtomicBool> {
        let come = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&come);
        self.server.on(move |request| {
            let hit = which(request) && !done.swap(true, Ordering::SeqCst);
            hit.then_some(fault)
        });
        come
    }

    /// Does this to every request for which `which` holds, until [`Server::off`].
    pub(crate) fn always(
        &self,
        fault: Fault,
        which: impl Fn(&RequestInfo) -> bool + Send + 'static,
    ) {
        self.server.on(move |request| which(request).then_some(fault));
    }

    pub(crate) fn faults(&self, fault: Fault) -> u64 {
        self.server.meter().counts().fault(fault.name())
    }

    /// What the queue has in the bucket below this, without its prefix.
    pub(crate) fn keys(&self, below: &str) -> Vec<String> {
        let all = self.server.objects().into_keys();
        let keys =
            all.filter_map(|key| key.strip_prefix(PREFIX)?.strip_prefix('/').map(str::to_owned));
        keys.filter(|key| key.starts_with(below)).collect()
    }

    /// Clean-up may come later, by whoever polls; it must come. Leases without a task hurt nobody and
    /// may stay until they have run out, but `check` sees to them at once.
    pub(crate) async fn tidy(&self, queue: &dyn Queue) {
        let tasks = || self.keys("pending/").iter().any(|key| key.ends_with("/task.json"));
        for _ in 0..100 {
            if !tasks() {
                break;
            }
            assert!(poll(queue, 10).await.unwrap_or_default().is_empty(), "handed out finished");
            self.pass(LONG / 20);
        }
        assert!(!tasks(), "left in the bucket: {:?}", self.keys("pending/"));
        // A lease may arrive late, just after a look.
        for _ in 0..100 {
            queue.check(true).await.unwrap();
            if self.keys("pending/").is_empty() {
                return;
            }
            pause(100).await;
        }
        panic!("left in the bucket: {:?}", self.keys("pending/"));
    }
}

pub(crate) async fn open(
    bucket: &str,
    options: S3Options,
    lease: Duration,
) -> Result<Arc<dyn Queue>> {
    open_in(Env::system(), bucket, options, lease).await
}

async fn open_in(
    env: Env,
    bucket: &str,
    options: S3Options,
    lease: Duration,
) -> Result<Arc<dyn Queue>> {
    let bucket = Bucket::s3(bucket, PREFIX, options, env.clone(), Default::default()).await?;
    let create = Some(Settings { lease, ..Settings::default() });
    let options = OpenOptions { env, create, ..OpenOptions::default() };
    Ok(Arc::new(TreeQueue::open(bucket, options).await?))
}

/// The conditional PUT of this file.
pub(crate) fn creates(file: &'static str) -> impl Fn(&RequestInfo) -> bool + Send + Sync + 'static {
    move |request| request.is_conditional_put() && request.key.ends_with(file)
}

pub(crate) fn gets(file: &'static str) -> impl Fn(&RequestInfo) -> bool + Send + Sync + 'static {
    move |request| request.op == "GetObject" && request.key.ends_with(file)
}

pub(crate) fn lists(request: &RequestInfo) -> bool {
    request.op == "ListObjectsV2"
}

pub(crate) fn task() -> NewTask {
    NewTask::from_json(r#"{"id": "a", "text": "what is to be done"}"#).unwrap()
}

pub(crate) async fn push(queue: &dyn Queue) -> Result<Pushed> {
    queue.push(vec![task()]).await.remove(0)
}

pub(crate) async fn poll(queue: &dyn Queue, max: usize) -> Result<Vec<Delivery>> {
    Ok(queue.poll(PollRequest::new(max)).await?.deliveries)
}

pub(crate) async fn claim(queue: &dyn Queue) -> Delivery {
    let mut got = poll(queue, 1).await.unwrap();
    assert_eq!(got.len(), 1, "there is a task to be had");
    let delivery = got.remove(0);
    assert_eq!(delivery.payload.string_member("text").as_deref(), Some("what is to be done"));
    delivery
}

pub(crate) async fn ack(queue: &dyn Queue, receipt: &Receipt) -> Result<()> {
    queue.ack(vec![receipt.clone()]).await.remove(0)
}

pub(crate) async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
