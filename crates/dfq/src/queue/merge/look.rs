//! What there is in a place, by a listing alone: no file is read.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::layout::{self, Due};
use crate::model::{Generation, Outcome, TaskId, TaskKey};
use crate::queue::core::Core;
use crate::store::Tree;
use crate::store::objects::{Head, List, Listed, Listing, Part};

/// Names in one request.
const PAGE: usize = 1000;

/// After so many folders that cannot be read, it is the store.
const MOST_UNREAD: usize = 8;

/// What was met of an id: names, and which version each has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Met {
    pub(super) pending: BTreeMap<Generation, MetTask>,
    pub(super) scheduled: BTreeMap<(Generation, Due), String>,
    /// When the newest file of a task was written, on this place's clock.
    pub(super) written: Option<Timestamp>,
}

/// What was met in a task's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MetTask {
    pub(super) task: Option<String>,
    pub(super) leases: BTreeMap<u32, String>,
}

impl Met {
    /// The lives that were met.
    pub(super) fn lives(&self) -> impl Iterator<Item = Generation> + '_ {
        self.pending.keys().copied().chain(self.scheduled.keys().map(|(life, _)| *life))
    }
}

/// All that a listing shows but records.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) ids: BTreeMap<TaskId, Met>,
    /// Files of floors, by their paths.
    pub(super) floors: Vec<String>,
    /// The nodes, and when each was last heard of, on this place's clock.
    pub(super) nodes: Vec<(String, Timestamp)>,
    /// Which `paused.json` there is.
    pub(super) paused: Option<String>,
    /// Which `queue.json` there is.
    pub(super) settings: Option<String>,
    /// Names that nobody here could have made.
    pub(super) strange: Vec<String>,
    /// Folders that could not be read, and why. They end in a slash.
    pub(super) unread: Vec<(String, Error)>,
    /// How many names there were.
    pub(super) names: usize,
}

/// Lists a place, but for its records. In a bucket names are in order, and all but `completed/` and `failed/` come after
/// these two. So one listing shows everything else.
pub(super) async fn list<T: Tree>(core: &Core<T>) -> Result<Shown> {
    let mut shown = Shown::default();
    if !core.strategy.has_folders {
        let what = List::Below { prefix: String::new(), after: Some(layout::after_records()) };
        list_into(core, what, &mut shown).await?;
        return Ok(shown);
    }
    // On disk whatever else lies in the root is not ours, such as `lost+found`, and may be large.
    for place in [layout::FLOORS, layout::PENDING, layout::SCHEDULED, layout::WORKERS] {
        list_part(core, &layout::below(place, ""), &mut shown).await?;
    }
    let tag = |head: Option<Head>| head.map(|head| head.version.tag().to_owned());
    shown.paused = tag(core.tree.head(layout::PAUSED).await?);
    shown.settings = tag(core.tree.head(layout::SETTINGS).await?);
    Ok(shown)
}

impl Shown {
    /// What was met of an id.
    pub(super) fn met(&self, id: &TaskId) -> Met {
        self.ids.get(id).cloned().unwrap_or_default()
    }

    /// Whether something of an id, of which the other place has this, may lie in a folder that could not be read.
    pub(super) fn hides<T: Tree>(&self, core: &Core<T>, id: &TaskId, elsewhere: &Met) -> bool {
        if self.unread.is_empty() {
            return false;
        }
        let key = |life: Generation| TaskKey::new(id.clone(), life);
        let pending = elsewhere.lives().chain([1]).map(|life| core.task_dir(&key(life)));
        let scheduled = elsewhere.scheduled.keys();
        let scheduled = scheduled.map(|(life, due)| layout::scheduled_dir(*due, &key(*life)));
        let mut folders = pending.chain(scheduled).map(|folder| layout::below(&folder, ""));
        folders.any(|path| self.unread.iter().any(|(folder, _)| path.starts_with(folder)))
    }
}

/// Lists what begins with a prefix.
pub(super) async fn list_part<T: Tree>(
    core: &Core<T>,
    prefix: &str,
    shown: &mut Shown,
) -> Result<()> {
    list_into(core, List::below(prefix), shown).await
}

async fn list_into<T: Tree>(core: &Core<T>, what: List, shown: &mut Shown) -> Result<()> {
    list_until(core, what, usize::MAX, shown).await.map(|_| ())
}

/// The same, up to about so many names; whether that was all.
pub(super) async fn list_some<T: Tree>(
    core: &Core<T>,
    prefix: &str,
    most: usize,
    shown: &mut Shown,
) -> Result<bool> {
    list_until(core, List::below(prefix), most, shown).await
}

async fn list_until<T: Tree>(
    core: &Core<T>,
    what: List,
    most: usize,
    shown: &mut Shown,
) -> Result<bool> {
    let mut listing = core.tree.list(what);
    loop {
        let Some(part) = next_part(core, &mut *listing, shown).await? else { continue };
        shown.names += part.files.len();
        for file in part.files {
            note(core, file, shown);
        }
        if part.end || shown.names >= most {
            return Ok(part.end);
        }
    }
}

