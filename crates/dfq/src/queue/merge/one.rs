//! What is done about ids that have changed: each is read, planned and done by itself, many at once.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;

use super::Side;
use super::apply::{Done, says_the_same};
use super::look::{self, Met, Shown};
use super::memory::{Print, print_of};
use super::node::Neighbours;
use super::order::Task;
use super::pass::Merge;
use super::plan::{Circumstances, Plan, Step, plan};
use super::view::{Both, read_both};
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Generation, TaskId, TaskKey};
use crate::planted::{self, Planted};
use crate::queue::OUTCOMES;
use crate::store::{Tree, Version};

/// Ids that are looked at between two looks at the hub's floors.
const TOGETHER: usize = 256;

/// Ids that are looked at at once.
const AT_ONCE: usize = 32;

/// After so many ids that could not be merged, it is the store.
const MOST_TROUBLES: usize = 8;

/// A record that both places have: its path, and its version here and there.
type Alike = (String, Version, Version);

/// What came of one id.
enum Merged {
    /// Both places are alike. The records that both have, by path and version here.
    Alike(Vec<Alike>),
    /// Something was done.
    Done { steps: Vec<Step>, created: Vec<(TaskKey, Vec<u8>)>, is_whole: bool },
    /// Something is to be done later.
    PutOff,
    /// Something is to be done, and could not be. All was looked at, if it is only that somebody here has the task.
    Left { is_looked_at: bool },
}

/// What came of many.
#[derive(Default)]
pub(super) struct Results {
    /// Those that are alike by now.
    pub(super) alike: BTreeSet<Print>,
    /// Why some could not be dealt with.
    pub(super) failed: Vec<Error>,
}

impl<H: Tree, T: Tree> Merge<H, T> {
    /// Merges these ids, each with the last life that is known to have a record in the hub. An error if it is the
    /// store that fails.
    pub(super) async fn merge_ids(
        &mut self,
        ids: BTreeMap<TaskId, Generation>,
        (here, there): (&Shown, &Shown),
    ) -> Result<Results> {
        let (mut results, mut bad) = (Results::default(), 0);
        let ids: Vec<(TaskId, Generation)> = ids.into_iter().collect();
        self.passed.looked_at += ids.len() as u64;
        let told = self.there.tree.told_time().map(|(told, _)| told);
        let times = (told, self.now_there().await?);
        for together in ids.chunks(TOGETHER) {
            self.note_sent(together, (here, there)).await?;
            let mut merging = Vec::with_capacity(together.len());
            for (id, last) in together.iter().cloned() {
                let met = (here.met(&id), there.met(&id));
                let print = print_of(&id, &met.0, &met.1);
                let merge = &*self;
                merging.push(async move {
                    let merged = merge.merge_one((&id, last), met, times).await;
                    (id, print, merged)
                });
            }
            let merged: Vec<_> = futures::stream::iter(merging).buffered(AT_ONCE).collect().await;
            let mut created = Vec::new();
            for (id, print, merged) in merged {
                match merged {
                    Ok((merged, troubles)) => {
                        // What waits for a floor has not been looked at to its end.
                        let is_put_off = matches!(merged, Merged::PutOff) && !troubles.is_empty();
                        let is_cut_short = matches!(
                            merged,
                            Merged::Done { is_whole: false, .. }
                                | Merged::Left { is_looked_at: false }
                        );
                        if is_put_off || is_cut_short {
                            self.note_unlooked(&id);
                        }
                        self.passed.troubles.extend(troubles);
                        if matches!(merged, Merged::Alike(_)) {
                            results.alike.insert(print);
                        }
                        created.extend(self.count(merged));
                    }
                    Err(error) => {
                        self.note_unlooked(&id);
                        let trouble = format!("task '{id}' cannot be merged: {error}");
                        self.passed.troubles.push(trouble);
                        // A damaged file costs only itself: the rest goes on as if it were not there.
                        if error.kind() == ErrorKind::Damaged {
                            continue;
                        }
                        self.passed.left += 1;
                        bad += 1;
                        // So does one that may not be read. But if there are many, it is the store.
                        if bad > MOST_TROUBLES {
                            results.failed.push(error);
                        }
                        if bad > MOST_TROUBLES {
                            return Err(results.failed.swap_remove(0));
                        }
                    }
                }
            }
            self.take_back(created, &there.floors).await?;
        }
        if self.passed.down > 0 || self.passed.removed > 0 {
            self.here.tree.ring().await;
        }
        Ok(results)
    }

