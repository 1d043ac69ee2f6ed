//! Queues in Amazon SQS.

use std::sync::Arc;

use async_trait::async_trait;

use super::Provider;
use crate::address::Address;
use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::queue::Queue;
use crate::sqs::Sqs;

pub(super) struct InSqs;

#[async_trait]
impl Provider for InSqs {
    fn knows(&self, address: &Address) -> bool {
        matches!(address, Address::Sqs(_))
    }

    async fn open(&self, address: &Address, options: OpenOptions) -> Result<Arc<dyn Queue>> {
        match address {
            Address::Sqs(queue) => Sqs::open(queue.clone(), options).await,
            elsewhere => Err(Error::invalid(format!("{elsewhere} is not in SQS"))),
        }
    }
}
