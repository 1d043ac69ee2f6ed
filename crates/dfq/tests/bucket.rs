//! The conformance suite over buckets: on our own server, which starts within each test, and on the
//! server that `DFQ_TEST_S3` names, with the keys and the bucket that the scripts in `servers/` make.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real servers and clients run in real time")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dfq::clock::{SkippingClock, SystemChance};
use dfq::conformance::Provider;
use dfq::conformance::objects::{ObjectsProvider, trial, written};
use dfq::options::S3Options;
use dfq::store::bucket::Bucket;
use dfq::store::{Folders as _, Objects, ObjectsExt as _, Stored, Updated};
use dfq::{Env, OpenOptions, Queue, Settings, TreeQueue};
use dfq_s3_server::{Credential, Fault, Lies, Options, Server};

const BUCKET: &str = "dfq-test";
const KEYS: (&str, &str) = ("testkey", "testsecret");

struct Prefix {
    endpoint: String,
    prefix: String,
    /// Our own server, whose clock can be put forward with that of its clients.
    own: Option<Own>,
}

struct Own {
    server: Server,
    clock: SkippingClock,
    lies: Mutex<Lies>,
}

impl Prefix {
    fn at(endpoint: String, own: Option<Own>) -> Self {
        Self { endpoint, prefix: format!("test/{}", Env::system().nonce()), own }
    }

    async fn on_our_own(lies: Lies) -> Self {
        let credential = Credential::new(KEYS.0, KEYS.1);
        let told = lies.clone();
        let options = Options { credential, lies, ..Options::default() };
        let server = Server::start(options).await.unwrap();
        let own = Own { clock: SkippingClock::default(), lies: Mutex::new(told), server };
        Self::at(own.server.endpoint(), Some(own))
    }

    fn env(&self) -> Env {
        match &self.own {
            Some(own) => Env::new(Arc::new(own.clock.clone()), Arc::new(SystemChance)),
            None => Env::system(),
        }
    }

    async fn bucket(&self) -> Bucket {
        let options = S3Options {
            endpoint: Some(self.endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            credentials: Some((KEYS.0.to_owned(), KEYS.1.to_owned())),
            ..S3Options::default()
        };
        let (env, meter) = (self.env(), Default::default());
        Bucket::s3(BUCKET, &self.prefix, options, env, meter).await.unwrap()
    }

    /// Many count in one object, each by reading it and writing it if it has not changed: none is lost.
    async fn everybody_counts(&self) {
        const EACH: usize = 10;
        let path = "counted";
        self.bucket().await.create(path, b"").await.unwrap();
        let mut counters = tokio::task::JoinSet::new();
        for letter in *b"abcd" {
            let bucket = self.bucket().await;
            counters.spawn(async move {
                for n in 0..EACH {
                    let add = |stored: &Stored| {
                        Some([&stored.bytes[..], &[letter, b'0' + n as u8]].concat())
                    };
                    // Who is overtaken too often may ask again.
                    while bucket.update(path, &add).await.is_err() {}
                }
            });
        }
        counters.join_all().await;
        let bucket = self.bucket().await;
        let stored = bucket.read(path).await.unwrap().unwrap();
        assert_eq!(
            stored.bytes.len(),
            4 * EACH * 2,
            "{:?}",
            String::from_utf8_lossy(&stored.bytes)
        );
        let left = bucket.update(path, &|_| None).await.unwrap();
        assert_eq!(left, Updated::Left(stored));
        let mark = b"going".to_vec();
        let written = bucket.update(path, &|_| Some(mark.clone())).await.unwrap();
        assert_eq!(written, Updated::Written(mark.clone()));
        assert!(
            !bucket.remove_if_unchanged(path, &mark, Duration::ZERO).await.unwrap(),
            "too late"
        );
        assert!(bucket.remove_if_unchanged(path, &mark, Duration::MAX).await.unwrap());
        assert_eq!(bucket.update(path, &|_| None).await.unwrap(), Updated::Missing);
    }
}

#[async_trait]
impl ObjectsProvider for Prefix {
    async fn open(&self) -> Arc<dyn Objects> {
        Arc::clone(self.bucket().await.objects()) as Arc<dyn Objects>
    }
}

#[async_trait]
impl Provider for Prefix {
    async fn worker(&self, settings: &Settings) -> Arc<dyn Queue> {
        let create = Some(settings.clone());
        let options = OpenOptions { env: self.env(), create, ..OpenOptions::default() };
        Arc::new(TreeQueue::open(self.bucket().await, options).await.unwrap())
    }

