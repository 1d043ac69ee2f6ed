//! Which shards are compacted, and by how many at once.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Mutex;

use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::clock::lock;

/// How many unreadable files are told of.
const MOST_TOLD: usize = 100;

/// Told after each shard: how many are done, and how many there are.
pub type Progress = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// What is to be compacted, and how.
#[derive(Clone)]
pub struct CompactOptions {
    /// Everything that is in the inbox. Otherwise only what a random page of it shows: one shard, or, if the page is the
    /// whole inbox, all.
    pub all: bool,
    /// Shards compacted at a time.
    pub workers: usize,
    /// The most shards.
    pub max_shards: Option<usize>,
    /// Take the lock of each shard. Without, compilers do the same work and lose; the result is the same. For tests.
    pub lock: bool,
    /// Told after each shard.
    pub progress: Option<Progress>,
    /// Once cancelled, no further shard is begun.
    pub stop: CancellationToken,
}

impl Default for CompactOptions {
    fn default() -> Self {
        let stop = CancellationToken::new();
        Self { all: false, workers: 4, max_shards: None, lock: true, progress: None, stop }
    }
}

impl fmt::Debug for CompactOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactOptions")
            .field("all", &self.all)
            .field("workers", &self.workers)
            .field("max_shards", &self.max_shards)
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactReport {
    /// Shards that were merged.
    pub shards: usize,
    /// Files that were merged, and rows in them.
    pub files: u64,
    /// Rows in those files, including those that do not count.
    pub rows: u64,
    /// Bytes of shards that were written.
    pub bytes_written: u64,
    /// Shards that another compiler had locked.
    pub locked: usize,
    /// Shards that another compiler changed meanwhile.
    pub lost: usize,
    /// Files that were put too long ago to be merged. They lie under `aside/`.
    pub set_aside: u64,
    /// Some of the files that cannot be read, each with the reason. They are left where they are.
    pub unreadable: Vec<String>,
    /// Shards that could not be compacted, each with the reason.
    pub failed: Vec<String>,
}

/// A shard to be compacted.
struct Job {
    shard: Shard,
    /// What its inbox has, if that was listed.
    listed: Option<Vec<InboxFile>>,
    /// What lies beside its inbox, put by another program.
    flat: Vec<InboxFile>,
}

/// A page of the inbox.
enum Page {
    /// All there is.
    Whole(Vec<InboxFile>),
    /// Some.
    Part(Vec<InboxFile>),
}

impl Index {
    /// Merges what is in the inbox into the shards. Any number of compilers may be at it at once. A shard that cannot be
    /// compacted does not keep the others from it, but if none can, that is the error.
    pub async fn compact(&self, options: CompactOptions) -> Result<CompactReport> {
        let at = options.all;
        let jobs = self.run(move |core| async move { core.jobs(at).await }).await?;
        if !jobs.is_empty() {
            // Before several ask at once.
            self.run(|core| async move { core.prove_swap().await.map_err(not_here) }).await?;
        }
        let most = options.max_shards.unwrap_or(usize::MAX);
        let jobs: VecDeque<Job> = jobs.into_iter().take(most).collect();
        let work = Arc::new(Work {
            total: jobs.len(),
            jobs: Mutex::new(jobs),
            tally: Mutex::default(),
            options,
        });
        let workers = work.options.workers.clamp(1, 64);
        join_all((0..workers).map(|_| {
            let work = Arc::clone(&work);
            self.run(|core| async move { core.work_off(&work).await })
        }))
        .await;
        let mut tally = std::mem::take(&mut *lock(&work.tally));
        let counts = std::mem::take(&mut tally.counts);
        self.run(|core| async move { core.note_counts(counts).await }).await;
        match tally.errors.into_iter().next() {
            Some(error) if tally.report.shards == 0 => Err(error),
            _ => Ok(tally.report),
        }
    }
}

/// What the workers of one compaction share.
struct Work {
    jobs: Mutex<VecDeque<Job>>,
    total: usize,
    tally: Mutex<Tally>,
    options: CompactOptions,
}

