//! Polling: upkeep, then candidates, as many at a time as the store is worth asking at once.
//!
//! Nothing is said to be left only if everything was looked at since the poll began. What was claimed
//! reaches the caller whatever fails afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Fuse, FusedFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};

use super::claim::{Claim, trouble_pause};
use super::core::Core;
use super::discover::Candidate;
use super::drafts::Wanted;
use super::strategy::Finding;
use super::survey::Surveyed;
use super::watch::Turn;
use super::{Delivery, PollRequest, Polled, Release};
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::model::TaskKey;
use crate::planted::{self, Planted};
use crate::store::Tree;

/// When to look again at what somebody in this process is at.
const SOON: Duration = Duration::from_secs(1);

/// After so many requests about tasks that failed in a poll, it is the store.
const MOST_TROUBLES: usize = 8;

/// The most tasks that one poll tries before it answers with what it has.
const MAX_TRIES: usize = 4096;

/// A poll's search for tasks.
struct Search {
    tried: BTreeSet<TaskKey>,
    schema: Option<(i64, i64)>,
    /// The rounds that had begun before it.
    entered: u64,
    /// The next poll may find more: something that was tried has woken since, or a round has ended that
    /// began before this poll.
    woken: bool,
    /// There is something to do already, and another round is not worth it.
    content: bool,
    /// The search stopped early: there were tasks in hand already.
    stopped_early: bool,
}

/// A task that is being claimed by this process, which tries none twice at once: leases made in one
/// moment are alike, so each of two tries would take the other's for its own.
pub(super) struct Attempt<T: Tree> {
    core: Arc<Core<T>>,
    pub(super) candidate: Candidate,
}

impl<T: Tree> Drop for Attempt<T> {
    fn drop(&mut self) {
        lock(&self.core.trying).remove(&self.candidate.key);
    }
}

impl<T: Tree> Core<T> {
    /// Begins to try a task, unless somebody in this process is at it.
    pub(super) fn attempt(self: &Arc<Self>, candidate: Candidate) -> Option<Attempt<T>> {
        let free = lock(&self.trying).insert(candidate.key.clone());
        free.then(|| Attempt { core: Arc::clone(self), candidate })
    }

    pub(super) async fn poll(self: &Arc<Self>, request: &PollRequest) -> Result<Polled> {
        let polled = self.poll_in_turn(request).await;
        self.has_looked(polled.is_ok());
        polled
    }

