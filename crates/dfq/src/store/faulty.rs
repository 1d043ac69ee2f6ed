//! A store of which a chosen call fails, or is carried out without an answer.
//!
//! Invariant: calls are counted from 0 in the order in which they are made, and a call that fails has done
//! nothing. So a test can try every call of a verb in turn.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::objects::{Got, Head, List, Listing, Objects, Part, Swap, Version};
use super::{Created, Properties};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Swapped;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It is not carried out, and fails in a way that passes.
    Fails,
    /// It is carried out, but its answer is lost.
    LosesAnswer,
    /// The store says that it cannot do this.
    Unsupported,
}

#[derive(Debug, Default)]
struct Plan {
    calls: Vec<&'static str>,
    mishaps: BTreeMap<usize, Mishap>,
}

/// The calls of `O`, of which some go wrong.
#[derive(Clone, Debug)]
pub struct Faulty<O> {
    inner: O,
    plan: Arc<Mutex<Plan>>,
}

impl<O> Faulty<O> {
    /// All goes well until [`Faulty::arm`].
    pub fn new(inner: O) -> Self {
        Self { inner, plan: Arc::default() }
    }

    /// From now on counts calls from 0; these go wrong.
    pub fn arm(&self, mishaps: impl IntoIterator<Item = (usize, Mishap)>) {
        *lock(&self.plan) = Plan { calls: Vec::new(), mishaps: mishaps.into_iter().collect() };
    }

    /// The calls since [`Faulty::arm`], by their names.
    pub fn calls(&self) -> Vec<&'static str> {
        lock(&self.plan).calls.clone()
    }
}

async fn call<R>(
    plan: &Mutex<Plan>,
    verb: &'static str,
    carry_out: impl Future<Output = Result<R>>,
) -> Result<R> {
    let mishap = {
        let mut plan = lock(plan);
        let number = plan.calls.len();
        plan.calls.push(verb);
        plan.mishaps.get(&number).copied()
    };
    let failed = |why: &str| Error::new(ErrorKind::Unavailable, format!("{verb}: {why}")).passing();
    match mishap {
        None => carry_out.await,
        Some(Mishap::Fails) => Err(failed("it fails")),
        Some(Mishap::LosesAnswer) => {
            let _ = carry_out.await;
            Err(failed("its answer is lost"))
        }
        Some(Mishap::Unsupported) => {
            Err(Error::new(ErrorKind::Unsupported, format!("{verb}: the store cannot do that")))
        }
    }
}

#[async_trait]
impl<O: Objects> Objects for Faulty<O> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    fn told_time(&self) -> Option<(Timestamp, Duration)> {
        self.inner.told_time()
    }

    async fn now(&self) -> Result<Timestamp> {
        call(&self.plan, "now", self.inner.now()).await
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        call(&self.plan, "get", self.inner.get(name, range)).await
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        call(&self.plan, "head", self.inner.head(name)).await
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        call(&self.plan, "create", self.inner.create(name, bytes)).await
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        call(&self.plan, "put", self.inner.put(name, bytes)).await
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        call(&self.plan, "remove", self.inner.remove(names, until)).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        call(&self.plan, "rename", self.inner.rename(from, to)).await
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        Box::new(FaultyListing { inner: self.inner.list(what), plan: Arc::clone(&self.plan) })
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        call(&self.plan, "load", self.inner.load(name)).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        call(&self.plan, "load_part", self.inner.load_part(name, range)).await
    }

    async fn make_durable(&self, name: &Swapped) -> Result<()> {
        call(&self.plan, "make_durable", self.inner.make_durable(name)).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        call(&self.plan, "swap", self.inner.swap(name, expected, bytes)).await
    }
}

struct FaultyListing {
    inner: Box<dyn Listing>,
    plan: Arc<Mutex<Plan>>,
}

#[async_trait]
impl Listing for FaultyListing {
    async fn next(&mut self, limit: usize) -> Result<Part> {
        let mishap = {
            let mut plan = lock(&self.plan);
            let number = plan.calls.len();
            plan.calls.push("list");
            plan.mishaps.get(&number).copied()
        };
        match mishap {
            None => self.inner.next(limit).await,
            // An answer that is lost leaves the place where it was, as a failure does.
            Some(_) => Err(Error::new(ErrorKind::Unavailable, "list: it fails").passing()),
        }
    }

    fn skip(&mut self) -> Option<String> {
        self.inner.skip()
    }
}
