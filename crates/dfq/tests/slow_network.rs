//! Requests that hang or take long, and what becomes of leases, acks and pushes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

#[path = "bucket/elsewhere.rs"]
mod elsewhere;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::clock::{Clock, SystemChance};
use dfq::meter::Meter;
use dfq::worker::{Job, Report, Until, Worker};
use dfq::{Env, NewTask, Pushed};
use dfq_s3_server::RequestInfo;
use elsewhere::{Elsewhere, task, until};

const LEASE: Duration = Duration::from_secs(600);

/// How long a small request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a worker looks whether tasks were taken away, and where.
const LOOK: Duration = Duration::from_secs(5);
const MARK: &str = "unlocked.json";

/// Handlers that run until they are told to stop, and who has been.
#[derive(Clone, Default)]
struct Handlers {
    started: Arc<Mutex<usize>>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Handlers {
    fn handler(
        &self,
    ) -> impl Fn(Job) -> futures::future::BoxFuture<'static, dfq::Result<()>> + use<> {
        let handlers = self.clone();
        move |job: Job| {
            *handlers.started.lock().unwrap() += 1;
            let told = Arc::clone(&handlers.told);
            Box::pin(async move {
                job.cancelled().await;
                told.lock().unwrap().push(job.delivery.id().to_string());
                std::future::pending().await
            })
        }
    }

    fn told(&self) -> Vec<String> {
        let mut told = self.told.lock().unwrap().clone();
        told.sort();
        told
    }
}

/// What tells that the heart of a worker beats: as long as that holds something, it asks for the mark of recalls.
#[derive(Clone, Default)]
struct Pulse(Arc<AtomicUsize>);

impl Pulse {
    fn listen(&self, request: &RequestInfo) {
        self.0.fetch_add(usize::from(request.key.ends_with(MARK)), Ordering::SeqCst);
    }

    /// Lets time pass, no faster than the heart beats. If this machine is slow, a request may take longer than it
    /// may by that clock; but then there is time for another, with more patience.
    fn live(&self, elsewhere: &Elsewhere, time: Duration) {
        for _ in 0..time.as_secs().div_ceil(LOOK.as_secs()) {
            let before = self.0.load(Ordering::SeqCst);
            elsewhere.pass(LOOK);
            until("a beat", || self.0.load(Ordering::SeqCst) > before);
        }
    }
}

/// A worker on a queue with so many tasks, whose handlers are all at work.
fn working(elsewhere: &Elsewhere, tasks: usize) -> (tokio::runtime::Runtime, Handlers, Duration) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let handlers = Handlers::default();
    let every = runtime.block_on(async {
        let queue = elsewhere.queue_in(elsewhere.env(), LEASE, &Meter::default()).await;
        for pushed in queue.push((1..=tasks).map(task).collect()).await {
            pushed.unwrap();
        }
        let every = queue.heartbeat_every(LEASE);
        let worker = Worker::new(queue, handlers.handler()).env(elsewhere.env());
        tokio::spawn(worker.concurrency(tasks).cleanup(LEASE * 9).run());
        every
    });
    until("all handlers", || *handlers.started.lock().unwrap() == tasks);
    (runtime, handlers, every)
}

/// No request is answered any more. Handlers are told when their leases end, by the worker's own clock.
#[test]
fn a_dead_network_does_not_stretch_a_lease() {
    let elsewhere = Elsewhere::start();
    let (runtime, handlers, _) = working(&elsewhere, 2);
    let _ = elsewhere.hang(|_| true);
    elsewhere.clock.skip(LEASE, Duration::ZERO);
    until("both are told", || handlers.told() == ["t1", "t2"]);
    runtime.shutdown_background();
}

/// Only the requests for one lease hang. The handler of that is told, and the other is not.
#[test]
fn a_request_that_hangs_costs_one_lease() {
    let elsewhere = Elsewhere::start();
    let (runtime, handlers, _) = working(&elsewhere, 2);
    let pulse = Pulse::default();
    let heard = pulse.clone();
    let hung = elsewhere.hang(move |request| {
        heard.listen(request);
        request.key.contains("/t1/lease")
    });
    pulse.live(&elsewhere, LEASE * 2);
    until("the one is told", || !handlers.told().is_empty());
    assert_eq!(handlers.told(), ["t1"]);
    assert!(!hung.lock().unwrap().is_empty());
    runtime.shutdown_background();
}

