//! Plans that are aimed at one part of the protocol each.
//!
//! Invariant: an aim decides what meets, not what comes of it. Each is a plan that could happen, and the queue must
//! keep all its promises under it.

use std::time::Duration;

use jiff::SignedDuration;
use rustix::io::Errno;

use super::drawn::{Draw, On, millis, secs};
use super::{
    Actor, BucketKind, Fault, Host, Plan, Pull, Says, Spot, Step, Store, Trouble, When, Work,
};

/// What a plan is aimed at.
#[derive(Clone, Copy, Debug)]
enum Aim {
    Takeovers,
    Purges,
    Cuts,
    Clocks,
    Moves,
    Damage,
    LostAnswers,
    Refusals,
    Operators,
    Schedules,
    Outages,
}

impl Draw {
    /// Fills a plan that has a store and settings so far.
    pub(super) fn aimed(&mut self, plan: &mut Plan, on: On) {
        use Aim::{
            Clocks, Cuts, Damage, LostAnswers, Moves, Operators, Outages, Purges, Refusals,
            Schedules, Takeovers,
        };
        let both = [
            Takeovers,
            Takeovers,
            Purges,
            Purges,
            Purges,
            Clocks,
            Clocks,
            Moves,
            Damage,
            LostAnswers,
            LostAnswers,
            Refusals,
            Operators,
            Operators,
            Schedules,
            Outages,
        ];
        let aim = match on {
            On::Disk if self.percent(20) => Cuts,
            _ => self.one(&both),
        };
        self.settle(plan, aim);
        match aim {
            Takeovers => self.takeovers(plan),
            Purges => self.purges(plan),
            Cuts => self.cuts(plan),
            Clocks => self.clocks(plan),
            Moves => self.moves(plan),
            Damage => self.damage(plan),
            LostAnswers => self.lost_answers(plan),
            Refusals => self.refusals(plan),
            Operators => self.operators(plan),
            Schedules => self.schedules(plan),
            Outages => self.outages(plan),
        }
    }

    /// A store and settings on which it shows.
    fn settle(&mut self, plan: &mut Plan, aim: Aim) {
        let coarse = match &mut plan.store {
            Store::Disk(kind) => {
                kind.room = None;
                kind.tick >= secs(1)
            }
            Store::Bucket(_) => true,
        };
        plan.lease = match aim {
            Aim::Operators => self.one(&[secs(30), secs(60)]),
            Aim::Clocks | Aim::Outages => self.one(&[secs(10), secs(30)]),
            Aim::Takeovers if self.percent(20) => secs(600),
            _ if coarse => self.one(&[secs(10), secs(10), secs(30)]),
            _ => self.one(&[secs(1), secs(5)]),
        };
        let calm = match aim {
            Aim::Clocks | Aim::Damage | Aim::Operators | Aim::Refusals | Aim::LostAnswers => true,
            _ => self.percent(50),
        };
        match &mut plan.store {
            Store::Bucket(kind) if calm => *kind = BucketKind::default(),
            _ => {}
        }
        if matches!(aim, Aim::Takeovers) {
            plan.max_lost = self.one(&[2, 2, 10]);
        }
    }

    pub(super) fn part(&mut self, of: Duration, from: f64, to: f64) -> Duration {
        let share = self.below(1000) as f64 / 1000.0;
        of.mul_f64(from + (to - from) * share)
    }

    pub(super) fn act(&mut self, plan: &mut Plan, starts: Duration, steps: Vec<Step>) -> usize {
        let (host, restarts) = (self.index(plan.hosts.len()), self.percent(60));
        plan.actors.push(Actor { host, starts, steps, restarts });
        plan.actors.len() - 1
    }

    pub(super) fn pushes(&mut self, ids: &[u8], again: bool) -> Step {
        Step::Push { ids: ids.to_vec(), again, delay: None }
    }

    pub(super) fn worker(&mut self, plan: &Plan, lasts: Duration) -> Step {
        let lease = plan.lease;
        Step::Work(Work {
            lasts,
            slots: 1 + self.index(2),
            busy: self.one(&[millis(20), lease / 2, lease * 2, lease * 3]),
            fails: self.one(&[0, 0, 10, 60]),
            elsewhere: false,
        })
    }

    pub(super) fn puller(&mut self, keeps: Duration) -> Step {
        Step::Pull(Pull {
            max: 1 + self.index(2),
            rounds: 1,
            keeps,
            renews: self.percent(60),
            says: self.one(&[
                Says::Done,
                Says::Done,
                Says::DoneTwice,
                Says::Failed,
                Says::Back,
                Says::Nothing,
            ]),
        })
    }

    /// One that opens the queue anew before each pull.
    pub(super) fn newcomer(
        &mut self,
        plan: &Plan,
        times: usize,
        apart: Duration,
        keeps: Duration,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        for _ in 0..times {
            steps.push(Step::Wait(self.part(apart, 0.1, 1.0)));
            steps.push(Step::Reopen);
            let keeps = self.part(keeps.max(plan.lease / 10), 0.0, 1.0);
            steps.push(self.puller(keeps));
        }
        steps
    }

