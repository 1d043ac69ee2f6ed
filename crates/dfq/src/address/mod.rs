//! Where a queue is, as people write it.
//!
//! Invariant: an address that was read can be printed and read again, and names the same place; what
//! is written wrongly is refused here, with a sentence, before anything is asked of a store. Whether anybody knows
//! its scheme is for [`open`](crate::open) to say.

mod bucket;
mod sqs;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use self::bucket::{BucketAddress, Cloud};
pub use self::sqs::SqsAddress;
use crate::error::{Error, Result};

/// Where a queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A directory.
    Directory(PathBuf),
    /// A bucket, or a part of one.
    Bucket(BucketAddress),
    /// An SQS queue, by its name or its URL.
    Sqs(SqsAddress),
    /// Anything else. The provider of the scheme knows what the rest means.
    Other {
        /// What stands before `://`, such as `memory`.
        scheme: String,
        /// What stands after it.
        rest: String,
    },
}

/// Names below which people write an address with two slashes; with fewer it would be a directory.
const SCHEMES: [&str; 6] = ["file", "s3", "gs", "az", "sqs", "memory"];

impl Address {
    /// Reads an address; `None` if the text is a name. Addresses have a slash in them, or begin with a
    /// dot, or are `~`.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        if text.is_empty() {
            return Err(Error::invalid("the queue's name is empty"));
        }
        if text.contains('\0') {
            return Err(Error::invalid("a path cannot contain a NUL character"));
        }
        // What has a slash before it is a path in which this stands.
        if let Some((scheme, rest)) = text.split_once("://")
            && !scheme.contains('/')
        {
            return Self::with_scheme(text, scheme, rest).map(Some);
        }
        if let Some((scheme, rest)) = text.split_once(':')
            && SCHEMES.contains(&scheme)
        {
            let rest = rest.trim_start_matches('/');
            return Err(Error::invalid(format!(
                "'{text}' lacks slashes; write {scheme}://{rest}, or ./{text} for a directory"
            )));
        }
        let literal = text.contains('/') || text.starts_with('.') || text == "~";
        Ok(literal.then(|| Self::Directory(text.into())))
    }

    fn with_scheme(text: &str, scheme: &str, rest: &str) -> Result<Self> {
        if let Some(cloud) = Cloud::ALL.into_iter().find(|cloud| cloud.scheme() == scheme) {
            return BucketAddress::parse(cloud, text, rest).map(Self::Bucket);
        }
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::Directory(rest.into())),
            "file" => Err(Error::invalid(format!(
                "'{text}' names a host; a file address has three slashes, as file:///data/jobs"
            ))),
            "sqs" => SqsAddress::parse(text).map(Self::Sqs),
            "http" | "https" => Self::sqs_url(text, rest),
            _ => Ok(Self::Other { scheme: scheme.to_owned(), rest: rest.to_owned() }),
        }
    }

    /// `https://sqs.<region>.amazonaws.com/<account>/<name>`, or the same of a server of one's own.
    fn sqs_url(text: &str, rest: &str) -> Result<Self> {
        let parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
        let is_account = |part: &str| part.len() == 12 && part.bytes().all(|b| b.is_ascii_digit());
        match parts.as_slice() {
            [host, .., account, _] if !host.is_empty() && is_account(account) => {
                SqsAddress::parse(text).map(Self::Sqs)
            }
            _ => Err(Error::invalid(format!(
                "'{text}' is not a queue: of the web, only the URL of an SQS queue is one \
                 (https://sqs.REGION.amazonaws.com/ACCOUNT/NAME); a bucket is written \
                 s3://bucket/prefix"
            ))),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Bucket(bucket) => bucket.fmt(f),
            Self::Sqs(queue) => queue.fmt(f),
            Self::Other { scheme, rest } => write!(f, "{scheme}://{rest}"),
        }
    }
}

/// A text is an address; without a scheme it is a path, also if it has no slash.
impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Self::parse(text)?.unwrap_or_else(|| Self::Directory(text.into())))
    }
}

impl TryFrom<&str> for Address {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<String> for Address {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<&String> for Address {
    type Error = Error;

    fn try_from(text: &String) -> Result<Self> {
        text.parse()
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self::Directory(path.to_owned())
    }
}

impl From<&PathBuf> for Address {
    fn from(path: &PathBuf) -> Self {
        Self::Directory(path.clone())
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        Self::Directory(path)
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}
