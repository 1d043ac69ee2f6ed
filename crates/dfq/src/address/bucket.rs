//! Where a bucket is: `s3://bucket/prefix`, `gs://…`, `az://…`.

use std::fmt;

use crate::error::{Error, Result};

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

/// The protocol that a bucket speaks.
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
    pub(super) const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    /// The Cargo feature that brings it.
    pub fn feature(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gcs",
            Self::Azure => "azure",
        }
    }

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

impl BucketAddress {
    pub(super) fn parse(cloud: Cloud, text: &str, rest: &str) -> Result<Self> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let wrong = |why: &str| Err(Error::invalid(format!("'{text}' is not a bucket: {why}")));
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
