//! The tree as keys and objects. A folder is what its keys have in common; there is nothing to open
//! and nothing to make.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use jiff::Timestamp;

use super::Bucket;
use crate::error::Result;
use crate::layout;
use crate::model::Generation;
use crate::store::{
    Change, Created, Entry, EntryKind, Look, Page, Probe, Properties, Scan, Stamp, Stored, Tree,
    Updated,
};

/// Requests under way at a time, for one batch.
const AT_ONCE: usize = 64;

fn task_key(dir: &str) -> String {
    layout::task_file(dir)
}

fn lease_key(dir: &str, attempt: u32) -> String {
    layout::lease_file(dir, attempt)
}

impl Bucket {
    async fn create_all(&self, files: Vec<(String, &[u8])>) -> Vec<Result<Created>> {
        let mut creating = Vec::with_capacity(files.len());
        for (path, bytes) in files {
            creating.push(async move { self.client.create(&path, bytes).await });
        }
        futures::stream::iter(creating).buffered(AT_ONCE).collect().await
    }
}

#[async_trait]
impl Tree for Bucket {
    type Slot = String;
    type Draft = Arc<[u8]>;
    type Cursor = String;

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn time_resolution(&self) -> Duration {
        // What a request tells of an object's time is an HTTP date: whole seconds.
        Duration::from_secs(1)
    }

    async fn read(&self, path: &str) -> Result<Option<Stored>> {
        self.client.read(path).await
    }

