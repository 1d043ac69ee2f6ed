//! Requests to a bucket, each sent once, with errors that say what to do.
//!
//! Invariant: a refusal, a failure and a silence are told apart. What may be sent again is
//! [passing](crate::Error::passing); sending it again is for [`Retrying`](crate::store::retrying::Retrying), not
//! for the client below, which does not know what that means for a conditional write.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
};

use super::credentials::NotGiven;
use super::http::Refused;
use super::uplink::Uplink;
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::store::objects::{Got, Head, Version};

/// What a bucket's client can do.
pub(super) trait Api: ObjectStore + PaginatedListStore {}
impl<T: ObjectStore + PaginatedListStore> Api for T {}

/// A bucket, seen from a prefix.
pub(super) struct Client {
    store: Box<dyn Api>,
    env: Env,
    /// What is written passes here before it is signed: a signature ages.
    uplink: Uplink,
    /// Ends in a slash unless it is empty.
    pub(super) prefix: String,
    pub(super) address: String,
    /// Where requests go, for error messages.
    server: Option<String>,
}

impl Client {
    pub(super) fn new(
        store: Box<dyn Api>,
        env: Env,
        uplink: Uplink,
        prefix: &str,
        address: &str,
        server: Option<String>,
    ) -> Self {
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Self { store, env, uplink, prefix, address: address.to_owned(), server }
    }

    fn key(&self, path: &str) -> Result<Path> {
        // Parsed, not made: making one would encode what is encoded already.
        Path::parse(format!("{}{path}", self.prefix))
            .map_err(|error| Error::invalid(format!("'{path}' cannot be a key: {error}")))
    }

