//! Puts and deletions: records into the inbox.
//!
//! Invariant: a put that returned is durable and is in the inbox under a name that was never used before and will never
//! be used again. Columns that it needs are there before it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;

use super::record::{Record, check_key};
use super::schema::{Column, Manner, Schema};
use super::{Core, Index, row, usv};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Shard};
use crate::planted::{self, Planted};
use crate::store::Created;

/// Requests under way at a time, or threads that wait for a disk.
const AT_ONCE: usize = 64;
const THREADS: usize = 16;

/// The most bytes of one row, and of one file of many.
const LONGEST_ROW: usize = 1 << 20;
const LARGEST_BUNDLE: usize = 4 << 20;

/// A file to be created in the inbox.
struct NewFile {
    name: String,
    bytes: Vec<u8>,
}

impl Index {
    /// Puts records, each into a file of its own, many at a time. Each has an answer of its own, in their order.
    /// A record that was put is seen by every lookup from then on.
    pub async fn put(&self, records: Vec<Record>) -> Vec<Result<()>> {
        let drafted = self.run(move |core| async move { core.draft(&records).await }).await;
        self.create_each(drafted).await
    }

    /// Deletes keys: writes rows that say so. Each has an answer of its own. A key that there is not can be deleted too.
    pub async fn delete(&self, keys: Vec<String>) -> Vec<Result<()>> {
        let drafted = self.run(move |core| async move { core.draft_deletions(&keys).await }).await;
        self.create_each(drafted).await
    }

    /// Puts many records at once, into one file for each shard. Either all of them count that are in a file, or none: the
    /// first error is the answer. Much cheaper than [`Index::put`] for thousands of records.
    pub async fn put_bundle(&self, records: Vec<Record>) -> Result<()> {
        let bundled = self.run(move |core| async move { core.bundle(&records).await }).await?;
        self.create_each(bundled.into_iter().map(Ok).collect()).await.into_iter().collect()
    }

    /// Whether records can be put as they are, each with its answer. Adds the columns that they need, and nothing else. Of
    /// use after [`Index::put_bundle`] has refused some of them.
    pub async fn try_records(&self, records: Vec<Record>) -> Vec<Result<()>> {
        self.run(move |core| async move {
            match core.rows(&records).await {
                Ok(rows) => rows.into_iter().map(|row| row.map(drop)).collect(),
                Err(error) => records.iter().map(|_| Err(error.clone())).collect(),
            }
        })
        .await
    }

    /// Creates files, many at a time.
    async fn create_each(&self, files: Vec<Result<NewFile>>) -> Vec<Result<()>> {
        let blocking = self.core.objects.properties().blocking && self.core.env.is_running();
        if !blocking {
            let create = |file| self.core.create(file);
            let created = futures::stream::iter(files).map(|file| async { create(file?).await });
            return created.buffered(AT_ONCE).collect().await;
        }
        // Each thread waits for the disk, so several are worth having.
        let share = files.len().div_ceil(THREADS).max(1);
        let mut shares = Vec::new();
        let mut files = files.into_iter().peekable();
        while files.peek().is_some() {
            shares.push(files.by_ref().take(share).collect::<Vec<_>>());
        }
        let threads = shares.into_iter().map(|share| {
            let core = Arc::clone(&self.core);
            self.core.env.spawn_blocking(async move {
                let mut answers = Vec::with_capacity(share.len());
                for file in share {
                    answers.push(match file {
                        Ok(file) => core.create(file).await,
                        Err(error) => Err(error),
                    });
                }
                answers
            })
        });
        let mut answers = Vec::new();
        for thread in threads.collect::<Vec<_>>() {
            answers.extend(thread.result().await);
        }
        answers
    }
}

impl Core {
    /// Whether it exists already does not matter: nobody else makes that name, so it is our own doing.
    async fn create(&self, file: NewFile) -> Result<()> {
        let NewFile { name, bytes } = file;
        if planted::is(Planted::InboxNameReused) {
            return self.objects.put(&super::flaws::one_name(&name), &bytes).await;
        }
        match self.objects.create(&name, &bytes).await? {
            Created::New | Created::Exists => self.publishes_columns().await,
        }
    }

    /// The columns, with those that these records need. Records that cannot be stored are left to their own answers.
    async fn columns_for(&self, records: &[Record]) -> Result<Arc<Schema>> {
        let mut schema = self.schema();
        self.check_named(&schema)?;
        for _ in 0..2 {
            let mut lacks: Vec<Column> = Vec::new();
            for record in records {
                for column in schema.lacks(&record.fields).unwrap_or_default() {
                    match lacks.iter_mut().find(|known| known.name == column.name) {
                        // A text does not make a text of a number: that record gets its own answer.
                        Some(known) if column.kind == super::Kind::Float => {
                            if known.kind == super::Kind::Integer {
                                known.kind = column.kind;
                            }
                        }
                        Some(_) => {}
                        None => lacks.push(column),
                    }
                }
            }
            if lacks.is_empty() {
                return Ok(schema);
            }
            if planted::is(Planted::ColumnsAddedLate) {
                return self.columns_here(&lacks);
            }
            // Once more if the first values of two records disagree: one of them gets its own answer then.
            schema = self.grow(&lacks).await?;
        }
        Ok(schema)
    }

