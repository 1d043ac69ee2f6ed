//! What the history says, sorted: claims, records, pushes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dfq::queue::Pushed;
use dfq::{ErrorKind, Receipt, TaskKey};
use jiff::Timestamp;
use rustix::io::Errno;

use super::claim::{Claim, Settled, lease_id};
use super::names::{encoded, lease_file, stem};
use super::parsed::parse;
use crate::history::{Answer, Ask, Changed, Entry, Event, How, Poll, QueueNo, Refused, What};
use crate::plan::{BucketKind, Fault, Plan, Step, Store, Trouble};
use crate::stage::Stage;
use crate::world::Pid;

/// A record, as it appeared in the store.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) queue: QueueNo,
    pub(super) completed: bool,
    pub(super) name: String,
    pub(super) n: Option<i64>,
    pub(super) push_id: String,
    pub(super) lease_id: String,
    pub(super) moved: bool,
    /// An operator made it.
    pub(super) cancelled: bool,
    pub(super) id: String,
    pub(super) reason: String,
    /// The bytes of a task that could not be read are in it.
    pub(super) has_bytes: bool,
    /// It has been in another queue before, and what happened there counts.
    pub(super) travelled: bool,
    /// How many of its attempts have no state.
    pub(super) lost: usize,
    /// It is about to be removed.
    pub(super) forgotten: bool,
    pub(super) made: Duration,
    /// When it went, and whether a power cut took it.
    pub(super) gone: Option<(Duration, bool)>,
    /// It took the place of another.
    pub(super) replaced: bool,
    /// A power cut brought it back: its removal was not on the disk yet.
    pub(super) back: bool,
}

/// A task that a producer was told has been created.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    pub(super) queue: QueueNo,
    pub(super) key: TaskKey,
    pub(super) n: i64,
    /// It was not to be done at once. Another push of the same life that is may take its place.
    pub(super) later: bool,
    pub(super) asked: Duration,
    pub(super) told: Duration,
    /// It was there already: another has pushed it, with another number.
    pub(super) anothers: bool,
}

/// What an operator did to an id, and when.
#[derive(Clone, Debug)]
pub(super) struct Operated {
    pub(super) verb: &'static str,
    pub(super) id: String,
    pub(super) asked: Duration,
    pub(super) queue: QueueNo,
    /// When it was answered that somebody had the task.
    pub(super) took: Option<Duration>,
}

/// The history, sorted.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) claims: Vec<Claim>,
    pub(super) records: Vec<Recorded>,
    pub(super) debts: Vec<Debt>,
    pub(super) operated: Vec<Operated>,
    pub(super) power_cuts: Vec<Duration>,
    /// When a process did nothing.
    pub(super) stalls: Vec<(Pid, Duration, Duration)>,
    /// What is in the stores at the end.
    pub(super) files: Vec<BTreeMap<String, Vec<u8>>>,
    /// What polls took.
    pub(super) polls: Vec<Poll>,
    /// When anything in a queue changed.
    pub(super) changes: Vec<(Duration, QueueNo)>,
    /// What the last look found.
    pub(super) problems: Vec<String>,
    pub(super) in_bucket: bool,
    pub(super) lease: Duration,
    pub(super) max_attempts: u32,
    pub(super) max_lost: u32,
    /// When the store's clock was set.
    pub(super) jumps: Vec<Duration>,
    /// The disk may be full.
    pub(super) short_of_room: bool,
    /// Somebody is refused something for ever.
    pub(super) refuses: bool,
    /// What was sent arrives in order, and not after its sender has given up.
    pub(super) orderly: bool,
    /// What was sent is answered.
    pub(super) answered: bool,
    /// Tasks may be in two queues at once.
    pub(super) copies: bool,
    pub(super) purges: bool,
    pub(super) killed: bool,
    /// A push or a purge was not answered, or not well.
    pub(super) unsure: bool,
    unsound: BTreeSet<usize>,
    roles: BTreeMap<Pid, usize>,
    /// When a process last looked at, or removed, what has a name.
    pub(super) looks: BTreeMap<(Pid, String), Duration>,
    server: Option<std::sync::Arc<crate::node::Node>>,
    /// When a process last opened a queue.
    opened: BTreeMap<Pid, Duration>,
    /// What each process has asked a bucket to remove, and when it first did.
    pub(super) deletes: BTreeMap<(Pid, String), Duration>,
    /// When each process asked what the store's clock shows.
    clock_looks: BTreeMap<Pid, Vec<Duration>>,
    /// When leases appeared, by queue and content.
    leases: BTreeMap<(QueueNo, String, String), Duration>,
    /// When a task first appeared in a queue, by what tells its push from others.
    pub(super) arrived: BTreeMap<(QueueNo, String), Duration>,
    /// Tasks that had to wait in a queue for their time, also because they came there while they did.
    pub(super) waited: BTreeSet<(QueueNo, i64)>,
    /// Tasks that somebody wrote over.
    pub(super) spoiled: BTreeSet<(QueueNo, String)>,
    /// Payloads that were in failed records, for those that start again.
    failed: BTreeMap<(QueueNo, String), i64>,
}

