//! Getting at a bucket: where it is, and with whose credentials.
//!
//! Region, endpoint and credentials come from where every AWS tool takes them (`aws-config`: the
//! environment, profiles, SSO, containers, instances), and are asked for again before they expire;
//! for Google and Azure from their own environment variables. Nothing of them is ever printed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{Region, SdkConfig};
use aws_types::service_config::ServiceConfigKey;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{ClientConfigKey, ClientOptions, HttpConnector as _};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{CredentialProvider, RetryConfig};

use super::client::{Api, Client};
use super::credentials::Renewing;
use super::http::Connector;
use super::raw::Raw;
use super::{Bucket, BucketObjects};
use crate::clock::Env;
use crate::config::{BucketAddress, Cloud};
use crate::error::{Error, ErrorKind, Result};
use crate::meter::Meter;
use crate::queue::OpenOptions;

/// How to get at S3, where that differs from the ordinary AWS environment.
#[derive(Clone, Default)]
pub struct S3Options {
    /// The server, if it is not AWS. Only one that begins with `http://` is spoken to in the clear.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The profile of `~/.aws` to take everything else from.
    pub profile: Option<String>,
    /// The bucket's name stands in the path, not in the host name. By default it does.
    pub path_style: Option<bool>,
    /// Access key and secret.
    pub credentials: Option<(String, String)>,
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Options")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .field("path_style", &self.path_style)
            .finish_non_exhaustive()
    }
}

/// How long a request may take is decided by its size, in `http`; this is only above all that.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// We try again ourselves: see [`Retrying`](crate::store::retrying::Retrying).
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

impl Bucket {
    /// The bucket, or the part of one, at an address.
    pub async fn open(address: &BucketAddress, options: &OpenOptions) -> Result<Self> {
        let BucketAddress { cloud, bucket, prefix } = address;
        let (env, meter) = (options.env.clone(), options.meter.clone());
        let store = match cloud {
            Cloud::S3 => return Self::s3(bucket, prefix, options.s3.clone(), env, meter).await,
            Cloud::Google => google(bucket, &env, &meter),
            Cloud::Azure => azure(bucket, &env, &meter),
        };
        let store = store.map_err(|error| Error::invalid(format!("{address}: {error}")))?;
        let client = Client::new(store, env.clone(), prefix, &address.to_string(), None);
        let objects = BucketObjects::new(cloud.scheme(), client, &env, meter, None);
        Ok(Self::in_bucket(objects, env))
    }

    /// A part of a bucket on S3, or on a server that speaks its protocol.
    pub async fn s3(
        bucket: &str,
        prefix: &str,
        options: S3Options,
        env: Env,
        meter: Meter,
    ) -> Result<Self> {
        let mut loader = aws_config::defaults(aws_config::BehaviorVersion::latest())
            .http_client(crate::tls::aws_http_client());
        if let Some(profile) = &options.profile {
            loader = loader.profile_name(profile);
        }
        let config = loader.region(region_chain(&options)).load().await;
        let endpoint = options.endpoint.or_else(|| configured_endpoint(&config));
        let region = config.region().map_or_else(|| "us-east-1".to_owned(), ToString::to_string);
        let path_style = options.path_style.unwrap_or(true);
        let place = match &endpoint {
            Some(endpoint) => format!("s3://{bucket}/{prefix} at {endpoint}"),
            None => format!("s3://{bucket}/{prefix}"),
        };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(&region)
            .with_virtual_hosted_style_request(!path_style)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(no_retries());
        let mut client = ClientOptions::new()
            .with_timeout(REQUEST_TIMEOUT)
            .with_connect_timeout(CONNECT_TIMEOUT);
        if let Some(endpoint) = &endpoint {
            let Some((scheme @ ("http" | "https"), host)) = endpoint.split_once("://") else {
                return Err(Error::invalid(format!(
                    "the endpoint '{endpoint}' is no URL; write https://host, or http://host:port"
                )));
            };
            if host.contains('@') {
                return Err(Error::invalid(
                    "the endpoint has a user or password in it; credentials go into \
                     AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or into a profile",
                ));
            }
            client = client.with_allow_http(scheme == "http");
            builder = match path_style {
                true => builder.with_endpoint(endpoint),
                false => builder.with_endpoint(format!("{scheme}://{bucket}.{host}")),
            };
        }
        builder = builder.with_client_options(client.clone());
        let mut credentials = None;
        builder = match (options.credentials, config.credentials_provider()) {
            (Some((key, secret)), _) => {
                builder.with_access_key_id(key).with_secret_access_key(secret)
            }
            (None, Some(_)) => {
                let region = config.region().cloned();
                let renewing = Arc::new(Renewing::new(env.clone(), options.profile, region));
                // Asked for once now: that there are none is told better here than by a request.
                renewing.get_credential().await.map_err(|error| no_credentials(&place, &error))?;
                credentials = Some(Arc::clone(&renewing));
                builder.with_credentials(renewing)
            }
            (None, None) => return Err(no_credentials(&place, &"none are configured")),
        };
        builder = builder.with_http_connector(Connector::new(&env, &meter, credentials));
        let wrong = |error| Error::invalid(format!("{place}: {error}"));
        let store = builder.build().map_err(wrong)?;
        let address = format!("s3://{bucket}/{prefix}").trim_end_matches('/').to_owned();
        let http = Connector::new(&env, &meter, None).connect(&client).map_err(wrong)?;
        let server = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let base = match server.trim_end_matches('/').split_once("://") {
            Some((scheme, host)) if !path_style => format!("{scheme}://{bucket}.{host}"),
            _ => format!("{}/{bucket}", server.trim_end_matches('/')),
        };
        let raw = Raw::new(http, Arc::clone(store.credentials()), region, base, prefix);
        let client = Client::new(Box::new(store), env.clone(), prefix, &address, Some(server));
        let objects = BucketObjects::new("s3", client, &env, meter, Some(raw));
        Ok(Self::in_bucket(objects, env))
    }
}

