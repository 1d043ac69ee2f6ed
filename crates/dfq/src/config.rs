//! From what a person types to a queue: addresses are literal, names are looked up in `dfq.toml`.
//!
//! Invariant: a name that nobody configured is an error, never a new queue; and what a name means
//! depends on the flags, the environment and the file alone, never on what happens to be there.
//!
//! ```toml
//! root = "/data"          # names live under <root>/queues/<campaign>/<name>; default: beside this file
//! campaign = "turboship"  # default: "default"
//! provider = "s3"         # where names live: filesystem (the default), s3, sqs, or synced: a folder here,
//!                         # which `dfq supervise` merges with the bucket
//! bucket = "s3://box/dfq" # for s3 and synced: <bucket>/campaigns/<campaign>/queues/<name>
//!
//! [s3]                    # where that differs from the ordinary AWS environment
//! endpoint = "http://127.0.0.1:9000"
//! region = "eu-central-1" # also: profile, path_style
//!
//! [sqs]                   # the same for SQS: endpoint, region
//!
//! [prices]                # dollars per million requests, if not those of S3 and SQS in us-east-1
//! put = 5.5               # also: list, get, delete, sqs, sqs_fifo
//!
//! [queues.scrape]         # every key may be left out
//! lease = "5m"
//! max_attempts = 3
//!
//! [queues.enrich]
//! address = "./enrich"    # somewhere else; relative to this file
//!
//! [queues.notify]
//! provider = "sqs"        # this one elsewhere than the others
//! sqs = "notify.fifo"     # its name or URL there; default: <campaign>-<name>
//! dead_letter = "dead.fifo" # where tasks go that are given up; also: group, the member of a task that
//!                         # names its group in a FIFO queue
//!
//! [queues.crawl]
//! provider = "synced"     # under root, as a folder, and in the bucket
//! sync_every = "60s"      # how often both are merged
//!
//! [indexes.domains]       # <root>/indexes/<name>, or <bucket>/indexes/<name>: the same for all campaigns
//! key = "domain"          # the field that is the key, if the index is made; also: address, provider, bucket
//! ```
//!
//! The settings of a queue (`lease`, `max_attempts`, `max_lost`, `backoff`, `backoff_max`,
//! `durability`, `layout`, `shared`) are those that it is made with; an existing one keeps its own.
//!
//! An address decides by itself. What a name means is decided by a flag ([`Flags::provider`]), else by
//! `DFQ_QUEUE_TYPE` (or `COCLI_QUEUE_TYPE`), else by the file, else it is a directory.

mod document;
mod effective;
mod indexes;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use self::document::nearest;
use self::document::{Document, QueueDoc, S3Doc};
pub use self::effective::Effective;
pub use self::indexes::IndexTarget;
pub use self::source::{Environment, Origin, Provider, Sourced};
use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::encode_segment;
use crate::meter::Prices;
use crate::model::{Settings, Synced};
use crate::options::{OpenOptions, S3Options, SqsOptions};
use crate::provider;
use crate::queue::Queue;

/// The file that names queues.
pub const CONFIG_FILE: &str = "dfq.toml";

/// A queue that was asked for: where it is, and how it is made if it is not there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name, unless it was given by its address.
    pub name: Option<String>,
    /// Where it is.
    pub address: Address,
    /// What it is made with.
    pub settings: Settings,
    /// How to get at SQS, if that is where it is.
    pub sqs: SqsOptions,
    /// What it is merged with, if it is synced.
    pub hub: Option<Address>,
}

/// What was said on the command line; it stands above all else.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The file that names queues.
    pub config: Option<PathBuf>,
    /// The campaign whose queues names mean.
    pub campaign: Option<String>,
    /// Where names live.
    pub provider: Option<Provider>,
}

/// What flags, environment and `dfq.toml` say.
#[derive(Clone, Debug, Default)]
pub struct Config {
    file: Option<Sourced<PathBuf>>,
    doc: Document,
    flags: Flags,
    environment: Environment,
}