/// Three requests to renew hang one after the other. Each is given up soon, and begun anew, so the lease lives.
#[test]
fn a_renewal_that_hangs_is_begun_anew_in_time() {
    let elsewhere = Elsewhere::start();
    let (runtime, handlers, every) = working(&elsewhere, 1);
    let before = elsewhere.leases();
    let (seen, most) = (Mutex::new(0), 3);
    let pulse = Pulse::default();
    let heard = pulse.clone();
    let hung = elsewhere.hang(move |request| {
        heard.listen(request);
        let mut seen = seen.lock().unwrap();
        let hangs = request.op == "GetObject" && request.key.contains("/lease") && *seen < most;
        *seen += usize::from(hangs);
        hangs
    });
    pulse.live(&elsewhere, every);
    until("the first renewal", || !hung.lock().unwrap().is_empty());
    // Not for longer than the lease lasts: then it is renewed in time, or lost.
    for _ in 0..(LEASE - every).as_secs() / LOOK.as_secs() {
        if elsewhere.leases() != before {
            break;
        }
        pulse.live(&elsewhere, LOOK);
    }
    until("the lease is renewed", || elsewhere.leases() != before);
    assert!(hung.lock().unwrap().len() >= most);
    assert!(handlers.told().is_empty());
    runtime.shutdown_background();
}

/// Counts how often somebody waits by it.
#[derive(Clone, Debug)]
struct Counting {
    clock: dfq::clock::SkippingClock,
    sleeps: Arc<AtomicUsize>,
}

impl Clock for Counting {
    fn wall(&self) -> jiff::Timestamp {
        self.clock.wall()
    }
    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.clock.sleep(duration)
    }
}

/// The look for tasks taken away, and the worker's record, are not answered. Nobody turns round and round until
/// they are.
#[test]
fn what_hangs_does_not_keep_the_heart_busy() {
    let elsewhere = Elsewhere::start();
    let hangs = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&hangs);
    let hung = elsewhere.hang(move |request| {
        let errand = request.key.contains("unlocked.json") || request.key.contains("/workers/");
        errand && now.load(Ordering::SeqCst)
    });
    let sleeps = Arc::new(AtomicUsize::new(0));
    let clock = Counting { clock: elsewhere.clock.clone(), sleeps: Arc::clone(&sleeps) };
    let env = Env::new(Arc::new(clock), Arc::new(SystemChance));
    let (handlers, runtime) = (Handlers::default(), tokio::runtime::Runtime::new().unwrap());
    runtime.block_on(async {
        // On a clock of its own, so that no request is given up when the worker's leaps.
        let queue = elsewhere.queue_in(Env::system(), LEASE, &Meter::default()).await;
        queue.push(vec![task(1)]).await.remove(0).unwrap();
        tokio::spawn(Worker::new(queue, handlers.handler()).env(env).cleanup(LEASE).run());
    });
    until("the handler", || *handlers.started.lock().unwrap() == 1);
    hangs.store(true, Ordering::SeqCst);
    elsewhere.clock.skip(Duration::from_secs(61), Duration::ZERO);
    let asked = |what: &str| hung.lock().unwrap().iter().any(|request| request.key.contains(what));
    until("both hang", || asked("unlocked.json") && asked("/workers/"));
    // Both are overdue now, the lease is not.
    elsewhere.clock.skip(Duration::from_secs(100), Duration::ZERO);
    std::thread::sleep(Duration::from_millis(50));
    sleeps.store(0, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(500));
    let sleeps = sleeps.load(Ordering::SeqCst);
    assert!(sleeps < 50, "woke {sleeps} times for nothing");
    runtime.shutdown_background();
}

/// The record of a finished task takes longer to write than its lease lasts. The lease is renewed meanwhile, so
/// nobody else gets the task.
#[test]
fn a_lease_is_renewed_while_its_ack_is_under_way() {
    let elsewhere = Elsewhere::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let hangs = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&hangs);
    let pulse = Pulse::default();
    let heard = pulse.clone();
    let hung = elsewhere.hang(move |request| {
        heard.listen(request);
        request.key.contains("/completed/")
            && request.op == "PutObject"
            && still.load(Ordering::SeqCst)
    });
    let queue = runtime.block_on(elsewhere.queue_in(elsewhere.env(), LEASE, &Meter::default()));
    runtime.block_on(queue.push(vec![task(1)])).remove(0).unwrap();
    let handler = |_: Job| async { Ok::<(), dfq::Error>(()) };
    let worker = Worker::new(queue, handler).env(elsewhere.env()).until(Until::Idle);
    let running = runtime.spawn(worker.run());
    until("the ack", || !hung.lock().unwrap().is_empty());
    let before = elsewhere.leases();
    // Not for ten minutes: then the task is given back.
    pulse.live(&elsewhere, LEASE * 9 / 10);
    assert!(before.len() == 1 && elsewhere.leases() != before);
    hangs.store(false, Ordering::SeqCst);
    elsewhere.clock.skip(PATIENCE, Duration::ZERO);
    let report = runtime.block_on(running).unwrap().unwrap();
    assert_eq!(report, Report { completed: 1, ..Report::default() });
}

