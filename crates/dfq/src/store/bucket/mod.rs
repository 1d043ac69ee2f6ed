//! A queue in a bucket: the same tree as keys, claims by `If-None-Match: *`.
//!
//! Invariant: nothing here relies on anything but the conditional create, reads that see what was
//! written, and listings; and swap relies on `If-Match`. Deletes are unconditional, so they only ever name what
//! has no other use.

#[cfg(feature = "azure")]
mod azure;
mod client;
mod credentials;
#[cfg(feature = "gcs")]
mod gcs;
mod http;
mod listing;
mod objects;
mod open;
mod policy;
mod raw;
mod remove;
#[cfg(feature = "s3")]
mod s3;
mod uplink;

use std::time::Duration;

#[cfg(feature = "conformance")]
pub(crate) use self::listing::without_foreign_keys;
pub use self::objects::BucketObjects;
pub use self::policy::{Dialect, policy};
pub(crate) use self::raw::{Raw, RawAnswer};

use crate::clock::Env;
use crate::meter::Meter;
use crate::store::keys::{KeyTree, Manner};

/// A queue in a bucket, or in a part of one.
pub type Bucket = KeyTree<BucketObjects>;

impl Bucket {
    fn in_bucket(objects: BucketObjects, env: Env) -> Self {
        // What a request tells of an object's time is an HTTP date: whole seconds.
        let manner = Manner { time_resolution: Duration::from_secs(1), removes_together: true };
        Self::over(objects, env, manner)
    }

    /// Requests as they are, where the store speaks S3.
    pub(crate) fn raw(&self) -> Option<&Raw> {
        self.objects().inner().raw()
    }

    /// How many requests have been sent.
    pub fn meter(&self) -> &Meter {
        self.objects().inner().meter()
    }
}
