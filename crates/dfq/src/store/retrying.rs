//! A store whose calls are made again where that may help.
//!
//! Invariant: only a call that the store below calls [passing](crate::Error::passing) is made again, exactly as it
//! was, so nothing is done twice that was not safe to do twice. Calls that were carried out although their answer
//! was lost are safe: a repeated create is told [`Created::Exists`], and the protocol reads back whose it is; a
//! repeated swap is told that it has lost, and is recognised here by its bytes. No removal begins after its
//! deadline, because the store below checks that each time.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use super::objects::{Got, Head, List, Listing, Objects, Part, Swap, Version};
use super::{Created, Properties};
use crate::clock::Env;
use crate::error::{Error, Result};
use crate::layout::Swapped;

/// How often a call is made, and how long to wait before the second time; then doubling.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The calls of `O`, made again where that may help.
#[derive(Debug)]
pub struct Retrying<O> {
    inner: O,
    env: Env,
}

impl<O> Retrying<O> {
    /// Makes calls of `inner` again.
    pub fn new(inner: O, env: Env) -> Self {
        Self { inner, env }
    }

    /// The store below, whose calls are made once.
    pub fn inner(&self) -> &O {
        &self.inner
    }

    pub(super) fn patience(&self) -> Patience {
        Patience::new(&self.env)
    }
}

/// How often one call was made so far.
pub(super) struct Patience {
    env: Env,
    tried: u32,
    pause: Duration,
}

impl Patience {
    fn new(env: &Env) -> Self {
        Self { env: env.clone(), tried: 0, pause: FIRST_PAUSE }
    }

    /// Waits, if the call that failed is worth making again; whether it is.
    pub(super) async fn again(&mut self, error: &Error) -> bool {
        self.tried += 1;
        if !error.is_passing() || self.tried >= TRIES {
            return false;
        }
        // Jitter, so that clients that were refused together do not come back together.
        let pause = self.pause.mul_f64(0.5 + self.env.fraction());
        self.env.clock().sleep(pause).await;
        self.pause *= 2;
        true
    }
}

/// Makes a call until it is done, refused, or was made often enough.
macro_rules! patiently {
    ($patience:expr, $call:expr) => {{
        let mut patience = $patience;
        loop {
            match $call.await {
                Err(error) if patience.again(&error).await => {}
                answer => break answer,
            }
        }
    }};
}

#[async_trait]
impl<O: Objects> Objects for Retrying<O> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    fn told_time(&self) -> Option<(Timestamp, Duration)> {
        self.inner.told_time()
    }

    async fn now(&self) -> Result<Timestamp> {
        patiently!(self.patience(), self.inner.now())
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        patiently!(self.patience(), self.inner.get(name, range.clone()))
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        patiently!(self.patience(), self.inner.head(name))
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        patiently!(self.patience(), self.inner.create(name, bytes))
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        patiently!(self.patience(), self.inner.put(name, bytes))
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        patiently!(self.patience(), self.inner.remove(names, until))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        patiently!(self.patience(), self.inner.rename(from, to))
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        Box::new(RetryingListing { inner: self.inner.list(what), env: self.env.clone() })
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        patiently!(self.patience(), self.inner.load(name))
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        patiently!(self.patience(), self.inner.load_part(name, range.clone()))
    }

    async fn make_durable(&self, name: &Swapped) -> Result<()> {
        patiently!(self.patience(), self.inner.make_durable(name))
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        let (mut patience, mut unanswered) = (self.patience(), false);
        loop {
            match self.inner.swap(name, expected, bytes).await {
                Ok(Swap::Lost) if unanswered => break,
                Err(error) if patience.again(&error).await => unanswered = true,
                answer => return answer,
            }
        }
        // Perhaps it was lost to an earlier try of its own, which nobody answered.
        let there = self.load(name).await?.filter(|there| there.bytes == bytes);
        Ok(there.map_or(Swap::Lost, |there| Swap::Written(there.head.version)))
    }
}

struct RetryingListing {
    inner: Box<dyn Listing>,
    env: Env,
}

#[async_trait]
impl Listing for RetryingListing {
    async fn next(&mut self, limit: usize) -> Result<Part> {
        patiently!(Patience::new(&self.env), self.inner.next(limit))
    }

    fn skip(&mut self) -> Option<String> {
        self.inner.skip()
    }
}
