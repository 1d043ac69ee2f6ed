//! The conformance suites over a container on Azurite, where `DFQ_TEST_AZURE` is set. Where it is and what opens
//! it is in the variables that every program for Azure reads (`AZURE_STORAGE_USE_EMULATOR`,
//! `AZURITE_BLOB_STORAGE_URL`); `./test --integration` sets them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dfq::address::{BucketAddress, Cloud};
use dfq::conformance::Provider;
use dfq::conformance::objects::ObjectsProvider;
use dfq::options::S3Options;
use dfq::store::Objects;
use dfq::store::bucket::Bucket;
use dfq::{Env, OpenOptions, Queue, Settings, TreeQueue};

/// A part of the container that `servers/azurite` makes.
struct Container {
    prefix: String,
}

impl Container {
    async fn bucket(&self) -> Bucket {
        let address = BucketAddress {
            cloud: Cloud::Azure,
            bucket: "dfq-test".to_owned(),
            prefix: self.prefix.clone(),
        };
        let (none, env, meter) = (S3Options::default(), Env::system(), Default::default());
        Bucket::open(&address, &none, env, meter).await.unwrap()
    }
}

#[async_trait]
impl ObjectsProvider for Container {
    async fn open(&self) -> Arc<dyn Objects> {
        Arc::clone(self.bucket().await.objects()) as Arc<dyn Objects>
    }
}

#[async_trait]
impl Provider for Container {
    async fn worker(&self, settings: &Settings) -> Arc<dyn Queue> {
        let options = OpenOptions { create: Some(settings.clone()), ..OpenOptions::default() };
        Arc::new(TreeQueue::open(self.bucket().await, options).await.unwrap())
    }

    #[allow(clippy::disallowed_methods, reason = "the store's clock is the machine's")]
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn lease(&self) -> Duration {
        // Times are whole seconds, for which no leases shorter than six are allowed.
        Duration::from_secs(6)
    }
}

async fn make() -> Option<Container> {
    std::env::var_os("DFQ_TEST_AZURE")?;
    Some(Container { prefix: format!("test/{}", Env::system().nonce()) })
}

dfq::conformance_tests!(make);

mod objects {
    dfq::objects_tests!(super::make);
}