    /// Before tasks go up: from now on, workers here leave those to other nodes that hash there.
    async fn note_sent(
        &self,
        ids: &[(TaskId, Generation)],
        (here, there): (&Shown, &Shown),
    ) -> Result<()> {
        let mut newest = None;
        for id in ids.iter().map(|(id, _)| id) {
            let Some(met) = here.ids.get(id) else { continue };
            let there = there.met(id);
            let is_new = met.pending.keys().any(|life| !there.pending.contains_key(life))
                || met.scheduled.keys().any(|due| !there.scheduled.contains_key(due));
            newest = newest.max(met.written.filter(|_| is_new));
        }
        let known = self.here.neighbours().await;
        match newest > known.sent {
            true => self.here.put_neighbours(&Neighbours { sent: newest, ..known }).await,
            false => Ok(()),
        }
    }

    /// Does for one id what is to be done.
    async fn merge_one(
        &self,
        (id, last): (&TaskId, Generation),
        (here, there): (Met, Met),
        (told, now_there): (Option<jiff::Timestamp>, jiff::Timestamp),
    ) -> Result<(Merged, Vec<String>)> {
        let cores = (&*self.here, &*self.there);
        let known = (&self.memory, now_there);
        let both = read_both(cores, (id, last), (&here, &there), known).await?;
        let circumstances = Circumstances { node: self.node(), now_there: told };
        let Plan { steps, troubles, put_off } = plan(id, &both, circumstances);
        if steps.is_empty() && put_off {
            return Ok((Merged::PutOff, troubles));
        }
        if steps.is_empty() {
            return Ok((Merged::Alike(self.alike_records(id, &both)), troubles));
        }
        let (mut done, mut created) = (Vec::new(), Vec::new());
        let (mut left, mut is_looked_at) = (false, true);
        for step in steps {
            let answer = match &step {
                Step::Renumber { key, due } => self.here.renumber(key, *due).await?,
                Step::SetAside { key } => self.set_aside(key).await?,
                step if step.side() == Side::There => self.there.take_step(step).await?,
                step => self.here.take_step(step).await?,
            };
            if answer == Done::Changed {
                left = true;
                is_looked_at = matches!(step, Step::Renumber { .. } | Step::SetAside { .. });
                break;
            }
            if let Step::Task { side, key, bytes, .. } = &step {
                match side {
                    Side::Here => _ = self.look_here(key, bytes).await?,
                    Side::There => created.push((key.clone(), bytes.clone())),
                }
            }
            done.push(step);
        }
        match left && done.is_empty() {
            true => Ok((Merged::Left { is_looked_at }, troubles)),
            false => Ok((Merged::Done { steps: done, created, is_whole: !left }, troubles)),
        }
    }

    /// Ends a task here that nobody can read, unless the hub has had another copy meanwhile (R9).
    async fn set_aside(&self, key: &TaskKey) -> Result<Done> {
        let path = layout::task_file(&self.there.task_dir(key));
        let there = self.there.tree.read(&path).await?;
        let is_healed = there.is_some_and(|there| Task::read(key, &there.bytes).is_some());
        match !is_healed && self.here.set_aside_damaged(key).await? {
            true => Ok(Done::Yes),
            false => Ok(Done::Changed),
        }
    }

