//! What a page of keys has shown: which tasks are tried at once, and which are looked into first.
//!
//! Invariant: tasks without a lease come first. Those with a lease, most of which somebody has or will have, are kept
//! aside until all of a round was listed. Then they are looked into, many at once, before the next round begins.
//! Meanwhile one of them is tried for every [`FAIR_SHARE`] others, so that a long round does not keep stale tasks from
//! being taken over.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::core::Core;
use super::discover::Candidate;
use super::judge::Judgement;
use super::known::{Known, Listed};
use super::pages::Met;
use super::survey::Survey;
use crate::clock::lock;
use crate::error::{Error, Result};
use crate::layout::Shard;
use crate::model::TaskKey;
use crate::store::Tree;

/// A lease that was written less than this ago is taken for somebody's without being read, as long as
/// there is anything else to do.
const YOUNG: Duration = Duration::from_secs(3);

/// The most of them that are kept.
const MAX_YOUNG: usize = 1000;

/// Leases without their task that are older than this are nobody's any more.
const GARBAGE_AFTER: Duration = Duration::from_secs(60);

/// One task of a shard is tried so many places before the others: as many claims as are made at once.
pub(super) const AHEAD: usize = 64;

/// One task that has a lease is tried for so many that have none.
const FAIR_SHARE: u32 = 16;

/// The most tasks with a lease that are kept: those beyond are met in the next round.
const MAX_LEASED: usize = 20_000;

/// Tasks that are not tried as long as there is anything else.
#[derive(Default)]
pub(super) struct Sieve {
    /// Their leases are so young that they are probably somebody's.
    young: Vec<Candidate>,
    /// They have a lease, and were not looked into yet.
    leased: VecDeque<Candidate>,
    /// So many without a lease were tried since the last that has one.
    since: u32,
}

impl Sieve {
    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.leased.clear();
    }

    pub(super) fn has_leased(&self) -> bool {
        !self.leased.is_empty()
    }

    /// One that has a lease, if it is its turn.
    pub(super) fn take_turn(&mut self) -> Option<Candidate> {
        self.since += 1;
        if self.since <= FAIR_SHARE {
            return None;
        }
        self.since = 0;
        self.leased.pop_front()
    }

    /// Keeps no more than a process can afford to.
    fn bound(&mut self, known: &mut Known, now: Duration) {
        if self.young.len() > MAX_YOUNG || self.leased.len() > MAX_LEASED {
            self.young.truncate(MAX_YOUNG);
            self.leased.truncate(MAX_LEASED);
            known.wakes_at(now + YOUNG);
        }
    }
}

/// The candidates of one shard after the other, but one of each [`AHEAD`] of its place: somebody who is at
/// a shard is met by one claim, not by as many as are made at once.
pub(super) fn staggered(mut shards: Vec<Vec<Candidate>>) -> VecDeque<Candidate> {
    let (mut scouts, mut start) = (VecDeque::new(), 0);
    for shard in &mut shards {
        let len = shard.len();
        scouts.extend(shard.pop().map(|scout| (start, scout)));
        start += len;
    }
    let mut staggered = VecDeque::with_capacity(start);
    for candidate in shards.into_iter().flatten() {
        while let Some((_, scout)) =
            scouts.pop_front_if(|(start, _)| *start <= staggered.len() + AHEAD)
        {
            staggered.push_back(scout);
        }
        staggered.push_back(candidate);
    }
    staggered.extend(scouts.into_iter().map(|(_, scout)| scout));
    staggered
}