/// As told, then as for every AWS tool; but a server of one's own is in no machine's region, and to ask
/// the machine can take seconds where there is nobody to answer.
fn region_chain(options: &S3Options) -> RegionProviderChain {
    let mut profile = ProfileFileRegionProvider::builder();
    if let Some(name) = &options.profile {
        profile = profile.profile_name(name);
    }
    let told = RegionProviderChain::first_try(options.region.clone().map(Region::new))
        .or_else(EnvironmentVariableRegionProvider::new())
        .or_else(profile.build());
    let elsewhere = options.endpoint.is_some()
        || ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
            .iter()
            .any(|name| std::env::var_os(name).is_some_and(|url| !url.is_empty()));
    match elsewhere {
        true => told,
        false => {
            let machine = ImdsRegionProvider::builder().configure(&crate::tls::aws_providers());
            told.or_else(machine.build())
        }
    }
}

/// `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, or what the profile says of either.
fn configured_endpoint(config: &SdkConfig) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id("S3")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build();
    let of_s3 = config.service_config().zip(key.ok()).and_then(|(it, key)| it.load_config(key));
    of_s3.or_else(|| config.endpoint_url().map(str::to_owned))
}

fn no_credentials(place: &str, error: &dyn fmt::Display) -> Error {
    // What is behind it can be pages long; the profile's name or a file's is in the first line.
    let error = error.to_string();
    tracing::debug!("{place}: {error}");
    Error::new(
        ErrorKind::Denied,
        format!(
            "there are no AWS credentials for {place}: set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where a role gives them"
        ),
    )
}

fn google(bucket: &str, env: &Env, meter: &Meter) -> object_store::Result<Box<dyn Api>> {
    let client = |key| GoogleConfigKey::Client(key);
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_config(client(ClientConfigKey::Timeout), seconds(REQUEST_TIMEOUT))
        .with_config(client(ClientConfigKey::ConnectTimeout), seconds(CONNECT_TIMEOUT))
        .with_retry(no_retries())
        .with_http_connector(Connector::new(env, meter, None));
    let url = builder.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default();
    let http = url.starts_with("http://").to_string();
    Ok(Box::new(builder.with_config(client(ClientConfigKey::AllowHttp), http).build()?))
}

fn azure(container: &str, env: &Env, meter: &Meter) -> object_store::Result<Box<dyn Api>> {
    let client = |key| AzureConfigKey::Client(key);
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_config(client(ClientConfigKey::Timeout), seconds(REQUEST_TIMEOUT))
        .with_config(client(ClientConfigKey::ConnectTimeout), seconds(CONNECT_TIMEOUT))
        .with_retry(no_retries())
        .with_http_connector(Connector::new(env, meter, None));
    let url = builder.get_config_value(&AzureConfigKey::Endpoint).unwrap_or_default();
    if url.starts_with("http://") {
        builder = builder.with_config(client(ClientConfigKey::AllowHttp), "true");
    }
    Ok(Box::new(builder.build()?))
}

fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs())
}
