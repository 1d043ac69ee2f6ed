//! Below the client: every request that leaves is counted here, whatever becomes of it, every refusal keeps
//! what the server said, and no request waits for ever.
//!
//! `object_store` takes a 409 for "it exists", which it does not mean (somebody else was at the key;
//! whether ours was done is not known), and folds server errors into text. So a refusal becomes an
//! error that carries its status and code through the client unharmed.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};

use super::credentials::{NotGiven, Renewing};
use super::listing;
use super::uplink::Uplink;
use crate::clock::{Env, lock};
use crate::layout;
use crate::meter::{Meter, RequestKind};

/// How long an answer may take, and how slow a line may be, in bytes a second: what is large takes its time.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const SLOWEST_LINE: u64 = 64 * 1024;

/// What a body is taken for that does not say how long it is.
const UNSAID_LENGTH: u64 = 1024 * 1024;

/// How long it may take to send or to receive so much.
fn allowed(bytes: u64) -> Duration {
    ANSWERED_WITHIN + Duration::from_secs(bytes / SLOWEST_LINE)
}

/// The kind of a request, from its first line.
fn kind_of(method: &Method, query: Option<&str>) -> RequestKind {
    let query = query.unwrap_or_default();
    match *method {
        Method::GET if query.contains("list-type=") || query.contains("comp=list") => {
            RequestKind::List
        }
        Method::GET => RequestKind::Get,
        Method::HEAD => RequestKind::Head,
        Method::DELETE => RequestKind::Delete,
        Method::POST
            if query.split('&').any(|part| matches!(part, "delete" | "delete=" | "comp=batch")) =>
        {
            RequestKind::Delete
        }
        _ => RequestKind::Put,
    }
}

/// A request that the server refused, in its own words.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    /// The server's name for it, such as `SlowDown`; empty if it did not say.
    pub(super) code: String,
    /// The region that the bucket is in, if that was the matter and the server says so.
    pub(super) region: Option<String>,
    /// The credentials were at fault, and there are others now.
    pub(super) renewed: bool,
    /// The credentials were at fault, and asking for others failed.
    pub(super) not_given: Option<NotGiven>,
}

impl Refused {
    /// Whether it is the credentials that the store will not have.
    fn blames_credentials(&self) -> bool {
        let codes = [
            "ExpiredToken",
            "TokenRefreshRequired",
            "InvalidToken",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
        ];
        codes.contains(&self.code.as_str())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code.as_str() {
            "" => write!(f, "the store answered {}", self.status),
            code => write!(f, "the store answered {} ({code})", self.status.as_u16()),
        }
    }
}

impl std::error::Error for Refused {}

/// What a server's answers say of its clock: the time of the last, and this process's monotonic time then.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(Arc<Mutex<Option<(Timestamp, Duration)>>>);

impl Told {
    fn hear(&self, headers: &HeaderMap, now: Duration) {
        let date = headers.get(http::header::DATE).and_then(|date| date.to_str().ok());
        let parser = jiff::fmt::rfc2822::DateTimeParser::new();
        if let Some(date) = date.and_then(|date| parser.parse_timestamp(date).ok()) {
            *lock(&self.0) = Some((date, now));
        }
    }

    pub(super) fn time(&self) -> Option<(Timestamp, Duration)> {
        *lock(&self.0)
    }
}

/// Makes clients whose requests are counted.
#[derive(Debug)]
pub(super) struct Connector {
    env: Env,
    meter: Meter,
    credentials: Option<Arc<Renewing>>,
    told: Told,
    uplink: Uplink,
}

impl Connector {
    /// Refused credentials are asked for again there, if there is such a place.
    pub(super) fn new(
        env: &Env,
        meter: &Meter,
        told: &Told,
        uplink: &Uplink,
        credentials: Option<Arc<Renewing>>,
    ) -> Self {
        let (told, uplink) = (told.clone(), uplink.clone());
        Self { env: env.clone(), meter: meter.clone(), credentials, told, uplink }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let clients = Clients { options: options.clone(), by_runtime: Mutex::default() };
        let (env, meter) = (self.env.clone(), self.meter.clone());
        let (credentials, told) = (self.credentials.clone(), self.told.clone());
        let uplink = self.uplink.clone();
        Ok(HttpClient::new(Counted { clients, env, meter, credentials, told, uplink }))
    }
}