    async fn create(&self, path: &str, bytes: &[u8]) -> Result<Created> {
        self.client.create(path, bytes).await
    }

    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.client.replace(path, bytes).await
    }

    async fn update(&self, path: &str, change: &Change<'_>) -> Result<Updated> {
        self.client.update(path, change).await
    }

    async fn take_away(&self, path: &str, change: &Change<'_>) -> Result<bool> {
        self.client.take_away(path, change).await
    }

    async fn remove(&self, path: &str) -> Result<()> {
        self.client.remove(&[path.to_owned()]).await
    }

    async fn list(&self, dir: &str, from: Option<String>, limit: usize) -> Result<Page<String>> {
        let folder = if dir == "." { String::new() } else { format!("{dir}/") };
        let listed = self.client.list(&folder, from, limit).await?;
        let folders = listed.folders.into_iter().map(|name| Entry {
            name: name.trim_end_matches('/').to_owned(),
            kind: EntryKind::Folder,
        });
        let files = listed.files.into_iter().map(|name| Entry { name, kind: EntryKind::File });
        Ok(Page { entries: folders.chain(files).collect(), next: listed.next })
    }

    async fn scan(&self, dir: &str, after: Option<&str>, limit: usize) -> Result<Scan> {
        self.client.scan(&format!("{dir}/"), after, limit).await
    }

    async fn last_life(
        &self,
        paths: &(dyn for<'a> Fn(Generation) -> [String; 2] + Sync),
    ) -> Result<Option<Generation>> {
        let finished = async |generation: Generation| {
            let [completed, failed] = paths(generation);
            let heads = futures::join!(self.client.head(&completed), self.client.head(&failed));
            Ok::<_, crate::Error>(heads.0?.is_some() || heads.1?.is_some())
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
        self.client.replace(&self.clock_file, b"").await?;
        match self.client.head(&self.clock_file).await? {
            Some(modified) => Ok(modified),
            // Tidied away by somebody between the two: once more.
            None => {
                self.client.replace(&self.clock_file, b"").await?;
                let modified = self.client.head(&self.clock_file).await?;
                modified.ok_or_else(|| {
                    let message =
                        format!("{} loses what was just written", self.properties.address);
                    crate::Error::new(crate::ErrorKind::Unavailable, message)
                })
            }
        }
    }

    async fn stamp(&self, _: &str, _: Timestamp) -> Result<Option<Stamp>> {
        Ok(None)
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }

    async fn ring(&self) {
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    async fn publish(&self, tasks: &[(String, Vec<u8>)], _: bool) -> Vec<Result<Created>> {
        let files = tasks.iter().map(|(dir, bytes)| (task_key(dir), &bytes[..])).collect();
        let answers = self.create_all(files).await;
        self.ring().await;
        answers
    }

    async fn promote(&self, from: &str, to: &str, _: bool) -> Result<Created> {
        let (from, to) = (task_key(from), task_key(to));
        let Some(task) = self.client.read(&from).await? else { return Ok(Created::Exists) };
        let mut created = self.client.create(&to, &task.bytes).await?;
        if created == Created::Exists {
            // Every push has a nonce of its own in it: the same bytes are this very task, moved by us
            // though we were not told, or by somebody who was then cut short.
            let there = self.client.read(&to).await?;
            if there.is_some_and(|there| there.bytes == task.bytes) {
                created = Created::New;
            }
        }
        if created == Created::New {
            self.client.remove(&[from]).await?;
        }
        Ok(created)
    }

    async fn open(&self, dir: &str) -> Result<Option<String>> {
        Ok(Some(dir.to_owned()))
    }

    async fn draft(&self, bytes: &[u8]) -> Result<Arc<[u8]>> {
        Ok(bytes.into())
    }

    async fn create_lease(
        &self,
        slot: &String,
        attempt: u32,
        draft: &Arc<[u8]>,
    ) -> Result<Created> {
        self.client.create(&lease_key(slot, attempt), draft).await
    }

    async fn replace_lease(&self, slot: &String, attempt: u32, bytes: &[u8]) -> Result<()> {
        self.client.replace(&lease_key(slot, attempt), bytes).await
    }

    async fn leases(&self, slot: &String) -> Result<Vec<u32>> {
        let (folder, mut from, mut attempts) = (format!("{slot}/"), None, Vec::new());
        loop {
            let listed = self.client.list(&folder, from, 1000).await?;
            attempts.extend(listed.files.iter().filter_map(|name| layout::parse_lease_name(name)));
            from = listed.next;
            if from.is_none() {
                break;
            }
        }
        attempts.sort_unstable();
        Ok(attempts)
    }

    async fn read_lease(&self, slot: &String, attempt: u32) -> Result<Option<Stored>> {
        self.client.read(&lease_key(slot, attempt)).await
    }

    async fn look(&self, slot: &String, after: Option<u32>, records: &[String; 2]) -> Result<Look> {
        let task = task_key(slot);
        let next = async {
            match after {
                Some(attempt) => {
                    self.client.head(&lease_key(slot, attempt.saturating_add(1))).await
                }
                None => Ok(None),
            }
        };
        let (task, next, completed, failed) = futures::join!(
            self.client.read(&task),
            next,
            self.client.head(&records[0]),
            self.client.head(&records[1]),
        );
        Ok(Look {
            task: task?,
            superseded: next?.is_some(),
            finished: completed?.is_some() || failed?.is_some(),
        })
    }

    async fn probe(&self, slot: &String, attempt: u32) -> Result<Probe> {
        let (task, next) = (task_key(slot), lease_key(slot, attempt.saturating_add(1)));
        let (task, next) = futures::join!(self.client.head(&task), self.client.head(&next));
        Ok(Probe { task: task?.is_some(), superseded: next?.is_some() })
    }

    async fn commit(&self, records: &[(String, Vec<u8>)], _: bool) -> Vec<Result<Created>> {
        self.create_all(records.iter().map(|(path, bytes)| (path.clone(), &bytes[..])).collect())
            .await
    }

    async fn clean(&self, slot: &String, finished: bool, leases: &[u32]) -> Result<()> {
        let deadline = self.client.removal_deadline();
        if finished {
            self.client.remove_until(deadline, &[task_key(slot)]).await?;
        }
        // Only now: leases without a task are garbage, a task without its leases would be done again.
        let attempts = match leases {
            [] => self.leases(slot).await?,
            known => known.to_vec(),
        };
        let keys: Vec<String> =
            attempts.into_iter().map(|attempt| lease_key(slot, attempt)).collect();
        self.client.remove_until(deadline, &keys).await
    }

    async fn discard(&self, finished: Vec<(&String, Vec<u32>)>) -> Vec<Result<()>> {
        let count = finished.len();
        for (slot, leases) in finished {
            let leases = leases.into_iter().map(|attempt| lease_key(slot, attempt)).collect();
            self.rubbish.add(task_key(slot), leases);
        }
        self.rubbish.take_out_in_time().await;
        vec![Ok(()); count]
    }

    async fn flush(&self) -> Result<()> {
        self.rubbish.take_out().await
    }
}
