//! Who says what: flags before the environment, the environment before `dfq.toml`, that before defaults.
//!
//! Invariant: every value that counts can say where it came from.

use std::collections::BTreeMap;
use std::fmt;

use super::nearest;
use crate::error::{Error, Result};

/// What a bare name means: which kind of store the queue is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// A directory.
    Filesystem,
    /// A bucket.
    S3,
    /// Amazon SQS.
    Sqs,
    /// A directory that is merged with a bucket.
    Synced,
}

impl Provider {
    /// Every word that chooses a provider.
    pub const WORDS: [&str; 4] = ["filesystem", "s3", "sqs", "synced"];

    /// Reads the word.
    pub fn parse(word: &str) -> Result<Self> {
        match word {
            "filesystem" => Ok(Self::Filesystem),
            "s3" => Ok(Self::S3),
            "sqs" => Ok(Self::Sqs),
            "synced" => Ok(Self::Synced),
            _ => {
                let hint = match nearest(word, &Self::WORDS) {
                    Some(near) => format!("did you mean '{near}'?"),
                    None => format!("there are: {}", Self::WORDS.join(", ")),
                };
                Err(Error::invalid(format!("there is no provider '{word}': {hint}")))
            }
        }
    }

    /// The word that chooses it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::S3 => "s3",
            Self::Sqs => "sqs",
            Self::Synced => "synced",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the command line, by this flag.
    Flag(&'static str),
    /// From the environment variable of this name.
    Environment(&'static str),
    /// From `dfq.toml`, under this key.
    File(String),
    /// Put together from other values.
    Made(&'static str),
    /// From nobody.
    Default,
}

impl Origin {
    /// The kind of origin in one word, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Flag(_) => "flag",
            Self::Environment(_) => "environment",
            Self::File(_) => "file",
            Self::Made(_) => "made",
            Self::Default => "default",
        }
    }

    /// The flag, variable or key, or what it was made of.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Flag(name) | Self::Environment(name) | Self::Made(name) => Some(name),
            Self::File(key) => Some(key),
            Self::Default => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "the flag {flag}"),
            Self::Environment(name) => write!(f, "the environment, {name}"),
            Self::File(key) => write!(f, "dfq.toml, {key}"),
            Self::Made(of) => f.write_str(of),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Who said so.
    pub origin: Origin,
}

impl<T> Sourced<T> {
    pub(super) fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    pub(super) fn default(value: T) -> Self {
        Self::new(value, Origin::Default)
    }

    pub(super) fn map<R>(self, change: impl FnOnce(T) -> R) -> Sourced<R> {
        Sourced::new(change(self.value), self.origin)
    }
}

/// The environment variables that count here; one that is empty does not.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<&'static str, String>);

pub(super) const CONFIG: &str = "DFQ_CONFIG";
pub(super) const CAMPAIGN: &str = "DFQ_CAMPAIGN";
/// The second is the name that the V2 Python workers know.
pub(super) const QUEUE_TYPE: [&str; 2] = ["DFQ_QUEUE_TYPE", "COCLI_QUEUE_TYPE"];
pub(super) const ENDPOINT: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
pub(super) const SQS_ENDPOINT: [&str; 2] = ["AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"];
pub(super) const REGION: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
pub(super) const PROFILE: &str = "AWS_PROFILE";
pub(super) const ACCESS_KEY: &str = "AWS_ACCESS_KEY_ID";
pub(super) const HOME: &str = "HOME";

impl Environment {
    /// That of this process.
    pub fn system() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    /// What `lookup` answers for each variable that counts.
    pub fn of(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let single = [CONFIG, CAMPAIGN, PROFILE, ACCESS_KEY, HOME];
        let names =
            single.into_iter().chain(QUEUE_TYPE).chain(ENDPOINT).chain(REGION).chain(SQS_ENDPOINT);
        let given = |name| lookup(name).filter(|value| !value.is_empty());
        Self(names.filter_map(|name| Some((name, given(name)?))).collect())
    }

    /// The first of the variables that is set.
    pub(super) fn first(&self, names: &[&'static str]) -> Option<Sourced<&str>> {
        names.iter().find_map(|name| {
            let value = self.0.get(name)?;
            Some(Sourced::new(value.as_str(), Origin::Environment(name)))
        })
    }
}
