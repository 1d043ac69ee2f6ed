//! A queue in this process's memory, shaped like a bucket: keys, whole values, create-if-absent.
//!
//! For tests and for programs that want the contract without the storage. Nothing survives the
//! process, so its durability is only that of the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::clock::{Env, lock};
use crate::error::{Error, Result};
use crate::layout;
use crate::model::Generation;
use crate::store::{
    Change, Created, Entry, EntryKind, Look, Page, Probe, Properties, Scan, Scanned, Stamp, Stored,
    Tree, Updated,
};

/// Keys and values, shared by all clones.
#[derive(Clone, Debug)]
pub struct Memory {
    objects: Arc<Mutex<BTreeMap<String, Stored>>>,
    changed: Arc<Notify>,
    env: Env,
    properties: Properties,
}

impl Memory {
    /// An empty store whose clock is that of `env`.
    pub fn new(env: Env) -> Self {
        Self {
            objects: Arc::default(),
            changed: Arc::default(),
            env,
            properties: Properties {
                provider: "memory",
                address: "memory:".to_owned(),
                blocking: false,
                remote: true,
                heartbeat_every: Duration::from_secs(60),
                notices_changes: true,
            },
        }
    }

    /// The store of this name, the same one for the whole process; made by whoever asks first.
    pub fn named(name: &str, env: &Env) -> Self {
        static NAMED: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());
        let mut named = lock(&NAMED);
        let made = named.entry(name.to_owned()).or_insert_with(|| {
            let mut made = Self::new(env.clone());
            made.properties.address = format!("memory://{name}");
            made
        });
        made.clone()
    }

    fn stored(&self, bytes: &[u8]) -> Stored {
        Stored { bytes: bytes.to_vec(), modified: self.env.clock().wall() }
    }

    fn create_object(&self, path: &str, bytes: &[u8]) -> Created {
        let stored = self.stored(bytes);
        match lock(&self.objects).entry(path.to_owned()) {
            std::collections::btree_map::Entry::Occupied(_) => Created::Exists,
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(stored);
                Created::New
            }
        }
    }
}

fn task_key(dir: &str) -> String {
    layout::task_file(dir)
}

fn lease_key(dir: &str, attempt: u32) -> String {
    layout::lease_file(dir, attempt)
}

#[async_trait]
impl Tree for Memory {
    type Slot = String;
    type Draft = Vec<u8>;
    type Cursor = String;

    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn time_resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn read(&self, path: &str) -> Result<Option<Stored>> {
        Ok(lock(&self.objects).get(path).cloned())
    }

    async fn create(&self, path: &str, bytes: &[u8]) -> Result<Created> {
        Ok(self.create_object(path, bytes))
    }

