//! Queues in directories.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Provider, folders_of, on_tree};
use crate::address::Address;
use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::queue::Queue;
use crate::store::Objects;
use crate::store::fs::Filesystem;

pub(super) struct Directory;

fn path(address: &Address) -> Result<&Path> {
    match address {
        Address::Directory(path) => Ok(path),
        elsewhere => Err(Error::invalid(format!("{elsewhere} is not a directory"))),
    }
}

/// The directory, which is made first if the options say so.
pub(super) fn tree(path: &Path, options: &OpenOptions) -> Result<Filesystem> {
    let env = options.env.clone();
    match options.create {
        Some(_) => Filesystem::create(path, env),
        None => Filesystem::open(path, env),
    }
}

#[async_trait]
impl Provider for Directory {
    fn knows(&self, address: &Address) -> bool {
        path(address).is_ok()
    }

    async fn open(&self, address: &Address, options: OpenOptions) -> Result<Arc<dyn Queue>> {
        on_tree(tree(path(address)?, &options)?, options).await
    }

    async fn objects(
        &self,
        address: &Address,
        options: &OpenOptions,
        create: bool,
    ) -> Result<Arc<dyn Objects>> {
        let (path, env) = (path(address)?, options.env.clone());
        let folder =
            if create { Filesystem::create(path, env) } else { Filesystem::open(path, env) };
        Ok(Arc::new(folder?))
    }

    async fn folders(
        &self,
        address: &Address,
        options: &OpenOptions,
    ) -> Result<Vec<(String, Address)>> {
        let path = path(address)?;
        let folders = folders_of(&Filesystem::open(path, options.env.clone())?).await?;
        let below = |name: &String| Address::Directory(path.join(name));
        Ok(folders.into_iter().map(|name| (name.clone(), below(&name))).collect())
    }
}
