//! Import: many records straight into the shards, without the inbox.
//!
//! Invariant: what was swapped into a shard counts, and nothing else was written. So an import that is interrupted, or run
//! again, does no harm: its rows are merged as a compiler would merge them, by their stamps. Compilers and puts may be at
//! work meanwhile; a swap that is lost to one of them is made again from what is there then.
//!
//! Rows wait in one file for each shard, in a folder of their own outside the index, which is removed at the end however
//! that comes. In memory are a small buffer for each shard, and at the end one shard at a time for each worker.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;

use super::compact::{Done, Progress};
use super::lock::Lock;
use super::manifest::ShardCounts;
use super::merge::Rows;
use super::record::Record;
use super::schema::Schema;
use super::{Core, Index};
use crate::clock::{Env, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Shard;

mod spill;

use spill::Spill;

/// Shards written at a time.
const WORKERS: usize = 4;

/// How often a shard is read and merged again that others change too.
const ROUNDS: usize = 100;

/// How long to wait between two looks at a shard that a compiler has locked, and how often to look.
const PAUSE: Duration = Duration::from_secs(1);
const LOOKS: usize = 30;

/// How to import.
#[derive(Clone, Default)]
pub struct ImportOptions {
    /// The folder in which rows wait until they are sorted. By default the system's folder for temporary files. It needs
    /// about as much room as the records take.
    pub scratch: Option<PathBuf>,
    /// Told after each shard, at the end.
    pub progress: Option<Progress>,
}

impl fmt::Debug for ImportOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportOptions").field("scratch", &self.scratch).finish_non_exhaustive()
    }
}

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Records that were given.
    pub records: u64,
    /// Shards that were written.
    pub shards: usize,
    /// Bytes of these.
    pub bytes_written: u64,
}

/// An import that is under way; see [`Index::import`]. Nothing is in the index before [`Import::finish`]. One that is
/// dropped has done nothing.
pub struct Import {
    index: Index,
    options: ImportOptions,
    /// None only while it is elsewhere.
    spill: Option<Spill>,
    records: u64,
}

impl Index {
    /// Begins to import: takes any number of records and writes them straight into the shards. Much cheaper than puts for
    /// many records, but none of them can be found before it is finished.
    pub async fn import(&self, options: ImportOptions) -> Result<Import> {
        self.core.check_named(&self.core.schema())?;
        let parent = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let nonce = self.core.env.nonce();
        let spill = blocking(&self.core.env, move || Spill::create(&parent, &nonce)).await?;
        Ok(Import { index: self.clone(), options, spill: Some(spill), records: 0 })
    }
}

impl Import {
    /// Takes records: all of them, or after an error none. Of two records of a key the later one counts.
    pub async fn add(&mut self, records: Vec<Record>) -> Result<()> {
        let Some(mut spill) = self.spill.take() else { return Err(broken()) };
        let given = records.len() as u64;
        let keyed = self.index.run(|core| async move {
            let rows = core.rows(&records).await?;
            let keyed = records.iter().zip(rows).map(|(record, row)| {
                let (_, row) = row?;
                Ok((Shard::of_key(&record.key), row))
            });
            keyed.collect::<Result<Vec<(Shard, Vec<u8>)>>>()
        });
        let rows = match keyed.await {
            Ok(rows) => rows,
            Err(error) => {
                self.spill = Some(spill);
                return Err(error);
            }
        };
        // If this fails the files are of no use any more: part of the rows may be in them.
        let env = self.index.core.env.clone();
        let written = blocking(&env, move || {
            for (shard, row) in &rows {
                spill.add(*shard, row)?;
            }
            Ok(spill)
        });
        self.spill = Some(written.await?);
        self.records += given;
        Ok(())
    }

    /// Writes the shards. After an error some of them may have been written; to import everything again does no harm.
    pub async fn finish(mut self) -> Result<ImportReport> {
        let Some(mut spill) = self.spill.take() else { return Err(broken()) };
        let env = self.index.core.env.clone();
        let spill = Arc::new(blocking(&env, move || spill.flush().map(|()| spill)).await?);
        let jobs: VecDeque<Job> = spill.shards().map(|shard| Job { shard, looks: 0 }).collect();
        let work = Arc::new(Work {
            total: jobs.len(),
            jobs: Mutex::new(jobs),
            tally: Mutex::default(),
            progress: self.options.progress.clone(),
            spill: Arc::clone(&spill),
        });
        join_all((0..WORKERS).map(|_| {
            let work = Arc::clone(&work);
            self.index.run(|core| async move { core.import_shards(&work).await })
        }))
        .await;
        let mut tally = std::mem::take(&mut *lock(&work.tally));
        let counts = std::mem::take(&mut tally.counts);
        self.index.run(|core| async move { core.note_counts(counts).await }).await;
        drop(work);
        blocking(&env, move || {
            drop(spill);
            Ok(())
        })
        .await?;
        match tally.error {
            Some(error) => Err(error),
            None => Ok(ImportReport { records: self.records, ..tally.report }),
        }
    }
}

