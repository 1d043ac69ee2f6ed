//! `dfq.toml` as it is written.
//!
//! Invariant: a key that nobody knows is an error with the nearest that somebody does, and so is a value
//! that means nothing: a document that was read can be used.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::indexes::IndexDoc;
use super::{Provider, parse_duration};
use crate::address::{Address, BucketAddress, SqsAddress};
use crate::error::{Error, Result};
use crate::meter::Prices;
use crate::model::{Backoff, Durability, Layout, Settings, Shared};

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Document {
    pub(super) root: Option<PathBuf>,
    pub(super) campaign: Option<String>,
    pub(super) provider: Option<String>,
    pub(super) bucket: Option<String>,
    #[serde(default)]
    pub(super) s3: S3Doc,
    #[serde(default)]
    pub(super) sqs: SqsDoc,
    #[serde(default)]
    pub(super) prices: BTreeMap<String, f64>,
    #[serde(default)]
    pub(super) queues: BTreeMap<String, QueueDoc>,
    #[serde(default)]
    pub(super) indexes: BTreeMap<String, IndexDoc>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct S3Doc {
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    pub(super) profile: Option<String>,
    pub(super) path_style: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct SqsDoc {
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct QueueDoc {
    pub(super) address: Option<String>,
    pub(super) provider: Option<String>,
    pub(super) bucket: Option<String>,
    pub(super) sqs: Option<String>,
    pub(super) dead_letter: Option<String>,
    pub(super) group: Option<String>,
    pub(super) lease: Option<String>,
    pub(super) max_attempts: Option<u32>,
    pub(super) max_lost: Option<u32>,
    pub(super) backoff: Option<String>,
    pub(super) backoff_max: Option<String>,
    pub(super) durability: Option<String>,
    pub(super) layout: Option<String>,
    pub(super) shared: Option<String>,
    pub(super) sync_every: Option<String>,
}

/// How often folders are merged with their buckets.
const SYNC_EVERY: Duration = Duration::from_secs(60);

const TOP_KEYS: [&str; 9] =
    ["root", "campaign", "provider", "bucket", "s3", "sqs", "prices", "queues", "indexes"];
const S3_KEYS: [&str; 4] = ["endpoint", "region", "profile", "path_style"];
const SQS_KEYS: [&str; 2] = ["endpoint", "region"];
const QUEUE_KEYS: [&str; 15] = [
    "address",
    "provider",
    "bucket",
    "sqs",
    "dead_letter",
    "group",
    "lease",
    "max_attempts",
    "max_lost",
    "backoff",
    "backoff_max",
    "durability",
    "layout",
    "shared",
    "sync_every",
];

impl Document {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| Error::invalid(one_line(&error)))?;
        check_keys(table.keys(), &TOP_KEYS, "")?;
        if let Some(toml::Value::Table(s3)) = table.get("s3") {
            check_keys(s3.keys(), &S3_KEYS, " of [s3]")?;
        }
        if let Some(toml::Value::Table(sqs)) = table.get("sqs") {
            check_keys(sqs.keys(), &SQS_KEYS, " of [sqs]")?;
        }
        if let Some(toml::Value::Table(prices)) = table.get("prices") {
            check_keys(prices.keys(), &Prices::KEYS, " of [prices]")?;
        }
        if let Some(toml::Value::Table(queues)) = table.get("queues") {
            for (name, queue) in queues {
                if !matches!(Address::parse(name), Ok(None)) {
                    return Err(Error::invalid(format!(
                        "'{name}' cannot be a queue's name: it would be taken for an address"
                    )));
                }
                let keys = queue.as_table().into_iter().flat_map(toml::Table::keys);
                check_keys(keys, &QUEUE_KEYS, &format!(" of queue '{name}'"))?;
            }
        }
        if let Some(toml::Value::Table(indexes)) = table.get("indexes") {
            for (name, index) in indexes {
                if !matches!(Address::parse(name), Ok(None)) {
                    return Err(Error::invalid(format!(
                        "'{name}' cannot be an index's name: it would be taken for an address"
                    )));
                }
                let keys = index.as_table().into_iter().flat_map(toml::Table::keys);
                check_keys(keys, &IndexDoc::KEYS, &format!(" of index '{name}'"))?;
            }
        }
        let doc: Self = table.try_into().map_err(|error| Error::invalid(one_line(&error)))?;
        doc.check()?;
        Ok(doc)
    }

    fn check(&self) -> Result<()> {
        self.prices()?;
        if self.root.as_ref().is_some_and(|root| root.as_os_str().as_bytes().contains(&0)) {
            return Err(Error::invalid("root cannot contain a NUL character"));
        }
        self.campaign.as_deref().map(check_campaign).transpose()?;
        self.provider.as_deref().map(Provider::parse).transpose()?;
        self.bucket.as_deref().map(bucket).transpose()?;
        for (name, queue) in &self.queues {
            queue.check().map_err(|error| error.context(format!("queue '{name}'")))?;
        }
        for (name, index) in &self.indexes {
            index.check().map_err(|error| error.context(format!("index '{name}'")))?;
        }
        Ok(())
    }

    /// What requests cost, where that differs from the list.
    pub(super) fn prices(&self) -> Result<Prices> {
        let mut prices = Prices::default();
        for (key, dollars) in &self.prices {
            if !(dollars.is_finite() && *dollars >= 0.0) {
                return Err(Error::invalid(format!("the price of {key} is {dollars}")));
            }
            prices.set(key, *dollars);
        }
        Ok(prices)
    }
}

impl QueueDoc {
    fn check(&self) -> Result<()> {
        self.settings()?;
        self.sync_every()?;
        self.provider.as_deref().map(Provider::parse).transpose()?;
        self.bucket.as_deref().map(bucket).transpose()?;
        self.sqs.as_deref().map(sqs).transpose()?;
        self.dead_letter.as_deref().map(SqsAddress::parse).transpose()?;
        if let Some(address) = &self.address {
            address.parse::<Address>()?;
            let beside =
                [("provider", &self.provider), ("bucket", &self.bucket), ("sqs", &self.sqs)];
            if let Some((key, _)) = beside.iter().find(|(_, value)| value.is_some()) {
                return Err(Error::invalid(format!(
                    "it has an address, which decides by itself; leave out '{key}'"
                )));
            }
        }
        Ok(())
    }

    /// How often the folder is merged with its bucket, if it is.
    pub(super) fn sync_every(&self) -> Result<Duration> {
        match &self.sync_every {
            None => Ok(SYNC_EVERY),
            Some(text) => parse_duration(text),
        }
    }

    /// The backoff, if the file says anything about it that can be read.
    pub(super) fn backoff(&self) -> Option<Backoff> {
        let said = self.backoff.is_some() || self.backoff_max.is_some();
        said.then(|| self.settings().ok()).flatten().map(|settings| settings.backoff)
    }

    pub(super) fn settings(&self) -> Result<Settings> {
        let defaults = Settings::default();
        let duration = |text: &Option<String>, default| match text {
            None => Ok(default),
            Some(text) => parse_duration(text),
        };
        let settings = Settings {
            lease: duration(&self.lease, defaults.lease)?,
            max_attempts: self.max_attempts.unwrap_or(defaults.max_attempts),
            max_lost: self.max_lost.unwrap_or(defaults.max_lost),
            backoff: Backoff {
                base: duration(&self.backoff, defaults.backoff.base)?,
                max: duration(&self.backoff_max, defaults.backoff.max)?,
            },
            durability: one_of(
                "durability",
                self.durability.as_deref(),
                &[("durable", Durability::Durable), ("relaxed", Durability::Relaxed)],
            )?,
            layout: one_of(
                "layout",
                self.layout.as_deref(),
                &[("sharded", Layout::Sharded), ("flat", Layout::Flat)],
            )?,
            shared: one_of(
                "shared",
                self.shared.as_deref(),
                &[("umask", Shared::Umask), ("group", Shared::Group)],
            )?,
            ..defaults
        };
        settings.check()?;
        Ok(settings)
    }
}

/// A campaign is a folder, which has a name.
pub(super) fn check_campaign(name: &str) -> Result<()> {
    match name {
        "" => Err(Error::invalid("the campaign's name is empty")),
        _ => Ok(()),
    }
}

/// The value of a key `bucket`.
pub(super) fn bucket(text: &str) -> Result<BucketAddress> {
    match Address::parse(text) {
        Ok(Some(Address::Bucket(bucket))) => Ok(bucket),
        Err(error) if !text.is_empty() => Err(error),
        _ => Err(Error::invalid(format!("bucket is '{text}'; write it as s3://bucket/prefix"))),
    }
}

/// The value of a key `sqs`: a queue's name or its URL.
pub(super) fn sqs(text: &str) -> Result<Address> {
    match text.contains("://") {
        true => match Address::parse(text)? {
            Some(address @ Address::Sqs(_)) => Ok(address),
            _ => Err(Error::invalid(format!("sqs is '{text}'; write the queue's name or its URL"))),
        },
        false => format!("sqs://{text}").parse(),
    }
}

/// The value that a word stands for; the first if there is no word.
fn one_of<T: Copy>(key: &str, word: Option<&str>, known: &[(&str, T)]) -> Result<T> {
    let Some(word) = word else { return Ok(known[0].1) };
    known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        Error::invalid(format!("{key} is '{word}'; it can be {}", names.join(" or ")))
    })
}

fn check_keys<'a>(keys: impl Iterator<Item = &'a String>, known: &[&str], of: &str) -> Result<()> {
    for key in keys {
        if !known.contains(&key.as_str()) {
            let hint = match nearest(key, known) {
                Some(near) => format!("did you mean '{near}'?"),
                None => format!("there are: {}", known.join(", ")),
            };
            return Err(Error::invalid(format!("unknown key '{key}'{of}: {hint}")));
        }
    }
    Ok(())
}

/// Nobody mistypes a word of this length; it is something else.
const LONGEST_GUESSED: usize = 256;

/// The known word that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    // To compare takes memory by the product of both lengths.
    if word.len() > LONGEST_GUESSED {
        return None;
    }
    let distance = |known: &&&str| strsim::damerau_levenshtein(word, known);
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= near.len().max(word.len()) / 3 + 1).then_some(*near)
}

/// Parser messages come with a drawing of the line; an error is one sentence.
fn one_line(error: &toml::de::Error) -> String {
    error.message().replace('\n', "; ")
}