/// The most runtimes whose connections are kept.
const MAX_RUNTIMES: usize = 8;

/// A client for each runtime: a connection lives on the runtime that opened it, and a handler that
/// blocks that runtime would hold up whoever shares the connection, such as the heartbeat on its own.
#[derive(Debug)]
struct Clients {
    options: ClientOptions,
    #[allow(
        clippy::disallowed_types,
        reason = "an `Id` has no order; nobody goes through them all"
    )]
    by_runtime: Mutex<std::collections::HashMap<tokio::runtime::Id, HttpClient>>,
}

impl Clients {
    fn here(&self) -> object_store::Result<HttpClient> {
        let runtime = tokio::runtime::Handle::current().id();
        let mut clients = lock(&self.by_runtime);
        if let Some(client) = clients.get(&runtime) {
            return Ok(client.clone());
        }
        if clients.len() >= MAX_RUNTIMES {
            clients.clear(); // of those that are long gone, most of all
        }
        crate::tls::provide();
        let client = ReqwestConnector::default().connect(&self.options)?;
        clients.insert(runtime, client.clone());
        Ok(client)
    }
}

#[derive(Debug)]
struct Counted {
    clients: Clients,
    env: Env,
    meter: Meter,
    credentials: Option<Arc<Renewing>>,
    told: Told,
    uplink: Uplink,
}

impl Counted {
    /// Waits for a part of an exchange, but not for ever. How long that may take is asked for again once it has
    /// taken so long: others may have come to share the line meanwhile.
    async fn within<R>(
        &self,
        limit: impl Fn() -> Duration,
        part: impl Future<Output = Result<R, HttpError>>,
    ) -> Result<R, HttpError> {
        let (mut part, began) = (std::pin::pin!(part), self.env.monotonic());
        let mut allowed = limit();
        loop {
            let passed = self.env.monotonic().saturating_sub(began);
            tokio::select! {
                biased;
                answer = &mut part => return answer,
                () = self.env.clock().sleep(allowed.saturating_sub(passed)) => {}
            }
            let longer = limit();
            if longer <= allowed {
                let silence = format!("silence for {} s", allowed.as_secs());
                return Err(HttpError::new(HttpErrorKind::Timeout, std::io::Error::other(silence)));
            }
            allowed = longer;
        }
    }
}

#[async_trait]
impl HttpService for Counted {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let kind = kind_of(request.method(), request.uri().query());
        self.meter.sent(kind);
        let key = key_of(&request);
        let client = self.clients.here();
        let client = client.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let bytes = request.body().content_length() as u64;
        self.meter.bytes_sent(bytes);
        let limit = || allowed(self.uplink.shared_with(bytes));
        let answer = match self.within(limit, client.execute(request)).await {
            Ok(answer) => answer,
            Err(error) => {
                self.meter.failed(kind);
                return Err(error);
            }
        };
        self.told.hear(answer.headers(), self.env.monotonic());
        let status = answer.status();
        let success = status.is_success() || status == StatusCode::NOT_MODIFIED;
        let length = answer.headers().get(http::header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        if success && length.is_some_and(|length| length > layout::LONGEST_READ) {
            return Ok(answer); // nobody reads so much
        }
        let (parts, body) = answer.into_parts();
        let limit = || allowed(length.unwrap_or(UNSAID_LENGTH));
        let body = match self.within(limit, body.collect()).await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                self.meter.failed(kind);
                return Err(error);
            }
        };
        self.meter.bytes_received(body.len() as u64);
        if success && kind == RequestKind::List {
            let body = HttpResponseBody::from(listing::without_foreign_keys(body));
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let answers_for_each = kind == RequestKind::Delete;
        let code = match success && !answers_for_each {
            true => String::new(),
            false => trouble_in(&String::from_utf8_lossy(&body), answers_for_each),
        };
        if success && code.is_empty() {
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)));
        }
        // The answer to a bulk delete is a success even if some of it was refused.
        let status = match (success, code.as_str()) {
            (false, _) => status,
            (true, "AccessDenied" | "AuthorizationFailure" | "AuthorizationPermissionMismatch") => {
                StatusCode::FORBIDDEN
            }
            (true, _) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let expected = match status {
            StatusCode::NOT_FOUND => code != "NoSuchBucket",
            // The condition did not hold: that is an answer.
            StatusCode::PRECONDITION_FAILED => true,
            // Azure's way to say so.
            StatusCode::CONFLICT => code == "BlobAlreadyExists",
            _ => false,
        };
        if expected {
            self.meter.no(kind);
            let body = HttpResponseBody::from(body);
            return Ok(HttpResponse::from_parts(parts, body));
        }
        self.meter.failed(kind);
        let region = parts.headers.get("x-amz-bucket-region");
        let region = region.and_then(|region| region.to_str().ok()).map(str::to_owned);
        let mut refused = Refused { status, code, region, renewed: false, not_given: None };
        if let Some(credentials) =
            self.credentials.as_ref().filter(|_| refused.blames_credentials())
        {
            match credentials.renew(&key).await {
                Ok(renewed) => refused.renewed = renewed,
                Err(error) => refused.not_given = Some(error),
            }
        }
        Err(HttpError::new(HttpErrorKind::Unknown, refused))
    }
}

