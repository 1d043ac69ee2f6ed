//! Opening a queue: how, and which settings it has, or gets if it is new.

use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout::{self, Shard};
use crate::meter::Meter;
use crate::model::{Layout, Settings};
use crate::queue::trust;
use crate::sqs::SqsOptions;
use crate::store::bucket::S3Options;
use crate::store::{Created, EntryKind, Tree};

/// How to open a queue.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Time and chance.
    pub env: Env,
    /// The name to claim under; by default made of host, process and a nonce.
    pub worker_id: Option<String>,
    /// Make the queue if there is none, with these settings.
    pub create: Option<Settings>,
    /// Give tasks up after so many failures, whatever the queue's own limit; a limit that a task was
    /// pushed with stands above both.
    pub max_attempts: Option<u32>,
    /// Counts the requests to a store that charges by the request.
    pub meter: Meter,
    /// How to get at S3, where that differs from the ordinary AWS environment.
    pub s3: S3Options,
    /// Use the store even if the doctor found it unsafe: two workers may then do the same task.
    pub allow_unsafe: bool,
    /// The same for SQS.
    pub sqs: SqsOptions,
}

impl OpenOptions {
    /// Opens a queue that must exist.
    pub fn existing() -> Self {
        Self::default()
    }

    /// Makes the queue if there is none.
    pub fn create() -> Self {
        Self { create: Some(Settings::default()), ..Self::default() }
    }
}

/// The queue's settings: as recorded, as recognised, or newly made.
pub(super) async fn settle_settings<T: Tree>(tree: &T, options: &OpenOptions) -> Result<Settings> {
    let address = &tree.properties().address;
    if let Some(stored) = tree.read(layout::SETTINGS).await? {
        return format::decode_settings(&stored.bytes).map_err(|e| e.context(address));
    }
    let root = tree.list(".", None, 64).await?.entries;
    let pending = root.iter().any(|e| e.name == layout::PENDING && e.kind == EntryKind::Folder);
    if pending {
        let layout = recognise_layout(tree).await?;
        return Ok(Settings { layout, ..Settings::default() });
    }
    let Some(wanted) = &options.create else {
        return Err(Error::not_found(format!("there is no queue at '{address}'")));
    };
    wanted.check()?;
    let ours = [layout::TMP, layout::DOCTOR];
    let stranger =
        root.iter().find(|e| !e.name.starts_with('.') && !ours.contains(&e.name.as_str()));
    if let Some(stranger) = stranger {
        return Err(Error::invalid(format!(
            "'{address}' is not a queue, and it is not empty (it holds '{}'); name a new or empty folder",
            stranger.name
        )));
    }
    if !options.allow_unsafe {
        trust::heed_the_doctor(tree).await?;
    }
    let mut settings = wanted.clone();
    settings.created_at = settings.created_at.or_else(|| Some(options.env.clock().wall()));
    let bytes = format::encode_settings(&settings);
    match tree.create(layout::SETTINGS, &bytes).await? {
        Created::New => {
            if !options.allow_unsafe {
                trust::try_condition(tree, layout::SETTINGS, &bytes).await?;
            }
            Ok(settings)
        }
        // Somebody else was faster: their settings count.
        Created::Exists => match tree.read(layout::SETTINGS).await? {
            Some(stored) => format::decode_settings(&stored.bytes),
            None => {
                Err(Error::new(ErrorKind::Unavailable, format!("'{address}' is being removed")))
            }
        },
    }
}

/// The layout of a tree that does not say: flat, as the seeds', unless what lies under `pending/` are
/// shards with tasks in them.
async fn recognise_layout<T: Tree>(tree: &T) -> Result<Layout> {
    for entry in tree.list(layout::PENDING, None, 16).await?.entries {
        if entry.kind != EntryKind::Folder || Shard::parse(&entry.name).is_none() {
            return Ok(Layout::Flat);
        }
        let folder = layout::below(layout::PENDING, &entry.name);
        let inside = tree.list(&folder, None, 16).await?.entries;
        if inside.iter().any(|e| e.name == layout::TASK) {
            return Ok(Layout::Flat);
        }
        if inside.iter().any(|e| e.kind == EntryKind::Folder) {
            return Ok(Layout::Sharded);
        }
    }
    Ok(Layout::Flat)
}