#[derive(Default)]
struct Tally {
    report: CompactReport,
    counts: BTreeMap<Shard, ShardCounts>,
    errors: Vec<Error>,
    done: usize,
}

impl Core {
    async fn jobs(&self, all: bool) -> Result<Vec<Job>> {
        let mut flat = self.flat_seeds().await?;
        let mut job = |shard, listed| {
            let flat = flat.remove(&shard).unwrap_or_default();
            Job { shard, listed, flat }
        };
        let mut jobs: Vec<Job> = match self.random_page().await? {
            Page::Whole(files) => {
                let mut shards: BTreeMap<Shard, Vec<InboxFile>> = BTreeMap::new();
                for file in files {
                    shards.entry(file.shard).or_default().push(file);
                }
                let listed: Vec<Job> =
                    shards.into_iter().map(|(shard, files)| job(shard, Some(files))).collect();
                let rest = flat.into_iter().map(|(shard, flat)| Job { shard, listed: None, flat });
                listed.into_iter().chain(rest).collect()
            }
            Page::Part(_) if all => layout::all_shards().map(|shard| job(shard, None)).collect(),
            Page::Part(files) => vec![job(files[self.env.below(files.len())].shard, None)],
        };
        self.env.shuffle(&mut jobs);
        Ok(jobs)
    }

    /// A page of the inbox from a random shard on.
    async fn random_page(&self) -> Result<Page> {
        let start = Shard::numbered(self.env.next_u64().to_le_bytes()[0]);
        let prefix = layout::inbox_of(None);
        let after = layout::before_inbox_of(start);
        let some = self.page(List::Below { prefix: prefix.clone(), after: after.clone() }).await?;
        let (mut files, end) = some;
        if !end {
            return Ok(Page::Part(files));
        }
        // It ends here, so the rest lies before.
        if let Some(after) = after {
            let (before, end) = self.page(List::below(prefix)).await?;
            let whole = end || before.iter().any(|file| file.path > after);
            files.extend(before.into_iter().filter(|file| file.path <= after));
            if !whole {
                return Ok(Page::Part(files));
            }
        }
        Ok(Page::Whole(files))
    }

    /// The first files of a listing, and whether there are no others.
    async fn page(&self, what: List) -> Result<(Vec<InboxFile>, bool)> {
        let mut listing = self.objects.list(what);
        loop {
            let part = listing.next(PAGE).await?;
            let files: Vec<InboxFile> = part.files.into_iter().filter_map(InboxFile::new).collect();
            if part.end || !files.is_empty() {
                return Ok((files, part.end));
            }
        }
    }

    async fn work_off(&self, work: &Work) {
        while !work.options.stop.is_cancelled() {
            let Some(Job { shard, listed, flat }) = lock(&work.jobs).pop_front() else { return };
            let outcome = self.compact_shard(shard, listed, flat, work.options.lock).await;
            let mut tally = lock(&work.tally);
            tally.add(shard, outcome);
            let done = tally.done;
            drop(tally);
            if let Some(progress) = &work.options.progress {
                progress(done, work.total);
            }
        }
    }
}

impl Tally {
    fn add(&mut self, shard: Shard, outcome: Result<Outcome>) {
        self.done += 1;
        let report = &mut self.report;
        match outcome {
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::Locked) => report.locked += 1,
            Ok(Outcome::Lost) => report.lost += 1,
            Ok(Outcome::Done(done)) => {
                report.shards += usize::from(done.files > 0);
                report.files += done.files;
                report.rows += done.rows;
                report.bytes_written += done.bytes_written;
                report.set_aside += done.set_aside;
                let room = MOST_TOLD.saturating_sub(report.unreadable.len());
                report.unreadable.extend(done.unreadable.into_iter().take(room));
                self.counts.extend(done.counts.map(|counts| (shard, counts)));
            }
            Err(error) => {
                report.failed.push(error.to_string());
                self.errors.push(error);
            }
        }
    }
}
