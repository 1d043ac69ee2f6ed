//! How the places of a synced queue come to be.

use std::time::Duration;

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Settings, Synced};
use crate::options::OpenOptions;
use crate::provider;
use crate::queue::merge::check_alike;

/// What a new folder is made with that is merged with this hub: what the hub says, else what is wanted.
pub async fn settings_for(
    hub: &Address,
    wanted: Settings,
    period: Duration,
    options: OpenOptions,
) -> Result<Settings> {
    let existing = OpenOptions { create: None, ..options };
    match provider::open(hub, existing).await {
        Ok(queue) => match &queue.settings().synced {
            Some(synced) if synced.hub => {
                let synced = Some(Synced { hub: false, ..synced.clone() });
                Ok(Settings { synced, created_at: None, ..queue.settings().clone() })
            }
            _ => Err(not_a_hub(hub)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let synced = Synced::of_hub(&hub.to_string(), period);
            Ok(Settings { synced: Some(synced), ..wanted })
        }
        // Out of reach, but it is known what was wanted: the hub is compared once it answers.
        Err(error) if error.kind() == ErrorKind::Unavailable && wanted.synced.is_some() => {
            Ok(wanted)
        }
        Err(error) => Err(error),
    }
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
        Address::Directory(path) => {
            std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string()
        }
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
