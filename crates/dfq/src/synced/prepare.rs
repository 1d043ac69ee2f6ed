//! How the places of a synced queue come to be.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Settings, Synced};
use crate::options::OpenOptions;
use crate::provider;
use crate::queue::merge::check_alike;

/// A folder that is not there yet, and is to become a node.
#[derive(Clone, Debug)]
pub struct NewNode<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// What it is to be merged with.
    pub hub: &'a Address,
    /// The settings that it gets if there is no hub yet.
    pub wanted: Settings,
    /// How often such a queue is merged.
    pub period: Duration,
    /// Make it though a node was there before, or the hub is out of reach.
    pub sure: bool,
}

impl NewNode<'_> {
    /// What the folder is to be made with: what the hub says, else what is wanted. An error if the hub knows a node in
    /// this folder, or if it does not answer: that a disk is not mounted must not go unnoticed. Nothing is made.
    pub async fn settings(self, options: OpenOptions) -> Result<Settings> {
        let folder = whole(self.folder);
        if matches!(self.hub, Address::Directory(path) if whole(path) == folder) {
            return Err(Error::invalid(format!(
                "'{}' cannot be merged with itself; name a bucket, or another folder",
                folder.display()
            )));
        }
        let existing = OpenOptions { create: None, ..options };
        let there = match self.find_hub(&folder, existing).await {
            // It is compared once it answers.
            Err(error) if error.kind() == ErrorKind::Unavailable && self.sure => None,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                return Err(Error::new(error.kind(), not_known(&error, &folder)));
            }
            found => found?,
        };
        let Some(there) = there else {
            let synced = Some(Synced::of_hub(&self.hub.to_string(), self.period));
            return Ok(Settings { synced, ..self.wanted });
        };
        match &there.synced {
            Some(synced) if synced.hub => {
                let synced = Some(Synced { hub: false, ..synced.clone() });
                Ok(Settings { synced, created_at: None, ..there })
            }
            _ => Err(not_a_hub(self.hub)),
        }
    }

    /// The settings of the queue in the hub, if there is one.
    async fn find_hub(&self, folder: &Path, options: OpenOptions) -> Result<Option<Settings>> {
        let folder = folder.display().to_string();
        match provider::check_new_node(self.hub, &options, &folder).await {
            Err(error) if error.kind() == ErrorKind::Invalid && self.sure => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let hint = "make it first, or name another";
                return Err(Error::new(error.kind(), format!("{error}; {hint}")));
            }
            checked => checked?,
        }
        match provider::open(self.hub, options).await {
            Ok(queue) => Ok(Some(queue.settings().clone())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Why nothing is made while the hub does not answer.
fn not_known(error: &Error, folder: &Path) -> String {
    format!(
        "{error}. There is no queue in '{}' yet. Without the hub it is not known whether there should be one. If its disk \
         is not mounted, mount it. To make the queue now, run `dfq supervise --yes` or `dfq init`",
        folder.display()
    )
}

/// A path as a node in it tells it to its hub, though nothing may be there yet.
fn whole(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = path.ancestors().find_map(|above| {
        let below = path.strip_prefix(above).ok()?;
        Some(std::fs::canonicalize(above).ok()?.join(below).components().collect())
    });
    known.unwrap_or(path)
}

fn not_a_hub(hub: &Address) -> Error {
    Error::invalid(format!(
        "there is a queue in {hub}, and it is not the hub of a synced one; `dfq supervise --adopt` makes it one, while no \
         worker is alive"
    ))
}

/// Makes an existing folder, and the hub if it holds a queue, places of one synced queue. Refused while a worker is
/// alive in either.
pub async fn adopt(
    folder: &Address,
    hub: &Address,
    period: Duration,
    options: OpenOptions,
) -> Result<()> {
    let existing = OpenOptions { create: None, ..options };
    let own = provider::open(folder, existing.clone()).await?.settings().clone();
    let mut synced = Synced::of_hub(&hub.to_string(), period);
    let mut called = match hub {
        Address::Directory(path) => whole(path).display().to_string(),
        elsewhere => elsewhere.to_string(),
    };
    match provider::open(hub, existing.clone()).await {
        Ok(queue) => {
            queue.address().clone_into(&mut called);
            check_alike(&own, queue.settings(), &hub.to_string())?;
            if let Some(there) = &queue.settings().synced {
                synced = Synced { hub: false, ..there.clone() };
            }
            // The folder first: cut short after that, the same command goes on.
            let there = Synced { hub: true, ..synced.clone() };
            provider::set_synced(folder, existing.clone(), Some(synced)).await?;
            provider::set_synced(hub, existing.clone(), Some(there)).await?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            provider::set_synced(folder, existing.clone(), Some(synced)).await?;
        }
        Err(error) => return Err(error),
    }
    provider::open_folder(folder, existing).await?.set_hub(&called).await
}

/// Makes a folder an ordinary queue again, which nobody merges. The hub stays as it is.
pub async fn leave(folder: &Address, options: OpenOptions) -> Result<()> {
    let existing = OpenOptions { create: None, ..options };
    provider::set_synced(folder, existing, None).await?;
    Ok(())
}
