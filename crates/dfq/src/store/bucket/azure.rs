//! Containers on Azure Blob Storage, with the credentials of its own environment variables.

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;

use super::client::Api;
use super::http::{Connector, Told};
use super::open::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, no_retries, seconds};
use super::uplink::Uplink;
use crate::clock::Env;
use crate::meter::Meter;

pub(super) fn connect(
    container: &str,
    env: &Env,
    meter: &Meter,
    told: &Told,
    uplink: &Uplink,
) -> object_store::Result<Box<dyn Api>> {
    let client = |key| AzureConfigKey::Client(key);
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_config(client(ClientConfigKey::Timeout), seconds(REQUEST_TIMEOUT))
        .with_config(client(ClientConfigKey::ConnectTimeout), seconds(CONNECT_TIMEOUT))
        .with_retry(no_retries())
        .with_http_connector(Connector::new(env, meter, told, uplink, None));
    let url = builder.get_config_value(&AzureConfigKey::Endpoint).unwrap_or_default();
    if url.starts_with("http://") {
        builder = builder.with_config(client(ClientConfigKey::AllowHttp), "true");
    }
    Ok(Box::new(builder.build()?))
}
