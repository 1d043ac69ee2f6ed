//! A store in this process's memory, shaped like a bucket: names, whole values, create-if-absent.
//!
//! Invariant: every call is one step under one lock, so a condition and its write cannot be told apart. For tests,
//! and for programs that want the contract without the storage. Nothing survives the process, so its
//! durability is only that of the process.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::keys::{KeyTree, Manner};
use super::objects::{Got, Head, List, Listed, Listing, Objects, Part, Swap, Version};
use crate::clock::{Env, lock};
use crate::error::Result;
use crate::layout::Swapped;
use crate::store::{Created, Properties};

/// A queue in memory, shared by all clones.
pub type Memory = KeyTree<MemoryObjects>;

impl Memory {
    /// An empty store whose clock is that of `env`.
    pub fn new(env: Env) -> Self {
        Self::at("memory:".to_owned(), env)
    }

    fn at(address: String, env: Env) -> Self {
        let manner = Manner { time_resolution: Duration::from_millis(1), removes_together: false };
        Self::over(MemoryObjects::new(address, env.clone()), env, manner)
    }

    /// The store of this name, the same one for the whole process; the first call makes it.
    pub fn named(name: &str, env: &Env) -> Self {
        static NAMED: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());
        let mut named = lock(&NAMED);
        let made = named
            .entry(name.to_owned())
            .or_insert_with(|| Self::at(format!("memory://{name}"), env.clone()));
        made.clone()
    }
}

/// Names and values, shared by all clones.
#[derive(Clone, Debug)]
pub struct MemoryObjects {
    values: Arc<Mutex<Values>>,
    env: Env,
    properties: Properties,
}

#[derive(Debug, Default)]
struct Values {
    by_name: BTreeMap<String, Value>,
    /// How many were ever written: the number of each is its version.
    written: u64,
}

#[derive(Debug)]
struct Value {
    bytes: Vec<u8>,
    modified: Timestamp,
    number: u64,
}

impl Value {
    fn version(&self) -> Version {
        Version::new(self.number.to_string())
    }

    fn head(&self) -> Head {
        Head { size: self.bytes.len() as u64, modified: self.modified, version: self.version() }
    }
}

impl MemoryObjects {
    /// An empty store whose clock is that of `env`.
    pub fn new(address: String, env: Env) -> Self {
        let properties = Properties {
            provider: "memory",
            address,
            blocking: false,
            remote: true,
            heartbeat_every: Duration::from_secs(60),
            notices_changes: true,
        };
        Self { values: Arc::default(), env, properties }
    }

    fn value(&self, values: &mut Values, bytes: &[u8]) -> Value {
        values.written += 1;
        let modified = self.env.clock().wall();
        Value { bytes: bytes.to_vec(), modified, number: values.written }
    }
}

#[async_trait]
impl Objects for MemoryObjects {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.env.clock().wall())
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        let values = lock(&self.values);
        let Some(value) = values.by_name.get(name) else { return Ok(None) };
        let size = value.bytes.len();
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(size);
        let range = range.map_or(0..size, |range| within(range.start)..within(range.end));
        let bytes = value.bytes.get(range).unwrap_or_default().to_vec();
        Ok(Some(Got { bytes, head: value.head() }))
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        Ok(lock(&self.values).by_name.get(name).map(Value::head))
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        let mut values = lock(&self.values);
        let value = self.value(&mut values, bytes);
        match values.by_name.entry(name.to_owned()) {
            Entry::Occupied(_) => Ok(Created::Exists),
            Entry::Vacant(vacant) => {
                vacant.insert(value);
                Ok(Created::New)
            }
        }
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut values = lock(&self.values);
        let value = self.value(&mut values, bytes);
        values.by_name.insert(name.to_owned(), value);
        Ok(())
    }

    async fn remove(&self, names: &[String], _: Duration) -> Result<()> {
        let mut values = lock(&self.values);
        for name in names {
            values.by_name.remove(name);
        }
        Ok(())
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        let mut values = lock(&self.values);
        let moved = values.by_name.remove(from);
        let found = moved.is_some();
        values.by_name.extend(moved.map(|value| (to.to_owned(), value)));
        Ok(found)
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        let start = match &what {
            List::Below { prefix, after: Some(after) } if after >= prefix => {
                Bound::Excluded(after.clone())
            }
            what => Bound::Included(what.prefix().to_owned()),
        };
        Box::new(MemoryListing { values: Arc::clone(&self.values), what, start })
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        self.get(name.as_str(), None).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        self.get(name.as_str(), Some(range)).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        let mut values = lock(&self.values);
        let there = values.by_name.get(name.as_str()).map(Value::version);
        if there.as_ref() != expected {
            return Ok(Swap::Lost);
        }
        let value = self.value(&mut values, bytes);
        let version = value.version();
        values.by_name.insert(name.as_str().to_owned(), value);
        Ok(Swap::Written(version))
    }
}

struct MemoryListing {
    values: Arc<Mutex<Values>>,
    what: List,
    start: Bound<String>,
}

#[async_trait]
impl Listing for MemoryListing {
    async fn next(&mut self, limit: usize) -> Result<Part> {
        let values = lock(&self.values);
        let mut part = Part::default();
        loop {
            let next = values.by_name.range((self.start.clone(), Bound::Unbounded)).next();
            let found = next.and_then(|(name, value)| {
                Some((name, name.strip_prefix(self.what.prefix())?, value))
            });
            let Some((name, rest, value)) = found else {
                part.end = true;
                return Ok(part);
            };
            if part.files.len() + part.folders.len() >= limit {
                return Ok(part);
            }
            let folder = rest.split_once('/').filter(|_| matches!(self.what, List::Folder { .. }));
            self.start = match folder {
                Some((folder, _)) => {
                    let path = format!("{}{folder}", self.what.prefix());
                    part.folders.push(format!("{path}/"));
                    // Past everything in this folder: '0' is the character after '/'.
                    Bound::Included(format!("{path}0"))
                }
                None => {
                    part.files.push(Listed { name: name.clone(), head: value.head() });
                    Bound::Excluded(name.clone())
                }
            };
        }
    }
}
