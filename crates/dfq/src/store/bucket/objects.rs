//! A bucket as [`Objects`]: one request for each call, where that is possible.
//!
//! Invariant: an object is swapped only as what was read, by its ETag in whatever form the server takes it. Some
//! servers refuse an ETag in the quotes in which they sent it (Ceph 16), some refuse every ETag, some know no such
//! condition. Where the right ETag is refused in every form, or there is none, swap is `Unsupported`. A server that
//! ignores the condition cannot be recognised here; `index::proof` finds it, and so does `dfq doctor`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use object_store::list::PaginatedListOptions;
use object_store::{PutMode, UpdateVersion};

use super::client::{Client, head_of};
use super::http::Told;
use super::raw::Raw;
use crate::address::Cloud;
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Swapped};
use crate::meter::Meter;
use crate::store::objects::{Got, Head, List, Listed, Listing, Objects, Part, Swap, Version};
use crate::store::{Created, Properties};

/// The most keys that a server lists in one page.
const LARGEST_PAGE: usize = 1000;

/// The most pages of a listing that are passed over because nothing in them can be ours.
const FOREIGN_PAGES: usize = 1000;

/// The objects of a bucket, or of a part of one.
pub struct BucketObjects {
    client: Arc<Client>,
    properties: Properties,
    meter: Meter,
    /// Written to learn the store's time.
    clock_file: String,
    /// For requests that the client has no verb for; only S3 has them.
    told: Told,
    raw: Option<Raw>,
    /// The form in which this server takes ETags, once a swap has shown it.
    form: AtomicU8,
}

/// How an ETag is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    AsReceived = 1,
    Bare = 2,
}

impl Form {
    fn of(self, tag: &str) -> String {
        match self {
            Self::AsReceived => tag.to_owned(),
            Self::Bare => tag.trim_start_matches("W/").trim_matches('"').to_owned(),
        }
    }
}

/// What was found after a condition was refused.
enum After {
    /// Our own content.
    Mine(Version),
    /// Something else, or nothing.
    Other(Option<Version>),
}

impl BucketObjects {
    pub(super) fn new(
        provider: &'static str,
        client: Client,
        env: &Env,
        meter: Meter,
        told: Told,
        raw: Option<Raw>,
    ) -> Self {
        let properties = Properties {
            provider,
            address: client.address.clone(),
            blocking: false,
            remote: true,
            // Requests cost money: a third of the lease, however long that is.
            heartbeat_every: Duration::MAX,
            notices_changes: false,
        };
        let clock_file = layout::below(layout::TMP, &format!("now-{}", env.nonce()));
        let form = AtomicU8::new(0);
        Self { client: Arc::new(client), properties, meter, told, clock_file, raw, form }
    }

