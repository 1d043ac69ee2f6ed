//! Which settings a queue has, or gets if it is new.

use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout::{self, Shard};
use crate::model::{Layout, Settings};
use crate::options::OpenOptions;
use crate::planted::{self, Planted};
use crate::queue::trust;
use crate::store::{Created, EntryKind, Tree};

/// The queue's settings: as recorded, as recognised, or newly made.
pub(super) async fn resolve_settings<T: Tree>(tree: &T, options: &OpenOptions) -> Result<Settings> {
    let address = &tree.properties().address;
    if let Some(settings) = recorded(tree).await? {
        return Ok(settings);
    }
    let root = tree.list_folder(".", None, 64).await?.entries;
    // Another may have made the queue since, and its settings come before all else in it.
    if !root.is_empty()
        && !planted::is(Planted::MakingNotNoticed)
        && let Some(settings) = recorded(tree).await?
    {
        return Ok(settings);
    }
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
        trust::check_doctor_verdict(tree).await?;
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
        Created::Exists => recorded(tree).await?.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("'{address}' is being removed"))
        }),
    }
}

/// What `queue.json` says, if it is there.
async fn recorded<T: Tree>(tree: &T) -> Result<Option<Settings>> {
    let Some(stored) = tree.read(layout::SETTINGS).await? else { return Ok(None) };
    let settings = format::decode_settings(&stored.bytes);
    settings.map(Some).map_err(|error| error.context(&tree.properties().address))
}

/// The layout of a tree that does not say: flat, as the seeds', unless what lies under `pending/` are
/// shards with tasks in them.
async fn recognise_layout<T: Tree>(tree: &T) -> Result<Layout> {
    for entry in tree.list_folder(layout::PENDING, None, 16).await?.entries {
        if entry.kind != EntryKind::Folder || Shard::parse(&entry.name).is_none() {
            return Ok(Layout::Flat);
        }
        let folder = layout::below(layout::PENDING, &entry.name);
        let inside = tree.list_folder(&folder, None, 16).await?.entries;
        if inside.iter().any(|e| e.name == layout::TASK) {
            return Ok(Layout::Flat);
        }
        if inside.iter().any(|e| e.kind == EntryKind::Folder) {
            return Ok(Layout::Sharded);
        }
    }
    Ok(Layout::Flat)
}
