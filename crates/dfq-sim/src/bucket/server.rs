//! The server: what is there, and the requests that it carries out.
//!
//! Invariant: each request is one step under one lock, so a condition and its write cannot be told apart, and the
//! witness is told of every change in the order in which it happened. Only listings may show what has passed, and
//! only for as long as the bucket's traits say.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::Env;
use dfq::store::objects::{Got, Head, Version};
use jiff::Timestamp;

use super::request::{Asked, Only, Page, Reply, Request};
use super::{Traits, lock, pages};
use crate::seam::{Change, Witness};

/// What has a name.
#[derive(Clone, Debug)]
pub(super) struct Object {
    bytes: Arc<[u8]>,
    modified: Timestamp,
    tag: String,
}

impl Object {
    /// What is told of it where times have this step.
    pub(super) fn head(&self, step: Duration) -> Head {
        let version = Version::new(self.tag.clone());
        Head { size: self.bytes.len() as u64, modified: rounded(self.modified, step), version }
    }
}

/// What a name had until it was changed.
#[derive(Clone, Debug)]
struct Past {
    until: Duration,
    object: Option<Object>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Object>,
    /// What listings may still show. Empty if they show what is there.
    past: BTreeMap<String, Vec<Past>>,
    /// From now on listings show what is there, whatever the traits say.
    is_prompt: bool,
    under_way: usize,
}

pub(super) type ServerClock = Box<dyn Fn() -> Timestamp + Send + Sync>;

pub(super) struct Server {
    state: Mutex<State>,
    pub(super) traits: Traits,
    pub(super) network: Env,
    clock: ServerClock,
    witness: Arc<dyn Witness>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, {} objects)", self.traits.address, lock(&self.state).objects.len())
    }
}

impl Server {
    pub(super) fn new(
        traits: Traits,
        network: Env,
        clock: ServerClock,
        witness: Arc<dyn Witness>,
    ) -> Self {
        Self { state: Mutex::default(), traits, network, clock, witness }
    }

    /// What the `Date` of an answer says: whole seconds.
    pub(super) fn date(&self) -> Timestamp {
        rounded((self.clock)(), Duration::from_secs(1))
    }

    pub(super) fn list_promptly(&self) {
        let mut state = lock(&self.state);
        state.is_prompt = true;
        state.past.clear();
    }

    pub(super) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let state = lock(&self.state);
        state.objects.iter().map(|(name, it)| (name.clone(), it.bytes.to_vec())).collect()
    }

    pub(super) fn times(&self) -> BTreeMap<String, Timestamp> {
        let state = lock(&self.state);
        state.objects.iter().map(|(name, it)| (name.clone(), it.modified)).collect()
    }

    pub(super) fn under_way(&self) -> usize {
        lock(&self.state).under_way
    }

    /// A request is under way until what is answered here is dropped.
    pub(super) fn on_the_way(self: &Arc<Self>) -> OnTheWay {
        lock(&self.state).under_way += 1;
        OnTheWay(Arc::clone(self))
    }

    /// Carries a request out.
    pub(super) fn carry_out(&self, request: &Request) -> Reply {
        let mut state = lock(&self.state);
        let step = self.traits.head_resolution;
        match request {
            Request::Head { name } => {
                state.objects.get(name).map_or(Reply::Missing, |it| Reply::Head(it.head(step)))
            }
            Request::Get { name, range } => match state.objects.get(name) {
                None => Reply::Missing,
                Some(object) => match part(&object.bytes, range.as_ref()) {
                    None => Reply::BehindEnd,
                    Some(bytes) => {
                        Reply::Got(Got { bytes: bytes.to_vec(), head: object.head(step) })
                    }
                },
            },
            Request::Put { name, bytes, only } => {
                match (only, state.objects.get(name)) {
                    (Only::IfAbsent, Some(_)) => return Reply::NotSo,
                    (Only::IfMatch(_), None) => return Reply::Missing,
                    (Only::IfMatch(tag), Some(there)) if bare(tag) != bare(&there.tag) => {
                        return Reply::NotSo;
                    }
                    _ => {}
                }
                let tag = tag_of(bytes);
                let version = Version::new(tag.clone());
                let object = Object { bytes: Arc::clone(bytes), modified: (self.clock)(), tag };
                self.change(&mut state, name, Some(object));
                Reply::Written(version)
            }
            Request::Delete { names } => {
                for name in names {
                    self.change(&mut state, name, None);
                }
                Reply::Removed
            }
            Request::List(asked) => Reply::Page(self.list(&mut state, asked)),
        }
    }

    fn change(&self, state: &mut State, name: &str, to: Option<Object>) {
        let before = match &to {
            Some(object) => state.objects.insert(name.to_owned(), object.clone()),
            None => state.objects.remove(name),
        };
        let change = match (&before, &to) {
            (None, None) => return,
            (None, Some(object)) => Change::Created(name, &object.bytes),
            (Some(_), Some(object)) => Change::Replaced(name, &object.bytes),
            (Some(_), None) => Change::Removed(name),
        };
        self.witness.changed(change);
        if !self.traits.listing_lag.is_zero() && !state.is_prompt {
            let past = Past { until: self.network.monotonic(), object: before };
            state.past.entry(name.to_owned()).or_default().push(past);
        }
    }

    fn list(&self, state: &mut State, asked: &Asked) -> Page {
        let (lag, step) = (self.traits.listing_lag, self.traits.list_resolution);
        let since = self.network.monotonic().saturating_sub(lag);
        state.past.retain(|_, past| {
            past.retain(|it| it.until >= since);
            !past.is_empty()
        });
        if lag.is_zero() || state.past.is_empty() {
            return pages::page(&state.objects, asked, step);
        }
        // Each page decides anew, name by name, how much of the last changes it has heard of.
        let mut shown = state.objects.clone();
        for (name, past) in &state.past {
            let which = self.network.below(past.len() + 1);
            match past.get(which).map(|it| &it.object) {
                None => {}
                Some(None) => _ = shown.remove(name),
                Some(Some(object)) => _ = shown.insert(name.clone(), object.clone()),
            }
        }
        pages::page(&shown, asked, step)
    }
}

/// Counts a request until it is dropped, carried out or not.
pub(super) struct OnTheWay(Arc<Server>);

impl Drop for OnTheWay {
    fn drop(&mut self) {
        lock(&self.0.state).under_way -= 1;
    }
}

/// The part of a content that is asked for; `None` if it begins behind the end.
fn part<'a>(bytes: &'a [u8], range: Option<&Range<u64>>) -> Option<&'a [u8]> {
    let Some(range) = range else { return Some(bytes) };
    let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    let (start, end) = (within(range.start), within(range.end));
    (start < bytes.len()).then(|| bytes.get(start..end)).flatten()
}

fn bare(tag: &str) -> &str {
    tag.trim_start_matches("W/").trim_matches('"')
}

/// The ETag of a content. As on S3, it is a hash: the same bytes have the same. (FNV-1a of 128 bits.)
fn tag_of(bytes: &[u8]) -> String {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    format!("\"{:032x}\"", bytes.iter().fold(BASIS, mix))
}

/// The last multiple of `step` that is not after `time`.
fn rounded(time: Timestamp, step: Duration) -> Timestamp {
    let step = i128::try_from(step.as_nanos()).unwrap_or(1).max(1);
    let nanos = time.as_nanosecond();
    Timestamp::from_nanosecond(nanos - nanos.rem_euclid(step)).unwrap_or(time)
}