    pub(super) fn raw(&self) -> Option<&Raw> {
        self.raw.as_ref()
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    fn known_form(&self) -> Option<Form> {
        let known = self.form.load(Ordering::Relaxed);
        [Form::AsReceived, Form::Bare].into_iter().find(|form| *form as u8 == known)
    }

    /// What is there after a condition was refused. It may be what we wrote: something on the way may send a
    /// request twice, and answer the second.
    async fn after_refusal(&self, path: &str, bytes: &[u8]) -> Result<After> {
        Ok(match self.client.read(path, None).await? {
            Some(there) if there.bytes == bytes => After::Mine(there.head.version),
            there => After::Other(there.map(|there| there.head.version)),
        })
    }

    /// Writes an object if it is still this version.
    async fn replace(&self, path: &str, expected: &Version, bytes: &[u8]) -> Result<Swap> {
        if expected.tag().is_empty() {
            // A write may be answered without an ETag. Then it has to be read before the next one.
            let there = self.client.head(path).await?;
            if there.is_none_or(|there| !there.version.tag().is_empty()) {
                return Ok(Swap::Lost);
            }
        }
        if self.properties.provider == Cloud::Google.scheme() && expected.generation().is_none() {
            let message = format!("cannot write '{path}' by its listed version: read it first");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let bare = Form::Bare.of(expected.tag());
        if bare == "*" || (bare.is_empty() && !expected.tag().is_empty()) {
            // To a server this would be no condition at all.
            let message = format!("'{}' is not the version of an object", expected.tag());
            return Err(Error::invalid(message));
        }
        // The form that worked last comes first. A server may be replaced by one that takes the other.
        let forms = match self.known_form() {
            Some(Form::Bare) => [Form::Bare, Form::AsReceived],
            _ => [Form::AsReceived, Form::Bare],
        };
        for form in forms.into_iter().filter(|_| !expected.tag().is_empty()) {
            let e_tag = Some(form.of(expected.tag()));
            let version = expected.generation().map(str::to_owned);
            let mode = PutMode::Update(UpdateVersion { e_tag, version });
            if let Some(version) = self.client.write(path, bytes, mode).await? {
                self.form.store(form as u8, Ordering::Relaxed);
                return Ok(Swap::Written(version));
            }
            match self.after_refusal(path, bytes).await? {
                After::Mine(version) => return Ok(Swap::Written(version)),
                After::Other(version) if version.as_ref() == Some(expected) => {}
                After::Other(_) => return Ok(Swap::Lost),
            }
            // It has not changed: the server does not take the ETag in this form.
        }
        let message = format!(
            "cannot write '{path}' in {}: the store has no condition that it is unchanged",
            self.client.address
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

#[async_trait]
impl Objects for BucketObjects {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    async fn now(&self) -> Result<Timestamp> {
        // The second time, somebody has tidied it away in between.
        for _ in 0..2 {
            self.put(&self.clock_file, b"").await?;
            if let Some(head) = self.client.head(&self.clock_file).await? {
                return Ok(head.modified);
            }
        }
        let message = format!("{} loses what was just written", self.properties.address);
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    fn told_time(&self) -> Option<(Timestamp, Duration)> {
        self.told.time()
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        self.client.read(name, range).await
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        self.client.head(name).await
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        let created = self.client.write(name, bytes, PutMode::Create).await?;
        Ok(created.map_or(Created::Exists, |_| Created::New))
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.client.write(name, bytes, PutMode::Overwrite).await.map(drop)
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        self.client.remove(names, until).await
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        let client = Arc::clone(&self.client);
        // Azure's client leaves out a name that is the whole prefix. A folder is never a name.
        let prefix = what.prefix();
        let azure = self.properties.provider == Cloud::Azure.scheme();
        let hidden = azure && !prefix.is_empty() && !prefix.ends_with('/');
        let (token, begun, end) = (None, false, false);
        Box::new(BucketListing { client, what, token, begun, end, hidden, bare_tags: azure })
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        self.client.read(name.as_str(), None).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        self.client.read(name.as_str(), Some(range)).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        match expected {
            Some(expected) => self.replace(name.as_str(), expected, bytes).await,
            None => {
                let path = name.as_str();
                if let Some(version) = self.client.write(path, bytes, PutMode::Create).await? {
                    return Ok(Swap::Written(version));
                }
                Ok(match self.after_refusal(path, bytes).await? {
                    After::Mine(version) => Swap::Written(version),
                    After::Other(_) => Swap::Lost,
                })
            }
        }
    }
}

/// A listing, page by page.
struct BucketListing {
    client: Arc<Client>,
    what: List,
    token: Option<String>,
    begun: bool,
    end: bool,
    /// A name that is the whole prefix is not listed, and still to be looked for.
    hidden: bool,
    /// Azure lists ETags without the quotes that they have everywhere else.
    bare_tags: bool,
}

impl BucketListing {
    /// Whether a name comes after where the listing begins. Azure's emulator, and perhaps Azure, begins at the
    /// first name whatever it is told.
    fn is_asked_for(&self, name: &str) -> bool {
        match &self.what {
            List::Below { after: Some(after), .. } => name > after.as_str(),
            _ => true,
        }
    }

    /// The name that is the whole prefix, which is the first of all.
    async fn hidden(&mut self) -> Result<Option<Listed>> {
        let name = self.what.prefix().to_owned();
        if !std::mem::take(&mut self.hidden) || !self.is_asked_for(&name) {
            return Ok(None);
        }
        Ok(self.client.head(&name).await?.map(|head| Listed { name, head }))
    }

    async fn page(&mut self, limit: usize) -> Result<Part> {
        let mut options = PaginatedListOptions {
            max_keys: Some(limit.min(LARGEST_PAGE)),
            page_token: self.token.clone(),
            ..PaginatedListOptions::default()
        };
        match &self.what {
            List::Folder { .. } => options.delimiter = Some("/".into()),
            List::Below { after, .. } if !self.begun => {
                let prefix = &self.client.prefix;
                options.offset = after.as_ref().map(|after| format!("{prefix}{after}"));
            }
            List::Below { .. } => {}
        }
        let page = self.client.list(self.what.prefix(), options).await?;
        let whole = format!("{}{}", self.client.prefix, self.what.prefix());
        let name_of = |key: &str| {
            let ours = key.starts_with(&whole);
            ours.then(|| key[self.client.prefix.len()..].to_owned())
        };
        let folders = page.result.common_prefixes.iter().filter_map(|key| {
            let name = name_of(key.as_ref())?;
            Some(format!("{}/", name.trim_end_matches('/')))
        });
        let files = page.result.objects.iter().filter_map(|meta| {
            let name = name_of(meta.location.as_ref()).filter(|name| self.is_asked_for(name))?;
            let mut meta = meta.clone();
            if self.bare_tags {
                meta.e_tag = meta.e_tag.map(|tag| format!("\"{}\"", Form::Bare.of(&tag)));
            }
            Some(Listed { name, head: head_of(&meta) })
        });
        let (folders, files) = (folders.collect(), files.collect());
        (self.begun, self.token) = (true, page.page_token);
        self.end = self.token.is_none();
        Ok(Part { files, folders, end: self.end })
    }
}

#[async_trait]
impl Listing for BucketListing {
    async fn next(&mut self, limit: usize) -> Result<Part> {
        if self.end {
            return Ok(Part { end: true, ..Part::default() });
        }
        if let Some(first) = self.hidden().await? {
            return Ok(Part { files: vec![first], ..Part::default() });
        }
        let mut part = self.page(limit).await?;
        // All of a page may be foreign, and left out. Then what comes after it is asked for.
        let folder = matches!(self.what, List::Folder { .. });
        for _ in 0..FOREIGN_PAGES {
            if folder || part.end || !part.files.is_empty() {
                break;
            }
            part = self.page(limit).await?;
        }
        Ok(part)
    }
}
