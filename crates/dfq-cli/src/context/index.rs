//! How indexes are opened.
//!
//! Invariant: an index is never made in the place of a queue, nor a queue in the place of an index.

use anyhow::Result;
use dfq::address::Address;
use dfq::config::IndexTarget;
use dfq::index::Index;
use dfq::{ErrorKind, OpenOptions};

use super::{Context, look_at_folder, whole};
use crate::exit::invalid;

/// What the field is called that is the key, if nobody says otherwise.
const KEY: &str = "key";

/// An index that is there, or can be made.
pub(crate) struct IndexPlace<'a> {
    context: &'a Context,
    target: IndexTarget,
    there: Option<Index>,
    /// The field that is the key, if the command line says so.
    key: Option<String>,
}

impl Context {
    /// What an index's name or address stands for.
    pub(crate) fn index_target(&self, text: &str) -> Result<IndexTarget> {
        let mut target = self.config.index(text)?;
        look_at_folder(&mut target.address, "index")?;
        Ok(target)
    }

    /// Opens an index that must be there.
    pub(crate) async fn open_index(&self, text: &str) -> Result<Index> {
        let place = self.index_place(text, None).await?;
        place.there.ok_or_else(|| {
            let address = whole(&place.target.address);
            let hint = "the first `dfq index put` makes it, or `dfq index init`";
            crate::exit::not_found(format!("there is no index at '{address}'; {hint}"))
        })
    }

    /// Opens an index that may not be there yet. `key` is the field that is the key, if the command line says so.
    pub(crate) async fn index_place(
        &self,
        text: &str,
        key: Option<&str>,
    ) -> Result<IndexPlace<'_>> {
        let target = self.index_target(text)?;
        let there = match Index::open(&target.address, self.index_options()).await {
            Ok(index) => Some(index),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.refuse_queue(&target.address).await?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        Ok(IndexPlace { context: self, target, there, key: key.map(str::to_owned) })
    }

    pub(crate) fn index_options(&self) -> OpenOptions {
        self.access_s3(OpenOptions::existing())
    }

    /// An error if there is a queue at this address.
    async fn refuse_queue(&self, address: &Address) -> Result<()> {
        if let Address::Other { .. } | Address::Sqs(_) = address {
            return Ok(());
        }
        let kind = match dfq::open(address, self.index_options()).await {
            Ok(_) => None,
            Err(error) => Some((error.kind(), error)),
        };
        match kind {
            Some((ErrorKind::NotFound, _)) => Ok(()),
            // Whatever is wrong with it, a queue is there.
            None | Some((ErrorKind::Damaged | ErrorKind::Incompatible | ErrorKind::Unsafe, _)) => {
                let address = whole(address);
                Err(invalid(format!("{address} is a queue, and an index needs a place of its own")))
            }
            Some((_, error)) => Err(error.into()),
        }
    }

    /// An error if there is an index at this address.
    pub(super) async fn refuse_index(&self, address: &Address) -> Result<()> {
        if !matches!(address, Address::Directory(_) | Address::Bucket(_)) {
            return Ok(());
        }
        match Index::open(address, self.index_options()).await {
            Err(_) => Ok(()),
            Ok(_) => Err(invalid(format!(
                "{} is an index, and a queue needs a place of its own; `dfq index` reads it",
                whole(address)
            ))),
        }
    }
}

impl IndexPlace<'_> {
    /// The index, if it is there.
    pub(crate) fn there(&self) -> Option<&Index> {
        self.there.as_ref()
    }

    /// What was asked for.
    pub(crate) fn target(&self) -> &IndexTarget {
        &self.target
    }

    /// The member of a record that is its key: as the command line says, else as the index has it, else as dfq.toml says.
    pub(crate) fn key_field(&self) -> String {
        let there = || self.there.as_ref().map(Index::key_column);
        let configured = || self.target.key.clone();
        let key = self.key.clone().or_else(there).or_else(configured);
        key.unwrap_or_else(|| KEY.to_owned())
    }

    /// Nobody says which field is the key.
    pub(crate) fn key_is_a_guess(&self) -> bool {
        self.key.is_none() && self.there.is_none() && self.target.key.is_none()
    }

    /// The index, which is made if it is not there yet; says so when it does.
    pub(crate) async fn make(&mut self) -> Result<Index> {
        if let Some(index) = &self.there {
            return Ok(index.clone());
        }
        let address = &self.target.address;
        match address {
            Address::Directory(path) => {
                // The folders above it are made as for a queue.
                if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
                    let _ = dfq::store::fs::make_durably(above);
                }
            }
            Address::Other { scheme, .. } if scheme == "memory" => {
                return Err(invalid(format!(
                    "{address} would end with this command; it is for programs that use the library"
                )));
            }
            Address::Bucket(_) | Address::Sqs(_) | Address::Other { .. } => {}
        }
        let options = self.context.index_options();
        let index = Index::create(address, options, &self.key_field()).await?;
        if !self.context.quiet {
            crate::output::note!("dfq: made the index {}", whole(address));
        }
        Ok(self.there.insert(index).clone())
    }
}