/// The access key that a request is signed with, which is no secret.
fn key_of(request: &HttpRequest) -> String {
    let signed = request.headers().get(http::header::AUTHORIZATION);
    let key = signed.and_then(|signed| {
        let (_, rest) = signed.to_str().ok()?.split_once("Credential=")?;
        rest.split_once('/').map(|(key, _)| key.to_owned())
    });
    key.unwrap_or_default()
}

/// The content of the first `<Code>` in an error document. In the answer to a bulk delete, a code that says that an
/// object was gone already is not an error: Azure sends one for each such object, S3 sends none.
fn trouble_in(document: &str, of_removals: bool) -> String {
    let is_word = |code: &str| code.len() < 100 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    let codes = document.split("<Code>").skip(1).filter_map(|rest| rest.split_once("</Code>"));
    let mut words = codes.map(|(code, _)| code).filter(|code| is_word(code));
    let gone = |code: &str| of_removals && matches!(code, "BlobNotFound" | "NoSuchKey");
    words.find(|code| !gone(code)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sorted_as_price_lists_do() {
        let kind = |method: Method, query| kind_of(&method, query);
        assert_eq!(kind(Method::GET, None), RequestKind::Get);
        assert_eq!(kind(Method::GET, Some("list-type=2&prefix=x")), RequestKind::List);
        assert_eq!(kind(Method::POST, Some("delete")), RequestKind::Delete);
        assert_eq!(kind(Method::POST, Some("uploads")), RequestKind::Put);
        assert_eq!(kind(Method::PUT, Some("x-id=PutObject")), RequestKind::Put);
    }

    #[test]
    fn the_servers_clock_is_heard() {
        let (told, mut headers) = (Told::default(), HeaderMap::new());
        told.hear(&headers, Duration::ZERO);
        assert_eq!(told.time(), None);
        for (date, heard) in
            [("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777), ("nonsense", 784_111_777)]
        {
            headers.insert(http::header::DATE, date.parse().unwrap());
            told.hear(&headers, Duration::from_secs(3));
            let time = Timestamp::from_second(heard).unwrap();
            assert_eq!(told.time(), Some((time, Duration::from_secs(3))));
        }
    }

    #[test]
    fn the_servers_word_for_it() {
        let said = |document| trouble_in(document, false);
        assert_eq!(said("<Error><Code>SlowDown</Code><Message>x</Message></Error>"), "SlowDown");
        assert_eq!(said("<Code>no such thing!</Code>"), "");
        assert_eq!(said(""), "");
        let many = "<Code>BlobNotFound</Code> and <Code>AuthorizationFailure</Code>";
        assert_eq!(said(many), "BlobNotFound");
        assert_eq!(trouble_in(many, true), "AuthorizationFailure");
        assert_eq!(trouble_in("<Code>BlobNotFound</Code>", true), "");
    }
}