impl Facts {
    pub(super) fn of(stage: &Stage) -> Self {
        let mut facts = Self {
            files: (0..stage.kept.len()).map(|queue| stage.files(queue)).collect(),
            roles: stage.history.roles(),
            looks: stage.history.all_looks(),
            clock_looks: stage.history.clock_looks(),
            polls: stage.history.polls(),
            deletes: stage.history.deletes(),
            server: stage.nodes.first().map(std::sync::Arc::clone),
            ..Self::of_plan(&stage.plan)
        };
        let mut asked: BTreeMap<u64, (Duration, Ask)> = BTreeMap::new();
        for Entry { at, pid, what } in stage.history.entries() {
            match what {
                What::Call(_) => {}
                What::Changed(queue, changed) => facts.changed(at, queue, &changed),
                What::Asked(number, ask) => {
                    facts.asked(at, pid, &ask);
                    asked.insert(number, (at, ask));
                }
                What::Told(number, answer) => {
                    if let Some((began, ask)) = asked.remove(&number) {
                        facts.told(began, at, pid, &ask, answer);
                    }
                }
                What::Began(queue, receipt) => {
                    if let Some(claim) = facts.claim(queue, &receipt) {
                        claim.handled.push((at, None));
                    }
                }
                What::Ended(queue, receipt) => {
                    if let Some(claim) = facts.claim(queue, &receipt)
                        && let Some(handled) = claim.handled.last_mut()
                    {
                        handled.1 = Some(at);
                    }
                }
                What::Happened(event) => facts.happened(at, event),
            }
        }
        let cut_short =
            asked.values().any(|(_, ask)| matches!(ask.verb, "push" | "purge" | "retry"));
        facts.unsure |= cut_short;
        facts
    }

    /// What a plan says of what may happen.
    fn of_plan(plan: &Plan) -> Self {
        let unsound = plan.faults.iter().filter_map(|fault| match fault {
            Fault::Process(actor, _, Trouble::Fails(..))
            | Fault::At(actor, _, Trouble::Fails(..))
            | Fault::Refused(actor, ..) => Some(*actor),
            _ => None,
        });
        let steps = || plan.actors.iter().flat_map(|actor| &actor.steps);
        let wild = |kind: &BucketKind| {
            kind.late + kind.doubled + kind.refused > 0 || !kind.listing_lag.is_zero()
        };
        Self {
            in_bucket: matches!(plan.store, Store::Bucket(_)),
            lease: plan.lease,
            max_attempts: plan.max_attempts,
            max_lost: plan.max_lost,
            short_of_room: matches!(&plan.store, Store::Disk(kind) if kind.room.is_some())
                || plan.faults.iter().any(is_full),
            refuses: plan.faults.iter().any(|it| matches!(it, Fault::Refused(..))),
            orderly: !matches!(&plan.store, Store::Bucket(kind) if wild(kind))
                && !plan.faults.iter().any(is_late),
            answered: !matches!(&plan.store, Store::Bucket(kind) if kind.lost + kind.unanswered > 0),
            copies: steps().any(|step| matches!(step, Step::Transfer { moves: false, .. })),
            purges: steps().any(|step| matches!(step, Step::Purge { .. })),
            unsound: unsound.collect(),
            ..Self::default()
        }
    }

    /// Nothing was made to fail for this process.
    pub(super) fn sound(&self, pid: Pid) -> bool {
        !self.short_of_room && self.roles.get(&pid).is_none_or(|it| !self.unsound.contains(it))
    }

    /// Whether a process was ever stopped.
    pub(super) fn stalled(&self, pid: Pid) -> bool {
        self.stalls.iter().any(|(of, ..)| *of == pid)
    }

    /// What the store's clock showed, if it was never set.
    pub(super) fn wall(&self, at: Duration) -> Timestamp {
        self.server.as_ref().map_or(Timestamp::UNIX_EPOCH, |server| server.wall_at(at))
    }

    /// When a process that opened a queue then first knew what the store's clock shows.
    pub(super) fn clock_known(&self, pid: Pid, opened: Duration) -> Option<Duration> {
        self.clock_looks.get(&pid)?.iter().copied().find(|at| *at >= opened)
    }

    /// Whether a process has looked at the store's clock in between.
    pub(super) fn clock_looked(&self, pid: Pid, from: Duration, to: Duration) -> bool {
        let looks = self.clock_looks.get(&pid);
        looks.is_some_and(|looks| looks.iter().any(|at| (from..=to).contains(at)))
    }

