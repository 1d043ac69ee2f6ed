//! Where the race is run: in a folder, or in a bucket on a server of others or of our own. The tree is
//! looked at by other means than the queue's: the system's calls, or a plain S3 client.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dfq::model::Layout;
use dfq::options::S3Options;
use dfq::store::bucket::Bucket;
use dfq::{Env, OpenOptions, Queue, Settings, TreeQueue};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt};

/// What the scripts in `servers/` make, and our own server as well.
pub(crate) const BUCKET: &str = "dfq-test";
pub(crate) const KEYS: (&str, &str) = ("testkey", "testsecret");

/// In a worker's environment, if the queue is in a bucket: the server.
pub(crate) const ENDPOINT: &str = "DFQ_RACE_S3";

/// A round's queue.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// Where the accounts are, and the queue too unless it is in a bucket.
    pub(crate) dir: PathBuf,
    pub(crate) endpoint: Option<String>,
}

/// How long things take where the queue is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) shortest_lease: Duration,
    pub(crate) longest_lease: Duration,
    /// How often the parent looks, at the most.
    pub(crate) tick: Duration,
    /// How long a worker waits for something to do.
    pub(crate) idle: Duration,
    /// One in so many times a worker sleeps through its lease. The fewer batches, the more often.
    pub(crate) oversleep: usize,
}

/// A file of the tree.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// When it was there at the latest, on the machine's calendar, where that can be known.
    pub(crate) named: Option<i128>,
}

impl Site {
    pub(crate) fn pace(&self) -> Pace {
        let (milliseconds, oversleep) = match self.endpoint {
            None => ([200, 500, 12, 20], 64),
            // The shortest that a store with whole seconds allows; processes take longer to start.
            Some(_) => ([6_000, 8_000, 150, 500], 16),
        };
        let [shortest_lease, longest_lease, tick, idle] = milliseconds.map(Duration::from_millis);
        Pace { shortest_lease, longest_lease, tick, idle, oversleep }
    }

    pub(crate) fn in_a_bucket(&self) -> bool {
        self.endpoint.is_some()
    }

    /// The queue's prefix in the bucket, different in each round.
    fn prefix(&self) -> String {
        let name = self.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        format!("race/{}", name.unwrap_or_default())
    }

    /// A handle to the queue, which is made if there are settings for it.
    pub(crate) async fn open(&self, create: Option<Settings>) -> dfq::Result<Arc<dyn Queue>> {
        let options = OpenOptions { create, ..OpenOptions::default() };
        let Some(endpoint) = &self.endpoint else {
            return dfq::open(self.dir.join("queue"), options).await;
        };
        let s3 = S3Options {
            endpoint: Some(endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            credentials: Some((KEYS.0.to_owned(), KEYS.1.to_owned())),
            ..S3Options::default()
        };
        let bucket =
            Bucket::s3(BUCKET, &self.prefix(), s3, Env::system(), options.meter.clone()).await?;
        Ok(Arc::new(TreeQueue::open(bucket, options).await?))
    }

    fn client(endpoint: &str) -> Result<AmazonS3, String> {
        let options = ClientOptions::new().with_allow_http(true).with_no_system_certificates(true);
        let builder = AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_bucket_name(BUCKET)
            .with_region("us-east-1")
            .with_access_key_id(KEYS.0)
            .with_secret_access_key(KEYS.1)
            .with_client_options(options);
        builder.build().map_err(|e| e.to_string())
    }

    /// How many tasks are under `pending/`.
    pub(crate) async fn pending(&self, layout: Layout) -> Result<usize, String> {
        let Some(endpoint) = &self.endpoint else {
            let list = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
            let pending = self.dir.join("queue/pending");
            return Ok(match layout {
                Layout::Flat => list(&pending).count(),
                Layout::Sharded => list(&pending).map(|shard| list(&shard.path()).count()).sum(),
            });
        };
        let client = Self::client(endpoint)?;
        let prefix = object_store::path::Path::from(format!("{}/pending", self.prefix()));
        let listed: Vec<_> =
            client.list(Some(&prefix)).try_collect().await.map_err(|e| e.to_string())?;
        Ok(listed.iter().filter(|found| found.location.filename() == Some("task.json")).count())
    }

    /// Every record in a part of the tree. Only a kernel or a server on this machine notes times that
    /// can be compared with the accounts'.
    pub(crate) async fn records(&self, part: &str, ours: bool) -> Result<Vec<Found>, String> {
        let Some(endpoint) = &self.endpoint else {
            return files(&self.dir.join("queue").join(part));
        };
        let client = &Self::client(endpoint)?;
        let prefix = object_store::path::Path::from(format!("{}/{part}", self.prefix()));
        let read = |found: object_store::ObjectMeta| async move {
            let bytes = client.get(&found.location).await?.bytes().await?.to_vec();
            let named = found.last_modified.timestamp_nanos_opt().map(i128::from);
            let name = found.location.filename().unwrap_or_default().to_owned();
            Ok(Found { name, bytes, named: named.filter(|_| ours) })
        };
        let found = client.list(Some(&prefix)).map_ok(read).try_buffer_unordered(32);
        found.try_collect().await.map_err(|e: object_store::Error| e.to_string())
    }

    /// Takes the round's queue out of a bucket that others go on using.
    pub(crate) async fn remove(&self) {
        let Some(client) = self.endpoint.as_ref().and_then(|at| Self::client(at).ok()) else {
            return;
        };
        let prefix = object_store::path::Path::from(self.prefix());
        let all = client.list(Some(&prefix)).map_ok(|found| found.location).boxed();
        let _: Vec<_> = client.delete_stream(all).collect().await;
    }
}

/// Every file in a folder and those below it.
fn files(dir: &Path) -> Result<Vec<Found>, String> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(found) };
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
            continue;
        }
        let meta = path.metadata().map_err(|e| e.to_string())?;
        let named = i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec());
        found.push(Found {
            name: path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            bytes: std::fs::read(&path).map_err(|e| e.to_string())?,
            named: Some(named),
        });
    }
    Ok(found)
}
