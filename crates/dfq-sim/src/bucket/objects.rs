//! The model as [`Objects`]: the same requests for each call as the real bucket makes.
//!
//! Invariant: each call is made once, as `store/bucket/objects.rs` of the library makes it: a refused condition is
//! followed by a look at what is there, and the time costs a write and a look.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dfq::meter::Counts;
use dfq::store::objects::{Got, Head, List, Listing, Objects, Part, Swap, Version};
use dfq::store::{Created, Properties, Swapped};
use dfq::{Error, ErrorKind, Result};
use jiff::Timestamp;

use super::client::Client;
use super::line::Line;
use super::request::{Asked, Only};

/// The most keys that a server lists in one page.
const LARGEST_PAGE: usize = 1000;

/// One process's connection to the bucket.
#[derive(Debug)]
pub struct SimObjects {
    client: Client,
    properties: Properties,
    /// Written to learn the store's time.
    clock_file: String,
}

/// What was found after a condition was refused.
enum After {
    /// Our own content.
    Mine(Version),
    /// Something else, or nothing.
    Other(Option<Version>),
}

impl SimObjects {
    pub(super) fn new(line: Line) -> Self {
        let properties = Properties {
            provider: "s3",
            address: line.server.traits.address.clone(),
            blocking: false,
            remote: true,
            heartbeat_every: Duration::MAX,
            notices_changes: false,
        };
        let clock_file = format!("tmp/now-{}", line.env.nonce());
        Self { client: Client { line: Arc::new(line) }, properties, clock_file }
    }

    /// The requests that have left this process, by kind.
    pub fn requests(&self) -> Counts {
        self.client.line.requests()
    }

    /// What is there after a condition was refused. It may be what we wrote.
    async fn after_refusal(&self, path: &str, bytes: &[u8]) -> Result<After> {
        Ok(match self.client.read(path, None).await? {
            Some(there) if there.bytes == bytes => After::Mine(there.head.version),
            there => After::Other(there.map(|there| there.head.version)),
        })
    }

    /// Writes an object if it is still this version.
    async fn replace(&self, path: &str, expected: &Version, bytes: &[u8]) -> Result<Swap> {
        let tag = expected.tag();
        if tag.is_empty() {
            let there = self.client.head(path).await?;
            if there.is_none_or(|there| !there.version.tag().is_empty()) {
                return Ok(Swap::Lost);
            }
        }
        let bare = tag.trim_start_matches("W/").trim_matches('"');
        if bare == "*" || (bare.is_empty() && !tag.is_empty()) {
            let message = format!("'{tag}' is not the version of an object");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        // As it was received, and then without its quotes: some servers will not have them.
        for form in [tag, bare] {
            let only = Only::IfMatch(form.to_owned());
            if let Some(version) = self.client.write(path, bytes, only).await? {
                return Ok(Swap::Written(version));
            }
            match self.after_refusal(path, bytes).await? {
                After::Mine(version) => return Ok(Swap::Written(version)),
                After::Other(version) if version.as_ref() == Some(expected) => {}
                After::Other(_) => return Ok(Swap::Lost),
            }
        }
        let message = format!(
            "cannot write '{path}' in {}: the store has no condition that it is unchanged",
            self.properties.address
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

#[async_trait]
impl Objects for SimObjects {
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
        self.client.line.told()
    }

    async fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        self.client.read(name, range).await
    }

    async fn head(&self, name: &str) -> Result<Option<Head>> {
        self.client.head(name).await
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        let created = self.client.write(name, bytes, Only::IfAbsent).await?;
        Ok(created.map_or(Created::Exists, |_| Created::New))
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.client.write(name, bytes, Only::Always).await.map(drop)
    }

    async fn remove(&self, names: &[String], until: Duration) -> Result<()> {
        self.client.remove(names, until).await
    }

    fn list(&self, what: List) -> Box<dyn Listing> {
        let from = match &what {
            List::Below { prefix, after: Some(after) } if after >= prefix => {
                Bound::Excluded(after.clone())
            }
            what => Bound::Included(what.prefix().to_owned()),
        };
        let folders = matches!(what, List::Folder { .. });
        let asked = Asked { prefix: what.prefix().to_owned(), folders, from, limit: LARGEST_PAGE };
        Box::new(SimListing { client: self.client.clone(), asked, end: false })
    }

    async fn load(&self, name: &Swapped) -> Result<Option<Got>> {
        self.client.read(name.as_str(), None).await
    }

    async fn load_part(&self, name: &Swapped, range: Range<u64>) -> Result<Option<Got>> {
        self.client.read(name.as_str(), Some(range)).await
    }

    async fn swap(&self, name: &Swapped, expected: Option<&Version>, bytes: &[u8]) -> Result<Swap> {
        let path = name.as_str();
        match expected {
            Some(expected) => self.replace(path, expected, bytes).await,
            None => {
                if let Some(version) = self.client.write(path, bytes, Only::IfAbsent).await? {
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
struct SimListing {
    client: Client,
    asked: Asked,
    end: bool,
}

#[async_trait]
impl Listing for SimListing {
    async fn next(&mut self, limit: usize) -> Result<Part> {
        if self.end {
            return Ok(Part { end: true, ..Part::default() });
        }
        self.asked.limit = limit.clamp(1, LARGEST_PAGE);
        let page = self.client.list(self.asked.clone()).await?;
        self.end = page.next.is_none();
        self.asked.from = page.next.unwrap_or(Bound::Unbounded);
        Ok(Part { files: page.files, folders: page.folders, end: self.end })
    }
}