    /// The claim of a receipt.
    pub(super) fn find(&self, queue: QueueNo, receipt: &Receipt) -> Option<&Claim> {
        self.claims.iter().rev().find(|it| it.queue == queue && it.claimed.receipt == *receipt)
    }

    fn claim(&mut self, queue: QueueNo, receipt: &Receipt) -> Option<&mut Claim> {
        self.claims.iter_mut().rev().find(|it| it.queue == queue && it.claimed.receipt == *receipt)
    }

    fn happened(&mut self, at: Duration, event: Event) {
        match event {
            Event::PowerCut => self.power_cuts.push(at),
            Event::Jumped(text) if text.starts_with("machine 0 ") => self.jumps.push(at),
            Event::Stalled(pid, until) => self.stalls.push((pid, at, until)),
            Event::Killed(pid) => {
                self.killed = true;
                for claim in self.claims.iter_mut().filter(|it| it.pid == pid) {
                    claim.died.get_or_insert(at);
                }
            }
            _ => {}
        }
    }

    fn changed(&mut self, at: Duration, queue: QueueNo, changed: &Changed) {
        let Changed { name, how, bytes, .. } = changed;
        self.changes.push((at, queue));
        if name.ends_with("/task.json") && super::walk::is_spoiled(bytes) {
            self.spoiled.insert((queue, name.clone()));
        }
        let in_folder = |folder: &str| name.starts_with(folder);
        let parsed = || parse(bytes);
        if in_folder("pending/") && name.contains("/lease") && *how != How::Removed {
            if let Some(lease) = parsed() {
                self.leases.entry((queue, name.clone(), lease.lease_id)).or_insert(at);
            }
            return;
        }
        if name.ends_with("/task.json") && *how == How::Created {
            let push_id = parsed().unwrap_or_default().push_id;
            self.arrived.entry((queue, push_id)).or_insert(at);
        }
        if in_folder("scheduled/") && *how == How::Created {
            self.waited.extend(parsed().and_then(|it| it.n).map(|n| (queue, n)));
        }
        let completed = in_folder("completed/");
        if !(completed || in_folder("failed/")) {
            return;
        }
        let last = self.records.iter_mut().rev().find(|it| it.queue == queue && it.name == *name);
        let cut = self.power_cuts.last() == Some(&at);
        if let Some(last) = last.filter(|it| it.gone.is_none()) {
            last.gone = Some((at, cut));
        }
        if *how == How::Removed {
            return;
        }
        let it = parsed().unwrap_or_default();
        if let Some(n) = it.n.filter(|_| !completed) {
            self.failed.insert((queue, name.clone()), n);
        }
        self.records.push(Recorded {
            queue,
            completed,
            name: name.clone(),
            n: it.n,
            push_id: it.push_id,
            lease_id: it.lease_id,
            moved: it.moved,
            cancelled: it.cancelled,
            id: it.id,
            reason: it.reason,
            has_bytes: it.has_bytes,
            travelled: it.travelled,
            lost: it.lost,
            forgotten: it.forgotten,
            made: at,
            gone: None,
            replaced: *how == How::Replaced,
            back: cut,
        });
    }

    fn asked(&mut self, at: Duration, pid: Pid, ask: &Ask) {
        if ask.first {
            self.opened.insert(pid, at);
        }
        if matches!(ask.verb, "ack" | "nack" | "fail" | "release" | "moved") {
            for receipt in &ask.receipts {
                if let Some(claim) = self.claim(ask.queue, receipt) {
                    claim.let_go.get_or_insert(at);
                }
            }
        }
        for id in &ask.ids {
            let operated = Operated {
                verb: ask.verb,
                id: id.clone(),
                asked: at,
                queue: ask.queue,
                took: None,
            };
            self.operated.push(operated);
        }
    }

