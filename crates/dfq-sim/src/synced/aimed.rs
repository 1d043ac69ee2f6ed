//! Plans that are aimed at one rule of the merge each.
//!
//! Invariant: an aim decides what meets, not what comes of it. Each is a plan that could happen.

use std::time::Duration;

use jiff::SignedDuration;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::plan::{Deed, Plan, Step, deed, wait};

/// What a plan is aimed at.
#[derive(Clone, Copy, Debug)]
enum Aim {
    /// All merge at the same moments, and some stand still in between.
    Crowd,
    /// All were away, have lived the same lives in other ways, and come back at the same moment.
    Return,
    /// A node is away while the hub forgets what it has.
    Away,
    /// Files are spoiled.
    Damage,
    /// The clock of an owner is set back.
    Clocks,
    /// An owner falls silent.
    Silence,
    /// An id is pushed at once and for later.
    Later,
}

/// The steps of a plan, as they are drawn.
struct Draw<'a> {
    chance: &'a mut StdRng,
    nodes: usize,
    steps: Vec<Step>,
}

pub(super) fn aimed(seed: u64, ahead: Vec<SignedDuration>, chance: &mut StdRng) -> Plan {
    use Aim::{Away, Clocks, Crowd, Damage, Later, Return, Silence};
    let aims = [Crowd, Crowd, Return, Return, Away, Away, Damage, Clocks, Silence, Later];
    let aim = aims[chance.random_range(0..aims.len())];
    let stormy = chance.next_u64().is_multiple_of(6);
    let together = matches!(aim, Crowd | Return) || chance.next_u64().is_multiple_of(4);
    let mut draw = Draw { chance, nodes: ahead.len(), steps: Vec::new() };
    match aim {
        Crowd => draw.crowd(),
        Return => draw.come_back(),
        Away => draw.away(),
        Damage => draw.damage(),
        Clocks => draw.clocks(),
        Silence => draw.silence(),
        Later => draw.later(),
    }
    let at_once = super::plan::is_at_once(seed);
    Plan { seed, ahead, stormy, together, at_once, steps: draw.steps }
}

