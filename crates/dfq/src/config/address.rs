//! Where a queue is, as people write it.
//!
//! Invariant: an address that was read can be printed and read again, and names the same place; what
//! cannot be a place is refused here, with a sentence, before anything is asked of a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::sqs::SqsAddress;

/// Where a queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A directory.
    Directory(PathBuf),
    /// A bucket, or a part of one.
    Bucket(BucketAddress),
    /// This process's own memory, under a name.
    Memory(String),
    /// An SQS queue, by its name or its URL.
    Sqs(SqsAddress),
}

/// A bucket, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAddress {
    /// Whose protocol it speaks.
    pub cloud: Cloud,
    /// The bucket; Azure calls it a container.
    pub bucket: String,
    /// What all keys of the queue begin with, without a slash at either end; may be empty.
    pub prefix: String,
}

/// Who speaks to a bucket how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon S3, and all that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Cloud {
    const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    /// What its addresses begin with.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }
}

/// Keys may have 1,024 bytes, and what we put below a prefix takes up to 300.
const MAX_PREFIX_BYTES: usize = 700;

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
        if let Some((scheme, rest)) = text.split_once("://") {
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
            "memory" if !rest.is_empty() => Ok(Self::Memory(rest.to_owned())),
            "memory" => Err(Error::invalid("'memory://' needs a name, as memory://jobs")),
            "sqs" => SqsAddress::parse(text).map(Self::Sqs),
            "http" | "https" => Self::sqs_url(text, rest),
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "this dfq cannot use {scheme}:// addresses; a queue is a path, or begins with \
                     s3://, gs://, az://, sqs:// or file://"
                ),
            )),
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
                "'{text}' is no queue: of the web, only the URL of an SQS queue is one \
                 (https://sqs.REGION.amazonaws.com/ACCOUNT/NAME); a bucket is written \
                 s3://bucket/prefix"
            ))),
        }
    }
}

impl BucketAddress {
    fn parse(cloud: Cloud, text: &str, rest: &str) -> Result<Self> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let wrong = |why: &str| Err(Error::invalid(format!("'{text}' is no bucket: {why}")));
        if bucket.is_empty() {
            return wrong(&format!(
                "its name is missing, as in {}://bucket/prefix",
                cloud.scheme()
            ));
        }
        let is_letter = |b: u8| b.is_ascii_alphanumeric() || b"-._$".contains(&b);
        if bucket.len() > 255 || !bucket.bytes().all(is_letter) {
            return wrong("a bucket's name has letters, digits, dots and hyphens only");
        }
        let prefix = prefix.trim_end_matches('/');
        if prefix.len() > MAX_PREFIX_BYTES {
            return wrong(&format!("what follows its name has more than {MAX_PREFIX_BYTES} bytes"));
        }
        if prefix.chars().any(char::is_control) {
            return wrong("there is a control character in it");
        }
        match prefix.split('/').find(|part| matches!(*part, "" | "." | "..")) {
            Some("") if !prefix.is_empty() => wrong("there are two slashes in a row in it"),
            Some(dots @ ("." | "..")) => wrong(&format!("'{dots}' leads nowhere in a bucket")),
            _ => Ok(Self { cloud, bucket: bucket.to_owned(), prefix: prefix.to_owned() }),
        }
    }

    /// What lies further below.
    #[must_use]
    pub fn below(&self, path: &str) -> Self {
        let prefix = match self.prefix.as_str() {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        };
        Self { prefix, ..self.clone() }
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.cloud.scheme(), self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Bucket(bucket) => bucket.fmt(f),
            Self::Memory(name) => write!(f, "memory://{name}"),
            Self::Sqs(queue) => queue.fmt(f),
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