/// The next part of a listing. Nothing, if a folder was left out, because it alone cannot be read.
async fn next_part<T: Tree>(
    core: &Core<T>,
    listing: &mut dyn Listing,
    shown: &mut Shown,
) -> Result<Option<Part>> {
    match listing.next(PAGE).await {
        Ok(part) => Ok(Some(part)),
        Err(error) if shown.unread.len() < MOST_UNREAD && core.is_local(&error).await => {
            let Some(name) = listing.skip() else { return Err(error) };
            if !may_hold_tasks(&name) {
                shown.strange.push(name);
                return Ok(None);
            }
            // Without its floors, nothing is known of what was purged.
            if name.starts_with(layout::FLOORS) {
                return Err(error);
            }
            let folder =
                name.rsplit_once('/').map_or_else(String::new, |it| layout::below(it.0, ""));
            shown.unread.push((folder, error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether something of ours may lie in this folder of a place. If not, it costs nothing that it cannot be read.
fn may_hold_tasks(path: &str) -> bool {
    let mut parts = path.split('/');
    let (place, folder) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match place {
        _ if folder.is_empty() => true,
        layout::SCHEDULED => Due::parse(folder).is_some(),
        _ => layout::Shard::parse(folder).is_some(),
    }
}

fn note<T: Tree>(core: &Core<T>, file: Listed, shown: &mut Shown) {
    let tag = file.head.version.tag().to_owned();
    let Some((place, path)) = file.name.split_once('/') else {
        match file.name.as_str() {
            layout::PAUSED => shown.paused = Some(tag),
            layout::SETTINGS => shown.settings = Some(tag),
            _ => {}
        }
        return;
    };
    let is_ours = match place {
        layout::PENDING => note_pending(core, path, &file.head, shown),
        layout::SCHEDULED => layout::parse_scheduled_path(path).is_some_and(|(due, key)| {
            let met = shown.ids.entry(key.id().clone()).or_default();
            met.written = met.written.max(Some(file.head.modified));
            met.scheduled.insert((key.generation(), due), tag);
            true
        }),
        layout::FLOORS => {
            let is_ours = core.names().is_floor_path(path);
            shown.floors.extend(is_ours.then(|| file.name.clone()));
            is_ours
        }
        layout::WORKERS => {
            let node = layout::parse_node_name(path);
            shown.nodes.extend(node.map(|node| (node, file.head.modified)));
            true
        }
        _ => true,
    };
    if !is_ours {
        shown.strange.push(file.name);
    }
}

fn note_pending<T: Tree>(core: &Core<T>, path: &str, head: &Head, shown: &mut Shown) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    let Some(key) = core.names().parse_task_path(folder).filter(|key| !key.is_verbatim()) else {
        return false;
    };
    let attempt = layout::parse_lease_name(name);
    if attempt.is_none() && name != layout::TASK {
        return false;
    }
    let met = shown.ids.entry(key.id().clone()).or_default();
    if attempt.is_none() {
        met.written = met.written.max(Some(head.modified));
    }
    let met = met.pending.entry(key.generation()).or_default();
    let tag = head.version.tag().to_owned();
    match attempt {
        Some(attempt) => _ = met.leases.insert(attempt, tag),
        None => met.task = Some(tag),
    }
    true
}

/// A record that a listing has shown.
pub(super) struct ShownRecord {
    pub(super) key: TaskKey,
    pub(super) path: String,
    pub(super) tag: String,
}

/// Lists the records of an outcome below a folder. What is odd there goes to `odd`.
pub(super) async fn list_records<T: Tree>(
    core: &Core<T>,
    outcome: Outcome,
    folder: &str,
    odd: &mut Shown,
) -> Result<Vec<ShownRecord>> {
    let place = layout::outcome_dir(outcome);
    let mut listing = core.tree.list(List::below(layout::below(folder, "")));
    let mut records = Vec::new();
    loop {
        let Some(part) = next_part(core, &mut *listing, odd).await? else { continue };
        for file in part.files {
            let below = file.name.strip_prefix(place).and_then(|path| path.strip_prefix('/'));
            let key = below.and_then(|path| core.names().parse_record_path(path));
            match key.filter(|key| !key.is_verbatim()) {
                Some(key) => {
                    let tag = file.head.version.tag().to_owned();
                    records.push(ShownRecord { key, path: file.name, tag });
                }
                None => odd.strange.push(file.name),
            }
        }
        if part.end {
            return Ok(records);
        }
    }
}

/// The paths of a place's files of floors.
pub(super) async fn list_floors<T: Tree>(core: &Core<T>) -> Result<Vec<String>> {
    let mut listing = core.tree.list(List::below(layout::below(layout::FLOORS, "")));
    let mut floors = Vec::new();
    loop {
        let part = listing.next(PAGE).await?;
        floors.extend(part.files.into_iter().map(|file| file.name));
        if part.end {
            return Ok(floors);
        }
    }
}