    pub(super) fn at(&mut self, plan: &mut Plan, actor: usize, spots: &[Spot], trouble: Trouble) {
        let spot = self.one(spots);
        let nth = u32::try_from(self.one(&[0, 0, 0, 1, 1, 2, 3, 5])).unwrap_or(0);
        let when = if self.percent(60) { When::Before(spot, nth) } else { When::After(spot, nth) };
        plan.faults.push(Fault::At(actor, when, trouble));
    }

    fn takeovers(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        let ids: &[u8] = self.one(&[&[0], &[0], &[0, 1]]);
        let steps = vec![self.pushes(ids, false)];
        self.act(plan, Duration::ZERO, steps);
        for _ in 0..2 + self.index(2) {
            let starts = self.part(lease, 0.0, 0.5);
            let steps = match self.below(3) {
                0 => vec![self.worker(plan, lease * 6)],
                1 => self.newcomer(plan, 4, lease, lease * 3),
                _ => {
                    let mut steps = Vec::new();
                    for _ in 0..3 {
                        let keeps = self.part(lease, 0.2, 4.0);
                        steps.push(self.puller(keeps));
                    }
                    steps
                }
            };
            let actor = self.act(plan, starts, steps);
            for _ in 0..1 + self.index(2) {
                let trouble = match self.below(10) {
                    0..5 => Trouble::Stalled(self.part(lease, 0.4, 1.6)),
                    5 => Trouble::Stalled(self.part(lease, 0.63, 0.72)),
                    6 => Trouble::Killed,
                    7 => Trouble::Fails(Errno::IO, 1),
                    8 => Trouble::Repeated,
                    _ => Trouble::Slow(self.part(lease, 0.0, 1.0)),
                };
                let spots = [
                    Spot::Claim,
                    Spot::Claim,
                    Spot::Beat,
                    Spot::Beat,
                    Spot::Record,
                    Spot::TaskGone,
                    Spot::LeaseGone,
                    Spot::Look,
                    Spot::RecordLook,
                ];
                self.at(plan, actor, &spots, trouble);
            }
        }
        if self.percent(30) {
            let steps =
                (0..3).flat_map(|_| [Step::Wait(self.part(lease, 0.1, 1.0)), Step::Unlock(0)]);
            let steps = steps.collect();
            self.act(plan, lease / 10, steps);
        }
    }

    fn purges(&mut self, plan: &mut Plan) {
        let old = secs(3600).max(plan.lease * 10) + secs(60);
        let on_disk = matches!(plan.store, Store::Disk(_));
        let ids: &[u8] = self.one(&[&[0], &[0], &[0, 1]]);
        let lives = self.index(3);
        // How long the first lives take.
        let first = plan.lease * 2 + secs(5);
        let mut steps = vec![self.pushes(ids, true)];
        for _ in 0..lives {
            steps.extend([Step::Wait(first), self.pushes(ids, true)]);
        }
        steps.push(Step::Wait(old + secs(10)));
        for _ in 0..2 + self.index(4) {
            steps.extend([Step::Wait(self.time(secs(6))), self.pushes(ids, true)]);
        }
        let pusher = self.act(plan, Duration::ZERO, steps);
        let lived = first * u32::try_from(lives + 1).unwrap_or(1);
        let work = |lasts, fails| {
            Step::Work(Work { lasts, slots: 2, busy: millis(20), fails, elsewhere: false })
        };
        let fails = self.one(&[0, 0, 30]);
        let early = self.act(plan, millis(500), vec![work(lived, fails)]);
        let start = lived + old;
        let mut steps = Vec::new();
        for _ in 0..1 + self.index(3) {
            let completed = fails == 0 || self.percent(60);
            let purge = Step::Purge { completed, older_than: old - secs(60) };
            steps.extend([purge, Step::Wait(self.time(secs(6)))]);
            if on_disk && self.percent(25) {
                steps.push(Step::Cut);
            }
        }
        let starts = start - secs(20) + self.time(secs(40));
        let purger = self.act(plan, starts, steps);
        let starts = start - secs(30) + self.time(secs(70));
        let steps = vec![work(self.one(&[secs(3), secs(60)]), 0)];
        let late = self.act(plan, starts, steps);
        let stall = |draw: &mut Self| match draw.below(4) {
            0 => Trouble::Killed,
            1 | 2 => Trouble::Stalled(draw.time(secs(40))),
            _ => Trouble::Slow(draw.time(secs(30))),
        };
        let over_it = |draw: &mut Self| Trouble::Stalled(old + lived + draw.time(secs(60)));
        if self.percent(40) {
            let trouble = stall(self);
            let spots = [Spot::RecordGone, Spot::Record, Spot::RecordLook, Spot::Floor];
            self.at(plan, purger, &spots, trouble);
        }
        if self.percent(60) {
            let trouble = if self.percent(40) { over_it(self) } else { Trouble::Killed };
            self.at(plan, early, &[Spot::TaskGone, Spot::TaskGone, Spot::LeaseGone], trouble);
        }
        if self.percent(50) {
            let trouble = stall(self);
            self.at(plan, late, &[Spot::TaskGone, Spot::Record, Spot::Claim], trouble);
        }
        if self.percent(60) {
            let trouble = if self.percent(30) { over_it(self) } else { stall(self) };
            let nth = u32::try_from(self.index(4 + 2 * lives)).unwrap_or(0);
            plan.faults.push(Fault::At(pusher, When::Before(Spot::Publish, nth), trouble));
        }
        if self.percent(50) {
            // Somebody else, while that one sleeps.
            let mut steps = Vec::new();
            for _ in 0..3 {
                steps.extend([self.pushes(ids, true), Step::Wait(self.time(secs(20)))]);
            }
            let starts = if self.percent(50) { start - secs(10) } else { secs(1) };
            self.act(plan, starts, steps);
        }
    }