impl<T: Tree> Core<T> {
    /// What is worth trying, by what a listing has shown at `now`, in the order in which to try it;
    /// `survey.sieve` takes what is worth a look only if there is nothing else.
    pub(super) fn claimable(
        &self,
        met: Vec<Met>,
        now: Timestamp,
        survey: &mut Survey,
    ) -> VecDeque<Candidate> {
        let mono = self.env.monotonic();
        let mut known = lock(&self.known);
        let mut shards: Vec<(Shard, Vec<Candidate>)> = Vec::new();
        for Met { key, leases, written, .. } in met {
            let task = written.is_some();
            if known.is_over(&key) {
                continue;
            }
            let has_rested = known.has_rested(&key, mono);
            if known.resting_until(&key, mono).is_some() {
                continue;
            }
            let (mut listed, mut is_young) = (None, false);
            if let Some(top) = leases.iter().max_by_key(|lease| lease.attempt) {
                let as_listed = Listed::new(&key, &leases);
                if known.resting_as_listed(&as_listed, mono).is_some() {
                    continue;
                }
                let age = now.duration_since(top.modified);
                let age = Duration::try_from(age).unwrap_or(Duration::ZERO);
                if !task && age < GARBAGE_AFTER {
                    continue; // whoever has finished it is about to remove them
                }
                listed = Some(as_listed);
                is_young = task && age < YOUNG && !has_rested;
            }
            let shard = self.names().shard(&key);
            let leases = leases.into_iter().map(|lease| lease.attempt).collect();
            let candidate =
                Candidate { leases, listed, without_task: !task, ..Candidate::new(key) };
            if is_young {
                survey.sieve.young.push(candidate);
                continue;
            }
            if candidate.listed.is_some() && task {
                survey.sieve.leased.push_back(candidate);
                continue;
            }
            match shards.last_mut() {
                Some((last, candidates)) if *last == shard => candidates.push(candidate),
                _ => shards.push((shard, vec![candidate])),
            }
        }
        survey.sieve.bound(&mut known, mono);
        drop(known);
        for (_, candidates) in &mut shards {
            self.env.shuffle(candidates);
        }
        let is_own = |shard: Shard| survey.is_own(usize::from(shard.number()));
        let (own, mut others): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|(shard, _)| is_own(*shard));
        self.env.shuffle(&mut others);
        staggered(own.into_iter().chain(others).map(|(_, candidates)| candidates).collect())
    }

    /// There was nothing else to do: leases that were passed over for their youth are read after all,
    /// each once, for their tasks may have been given back. Answers whether there were any.
    pub(super) async fn try_young(&self) -> bool {
        let mut found = self.discovery.lock().await;
        let young = std::mem::take(&mut found.survey.sieve.young);
        found.ready.extend(young);
        !found.ready.is_empty()
    }

    /// Looks into tasks that have a lease, many at once, and finds those that can be claimed. A look claims
    /// nothing, so it does not matter how few tasks are wanted.
    pub(super) async fn sift(&self) -> Result<()> {
        // They stay where they are until that is known: this call may be given up.
        let some: Vec<Candidate> = {
            let leased = &self.discovery.lock().await.survey.sieve.leased;
            leased.iter().take(self.width()).cloned().collect()
        };
        let looked: BTreeSet<TaskKey> = some.iter().map(|one| one.key.clone()).collect();
        let looking = some.into_iter().map(|candidate| async {
            let judged = self.look_into(&candidate).await;
            (candidate, judged)
        });
        let judged = self.each(looking.collect()).await;
        let mut found = self.discovery.lock().await;
        let (mut known, now) = (lock(&self.known), self.env.monotonic());
        for (candidate, judged) in judged {
            let until = match judged {
                Ok((Judgement::Held(until) | Judgement::Backoff(until), when)) => {
                    Some(self.monotonic_at(until, when))
                }
                // It can be claimed; or nobody knows, and the claim will tell.
                _ => None,
            };
            match (until, &candidate.listed) {
                (Some(until), Some(listed)) => {
                    known.rest_as_listed(&candidate.key, listed, until, now);
                }
                _ => found.ready.push_back(candidate),
            }
        }
        let leased = &mut found.survey.sieve.leased;
        while leased.pop_front_if(|front| looked.contains(&front.key)).is_some() {}
        Ok(())
    }

    async fn look_into(&self, candidate: &Candidate) -> Result<(Judgement, (Timestamp, Duration))> {
        let dir = self.task_dir(&candidate.key);
        let Some(task_dir) = self.tree.open(&dir).await? else {
            return Err(Error::not_found("it has gone since"));
        };
        let history = self.history_of(&task_dir, &candidate.leases).await?;
        self.judge_now(&candidate.key, &history).await
    }
}
