//! Queues in this process's own memory, under a name: `memory://jobs`.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Provider, on_tree};
use crate::address::Address;
use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::queue::Queue;
use crate::store::Objects;
use crate::store::memory::Memory;

pub(super) struct InMemory;

/// What stands before `://`.
const SCHEME: &str = "memory";

#[async_trait]
impl Provider for InMemory {
    fn knows(&self, address: &Address) -> bool {
        matches!(address, Address::Other { scheme, .. } if scheme == SCHEME)
    }

    async fn open(&self, address: &Address, options: OpenOptions) -> Result<Arc<dyn Queue>> {
        match address {
            Address::Other { rest: name, .. } if !name.is_empty() => {
                on_tree(Memory::named(name, &options.env), options).await
            }
            _ => Err(Error::invalid("'memory://' needs a name, as memory://jobs")),
        }
    }

    async fn objects(
        &self,
        address: &Address,
        options: &OpenOptions,
        _create: bool,
    ) -> Result<Arc<dyn Objects>> {
        match address {
            Address::Other { rest: name, .. } if !name.is_empty() => {
                Ok(Arc::clone(Memory::named(name, &options.env).objects()) as Arc<dyn Objects>)
            }
            _ => Err(Error::invalid("'memory://' needs a name, as memory://companies")),
        }
    }
}