    fn cuts(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        let ids: &[u8] = self.one(&[&[0], &[0, 1], &[0, 1, 2]]);
        let mut steps = Vec::new();
        for _ in 0..1 + self.index(3) {
            let delay = self.percent(40).then(|| self.time(secs(3)));
            steps.push(Step::Push { ids: ids.to_vec(), again: self.percent(70), delay });
            if self.percent(40) {
                steps.push(Step::Cut);
            }
            steps.push(Step::Wait(self.time(secs(4))));
        }
        let pusher = self.act(plan, Duration::ZERO, steps);
        let mut steps = Vec::new();
        for _ in 0..4 {
            let keeps = self.part(lease, 0.0, 0.5);
            let says = self.one(&[Says::Done, Says::Done, Says::Failed, Says::Back, Says::Nothing]);
            let pull = Pull { max: 2, rounds: 1, keeps, renews: self.percent(40), says };
            steps.push(Step::Pull(pull));
            if self.percent(40) {
                steps.push(Step::Cut);
            }
            steps.extend([Step::Wait(self.part(lease, 0.0, 1.3)), Step::Reopen]);
        }
        self.act(plan, millis(20), steps);
        let starts = self.time(secs(2));
        let steps = vec![self.worker(plan, lease * 5)];
        let worker = self.act(plan, starts, steps);
        if self.percent(60) {
            let steps = vec![self.pushes(ids, false), Step::Cut];
            let starts = self.time(secs(2));
            self.act(plan, starts, steps);
        }
        for actor in [pusher, worker] {
            let spots = [
                Spot::Publish,
                Spot::Publish,
                Spot::Record,
                Spot::TaskGone,
                Spot::TaskGone,
                Spot::Claim,
                Spot::Sync,
            ];
            if self.percent(50) {
                self.at(plan, actor, &spots, Trouble::PowerCut);
            }
            if self.percent(40) {
                let trouble =
                    self.one(&[Trouble::Stalled(secs(3)), Trouble::Slow(secs(2)), Trouble::Killed]);
                self.at(plan, actor, &[Spot::Sync, Spot::Publish, Spot::TaskGone], trouble);
            }
        }
    }

    fn clocks(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        plan.hosts.truncate(2);
        plan.hosts[0] = Host::default();
        let early = self.time(secs(3));
        let steps = vec![
            self.pushes(&[0], false),
            Step::Wait(early),
            self.pushes(&[1], false),
            Step::Wait(self.time(secs(6))),
            self.pushes(&[2], false),
        ];
        self.act(plan, Duration::ZERO, steps);
        for _ in 0..1 + self.index(2) {
            let starts = self.time(secs(2));
            let keeps = self.one(&[secs(8), lease / 2, lease * 2]);
            let says = self.one(&[Says::Done, Says::Nothing, Says::Nothing]);
            let pull = Pull { max: 2, rounds: 1, keeps, renews: self.percent(70), says };
            let restarts = false;
            let host = self.index(plan.hosts.len());
            plan.actors.push(Actor { host, starts, steps: vec![Step::Pull(pull)], restarts });
        }
        if self.percent(70) {
            let busy = self.one(&[millis(20), lease * 2]);
            let work = Work { lasts: lease * 4, slots: 1, busy, fails: 0, elsewhere: false };
            let starts = self.time(secs(1));
            self.act(plan, starts, vec![Step::Work(work)]);
        }
        let starts = self.time(secs(8));
        let steps = self.newcomer(plan, 3, secs(6), secs(2));
        self.act(plan, starts, steps);
        let at = self.time(secs(8));
        let days = 2 * 86_400;
        let by = self.one(&[3600, 3600, -3600, -3600, -60, -days, -days, 7]);
        plan.faults.push(Fault::Jump(0, at, SignedDuration::from_secs(by)));
        // And back again.
        if by.abs() <= 3600 && self.percent(50) {
            let at = at + self.time(secs(6));
            plan.faults.push(Fault::Jump(0, at, SignedDuration::from_secs(-by)));
        }
    }
}
