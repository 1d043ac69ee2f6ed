//! Where an index can be: in memory, in a folder, in a bucket on a server of our own.

use std::sync::Arc;

use dfq::index::Index;
use dfq::options::S3Options;
use dfq::store::Objects;
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
