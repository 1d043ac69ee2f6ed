//! A store before whose calls something happens: the process dies, an answer is an error, or others get to work.
//!
//! Calls are counted from 0 once something was arranged, in the order in which they are made.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dfq::index::Index;
use dfq::store::objects::{Got, Head, List, Listing, Objects, Part, Swap, Version};
use dfq::store::{Created, Properties, Swapped};
use dfq::{Env, Error, ErrorKind, Result};
use futures::future::BoxFuture;
use jiff::Timestamp;

use super::places::Place;

/// What happens before a call.
enum Event {
    Nothing,
    /// The process is dead from this call on.
    Dies,
    /// This call fails, and nothing of it is done.
    Fails,
    /// This is done first.
    Then(BoxFuture<'static, ()>),
}

type Before = Box<dyn FnMut(usize, &str) -> Event + Send>;

#[derive(Default)]
struct State {
    before: Option<Before>,
    calls: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Meddled {
    inner: Arc<dyn Objects>,
    state: Arc<Mutex<State>>,
}

impl Meddled {
    /// An index at this place, and what comes between it and its store.
    pub(crate) async fn index(place: &Place) -> (Index, Self) {
        Self::over(place.objects().await, Env::system()).await
    }

    pub(crate) async fn over(inner: Arc<dyn Objects>, env: Env) -> (Index, Self) {
        let meddled = Self { inner, state: Arc::default() };
        let index = Index::over(Arc::new(meddled.clone()), env, None, Some("key")).await.unwrap();
        (index, meddled)
    }

    fn arrange(&self, before: impl FnMut(usize, &str) -> Event + Send + 'static) {
        *self.state.lock().unwrap() = State { before: Some(Box::new(before)), calls: Vec::new() };
    }

    /// The process dies before this call.
    pub(crate) fn die_before(&self, at: usize) {
        self.arrange(move |number, _| if number < at { Event::Nothing } else { Event::Dies });
    }

    /// The process dies before the first call that begins like this: a verb and the beginning of a name.
    pub(crate) fn die_before_first(&self, call: &'static str) {
        let mut dead = false;
        self.arrange(move |_, this| {
            dead |= this.starts_with(call);
            if dead { Event::Dies } else { Event::Nothing }
        });
    }

    /// The first call that begins with this fails.
    pub(crate) fn fail_once(&self, call: &'static str) {
        let mut done = false;
        self.arrange(move |_, this| {
            let fails = !done && this.starts_with(call);
            done |= fails;
            if fails { Event::Fails } else { Event::Nothing }
        });
    }

    /// Others do this before the call of this number.
    pub(crate) fn others_before(&self, at: usize, act: impl Future<Output = ()> + Send + 'static) {
        let mut act: Option<BoxFuture<'static, ()>> = Some(Box::pin(act));
        self.arrange(move |number, _| match number == at {
            true => act.take().map_or(Event::Nothing, Event::Then),
            false => Event::Nothing,
        });
    }

    /// Others do this before the first call that begins like this: a verb and the beginning of a name.
    pub(crate) fn others_before_first(
        &self,
        call: &'static str,
        act: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut act: Option<BoxFuture<'static, ()>> = Some(Box::pin(act));
        self.arrange(move |_, this| match this.starts_with(call) {
            true => act.take().map_or(Event::Nothing, Event::Then),
            false => Event::Nothing,
        });
    }

    /// This is done before every call that begins like this: a verb and the beginning of a name.
    pub(crate) fn before_each(
        &self,
        calls: [&'static str; 2],
        mut act: impl FnMut() + Send + 'static,
    ) {
        self.arrange(move |_, this| {
            if calls.iter().any(|call| this.starts_with(call)) {
                act();
            }
            Event::Nothing
        });
    }

    /// The calls since something was arranged: a verb and a name.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }

    async fn before(&self, verb: &str, name: &str) -> Result<()> {
        let call = format!("{verb} {name}");
        let event = {
            let mut state = self.state.lock().unwrap();
            let State { before, calls } = &mut *state;
            let event = before.as_mut().map(|before| before(calls.len(), &call));
            calls.push(call);
            event
        };
        let failed = |why: &str| Err(Error::new(ErrorKind::Unavailable, format!("{verb}: {why}")));
        match event {
            None | Some(Event::Nothing) => Ok(()),
            Some(Event::Dies) => failed("the process is dead"),
            Some(Event::Fails) => failed("it fails"),
            Some(Event::Then(act)) => {
                act.await;
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Objects for Meddled {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.before("now", "").await?;
        self.inner.now().await
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        self.before("get", name).await?;
        self.inner.get(name, range).await
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        self.before("head", name).await?;
        self.inner.head(name).await
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        self.before("create", name).await?;
        self.inner.create(name, bytes).await
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.before("put", name).await?;
        self.inner.put(name, bytes).await
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        self.before("remove", names.first().map_or("", String::as_str)).await?;
        self.inner.remove(names, until).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<bool> {
        self.before("rename", from).await?;
        self.inner.rename(from, to).await
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        let prefix = what.prefix().to_owned();
        Box::new(MeddledListing { inner: self.inner.list(what), prefix, by: self.clone() })
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        self.before("load", name.as_str()).await?;
        self.inner.load(name).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        self.before("load", name.as_str()).await?;
        self.inner.load_part(name, range).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        self.before("swap", name.as_str()).await?;
        self.inner.swap(name, expected, bytes).await
    }
}

struct MeddledListing {
    inner: Box<dyn Listing>,
    prefix: String,
    by: Meddled,
}

#[async_trait]
impl Listing for MeddledListing {
    async fn next(&mut self, limit: usize) -> Result<Part> {
        self.by.before("list", &self.prefix).await?;
        self.inner.next(limit).await
    }

    fn skip(&mut self) -> Option<String> {
        self.inner.skip()
    }
}
