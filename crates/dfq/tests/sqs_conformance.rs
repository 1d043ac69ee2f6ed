//! The conformance suite over SQS, on two servers that disagree about receipts, standard and FIFO.

#![allow(clippy::unwrap_used, reason = "tests")]

mod sqs_support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dfq::conformance::Provider;
use dfq::{Queue, Settings};
use sqs_support::Site;

struct Server(Site);

#[async_trait]
impl Provider for Server {
    async fn worker(&self, settings: &Settings) -> Arc<dyn Queue> {
        self.0.queue(settings).await
    }

    #[allow(clippy::disallowed_methods, reason = "the server's clock is the machine's")]
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(4)
    }
}

/// The suite on one kind of queue of one server, as far as that server is to be had.
macro_rules! suite {
    ($name:ident, $server:ident, $suffix:literal) => {
        mod $name {
            use super::*;

            async fn make() -> Option<Server> {
                Some(Server(Site::new(sqs_support::$server()?, $suffix)))
            }

            dfq::conformance_tests!(make);
        }
    };
}

suite!(ministack_standard, ministack, "");
suite!(ministack_fifo, ministack, ".fifo");
suite!(fauxqs_standard, fauxqs, "");
suite!(fauxqs_fifo, fauxqs, ".fifo");
