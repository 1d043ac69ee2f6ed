//! The objects, in memory. Every method takes the lock once, so that a condition and the write that
//! depends on it are one step: the honest server is atomic because of this file alone.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use md5::{Digest, Md5};
use s3s::dto::Metadata;

/// How many changes, and for how long, a listing can be behind.
const HISTORY_CHANGES: usize = 10_000;
const HISTORY_AGE: Duration = Duration::from_secs(60);

/// One object as it was written.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) body: Bytes,
    /// The md5 of the body in hex, without quotes.
    pub(crate) etag: String,
    pub(crate) modified: SystemTime,
    pub(crate) content_type: Option<String>,
    pub(crate) metadata: Option<Metadata>,
}

impl Object {
    /// An object whose modification time is set when it is stored.
    pub(crate) fn new(body: Bytes) -> Self {
        let etag = Md5::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { body, etag, modified: UNIX_EPOCH, content_type: None, metadata: None }
    }
}

/// Listings show milliseconds, so nothing finer is kept: a read and a listing must agree.
fn whole_millis(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// What must hold for a write to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// `If-None-Match: *`
    Absent,
    /// `If-Match: *`
    Present,
    /// `If-Match: <etag>`, without quotes.
    Etag(String),
}

/// Why a write or a read did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoSuchBucket,
    NoSuchKey,
    /// The condition does not hold.
    Failed,
    BucketExists,
}

impl Condition {
    fn check(&self, object: Option<&Arc<Object>>) -> Result<(), Refusal> {
        match (self, object) {
            (Self::Absent, None) | (Self::Present, Some(_)) => Ok(()),
            (Self::Absent, Some(_)) => Err(Refusal::Failed),
            (Self::Etag(wanted), Some(object)) if *wanted == object.etag => Ok(()),
            (Self::Etag(_), Some(_)) => Err(Refusal::Failed),
            // As S3 documents it: no such object is a 404, not a 412.
            (Self::Etag(_) | Self::Present, None) => Err(Refusal::NoSuchKey),
        }
    }
}

type Objects = BTreeMap<String, Arc<Object>>;

struct Change {
    at: Instant,
    key: String,
    before: Option<Arc<Object>>,
}

struct Bucket {
    created: SystemTime,
    objects: Objects,
    /// What was there before each recent change, oldest first.
    history: VecDeque<Change>,
}

impl Bucket {
    /// Every change goes through here, so that none is missing from the history.
    fn set(&mut self, key: &str, object: Option<Arc<Object>>) {
        let at = Instant::now();
        let before = match object {
            Some(object) => self.objects.insert(key.to_owned(), object),
            None => self.objects.remove(key),
        };
        self.history.push_back(Change { at, key: key.to_owned(), before });
        while self.history.len() > HISTORY_CHANGES
            || self.history.front().is_some_and(|c| at.duration_since(c.at) > HISTORY_AGE)
        {
            self.history.pop_front();
        }
    }

    /// The objects as they were `age` ago, or as long ago as is remembered.
    fn as_of(&self, age: Duration) -> Objects {
        let mut objects = self.objects.clone();
        for change in self.history.iter().rev().take_while(|change| change.at.elapsed() < age) {
            match &change.before {
                Some(object) => objects.insert(change.key.clone(), object.clone()),
                None => objects.remove(&change.key),
            };
        }
        objects
    }
}

/// What a listing asks for.
#[derive(Debug, Default)]
pub(crate) struct Query<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) delimiter: &'a str,
    pub(crate) after: Position,
    pub(crate) max: usize,
    /// How far behind the answer is.
    pub(crate) age: Duration,
}

/// Where a listing goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Position {
    #[default]
    Start,
    AfterKey(String),
    /// After everything under a common prefix that was already reported.
    AfterPrefix(String),
}

/// One page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<(String, Arc<Object>)>,
    pub(crate) prefixes: Vec<String>,
    /// Where the next page starts, if there is more.
    pub(crate) next: Option<Position>,
}

/// All buckets.
#[derive(Default)]
pub(crate) struct Store {
    buckets: Mutex<BTreeMap<String, Bucket>>,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(
        &self,
        bucket: &str,
        act: impl FnOnce(&mut Bucket) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        act(self.lock().get_mut(bucket).ok_or(Refusal::NoSuchBucket)?)
    }