    /// The rows of records, each with its answer.
    pub(super) async fn rows(&self, records: &[Record]) -> Result<Vec<Result<(String, Vec<u8>)>>> {
        let schema = self.columns_for(records).await?;
        self.hold_columns().await?;
        let now = self.stamps.now(&*self.objects, &self.env).await?;
        let row = |record: &Record| -> Result<(String, Vec<u8>)> {
            if !schema.fits(record)? {
                return Err(Error::invalid("its fields do not fit those of other records"));
            }
            let stamp = self.stamps.next(now, record.updated_at, &self.env)?;
            let mut row = match schema.manner {
                Manner::Ours => row::begin(&record.key, &stamp, false),
                Manner::Theirs(_) => record.key.as_bytes().to_vec(),
            };
            match schema.time_field(&record.fields) {
                None => schema.write_fields(&mut row, &record.fields),
                // Without a time it would count after every row that has one.
                Some(name) => {
                    let mut fields = record.fields.clone();
                    fields.insert(name.to_owned(), stamp.updated_at.as_str().into());
                    schema.write_fields(&mut row, &fields);
                }
            }
            match schema.manner {
                Manner::Ours => row::trim(&mut row),
                // Its readers may count on every column.
                Manner::Theirs(_) => row::pad(&mut row, schema.columns.len()),
            }
            if row.len() >= LONGEST_ROW {
                return Err(Error::invalid(format!(
                    "the record takes {} bytes, and the limit is {LONGEST_ROW}",
                    row.len()
                )));
            }
            row.push(usv::END);
            Ok((stamp.ulid.to_string(), row))
        };
        let with_key = |record: &Record| row(record).map_err(|error| error.context(&record.key));
        Ok(records.iter().map(with_key).collect())
    }

    async fn draft(&self, records: &[Record]) -> Vec<Result<NewFile>> {
        let rows = match self.rows(records).await {
            Ok(rows) => rows,
            Err(error) => return records.iter().map(|_| Err(error.clone())).collect(),
        };
        let file = |(record, row): (&Record, Result<(String, Vec<u8>)>)| {
            let (ulid, bytes) = row?;
            Ok(NewFile { name: layout::inbox_file(&record.key, &ulid), bytes })
        };
        records.iter().zip(rows).map(file).collect()
    }

    async fn draft_deletions(&self, keys: &[String]) -> Vec<Result<NewFile>> {
        let now = match self.deletions_begin().await {
            Ok(now) => now,
            Err(error) => return keys.iter().map(|_| Err(error.clone())).collect(),
        };
        let file = |key: &String| {
            check_key(key)?;
            let stamp = self.stamps.next(now, None, &self.env)?;
            let mut bytes = row::begin(key, &stamp, true);
            bytes.push(usv::END);
            Ok(NewFile { name: layout::inbox_file(key, &stamp.ulid.to_string()), bytes })
        };
        keys.iter().map(file).collect()
    }

    async fn deletions_begin(&self) -> Result<jiff::Timestamp> {
        if self.schema().manner != Manner::Ours {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "nothing can be deleted in {}: the index has no column '{}', because dfq did not \
                     make it, and a row that is left out would come back",
                    self.objects.properties().address,
                    Schema::deleted_column()
                ),
            ));
        }
        self.hold_columns().await?;
        self.stamps.now(&*self.objects, &self.env).await
    }

    /// One file for each shard, or more where one would be too large. Of two records of a key the later one counts.
    async fn bundle(&self, records: &[Record]) -> Result<Vec<NewFile>> {
        let schema = self.columns_for(records).await?;
        let mut shards: BTreeMap<Shard, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
        for (record, row) in records.iter().zip(self.rows(records).await?) {
            let (_, row) = row?;
            let shard = shards.entry(Shard::of_key(&record.key)).or_default();
            let bare = |row: &[u8]| row[..row.len() - 1].to_vec();
            let keeps = shard
                .get(&record.key)
                .is_some_and(|there| schema.compare(&bare(there), &bare(&row)).is_gt());
            if !keeps {
                shard.insert(record.key.clone(), row);
            }
        }
        let mut files = Vec::new();
        for (shard, rows) in shards {
            let mut bytes = Vec::new();
            for row in rows.into_values() {
                if bytes.len() + row.len() > LARGEST_BUNDLE {
                    files.push(self.bundle_of(shard, std::mem::take(&mut bytes)).await?);
                }
                bytes.extend(row);
            }
            files.push(self.bundle_of(shard, bytes).await?);
        }
        Ok(files)
    }

    async fn bundle_of(&self, shard: Shard, bytes: Vec<u8>) -> Result<NewFile> {
        let now = self.stamps.now(&*self.objects, &self.env).await?;
        let stamp = self.stamps.next(now, None, &self.env)?;
        Ok(NewFile { name: layout::bundle_file(shard, &stamp.ulid.to_string()), bytes })
    }
}
