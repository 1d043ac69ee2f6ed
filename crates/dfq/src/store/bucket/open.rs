//! Getting at a bucket, whoever keeps it. Each cloud has a file of its own, and a Cargo feature.

use std::time::Duration;

use object_store::RetryConfig;

use super::client::{Api, Client};
use super::http::Told;
use super::uplink::Uplink;
use super::{Bucket, BucketObjects};
use crate::address::{BucketAddress, Cloud};
use crate::clock::Env;
use crate::error::{Error, Result, left_out};
use crate::meter::Meter;
use crate::options::S3Options;

/// How long a request may take is decided by its size, in `http`; this is only above all that.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// We try again ourselves: see [`Retrying`](crate::store::retrying::Retrying).
pub(super) fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

impl Bucket {
    /// Whether this program was built with what it takes to speak to this cloud.
    pub fn is_built_for(cloud: Cloud) -> bool {
        match cloud {
            Cloud::S3 => cfg!(feature = "s3"),
            Cloud::Google => cfg!(feature = "gcs"),
            Cloud::Azure => cfg!(feature = "azure"),
        }
    }

    /// The bucket, or the part of one, at an address.
    pub async fn open(
        address: &BucketAddress,
        s3: &S3Options,
        env: Env,
        meter: Meter,
    ) -> Result<Self> {
        let BucketAddress { cloud, bucket, prefix } = address;
        match cloud {
            #[cfg(feature = "s3")]
            Cloud::S3 => Self::s3(bucket, prefix, s3.clone(), env, meter).await,
            #[cfg(feature = "gcs")]
            Cloud::Google => {
                let (told, uplink) = (Told::default(), Uplink::default());
                let api = super::gcs::connect(bucket, &env, &meter, &told, &uplink);
                Self::over_api(address, api, env, meter, (told, uplink))
            }
            #[cfg(feature = "azure")]
            Cloud::Azure => {
                let (told, uplink) = (Told::default(), Uplink::default());
                let api = super::azure::connect(bucket, &env, &meter, &told, &uplink);
                Self::over_api(address, api, env, meter, (told, uplink))
            }
            #[allow(unreachable_patterns, reason = "with all features, every cloud has an arm")]
            _ => Err(left_out(address, cloud.feature())),
        }
    }

    fn over_api(
        address: &BucketAddress,
        api: object_store::Result<Box<dyn Api>>,
        env: Env,
        meter: Meter,
        (told, uplink): (Told, Uplink),
    ) -> Result<Self> {
        let api = api.map_err(|error| Error::invalid(format!("{address}: {error}")))?;
        let client =
            Client::new(api, env.clone(), uplink, &address.prefix, &address.to_string(), None);
        let objects = BucketObjects::new(address.cloud.scheme(), client, &env, meter, told, None);
        Ok(Self::in_bucket(objects, env))
    }
}

pub(super) fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs())
}
