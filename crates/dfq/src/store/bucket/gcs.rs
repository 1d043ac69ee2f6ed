//! Buckets on Google Cloud Storage, with the credentials of its own environment variables.

use object_store::client::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

use super::client::Api;
use super::http::{Connector, Told};
use super::open::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, no_retries, seconds};
use super::uplink::Uplink;
use crate::clock::Env;
use crate::meter::Meter;

pub(super) fn connect(
    bucket: &str,
    env: &Env,
    meter: &Meter,
    told: &Told,
    uplink: &Uplink,
) -> object_store::Result<Box<dyn Api>> {
    let client = |key| GoogleConfigKey::Client(key);
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_config(client(ClientConfigKey::Timeout), seconds(REQUEST_TIMEOUT))
        .with_config(client(ClientConfigKey::ConnectTimeout), seconds(CONNECT_TIMEOUT))
        .with_retry(no_retries())
        .with_http_connector(Connector::new(env, meter, told, uplink, None));
    let url = builder.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default();
    let http = url.starts_with("http://").to_string();
    Ok(Box::new(builder.with_config(client(ClientConfigKey::AllowHttp), http).build()?))
}
