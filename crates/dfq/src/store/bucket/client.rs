//! Requests to a bucket, tried again where that is safe, with errors that say what to do.
//!
//! Trying again is ours, not the client's: a conditional write whose answer was lost is sent again as
//! it was, and if the first one had been done, the second is told "it exists". So an answer of
//! [`Created::Exists`] may mean that we won; the protocol reads back whose it is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use super::credentials::NotGiven;
use super::http::Refused;
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Created, Scan, Scanned, Stored};

/// How often a request is tried, and how long to wait before the second time; then doubling.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The most pages of a listing that are passed over because nothing in them can be ours.
const FOREIGN_PAGES: usize = 1000;

/// A removal that was decided on so long ago is not sent any more, nor sent again: by then, a purge may have
/// freed the name for another object (decision 19).
pub(super) const REMOVED_WITHIN: Duration = Duration::from_secs(60);

/// What a bucket's client can do.
pub(super) trait Objects: ObjectStore + PaginatedListStore {}
impl<T: ObjectStore + PaginatedListStore> Objects for T {}

/// A bucket, seen from a prefix.
pub(super) struct Client {
    pub(super) store: Box<dyn Objects>,
    env: Env,
    /// Ends in a slash unless it is empty.
    prefix: String,
    pub(super) address: String,
    /// Where requests go, for error messages.
    server: Option<String>,
}

/// A page of a listing.
pub(super) struct Listed {
    pub(super) folders: Vec<String>,
    pub(super) files: Vec<String>,
    pub(super) next: Option<String>,
}

impl Client {
    pub(super) fn new(
        store: Box<dyn Objects>,
        env: Env,
        prefix: &str,
        address: &str,
        server: Option<String>,
    ) -> Self {
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Self { store, env, prefix, address: address.to_owned(), server }
    }

    pub(super) fn key(&self, path: &str) -> Result<Path> {
        // Parsed, not made: making one would encode what is encoded already.
        Path::parse(format!("{}{path}", self.prefix))
            .map_err(|error| Error::invalid(format!("'{path}' cannot be a key: {error}")))
    }

