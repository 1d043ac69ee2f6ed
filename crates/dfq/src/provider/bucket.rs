//! Queues in buckets: S3 and all that speak its protocol, Google's, Azure's.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Provider, folders_of, on_tree};
use crate::address::{Address, BucketAddress};
use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::queue::Queue;
use crate::store::Objects;
use crate::store::bucket::Bucket;

pub(super) struct InBucket;

fn bucket(address: &Address) -> Result<&BucketAddress> {
    match address {
        Address::Bucket(bucket) => Ok(bucket),
        elsewhere => Err(Error::invalid(format!("{elsewhere} is not in a bucket"))),
    }
}

pub(super) async fn open_bucket(address: &BucketAddress, options: &OpenOptions) -> Result<Bucket> {
    Bucket::open(address, &options.s3, options.env.clone(), options.meter.clone()).await
}

#[async_trait]
impl Provider for InBucket {
    fn knows(&self, address: &Address) -> bool {
        bucket(address).is_ok_and(|bucket| Bucket::is_built_for(bucket.cloud))
    }

    async fn open(&self, address: &Address, options: OpenOptions) -> Result<Arc<dyn Queue>> {
        on_tree(open_bucket(bucket(address)?, &options).await?, options).await
    }

    async fn objects(
        &self,
        address: &Address,
        options: &OpenOptions,
        _create: bool,
    ) -> Result<Arc<dyn Objects>> {
        let bucket = open_bucket(bucket(address)?, options).await?;
        Ok(Arc::clone(bucket.objects()) as Arc<dyn Objects>)
    }

    async fn folders(
        &self,
        address: &Address,
        options: &OpenOptions,
    ) -> Result<Vec<(String, Address)>> {
        let bucket = bucket(address)?;
        let folders = folders_of(&open_bucket(bucket, options).await?).await?;
        let below = |name: &String| Address::Bucket(bucket.below(name));
        Ok(folders.into_iter().map(|name| (name.clone(), below(&name))).collect())
    }
}
