//! What a request is, told from its first line and headers: enough to count it and to choose a fault
//! for it before it is executed.

use hyper::header::{AUTHORIZATION, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;

/// One request, as a script and the meter see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The operation as S3 names it: `PutObject`, `ListObjectsV2`, … or `Unknown`.
    pub op: &'static str,
    /// The bucket, or nothing.
    pub bucket: String,
    /// The key, or of a listing its prefix, or nothing.
    pub key: String,
    /// `If-Match` as it was sent.
    pub if_match: Option<String>,
    /// `If-None-Match` as it was sent.
    pub if_none_match: Option<String>,
    /// The access key that it is signed with, if it is.
    pub access_key: Option<String>,
    /// The how manieth request this is to the server, from 1.
    pub seq: u64,
    /// The how manieth of this operation on this key since the script was set, from 1.
    pub nth: u64,
}

impl RequestInfo {
    pub(crate) fn new(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let path = decode(uri.path().trim_start_matches('/'));
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        let query: Vec<(String, String)> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decode(name), decode(&value.replace('+', " "))))
            .collect();
        let value = |name: &str| query.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let has = |name: &str| value(name).is_some();
        let header = |name| headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into());
        let op = match (method, bucket.is_empty(), key.is_empty()) {
            (&Method::GET, true, _) => "ListBuckets",
            (&Method::PUT, false, true) => "CreateBucket",
            (&Method::HEAD, false, true) => "HeadBucket",
            (&Method::GET, false, true) if value("list-type") == Some("2") => "ListObjectsV2",
            (&Method::POST, false, true) if has("delete") => "DeleteObjects",
            (_, _, false) if has("uploadId") || has("uploads") => "Unknown",
            (&Method::PUT, false, false) if headers.contains_key("x-amz-copy-source") => {
                "CopyObject"
            }
            (&Method::PUT, false, false) => "PutObject",
            (&Method::GET, false, false) => "GetObject",
            (&Method::HEAD, false, false) => "HeadObject",
            (&Method::DELETE, false, false) => "DeleteObject",
            _ => "Unknown",
        };
        let key = if op == "ListObjectsV2" { value("prefix").unwrap_or("") } else { key };
        Self {
            op,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            if_match: header(IF_MATCH),
            if_none_match: header(IF_NONE_MATCH),
            access_key: header(AUTHORIZATION).and_then(|header: String| signed_with(&header)),
            seq: 0,
            nth: 0,
        }
    }

    /// Whether it is a write that depends on a condition.
    #[must_use]
    pub fn is_conditional_put(&self) -> bool {
        matches!(self.op, "PutObject" | "CopyObject")
            && (self.if_match.is_some() || self.if_none_match.is_some())
    }
}

/// The access key in an `Authorization` header.
fn signed_with(authorization: &str) -> Option<String> {
    let (_, credential) = authorization.split_once("Credential=")?;
    credential.split('/').next().map(str::to_owned)
}
