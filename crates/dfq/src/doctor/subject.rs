//! What is examined: any tree, and what only a directory or only a bucket has besides.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;

use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::store::bucket::Bucket;
use crate::store::fs::Filesystem;
use crate::store::{EntryKind, Tree};

/// A store to be examined, or one way to it.
pub struct Subject<T: Tree> {
    tree: Arc<T>,
    kind: Kind,
    env: Env,
}

impl<T: Tree> Clone for Subject<T> {
    fn clone(&self) -> Self {
        Self { tree: Arc::clone(&self.tree), kind: self.kind.clone(), env: self.env.clone() }
    }
}

/// What it is besides a tree.
#[derive(Clone)]
pub(super) enum Kind {
    /// A directory, here.
    Directory(PathBuf),
    /// A bucket.
    Bucket(Arc<Bucket>),
}

impl Subject<Filesystem> {
    /// A directory, which is made if it is missing.
    pub fn directory(path: &Path, env: Env) -> Result<Self> {
        let tree = Filesystem::create(path, env.clone())?;
        let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { tree: Arc::new(tree), kind: Kind::Directory(whole), env })
    }
}

impl Subject<Bucket> {
    /// A bucket, or a part of one.
    pub fn bucket(bucket: Bucket, env: Env) -> Self {
        let tree = Arc::new(bucket);
        Self { kind: Kind::Bucket(Arc::clone(&tree)), tree, env }
    }
}

/// Removals under way at a time.
const AT_ONCE: usize = 32;

impl<T: Tree> Subject<T> {
    pub(super) fn tree(&self) -> &T {
        &self.tree
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    pub(super) fn blocking(&self) -> bool {
        self.tree.properties().blocking
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.tree.properties().address
    }

    /// Does something with the store, on a thread that may block if it does.
    pub(super) async fn on<R, F>(&self, act: impl FnOnce(Self) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        let work = act(self.clone());
        if !self.blocking() {
            return work.await;
        }
        self.env.spawn_blocking(work).result().await
    }

    /// The same, `count` times at once.
    pub(super) async fn together<R, F>(
        &self,
        count: usize,
        act: impl Fn(Self, usize) -> F,
    ) -> Vec<R>
    where
        R: Send + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        let act = &act;
        let acts = (0..count).map(|number| self.on(move |subject| act(subject, number)));
        futures::future::join_all(acts).await
    }

    /// Removes a folder of ours with all that is in it.
    pub(super) async fn remove_folder(&self, folder: &str) -> Result<()> {
        if let Kind::Directory(root) = &self.kind {
            let path = root.join(folder);
            let removing = async move { remove_stubbornly(&path) };
            let removed = self.env.spawn_blocking(removing).await;
            return match removed {
                Ok(Err(error)) => {
                    let message = format!("'{folder}' cannot be removed: {error}");
                    Err(Error::new(ErrorKind::Unavailable, message))
                }
                _ => Ok(()),
            };
        }
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let (mut from, mut files) = (None, Vec::new());
            loop {
                let page = self.tree.list_folder(&folder, from, 1000).await?;
                for entry in page.entries {
                    let path = layout::below(&folder, &entry.name);
                    match entry.kind {
                        EntryKind::Folder => folders.push(path),
                        _ => files.push(path),
                    }
                }
                from = page.next;
                if from.is_none() {
                    break;
                }
            }
            let removing = files.iter().map(|file| self.tree.remove_file(file));
            let mut removing = futures::stream::iter(removing).buffer_unordered(AT_ONCE);
            while let Some(removed) = removing.next().await {
                removed?;
            }
        }
        Ok(())
    }
}

/// Mounts with a cache may say that a folder is not empty just after they emptied it.
fn remove_stubbornly(path: &Path) -> std::io::Result<()> {
    for _ in 0..20 {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
            answer => return answer,
        }
    }
    std::fs::remove_dir_all(path)
}
