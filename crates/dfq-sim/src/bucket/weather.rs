//! What may become of a request on its way, and how likely that is.
//!
//! Invariant: what becomes of a request is drawn once, when it is sent, from the chance of the network. So the same
//! seed and the same requests in the same order give the same weather, and the processes' own chance is not touched.

use std::time::Duration;

use dfq::Env;
use dfq::meter::RequestKind;

use super::request::Request;

/// How long a request is on its way to the server, or its answer on the way back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delay {
    /// Mostly: between these two.
    pub usual: (Duration, Duration),
    /// How many take longer.
    pub slow: f64,
    /// Those: up to this. Short ones of them are more frequent than long ones.
    pub slow_at_most: Duration,
}

impl Delay {
    /// No time passes.
    pub const NONE: Self =
        Self { usual: (Duration::ZERO, Duration::ZERO), slow: 0.0, slow_at_most: Duration::ZERO };

    fn draw(&self, chance: &Env) -> Duration {
        let (least, most) = self.usual;
        if chance.fraction() >= self.slow {
            return between(least, most, chance);
        }
        // Every doubling is as likely as the next one.
        let (least, most) = (most.as_secs_f64().max(0.001), self.slow_at_most.as_secs_f64());
        let times = (most / least).max(1.0);
        Duration::from_secs_f64(least * times.powf(chance.fraction()))
    }
}

/// Requests that are answered 403.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Which; `None` is all.
    pub kind: Option<RequestKind>,
    /// For names, and listings, that begin so.
    pub prefix: String,
}

impl Denied {
    fn meets(&self, kind: RequestKind, name: &str) -> bool {
        self.kind.is_none_or(|only| only == kind) && name.starts_with(&self.prefix)
    }
}

/// How likely it is what becomes of a request. At most one of these things happens to each; their sum is at most 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Weather {
    /// How long each way takes.
    pub delay: Delay,
    /// It never arrives. The client waits in vain.
    pub lost: f64,
    /// It is carried out, and the answer never arrives.
    pub answer_lost: f64,
    /// It arrives when the client has given up, and is carried out then.
    pub late: f64,
    /// How long after it was sent the latest may arrive. Up to [`LATEST_PROMISED`](super::LATEST_PROMISED) the protocol
    /// promises to bear it.
    pub late_at_most: Duration,
    /// Something on the way sends it twice. Both are carried out, and the second is answered.
    pub doubled: f64,
    /// It is answered 500 or 503, and carried out before that, or later, or never.
    pub refused: f64,
    /// A conditional write is answered 409, and carried out or not.
    pub conflict: f64,
    /// A removal of many is carried out in two parts, with time between, or only the first part is.
    pub in_parts: f64,
    /// Of the requests that are under way when their process dies, so many were not sent to the end.
    pub cut_short: f64,
    /// What is forbidden, from now on until it is taken out.
    pub denied: Vec<Denied>,
}

impl Weather {
    /// Everything arrives, and at once.
    pub fn still() -> Self {
        Self {
            delay: Delay::NONE,
            lost: 0.0,
            answer_lost: 0.0,
            late: 0.0,
            late_at_most: Duration::from_secs(60),
            doubled: 0.0,
            refused: 0.0,
            conflict: 0.0,
            in_parts: 0.0,
            cut_short: 0.0,
            denied: Vec::new(),
        }
    }

    /// Everything arrives, in milliseconds.
    pub fn calm() -> Self {
        let delay = Delay {
            usual: (Duration::from_millis(3), Duration::from_millis(25)),
            slow: 0.0,
            slow_at_most: Duration::ZERO,
        };
        Self { delay, cut_short: 0.5, ..Self::still() }
    }

    /// Everything happens that the protocol promises to bear.
    pub fn stormy() -> Self {
        let calm = Self::calm();
        Self {
            delay: Delay { slow: 0.03, slow_at_most: Duration::from_secs(4), ..calm.delay },
            lost: 0.02,
            answer_lost: 0.03,
            late: 0.02,
            doubled: 0.02,
            refused: 0.03,
            conflict: 0.02,
            in_parts: 0.2,
            ..calm
        }
    }

    /// What becomes of this request, for which the client waits so long.
    pub(super) fn fate(&self, request: &Request, patience: Duration, chance: &Env) -> Fate {
        let (mut there, back) = (self.delay.draw(chance), self.delay.draw(chance));
        let cut_short = chance.fraction() < self.cut_short;
        let many = matches!(request, Request::Delete { names } if names.len() > 1);
        let only_if = |is: bool, likely: f64| if is { likely } else { 0.0 };
        let mut left = chance.fraction();
        let mut happens = |likely: f64| {
            left -= likely;
            left < 0.0
        };
        let course = if happens(self.lost) {
            Course::Lost
        } else if happens(self.answer_lost) {
            Course::AnswerLost
        } else if happens(self.late) {
            there = between(patience, self.late_at_most, chance);
            Course::Plain
        } else if happens(self.doubled) {
            Course::Doubled(self.delay.draw(chance))
        } else if happens(self.refused) {
            let with = [(500, "InternalError"), (503, "SlowDown")][chance.below(2)];
            let done =
                [Done::Never, Done::Before, Done::After(self.straggle(there + back, chance))];
            Course::Refused(with, done[chance.below(3)])
        } else if happens(only_if(request.is_conditional(), self.conflict)) {
            let done = [Done::Never, Done::Before][chance.below(2)];
            Course::Refused((409, "ConditionalRequestConflict"), done)
        } else if happens(only_if(many, self.in_parts)) {
            let (at, pause) = (chance.fraction(), self.delay.draw(chance));
            Course::InParts { at, pause, whole: chance.below(2) == 0 }
        } else {
            Course::Plain
        };
        Fate { there, back, cut_short, course }
    }

    /// How long after its answer a request is carried out that was answered after so long.
    fn straggle(&self, answered: Duration, chance: &Env) -> Duration {
        between(Duration::ZERO, self.late_at_most.saturating_sub(answered), chance)
    }

    pub(super) fn denies(&self, kind: RequestKind, name: &str) -> bool {
        self.denied.iter().any(|denied| denied.meets(kind, name))
    }
}

fn between(least: Duration, most: Duration, chance: &Env) -> Duration {
    let share = chance.fraction();
    if most <= least { most } else { least + (most - least).mul_f64(share) }
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) there: Duration,
    pub(super) back: Duration,
    /// If its process dies before it arrives, it does not.
    pub(super) cut_short: bool,
    pub(super) course: Course,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Course {
    Plain,
    Lost,
    AnswerLost,
    /// The second comes so long after the first.
    Doubled(Duration),
    Refused((u16, &'static str), Done),
    /// The first part of the names, a pause, and then the others, or a refusal.
    InParts {
        at: f64,
        pause: Duration,
        whole: bool,
    },
}

/// Whether a request is carried out that is refused.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    Never,
    Before,
    /// So long after its answer was sent.
    After(Duration),
}