    /// Tries until it is done or refused, or has been tried often enough.
    pub(super) async fn retry<R, F>(
        &self,
        what: &str,
        path: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<R>
    where
        F: Future<Output = object_store::Result<R>>,
    {
        let mut pause = FIRST_PAUSE;
        for tried in 1.. {
            let error = match call().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let error = self.explain(what, path, &error);
            if !matches!(error, Refusal::Passing(_)) || tried >= TRIES {
                return Err(error.into_error());
            }
            // Jitter, so that those who were refused together do not come back together.
            self.env.clock().sleep(pause.mul_f64(0.5 + self.env.fraction())).await;
            pause *= 2;
        }
        unreachable!("the last try returns")
    }

    pub(super) async fn create(&self, path: &str, bytes: &[u8]) -> Result<Created> {
        let key = self.key(path)?;
        let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
        let put = || async {
            match self.store.put_opts(&key, payload.clone(), PutMode::Create.into()).await {
                Ok(_) => Ok(Created::New),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => Ok(Created::Exists),
                Err(error) => Err(error),
            }
        };
        self.retry("create", path, put).await
    }

    pub(super) async fn replace(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let key = self.key(path)?;
        let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
        self.retry("write", path, || self.store.put(&key, payload.clone())).await.map(drop)
    }

    pub(super) async fn read(&self, path: &str) -> Result<Option<Stored>> {
        let read = self.read_version(path).await?;
        Ok(read.map(|(meta, bytes)| Stored { bytes: bytes.to_vec(), modified: modified(&meta) }))
    }

    pub(super) async fn read_version(&self, path: &str) -> Result<Option<(ObjectMeta, Bytes)>> {
        let (key, limit) = (self.key(path)?, crate::layout::read_limit(path));
        let get = || async {
            let got = match self.store.get_opts(&key, GetOptions::default()).await {
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                got => got?,
            };
            if got.meta.size > limit {
                return Ok(Some(Err(got.meta.size)));
            }
            Ok(Some(Ok((got.meta.clone(), got.bytes().await?))))
        };
        let read = self.retry("read", path, get).await?.transpose();
        read.map_err(|size| {
            Error::damaged(format!(
                "'{path}' in {} has {size} bytes, and no more than {limit} are read of it",
                self.address
            ))
        })
    }

    /// When it was last written, if it is there.
    pub(super) async fn head(&self, path: &str) -> Result<Option<Timestamp>> {
        let key = self.key(path)?;
        let head = || async {
            match self.store.head(&key).await {
                Ok(meta) => Ok(Some(modified(&meta))),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.retry("look for", path, head).await
    }

    /// Removes objects, many at a time.
    pub(super) async fn remove(&self, paths: &[String]) -> Result<()> {
        self.remove_until(self.removal_deadline(), paths).await
    }

    pub(super) fn is_past(&self, deadline: Duration) -> bool {
        self.env.monotonic() >= deadline
    }

    /// Until when what is decided on now may be removed.
    pub(super) fn removal_deadline(&self) -> Duration {
        self.env.monotonic().saturating_add(REMOVED_WITHIN)
    }

    /// The same, but nothing is sent, and nothing sent again, after this monotonic time.
    pub(super) async fn remove_until(&self, deadline: Duration, paths: &[String]) -> Result<()> {
        let in_time = || match self.is_past(deadline) {
            false => Ok(()),
            true => {
                let source = "too late to remove it; this process has slept".into();
                Err(object_store::Error::Generic { store: "bucket", source })
            }
        };
        let keys: Vec<Path> = paths.iter().map(|path| self.key(path)).collect::<Result<_>>()?;
        let first = paths.first().map_or("", String::as_str);
        let delete = || async {
            in_time()?;
            let all = futures::stream::iter(keys.clone()).map(Ok).boxed();
            let gone = self.store.delete_stream(all).filter_map(|answer| async {
                match answer {
                    Err(object_store::Error::NotFound { .. }) => None,
                    answer => Some(answer),
                }
            });
            gone.try_for_each(|_| async { Ok(()) }).await
        };
        match &keys[..] {
            [] => Ok(()),
            [key] => {
                let one = || async {
                    in_time()?;
                    match self.store.delete(key).await {
                        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                        Err(error) => Err(error),
                    }
                };
                self.retry("remove", first, one).await
            }
            _ => self.retry("remove", first, delete).await,
        }
    }

    /// Lists what lies in a folder (`""` is the root), a page at a time.
    pub(super) async fn list(
        &self,
        folder: &str,
        from: Option<String>,
        limit: usize,
    ) -> Result<Listed> {
        let prefix = format!("{}{folder}", self.prefix);
        let page = || {
            let options = PaginatedListOptions {
                delimiter: Some("/".into()),
                max_keys: Some(limit.min(1000)),
                page_token: from.clone(),
                ..PaginatedListOptions::default()
            };
            let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
            self.store.list_paginated(prefix, options)
        };
        let page = self.retry("list", folder, page).await?;
        let below = |key: &Path| key.as_ref().strip_prefix(&prefix).map(str::to_owned);
        Ok(Listed {
            folders: page.result.common_prefixes.iter().filter_map(below).collect(),
            files: page.result.objects.iter().filter_map(|meta| below(&meta.location)).collect(),
            next: page.page_token,
        })
    }

    /// Lists what lies below a folder at any depth, after `after`, in one request.
    pub(super) async fn scan(
        &self,
        folder: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Scan> {
        let prefix = format!("{}{folder}", self.prefix);
        let offset = after.map(|after| format!("{prefix}{after}"));
        let page = || {
            let options = PaginatedListOptions {
                offset: offset.clone(),
                max_keys: Some(limit.min(1000)),
                ..PaginatedListOptions::default()
            };
            self.store.list_paginated(Some(&prefix), options)
        };
        let mut page = self.retry("list", folder, page).await?;
        // All of it may be foreign, and left out: then what comes after it is asked for.
        for _ in 0..FOREIGN_PAGES {
            let Some(token) = page.page_token.clone().filter(|_| page.result.objects.is_empty())
            else {
                break;
            };
            let next = || {
                let page_token = Some(token.clone());
                let max_keys = Some(limit.min(1000));
                let options = PaginatedListOptions { page_token, max_keys, ..Default::default() };
                self.store.list_paginated(Some(&prefix), options)
            };
            page = self.retry("list", folder, next).await?;
        }
        let file = |meta: &ObjectMeta| {
            let path = meta.location.as_ref().strip_prefix(&prefix)?.to_owned();
            let mut version = DefaultHasher::new();
            meta.e_tag.hash(&mut version);
            Some(Scanned { path, modified: modified(meta), version: version.finish() })
        };
        let files = page.result.objects.iter().filter_map(file).collect();
        Ok(Scan { files, end: page.page_token.is_none() })
    }

    fn explain(&self, what: &str, path: &str, error: &object_store::Error) -> Refusal {
        let place = format!("cannot {what} '{path}' in {}", self.address);
        let kind = |kind, why: String| Refusal::Final(Error::new(kind, format!("{place}: {why}")));
        // It is not the store that fails, and not for good.
        if let Some(not_given) = cause::<NotGiven>(error) {
            return kind(ErrorKind::Unavailable, not_given.to_string());
        }
        let Some(refused) = cause::<Refused>(error) else {
            return match error {
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => {
                    kind(ErrorKind::Denied, "the store refused the credentials".to_owned())
                }
                object_store::Error::NotFound { .. } => {
                    kind(ErrorKind::NotFound, "there is no such bucket".to_owned())
                }
                object_store::Error::NotSupported { .. }
                | object_store::Error::NotImplemented { .. } => {
                    kind(ErrorKind::Unsupported, "the store cannot do that".to_owned())
                }
                // Many are removed by one request, which is answered key by key.
                error if root_cause(error).contains("(code: AccessDenied)") => {
                    let needs = permission(what);
                    kind(ErrorKind::Denied, format!("it takes the permission {needs}"))
                }
                // No answer came: lost, cut short, or too late.
                error => {
                    let from = self.server.as_ref().map(|server| format!(" from {server}"));
                    let (from, why) = (from.unwrap_or_default(), root_cause(error));
                    let message = format!("{place}: no answer{from} ({why})");
                    Refusal::Passing(Error::new(ErrorKind::Unavailable, message))
                }
            };
        };
        if let Some(not_given) = &refused.not_given {
            return kind(ErrorKind::Unavailable, format!("{refused}; {not_given}"));
        }
        match (refused.status.as_u16(), refused.code.as_str()) {
            _ if refused.renewed => {
                Refusal::Passing(Error::new(ErrorKind::Unavailable, format!("{place}: {refused}")))
            }
            (_, "NoSuchBucket") => kind(ErrorKind::NotFound, "there is no such bucket".to_owned()),
            (_, "ExpiredToken" | "RequestExpired" | "TokenRefreshRequired") => {
                kind(ErrorKind::Denied, format!("the credentials have expired; {refused}"))
            }
            (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken") | (401, _) => {
                kind(ErrorKind::Denied, format!("the credentials are wrong; {refused}"))
            }
            (_, "RequestTimeTooSkewed") => kind(
                ErrorKind::Denied,
                format!(
                    "{refused}: this machine's clock is wrong by more than the store allows; set it"
                ),
            ),
            (403, _) => {
                let needs = permission(what);
                kind(ErrorKind::Denied, format!("{refused}; it takes the permission {needs}"))
            }
            (501, _) => kind(ErrorKind::Unsupported, format!("{refused}; it cannot be used")),
            (301 | 302 | 307 | 308, _) | (400, "AuthorizationHeaderMalformed") => {
                let region = refused.region.as_deref().unwrap_or("another region");
                let message =
                    format!("{refused}; the bucket is in {region}: set AWS_REGION to that");
                kind(ErrorKind::Invalid, message)
            }
            (408 | 409 | 425 | 429 | 500..=599, _) | (_, "RequestTimeout" | "SlowDown") => {
                Refusal::Passing(Error::new(ErrorKind::Unavailable, format!("{place}: {refused}")))
            }
            _ => kind(ErrorKind::Unavailable, refused.to_string()),
        }
    }
}

/// Whether it is worth trying again.
enum Refusal {
    Passing(Error),
    Final(Error),
}

impl Refusal {
    fn into_error(self) -> Error {
        match self {
            Self::Passing(error) | Self::Final(error) => error,
        }
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

/// The error of this type among the causes of another.
fn cause<E: std::error::Error + 'static>(error: &object_store::Error) -> Option<&E> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(here) = cause {
        if let Some(found) = here.downcast_ref::<E>() {
            return Some(found);
        }
        cause = here.source();
    }
    None
}

/// The last of a chain of errors says what happened; those before it only where.
fn root_cause(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

pub(super) fn modified(meta: &ObjectMeta) -> Timestamp {
    let nanos = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}