    #[allow(clippy::disallowed_methods, reason = "the store's clock is the machine's")]
    async fn pass(&self, time: Duration) {
        let Some(own) = &self.own else { return tokio::time::sleep(time).await };
        let mut lies = own.lies.lock().unwrap();
        lies.clock_offset_ms += i64::try_from(time.as_millis()).unwrap();
        own.server.set_lies(lies.clone());
        own.clock.skip(time, Duration::ZERO);
    }

    fn lease(&self) -> Duration {
        // Where times are whole seconds, no leases shorter than six are allowed.
        Duration::from_secs(if self.own.is_some() { 600 } else { 6 })
    }
}

mod own_server {
    use super::*;

    async fn make() -> Prefix {
        Prefix::on_our_own(Lies::default()).await
    }

    #[tokio::test]
    async fn everybody_counts() {
        make().await.everybody_counts().await;
        let lies = Lies { refuse_quoted_etags: true, ..Lies::default() };
        Prefix::on_our_own(lies).await.everybody_counts().await;
    }

    dfq::conformance_tests!(make);

    mod objects {
        dfq::objects_tests!(super::make);
    }
}

/// Our own once more, taking ETags only without their quotes, as Ceph does.
mod bare_etags {
    use super::*;

    async fn make() -> Prefix {
        Prefix::on_our_own(Lies { refuse_quoted_etags: true, ..Lies::default() }).await
    }

    dfq::objects_tests!(make);
}

/// A server on which no condition can be kept says so, and nothing is written.
#[tokio::test]
async fn a_server_that_refuses_every_etag_cannot_swap() {
    let refuses = Lies { refuse_etags: true, ..Lies::default() };
    let knows_none = Lies { refuse_conditional_put: true, ..Lies::default() };
    for lies in [refuses, knows_none] {
        let prefix = Prefix::on_our_own(Lies::default()).await;
        let (objects, name) = (ObjectsProvider::open(&prefix).await, trial("x"));
        let first = written(objects.swap(&name, None, b"first").await.unwrap());
        prefix.own.as_ref().unwrap().server.set_lies(lies);
        let error = objects.swap(&name, Some(&first), b"second").await.unwrap_err();
        assert_eq!(error.kind(), dfq::ErrorKind::Unsupported, "{error}");
        assert_eq!(objects.load(&name).await.unwrap().unwrap().bytes, b"first");
    }
}

/// Whatever becomes of the answer to a swap, it says what is so.
#[tokio::test]
async fn a_swap_whose_answer_is_lost_is_recognised() {
    const FAULTS: [Fault; 7] = [
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Conflict,
        Fault::ConflictExecuted,
        Fault::PreconditionExecuted,
        Fault::Error,
        Fault::ErrorExecuted,
    ];
    for fault in FAULTS {
        let prefix = Prefix::on_our_own(Lies::default()).await;
        let (objects, name) = (ObjectsProvider::open(&prefix).await, trial("x"));
        let server = &prefix.own.as_ref().unwrap().server;
        let mut version = None;
        for content in [&b"first"[..], b"second", b"third"] {
            let once = AtomicBool::new(false);
            server.on(move |request| {
                let hit = request.is_conditional_put() && !once.swap(true, Ordering::SeqCst);
                hit.then_some(fault)
            });
            let swap = objects.swap(&name, version.as_ref(), content).await.unwrap();
            version = Some(written(swap));
            let there = objects.load(&name).await.unwrap().unwrap();
            assert_eq!(there.bytes, content, "{fault:?}");
            assert_eq!(Some(there.head.version), version, "{fault:?}");
        }
        assert_eq!(server.meter().counts().fault(fault.name()), 3);
    }
}

/// Our own once more, with what is odd about SeaweedFS.
mod odd_server {
    use super::*;

    async fn make() -> Prefix {
        let lies = Lies { whole_seconds: true, keep_folders: true, ..Lies::default() };
        Prefix::on_our_own(lies).await
    }

    #[tokio::test]
    async fn everybody_counts() {
        make().await.everybody_counts().await;
    }

    dfq::conformance_tests!(make);

    mod objects {
        dfq::objects_tests!(super::make);
    }
}

/// A server that we did not write, where one is named.
mod other_server {
    use super::*;

    async fn make() -> Option<Prefix> {
        Some(Prefix::at(std::env::var("DFQ_TEST_S3").ok()?, None))
    }

    #[tokio::test]
    async fn everybody_counts() {
        if let Some(prefix) = make().await {
            prefix.everybody_counts().await;
        }
    }

    dfq::conformance_tests!(make);

    mod objects {
        dfq::objects_tests!(super::make);
    }
}
