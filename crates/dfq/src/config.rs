//! From what a person types to a queue: addresses are literal, names are looked up in `dfq.toml`.
//!
//! Invariant: a name that nobody configured is an error, never a new queue.
//!
//! ```toml
//! root = "/data"          # names live under <root>/queues/<campaign>/<name>; default: beside this file
//! campaign = "turboship"  # default: "default"
//!
//! [queues.scrape]         # every key may be left out
//! lease = "5m"
//! max_attempts = 3
//!
//! [queues.enrich]
//! address = "./enrich"    # somewhere else; relative to this file
//! ```
//!
//! The settings of a queue (`lease`, `max_attempts`, `max_lost`, `backoff`, `backoff_max`,
//! `durability`, `layout`, `shared`) are those that it is made with; an existing one keeps its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};
use crate::layout::encode_segment;
use crate::model::{Durability, Layout, Settings, Shared};

/// The file that names queues.
pub const CONFIG_FILE: &str = "dfq.toml";

/// Where a queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A directory.
    Directory(PathBuf),
}

impl Address {
    /// Reads an address; `None` if the text is a name. Addresses have a slash in them, or begin with a
    /// dot, or are `~`.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(Some(Self::Directory(path.into()))),
                false => Err(Error::invalid(format!(
                    "'{text}' names a host; a file address has three slashes, as file:///data/jobs"
                ))),
            };
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "this dfq cannot use {scheme}:// addresses; a path or file:// names a directory"
                ),
            ));
        }
        if text.is_empty() {
            return Err(Error::invalid("the queue's name is empty"));
        }
        if text.contains('\0') {
            return Err(Error::invalid("a path cannot contain a NUL character"));
        }
        let literal = text.contains('/') || text.starts_with('.') || text == "~";
        Ok(literal.then(|| Self::Directory(text.into())))
    }
}

/// A queue that was asked for: where it is, and how it is made if it is not there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name, unless it was given by its address.
    pub name: Option<String>,
    /// Where it is.
    pub address: Address,
    /// What it is made with.
    pub settings: Settings,
}

/// What `dfq.toml` says; without one, nothing.
#[derive(Clone, Debug, Default)]
pub struct Config {
    file: Option<PathBuf>,
    doc: Document,
    campaign: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Document {
    root: Option<PathBuf>,
    campaign: Option<String>,
    #[serde(default)]
    queues: BTreeMap<String, QueueDoc>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct QueueDoc {
    address: Option<String>,
    lease: Option<String>,
    max_attempts: Option<u32>,
    max_lost: Option<u32>,
    backoff: Option<String>,
    backoff_max: Option<String>,
    durability: Option<String>,
    layout: Option<String>,
    shared: Option<String>,
}

const TOP_KEYS: [&str; 3] = ["root", "campaign", "queues"];
const QUEUE_KEYS: [&str; 9] = [
    "address",
    "lease",
    "max_attempts",
    "max_lost",
    "backoff",
    "backoff_max",
    "durability",
    "layout",
    "shared",
];

impl Config {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Self> {
        let place = file.display();
        let text = std::fs::read_to_string(file).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Unavailable,
            };
            Error::new(kind, format!("{place} cannot be read: {error}"))
        })?;
        let doc = Document::parse(&text).map_err(|error| error.context(place))?;
        Ok(Self { file: Some(file.to_owned()), doc, campaign: None })
    }

    /// Reads the nearest `dfq.toml` in `folder` or above it, if there is one.
    pub fn find(folder: &Path) -> Result<Self> {
        let file = folder.ancestors().map(|above| above.join(CONFIG_FILE)).find(|it| it.is_file());
        file.map_or_else(|| Ok(Self::default()), |file| Self::read(&file))
    }

    /// Names mean queues of this campaign, whatever the file says.
    #[must_use]
    pub fn with_campaign(mut self, campaign: Option<String>) -> Self {
        self.campaign = campaign;
        self
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The campaign whose queues names mean.
    pub fn campaign(&self) -> &str {
        self.campaign.as_deref().or(self.doc.campaign.as_deref()).unwrap_or("default")
    }

    /// The names of all queues.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.doc.queues.keys().map(String::as_str)
    }

    /// The queue that `text` means: an address, or a name.
    pub fn resolve(&self, text: &str) -> Result<Target> {
        if let Some(address) = Address::parse(text)? {
            return Ok(Target { name: None, address, settings: Settings::default() });
        }
        let Some(queue) = self.doc.queues.get(text) else { return Err(self.unknown(text)) };
        let place = self.file.as_deref().unwrap_or(Path::new(CONFIG_FILE)).display();
        let settings =
            queue.settings().map_err(|e| e.context(format!("{place}: queue '{text}'")))?;
        let folder = self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        let path = match &queue.address {
            Some(address) => match Address::parse(address)? {
                Some(Address::Directory(path)) => folder.join(path),
                None => folder.join(address),
            },
            None => {
                let root = folder.join(self.doc.root.as_deref().unwrap_or(Path::new("")));
                root.join("queues").join(encode_segment(self.campaign())).join(encode_segment(text))
            }
        };
        Ok(Target { name: Some(text.to_owned()), address: Address::Directory(path), settings })
    }

    fn unknown(&self, name: &str) -> Error {
        let known: Vec<&str> = self.names().collect();
        let hint = match (&self.file, nearest(name, &known)) {
            (_, Some(near)) => format!("did you mean '{near}'?"),
            (Some(file), None) if known.is_empty() => format!("{} names none", file.display()),
            (Some(file), None) => format!("{} has: {}", file.display(), known.join(", ")),
            (None, None) => format!("there is no {CONFIG_FILE} here that names queues"),
        };
        Error::not_found(format!(
            "there is no queue named '{name}': {hint} (a directory is written with a slash: ./{name})"
        ))
    }
}

