//! The tree as names and contents, over any [`Objects`]: the task seam of memory and of buckets.
//!
//! Invariant: a folder is what its names have in common. There is nothing to open and nothing to make, and a
//! slot is only a name, so nothing is removed here but what has no other use (decision 19). Nothing relies on
//! more than create-if-absent, reads that see what was written, and listings.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use jiff::Timestamp;
use tokio::sync::Notify;

use super::objects::{Got, List, Listing, Objects, Swap};
use super::retrying::Retrying;
use super::rubbish::Rubbish;
use super::{
    Change, Created, Entry, EntryKind, Page, Part, Probe, Properties, REMOVED_WITHIN, Scan,
    Scanned, Stamp, Stored, StoredTask, Tree, Updated,
};
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::model::Generation;

/// Calls under way at a time, for one batch.
const AT_ONCE: usize = 64;

/// How often a content that others write too is read again before it is written.
const ROUNDS: u32 = 12;

/// How a store is best used, besides what its [`Properties`] say.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Two writes closer together than this may carry the same modification time.
    pub time_resolution: Duration,
    /// One call removes many names for the price of one, so what is left of finished tasks is put off and
    /// removed together.
    pub removes_together: bool,
}

/// A queue's storage over names and contents. Clones share it.
pub struct KeyTree<O> {
    shared: Arc<Shared<O>>,
}

struct Shared<O> {
    objects: Arc<Retrying<O>>,
    rubbish: Option<Rubbish<Retrying<O>>>,
    changed: Notify,
    env: Env,
    manner: Manner,
}

impl<O> Clone for KeyTree<O> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<O: Objects> std::fmt::Debug for KeyTree<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyTree({})", self.shared.objects.properties().address)
    }
}

/// The folder's path as names begin with it.
fn folder_of(dir: &str) -> String {
    if dir == "." { String::new() } else { format!("{dir}/") }
}

fn stored(got: Got) -> Stored {
    Stored { bytes: got.bytes, modified: got.head.modified }
}

impl<O: Objects> KeyTree<O> {
    /// The tree in `objects`, whose calls are made again where that may help.
    pub fn over(objects: O, env: Env, manner: Manner) -> Self {
        let objects = Arc::new(Retrying::new(objects, env.clone()));
        let rubbish =
            manner.removes_together.then(|| Rubbish::new(Arc::clone(&objects), env.clone()));
        let changed = Notify::new();
        Self { shared: Arc::new(Shared { objects, rubbish, changed, env, manner }) }
    }

    /// The names and contents below, with calls that are made again where that may help.
    pub fn objects(&self) -> &Arc<Retrying<O>> {
        &self.shared.objects
    }

    /// Until when what is decided on now may be removed.
    fn removal_deadline(&self) -> Duration {
        self.shared.env.monotonic().saturating_add(REMOVED_WITHIN)
    }

    async fn create_all(&self, files: Vec<(String, &[u8])>) -> Vec<Result<Created>> {
        let mut creating = Vec::with_capacity(files.len());
        for (name, bytes) in files {
            creating.push(async move { self.objects().create(&name, bytes).await });
        }
        futures::stream::iter(creating).buffered(AT_ONCE).collect().await
    }

    async fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.objects().head(name).await?.is_some())
    }
}

#[async_trait]
impl<O: Objects> Tree for KeyTree<O> {
    type Slot = String;
    type PreparedLease = Arc<[u8]>;
    type Cursor = Box<dyn Listing>;

    fn properties(&self) -> &Properties {
        self.shared.objects.properties()
    }

    fn time_resolution(&self) -> Duration {
        self.shared.manner.time_resolution
    }

    async fn read(&self, path: &str) -> Result<Option<Stored>> {
        Ok(self.objects().get(path, None).await?.map(stored))
    }

    async fn read_part(&self, path: &str, from: u64, length: usize) -> Result<Option<Part>> {
        let range = from..from.saturating_add(length as u64);
        let got = self.objects().get(path, Some(range)).await?;
        Ok(got.map(|got| Part { bytes: got.bytes, size: got.head.size }))
    }