    pub(crate) fn create_bucket(&self, name: &str, now: SystemTime) -> Result<(), Refusal> {
        let mut buckets = self.lock();
        if buckets.contains_key(name) {
            return Err(Refusal::BucketExists);
        }
        let bucket = Bucket { created: now, objects: BTreeMap::new(), history: VecDeque::new() };
        buckets.insert(name.to_owned(), bucket);
        Ok(())
    }

    pub(crate) fn buckets(&self) -> Vec<(String, SystemTime)> {
        self.lock().iter().map(|(name, bucket)| (name.clone(), bucket.created)).collect()
    }

    pub(crate) fn has_bucket(&self, name: &str) -> Result<(), Refusal> {
        self.with(name, |_| Ok(()))
    }

    pub(crate) fn get(&self, bucket: &str, key: &str) -> Result<Arc<Object>, Refusal> {
        self.with(bucket, |b| b.objects.get(key).cloned().ok_or(Refusal::NoSuchKey))
    }

    /// Whether the conditions hold now. Only the liar that is not atomic asks.
    pub(crate) fn check(
        &self,
        bucket: &str,
        key: &str,
        conditions: &[Condition],
    ) -> Result<(), Refusal> {
        self.with(bucket, |b| {
            let object = b.objects.get(key);
            conditions.iter().try_for_each(|condition| condition.check(object))
        })
    }

    /// Writes if all conditions hold: one step. The clock is read within it, so that of two writes
    /// the later one never carries the earlier time.
    pub(crate) fn put(
        &self,
        bucket: &str,
        key: &str,
        mut object: Object,
        conditions: &[Condition],
        now: impl FnOnce() -> SystemTime,
    ) -> Result<Arc<Object>, Refusal> {
        self.with(bucket, |b| {
            let before = b.objects.get(key);
            conditions.iter().try_for_each(|condition| condition.check(before))?;
            object.modified = whole_millis(now());
            let object = Arc::new(object);
            b.set(key, Some(object.clone()));
            Ok(object)
        })
    }

    /// Deletes if all conditions hold: one step. What is not there is deleted already.
    pub(crate) fn delete(
        &self,
        bucket: &str,
        key: &str,
        conditions: &[Condition],
    ) -> Result<(), Refusal> {
        self.with(bucket, |b| {
            let before = b.objects.get(key);
            conditions.iter().try_for_each(|condition| condition.check(before))?;
            if before.is_some() {
                b.set(key, None);
            }
            Ok(())
        })
    }

    pub(crate) fn list(&self, bucket: &str, query: &Query<'_>) -> Result<Page, Refusal> {
        self.with(bucket, |b| {
            if query.age.is_zero() {
                Ok(page(&b.objects, query))
            } else {
                Ok(page(&b.as_of(query.age), query))
            }
        })
    }

    pub(crate) fn snapshot(&self, bucket: &str) -> BTreeMap<String, Bytes> {
        let buckets = self.lock();
        let objects = buckets.get(bucket).map(|b| &b.objects);
        objects.into_iter().flatten().map(|(k, o)| (k.clone(), o.body.clone())).collect()
    }
}

/// The first key that can come after everything under a prefix.
fn past(prefix: &str) -> Bound<String> {
    Bound::Excluded(format!("{prefix}{}", char::MAX))
}

fn page(objects: &Objects, query: &Query<'_>) -> Page {
    let mut page = Page::default();
    if query.max == 0 {
        return page;
    }
    let mut from = match &query.after {
        Position::AfterKey(key) if key.as_str() >= query.prefix => Bound::Excluded(key.clone()),
        Position::AfterPrefix(prefix) => past(prefix),
        Position::AfterKey(_) | Position::Start => Bound::Included(query.prefix.to_owned()),
    };
    let mut last = Position::Start;
    while let Some((key, object)) = objects.range((from, Bound::Unbounded)).next() {
        let Some(rest) = key.strip_prefix(query.prefix) else { break };
        if page.objects.len() + page.prefixes.len() == query.max {
            page.next = Some(last);
            break;
        }
        let cut = (!query.delimiter.is_empty()).then(|| rest.find(query.delimiter)).flatten();
        match cut {
            Some(at) => {
                let common = &key[..query.prefix.len() + at + query.delimiter.len()];
                page.prefixes.push(common.to_owned());
                from = past(common);
                last = Position::AfterPrefix(common.to_owned());
            }
            None => {
                page.objects.push((key.clone(), object.clone()));
                from = Bound::Excluded(key.clone());
                last = Position::AfterKey(key.clone());
            }
        }
    }
    page
}
