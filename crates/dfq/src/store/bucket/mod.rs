//! A queue in a bucket: the same tree as keys, claims by `If-None-Match: *`.
//!
//! Invariant: nothing here relies on anything but the conditional create, reads that see what was
//! written, and listings. Deletes are unconditional, so they only ever name what has no other use.

mod client;
mod credentials;
mod http;
mod listing;
mod open;
mod policy;
mod raw;
mod remove;
mod rubbish;
mod tree;
mod update;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub use self::open::S3Options;
pub use self::policy::{Role, policy};
pub(crate) use self::raw::{Raw, RawAnswer};

use self::client::{Client, Objects};
use self::rubbish::Rubbish;
use crate::clock::Env;
use crate::layout;
use crate::meter::Meter;
use crate::store::Properties;

/// A bucket, or a part of one.
pub struct Bucket {
    client: Arc<Client>,
    rubbish: Rubbish,
    properties: Properties,
    meter: Meter,
    /// Written to learn the store's time.
    clock_file: String,
    changed: Arc<Notify>,
    /// For requests that the client has no verb for; only S3 has them.
    raw: Option<Raw>,
}

impl Bucket {
    fn new(
        store: Box<dyn Objects>,
        env: Env,
        prefix: &str,
        address: String,
        server: Option<String>,
        meter: Meter,
    ) -> Self {
        let client = Client::new(store, env.clone(), prefix, &address, server);
        let client = Arc::new(client);
        Self {
            clock_file: layout::below(layout::TMP, &format!("now-{}", env.nonce())),
            rubbish: Rubbish::new(Arc::clone(&client), env),
            client,
            properties: Properties {
                provider: "s3",
                address,
                blocking: false,
                remote: true,
                // Requests cost money: a third of the lease, however long that is.
                heartbeat_every: Duration::MAX,
                notices_changes: false,
            },
            meter,
            changed: Arc::default(),
            raw: None,
        }
    }

    /// Requests as they are, where the store speaks S3.
    pub(crate) fn raw(&self) -> Option<&Raw> {
        self.raw.as_ref()
    }

    /// How many requests have been sent.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.properties.address)
    }
}
