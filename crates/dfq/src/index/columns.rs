//! Where the columns of an index stand, and how they come to stand there.
//!
//! Invariant: columns are there before anything is written that needs them, and nobody loses one: `datapackage.json` is
//! only ever swapped. An index that another program made keeps its own. If nobody has told their names, it is read with
//! names that are made up, and not written.

use std::sync::Arc;

use super::schema::{Column, Schema};
use super::usv::{self, RowEnd};
use super::{Core, Index, on};
use crate::address::Address;
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Shard, ShardFile};
use crate::options::OpenOptions;
use crate::provider;
use crate::store::Objects;
use crate::store::objects::{Got, List, Swap, Version};

/// How often `datapackage.json` is read again when others change it too.
const ROUNDS: usize = 50;

/// How much is looked at of an index whose columns nobody has named: so many files, and so much of each.
const SAMPLES: usize = 16;
const SAMPLE: u64 = 64 << 10;

/// Names in one part of a listing.
const PAGE: usize = 1000;

impl Index {
    /// Nobody has told the names of the columns: it can be read with names that are made up, and not be written to before
    /// [`Index::adopt`].
    pub fn is_unnamed(&self) -> bool {
        !self.core.schema().named
    }

    /// Names the columns of an index that another program made, in the order in which they stand in its rows; the first
    /// is the key. It can be written to from then on, in its own form. An index whose columns are named is refused, and so
    /// are columns that do not fit the rows.
    pub async fn adopt<A>(address: A, options: OpenOptions, columns: Vec<Column>) -> Result<Self>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        let address = address.try_into()?;
        let objects = provider::objects(&address, &options, false).await?;
        let store = Arc::clone(&objects);
        on(&*objects, &options.env, async move { adopt(&*store, columns).await }).await?;
        Self::over(objects, options.env, options.worker_id, None).await
    }
}

async fn adopt(objects: &dyn Objects, columns: Vec<Column>) -> Result<()> {
    let address = &objects.properties().address;
    if load_schema(objects).await?.is_some() {
        return Err(Error::invalid(format!(
            "the columns of the index in {address} are named already, in its 'datapackage.json'"
        )));
    }
    let samples = samples(objects, SAMPLES).await?;
    let rows = samples.iter().flat_map(|sample| sample.rows(columns.len()));
    let Some(widest) = rows.map(usv::width).max() else {
        return Err(Error::not_found(format!(
            "there is no index in {address} whose columns could be named: it has neither shards nor an inbox"
        )));
    };
    if widest != columns.len() {
        return Err(Error::invalid(format!(
            "the rows in {address} have {widest} columns, and {} are named",
            columns.len()
        )));
    }
    let end = samples.iter().find_map(|sample| RowEnd::of(&sample.bytes));
    let schema = Schema::of_theirs(columns, end.unwrap_or(RowEnd::Newline))?;
    match objects.swap(&layout::index_schema(), None, &schema.to_bytes()).await? {
        Swap::Written(_) => Ok(()),
        Swap::Lost => Err(Error::invalid(format!(
            "somebody else has just named the columns of the index in {address}"
        ))),
    }
}

/// The beginning of a file of rows.
struct Sample {
    bytes: Vec<u8>,
    whole: bool,
}

impl Sample {
    /// The rows that are whole.
    fn rows(&self, columns: usize) -> Vec<&[u8]> {
        let mut rows = usv::foreign_rows(&self.bytes, columns);
        if !self.whole && !usv::is_whole(&self.bytes) {
            rows.pop();
        }
        rows
    }
}