impl Draw<'_> {
    fn secs(&mut self, range: std::ops::Range<u64>) -> u64 {
        self.chance.random_range(range)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.chance.next_u64() % 100 < percent
    }

    /// Something that is done so many seconds after what came before on this node.
    fn then(&mut self, node: usize, after: std::ops::Range<u64>, deed: Deed) {
        let wait = Duration::from_secs(self.secs(after));
        self.steps.push(Step { node, wait, deed });
    }

    fn push(id: usize) -> Deed {
        Deed::Push { id, again: true, delay: None, common: false }
    }

    /// Whatever else people do.
    fn anything(&mut self, most: usize) {
        for node in 0..self.nodes {
            for _ in 0..self.chance.random_range(0..=most) {
                let (wait, deed) = (wait(self.chance), deed(self.chance, 2));
                self.steps.push(Step { node, wait, deed });
            }
        }
    }

    fn crowd(&mut self) {
        let ids = self.chance.random_range(1..3);
        for node in 0..self.nodes {
            for _ in 0..self.chance.random_range(4..12) {
                let id = self.chance.random_range(0..ids);
                match self.chance.next_u64() % 8 {
                    0..3 => self.then(node, 0..200, Self::push(id)),
                    3..6 => {
                        self.then(node, 0..300, Deed::Poll(2));
                        self.then(node, 0..200, Deed::Ack);
                    }
                    6 => {
                        let (calls, seconds) = (self.secs(20..250), self.secs(1..600));
                        self.then(node, 0..150, Deed::Stall { calls, seconds });
                    }
                    _ => self.then(node, 0..200, Deed::Retry(id)),
                }
            }
        }
        self.anything(2);
    }

    fn come_back(&mut self) {
        for node in 0..self.nodes {
            self.then(node, 0..1, Deed::Offline(2500));
            for id in 0..3 {
                if self.percent(70) {
                    self.then(node, 0..50, Self::push(id));
                    if self.percent(60) {
                        self.then(node, 0..50, Deed::Poll(3));
                        self.then(node, 0..50, Deed::Ack);
                    }
                }
            }
            if self.percent(20) {
                let (calls, seconds) = (self.secs(20..150), self.secs(1..600));
                self.then(node, 0..150, Deed::Stall { calls, seconds });
            }
            self.then(node, 3000..3300, Deed::Beat);
        }
        self.anything(2);
    }

    fn away(&mut self) {
        let away = 1;
        // What it has has been in the hub, or has not.
        self.then(0, 0..10, Self::push(0));
        if self.percent(60) {
            self.then(away, 0..10, Self::push(0));
        }
        let seconds = self.secs(9000..22_000);
        self.then(away, 0..900, Deed::Offline(seconds));
        if self.percent(60) {
            self.then(away, 0..900, Self::push(0));
        }
        self.then(0, 0..900, Deed::Poll(2));
        self.then(0, 0..100, Deed::Ack);
        if self.percent(50) {
            self.then(0, 0..900, Self::push(0));
            self.then(0, 700..1300, Deed::Poll(2));
            self.then(0, 0..100, Deed::Ack);
        }
        self.then(0, 7400..9000, Deed::Purge);
        if self.percent(50) {
            self.then(0, 0..900, Self::push(0));
        }
        if self.percent(30) {
            self.anything(3);
        }
    }

    fn damage(&mut self) {
        for node in 0..self.nodes {
            let id = self.chance.random_range(0..3);
            self.then(node, 0..100, Self::push(id));
            match self.percent(50) {
                true => {
                    self.then(node, 300..700, Deed::Rot(id));
                    self.then(node, 0..10, Deed::Poll(3));
                }
                false => {
                    self.then(node, 0..100, Deed::Poll(1));
                    self.then(node, 0..200, Deed::RotLease(id));
                    // A torn lease counts as any other, until it is old enough.
                    for _ in 0..4 {
                        self.then(node, 200..500, Deed::Poll(1));
                    }
                }
            }
            self.then(node, 0..900, Deed::Ack);
        }
        if self.percent(40) {
            self.anything(3);
        }
    }

    fn clocks(&mut self) {
        for node in 0..self.nodes {
            let id = self.chance.random_range(0..3);
            self.then(node, 0..100, Self::push(id));
            self.then(node, 0..300, Deed::Poll(1));
            let back = -self.chance.random_range(600..7200);
            self.then(node, 150..500, Deed::Jump(back));
            self.then(node, 0..100, Deed::Beat);
            if self.percent(40) {
                self.then(node, 0..300, Deed::Nack);
            }
        }
        if self.percent(30) {
            self.anything(3);
        }
    }

    fn silence(&mut self) {
        for id in 0..2 {
            self.then(0, 0..20, Self::push(id));
        }
        self.then(0, 0..20, Deed::Poll(2));
        for node in 1..self.nodes {
            for _ in 0..12 {
                self.then(node, 30..300, Deed::Poll(2));
            }
        }
        for _ in 0..self.chance.random_range(0..6) {
            self.then(0, 100..400, Deed::Beat);
        }
        if self.percent(30) {
            self.anything(3);
        }
    }

    fn later(&mut self) {
        for node in 0..self.nodes {
            for _ in 0..self.chance.random_range(2..6) {
                let id = self.chance.random_range(0..2);
                let delay = match self.percent(50) {
                    true => Some(self.secs(1..2000)),
                    false => None,
                };
                self.then(node, 0..600, Deed::Push { id, again: true, delay, common: false });
                if self.percent(50) {
                    self.then(node, 0..600, Deed::Poll(2));
                    self.then(node, 0..300, Deed::Ack);
                }
            }
        }
        self.anything(2);
    }
}
