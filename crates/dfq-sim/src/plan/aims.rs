//! More plans that are aimed at one part of the protocol each: those that seldom meet the others.
//!
//! Invariant: as in `aimed`.

use std::time::Duration;

use rustix::io::Errno;

use super::drawn::{Draw, millis, secs};
use super::{Fault, Plan, Pull, Says, Spot, Step, Store, Trouble, When, Work};

impl Draw {
    pub(super) fn moves(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        let mut steps = Vec::new();
        for _ in 0..2 {
            let delay = self.percent(50).then(|| secs(20) + self.time(secs(60)));
            steps.push(Step::Push { ids: vec![0, 1], again: true, delay });
            steps.push(Step::Wait(self.time(lease)));
        }
        self.act(plan, Duration::ZERO, steps);
        let pull = Pull {
            max: 2,
            rounds: 2 + u32::try_from(self.index(3)).unwrap_or(0),
            keeps: millis(10),
            renews: false,
            says: self.one(&[Says::Failed, Says::Back]),
        };
        self.act(plan, millis(100), vec![Step::Pull(pull)]);
        let mut steps = vec![Step::Wait(self.time(lease * 2))];
        for back in [false, true, false].into_iter().take(1 + self.index(3)) {
            steps.push(Step::Transfer { moves: true, back });
            steps.push(Step::Wait(self.time(lease)));
        }
        let mover = self.act(plan, Duration::ZERO, steps);
        for _ in 0..self.index(3) {
            let trouble = self.one(&[Trouble::Killed, Trouble::Stalled(lease)]);
            let spots = [Spot::Publish, Spot::Claim, Spot::Record, Spot::TaskGone];
            self.at(plan, mover, &spots, trouble);
        }
        for elsewhere in [false, true] {
            if self.percent(60) {
                let starts = self.time(lease);
                let (busy, fails) = (millis(20), self.one(&[0, 60]));
                let lasts = lease * 3 + secs(10);
                let work = Work { lasts, slots: 1, busy, fails, elsewhere };
                self.act(plan, starts, vec![Step::Work(work)]);
            }
        }
    }

    pub(super) fn damage(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        let steps = vec![self.pushes(&[0, 1], true), Step::Wait(lease), self.pushes(&[2], true)];
        self.act(plan, Duration::ZERO, steps);
        let mut steps = Vec::new();
        for _ in 0..2 + self.index(3) {
            steps.push(Step::Wait(self.part(lease, 0.0, 0.8)));
            let id = u8::try_from(self.index(3)).unwrap_or(0);
            steps.push(Step::Spoil { id, lease: self.percent(70), torn: self.percent(50) });
        }
        self.act(plan, millis(10), steps);
        let keeps = self.part(lease, 0.5, 2.0);
        let pull = Pull { max: 2, rounds: 2, keeps, renews: self.percent(50), says: Says::Done };
        self.act(plan, millis(30), vec![Step::Pull(pull)]);
        let starts = self.part(lease, 0.1, 1.0);
        let steps = self.newcomer(plan, 5, lease / 2, lease / 2);
        self.act(plan, starts, steps);
        if self.percent(50) {
            let starts = self.part(lease, 0.0, 1.0);
            let steps = vec![self.worker(plan, lease * 4)];
            self.act(plan, starts, steps);
        }
    }

    pub(super) fn lost_answers(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        if let Store::Bucket(kind) = &mut plan.store {
            kind.unanswered = self.one(&[60, 150]);
            kind.lost = self.one(&[0, 60, 150]);
            plan.lease = self.one(&[secs(5), secs(10), secs(30)]);
        }
        let spots = [Spot::Claim, Spot::Record, Spot::Publish, Spot::Beat];
        for again in [false, true] {
            let mut steps = Vec::new();
            for _ in 0..1 + self.index(3) {
                let delay = self.percent(20).then(|| self.time(secs(3)));
                steps.push(Step::Push { ids: vec![0, 1], again, delay });
                steps.push(Step::Wait(self.time(lease)));
            }
            let starts = self.time(lease / 2);
            let actor = self.act(plan, starts, steps);
            self.at(plan, actor, &[Spot::Publish], Trouble::Repeated);
        }
        for _ in 0..2 {
            let starts = self.time(lease / 2);
            let steps = match self.below(2) {
                0 => vec![self.worker(plan, lease * 4)],
                _ => {
                    let keeps = self.part(lease, 0.3, 0.95);
                    let says = self.one(&[Says::Done, Says::DoneTwice]);
                    let pull = Pull { max: 2, rounds: 3, keeps, renews: false, says };
                    vec![Step::Pull(pull)]
                }
            };
            let actor = self.act(plan, starts, steps);
            for _ in 0..1 + self.index(3) {
                self.at(plan, actor, &spots, Trouble::Repeated);
            }
        }
    }