    async fn poll_in_turn(self: &Arc<Self>, request: &PollRequest) -> Result<Polled> {
        let length = request.lease.unwrap_or(self.settings.lease);
        let mut polled = Polled::default();
        self.withdraw_strays().await;
        let turn = self.turn(request).await?;
        if matches!(turn, Turn::Others) {
            return Ok(self.left_to_others().await);
        }
        let for_all = turn.is_for_all();
        let mut upkeep = self.keep_up(for_all, for_all).await?;
        // Only now is it known how finely the store's times can be told apart.
        self.check_length(length).await?;
        if upkeep.paused {
            polled.idle.paused = true;
            return Ok(polled);
        }
        let entered = self.discovery.lock().await.rounds;
        let mut search = Some(Search {
            tried: BTreeSet::new(),
            schema: request.schema,
            entered,
            woken: false,
            content: false,
            stopped_early: false,
        });
        let began = self.env.monotonic();
        let mut trying = FuturesUnordered::new();
        let mut searching = Fuse::terminated();
        let mut failed = None;
        let mut troubles = Vec::new();
        let mut exhausted = false;
        loop {
            // What was claimed first must not be half over when it is handed out.
            let late = !polled.deliveries.is_empty() && self.env.monotonic() - began > length / 4;
            let many = search.as_ref().is_some_and(|search| search.tried.len() >= MAX_TRIES);
            let cut_short = late || many || failed.is_some();
            let wanted = request.max.saturating_sub(polled.deliveries.len()).min(self.width());
            if trying.len() < wanted
                && !cut_short
                && !exhausted
                && let Some(mut search) = search.take()
            {
                let busy = !polled.deliveries.is_empty() || !trying.is_empty();
                search.content = busy && !self.strategy.looks.on_another_round_for_more;
                searching = Box::pin(self.search(search)).fuse();
            }
            // Both at once: claims under way go on while a listing is waited for.
            tokio::select! {
                biased;
                Some(tried) = trying.next(), if !trying.is_empty() => match tried {
                    Ok(won) => polled.deliveries.extend(won),
                    // One that cannot be looked at is no reason to leave the others; many are.
                    Err(error) if is_silence(&error) && troubles.len() < MOST_TROUBLES => {
                        troubles.push(error);
                    }
                    Err(error) => failed = failed.or(Some(error)),
                },
                (state, next) = &mut searching, if !searching.is_terminated() => {
                    search = Some(state);
                    match next {
                        Ok(Some(attempt)) => trying.push(self.try_one(attempt, length, request)),
                        Ok(None) => exhausted = true,
                        Err(error) => failed = Some(error),
                    }
                }
                else => {
                    if cut_short || polled.deliveries.len() >= request.max {
                        polled.idle.more |= cut_short;
                        break;
                    }
                    if !polled.deliveries.is_empty() {
                        break;
                    }
                    if let Some(search) = search.as_mut().filter(|search| search.stopped_early) {
                        (search.stopped_early, exhausted) = (false, false);
                        continue;
                    }
                    // Before it is said that there is nothing, what seemed taken is looked at, and
                    // what is due is looked for.
                    exhausted = !self.try_young().await;
                    if !exhausted {
                        continue;
                    }
                    if upkeep.thorough {
                        break;
                    }
                    upkeep = match self.keep_up(true, for_all).await {
                        Ok(upkeep) => upkeep,
                        Err(error) => {
                            failed = Some(error);
                            break;
                        }
                    };
                    if !upkeep.news {
                        break;
                    }
                    exhausted = false;
                    if let Some(search) = &mut search {
                        search.entered = self.discovery.lock().await.rounds;
                    }
                }
            }
        }
        polled.idle.more |= search.is_some_and(|search| search.woken || search.stopped_early);
        for error in &troubles {
            tracing::warn!(%error, "task left alone");
        }
        let claimed = std::mem::take(&mut polled.deliveries);
        let (secured, insecure) = self.secure_claims(claimed, began + length / 2).await;
        polled.deliveries = secured;
        let failed = failed.or(insecure);
        let failed = failed.or_else(|| troubles.pop().filter(|_| polled.deliveries.is_empty()));
        match &failed {
            Some(error) if polled.deliveries.is_empty() => return Err(error.clone()),
            // What was claimed so far must reach the worker, or it would sit out its lease.
            Some(error) => {
                tracing::warn!(%error, "poll cut short");
                polled.idle.more = true;
            }
            None => {}
        }
        polled.idle.more |= upkeep.more;
        if let Turn::ForAll(post) = turn
            && (polled.deliveries.len() >= request.max || polled.idle.more)
        {
            self.ring(*post).await;
        }
        polled.idle.unsure = upkeep.left_to_others;
        polled.idle.paused = upkeep.paused;
        let now = self.env.monotonic();
        let soonest = lock(&self.known).soonest().map(|at| at.saturating_sub(now));
        polled.idle.next = soonest.into_iter().chain(upkeep.next_due).min();
        // Last of all: nothing is waited for any more.
        let claimed = polled.deliveries.len();
        polled.deliveries = self.still_ours(polled.deliveries, began);
        polled.idle.more |= polled.deliveries.len() < claimed;
        match failed {
            Some(error) if polled.deliveries.is_empty() => Err(error),
            _ => Ok(polled),
        }
    }

    /// Makes the numbers of later attempts durable before anybody hears of them: a fencing token must not come
    /// again after a power cut. All of a batch together, since they share the waiting. What cannot be made
    /// durable is given back, and what cannot be by this monotonic time.
    pub(super) async fn secure_claims(
        &self,
        won: Vec<Delivery>,
        by: Duration,
    ) -> (Vec<Delivery>, Option<Error>) {
        let (mut secured, mut failed) = (Vec::with_capacity(won.len()), None);
        for delivery in won {
            let receipt = &delivery.receipt;
            let held = lock(&self.held).get(receipt).cloned();
            let secures = self.durable() && !planted::is(Planted::LaterClaimNotSynced);
            let held = held.filter(|_| receipt.attempt > 1 && secures);
            let late = !secured.is_empty() && self.env.monotonic() > by;
            let answer = match held {
                Some(_) if late => Err(Error::new(
                    ErrorKind::Unavailable,
                    "the disk is slow, so tasks were given back before their leases ran out",
                )),
                Some(held) => self.tree.secure_leases(&held.task_dir).await,
                None => Ok(()),
            };
            match answer {
                Ok(()) => secured.push(delivery),
                Err(error) => {
                    failed = Some(error);
                    let _ = self.release(vec![Release::now(receipt.clone())]).await;
                }
            }
        }
        (secured, failed)
    }

    /// Leaves out what ran out while other claims were waited for, and says how long the rest is ours from now on.
    fn still_ours(&self, mut claimed: Vec<Delivery>, began: Duration) -> Vec<Delivery> {
        if planted::is(Planted::RunOutHandedOut) {
            return claimed;
        }
        let now = self.env.monotonic();
        claimed.retain_mut(|delivery| {
            delivery.valid_for = delivery.until.saturating_sub(now);
            delivery.lasts = delivery.until.saturating_sub(began);
            if delivery.valid_for.is_zero() {
                tracing::warn!(key = %delivery.key, "its lease ran out before it could be handed out");
                self.let_go(&delivery.receipt);
            }
            !delivery.valid_for.is_zero()
        });
        claimed
    }

