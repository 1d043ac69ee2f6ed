//! Where an index can be: in memory, in a folder, in a bucket on a server of our own.

use std::sync::Arc;

use dfq::index::Index;
use dfq::options::S3Options;
use dfq::store::Objects;
use dfq::store::bucket::Bucket;
use dfq::store::memory::MemoryObjects;
use dfq::store::retrying::Retrying;
use dfq::{Env, OpenOptions};
use dfq_s3_server::{Options, Server};

/// A place for one index.
pub(crate) enum Place {
    Memory(MemoryObjects),
    Folder(tempfile::TempDir),
    Bucket(Box<Server>),
}

fn test_dir() -> std::path::PathBuf {
    std::env::var_os("DFQ_TEST_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()).into()
}

impl Place {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryObjects::new("memory:".to_owned(), Env::system()))
    }

    pub(crate) fn folder() -> Self {
        Self::Folder(tempfile::tempdir_in(test_dir()).unwrap())
    }

    pub(crate) async fn bucket() -> Self {
        Self::Bucket(Box::new(Server::start(Options::default()).await.unwrap()))
    }

    pub(crate) async fn all() -> Vec<Self> {
        vec![Self::memory(), Self::folder(), Self::bucket().await]
    }

    /// A handle to the index, like another process's. It is made by the first.
    pub(crate) async fn index(&self) -> Index {
        self.index_with(Env::system()).await
    }

    pub(crate) async fn index_with(&self, env: Env) -> Index {
        match self {
            Self::Memory(memory) => {
                let objects: Arc<dyn Objects> =
                    Arc::new(Retrying::new(memory.clone(), env.clone()));
                Index::over(objects, env, None, Some("key")).await.unwrap()
            }
            Self::Folder(dir) => {
                let options = OpenOptions { env, ..OpenOptions::create() };
                Index::open(dir.path(), options).await.unwrap()
            }
            Self::Bucket(server) => {
                let options = OpenOptions { env, s3: s3_options(server), ..OpenOptions::create() };
                let address = format!("s3://{}/some/where", server.bucket());
                Index::open(address.as_str(), options).await.unwrap()
            }
        }
    }
}

pub(crate) fn s3_options(server: &Server) -> S3Options {
    let (key, secret) = (server.access_key(), server.secret_key());
    S3Options {
        endpoint: Some(server.endpoint()),
        region: Some("us-east-1".to_owned()),
        credentials: Some((key.to_owned(), secret.to_owned())),
        ..S3Options::default()
    }
}

impl Place {
    /// Something that the store has, by its name; the plain name, in a folder.
    pub(crate) async fn read(&self, name: &str) -> Option<Vec<u8>> {
        match self {
            Self::Memory(memory) => memory.get(name, None).await.unwrap().map(|got| got.bytes),
            Self::Folder(dir) => std::fs::read(dir.path().join(name)).ok(),
            Self::Bucket(_) => {
                self.objects().await.get(name, None).await.unwrap().map(|got| got.bytes)
            }
        }
    }

    /// Writes a file as another program does.
    pub(crate) async fn write(&self, name: &str, bytes: &[u8]) {
        match self {
            Self::Memory(memory) => memory.put(name, bytes).await.unwrap(),
            Self::Folder(dir) => {
                let path = dir.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                let tmp = path.with_extension("other-program");
                std::fs::write(&tmp, bytes).unwrap();
                std::fs::rename(&tmp, &path).unwrap();
            }
            Self::Bucket(_) => self.objects().await.put(name, bytes).await.unwrap(),
        }
    }

    /// All names, without a folder's workshops.
    pub(crate) async fn names(&self) -> Vec<String> {
        let objects = self.objects().await;
        let mut listing = objects.list(dfq::store::objects::List::below(""));
        let mut names = Vec::new();
        loop {
            let part = listing.next(1000).await.unwrap();
            names.extend(part.files.into_iter().map(|file| file.name));
            if part.end {
                names.retain(|name| !name.starts_with("tmp/"));
                return names;
            }
        }
    }

    /// The names and contents below, without an index.
    pub(crate) async fn objects(&self) -> Arc<dyn Objects> {
        let env = Env::system();
        match self {
            Self::Memory(memory) => Arc::new(memory.clone()),
            Self::Folder(dir) => {
                Arc::new(dfq::store::fs::Filesystem::open(dir.path(), env).unwrap())
            }
            Self::Bucket(server) => {
                let address = format!("s3://{}/some/where", server.bucket());
                let dfq::Address::Bucket(address) = address.parse().unwrap() else {
                    unreachable!("it is a bucket's")
                };
                let (options, meter) = (s3_options(server), dfq::meter::Meter::default());
                Arc::new(Bucket::open(&address, &options, env, meter).await.unwrap())
            }
        }
    }

    /// The index at this place as it is, made by whoever made it.
    pub(crate) async fn existing(&self) -> dfq::Result<Index> {
        let env = Env::system();
        let objects: Arc<dyn Objects> = Arc::new(Retrying::new(self.objects().await, env.clone()));
        Index::over(objects, env, None, None).await
    }
}