fn broken() -> Error {
    Error::invalid("an earlier part of this import failed; begin it again")
}

/// Runs what blocks, where it may.
async fn blocking<R: Send + 'static>(
    env: &Env,
    work: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<R> {
    match env.is_running() {
        true => env.spawn_blocking(async move { work() }).result().await,
        false => work(),
    }
}

struct Job {
    shard: Shard,
    /// How often it was found locked.
    looks: usize,
}

/// What the workers of one import share.
struct Work {
    jobs: Mutex<VecDeque<Job>>,
    total: usize,
    tally: Mutex<Tally>,
    progress: Option<Progress>,
    spill: Arc<Spill>,
}

#[derive(Default)]
struct Tally {
    report: ImportReport,
    counts: BTreeMap<Shard, ShardCounts>,
    error: Option<Error>,
    done: usize,
}

impl Core {
    async fn import_shards(&self, work: &Work) {
        loop {
            if lock(&work.tally).error.is_some() {
                return;
            }
            let Some(job) = lock(&work.jobs).pop_front() else { return };
            // Only where something runs in the background can one wait.
            let waits = job.looks < if self.env.is_running() { LOOKS } else { 1 };
            if job.looks > 0 && waits {
                self.env.clock().sleep(PAUSE).await;
            }
            // The lock saves a compiler's work, and nothing rests on it: in the end it is not waited for.
            let imported = self.import_shard(job.shard, &work.spill, waits).await;
            let done = match imported {
                Ok(None) => {
                    lock(&work.jobs).push_back(Job { looks: job.looks + 1, ..job });
                    continue;
                }
                Ok(Some(done)) => done,
                Err(error) => {
                    lock(&work.tally).error.get_or_insert(error);
                    return;
                }
            };
            let mut tally = lock(&work.tally);
            tally.done += 1;
            tally.report.shards += usize::from(done.bytes_written > 0);
            tally.report.bytes_written += done.bytes_written;
            tally.counts.extend(done.counts.map(|counts| (job.shard, counts)));
            let so_far = tally.done;
            drop(tally);
            if let Some(progress) = &work.progress {
                progress(so_far, work.total);
            }
        }
    }

    /// Merges the rows of one shard into it; `None` if somebody else has it.
    async fn import_shard(
        &self,
        shard: Shard,
        spill: &Spill,
        locked: bool,
    ) -> Result<Option<Done>> {
        let mut held = match locked {
            false => None,
            true => match self.lock(shard).await? {
                None => return Ok(None),
                lock => lock,
            },
        };
        let mut imported = Err(Error::new(
            ErrorKind::Unavailable,
            format!("shard {} does not stay as it is", shard.name()),
        ));
        for _ in 0..ROUNDS {
            match self.import_round(shard, &mut held, spill).await {
                Ok(None) => {}
                Ok(Some(done)) => {
                    imported = Ok(Some(done));
                    break;
                }
                Err(error) => {
                    imported = Err(error);
                    break;
                }
            }
        }
        if let Some(held) = held {
            self.release(held).await;
        }
        imported
    }

    /// Reads, merges and swaps once; `None` if others were faster.
    async fn import_round(
        &self,
        shard: Shard,
        held: &mut Option<Lock>,
        spill: &Spill,
    ) -> Result<Option<Done>> {
        self.keep(held).await;
        let schema = self.schema(); // has all columns of these rows
        let rows = rows_of(spill, shard, &schema)?;
        let Some(ready) = self.read_and_merge(shard, held, &schema, rows, None).await? else {
            return Ok(None);
        };
        let mut done = Done::default();
        Ok(self.write_shard(shard, ready, &mut done).await?.then_some(done))
    }
}

/// The rows that wait for a shard, each key once.
fn rows_of(spill: &Spill, shard: Shard, schema: &Schema) -> Result<Rows> {
    let mut rows = Rows::default();
    spill.read(shard, |row| rows.add(schema, row))?;
    Ok(rows)
}