    pub(super) fn refusals(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        let steps = vec![self.pushes(&[0, 1], true), Step::Wait(lease), self.pushes(&[2], true)];
        self.act(plan, Duration::ZERO, steps);
        let (lasts, busy) = (secs(24 * 3600), millis(20));
        let fails = self.one(&[0, 0, 60]);
        let work = Work { lasts, slots: 2, busy, fails, elsewhere: false };
        let worker = self.act(plan, millis(10), vec![Step::Work(work)]);
        let folder = self.one(&["completed", "completed", "failed", "pending"]);
        plan.faults.push(Fault::Refused(worker, folder, Errno::ACCESS));
        let starts = self.time(lease * 2);
        let steps = vec![self.worker(plan, lease * 3)];
        self.act(plan, starts, steps);
    }

    pub(super) fn operators(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        let steps = vec![
            self.pushes(&[0, 1], true),
            Step::Wait(self.part(lease, 0.1, 2.0)),
            self.pushes(&[0, 1, 2], true),
        ];
        self.act(plan, Duration::ZERO, steps);
        for _ in 0..1 + self.index(2) {
            let starts = self.time(secs(5));
            let busy = self.one(&[lease * 2, lease, millis(20)]);
            let fails = self.one(&[0, 0, 60]);
            let work = Work { lasts: lease * 4, slots: 2, busy, fails, elsewhere: false };
            let actor = self.act(plan, starts, vec![Step::Work(work)]);
            if self.percent(40) {
                let trouble = match self.below(3) {
                    0 => Trouble::Killed,
                    _ => Trouble::Stalled(self.part(lease, 0.0, 0.5)),
                };
                let spots = [Spot::TaskGone, Spot::Look, Spot::RecordLook, Spot::Record];
                self.at(plan, actor, &spots, trouble);
            }
        }
        if self.percent(60) {
            let steps = self.newcomer(plan, 3, lease / 2, lease);
            let actor = self.act(plan, secs(1), steps);
            let trouble = Trouble::Stalled(self.part(lease, 0.05, 0.7));
            self.at(plan, actor, &[Spot::Look, Spot::Look, Spot::Claim], trouble);
        }
        for _ in 0..1 + self.index(2) {
            let mut steps = Vec::new();
            for _ in 0..4 {
                steps.push(Step::Wait(self.part(lease, 0.0, 0.6)));
                let id = u8::try_from(self.index(3)).unwrap_or(0);
                let step = match self.below(8) {
                    0..4 => Step::Unlock(id),
                    4 | 5 => Step::Cancel(id),
                    _ => Step::Retry(id),
                };
                steps.push(step);
            }
            self.act(plan, secs(1), steps);
        }
    }

    pub(super) fn schedules(&mut self, plan: &mut Plan) {
        for _ in 0..2 {
            let mut steps = Vec::new();
            for _ in 0..1 + self.index(3) {
                let delay = Some(self.time(secs(4)));
                steps.push(Step::Push { ids: vec![0, 1], again: true, delay });
                steps.push(Step::Wait(self.time(secs(4))));
            }
            let starts = self.time(secs(1));
            self.act(plan, starts, steps);
        }
        for _ in 0..2 {
            let starts = self.time(secs(2));
            let steps = vec![self.worker(plan, plan.lease * 3 + secs(5))];
            let actor = self.act(plan, starts, steps);
            let trouble = match self.below(3) {
                0 => Trouble::Killed,
                1 => Trouble::Stalled(self.time(secs(3))),
                _ => Trouble::Repeated,
            };
            self.at(plan, actor, &[Spot::Publish, Spot::TaskGone], trouble);
        }
    }

    /// Somebody's calls fail for a while, or find no room; others watch.
    pub(super) fn outages(&mut self, plan: &mut Plan) {
        let lease = plan.lease;
        let steps = vec![self.pushes(&[0], false)];
        self.act(plan, Duration::ZERO, steps);
        let work = |busy| Work { lasts: lease * 7, slots: 1, busy, fails: 0, elsewhere: false };
        let holder = self.act(plan, millis(20), vec![Step::Work(work(lease * 6))]);
        let errno = self.one(&[Errno::NOSPC, Errno::NOSPC, Errno::IO]);
        let nth = u32::try_from(self.index(3)).unwrap_or(0);
        let trouble = Trouble::Fails(errno, 5000);
        plan.faults.push(Fault::At(holder, When::After(Spot::Beat, nth), trouble));
        if let Store::Bucket(kind) = &mut plan.store {
            kind.lost = 300;
        }
        let starts = millis(500) + self.time(secs(2));
        self.act(plan, starts, vec![Step::Work(work(millis(20)))]);
        if self.percent(50) {
            let steps = self.newcomer(plan, 4, lease, lease);
            self.act(plan, lease, steps);
        }
    }
}