    /// R6, in the folder.
    async fn look_here(&self, key: &TaskKey, bytes: &[u8]) -> Result<bool> {
        let floor = self.here.is_forgotten(key).await?;
        self.here.take_back_if_over(key, bytes, floor).await
    }

    /// R6, in the hub: all that was created together, by one look at its floors.
    async fn take_back(&self, created: Vec<(TaskKey, Vec<u8>)>, known: &[String]) -> Result<()> {
        if created.is_empty() || planted::is(Planted::MergeWithoutLook) {
            return Ok(());
        }
        let mut forgotten: BTreeMap<TaskId, u32> = BTreeMap::new();
        let again = look::list_floors(&self.there).await?;
        for path in again.iter().filter(|path| !known.contains(path)) {
            let Some(got) = self.there.tree.get(path, None).await? else { continue };
            for floor in format::decode_floors(&got.bytes).into_iter().flatten() {
                let life = forgotten.entry(floor.id).or_default();
                *life = (*life).max(floor.generation);
            }
        }
        let mut looking = Vec::with_capacity(created.len());
        for (key, bytes) in created {
            let floor = forgotten.get(key.id()).is_some_and(|life| *life >= key.generation());
            looking.push(async move { self.there.take_back_if_over(&key, &bytes, floor).await });
        }
        let looked: Vec<_> = futures::stream::iter(looking).buffered(AT_ONCE).collect().await;
        looked.into_iter().try_for_each(|it| it.map(|_| ()))
    }

    /// The records of an id that both places have alike.
    fn alike_records(&self, id: &TaskId, both: &Both) -> Vec<Alike> {
        let mut alike = Vec::new();
        for (generation, life) in &both.here {
            let key = TaskKey::new(id.clone(), *generation);
            for (at, outcome) in OUTCOMES.into_iter().enumerate() {
                let there = both.there.get(generation).and_then(|it| it.records[at].as_ref());
                if let (Some(here), Some(there)) = (&life.records[at], there)
                    && says_the_same(here, there)
                {
                    let path = self.here.record_path(outcome, &key);
                    alike.push((path, here.version.clone(), there.version.clone()));
                }
            }
        }
        alike
    }

    /// Counts what was done for an id. Answers the tasks that were created there.
    fn count(&mut self, merged: Merged) -> Vec<(TaskKey, Vec<u8>)> {
        let (steps, created) = match merged {
            Merged::Done { steps, created, is_whole } => {
                self.unsettled |= !is_whole;
                (steps, created)
            }
            Merged::Alike(records) => {
                for (path, here, there) in records {
                    self.memory.add_record(&path, &here, &there);
                }
                return Vec::new();
            }
            Merged::PutOff => {
                self.unsettled = true;
                return Vec::new();
            }
            Merged::Left { .. } => {
                self.passed.left += 1;
                return Vec::new();
            }
        };
        for step in &steps {
            self.note_own(step);
            let passed = &mut self.passed;
            match (step, step.side()) {
                (Step::Keep { .. }, _) => passed.conflicts += 1,
                (Step::Renumber { .. }, _) => passed.renumbered += 1,
                (Step::SetAside { .. }, _) => passed.down += 1,
                (Step::Unschedule { .. } | Step::End { .. } | Step::Forget { .. }, _) => {
                    passed.removed += 1;
                }
                (_, Side::There) => passed.up += 1,
                (_, Side::Here) => passed.down += 1,
            }
        }
        created
    }

    /// Remembers what was written here, so that its arrival is not taken for somebody else's.
    fn note_own(&mut self, step: &Step) {
        let path = match step {
            Step::Task { side: Side::Here, key, .. } => self.here.task_dir(key),
            Step::Schedule { side: Side::Here, due, key, .. } => layout::scheduled_dir(*due, key),
            Step::Record { side: Side::Here, key, outcome, .. } => {
                self.here.record_path(*outcome, key)
            }
            _ => return,
        };
        self.own_writes.insert(path);
    }
}
