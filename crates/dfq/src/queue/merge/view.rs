//! What one place has of an id.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::clocks::HORIZON;
use super::look::Met;
use super::memory::Memory;
use crate::error::{Error, Result};
use crate::layout::{self, Due};
use crate::model::{Generation, TaskId, TaskKey};
use crate::planted::{self, Planted};
use crate::queue::OUTCOMES;
use crate::queue::core::Core;
use crate::store::objects::Got;
use crate::store::{Tree, Version};

/// A file as it was read.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) version: Version,
    pub(super) modified: Timestamp,
}

impl From<Got> for Content {
    fn from(Got { bytes, head }: Got) -> Self {
        Self { bytes, version: head.version, modified: head.modified }
    }
}

/// What there is of one life.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) task: Option<Content>,
    pub(super) scheduled: BTreeMap<Due, Content>,
    pub(super) leases: BTreeMap<u32, Content>,
    /// Completed, failed.
    pub(super) records: [Option<Content>; 2],
}

/// What there is of an id, by its lives.
pub(super) type View = BTreeMap<Generation, Life>;

pub(super) async fn read<T: Tree>(core: &Core<T>, name: &str) -> Result<Option<Content>> {
    Ok(core.tree.get(name, None).await?.map(Content::from))
}

/// Reads what was met of an id.
pub(super) async fn read_met<T: Tree>(
    core: &Core<T>,
    id: &TaskId,
    met: &Met,
    into: &mut View,
) -> Result<()> {
    for (generation, pending) in &met.pending {
        let key = TaskKey::new(id.clone(), *generation);
        let dir = core.task_dir(&key);
        let life = into.entry(*generation).or_default();
        life.task = read(core, &layout::task_file(&dir)).await?;
        for attempt in pending.leases.keys() {
            let lease = read(core, &layout::lease_file(&dir, *attempt)).await?;
            life.leases.extend(lease.map(|lease| (*attempt, lease)));
        }
    }
    for (generation, due) in met.scheduled.keys() {
        let key = TaskKey::new(id.clone(), *generation);
        let task = read(core, &layout::task_file(&layout::scheduled_dir(*due, &key))).await?;
        let life = into.entry(*generation).or_default();
        life.scheduled.extend(task.map(|task| (*due, task)));
    }
    Ok(())
}

/// Reads the records of a life.
pub(super) async fn read_records<T: Tree>(
    core: &Core<T>,
    key: &TaskKey,
    into: &mut View,
) -> Result<()> {
    for (at, outcome) in OUTCOMES.into_iter().enumerate() {
        if let Some(record) = read(core, &core.record_path(outcome, key)).await? {
            into.entry(key.generation()).or_default().records[at] = Some(record);
        }
    }
    Ok(())
}

/// Both places, of one id.
#[derive(Debug, Default)]
pub(super) struct Both {
    pub(super) here: View,
    pub(super) there: View,
    /// The lives up to this one are forgotten.
    pub(super) floor: Generation,
    /// It is young enough to be followed: what is older may have been forgotten by the hub itself (R3).
    pub(super) binds: bool,
    /// The pushes that were forgotten.
    pub(super) forgotten: Vec<String>,
}

impl Both {
    /// Whether a purge has forgotten this push.
    pub(super) fn is_purged(&self, push: &str) -> bool {
        self.forgotten.iter().any(|known| known == push)
    }
}

/// So many lives below a floor are looked for.
const MOST_FORGOTTEN: Generation = 1000;

/// So many lives more than are known here may be there. A name beyond that was not made by counting.
const MOST_LIVES: Generation = 20_000;

/// Reads all that both places have of an id. What the memory says is alike is not read from there.
///
/// There, tasks come before records: whoever ends a task creates its record first. So one that is met without
/// its record was not over when it was read.
pub(super) async fn read_both<H: Tree, T: Tree>(
    (here, there): (&Core<H>, &Core<T>),
    (id, last_there): (&TaskId, Generation),
    (met_here, met_there): (&Met, &Met),
    (memory, now_there): (&Memory, Timestamp),
) -> Result<Both> {
    let floor = here.floor(id).await?;
    let mut both = Both {
        binds: floor.as_ref().is_some_and(|it| now_there.duration_since(it.at) < HORIZON),
        floor: floor.as_ref().map_or(0, |floor| floor.generation),
        forgotten: floor.map(|floor| floor.pushes).unwrap_or_default(),
        ..Both::default()
    };
    let records_first = planted::is(Planted::MergeRecordsFirst);
    if !records_first {
        read_met(there, id, met_there, &mut both.there).await?;
    }
    read_met(here, id, met_here, &mut both.here).await?;
    let last_here = here.lives_of(id).await?.last.unwrap_or(0);
    let met = met_here.lives().chain(met_there.lives());
    let last = met.chain([last_here, last_there, both.floor]).max().unwrap_or(0);
    if last > last_here.max(both.floor).saturating_add(MOST_LIVES) {
        return Err(Error::damaged(format!("life {last} has no earlier ones: a stray name")));
    }
    let first = both.floor.saturating_sub(MOST_FORGOTTEN);
    for generation in first + 1..=last {
        let key = TaskKey::new(id.clone(), generation);
        read_records(here, &key, &mut both.here).await?;
        // A purge removes what it has forgotten, there. What came too late for it was listed.
        let is_met = both.there.contains_key(&generation) || generation <= last_there;
        if generation <= both.floor && !is_met {
            continue;
        }
        let records = both.here.get(&generation).map(|life| life.records.clone());
        let records = records.unwrap_or_default();
        let is_known = |(at, record): (usize, &Option<Content>)| {
            let path = here.record_path(OUTCOMES[at], &key);
            record.as_ref().map(|record| memory.has_record(&path, &record.version))
        };
        let known: Vec<_> = records.iter().enumerate().map(is_known).collect();
        // Unless a listing showed a record there that is not known, or a task, which is not to go on a cache's word.
        let is_known = known.contains(&Some(true)) && !known.contains(&Some(false));
        let is_open_there = met_there.lives().any(|life| life == generation);
        let is_alike = is_known && generation > last_there && !is_open_there;
        match is_alike {
            true => both.there.entry(generation).or_default().records = records,
            false => read_records(there, &key, &mut both.there).await?,
        }
    }
    if records_first {
        read_met(there, id, met_there, &mut both.there).await?;
    }
    Ok(both)
}
