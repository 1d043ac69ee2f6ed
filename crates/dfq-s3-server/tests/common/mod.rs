//! Clients of the server that we did not write: `object_store`'s, and its signer for the requests
//! that it never sends.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::time::Duration;

use dfq_s3_server::{Options, Server};
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential};
use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, HeaderMap, ObjectStore, ObjectStoreExt, PutMode, PutResult,
    RetryConfig, UpdateVersion,
};

pub(crate) async fn honest() -> Server {
    Server::start(Options::default()).await.unwrap()
}

pub(crate) fn builder(server: &Server) -> AmazonS3Builder {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // No retries: a test must see each answer. No certificates: loading them takes long.
    let options = ClientOptions::new()
        .with_allow_http(true)
        .with_no_system_certificates(true)
        .with_timeout(Duration::from_secs(10));
    AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_bucket_name(server.bucket())
        .with_region("us-east-1")
        .with_access_key_id(server.access_key())
        .with_secret_access_key(server.secret_key())
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_client_options(options)
}

pub(crate) fn client(server: &Server) -> AmazonS3 {
    builder(server).build().unwrap()
}

pub(crate) fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

pub(crate) async fn put(client: &AmazonS3, key: &str, body: &str) -> Result<PutResult, Error> {
    client.put(&path(key), body.to_owned().into()).await
}

/// Create if absent.
pub(crate) async fn create(client: &AmazonS3, key: &str, body: &str) -> Result<PutResult, Error> {
    client.put_opts(&path(key), body.to_owned().into(), PutMode::Create.into()).await
}

/// Compare and swap.
pub(crate) async fn update(
    client: &AmazonS3,
    key: &str,
    body: &str,
    etag: &str,
) -> Result<PutResult, Error> {
    let version = UpdateVersion { e_tag: Some(etag.to_owned()), version: None };
    client.put_opts(&path(key), body.to_owned().into(), PutMode::Update(version).into()).await
}

pub(crate) async fn get(client: &AmazonS3, key: &str) -> Result<String, Error> {
    let bytes = client.get_opts(&path(key), GetOptions::default()).await?.bytes().await?;
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

/// An answer to a request that was put together by hand.
pub(crate) struct Raw {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// Signs and sends any request.
pub(crate) async fn raw(
    server: &Server,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> Raw {
    raw_with_body(server, method, target, headers, "").await
}

pub(crate) async fn raw_with_body(
    server: &Server,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Raw {
    let options = ClientOptions::new().with_allow_http(true).with_no_system_certificates(true);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = ReqwestConnector::default().connect(&options).unwrap();
    let mut request = HttpRequest::new(HttpRequestBody::from(body.to_owned()));
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = format!("{}{target}", server.endpoint()).parse().unwrap();
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let (key_id, secret_key) = (server.access_key().to_owned(), server.secret_key().to_owned());
    let credential = AwsCredential { key_id, secret_key, token: None };
    AwsAuthorizer::new(&credential, "s3", "us-east-1").try_authorize(&mut request, None).unwrap();
    let response = http.execute(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.bytes().await.unwrap().to_vec()).unwrap();
    Raw { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// The whole chain of an error as one text.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
