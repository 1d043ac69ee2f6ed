//! The queues of an account, as a whole: which there are, and the end of one.
//!
//! Invariant: nothing here looks at or touches a task, except that a queue goes with all that is in it.

use super::client::{Client, Patience};
use super::{Sqs, open};
use crate::address::SqsAddress;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::RequestKind;
use crate::options::OpenOptions;

/// How many names a request asks for: as many as SQS gives.
const PAGE: i32 = 1000;

/// More pages than any account has: SQS must not keep us asking for ever.
const MAX_PAGES: usize = 1000;

impl Sqs {
    /// The queues of the account and region at hand whose names begin so, in the order of their names.
    pub async fn names(prefix: &str, options: &OpenOptions) -> Result<Vec<String>> {
        let pattern = SqsAddress::Name(format!("{prefix}*"));
        let client = client(&pattern, options).await?;
        let (mut names, mut next) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let call = || {
                let list = client.sdk.list_queues().max_results(PAGE);
                list.queue_name_prefix(prefix).set_next_token(next.clone()).send()
            };
            let page =
                client.call(RequestKind::Manage, "list", Patience::ORDINARY, call).await?.said;
            let urls = page.queue_urls().iter();
            names.extend(urls.filter_map(|url| url.rsplit('/').next()).map(str::to_owned));
            next = page.next_token;
            if next.is_none() {
                break;
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes a queue with all that is in it; one that is not there is no error.
    pub async fn remove(address: &SqsAddress, options: &OpenOptions) -> Result<()> {
        let client = client(address, options).await?;
        let gone = |error: Error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        };
        let url = match client.find(address, None).await {
            Ok(url) => url,
            Err(error) => return gone(error),
        };
        let call = || client.sdk.delete_queue().queue_url(&url).send();
        let removed = client.call(RequestKind::Manage, "remove", Patience::ORDINARY, call).await;
        removed.map_or_else(|refused| gone(refused.into()), |_| Ok(()))
    }
}

async fn client(address: &SqsAddress, options: &OpenOptions) -> Result<Client> {
    Ok(Client {
        sdk: aws_sdk_sqs::Client::from_conf(open::config(address, &options.sqs).await?),
        env: options.env.clone(),
        meter: options.meter.clone(),
        address: address.to_string(),
    })
}