/// What is large takes its time: it is not given up, and sent again, as soon as what is small.
#[test]
fn a_push_may_take_as_long_as_its_size_asks_for() {
    for (bytes, sent) in [(100, 2), (4 << 20, 1)] {
        let elsewhere = Elsewhere::start();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let queue = runtime.block_on(elsewhere.queue_in(elsewhere.env(), LEASE, &Meter::default()));
        let (came, leapt) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, has_leapt) = (Arc::clone(&came), Arc::clone(&leapt));
        elsewhere.server.on(move |request| {
            let is_task = request.op == "PutObject" && request.key.ends_with("/task.json");
            if !is_task || count.fetch_add(1, Ordering::SeqCst) > 0 {
                return None;
            }
            // The small one is never answered. The large one is, but not before the clock has leapt.
            if bytes < 1000 {
                return Some(dfq_s3_server::Fault::Delay(Duration::from_secs(3600)));
            }
            until("the leap", || has_leapt.load(Ordering::SeqCst));
            None
        });
        let payload = format!(r#"{{"id":"a","v":"{}"}}"#, "x".repeat(bytes));
        let pushing = runtime.spawn(async move {
            queue.push(vec![NewTask::from_json(&payload).unwrap()]).await.remove(0)
        });
        until("the push", || came.load(Ordering::SeqCst) > 0);
        elsewhere.clock.skip(PATIENCE * 2, Duration::ZERO);
        // A moment. An impatient client gives up in it; a patient one may be given any time.
        std::thread::sleep(Duration::from_millis(200));
        leapt.store(true, Ordering::SeqCst);
        let pushed = runtime.block_on(pushing).unwrap().unwrap();
        assert!(matches!(pushed, Pushed::Created(_)), "{pushed:?}");
        assert_eq!(came.load(Ordering::SeqCst), sent, "{bytes} bytes");
        runtime.shutdown_background();
    }
}

/// A worker that holds nothing does not ask whether its tasks were taken away.
#[test]
fn an_idle_worker_asks_for_nothing_it_does_not_need() {
    const MINUTES: usize = 20;
    let elsewhere = Elsewhere::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let asked = Arc::new(Mutex::new(Asked::default()));
    let count = Arc::clone(&asked);
    elsewhere.server.on(move |request| {
        let mut asked = count.lock().unwrap();
        asked.paused += usize::from(request.key.ends_with("paused.json"));
        asked.unlocked += usize::from(request.key.ends_with(MARK));
        asked.listed += usize::from(request.op.starts_with("List"));
        None
    });
    runtime.block_on(async {
        let queue = elsewhere.queue_in(elsewhere.env(), LEASE, &Meter::default()).await;
        *asked.lock().unwrap() = Asked::default();
        let handler = |_: Job| async { Ok::<(), dfq::Error>(()) };
        let worker = Worker::new(queue, handler).env(elsewhere.env());
        tokio::spawn(worker.run());
    });
    let now = || *asked.lock().unwrap();
    until("the first poll", || now().listed > 0);
    for _ in 0..MINUTES {
        // Longer than a worker waits between two polls. Each looks for both, and only then lists.
        let before = now();
        elsewhere.pass(Duration::from_secs(60));
        until("a poll", || now().paused > before.paused && now().listed >= before.listed + 2);
        // In which the last request is answered. If not, it is sent again, which only takes longer.
        std::thread::sleep(Duration::from_millis(20));
    }
    // One that the clock leaps over is sent again, and so may be a few. To ask each time is another matter.
    let asked = now();
    assert!(asked.unlocked <= asked.paused + MINUTES / 4, "{asked:?}");
    runtime.shutdown_background();
}

/// How many requests an idle worker has sent, of which kind.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    paused: usize,
    unlocked: usize,
    listed: usize,
}