    /// Writes an object; `None` if the condition of `mode` does not hold.
    pub(super) async fn write(
        &self,
        path: &str,
        bytes: &[u8],
        mode: PutMode,
    ) -> Result<Option<Version>> {
        let key = self.key(path)?;
        let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
        let what = if mode == PutMode::Create { "create" } else { "write" };
        let of_something = matches!(mode, PutMode::Update(_));
        let Ok(upload) = self.uplink.enter(bytes.len() as u64).await else {
            let message =
                format!("cannot {what} '{path}' in {}: no upload has had an answer", self.address);
            return Err(Error::new(ErrorKind::Unavailable, message).passing());
        };
        let answer = self.store.put_opts(&key, payload, mode.into()).await;
        match &answer {
            Err(error) if is_timeout(error) => upload.timed_out(),
            // Lost for another reason, which says nothing about the line.
            Err(error) if cause::<HttpError>(error).is_some() && !is_refusal(error) => {}
            _ => upload.passed(),
        }
        match answer {
            Ok(done) => Ok(Some(version(done.e_tag, done.version))),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) => Ok(None),
            Err(object_store::Error::NotFound { .. }) if of_something => Ok(None),
            Err(error) => Err(self.explain(what, path, &error)),
        }
    }

    pub(super) async fn read(&self, path: &str, range: Option<Range<u64>>) -> Result<Option<Got>> {
        let (key, limit) = (self.key(path)?, crate::layout::read_limit(path));
        let whole = range.is_none();
        if range.as_ref().is_some_and(Range::is_empty) {
            return self.read_nothing(path).await;
        }
        let (start, range) = (range.as_ref().map(|it| it.start), range.map(GetRange::Bounded));
        let got = match self.store.get_opts(&key, GetOptions { range, ..Default::default() }).await
        {
            Ok(got) => got,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            // The range begins behind the end.
            Err(error) if cause::<Refused>(&error).is_some_and(|it| it.status == 416) => {
                return self.read_nothing(path).await;
            }
            // The same on Azure, which answers with nothing instead of a refusal. The client calls that an error
            // of a type that cannot be named, so it takes a look.
            Err(error) if start.is_some() && cause::<HttpError>(&error).is_none() => {
                let there = self.read_nothing(path).await?;
                if there.as_ref().is_some_and(|it| it.head.size > start.unwrap_or_default()) {
                    return Err(self.explain("read", path, &error));
                }
                return Ok(there);
            }
            Err(error) => return Err(self.explain("read", path, &error)),
        };
        let size = got.meta.size;
        if whole && size > limit {
            return Err(Error::damaged(format!(
                "'{path}' in {} has {size} bytes, and no more than {limit} are read of it",
                self.address
            )));
        }
        let head = head_of(&got.meta);
        match got.bytes().await {
            Ok(bytes) => Ok(Some(Got { bytes: bytes.to_vec(), head })),
            Err(error) => Err(self.explain("read", path, &error)),
        }
    }

    async fn read_nothing(&self, path: &str) -> Result<Option<Got>> {
        Ok(self.head(path).await?.map(|head| Got { bytes: Vec::new(), head }))
    }

    pub(super) async fn head(&self, path: &str) -> Result<Option<Head>> {
        match self.store.head(&self.key(path)?).await {
            Ok(meta) => Ok(Some(head_of(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.explain("look for", path, &error)),
        }
    }

    /// Removes objects, many at a time, but not after this monotonic time.
    pub(super) async fn remove(&self, paths: &[String], until: Duration) -> Result<()> {
        let Some(first) = paths.first() else { return Ok(()) };
        if self.env.monotonic() >= until {
            let message = format!(
                "cannot remove '{first}' in {}: too late to remove it; this process has slept",
                self.address
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let keys: Vec<Path> = paths.iter().map(|path| self.key(path)).collect::<Result<_>>()?;
        let gone = |answer| match answer {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        };
        let removed = match &keys[..] {
            [key] => gone(self.store.delete(key).await),
            _ => {
                let all = futures::stream::iter(keys).map(Ok).boxed();
                let each = self.store.delete_stream(all);
                each.map(|answer| gone(answer.map(drop))).try_for_each(|()| async { Ok(()) }).await
            }
        };
        removed.map_err(|error| self.explain("remove", first, &error))
    }

    /// A page of a listing; the prefix and the names in it are whole keys.
    pub(super) async fn list(
        &self,
        prefix: &str,
        options: PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        let whole = format!("{}{prefix}", self.prefix);
        let given = Some(whole.as_str()).filter(|whole| !whole.is_empty());
        let page = self.store.list_paginated(given, options).await;
        page.map_err(|error| self.explain("list", prefix, &error))
    }

    fn explain(&self, what: &str, path: &str, error: &object_store::Error) -> Error {
        let failure = format!("cannot {what} '{path}' in {}", self.address);
        let kind = |kind, why: String| Error::new(kind, format!("{failure}: {why}"));
        let passing = |why: String| kind(ErrorKind::Unavailable, why).passing();
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
                    passing(format!("no answer{from} ({why})"))
                }
            };
        };
        if let Some(not_given) = &refused.not_given {
            return kind(ErrorKind::Unavailable, format!("{refused}; {not_given}"));
        }
        match (refused.status.as_u16(), refused.code.as_str()) {
            _ if refused.renewed => passing(refused.to_string()),
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
                passing(refused.to_string())
            }
            _ => kind(ErrorKind::Unavailable, refused.to_string()),
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

/// Whether the time was not enough, by our own reckoning or by the server's.
fn is_timeout(error: &object_store::Error) -> bool {
    let theirs = |it: &Refused| it.status == 408 || it.code == "RequestTimeout";
    let ours = |it: &HttpError| it.kind() == HttpErrorKind::Timeout;
    cause::<Refused>(error).map_or(cause::<HttpError>(error).is_some_and(ours), theirs)
}

fn is_refusal(error: &object_store::Error) -> bool {
    cause::<Refused>(error).is_some()
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

/// What a listing or an answer tells of an object.
pub(super) fn head_of(meta: &ObjectMeta) -> Head {
    let version = version(meta.e_tag.clone(), meta.version.clone());
    Head { size: meta.size, modified: modified(meta), version }
}

fn version(e_tag: Option<String>, generation: Option<String>) -> Version {
    Version::new(e_tag.unwrap_or_default()).with_generation(generation)
}

fn modified(meta: &ObjectMeta) -> Timestamp {
    let nanos = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}
