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
mod compact;
mod find;
mod get;
mod inbox;
mod lock;
mod manifest;
mod merge;
mod put;
mod record;
mod row;
mod scan;
mod schema;
mod stamps;
mod stats;
mod ulid;
mod usv;

use std::sync::{Arc, Mutex};

use crate::address::Address;
use crate::clock::{Env, lock};
use crate::error::{Error, Result};
use crate::layout::{self, Shard};
use crate::options::OpenOptions;
use crate::provider;
use crate::store::Objects;
use crate::store::objects::{Swap, Version};

pub use compact::{CompactOptions, CompactReport, Progress};
pub use record::{Entry, Record};
pub use scan::{Filter, Scan, ScanOptions};
pub use schema::{Column, Kind};
pub use stats::IndexStats;

use schema::Schema;
use stamps::Stamps;

/// How often `datapackage.json` is read again when others change it too.
const ROUNDS: usize = 50;

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
        let core = Core { objects, env, worker_id, stamps: Stamps::default(), schema };
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

async fn find_schema(objects: &dyn Objects, create: Option<&str>) -> Result<Schema> {
    if let Some((schema, _)) = load_schema(objects).await? {
        return Ok(schema);
    }
    let address = &objects.properties().address;
    let Some(key) = create else {
        return Err(Error::not_found(format!("there is no index in {address}")));
    };
    let schema = Schema::new(key)?;
    match objects.swap(&layout::index_schema(), None, &schema.to_bytes()).await? {
        Swap::Written(_) => Ok(schema),
        Swap::Lost => match load_schema(objects).await? {
            Some((schema, _)) => Ok(schema),
            None => Err(Error::damaged(format!("'datapackage.json' in {address} cannot be made"))),
        },
    }
}

async fn load_schema(objects: &dyn Objects) -> Result<Option<(Schema, Version)>> {
    let Some(got) = objects.load(&layout::index_schema()).await? else { return Ok(None) };
    Ok(Some((Schema::parse(&got.bytes)?, got.head.version)))
}

impl Core {
    /// The columns as they were last read.
    fn schema(&self) -> Arc<Schema> {
        Arc::clone(&lock(&self.schema))
    }

    /// Reads the columns again.
    async fn reload(&self) -> Result<Arc<Schema>> {
        if let Some((schema, _)) = load_schema(&*self.objects).await? {
            self.know(schema);
        }
        Ok(self.schema())
    }

    /// Keeps the columns that were read, unless more are known already.
    fn know(&self, schema: Schema) {
        let mut known = lock(&self.schema);
        if schema.columns.len() >= known.columns.len() {
            *known = Arc::new(schema);
        }
    }

    /// Adds columns, for all to see before anything is written that needs them.
    async fn grow(&self, columns: &[Column]) -> Result<Arc<Schema>> {
        self.change_schema(|schema| schema.add(columns)).await
    }

    /// Names shards that were written in `datapackage.json`, if it does not name them yet. What fails is left to the next
    /// compaction of the shard: other programs read the file, and nothing here goes by those names.
    async fn name_shards(&self, shards: &[Shard]) {
        if !Schema::clone(&self.schema()).name_shards(shards) {
            return;
        }
        if let Err(error) = self.change_schema(|schema| Ok(schema.name_shards(shards))).await {
            tracing::debug!(%error, "new shards were not named in 'datapackage.json'");
        }
    }

    /// Reads `datapackage.json`, changes it, and swaps it; again if others are faster. `change` answers whether there was
    /// anything to be changed.
    async fn change_schema(
        &self,
        change: impl Fn(&mut Schema) -> Result<bool>,
    ) -> Result<Arc<Schema>> {
        for _ in 0..ROUNDS {
            let there = load_schema(&*self.objects).await?;
            let Some((mut schema, version)) = there else {
                let address = &self.objects.properties().address;
                return Err(Error::not_found(format!("there is no index in {address} any more")));
            };
            let changed = change(&mut schema)?;
            let bytes = schema.to_bytes();
            let written = !changed
                || matches!(
                    self.objects.swap(&layout::index_schema(), Some(&version), &bytes).await?,
                    Swap::Written(_)
                );
            if written {
                self.know(schema);
                return Ok(self.schema());
            }
        }
        let address = &self.objects.properties().address;
        let message = format!("'datapackage.json' in {address} does not stay as it is");
        Err(Error::new(crate::ErrorKind::Unavailable, message))
    }
}
