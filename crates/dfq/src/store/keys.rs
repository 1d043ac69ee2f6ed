//! The tree as names and contents, over any [`Objects`]: the task seam of memory and of buckets.
//!
//! Invariant: a folder is what its names have in common. There is nothing to open and nothing to make, and a
//! task's folder is only a name, so nothing is removed here but what has no other use (decision 19). Nothing relies on
//! more than create-if-absent, reads that see what was written, and listings.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use jiff::Timestamp;
use tokio::sync::Notify;

use super::objects::{Got, Head, List, Listing, Objects, ObjectsExt as _, Swap, Version};
use super::retrying::Retrying;
use super::rubbish::Rubbish;
use super::tree::clean_each;
use super::{
    Created, Entry, EntryKind, Folders, Page, Probe, Properties, Stamp, Stored, StoredTask, Tree,
    removed_until,
};
use crate::clock::Env;
use crate::error::Result;
use crate::layout::{self, Swapped};
use crate::planted::{self, Planted};

/// Calls under way at a time, for one batch.
const AT_ONCE: usize = 64;

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
        removed_until(self.shared.env.monotonic())
    }

    async fn create_each(&self, files: Vec<(String, &[u8])>) -> Vec<Result<Created>> {
        let mut creating = Vec::with_capacity(files.len());
        for (name, bytes) in files {
            creating.push(async move { self.objects().create(&name, bytes).await });
        }
        futures::stream::iter(creating).buffered(AT_ONCE).collect().await
    }
}

/// The names and contents below, as they are.
#[async_trait]
impl<O: Objects> Objects for KeyTree<O> {
    fn properties(&self) -> &Properties {
        self.objects().properties()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.objects().now().await
    }

    fn told_time(&self) -> Option<(Timestamp, Duration)> {
        self.objects().told_time()
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        self.objects().get(name, range).await
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        self.objects().head(name).await
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        self.objects().create(name, bytes).await
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.objects().put(name, bytes).await
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        self.objects().remove(names, until).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        self.objects().rename(from, to).await
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        self.objects().list(what)
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        self.objects().load(name).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        self.objects().load_part(name, range).await
    }

    async fn make_durable(&self, name: &Swapped) -> Result<()> {
        self.objects().make_durable(name).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        self.objects().swap(name, expected, bytes).await
    }
}

#[async_trait]
impl<O: Objects> Folders for KeyTree<O> {
    type Cursor = Box<dyn Listing>;

    fn time_resolution(&self) -> Duration {
        self.shared.manner.time_resolution
    }

    async fn exists(&self, path: &str) -> Result<bool> {
        Ok(self.objects().head(path).await?.is_some())
    }

    async fn create_all(&self, files: &[(String, Vec<u8>)], _: bool) -> Vec<Result<Created>> {
        self.create_each(files.iter().map(|(path, bytes)| (path.clone(), &bytes[..])).collect())
            .await
    }

    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.objects().put(path, bytes).await
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
                let looks = sent && !planted::is(Planted::MarkRemovedBlindly);
                if looks && once.get(path, None).await?.is_none_or(|there| there.bytes != written) {
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

    async fn remove_file(&self, path: &str) -> Result<()> {
        self.objects().remove(&[path.to_owned()], self.removal_deadline()).await
    }

    async fn list_folder(
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
}

#[async_trait]
impl<O: Objects> Tree for KeyTree<O> {
    type TaskDir = String;
    type PreparedLease = Arc<[u8]>;

    async fn publish(&self, tasks: &[(String, Vec<u8>)], _: bool) -> Vec<Result<Created>> {
        let files = tasks.iter().map(|(dir, bytes)| (layout::task_file(dir), &bytes[..])).collect();
        let answers = self.create_each(files).await;
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
            self.remove_file(&from).await?;
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
        dir: &String,
        attempt: u32,
        prepared: &Arc<[u8]>,
    ) -> Result<Created> {
        let name = layout::lease_file(dir, attempt);
        if planted::is(Planted::CreateReplaces) {
            return self.objects().put(&name, prepared).await.map(|()| Created::New);
        }
        self.objects().create(&name, prepared).await
    }

    async fn replace_lease(&self, dir: &String, attempt: u32, bytes: &[u8]) -> Result<()> {
        let name = layout::lease_file(dir, attempt);
        if planted::is(Planted::ReplaceRemovesFirst) {
            self.remove_file(&name).await?;
        }
        self.objects().put(&name, bytes).await
    }

    async fn leases(&self, dir: &String) -> Result<Vec<u32>> {
        let folder = folder_of(dir);
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

    async fn read_lease(&self, dir: &String, attempt: u32) -> Result<Option<Stored>> {
        self.read(&layout::lease_file(dir, attempt)).await
    }

    async fn read_task(
        &self,
        dir: &String,
        after: Option<u32>,
        records: &[String; 2],
    ) -> Result<StoredTask> {
        let task = layout::task_file(dir);
        let next = async {
            match after {
                Some(attempt) => {
                    self.exists(&layout::lease_file(dir, attempt.saturating_add(1))).await
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

    async fn probe(&self, dir: &String, attempt: u32) -> Result<Probe> {
        let (task, next) =
            (layout::task_file(dir), layout::lease_file(dir, attempt.saturating_add(1)));
        let (task, next) = futures::join!(self.exists(&task), self.exists(&next));
        Ok(Probe { task: task?, superseded: next? })
    }

    async fn clean(&self, dir: &String, finished: bool, leases: &[u32]) -> Result<()> {
        let deadline = self.removal_deadline();
        if planted::is(Planted::LeasesBeforeTask) {
            let leases = self.leases(dir).await?.into_iter().map(|it| layout::lease_file(dir, it));
            self.objects().remove(&leases.collect::<Vec<_>>(), deadline).await?;
        }
        if finished {
            self.objects().remove(&[layout::task_file(dir)], deadline).await?;
        }
        // Only now: leases without a task are garbage, a task without its leases would be done again.
        let attempts = match leases {
            [] => self.leases(dir).await?,
            known => known.to_vec(),
        };
        let names: Vec<String> =
            attempts.into_iter().map(|attempt| layout::lease_file(dir, attempt)).collect();
        self.objects().remove(&names, deadline).await
    }

    async fn discard(&self, finished: Vec<(&String, Vec<u32>)>) -> Vec<Result<()>> {
        let Some(rubbish) = &self.shared.rubbish else {
            return clean_each(self, finished).await;
        };
        let count = finished.len();
        for (dir, leases) in finished {
            let leases =
                leases.into_iter().map(|attempt| layout::lease_file(dir, attempt)).collect();
            rubbish.add(layout::task_file(dir), leases);
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
