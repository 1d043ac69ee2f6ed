//! Rules of FORMAT.md about files: who may write and remove what, and in which order.
//!
//! Invariant: each rule is one that FORMAT.md states, and looks only at what is in the store when a name changes.

use std::time::Duration;

use jiff::SignedDuration;

use super::names::{self, Kind};
use super::walk::{self, Born, Forgotten, Walk};
use crate::history::{Changed, Entry, How, QueueNo, What};
use crate::world::Pid;

/// A record that was written so short a time ago, no purge may forget.
const RELIED_ON: SignedDuration = SignedDuration::from_secs(5 * 60 - 5);

/// How far the store's clock may seem off, as whole seconds and short jumps make it.
const SLACK: SignedDuration = SignedDuration::from_millis(1500);

impl Walk<'_> {
    pub(super) fn check_change(
        &mut self,
        at: Duration,
        pid: Pid,
        queue: QueueNo,
        changed: &Changed,
        after: &[Entry],
    ) {
        let Changed { name, how, bytes, .. } = changed;
        let Some((kind, stem)) = names::parse(name) else { return };
        let spoiled = walk::is_spoiled(bytes);
        let whole = match kind {
            Kind::Lease(_) => walk::lease(bytes).is_some(),
            _ => serde_json::from_slice::<serde_json::Value>(bytes).is_ok(),
        };
        if *how != How::Removed && !spoiled && !whole {
            self.breaks("a name appears with its whole content", format!("{name} at {at:?}"));
        }
        if spoiled {
            return;
        }
        match (kind, how) {
            (Kind::Lease(attempt), How::Removed) => self.lease_goes(at, queue, stem, attempt, name),
            (Kind::Lease(attempt), How::Created) => {
                self.lease_comes(at, pid, queue, stem, attempt, changed)
            }
            (Kind::Lease(attempt), How::Replaced) => {
                self.lease_is_written(at, pid, queue, stem, attempt, name)
            }
            (Kind::Task, How::Removed) => self.task_goes(at, queue, stem, name),
            (Kind::Task, How::Replaced) => {
                self.breaks("a task is never rewritten", format!("{name} at {at:?}"))
            }
            (Kind::Scheduled, How::Removed) => self.scheduled_goes(at, queue, stem, name, after),
            (Kind::Completed | Kind::Failed, How::Removed) => {
                self.record_goes(at, queue, stem, kind, changed)
            }
            (Kind::Completed | Kind::Failed, How::Replaced) => {
                self.record_is_written(at, queue, stem, kind, changed)
            }
            _ => {}
        }
    }

    fn lease_goes(&mut self, at: Duration, queue: QueueNo, stem: &str, attempt: u32, name: &str) {
        let Some(life) = self.life(queue, stem) else { return };
        let lease = life.leases.get(&attempt);
        let lease_id = lease.and_then(|it| it.says.as_ref()).map(|it| it.lease_id.clone());
        // One that is older than the task is what was left of an earlier one.
        let of_it = |made: Duration| lease.is_some_and(|lease| lease.made >= made);
        // In a bucket, a task that comes when its life is over is a push that will be taken back.
        let stray =
            |made: Duration| self.facts.in_bucket && life.records().any(|it| it.made < made);
        let alive = life.task.as_ref().is_some_and(|task| of_it(task.made) && !stray(task.made));
        if alive {
            let text = format!("{name} was removed at {at:?}, while its task was there");
            self.breaks("leases go only after their task", text);
        }
        self.removed.extend(lease_id.map(|it| ((queue, name.to_owned(), it), at)));
    }

    fn lease_comes(
        &mut self,
        at: Duration,
        pid: Pid,
        queue: QueueNo,
        stem: &str,
        attempt: u32,
        changed: &Changed,
    ) {
        let (name, wall) = (&changed.name, changed.wall);
        let Some(lease) = walk::lease(&changed.bytes) else { return };
        // A claim of what has been pushed since may have the nonce of other claims of its owner.
        let task = self.life(queue, stem).and_then(|life| life.task.as_ref());
        let removed = self.removed.get(&(queue, name.clone(), lease.lease_id.clone()));
        let back = removed.is_some_and(|removed| task.is_none_or(|task| task.made < *removed));
        // A cancel removes the lease of somebody who may just be renewing it.
        let cancelled = self.facts.cancels(names::id_and_life(stem).0);
        let owner = lease.worker.unwrap_or(pid);
        // And whoever finds the record of its end removes it, while a renewal may be on its way. The owner's own
        // clean-up waits for that, and removes what came back.
        let deleted = self.facts.deletes.get(&(owner, name.clone()));
        let by_owner = deleted.is_some_and(|deleted| *deleted < at);
        let given = self.facts.claims.iter().find(|it| {
            it.queue == queue && it.lease_id() == lease.lease_id && it.attempt() == attempt
        });
        let on_its_way = given.is_some_and(|it| self.gave_up_a_beat(owner, &it.claimed.receipt));
        // A claim that is given up is marked so, whatever has become of it.
        let given_up = lease.state.as_deref() == Some("withdrawn");
        let excused = !self.facts.orderly || cancelled || !by_owner || on_its_way || given_up;
        let late = self.facts.in_bucket && excused;
        if back && !late && !self.facts.stalled(owner) && self.facts.sound(owner) {
            let text = format!("{name} of {} at {at:?}, which had been removed", lease.lease_id);
            self.breaks("no lease comes back", text);
        }
        let Some(life) = self.life(queue, stem) else { return };
        let mut wrong = Vec::new();
        let has_task = life.task.is_some();
        if attempt > 1 && has_task && !life.leases.contains_key(&(attempt - 1)) {
            wrong.push(("attempts have no gaps", format!("{name} at {at:?}")));
        }
        let current = life.current(attempt);
        // An unlock is a lease that has ended from the start.
        if lease.state.is_none() && has_task && self.facts.jumps.is_empty() {
            match current {
                Some((judged, file)) if file.says.is_none() => {
                    let until = file.wall.saturating_add(self.facts.lease).unwrap_or(file.wall);
                    // It may have been judged before it was spoiled. Then it is looked at once more.
                    let settled = file.written + Duration::from_secs(1) < at;
                    if wall + SLACK < until && settled {
                        let text = format!(
                            "{name} at {wall}, while attempt {judged}, which cannot be read, holds until {until}"
                        );
                        wrong.push(("a lease that cannot be read holds as any other", text));
                    }
                }
                Some((judged, file)) => {
                    let until = file.says.as_ref().and_then(|it| it.not_before);
                    if let Some(until) = until.filter(|it| wall + SLACK < *it && !lease.moving) {
                        let text =
                            format!("{name} at {wall}, after attempt {judged}, not before {until}");
                        wrong.push(("a task waits for as long as it was told", text));
                    }
                }
                None => {}
            }
        }
        if lease.state.is_none() {
            let (failed, lost) = tally(life, attempt);
            let born = Born {
                queue,
                stem: stem.to_owned(),
                attempt,
                lease_id: lease.lease_id,
                at,
                wall,
                failed,
                lost,
                ran_out: current
                    .is_some_and(|(_, file)| file.runs_out(self.facts.lease) <= wall + SLACK),
                judged: current.is_some(),
                task: life.task.as_ref().and_then(|it| it.says.clone()),
            };
            self.born.push(born);
        }
        for (rule, text) in wrong {
            self.breaks(rule, text);
        }
    }

    fn lease_is_written(
        &mut self,
        at: Duration,
        pid: Pid,
        queue: QueueNo,
        stem: &str,
        attempt: u32,
        name: &str,
    ) {
        // In a bucket it cannot be seen who has sent what arrives.
        let owner = self.life(queue, stem).and_then(|life| Some(life.leases.get(&attempt)?.by));
        if let Some(owner) = owner.filter(|owner| *owner != pid && pid != Pid::WORLD) {
            let text = format!("{name} of {owner} was written by {pid} at {at:?}");
            self.breaks("a lease is written only by its owner", text);
        }
    }

    fn task_goes(&mut self, at: Duration, queue: QueueNo, stem: &str, name: &str) {
        let counts = |life: &walk::Life| {
            life.records().any(|it| !it.says.as_ref().is_some_and(|it| it.forgotten))
        };
        let recorded = self.life(queue, stem).is_some_and(counts);
        if !recorded && !self.is_forgotten(queue, stem) {
            let text = format!("{name} was removed at {at:?}");
            self.breaks("a task goes only when it has a record", text);
        }
    }

    fn scheduled_goes(
        &mut self,
        at: Duration,
        queue: QueueNo,
        stem: &str,
        name: &str,
        after: &[Entry],
    ) {
        let goes_on = |life: &walk::Life| {
            life.task.is_some() || life.records().next().is_some() || life.scheduled.len() > 1
        };
        // A rename takes it away and puts it there in one step.
        let now = after.iter().take_while(|it| it.at == at);
        let moved = now.filter_map(|it| match &it.what {
            What::Changed(of, it) if *of == queue && it.how == How::Created => {
                names::parse(&it.name)
            }
            _ => None,
        });
        let moved = moved.into_iter().any(|it| it == (Kind::Task, stem));
        let there = self.life(queue, stem).is_some_and(goes_on);
        if !moved && !there && !self.is_forgotten(queue, stem) {
            let text = format!("{name} was removed at {at:?}");
            self.breaks("a scheduled task goes only when it is pending", text);
        }
    }

    fn record_goes(
        &mut self,
        at: Duration,
        queue: QueueNo,
        stem: &str,
        kind: Kind,
        changed: &Changed,
    ) {
        let name = &changed.name;
        if !self.facts.in_bucket {
            // Where there is no room for a floor, records go to make some.
            if !self.is_forgotten(queue, stem) && !self.facts.short_of_room {
                let text = format!("{name} was removed at {at:?}");
                self.breaks("a record goes only when its life is said to be forgotten", text);
            }
            return;
        }
        let Some(life) = self.life(queue, stem) else { return };
        let file = if kind == Kind::Completed { &life.completed } else { &life.failed };
        let marked = file.as_ref().and_then(|it| it.says.as_ref()).is_some_and(|it| it.forgotten);
        let (id, number) = names::id_and_life(stem);
        let next = self.life(queue, &names::life_of(id, number + 1));
        let old = |it: &walk::File<walk::Record>| changed.wall.duration_since(it.wall) > RELIED_ON;
        let later = next.is_some_and(|next| next.records().any(old)) && self.facts.jumps.is_empty();
        let folder = name.split('/').nth(1).filter(|it| !it.ends_with(".json"));
        let folder = folder.map(|it| format!("{it}/")).unwrap_or_default();
        let gone = Forgotten {
            queue,
            at,
            name: name.clone(),
            id: id.to_owned(),
            life: number,
            next: format!("pending/{folder}{}/task.json", names::life_of(id, number + 1)),
        };
        self.forgotten.push(gone);
        // A removal that was sent for the mark before may come late.
        if !marked && self.facts.orderly {
            let text = format!("{name} was removed at {at:?}");
            self.breaks("a record goes only when it is marked", text);
        }
        if later {
            let text = format!("{name} was removed at {at:?}, before that of the next life");
            self.breaks("records go from the last life down", text);
        }
    }

    fn record_is_written(
        &mut self,
        at: Duration,
        queue: QueueNo,
        stem: &str,
        kind: Kind,
        changed: &Changed,
    ) {
        let Some(life) = self.life(queue, stem) else { return };
        let file = if kind == Kind::Completed { &life.completed } else { &life.failed };
        let (Some(before), Some(now)) = (file, walk::record(&changed.bytes)) else { return };
        let name = &changed.name;
        let age = changed.wall.duration_since(before.wall);
        let other = before.says.as_ref().is_none_or(|it| it.lease_id != now.lease_id);
        let was_marked = before.says.as_ref().is_some_and(|it| it.forgotten);
        if now.forgotten && !was_marked && age < RELIED_ON && self.facts.jumps.is_empty() {
            let text = format!("{name} at {at:?}, {age:#} after it was written");
            self.breaks("a young record is not forgotten", text);
        }
        if other && !now.forgotten {
            let text = format!("{name} at {at:?}");
            self.breaks("a record is never replaced", text);
        }
    }
}

/// Failures and lost leases before an attempt.
fn tally(life: &walk::Life, below: u32) -> (u32, u32) {
    let (mut failed, mut lost) = (0, 0);
    for (attempt, file) in life.leases.range(..below) {
        let unlocked = life.leases.get(&(attempt + 1)).and_then(|it| it.says.as_ref());
        let unlocked = unlocked.is_some_and(|it| {
            it.state.as_deref() == Some("released") && it.expires_at == it.created_at
        });
        match &file.says {
            Some(it) if it.state.as_deref() == Some("failed") => failed += 1,
            Some(it) if it.state.is_some() || it.moving => {}
            _ if unlocked => {}
            _ => lost += 1,
        }
    }
    (failed, lost)
}