impl Config {
    /// All that counts for this process: the nearest `dfq.toml`, and the environment.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dfq::OpenOptions;
    /// use dfq::config::{Config, Environment, Flags};
    ///
    /// # let dir = std::env::temp_dir().join(format!("dfq-config-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// # std::fs::write(dir.join("dfq.toml"), "[queues.scrape]").unwrap();
    /// // A directory, a bucket or SQS: dfq.toml or DFQ_QUEUE_TYPE decides. (Config::here() takes the
    /// // folder and the environment of this process.)
    /// let config = Config::load(&dir, Flags::default(), Environment::of(|_| None))?;
    /// let queue = config.open("scrape", OpenOptions::create()).await?;
    /// assert!(queue.address().ends_with("queues/default/scrape"));
    /// # std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), dfq::Error>(()) }).unwrap();
    /// ```
    pub fn here() -> Result<Self> {
        let folder = std::env::current_dir().unwrap_or_default();
        Self::load(&folder, Flags::default(), Environment::system())
    }

    /// All that counts in a folder: the file that a flag or the environment names, or the nearest.
    pub fn load(folder: &Path, flags: Flags, environment: Environment) -> Result<Self> {
        let named = match &flags.config {
            Some(file) => Some(Sourced::new(file.clone(), Origin::Flag("--config"))),
            None => environment.first(&[source::CONFIG]).map(|file| file.map(PathBuf::from)),
        };
        let config = match named {
            Some(named) => {
                let Self { doc, .. } = Self::read(&named.value)?;
                Self { file: Some(named), doc, ..Self::default() }
            }
            None => Self::find(folder)?,
        };
        let config = Self { flags, environment, ..config };
        // A wrong word in the environment is wrong whatever is asked for.
        config.provider()?;
        document::check_campaign(config.campaign())?;
        Ok(config)
    }

