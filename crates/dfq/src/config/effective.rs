//! Every value that counts, and where it came from, for people who wonder.
//!
//! Invariant: nothing secret is among them. Of credentials it is told where they come from, no more.

use super::{Config, Origin, Provider, QueueDoc, Sourced, source};
use crate::error::Result;
use crate::meter::Prices;
use crate::model::{Durability, Layout, Shared};

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Its key, as `dfq.toml` has it.
    pub key: String,
    /// What it is; `None` if nobody says.
    pub value: Option<String>,
    /// Who said so.
    pub origin: Origin,
}

impl Config {
    /// Every value that counts, and where it came from.
    pub fn effective(&self) -> Result<Vec<Effective>> {
        let mut rows = Rows(Vec::new());
        rows.add("file", self.file.clone().map(|file| file.map(|path| path.display().to_string())));
        let root = self.below_file(self.doc.root.as_deref().unwrap_or(std::path::Path::new("")));
        let origin = match self.doc.root {
            Some(_) => Origin::File("root".to_owned()),
            None => Origin::Default,
        };
        rows.add("root", Some(Sourced::new(root.display().to_string(), origin)));
        rows.add("campaign", Some(self.sourced_campaign().map(str::to_owned)));
        rows.add("provider", Some(self.provider()?.map(|provider| provider.to_string())));
        rows.in_file("bucket", self.doc.bucket.clone());
        self.s3_rows(&mut rows);
        for key in Prices::KEYS {
            let origin = match self.doc.prices.contains_key(key) {
                true => Origin::File(format!("prices.{key}")),
                false => Origin::Default,
            };
            let price = self.prices().get(key).map(|price| Sourced::new(price.to_string(), origin));
            rows.add(&format!("prices.{key}"), price);
        }
        for (name, queue) in &self.doc.queues {
            self.queue_rows(name, queue, &mut rows)?;
        }
        for (name, index) in &self.doc.indexes {
            self.index_rows(name, index, &mut rows)?;
        }
        Ok(rows.0)
    }

    fn s3_rows(&self, rows: &mut Rows) {
        let doc = &self.doc.s3;
        for (key, names, value) in [
            ("s3.endpoint", &source::ENDPOINT[..], &doc.endpoint),
            ("s3.region", &source::REGION, &doc.region),
            ("s3.profile", &[source::PROFILE], &doc.profile),
        ] {
            let set = self.environment.first(names).map(|value| value.map(str::to_owned));
            match set {
                Some(value) => rows.add(key, Some(value)),
                None => rows.in_file(key, value.clone()),
            }
        }
        for (key, names, value) in [
            ("sqs.endpoint", &source::SQS_ENDPOINT, &self.doc.sqs.endpoint),
            ("sqs.region", &source::REGION, &self.doc.sqs.region),
        ] {
            match self.environment.first(names) {
                Some(value) => rows.add(key, Some(value.map(str::to_owned))),
                None => rows.in_file(key, value.clone()),
            }
        }
        let style = doc.path_style.map(|style| style.to_string());
        match style {
            Some(_) => rows.in_file("s3.path_style", style),
            None => rows.add("s3.path_style", Some(Sourced::default("true".to_owned()))),
        }
        let set = self.environment.first(&[source::ACCESS_KEY]);
        rows.add("s3.credentials", set.map(|set| set.map(|_| "set, and not shown".to_owned())));
    }

    fn queue_rows(&self, name: &str, queue: &QueueDoc, rows: &mut Rows) -> Result<()> {
        let key = |key: &str| format!("queues.{name}.{key}");
        if queue.address.is_none() {
            let word = queue.provider.as_deref().map(|word| (name, word));
            let provider = self.provider_with(word)?;
            rows.add(&key("provider"), Some(provider.clone().map(|it| it.to_string())));
            let made_of = match (provider.value, &queue.bucket, &queue.sqs) {
                (Provider::Filesystem | Provider::Synced, ..) => {
                    Origin::Made("root, campaign and name")
                }
                (Provider::S3, Some(_), _) => Origin::File(key("bucket")),
                (Provider::S3, None, _) => Origin::Made("bucket, campaign and name"),
                (Provider::Sqs, _, Some(_)) => Origin::File(key("sqs")),
                (Provider::Sqs, _, None) => Origin::Made("campaign and name"),
            };
            let address = match self.resolve(name) {
                Ok(target) => target.address.to_string(),
                Err(error) => format!("({error})"),
            };
            rows.add(&key("address"), Some(Sourced::new(address, made_of)));
            if provider.value == Provider::Synced {
                let hub = self.resolve(name).ok().and_then(|target| target.hub);
                let made_of = match queue.bucket {
                    Some(_) => Origin::File(key("bucket")),
                    None => Origin::Made("bucket, campaign and name"),
                };
                let row = hub.map(|hub| Sourced::new(hub.to_string(), made_of));
                rows.add(&key("hub"), row);
                let every = format!("{}s", queue.sync_every()?.as_secs_f64());
                match queue.sync_every {
                    Some(_) => rows.in_file(&key("sync_every"), Some(every)),
                    None => rows.add(&key("sync_every"), Some(Sourced::default(every))),
                }
            }
            if provider.value == Provider::Sqs {
                rows.in_file(&key("dead_letter"), queue.dead_letter.clone());
                rows.in_file(&key("group"), queue.group.clone());
            }
        } else {
            let address = self.beside_file(queue.address.as_deref().unwrap_or_default().parse()?);
            rows.in_file(&key("address"), Some(address.to_string()));
        }
        let settings = queue.settings()?;
        let seconds = |time: std::time::Duration| format!("{}s", time.as_secs_f64());
        let durability = match settings.durability {
            Durability::Durable => "durable",
            Durability::Relaxed => "relaxed",
        };
        let layout = match settings.layout {
            Layout::Sharded => "sharded",
            Layout::Flat => "flat",
        };
        let shared = match settings.shared {
            Shared::Umask => "umask",
            Shared::Group => "group",
        };
        for (word, given, value) in [
            ("lease", queue.lease.is_some(), seconds(settings.lease)),
            ("max_attempts", queue.max_attempts.is_some(), settings.max_attempts.to_string()),
            ("max_lost", queue.max_lost.is_some(), settings.max_lost.to_string()),
            ("backoff", queue.backoff.is_some(), seconds(settings.backoff.base)),
            ("backoff_max", queue.backoff_max.is_some(), seconds(settings.backoff.max)),
            ("durability", queue.durability.is_some(), durability.to_owned()),
            ("layout", queue.layout.is_some(), layout.to_owned()),
            ("shared", queue.shared.is_some(), shared.to_owned()),
        ] {
            let origin = if given { Origin::File(key(word)) } else { Origin::Default };
            rows.add(&key(word), Some(Sourced::new(value, origin)));
        }
        Ok(())
    }
}

pub(super) struct Rows(Vec<Effective>);

impl Rows {
    pub(super) fn add(&mut self, key: &str, value: Option<Sourced<String>>) {
        let (value, origin) = match value {
            Some(Sourced { value, origin }) => (Some(value), origin),
            None => (None, Origin::Default),
        };
        self.0.push(Effective { key: key.to_owned(), value, origin });
    }

    pub(super) fn in_file(&mut self, key: &str, value: Option<String>) {
        self.add(key, value.map(|value| Sourced::new(value, Origin::File(key.to_owned()))));
    }
}
