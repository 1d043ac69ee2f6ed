//! A bucket on a server of our own, or of others, and a desk whose commands can use it.

use dfq_s3_server::{Link, Options, Server};
use tokio::runtime::Runtime;

use super::Desk;

/// A running server with one bucket.
pub(crate) struct TestBucket {
    pub(crate) server: Server,
    /// Ends after the server.
    runtime: Runtime,
}

impl TestBucket {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(Options::default())).unwrap();
        Self { server, runtime }
    }

    /// A line to it, and what is told of the bytes that pass.
    pub(crate) fn link(&self, on_piece: impl Fn(usize) + Send + Sync + 'static) -> Link {
        self.runtime.block_on(Link::start(&self.server.endpoint(), on_piece)).unwrap()
    }

    /// The address of a part of the bucket.
    pub(crate) fn address(&self, prefix: &str) -> String {
        format!("s3://{}/{prefix}", self.server.bucket())
    }

    /// A desk from which the bucket can be reached.
    pub(crate) fn desk(&self) -> Desk {
        Desk::new().with(self.variables())
    }

    /// What a command must know to reach the bucket.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL_S3", self.server.endpoint()),
            ("AWS_ACCESS_KEY_ID", self.server.access_key().to_owned()),
            ("AWS_SECRET_ACCESS_KEY", self.server.secret_key().to_owned()),
        ]
    }
}

/// A part of a bucket on some server, and a desk from which it can be reached.
pub(crate) struct Place {
    pub(crate) desk: Desk,
    base: String,
    /// Ends after the desk.
    _bucket: Option<TestBucket>,
}

impl Place {
    /// On a server of our own.
    pub(crate) fn own() -> Self {
        let bucket = TestBucket::start();
        Self { desk: bucket.desk(), base: bucket.address("q"), _bucket: Some(bucket) }
    }

    /// On the server that `DFQ_TEST_S3` names, if it does.
    pub(crate) fn of_others() -> Option<Self> {
        let endpoint = std::env::var("DFQ_TEST_S3").ok()?;
        let desk = Desk::new().with(vec![
            ("AWS_ENDPOINT_URL_S3", endpoint),
            ("AWS_ACCESS_KEY_ID", "testkey".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "testsecret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]);
        // Others use that bucket, too.
        let own = desk.path("").components().next_back()?.as_os_str().to_str()?.to_owned();
        let base = format!("s3://dfq-test/{}-{}", own.trim_start_matches('.'), std::process::id());
        Some(Self { desk, base, _bucket: None })
    }

    /// All that there are.
    pub(crate) fn each() -> impl Iterator<Item = Self> {
        std::iter::once(Self::own()).chain(Self::of_others())
    }

    /// The address of a part of the bucket that nobody else uses.
    pub(crate) fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }
}