    /// Reads a file, and nothing else.
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
        let file = Sourced::new(file.to_owned(), Origin::Made("the nearest"));
        Ok(Self { file: Some(file), doc, ..Self::default() })
    }

    /// Reads the text of a file.
    #[cfg(feature = "conformance")]
    pub(crate) fn from_text(text: &str) -> Result<Self> {
        Ok(Self { doc: Document::parse(text)?, ..Self::default() })
    }

    /// Reads the nearest `dfq.toml` in `folder` or above it, if there is one.
    pub fn find(folder: &Path) -> Result<Self> {
        let file = folder.ancestors().map(|above| above.join(CONFIG_FILE)).find(|it| it.is_file());
        file.map_or_else(|| Ok(Self::default()), |file| Self::read(&file))
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.value.as_path())
    }

    /// The campaign whose queues names mean.
    pub fn campaign(&self) -> &str {
        self.sourced_campaign().value
    }

    fn sourced_campaign(&self) -> Sourced<&str> {
        if let Some(campaign) = &self.flags.campaign {
            return Sourced::new(campaign, Origin::Flag("--campaign"));
        }
        self.environment
            .first(&[source::CAMPAIGN])
            .or_else(|| in_file(self.doc.campaign.as_deref(), "campaign"))
            .unwrap_or(Sourced::default("default"))
    }

    /// The names of all queues.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.doc.queues.keys().map(String::as_str)
    }

    /// Where names live, unless their queue says otherwise.
    pub fn provider(&self) -> Result<Sourced<Provider>> {
        self.provider_with(None)
    }

    /// Flag, environment, queue, file, default.
    fn provider_with(&self, of_queue: Option<(&str, &str)>) -> Result<Sourced<Provider>> {
        if let Some(provider) = self.flags.provider {
            return Ok(Sourced::new(provider, Origin::Flag("--provider")));
        }
        let word = self
            .environment
            .first(&source::QUEUE_TYPE)
            .or_else(|| {
                let (name, word) = of_queue?;
                Some(Sourced::new(word, Origin::File(format!("queues.{name}.provider"))))
            })
            .or_else(|| in_file(self.doc.provider.as_deref(), "provider"));
        let Some(word) = word else { return Ok(Sourced::default(Provider::Filesystem)) };
        let place = word.origin.name().unwrap_or_default();
        let provider = Provider::parse(word.value).map_err(|e| e.context(place))?;
        Ok(Sourced::new(provider, word.origin))
    }

    /// How to get at S3, where that differs from the ordinary AWS environment, which goes before the
    /// file.
    pub fn s3(&self) -> S3Options {
        let S3Doc { endpoint, region, profile, path_style } = &self.doc.s3;
        S3Options {
            endpoint: self.unless_set(endpoint, &source::ENDPOINT),
            region: self.unless_set(region, &source::REGION),
            profile: self.unless_set(profile, &[source::PROFILE]),
            path_style: *path_style,
            credentials: None,
        }
    }

    /// The same for SQS, and what a queue says of itself.
    fn sqs(&self, queue: Option<&QueueDoc>) -> SqsOptions {
        SqsOptions {
            endpoint: self.unless_set(&self.doc.sqs.endpoint, &source::SQS_ENDPOINT),
            region: self.unless_set(&self.doc.sqs.region, &source::REGION),
            credentials: None,
            dead_letter: queue.and_then(|queue| queue.dead_letter.clone()),
            group: queue.and_then(|queue| queue.group.clone()),
            backoff: queue.and_then(QueueDoc::backoff),
        }
    }

    /// A value of the file, unless the environment has another, which is found there by everybody.
    fn unless_set(&self, value: &Option<String>, names: &[&'static str]) -> Option<String> {
        value.clone().filter(|_| self.environment.first(names).is_none())
    }

    /// What requests cost.
    pub fn prices(&self) -> Prices {
        // Checked when the file was read.
        self.doc.prices().unwrap_or_default()
    }

    /// Opens the queue that `text` means: an address, or a name. If the options say that it is to be
    /// made, that is done with the settings of `dfq.toml`.
    pub async fn open(&self, text: &str, options: OpenOptions) -> Result<Arc<dyn Queue>> {
        let target = self.resolve(text)?;
        let create = match (&target.name, options.create) {
            (Some(_), Some(_)) => Some(target.settings),
            (_, create) => create,
        };
        let options = OpenOptions { create, s3: self.s3(), sqs: target.sqs, ..options };
        provider::open(&target.address, options).await
    }

    /// The queue that `text` means: an address, or a name.
    pub fn resolve(&self, text: &str) -> Result<Target> {
        if let Some(address) = Address::parse(text)? {
            self.check_flag(text, &address)?;
            let (settings, sqs) = (Settings::default(), self.sqs(None));
            return Ok(Target { name: None, address, settings, sqs, hub: None });
        }
        let Some(queue) = self.doc.queues.get(text) else { return Err(self.unknown(text)) };
        let place = self.file().unwrap_or(Path::new(CONFIG_FILE)).display();
        let wrong = |error: Error| error.context(format!("{place}: queue '{text}'"));
        let mut settings = queue.settings().map_err(wrong)?;
        let mut hub = None;
        let address = match &queue.address {
            Some(address) => {
                let address = self.beside_file(address.parse().map_err(wrong)?);
                self.check_flag(text, &address)?;
                address
            }
            None => {
                let (address, middle) = self.expand(text, queue)?;
                if let Some(middle) = &middle {
                    let every = queue.sync_every().map_err(wrong)?;
                    settings.synced = Some(Synced::of_hub(&middle.to_string(), every));
                    settings.check().map_err(wrong)?;
                }
                hub = middle;
                address
            }
        };
        let (name, sqs) = (Some(text.to_owned()), self.sqs(Some(queue)));
        Ok(Target { name, address, settings, sqs, hub })
    }

    /// Where a queue without an address of its own is, and what it is merged with.
    fn expand(&self, name: &str, queue: &QueueDoc) -> Result<(Address, Option<Address>)> {
        let chosen = self.provider_with(queue.provider.as_deref().map(|word| (name, word)))?;
        let segment = encode_segment(name);
        let folder = || Address::Directory(self.campaign_folder().join(&segment));
        let bucket = || self.bucket_of(name, queue, &chosen.origin);
        Ok(match chosen.value {
            Provider::Filesystem => (folder(), None),
            Provider::S3 => (bucket()?, None),
            Provider::Synced => (folder(), Some(bucket()?)),
            Provider::Sqs => (self.sqs_of(name, queue)?, None),
        })
    }

    fn bucket_of(&self, name: &str, queue: &QueueDoc, origin: &Origin) -> Result<Address> {
        let Some(bucket) = queue.bucket.as_deref().or(self.doc.bucket.as_deref()) else {
            return Err(Error::invalid(format!(
                "queue '{name}' is to be in a bucket ({}), but none is named; write bucket = \
                         \"s3://bucket/prefix\" into {CONFIG_FILE}",
                origin
            )));
        };
        let (campaign, segment) = (encode_segment(self.campaign()), encode_segment(name));
        let bucket = document::bucket(bucket)?;
        let below = bucket.below(&format!("campaigns/{campaign}/queues/{segment}"));
        // It may be too long now.
        below.to_string().parse()
    }

    fn sqs_of(&self, name: &str, queue: &QueueDoc) -> Result<Address> {
        match &queue.sqs {
            Some(sqs) => document::sqs(sqs),
            None => document::sqs(&format!("{}-{name}", self.campaign())).map_err(|_| {
                Error::invalid(format!(
                    "'{}-{name}' cannot be the name of an SQS queue; write sqs = \"NAME\" below \
                         [queues.{name}] in {CONFIG_FILE}",
                    self.campaign()
                ))
            }),
        }
    }

    /// The folder in which the campaign's queues are.
    fn campaign_folder(&self) -> PathBuf {
        let root = self.below_file(self.doc.root.as_deref().unwrap_or(Path::new("")));
        root.join("queues").join(encode_segment(self.campaign()))
    }

    /// Where the campaign's queues are: those that are configured, and perhaps others.
    pub fn campaign_address(&self, provider: Provider) -> Option<Address> {
        match provider {
            Provider::Filesystem | Provider::Synced => {
                Some(Address::Directory(self.campaign_folder()))
            }
            Provider::S3 => {
                let bucket = document::bucket(self.doc.bucket.as_deref()?).ok()?;
                let campaign = encode_segment(self.campaign());
                Some(Address::Bucket(bucket.below(&format!("campaigns/{campaign}/queues"))))
            }
            Provider::Sqs => None,
        }
    }

    /// Paths in the file are relative to it; `~` is the home folder.
    fn below_file(&self, path: &Path) -> PathBuf {
        if let (Ok(below), Some(home)) =
            (path.strip_prefix("~"), self.environment.first(&[source::HOME]))
        {
            return Path::new(home.value).join(below);
        }
        let folder = self.file().and_then(Path::parent).unwrap_or(Path::new("."));
        // As short as it can be written.
        folder.join(path).components().collect()
    }

    fn beside_file(&self, address: Address) -> Address {
        match address {
            Address::Directory(path) => Address::Directory(self.below_file(&path)),
            elsewhere => elsewhere,
        }
    }

    /// An address decides by itself; a flag that says otherwise is a mistake. The environment is not: it
    /// is set for all names.
    fn check_flag(&self, text: &str, address: &Address) -> Result<()> {
        let is = match address {
            Address::Directory(_) => Provider::Filesystem,
            Address::Bucket(_) => Provider::S3,
            Address::Sqs(_) => Provider::Sqs,
            Address::Other { .. } => return Ok(()),
        };
        match self.flags.provider {
            Some(Provider::Synced) if is == Provider::Filesystem => Ok(()),
            Some(wanted) if wanted != is => Err(Error::invalid(format!(
                "'{text}' has an address of its own ({address}): leave out --provider {wanted}"
            ))),
            _ => Ok(()),
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let known: Vec<&str> = self.names().collect();
        let hint = match (self.file(), nearest(name, &known)) {
            _ if self.doc.indexes.contains_key(name) => "that is an index".to_owned(),
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

fn in_file<'a>(value: Option<&'a str>, key: &str) -> Option<Sourced<&'a str>> {
    value.map(|value| Sourced::new(value, Origin::File(key.to_owned())))
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