    /// Takes back what could not be taken back before, such as for want of open files.
    pub(super) async fn withdraw_strays(&self) {
        let strays = std::mem::take(&mut *lock(&self.strays));
        for (task_dir, lease) in strays {
            if self.withdraw(&task_dir, &lease).await.is_err() {
                lock(&self.strays).push((task_dir, lease));
            }
        }
    }

    /// The next task to try, once each: a task that this poll has claimed is not claimed again,
    /// however long it takes. `None` if there is nothing left, which counts only if all was looked at
    /// since the poll began.
    async fn search(self: &Arc<Self>, mut search: Search) -> (Search, Result<Option<Attempt<T>>>) {
        let found = self.search_on(&mut search).await;
        (search, found)
    }

    async fn search_on(self: &Arc<Self>, search: &mut Search) -> Result<Option<Attempt<T>>> {
        loop {
            let mut found = self.discovery.lock().await;
            let content = search.content;
            if !content && !found.in_round() && found.rounds == search.entered {
                self.begin_round(&mut found).await?;
            }
            let candidate = self.next_candidate(&mut found).await?;
            self.refill(&found);
            let Some(candidate) = candidate else {
                let over = found.rounds > search.entered;
                drop(found);
                match self.survey_on().await? {
                    Surveyed::More => continue,
                    // Where a round costs requests, a poll that has something to do does not begin another,
                    // nor waits for others.
                    Surveyed::Contested(_) if content => {}
                    Surveyed::All if content && !over => {}
                    Surveyed::Contested(until) => {
                        let wait = until.saturating_sub(self.env.monotonic());
                        self.env.clock().sleep(wait).await;
                        let mut found = self.discovery.lock().await;
                        if found.rounds == search.entered {
                            // All is to be looked at anyway, and that among it.
                            self.begin_round(&mut found).await?;
                        }
                        continue;
                    }
                    Surveyed::All if over => return Ok(None),
                    Surveyed::All => continue,
                }
                search.stopped_early = true;
                return Ok(None);
            };
            // Still under the lock, so that nobody finds it a second time.
            let key = candidate.key.clone();
            let attempt = self.attempt(candidate);
            let (mut known, now) = (lock(&self.known), self.env.monotonic());
            if search.schema.is_some_and(|schema| known.rests_for_schema(&key, schema, now)) {
                continue;
            }
            match attempt {
                Some(attempt) if search.tried.insert(key) => {
                    if self.strategy.finding == Finding::Pages {
                        known.is_tried(&attempt.candidate.key, now);
                    }
                    return Ok(Some(attempt));
                }
                // Whoever is at it now, or the next poll, has it if it has woken since.
                _ if self.strategy.looks.again_at_once => search.woken = true,
                _ => known.wakes_at(now + SOON),
            }
        }
    }

    /// Tries a candidate and notes what came of it. Trouble with one task must not keep the others
    /// from being done; trouble with the store must.
    async fn try_one(
        self: &Arc<Self>,
        attempt: Attempt<T>,
        length: Duration,
        request: &PollRequest,
    ) -> Result<Option<Delivery>> {
        let candidate = &attempt.candidate;
        // If no lease can be written at all, that is trouble with the store.
        self.draft_for(Wanted { length, attempt: 1, moving: false }).await?;
        let key = &candidate.key;
        let claimed = self.claim(candidate, length, request).await;
        let is_local = match &claimed {
            Err(error) => self.is_local(error).await,
            Ok(_) => false,
        };
        let now = self.env.monotonic();
        let mut collided = false;
        let answer = {
            let mut known = lock(&self.known);
            match claimed {
                Ok(Claim::Won(delivery)) => {
                    known.rest(key, now + length);
                    Ok(Some(*delivery))
                }
                Ok(Claim::Held(until)) => {
                    match &candidate.listed {
                        Some(listed) => known.rest_as_listed(key, listed, until, now),
                        None => known.rest_while_held(key, until, now),
                    }
                    collided = candidate.listed.is_none();
                    Ok(None)
                }
                Ok(Claim::Rest(until)) => {
                    match &candidate.listed {
                        Some(listed) => known.rest_as_listed(key, listed, until, now),
                        None => known.rest(key, until),
                    }
                    Ok(None)
                }
                Ok(Claim::NotForUs) => {
                    known.forget(key);
                    Ok(None)
                }
                Ok(Claim::Gone) => {
                    known.forget(key);
                    // Done, since it was listed, by somebody who is at this shard.
                    collided = candidate.listed.is_none();
                    Ok(None)
                }
                Err(error) if is_local => {
                    tracing::warn!(%key, %error, "task left alone");
                    known.rest(key, now + trouble_pause(&error));
                    Ok(None)
                }
                Err(error) => {
                    known.rest(key, now + Duration::from_secs(1));
                    Err(error)
                }
            }
        };
        if collided {
            self.collided(candidate);
        }
        answer
    }
}

fn is_silence(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}