    fn told(&mut self, asked: Duration, told: Duration, pid: Pid, ask: &Ask, answer: Answer) {
        let queue = ask.queue;
        match answer {
            Answer::Claimed(Ok(all)) => {
                for claimed in all {
                    let lease_made = self.lease_made(queue, &claimed.receipt);
                    let holds = vec![(told, claimed.alive_until)];
                    let opened = self.opened.get(&pid).copied().unwrap_or(asked);
                    self.claims.push(Claim {
                        queue,
                        pid,
                        asked,
                        told,
                        claimed,
                        lease_made,
                        opened,
                        holds,
                        let_go: None,
                        died: None,
                        settled: Vec::new(),
                        handled: Vec::new(),
                    });
                }
            }
            Answer::Alive(each) => {
                for (receipt, answer) in ask.receipts.iter().zip(each) {
                    let Some(claim) = self.claim(queue, receipt) else { continue };
                    match answer {
                        Ok((until, _)) => claim.holds.push((told, until)),
                        Err(Refused(ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted, _)) => {
                            claim.let_go.get_or_insert(told);
                        }
                        Err(_) => {}
                    }
                }
            }
            Answer::Each(each) if matches!(ask.verb, "unlock" | "cancel") => {
                for (id, answer) in ask.ids.iter().zip(each) {
                    let took = answer.is_ok_and(|it| it.contains("From(") || it.contains("Some("));
                    let done = self
                        .operated
                        .iter_mut()
                        .rev()
                        .find(|it| it.id == *id && it.asked == asked && it.queue == queue);
                    if let Some(done) = done.filter(|_| took) {
                        done.took = Some(told);
                    }
                }
            }
            Answer::Each(each) => {
                for (receipt, answer) in ask.receipts.iter().zip(each) {
                    if let Some(claim) = self.claim(queue, receipt) {
                        claim.settled.push(Settled { verb: ask.verb, asked, answer });
                    }
                }
            }
            Answer::Pushed(each) => self.pushed(asked, told, ask, each),
            Answer::Whole(Ok(problems)) if ask.verb == "check" => {
                self.problems.push(problems);
            }
            Answer::Claimed(Err(_)) | Answer::Whole(_) => {
                self.unsure |= ask.verb == "purge" && matches!(answer, Answer::Whole(Err(_)));
            }
        }
    }

    fn pushed(
        &mut self,
        asked: Duration,
        told: Duration,
        ask: &Ask,
        each: Vec<Result<Pushed, Refused>>,
    ) {
        let queue = ask.queue;
        for (number, answer) in each.into_iter().enumerate() {
            self.unsure |= answer.is_err();
            let (key, anothers) = match answer {
                Ok(Pushed::Created(key)) => (key, false),
                Ok(Pushed::Pending(key) | Pushed::Finished(key, _)) => (key, true),
                Err(_) => continue,
            };
            let (n, later) = match ask.tasks.get(number) {
                Some(task) => (Some(task.n), task.later),
                // A retry takes the payload of whichever failure it has read.
                None => (self.last_failure(queue, &key), true),
            };
            if let Some(n) = n {
                self.debts.push(Debt { queue, key, n, later, asked, told, anothers });
            }
        }
    }

    /// The payload of the life before this one, which failed.
    fn last_failure(&self, queue: QueueNo, key: &TaskKey) -> Option<i64> {
        let before =
            TaskKey::new(key.id().clone(), key.generation().checked_sub(1).filter(|it| *it > 0)?);
        let ending = format!("/{}.json", stem(&before));
        let of = self.failed.iter().find(|((of, name), _)| *of == queue && name.ends_with(&ending));
        of.map(|(_, n)| *n)
    }

    /// When the lease of a claim appeared.
    fn lease_made(&self, queue: QueueNo, receipt: &Receipt) -> Option<Duration> {
        let (stem, lease_id) = (stem(receipt.key()), lease_id(receipt));
        let file = format!("/{stem}/{}", lease_file(receipt.attempt()));
        let made = self
            .leases
            .iter()
            .filter(|((of, name, id), _)| *of == queue && *id == lease_id && name.ends_with(&file));
        made.map(|(_, at)| *at).next()
    }

    /// Whether somebody wrote over this task.
    pub(super) fn is_spoiled(&self, debt: &Debt) -> bool {
        let ending = format!("/{}/task.json", stem(&debt.key));
        self.spoiled.iter().any(|(of, name)| *of == debt.queue && name.ends_with(&ending))
    }

    /// Whether the power failed in between.
    pub(super) fn cut_between(&self, from: Duration, to: Duration) -> bool {
        self.power_cuts.iter().any(|at| (from..=to).contains(at))
    }

    /// Whether anybody tried to cancel the task of this name.
    pub(super) fn cancels(&self, name: &str) -> bool {
        self.operated.iter().any(|it| it.verb == "cancel" && encoded(&it.id) == name)
    }

    /// Whether an operator may have taken the task away before then.
    pub(super) fn taken_away(&self, id: &str, before: Duration) -> bool {
        self.operated
            .iter()
            .any(|it| it.id == id && it.asked <= before && matches!(it.verb, "unlock" | "cancel"))
    }
}

fn trouble(fault: &Fault) -> Option<&Trouble> {
    match fault {
        Fault::Process(_, _, trouble) | Fault::At(_, _, trouble) => Some(trouble),
        _ => None,
    }
}

/// Whether a disk seems full to somebody.
fn is_full(fault: &Fault) -> bool {
    matches!(trouble(fault), Some(Trouble::Fails(errno, _)) if *errno == Errno::NOSPC)
}

/// Whether a request comes late.
fn is_late(fault: &Fault) -> bool {
    matches!(trouble(fault), Some(Trouble::Late(_)))
}