    async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let stored = self.stored(bytes);
        lock(&self.objects).insert(path.to_owned(), stored);
        Ok(())
    }

    async fn update(&self, path: &str, change: &Change<'_>) -> Result<Updated> {
        let mut objects = lock(&self.objects);
        let Some(there) = objects.get_mut(path) else { return Ok(Updated::Missing) };
        let Some(bytes) = change(there) else { return Ok(Updated::Left(there.clone())) };
        *there = self.stored(&bytes);
        Ok(Updated::Written(bytes))
    }

    async fn take_away(&self, path: &str, change: &Change<'_>) -> Result<bool> {
        let mut objects = lock(&self.objects);
        let old = objects.get(path).is_some_and(|there| change(there).is_some());
        if old {
            objects.remove(path);
        }
        Ok(old)
    }

    async fn remove(&self, path: &str) -> Result<()> {
        lock(&self.objects).remove(path);
        Ok(())
    }

    async fn list(&self, dir: &str, from: Option<String>, limit: usize) -> Result<Page<String>> {
        let prefix = if dir == "." { String::new() } else { format!("{dir}/") };
        let objects = lock(&self.objects);
        let mut entries: Vec<Entry> = Vec::new();
        let mut start = match from {
            Some(last) => Bound::Excluded(last),
            None => Bound::Included(prefix.clone()),
        };
        loop {
            let next = objects.range((start, Bound::Unbounded)).next();
            let Some(rest) = next.and_then(|(key, _)| key.strip_prefix(&prefix)) else {
                return Ok(Page { entries, next: None });
            };
            let (name, kind) = match rest.split_once('/') {
                Some((name, _)) => (name, EntryKind::Folder),
                None => (rest, EntryKind::File),
            };
            // Past everything below this name: '0' is the character after '/'.
            let past = match kind {
                EntryKind::Folder => format!("{prefix}{name}0"),
                _ => format!("{prefix}{name}\0"),
            };
            let name = name.to_owned();
            entries.push(Entry { name, kind });
            if entries.len() >= limit {
                let next = Some(past);
                return Ok(Page { entries, next });
            }
            start = Bound::Included(past);
        }
    }

    async fn scan(&self, dir: &str, after: Option<&str>, limit: usize) -> Result<Scan> {
        let prefix = format!("{dir}/");
        let start = Bound::Excluded(format!("{prefix}{}", after.unwrap_or_default()));
        let objects = lock(&self.objects);
        let below = objects.range((start, Bound::Unbounded)).map_while(|(key, stored)| {
            let path = key.strip_prefix(&prefix)?.to_owned();
            Some(Scanned { path, modified: stored.modified, version: stored.version() })
        });
        let mut files: Vec<_> = below.take(limit.saturating_add(1)).collect();
        let end = files.len() <= limit;
        files.truncate(limit);
        Ok(Scan { files, end })
    }

    async fn last_life(
        &self,
        paths: &(dyn for<'a> Fn(Generation) -> [String; 2] + Sync),
    ) -> Result<Option<Generation>> {
        let objects = lock(&self.objects);
        let finished = |generation: &Generation| {
            paths(*generation).iter().any(|path| objects.contains_key(path))
        };
        Ok((1..).take_while(finished).last())
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.env.clock().wall())
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
        let answers = tasks
            .iter()
            .map(|(dir, bytes)| Ok(self.create_object(&task_key(dir), bytes)))
            .collect();
        self.ring().await;
        answers
    }

    async fn promote(&self, from: &str, to: &str, _: bool) -> Result<Created> {
        let mut objects = lock(&self.objects);
        let (from, to) = (task_key(from), task_key(to));
        if objects.contains_key(&to) {
            return Ok(Created::Exists);
        }
        let Some(mut task) = objects.remove(&from) else { return Ok(Created::Exists) };
        task.modified = self.env.clock().wall();
        objects.insert(to, task);
        Ok(Created::New)
    }

    async fn open(&self, dir: &str) -> Result<Option<String>> {
        let prefix = format!("{dir}/");
        let objects = lock(&self.objects);
        let next = objects.range(prefix.clone()..).next();
        Ok(next.filter(|(key, _)| key.starts_with(&prefix)).map(|_| dir.to_owned()))
    }

    async fn draft(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(bytes.to_vec())
    }

    async fn create_lease(&self, slot: &String, attempt: u32, draft: &Vec<u8>) -> Result<Created> {
        Ok(self.create_object(&lease_key(slot, attempt), draft))
    }

    async fn replace_lease(&self, slot: &String, attempt: u32, bytes: &[u8]) -> Result<()> {
        let stored = self.stored(bytes);
        match lock(&self.objects).get_mut(&lease_key(slot, attempt)) {
            Some(lease) => *lease = stored,
            None => return Err(Error::not_found(format!("no lease {attempt} in '{slot}'"))),
        }
        Ok(())
    }

    async fn leases(&self, slot: &String) -> Result<Vec<u32>> {
        let prefix = format!("{slot}/");
        let objects = lock(&self.objects);
        let keys = objects.range(prefix.clone()..).map_while(|(key, _)| key.strip_prefix(&prefix));
        let mut attempts: Vec<u32> = keys.filter_map(layout::parse_lease_name).collect();
        attempts.sort_unstable();
        Ok(attempts)
    }

    async fn read_lease(&self, slot: &String, attempt: u32) -> Result<Option<Stored>> {
        self.read(&lease_key(slot, attempt)).await
    }

    async fn look(&self, slot: &String, after: Option<u32>, records: &[String; 2]) -> Result<Look> {
        let objects = lock(&self.objects);
        let later = after.map(|attempt| lease_key(slot, attempt + 1));
        Ok(Look {
            task: objects.get(&task_key(slot)).cloned(),
            superseded: later.is_some_and(|later| objects.contains_key(&later)),
            finished: records.iter().any(|record| objects.contains_key(record)),
        })
    }

    async fn probe(&self, slot: &String, attempt: u32) -> Result<Probe> {
        let objects = lock(&self.objects);
        Ok(Probe {
            task: objects.contains_key(&task_key(slot)),
            superseded: objects.contains_key(&lease_key(slot, attempt + 1)),
        })
    }

    async fn commit(&self, records: &[(String, Vec<u8>)], _: bool) -> Vec<Result<Created>> {
        let create = |(path, bytes): &(String, Vec<u8>)| Ok(self.create_object(path, bytes));
        records.iter().map(create).collect()
    }

    async fn clean(&self, slot: &String, finished: bool, _: &[u32]) -> Result<()> {
        let attempts = self.leases(slot).await?;
        let mut objects = lock(&self.objects);
        if finished {
            objects.remove(&task_key(slot));
        }
        for attempt in attempts {
            objects.remove(&lease_key(slot, attempt));
        }
        Ok(())
    }
}
