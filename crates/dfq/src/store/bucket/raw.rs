//! S3 requests that the client has no verb for: an ETag in a form of one's choosing, a conditional
//! DELETE, what a bucket says of itself. Signed and sent by the same means as all others, and counted
//! with them; never repeated, that is for whoever asks.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};

use super::http::Refused;
use crate::error::{Error, ErrorKind, Result};

/// What is needed to send a request.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    http: HttpClient,
    credentials: AwsCredentialProvider,
    region: Arc<str>,
    /// The bucket's URL, without a slash at its end.
    base: Arc<str>,
    /// Ends in a slash unless it is empty.
    prefix: Arc<str>,
}

/// What the server answered, refusals too.
#[derive(Clone, Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: StatusCode,
    pub(crate) etag: Option<String>,
    pub(crate) body: String,
}

impl Raw {
    pub(super) fn new(
        http: HttpClient,
        credentials: AwsCredentialProvider,
        region: String,
        base: String,
        prefix: &str,
    ) -> Self {
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Self { http, credentials, region: region.into(), base: base.into(), prefix: prefix.into() }
    }

    /// The prefix within the bucket.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Writes an object if its ETag is the one given.
    pub(crate) async fn put_if_match(
        &self,
        path: &str,
        etag: &str,
        bytes: &[u8],
    ) -> Result<RawAnswer> {
        let body = Bytes::copy_from_slice(bytes);
        self.send(Method::PUT, self.object(path), Some(("if-match", etag)), body).await
    }

    /// Writes an object, whatever is there; the answer has its ETag.
    pub(crate) async fn put(&self, path: &str, bytes: &[u8]) -> Result<RawAnswer> {
        self.send(Method::PUT, self.object(path), None, Bytes::copy_from_slice(bytes)).await
    }

    /// Removes an object if its ETag is the one given.
    pub(crate) async fn delete_if_match(&self, path: &str, etag: &str) -> Result<RawAnswer> {
        let url = self.object(path);
        self.send(Method::DELETE, url, Some(("if-match", etag)), Bytes::new()).await
    }

    /// Asks the bucket something, such as `versioning=`.
    pub(crate) async fn ask_bucket(&self, query: &str) -> Result<RawAnswer> {
        let url = format!("{}?{query}", self.base);
        self.send(Method::GET, url, None, Bytes::new()).await
    }

    fn object(&self, path: &str) -> String {
        format!("{}/{}", self.base, encoded(&format!("{}{path}", self.prefix)))
    }

    async fn send(
        &self,
        method: Method,
        url: String,
        header: Option<(&'static str, &str)>,
        body: Bytes,
    ) -> Result<RawAnswer> {
        let wrong = |error: String| Error::invalid(format!("{url} cannot be asked for: {error}"));
        let mut request = HttpRequest::new(HttpRequestBody::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = url.parse().map_err(|error| wrong(format!("{error}")))?;
        if let Some((name, value)) = header {
            let value = HeaderValue::from_str(value).map_err(|error| wrong(error.to_string()))?;
            request.headers_mut().insert(name, value);
        }
        let credential = self.credentials.get_credential().await;
        let credential = credential.map_err(|_| {
            Error::new(ErrorKind::Denied, "the AWS credentials cannot be had".to_owned())
        })?;
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .try_authorize(&mut request, None)
            .map_err(|error| wrong(error.to_string()))?;
        let unanswered = |why: &str| {
            Error::new(ErrorKind::Unavailable, format!("no answer from {}{why}", self.base))
        };
        match self.http.execute(request).await {
            Ok(answer) => {
                let (parts, body) = answer.into_parts();
                let etag = parts.headers.get("etag").and_then(|etag| etag.to_str().ok());
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                Ok(RawAnswer {
                    status: parts.status,
                    etag: etag.map(str::to_owned),
                    body: String::from_utf8_lossy(&body).into_owned(),
                })
            }
            Err(error) => match refused(&error) {
                // Neither done nor refused, as far as one can tell.
                Some(Refused { status, .. })
                    if matches!(status.as_u16(), 408 | 409 | 429 | 500 | 502..=504) =>
                {
                    Err(unanswered(&format!(" but {status}")))
                }
                Some(Refused { status, .. }) => {
                    Ok(RawAnswer { status: *status, etag: None, body: String::new() })
                }
                None => Err(unanswered("")),
            },
        }
    }
}

fn refused<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Refused> {
    let mut cause = Some(error);
    while let Some(here) = cause {
        if let Some(refused) = here.downcast_ref::<Refused>() {
            return Some(refused);
        }
        cause = here.source();
    }
    None
}

/// A key as it stands in a URL.
fn encoded(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
