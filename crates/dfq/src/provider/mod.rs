//! The kinds of stores and services that queues are kept in, and how each is opened.
//!
//! Invariant: [`PROVIDERS`] is the only list of them. A provider stands in a file of its own and on one line
//! there; without its Cargo feature it is left out, and its addresses are refused.

#[cfg(feature = "bucket")]
mod bucket;
mod directory;
mod memory;
#[cfg(feature = "sqs")]
mod sqs;

use std::sync::Arc;

use async_trait::async_trait;

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result, left_out};
use crate::layout;
use crate::model::{Settings, Synced};
use crate::options::OpenOptions;
use crate::queue::merge::{Merge, MergeOptions, Merging, check_new_folder};
use crate::queue::{Queue, TreeQueue};
#[cfg(feature = "bucket")]
use crate::store::bucket::Bucket;
use crate::store::fs::Filesystem;
use crate::store::{EntryKind, Objects, Tree};

/// Opens queues in one kind of store or service.
#[async_trait]
trait Provider: Sync {
    /// Whether it is for addresses of this kind.
    fn knows(&self, address: &Address) -> bool;

    /// Opens the queue at an address that it knows; makes it first if the options say so.
    async fn open(&self, address: &Address, options: OpenOptions) -> Result<Arc<dyn Queue>>;

    /// The names and contents at an address that it knows; a folder is made first with `create`.
    async fn objects(
        &self,
        address: &Address,
        _options: &OpenOptions,
        _create: bool,
    ) -> Result<Arc<dyn Objects>> {
        let message = format!("{address} keeps no files; use a path or a bucket");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// The folders right below an address, by their names and addresses.
    async fn folders(
        &self,
        address: &Address,
        _options: &OpenOptions,
    ) -> Result<Vec<(String, Address)>> {
        let message = format!("what is below {address} cannot be listed");
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

const PROVIDERS: &[&dyn Provider] = &[
    &directory::Directory,
    &memory::InMemory,
    #[cfg(feature = "bucket")]
    &bucket::InBucket,
    #[cfg(feature = "sqs")]
    &sqs::InSqs,
];

pub(crate) async fn open(address: &Address, options: OpenOptions) -> Result<Arc<dyn Queue>> {
    of(address)?.open(address, options).await
}

/// The names and contents at an address, with calls that are made again where that may help.
pub(crate) async fn objects(
    address: &Address,
    options: &OpenOptions,
    create: bool,
) -> Result<Arc<dyn Objects>> {
    of(address)?.objects(address, options, create).await
}

pub(crate) async fn queues_below(
    address: &Address,
    options: &OpenOptions,
) -> Result<Vec<(String, Address)>> {
    let mut queues = Vec::new();
    for (folder, below) in of(address)?.folders(address, options).await? {
        let existing = OpenOptions { create: None, ..options.clone() };
        match open(&below, existing).await {
            Ok(_) => queues.push((layout::decode_segment(&folder).unwrap_or(folder), below)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(queues)
}

/// Opens a node's folder and its hub, to be merged.
pub(crate) async fn merge(
    folder: &TreeQueue<Filesystem>,
    hub: &Address,
    options: OpenOptions,
    how: MergeOptions,
) -> Result<Box<dyn Merging>> {
    match hub {
        Address::Directory(path) => {
            let hub = directory::tree(path, &options)?;
            let hub = TreeQueue::open(hub, options).await?;
            Ok(Box::new(Merge::with(folder, &hub, how).await?))
        }
        #[cfg(feature = "bucket")]
        Address::Bucket(address) if Bucket::is_built_for(address.cloud) => {
            let hub = bucket::open_bucket(address, &options).await?;
            let hub = TreeQueue::open(hub, options).await?;
            Ok(Box::new(Merge::with(folder, &hub, how).await?))
        }
        Address::Bucket(_) => Err(refusal(hub)),
        elsewhere => Err(Error::invalid(format!(
            "{elsewhere} cannot be the hub of a synced queue; that is a bucket, or another folder"
        ))),
    }
}

/// An error if a hub knows a node in this folder of this machine, in which there is nothing now.
pub(crate) async fn check_new_node(
    hub: &Address,
    options: &OpenOptions,
    folder: &str,
) -> Result<()> {
    let host = &options.env.host().name;
    match hub {
        Address::Directory(path) => match directory::tree(path, options) {
            Ok(tree) => check_new_folder(&tree, host, folder).await,
            // A hub that is to be made, too.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        },
        #[cfg(feature = "bucket")]
        Address::Bucket(address) if Bucket::is_built_for(address.cloud) => {
            let tree = bucket::open_bucket(address, options).await?;
            check_new_folder(&tree, host, folder).await
        }
        // What cannot be a hub is refused elsewhere.
        _ => Ok(()),
    }
}

/// Makes a queue a place of a synced one, or undoes that; answers what its settings were.
pub(crate) async fn set_synced(
    address: &Address,
    options: OpenOptions,
    synced: Option<Synced>,
) -> Result<Settings> {
    match address {
        Address::Directory(path) => {
            TreeQueue::open(directory::tree(path, &options)?, options)
                .await?
                .set_synced(synced)
                .await
        }
        #[cfg(feature = "bucket")]
        Address::Bucket(address) if Bucket::is_built_for(address.cloud) => {
            let tree = bucket::open_bucket(address, &options).await?;
            TreeQueue::open(tree, options).await?.set_synced(synced).await
        }
        elsewhere => Err(refusal(elsewhere)),
    }
}

/// A queue in a directory, which must be there.
pub(crate) async fn open_folder(
    address: &Address,
    options: OpenOptions,
) -> Result<TreeQueue<Filesystem>> {
    match address {
        Address::Directory(path) => {
            TreeQueue::open(directory::tree(path, &options)?, options).await
        }
        elsewhere => Err(Error::invalid(format!(
            "{elsewhere} cannot be a node of a synced queue; that is a folder on this machine"
        ))),
    }
}

fn of(address: &Address) -> Result<&'static dyn Provider> {
    let provider = PROVIDERS.iter().find(|provider| provider.knows(address));
    provider.copied().ok_or_else(|| refusal(address))
}

/// The error for an address that no provider of this build knows.
fn refusal(address: &Address) -> Error {
    let feature = match address {
        Address::Bucket(bucket) => bucket.cloud.feature(),
        Address::Sqs(_) => "sqs",
        Address::Directory(_) | Address::Other { .. } => {
            let scheme = match address {
                Address::Other { scheme, .. } => scheme,
                _ => "file",
            };
            return Error::new(
                ErrorKind::Unsupported,
                format!(
                    "this dfq cannot use {scheme}:// addresses; a queue is a path, or begins with \
                     s3://, gs://, az://, sqs:// or file://"
                ),
            );
        }
    };
    left_out(address, feature)
}

/// A queue on a tree.
async fn on_tree<T: Tree>(tree: T, options: OpenOptions) -> Result<Arc<dyn Queue>> {
    Ok(Arc::new(TreeQueue::open(tree, options).await?))
}

/// The names of the folders at the root of a tree.
async fn folders_of<T: Tree>(tree: &T) -> Result<Vec<String>> {
    let (mut from, mut folders) = (None, Vec::new());
    loop {
        let page = tree.list_folder(".", from, 1000).await?;
        let entries = page.entries.into_iter().filter(|entry| entry.kind == EntryKind::Folder);
        folders.extend(entries.map(|entry| entry.name));
        from = page.next;
        if from.is_none() {
            folders.sort_unstable();
            return Ok(folders);
        }
    }
}

#[cfg(test)]
mod tests;
