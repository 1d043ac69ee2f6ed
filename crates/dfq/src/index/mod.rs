//! An index: records by key, on the same storage as the queues, with no server.
//!
//! Any number of writers put records into an inbox, any number of compilers merge it into 256 sorted shards, and a
//! lookup sees every put that returned, whatever is going on. Every file is text that `awk`, `cut` and DuckDB read.
//!
//! ```text
//! inbox/<sh>/<key>.<ulid>.usv   one record          created, then removed by whoever merged it
//! shards/<sh>.usv               the sorted shard    swapped
//! shards/<sh>.lock              who compacts it     advisory: it saves work, nothing rests on it
//! shards/<sh>.idx               its block index     a hint, pinned to a version of the shard
//! datapackage.json              columns, shards     swapped; only grows
//! manifest.json                 statistics          the last writer wins
//! ```
//!
//! Why it holds, file by file:
//!
//! | step | who wins a race | a crash after it |
//! | --- | --- | --- |
//! | new columns are swapped into `datapackage.json` | one; the others read and add theirs | columns without values |
//! | a record is created in the inbox | each has a name of its own | the put counts |
//! | a compiler lists and reads the inbox, then reads the shard | | nothing happened |
//! | it swaps the merged shard | one; the others give up | what was merged is merged again, to the same rows |
//! | it removes exactly what it merged | names are never used again | the rest is merged again |
//!
//! A reader lists and reads the inbox, *then* reads the shard: what a compiler removed in between is in there. Which of
//! two rows counts depends on the rows alone (`row`): the later `_updated_at`, then the greater `_ulid`. Deletions are rows
//! too, kept for 90 days.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use dfq::index::{CompactOptions, Index, Record};
//! use dfq::OpenOptions;
//!
//! # let dir = std::env::temp_dir().join(format!("dfq-index-doc-{}", std::process::id()));
//! let index = Index::create(&dir, OpenOptions::existing(), "domain").await?;
//! let record = Record::from_json(r#"{"domain": "example.com", "employees": 12}"#, "domain")?;
//! index.put(vec![record]).await.remove(0)?;
//! assert_eq!(index.get("example.com").await?.unwrap().fields["employees"], 12);
//!
//! index.compact(CompactOptions::default()).await?;
//! assert_eq!(index.get("example.com").await?.unwrap().fields["employees"], 12);
//! # std::fs::remove_dir_all(dir).unwrap();
//! # Ok::<(), dfq::Error>(()) }).unwrap();
//! ```

mod blocks;
mod check;
mod columns;
mod compact;
mod find;
mod flaws;
mod get;
mod import;
mod inbox;
mod lock;
mod manifest;
mod merge;
mod proof;
mod put;
mod record;
mod row;
mod scan;
mod schema;
mod seeds;
mod shard;
mod stamps;
mod stats;
mod ulid;
mod usv;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crate::address::Address;
use crate::clock::Env;
use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::provider;
use crate::store::Objects;

pub use check::{CheckOptions, CheckReport, Finding};
pub use compact::{CompactOptions, CompactReport, Progress};
pub use import::{Import, ImportOptions, ImportReport};
pub use record::{Entry, Record};
pub use scan::{Filter, Scan, ScanOptions};
pub use schema::{Column, Kind};
pub use stats::IndexStats;

use columns::find_schema;
use schema::Schema;
use stamps::Stamps;

/// The name of the key's column, if nobody says otherwise.
const KEY: &str = "key";

/// An index. Clones share everything.
///
/// Inside a tokio runtime, calls on a store that blocks are moved to the runtime's blocking threads. Outside one they
/// run on the caller's thread.
#[derive(Clone)]
pub struct Index {
    core: Arc<Core>,
}

/// What all verbs share.
struct Core {
    objects: Arc<dyn Objects>,
    env: Env,
    worker_id: String,
    stamps: Stamps,
    /// The columns as they were last read. They only grow.
    schema: Mutex<Arc<Schema>>,
    /// How rows of an index that another program made end, once that is known.
    row_end: Mutex<Option<usv::RowEnd>>,
    /// The store has been seen to keep the condition of a swap.
    swap_proven: AtomicBool,
}

impl Index {
    /// Opens the index at an address. If the options say so, it is made first, with a key column called `key`.
    pub async fn open<A>(address: A, options: OpenOptions) -> Result<Self>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        let key = options.create.is_some().then_some(KEY);
        Self::at(&address.try_into()?, options, key).await
    }

    /// Opens the index at an address. If there is none, it is made, with this name for the key's column.
    pub async fn create<A>(address: A, options: OpenOptions, key_column: &str) -> Result<Self>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        Self::at(&address.try_into()?, options, Some(key_column)).await
    }

    async fn at(address: &Address, options: OpenOptions, create: Option<&str>) -> Result<Self> {
        let objects = provider::objects(address, &options, create.is_some()).await?;
        Self::over(objects, options.env, options.worker_id, create).await
    }

    /// The index in any [`Objects`], whose calls should be [retried](crate::store::retrying). With `create` it is made
    /// if there is none, with this name for the key's column.
    pub async fn over(
        objects: Arc<dyn Objects>,
        env: Env,
        worker_id: Option<String>,
        create: Option<&str>,
    ) -> Result<Self> {
        let worker_id = worker_id.unwrap_or_else(|| format!("{}-{}", env.host(), env.nonce()));
        let (store, create) = (Arc::clone(&objects), create.map(str::to_owned));
        let schema =
            on(&*objects, &env, async move { find_schema(&*store, create.as_deref()).await });
        let schema = Mutex::new(Arc::new(schema.await?));
        let core = Core {
            objects,
            env,
            worker_id,
            stamps: Stamps::default(),
            schema,
            row_end: Mutex::default(),
            swap_proven: AtomicBool::new(false),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.core.objects.properties().address
    }

    /// The name of the key's column.
    pub fn key_column(&self) -> String {
        self.core.schema().key_column().to_owned()
    }

    /// The columns of fields, as far as they are known here, without the key and those that dfq keeps.
    pub fn columns(&self) -> Vec<Column> {
        self.core.schema().fields().to_vec()
    }

    /// Adds columns of these types. A put adds the columns that it needs, and takes their types from its values; this is
    /// for those who know better, such as that a text is a time.
    pub async fn add_columns(&self, columns: Vec<Column>) -> Result<()> {
        self.run(|core| async move { core.grow(&columns).await.map(drop) }).await
    }

    /// Runs a verb, where it may block.
    async fn run<R, F>(&self, verb: impl FnOnce(Arc<Core>) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        on(&*self.core.objects, &self.core.env, verb(Arc::clone(&self.core))).await
    }
}

/// Runs work on a store where it may block.
async fn on<R: Send + 'static>(
    objects: &dyn Objects,
    env: &Env,
    work: impl Future<Output = R> + Send + 'static,
) -> R {
    if objects.properties().blocking && env.is_running() {
        return env.spawn_blocking(work).result().await;
    }
    work.await
}
