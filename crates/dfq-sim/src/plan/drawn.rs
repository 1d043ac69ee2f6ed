//! Plans that a seed decides.
//!
//! Invariant: the same seed draws the same plan. Plans are small, so that much of what they do meets: few ids, few
//! processes, short leases.

use std::time::Duration;

use jiff::SignedDuration;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::io::Errno;

use super::{
    Actor, BucketKind, DiskKind, Fault, Host, Plan, Pull, Says, Step, Store, Trouble, Work,
};

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// How old it may be what a machine knows of names over NFS.
const NFS_LAG: [Duration; 4] = [Duration::ZERO, secs(3), secs(3), secs(30)];

/// Which stores plans are drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum On {
    /// Directories.
    Disk,
    /// Buckets.
    Bucket,
}

pub(super) struct Draw(StdRng);

impl Draw {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound.max(1)
    }

    pub(super) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// In so many of a hundred cases.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }

    /// Up to this, rather short than long.
    pub(super) fn time(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        let part = self.below(most) + 1;
        millis(if self.percent(50) { self.below(part) + 1 } else { part })
    }

    /// A number of calls, of any order of magnitude.
    fn calls(&mut self) -> u64 {
        let scale = self.one(&[20_u64, 100, 400, 2000]);
        self.below(scale)
    }
}

impl Plan {
    /// The plan of a seed: for every other seed on a disk, else in a bucket, unless it is said which.
    pub fn drawn(seed: u64, on: Option<On>) -> Self {
        let mut draw = Draw(StdRng::seed_from_u64(seed));
        let on = on.unwrap_or(if seed.is_multiple_of(2) { On::Disk } else { On::Bucket });
        let world_seed = draw.0.next_u64();
        let store = match on {
            On::Disk => Store::Disk(draw.disk()),
            On::Bucket => Store::Bucket(draw.bucket()),
        };
        // Where times are whole seconds, short leases are refused.
        let leases: &[Duration] = match &store {
            Store::Disk(kind) if kind.tick >= secs(1) => &[secs(10), secs(60)],
            Store::Disk(_) => &[secs(1), secs(5), secs(30), secs(600)],
            Store::Bucket(_) => &[secs(5), secs(30), secs(600)],
        };
        let mut plan = Self {
            seed: world_seed,
            lease: draw.one(leases),
            max_attempts: draw.one(&[1, 3, 5]),
            max_lost: draw.one(&[2, 10]),
            backoff: draw.one(&[millis(100), secs(5)]),
            flat: draw.percent(15),
            made: draw.percent(80),
            hosts: draw.hosts(),
            actors: Vec::new(),
            faults: Vec::new(),
            store,
        };
        // On each store, two of three plans are scenes, each in its turn.
        let turn = seed / 2;
        if !turn.is_multiple_of(3) {
            draw.staged(&mut plan, on, turn - turn / 3);
        } else if draw.percent(65) {
            draw.aimed(&mut plan, on);
        } else {
            draw.cast(&mut plan);
            draw.faults(&mut plan);
        }
        // Where times are whole seconds, short leases are refused.
        match &mut plan.store {
            Store::Disk(kind) if plan.lease < secs(10) => kind.tick = kind.tick.min(millis(4)),
            _ => {}
        }
        plan
    }
}

impl Draw {
    fn disk(&mut self) -> DiskKind {
        let nfs = self.percent(25).then(|| self.one(&NFS_LAG));
        DiskKind {
            tick: self.one(&[Duration::from_nanos(1), millis(4), millis(4), secs(1)]),
            nfs,
            unnamed: nfs.is_none() && self.percent(85),
            links: nfs.is_some() || self.percent(90),
            // At least enough to make a queue.
            room: self.percent(10).then(|| 9_000 + self.below(30_000)),
            journal: self.percent(50),
        }
    }

    fn bucket(&mut self) -> BucketKind {
        if self.percent(25) {
            return BucketKind::default();
        }
        let mut some = || self.one(&[0, 0, 5, 30]);
        BucketKind {
            lost: some(),
            unanswered: some(),
            late: some(),
            doubled: some(),
            refused: some(),
            listing_lag: if self.percent(20) { self.time(secs(10)) } else { Duration::ZERO },
        }
    }

    fn hosts(&mut self) -> Vec<Host> {
        let count = 1 + self.index(3);
        (0..count)
            .map(|_| Host {
                drift: self.one(&[0, 0, 50, -50, 2000, -2000]),
                ahead: SignedDuration::from_secs(self.one(&[0, 0, 1, -3, 600, -86_400])),
            })
            .collect()
    }

