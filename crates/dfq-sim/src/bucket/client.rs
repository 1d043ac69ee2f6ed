//! What the real client makes of answers: the same errors, with the same words, kinds and prospects.
//!
//! Invariant: a refusal, a failure and a silence are told apart as `store/bucket/client.rs` of the library does it. What
//! may be sent again is passing, and nothing else is.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dfq::store::objects::{Got, Head, Version};
use dfq::{Error, ErrorKind, Result};
use futures::{StreamExt, TryStreamExt};

use super::line::{Line, Silence};
use super::request::{Asked, Only, Page, Reply, Request};

/// The most names that one request removes, and how many such requests are under way at a time.
const REMOVED_TOGETHER: usize = 1000;
const REMOVALS_AT_ONCE: usize = 20;

/// The most bytes that are read of a task or a record, and of anything else; and of a shard of an index.
const LARGEST: (u64, u64) = (64 << 20, 1 << 20);
const LARGEST_SHARD: u64 = 1 << 30;

fn read_limit(path: &str) -> u64 {
    if path.starts_with("shards/") {
        return LARGEST_SHARD;
    }
    let large = ["completed/", "failed/", "floors/", "inbox/"];
    let is_large =
        path.ends_with("task.json") || large.into_iter().any(|dir| path.starts_with(dir));
    if is_large { LARGEST.0 } else { LARGEST.1 }
}

/// The client's side of a [`Line`].
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) line: Arc<Line>,
}

impl Client {
    pub(super) fn address(&self) -> &str {
        &self.line.server.traits.address
    }

    /// Sends a request. What it answers is no refusal.
    async fn ask(&self, what: &str, path: &str, request: Request) -> Result<Reply> {
        match self.line.ask(request).await {
            Ok(Reply::Refused(status, code)) => Err(self.refused(what, path, status, code)),
            Ok(reply) => Ok(reply),
            Err(Silence(patience)) => {
                let why = format!("no answer (silence for {} s)", patience.as_secs());
                Err(self.error(ErrorKind::Unavailable, what, path, &why).passing())
            }
        }
    }

    fn error(&self, kind: ErrorKind, what: &str, path: &str, why: &str) -> Error {
        Error::new(kind, format!("cannot {what} '{path}' in {}: {why}", self.address()))
    }

    fn refused(&self, what: &str, path: &str, status: u16, code: &str) -> Error {
        let refused = match what {
            // The answer to a HEAD has no body to say it in.
            "look for" => format!("the store answered {status} {}", reason(status)),
            _ => format!("the store answered {status} ({code})"),
        };
        if status == 403 {
            let needs = permission(what);
            let why = format!("{refused}; it takes the permission {needs}");
            return self.error(ErrorKind::Denied, what, path, &why);
        }
        self.error(ErrorKind::Unavailable, what, path, &refused).passing()
    }

    /// The server has answered something else than what was asked for.
    fn nonsense(&self, what: &str, path: &str, reply: &Reply) -> Error {
        self.error(ErrorKind::Damaged, what, path, &format!("an odd answer: {}", reply.words()))
    }

    /// Writes an object; `None` if the condition does not hold.
    pub(super) async fn write(
        &self,
        path: &str,
        bytes: &[u8],
        only: Only,
    ) -> Result<Option<Version>> {
        let what = if only == Only::IfAbsent { "create" } else { "write" };
        let request = Request::Put { name: path.to_owned(), bytes: bytes.into(), only };
        match self.ask(what, path, request).await? {
            Reply::Written(version) => Ok(Some(version)),
            Reply::NotSo | Reply::Missing => Ok(None),
            reply => Err(self.nonsense(what, path, &reply)),
        }
    }

    pub(super) async fn read(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        if range.as_ref().is_some_and(Range::is_empty) {
            return self.read_nothing(path).await;
        }
        let whole = range.is_none();
        let got =
            match self.ask("read", path, Request::Get { name: path.to_owned(), range }).await? {
                Reply::Got(got) => got,
                Reply::Missing => return Ok(None),
                Reply::BehindEnd => return self.read_nothing(path).await,
                reply => return Err(self.nonsense("read", path, &reply)),
            };
        let (size, limit) = (got.head.size, read_limit(path));
        if whole && size > limit {
            let message = format!(
                "'{path}' in {} has {size} bytes, and no more than {limit} are read of it",
                self.address()
            );
            return Err(Error::new(ErrorKind::Damaged, message));
        }
        Ok(Some(got))
    }

    async fn read_nothing(&self, path: &str) -> Result<Option<Got>> {
        Ok(self.head(path).await?.map(|head| Got { bytes: Vec::new(), head }))
    }

    pub(super) async fn head(&self, path: &str) -> Result<Option<Head>> {
        match self.ask("look for", path, Request::Head { name: path.to_owned() }).await? {
            Reply::Head(head) => Ok(Some(head)),
            Reply::Missing => Ok(None),
            reply => Err(self.nonsense("look for", path, &reply)),
        }
    }

    /// Removes objects, many at a time, but not after this monotonic time.
    pub(super) async fn remove(&self, paths: &[String], until: Duration) -> Result<()> {
        let Some(first) = paths.first() else { return Ok(()) };
        if self.line.env.monotonic() >= until {
            let message = format!(
                "cannot remove '{first}' in {}: too late to remove it; this process has slept",
                self.address()
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let mut removing = Vec::new();
        for names in paths.chunks(REMOVED_TOGETHER) {
            let request = Request::Delete { names: names.to_vec() };
            removing.push(async move { self.ask("remove", first, request).await });
        }
        let answers = futures::stream::iter(removing).buffered(REMOVALS_AT_ONCE);
        answers.try_for_each(|_| async { Ok(()) }).await
    }

    /// A page of a listing.
    pub(super) async fn list(&self, asked: Asked) -> Result<Page> {
        let prefix = asked.prefix.clone();
        match self.ask("list", &prefix, Request::List(asked)).await? {
            Reply::Page(page) => Ok(page),
            reply => Err(self.nonsense("list", &prefix, &reply)),
        }
    }
}

/// What HTTP calls it.
fn reason(status: u16) -> &'static str {
    match status {
        403 => "Forbidden",
        409 => "Conflict",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// The permission that a request takes, as AWS calls it.
fn permission(what: &str) -> &'static str {
    match what {
        "create" | "write" => "s3:PutObject",
        "remove" => "s3:DeleteObject",
        "list" => "s3:ListBucket",
        // Without it, what is not there is forbidden too.
        _ => "s3:GetObject (and s3:ListBucket, without which what is missing looks forbidden)",
    }
}