impl Document {
    fn parse(text: &str) -> Result<Self> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| Error::invalid(one_line(&error)))?;
        check_keys(table.keys(), &TOP_KEYS, "")?;
        if let Some(toml::Value::Table(queues)) = table.get("queues") {
            for (name, queue) in queues {
                if name.is_empty() || Address::parse(name).is_ok_and(|address| address.is_some()) {
                    return Err(Error::invalid(format!(
                        "'{name}' cannot be a queue's name: it would be taken for a directory"
                    )));
                }
                let keys = queue.as_table().into_iter().flat_map(toml::Table::keys);
                check_keys(keys, &QUEUE_KEYS, &format!(" of queue '{name}'"))?;
            }
        }
        let doc: Self = table.try_into().map_err(|error| Error::invalid(one_line(&error)))?;
        doc.queues.values().try_for_each(|queue| queue.settings().map(drop))?;
        Ok(doc)
    }
}

impl QueueDoc {
    fn settings(&self) -> Result<Settings> {
        let defaults = Settings::default();
        let duration = |text: &Option<String>, default| match text {
            None => Ok(default),
            Some(text) => parse_duration(text),
        };
        let settings = Settings {
            lease: duration(&self.lease, defaults.lease)?,
            max_attempts: self.max_attempts.unwrap_or(defaults.max_attempts),
            max_lost: self.max_lost.unwrap_or(defaults.max_lost),
            backoff: crate::model::Backoff {
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

/// The known word that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |known: &&&str| strsim::damerau_levenshtein(word, known);
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= near.len().max(word.len()) / 3 + 1).then_some(*near)
}

/// Parser messages come with a drawing of the line; an error is one sentence.
fn one_line(error: &toml::de::Error) -> String {
    error.message().replace('\n', "; ")
}

/// Reads a length of time as people write it: `90s`, `10m`, `3h50m`, `1.5h`, `7d`.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(dfq::config::parse_duration("3h50m")?, Duration::from_secs(13_800));
/// assert!(dfq::config::parse_duration("10").is_err(), "ten what?");
/// # Ok::<(), dfq::Error>(())
/// ```
pub fn parse_duration(text: &str) -> Result<Duration> {
    let wrong = |why: String| {
        Error::invalid(format!(
            "'{text}' is no length of time ({why}); write 90s, 10m, 3h50m or 7d"
        ))
    };
    let bare = text.trim().parse::<f64>().is_ok();
    if bare && text.trim() != "0" {
        return Err(wrong("the unit is missing".to_owned()));
    }
    if bare {
        return Ok(Duration::ZERO);
    }
    let span: jiff::Span = text.trim().parse().map_err(|_| wrong("not understood".to_owned()))?;
    if span.get_months() != 0 || span.get_years() != 0 {
        return Err(wrong("months and years differ in length".to_owned()));
    }
    let signed = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .map_err(|_| wrong("too long".to_owned()))?;
    Duration::try_from(signed).map_err(|_| wrong("negative".to_owned()))
}

#[cfg(test)]
mod tests;
