//! Buckets on S3, and on servers that speak its protocol.
//!
//! Region, endpoint and credentials come from where every AWS tool takes them (`aws-config`: the
//! environment, profiles, SSO, containers, instances), and are asked for again before they expire. Nothing of
//! them is ever printed.

use std::fmt;
use std::sync::Arc;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{Region, SdkConfig};
use aws_credential_types::provider::ProvideCredentials;
use aws_types::service_config::ServiceConfigKey;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3Builder, AwsCredential, S3ConditionalPut};
use object_store::client::{ClientOptions, HttpConnector as _};

use super::client::Client;
use super::credentials::{Found, Renewing, with_causes};
use super::http::{Connector, Told};
use super::open::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, no_retries};
use super::raw::Raw;
use super::uplink::Uplink;
use super::{Bucket, BucketObjects};
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::Meter;
use crate::options::S3Options;

impl Bucket {
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
        let location = match &endpoint {
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
                    "the endpoint '{endpoint}' is not a URL; write https://host, or http://host:port"
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
                let renewing = Arc::new(Renewing::from(env.clone(), move || {
                    Box::pin(ask_chain(options.profile.clone(), region.clone()))
                }));
                // Asked for once now: that there are none is told better here than by a request.
                renewing
                    .get_credential()
                    .await
                    .map_err(|error| no_credentials(&location, &error))?;
                credentials = Some(Arc::clone(&renewing));
                builder.with_credentials(renewing)
            }
            (None, None) => return Err(no_credentials(&location, &"none are configured")),
        };
        let (told, uplink) = (Told::default(), Uplink::default());
        builder =
            builder.with_http_connector(Connector::new(&env, &meter, &told, &uplink, credentials));
        let wrong = |error| Error::invalid(format!("{location}: {error}"));
        let store = builder.build().map_err(wrong)?;
        let address = format!("s3://{bucket}/{prefix}").trim_end_matches('/').to_owned();
        let http =
            Connector::new(&env, &meter, &told, &uplink, None).connect(&client).map_err(wrong)?;
        let server = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let base = match server.trim_end_matches('/').split_once("://") {
            Some((scheme, host)) if !path_style => format!("{scheme}://{bucket}.{host}"),
            _ => format!("{}/{bucket}", server.trim_end_matches('/')),
        };
        let raw = Raw::new(http, Arc::clone(store.credentials()), region, base, prefix);
        let client =
            Client::new(Box::new(store), env.clone(), uplink, prefix, &address, Some(server));
        let objects = BucketObjects::new("s3", client, &env, meter, told, Some(raw));
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

fn no_credentials(location: &str, error: &dyn fmt::Display) -> Error {
    // What is behind it can be pages long; the profile's name or a file's is in the first line.
    let error = error.to_string();
    tracing::debug!("{location}: {error}");
    Error::new(
        ErrorKind::Denied,
        format!(
            "there are no AWS credentials for {location}: set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where a role gives them"
        ),
    )
}

/// Asks as every AWS tool does. From the beginning each time: a chain that was asked before keeps what it
/// read, also of a file that has changed.
async fn ask_chain(
    profile: Option<String>,
    region: Option<Region>,
) -> std::result::Result<Found, String> {
    let mut chain = DefaultCredentialsChain::builder().configure(crate::tls::aws_providers());
    if let Some(profile) = &profile {
        chain = chain.profile_name(profile);
    }
    if let Some(region) = region {
        chain = chain.region(region);
    }
    let found = chain.build().await.provide_credentials().await;
    let found = found.map_err(|error| with_causes(&error))?;
    let expires = found.expiry().and_then(|at| {
        let since = at.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_secs()).ok()
    });
    let credential = AwsCredential {
        key_id: found.access_key_id().to_owned(),
        secret_key: found.secret_access_key().to_owned(),
        token: found.session_token().map(str::to_owned),
    };
    Ok(Found { credential, expires })
}