    fn cast(&mut self, plan: &mut Plan) {
        // Records must be an hour old, and ten leases, before a purge may remove them.
        let purges = self.percent(35);
        let old = secs(3600).max(plan.lease * 10) + secs(60);
        let operators = self.percent(50);
        let transfers = self.percent(12);
        let ids = 1 + self.index(5);
        for _ in 0..1 + self.index(2) {
            let mut steps = vec![self.push(ids)];
            for _ in 0..self.index(5) {
                steps.push(Step::Wait(self.time(plan.lease * 2)));
                steps.push(self.push(ids));
            }
            if purges {
                steps.push(Step::Wait(old + self.time(secs(20))));
                for _ in 0..1 + self.index(3) {
                    steps.push(self.push(ids));
                    steps.push(Step::Wait(self.time(millis(300))));
                }
            }
            self.join(plan, steps, secs(2));
        }
        for _ in 0..1 + self.index(3) {
            let mut steps = vec![self.work(plan)];
            if purges && self.percent(70) {
                steps.push(Step::Wait(old.saturating_sub(self.time(secs(30)))));
                steps.push(self.work(plan));
            }
            self.join(plan, steps, plan.lease);
        }
        if self.percent(40) {
            let pull = self.pull(plan);
            self.join(plan, vec![pull], plan.lease);
        }
        if operators {
            let mut steps = Vec::new();
            for _ in 0..1 + self.index(5) {
                steps.push(Step::Wait(self.time(plan.lease * 2)));
                steps.push(self.operation(ids));
            }
            steps.push(Step::Resume);
            self.join(plan, steps, secs(2));
        }
        if purges {
            for _ in 0..1 + self.index(2) {
                let mut steps = vec![Step::Wait(old + self.time(secs(20)))];
                for _ in 0..1 + self.index(3) {
                    let older_than = old - secs(60);
                    steps.push(Step::Purge { completed: self.percent(70), older_than });
                    steps.push(Step::Wait(self.time(secs(5))));
                }
                self.join(plan, steps, secs(1));
            }
        }
        if transfers {
            let (moves, there_and_back) = (self.percent(70), self.percent(50));
            let mut steps = vec![Step::Transfer { moves, back: false }];
            if there_and_back {
                steps.push(Step::Wait(self.time(plan.lease)));
                steps.push(Step::Transfer { moves, back: true });
            }
            self.join(plan, steps, plan.lease);
        }
    }

    fn join(&mut self, plan: &mut Plan, steps: Vec<Step>, within: Duration) {
        let host = self.index(plan.hosts.len());
        let (starts, restarts) = (self.time(within), self.percent(70));
        plan.actors.push(Actor { host, starts, steps, restarts });
    }

    fn push(&mut self, ids: usize) -> Step {
        let count = 1 + self.index(3);
        let ids = (0..count).map(|_| u8::try_from(self.index(ids)).unwrap_or(0)).collect();
        let delay = self.percent(15).then(|| self.time(secs(90)));
        Step::Push { ids, again: self.percent(60), delay }
    }

    fn work(&mut self, plan: &Plan) -> Step {
        Step::Work(Work {
            lasts: plan.lease * 2 + self.time(plan.lease * 4),
            slots: 1 + self.index(3),
            busy: self.one(&[millis(20), plan.lease / 2, plan.lease * 2]),
            fails: self.one(&[0, 10, 60]),
            elsewhere: false,
        })
    }

    fn pull(&mut self, plan: &Plan) -> Step {
        Step::Pull(Pull {
            max: 1 + self.index(3),
            rounds: 1 + u32::try_from(self.index(4)).unwrap_or(0),
            keeps: self.time(plan.lease * 2),
            renews: self.percent(50),
            says: self.one(&[Says::Done, Says::Done, Says::DoneTwice, Says::Failed, Says::Back]),
        })
    }

    fn operation(&mut self, ids: usize) -> Step {
        let id = u8::try_from(self.index(ids)).unwrap_or(0);
        match self.below(16) {
            0..4 => Step::Retry(id),
            4..7 => Step::Cancel(id),
            7..10 => Step::Unlock(id),
            10 => Step::Pause,
            11 => Step::Resume,
            12 => Step::Check { repair: true },
            13 => Step::Check { repair: false },
            14 => Step::Tidy,
            _ => Step::Look,
        }
    }

    fn faults(&mut self, plan: &mut Plan) {
        if self.percent(10) {
            return;
        }
        let on_disk = matches!(plan.store, Store::Disk(_));
        for _ in 0..self.index(6) {
            let (actor, call) = (self.index(plan.actors.len()), self.calls());
            let trouble = match self.below(10) {
                0..4 => Trouble::Killed,
                4..8 => Trouble::Stalled(self.stall(plan.lease)),
                8 => {
                    let errno = self.one(&[Errno::IO, Errno::STALE, Errno::ACCESS, Errno::NOSPC]);
                    let times = self.one(&[1, 3, 50]);
                    Trouble::Fails(errno, times)
                }
                _ => Trouble::Repeated,
            };
            plan.faults.push(Fault::Process(actor, call, trouble));
        }
        if on_disk && self.percent(25) {
            for _ in 0..1 + self.index(2) {
                let at = self.time(plan.lease * 4);
                plan.faults.push(Fault::PowerCut(at));
            }
        }
        if self.percent(12) {
            let (host, at) = (self.index(plan.hosts.len()), self.time(plan.lease * 3));
            let by = self.one(&[-6 * 3600, -30, -2, 2, 30, 3600, 86_400 * 40]);
            plan.faults.push(Fault::Jump(host, at, SignedDuration::from_secs(by)));
        }
        if self.percent(12) && plan.hosts.len() > 1 {
            let host = 1 + self.index(plan.hosts.len() - 1);
            let (at, lasts) = (self.time(plan.lease * 3), self.stall(plan.lease));
            plan.faults.push(Fault::Suspend(host, at, lasts));
        }
        if self.percent(6) {
            let workers =
                plan.actors.iter().enumerate().filter(|(_, actor)| {
                    actor.steps.iter().any(|step| matches!(step, Step::Work(_)))
                });
            let workers: Vec<usize> = workers.map(|(number, _)| number).collect();
            let worker = self.one(&workers);
            // It goes on while others work off what is left.
            for step in &mut plan.actors[worker].steps {
                if let Step::Work(work) = step {
                    work.lasts = secs(24 * 3600);
                }
            }
            let folder = self.one(&["completed", "failed", "pending"]);
            let errno = self.one(&[Errno::ACCESS, Errno::IO]);
            plan.faults.push(Fault::Refused(worker, folder, errno));
        }
    }

    /// About as long as a lease, shorter or longer.
    fn stall(&mut self, lease: Duration) -> Duration {
        match self.below(4) {
            0 => self.time(millis(50)),
            1 => self.time(lease),
            2 => lease + self.time(lease / 2),
            _ => self.time(lease * 4),
        }
    }
}
