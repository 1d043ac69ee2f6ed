//! From what was typed to the stores that are examined.

use anyhow::Result;
use dfq::OpenOptions;
use dfq::address::Address;
use dfq::doctor::Subject;
use dfq::store::bucket::Bucket;
use dfq::store::fs::Filesystem;

use crate::context::Context;
use crate::exit::{invalid, unsupported};

/// Ways to one store, all of the same kind.
pub(super) enum Subjects {
    Directories(Vec<Subject<Filesystem>>),
    Buckets(Vec<Subject<Bucket>>),
}

/// What names and addresses stand for.
pub(super) fn resolve(context: &Context, typed: &[String]) -> Result<Vec<Address>> {
    typed.iter().map(|typed| Ok(context.target(typed)?.address)).collect()
}

impl Subjects {
    pub(super) async fn open(addresses: &[Address], options: &OpenOptions) -> Result<Self> {
        let (mut directories, mut buckets) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                Address::Directory(path) => {
                    directories.push(Subject::directory(path, options.env.clone())?);
                }
                Address::Bucket(address) => {
                    let (env, meter) = (options.env.clone(), options.meter.clone());
                    let bucket = Bucket::open(address, &options.s3, env.clone(), meter).await?;
                    buckets.push(Subject::bucket(bucket, env));
                }
                Address::Sqs(_) => {
                    return Err(unsupported(format!(
                        "{address}: sqs cannot be examined, it keeps its own leases; name a folder or a \
                         bucket"
                    )));
                }
                Address::Other { .. } => {
                    return Err(unsupported(format!(
                        "{address} is not a store that can be examined; name a folder or a bucket"
                    )));
                }
            }
        }
        match (directories.is_empty(), buckets.is_empty()) {
            (_, true) => Ok(Self::Directories(directories)),
            (true, false) => Ok(Self::Buckets(buckets)),
            (false, false) => Err(invalid("name folders or buckets, not some of both")),
        }
    }
}