    async fn create(&self, path: &str, bytes: &[u8]) -> Result<Created> {
        self.objects().create(path, bytes).await
    }

    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.objects().put(path, bytes).await
    }

    async fn update(&self, path: &str, change: &Change<'_>) -> Result<Updated> {
        let name = layout::record_that_a_purge_swaps(path);
        for _ in 0..ROUNDS {
            let Some(got) = self.objects().load(&name).await? else {
                return Ok(Updated::Missing);
            };
            let version = got.head.version.clone();
            let seen = stored(got);
            let Some(bytes) = change(&seen) else { return Ok(Updated::Left(seen)) };
            match self.objects().swap(&name, Some(&version), &bytes).await? {
                Swap::Written(_) => return Ok(Updated::Written(bytes)),
                Swap::Lost => {}
            }
        }
        let address = &self.properties().address;
        let message = format!("'{path}' in {address} does not stay as it is");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    async fn remove_if_unchanged(
        &self,
        path: &str,
        written: &[u8],
        until: Duration,
    ) -> Result<bool> {
        // Each call is made once: what was written tells it from anything that may come to be there, so a
        // removal whose answer was lost is repeated only while it is there.
        let (once, names) = (self.objects().inner(), [path.to_owned()]);
        let (mut patience, mut sent) = (self.objects().patience(), false);
        loop {
            let removing = async {
                if sent && once.get(path, None).await?.is_none_or(|there| there.bytes != written) {
                    return Ok(true);
                }
                if self.shared.env.monotonic() >= until {
                    return Ok(false);
                }
                once.remove(&names, until).await.map(|()| true)
            };
            match removing.await {
                Err(error) if patience.again(&error).await => sent = true,
                answer => return answer,
            }
        }
    }

    async fn remove(&self, path: &str) -> Result<()> {
        self.objects().remove(&[path.to_owned()], self.removal_deadline()).await
    }

    async fn list(
        &self,
        dir: &str,
        from: Option<Self::Cursor>,
        limit: usize,
    ) -> Result<Page<Self::Cursor>> {
        let folder = folder_of(dir);
        let mut listing =
            from.unwrap_or_else(|| self.objects().list(List::folder(folder.as_str())));
        let part = listing.next(limit).await?;
        let below = |name: &str| name.strip_prefix(&folder).map(str::to_owned);
        let folders = part.folders.iter().filter_map(|path| {
            let name = below(path.trim_end_matches('/'))?;
            Some(Entry { name, kind: EntryKind::Folder })
        });
        let files = part.files.iter().filter_map(|file| {
            let name = below(&file.name)?;
            Some(Entry { name, kind: EntryKind::File })
        });
        let entries = folders.chain(files).collect();
        Ok(Page { entries, next: (!part.end).then_some(listing) })
    }

    async fn scan(&self, dir: &str, after: Option<&str>, limit: usize) -> Result<Scan> {
        let prefix = format!("{dir}/");
        let after = after.map(|after| format!("{prefix}{after}"));
        let what = List::Below { prefix: prefix.clone(), after };
        let part = self.objects().list(what).next(limit).await?;
        let files = part.files.into_iter().filter_map(|file| {
            let mut version = DefaultHasher::new();
            file.head.version.hash(&mut version);
            let path = file.name.strip_prefix(&prefix)?.to_owned();
            Some(Scanned { path, modified: file.head.modified, version: version.finish() })
        });
        Ok(Scan { files: files.collect(), end: part.end })
    }

    async fn last_life(
        &self,
        paths: &(dyn for<'a> Fn(Generation) -> [String; 2] + Sync),
    ) -> Result<Option<Generation>> {
        let finished = async |generation: Generation| {
            let [completed, failed] = paths(generation);
            let both = futures::join!(self.exists(&completed), self.exists(&failed));
            Ok::<_, Error>(both.0? || both.1?)
        };
        if !finished(1).await? {
            return Ok(None);
        }
        // Lives have no gaps, so the last one can be searched for.
        let (mut lived, mut beyond) = (1, 2);
        while finished(beyond).await? {
            (lived, beyond) = (beyond, beyond.saturating_mul(2));
        }
        while beyond - lived > 1 {
            let middle = lived + (beyond - lived) / 2;
            if finished(middle).await? { lived = middle } else { beyond = middle }
        }
        Ok(Some(lived))
    }

    async fn now(&self) -> Result<Timestamp> {
        self.objects().now().await
    }

    async fn stamp(&self, _: &str, _: Timestamp) -> Result<Option<Stamp>> {
        Ok(None)
    }

    async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    async fn ring(&self) {
        self.shared.changed.notify_waiters();
        self.shared.changed.notify_one();
    }

    async fn publish(&self, tasks: &[(String, Vec<u8>)], _: bool) -> Vec<Result<Created>> {
        let files = tasks.iter().map(|(dir, bytes)| (layout::task_file(dir), &bytes[..])).collect();
        let answers = self.create_all(files).await;
        self.ring().await;
        answers
    }

    async fn promote(&self, from: &str, to: &str, _: bool) -> Result<Created> {
        let (from, to) = (layout::task_file(from), layout::task_file(to));
        let Some(task) = self.read(&from).await? else { return Ok(Created::Exists) };
        let mut created = self.objects().create(&to, &task.bytes).await?;
        if created == Created::Exists {
            // Every push has a nonce of its own in it: the same bytes are this very task, moved by us
            // though we were not told, or by somebody who was then cut short.
            let there = self.read(&to).await?;
            if there.is_some_and(|there| there.bytes == task.bytes) {
                created = Created::New;
            }
        }
        if created == Created::New {
            self.remove(&from).await?;
        }
        Ok(created)
    }

    async fn open(&self, dir: &str) -> Result<Option<String>> {
        Ok(Some(dir.to_owned()))
    }

    async fn prepare_lease(&self, bytes: &[u8]) -> Result<Arc<[u8]>> {
        Ok(bytes.into())
    }

    async fn create_lease(
        &self,
        slot: &String,
        attempt: u32,
        prepared: &Arc<[u8]>,
    ) -> Result<Created> {
        self.objects().create(&layout::lease_file(slot, attempt), prepared).await
    }

    async fn replace_lease(&self, slot: &String, attempt: u32, bytes: &[u8]) -> Result<()> {
        self.objects().put(&layout::lease_file(slot, attempt), bytes).await
    }

    async fn leases(&self, slot: &String) -> Result<Vec<u32>> {
        let folder = folder_of(slot);
        let (mut listing, mut attempts) =
            (self.objects().list(List::folder(folder.as_str())), Vec::new());
        loop {
            let part = listing.next(1000).await?;
            let names = part.files.iter().filter_map(|file| file.name.strip_prefix(&folder));
            attempts.extend(names.filter_map(layout::parse_lease_name));
            if part.end {
                break;
            }
        }
        attempts.sort_unstable();
        Ok(attempts)
    }

    async fn read_lease(&self, slot: &String, attempt: u32) -> Result<Option<Stored>> {
        self.read(&layout::lease_file(slot, attempt)).await
    }

    async fn read_task(
        &self,
        slot: &String,
        after: Option<u32>,
        records: &[String; 2],
    ) -> Result<StoredTask> {
        let task = layout::task_file(slot);
        let next = async {
            match after {
                Some(attempt) => {
                    self.exists(&layout::lease_file(slot, attempt.saturating_add(1))).await
                }
                None => Ok(false),
            }
        };
        let (task, next, completed, failed) = futures::join!(
            self.read(&task),
            next,
            self.exists(&records[0]),
            self.exists(&records[1]),
        );
        Ok(StoredTask { task: task?, superseded: next?, finished: completed? || failed? })
    }

    async fn probe(&self, slot: &String, attempt: u32) -> Result<Probe> {
        let (task, next) =
            (layout::task_file(slot), layout::lease_file(slot, attempt.saturating_add(1)));
        let (task, next) = futures::join!(self.exists(&task), self.exists(&next));
        Ok(Probe { task: task?, superseded: next? })
    }

    async fn commit(&self, records: &[(String, Vec<u8>)], _: bool) -> Vec<Result<Created>> {
        self.create_all(records.iter().map(|(path, bytes)| (path.clone(), &bytes[..])).collect())
            .await
    }

    async fn clean(&self, slot: &String, finished: bool, leases: &[u32]) -> Result<()> {
        let deadline = self.removal_deadline();
        if finished {
            self.objects().remove(&[layout::task_file(slot)], deadline).await?;
        }
        // Only now: leases without a task are garbage, a task without its leases would be done again.
        let attempts = match leases {
            [] => self.leases(slot).await?,
            known => known.to_vec(),
        };
        let names: Vec<String> =
            attempts.into_iter().map(|attempt| layout::lease_file(slot, attempt)).collect();
        self.objects().remove(&names, deadline).await
    }

    async fn discard(&self, finished: Vec<(&String, Vec<u32>)>) -> Vec<Result<()>> {
        let Some(rubbish) = &self.shared.rubbish else {
            let mut answers = Vec::with_capacity(finished.len());
            for (slot, leases) in finished {
                answers.push(self.clean(slot, true, &leases).await);
            }
            return answers;
        };
        let count = finished.len();
        for (slot, leases) in finished {
            let leases =
                leases.into_iter().map(|attempt| layout::lease_file(slot, attempt)).collect();
            rubbish.add(layout::task_file(slot), leases);
        }
        rubbish.empty_bin_in_time().await;
        vec![Ok(()); count]
    }

    async fn flush(&self) -> Result<()> {
        match &self.shared.rubbish {
            Some(rubbish) => rubbish.empty_bin().await,
            None => Ok(()),
        }
    }
}
