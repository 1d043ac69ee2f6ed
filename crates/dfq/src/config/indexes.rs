//! Indexes by name.
//!
//! Invariant: an index has one place, whatever campaign asks for it, because what is known of a key belongs to all of
//! them. It is in a folder or in a bucket, and what it says of itself goes before what is said of queues.

use std::path::Path;

use serde::Deserialize;

use super::document::{self, nearest};
use super::effective::Rows;
use super::{CONFIG_FILE, Config, Origin, Provider, Sourced};
use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::encode_segment;

/// The folder, or the part of the bucket, in which indexes are.
const PLACE: &str = "indexes";

/// An index that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexTarget {
    /// Its name, unless it was given by its address.
    pub name: Option<String>,
    /// Where it is.
    pub address: Address,
    /// The field that is the key, if the index is made.
    pub key: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct IndexDoc {
    pub(super) address: Option<String>,
    pub(super) provider: Option<String>,
    pub(super) bucket: Option<String>,
    pub(super) key: Option<String>,
}

impl IndexDoc {
    pub(super) const KEYS: [&str; 4] = ["address", "provider", "bucket", "key"];

    pub(super) fn check(&self) -> Result<()> {
        if let Some(word) = &self.provider {
            keeps_indexes(Provider::parse(word)?, "its provider")?;
        }
        self.bucket.as_deref().map(document::bucket).transpose()?;
        if self.key.as_deref() == Some("") {
            return Err(Error::invalid("key is empty; it is the name of a field"));
        }
        if let Some(address) = &self.address {
            if let address @ Address::Sqs(_) = address.parse::<Address>()? {
                return Err(Error::invalid(format!("{address}: {FOLDER_OR_BUCKET}")));
            }
            let beside = [("provider", &self.provider), ("bucket", &self.bucket)];
            if let Some((key, _)) = beside.iter().find(|(_, value)| value.is_some()) {
                return Err(Error::invalid(format!(
                    "it has an address, which decides by itself; leave out '{key}'"
                )));
            }
        }
        Ok(())
    }
}

const FOLDER_OR_BUCKET: &str = "an index lives in a folder or in a bucket";

/// An error if there are no indexes in that kind of store.
fn keeps_indexes(provider: Provider, who_says: &str) -> Result<()> {
    match provider {
        Provider::Filesystem | Provider::S3 => Ok(()),
        Provider::Sqs | Provider::Synced => Err(Error::invalid(format!(
            "{FOLDER_OR_BUCKET}, and {who_says} is '{provider}'; write provider = \"s3\" or \
             \"filesystem\" for it into {CONFIG_FILE}"
        ))),
    }
}

impl Config {
    /// The names of all indexes.
    pub fn index_names(&self) -> impl Iterator<Item = &str> {
        self.doc.indexes.keys().map(String::as_str)
    }

    /// The index that `text` means: an address, or a name.
    pub fn index(&self, text: &str) -> Result<IndexTarget> {
        if let Some(address) = Address::parse(text)? {
            if let Address::Sqs(_) = address {
                let message = format!("'{text}' cannot be an index: {FOLDER_OR_BUCKET}");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            return Ok(IndexTarget { name: None, address, key: None });
        }
        let Some(index) = self.doc.indexes.get(text) else { return Err(self.unknown_index(text)) };
        let place = self.file().unwrap_or(Path::new(CONFIG_FILE)).display();
        let address = self.place_of(text, index);
        let address = address.map_err(|error| error.context(format!("{place}: index '{text}'")))?;
        Ok(IndexTarget { name: Some(text.to_owned()), address, key: index.key.clone() })
    }

    fn place_of(&self, name: &str, index: &IndexDoc) -> Result<Address> {
        if let Some(address) = &index.address {
            return Ok(self.beside_file(address.parse()?));
        }
        let segment = encode_segment(name);
        let provider = self.provider_of(name, index)?;
        keeps_indexes(provider.value, &provider.origin.to_string())?;
        if provider.value == Provider::Filesystem {
            let root = self.below_file(self.doc.root.as_deref().unwrap_or(Path::new("")));
            return Ok(Address::Directory(root.join(PLACE).join(segment)));
        }
        let Some(bucket) = index.bucket.as_deref().or(self.doc.bucket.as_deref()) else {
            return Err(Error::invalid(format!(
                "it is to be in a bucket ({}), but none is named; write bucket = \
                 \"s3://bucket/prefix\" into {CONFIG_FILE}",
                provider.origin
            )));
        };
        // It may be too long now.
        document::bucket(bucket)?.below(&format!("{PLACE}/{segment}")).to_string().parse()
    }

    /// What the index says of itself, else what is said of names in general.
    fn provider_of(&self, name: &str, index: &IndexDoc) -> Result<Sourced<Provider>> {
        match &index.provider {
            Some(word) => {
                let origin = Origin::File(format!("{PLACE}.{name}.provider"));
                Ok(Sourced::new(Provider::parse(word)?, origin))
            }
            None => self.provider(),
        }
    }

    pub(super) fn index_rows(&self, name: &str, index: &IndexDoc, rows: &mut Rows) -> Result<()> {
        let key = |key: &str| format!("{PLACE}.{name}.{key}");
        if index.address.is_some() {
            let address = self.place_of(name, index)?.to_string();
            rows.in_file(&key("address"), Some(address));
        } else {
            let provider = self.provider_of(name, index)?;
            let made_of = match (provider.value, &index.bucket) {
                (Provider::S3, Some(_)) => Origin::File(key("bucket")),
                (Provider::S3, None) => Origin::Made("bucket and name"),
                _ => Origin::Made("root and name"),
            };
            rows.add(&key("provider"), Some(provider.map(|it| it.to_string())));
            let address = match self.place_of(name, index) {
                Ok(address) => address.to_string(),
                Err(error) => format!("({error})"),
            };
            rows.add(&key("address"), Some(Sourced::new(address, made_of)));
        }
        match &index.key {
            Some(_) => rows.in_file(&key("key"), index.key.clone()),
            None => rows.add(&key("key"), Some(Sourced::default("key".to_owned()))),
        }
        Ok(())
    }

    fn unknown_index(&self, name: &str) -> Error {
        let known: Vec<&str> = self.index_names().collect();
        let hint = match (self.file(), nearest(name, &known)) {
            _ if self.doc.queues.contains_key(name) => "that is a queue".to_owned(),
            (_, Some(near)) => format!("did you mean '{near}'?"),
            (Some(file), None) if known.is_empty() => {
                format!("{} has no [indexes.{name}]", file.display())
            }
            (Some(file), None) => format!("{} has: {}", file.display(), known.join(", ")),
            (None, None) => format!("there is no {CONFIG_FILE} here that names indexes"),
        };
        Error::not_found(format!(
            "there is no index named '{name}': {hint} (a directory is written with a slash: ./{name})"
        ))
    }
}