/// Some of the rows of an index that nothing is known of.
async fn samples(objects: &dyn Objects, most: usize) -> Result<Vec<Sample>> {
    let mut names: Vec<String> = Vec::new();
    let shards = objects.list(List::below(layout::below(layout::SHARDS, ""))).next(PAGE).await?;
    let is_shard = |name: &str| matches!(layout::parse_shards(name), Some((_, ShardFile::Rows)));
    names.extend(shards.files.into_iter().map(|file| file.name).filter(|name| is_shard(name)));
    let inbox = objects.list(List::below(layout::inbox_of(None))).next(PAGE).await?;
    let in_inbox = |name: &str| layout::parse_inbox(name).or_else(|| layout::parse_flat(name));
    names.extend(inbox.files.into_iter().map(|file| file.name).filter(|it| in_inbox(it).is_some()));
    let [root, _] = layout::flat_inboxes();
    let flat = objects.list(List::folder(root)).next(PAGE).await?;
    let is_flat = |name: &str| layout::parse_flat(name).is_some();
    names.extend(flat.files.into_iter().map(|file| file.name).filter(|name| is_flat(name)));
    let mut samples = Vec::new();
    for name in names {
        if samples.len() >= most {
            break;
        }
        let Some(got) = objects.get(&name, Some(0..SAMPLE)).await? else { continue };
        let whole = got.bytes.len() as u64 >= got.head.size;
        let sample = Sample { bytes: got.bytes, whole };
        if !sample.rows(usize::MAX).is_empty() {
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// The columns of an index; with `create` it is made if there is none.
pub(super) async fn find_schema(objects: &dyn Objects, create: Option<&str>) -> Result<Schema> {
    if let Some((schema, _)) = load_schema(objects).await? {
        return Ok(schema);
    }
    if let Some(schema) = find_unnamed(objects).await? {
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

async fn find_unnamed(objects: &dyn Objects) -> Result<Option<Schema>> {
    let samples = samples(objects, 1).await?;
    let rows = samples.iter().flat_map(|sample| sample.rows(usize::MAX));
    Ok(rows.map(usv::width).max().map(Schema::unnamed))
}

/// The columns, and the version in which they were read; none if the file was not written by a swap.
async fn load_schema(objects: &dyn Objects) -> Result<Option<(Schema, Option<Version>)>> {
    let Some((got, plain)) = load_or_plain(objects, &layout::index_schema()).await? else {
        return Ok(None);
    };
    let version = (!plain).then_some(got.head.version);
    Ok(Some((Schema::parse(&got.bytes)?, version)))
}

/// A content that is swapped. A directory keeps those elsewhere, so what another program made lies under the plain name
/// only; whether it does.
async fn load_or_plain(
    objects: &dyn Objects,
    name: &layout::Swapped,
) -> Result<Option<(Got, bool)>> {
    if let Some(got) = objects.load(name).await? {
        return Ok(Some((got, false)));
    }
    if objects.properties().remote {
        return Ok(None);
    }
    let Some(plain) = objects.get(name.as_str(), None).await? else { return Ok(None) };
    // Somebody may just have swapped it for the first time.
    Ok(Some(match objects.load(name).await? {
        Some(got) => (got, false),
        None => (plain, true),
    }))
}

impl Core {
    /// The columns as they were last read.
    pub(super) fn schema(&self) -> Arc<Schema> {
        Arc::clone(&lock(&self.schema))
    }

    /// Reads the columns again.
    pub(super) async fn reload(&self) -> Result<Arc<Schema>> {
        if let Some((schema, _)) = load_schema(&*self.objects).await? {
            self.know(schema);
        }
        Ok(self.schema())
    }

    /// Keeps the columns that were read, unless more are known already.
    pub(super) fn know(&self, schema: Schema) {
        let mut known = lock(&self.schema);
        if schema.columns.len() >= known.columns.len() || !known.named {
            *known = Arc::new(schema);
        }
    }

    /// Adds columns, for all to see before anything is written that needs them.
    pub(super) async fn grow(&self, columns: &[Column]) -> Result<Arc<Schema>> {
        self.change_schema(|schema| schema.add(columns)).await
    }

    /// Names shards that were written in `datapackage.json`, if it does not name them yet. What fails is left to the next
    /// compaction of the shard: other programs read the file, and nothing here goes by those names.
    pub(super) async fn name_shards(&self, shards: &[Shard]) {
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
            let Some((mut schema, version)) = load_schema(&*self.objects).await? else {
                self.check_named(&self.schema())?;
                let address = &self.objects.properties().address;
                return Err(Error::not_found(format!("there is no index in {address} any more")));
            };
            let changed = change(&mut schema)?;
            if changed && version.is_some() {
                self.prove_swap().await.map_err(|error| error.context("no column can be added"))?;
            }
            let bytes = schema.to_bytes();
            let written = !changed
                || matches!(
                    self.objects.swap(&layout::index_schema(), version.as_ref(), &bytes).await?,
                    Swap::Written(_)
                );
            let written = written || self.overwrites_columns(&bytes).await?;
            if written {
                self.know(schema);
                return Ok(self.schema());
            }
        }
        let address = &self.objects.properties().address;
        let message = format!("'datapackage.json' in {address} does not stay as it is");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// An error if nobody has told the names of the columns.
    pub(super) fn check_named(&self, schema: &Schema) -> Result<()> {
        if schema.named {
            return Ok(());
        }
        let address = &self.objects.properties().address;
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the index in {address} was made by another program, and nothing says how its {} columns are \
                 called; name them in their order, the key first: `dfq index init INDEX --columns domain,name,…`",
                schema.columns.len()
            ),
        ))
    }

    /// How rows end that are written to an index of another program: as in the shards that are there.
    pub(super) async fn their_row_end(&self, schema: &Schema) -> Result<RowEnd> {
        let known = *lock(&self.row_end);
        if let Some(end) = known {
            return Ok(end);
        }
        let sample = samples(&*self.objects, 1).await?;
        let shown = sample.first().and_then(|sample| RowEnd::of(&sample.bytes));
        let end = shown.or_else(|| schema.row_end()).unwrap_or(RowEnd::Newline);
        *lock(&self.row_end) = Some(end);
        Ok(end)
    }
}
