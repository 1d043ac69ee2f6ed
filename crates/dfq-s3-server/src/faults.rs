//! Faults: which there are, and the choice among them. All chance comes from one seeded generator
//! that gives every request the same number of draws, so the same seed and the same sequence of
//! requests meet the same faults, and changing one rate does not move the others.

use std::time::Duration;

use crate::request::RequestInfo;

/// One thing that goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed before the request is executed.
    LoseRequest,
    /// The request is executed, then the connection is closed without an answer.
    LoseAnswer,
    /// 409 ConditionalRequestConflict, not executed.
    Conflict,
    /// 409 ConditionalRequestConflict, executed all the same.
    ConflictExecuted,
    /// 412 PreconditionFailed, though this very request made it so: something on the way sent it
    /// twice.
    PreconditionExecuted,
    /// 500 InternalError, not executed.
    Error,
    /// 500 InternalError, executed all the same.
    ErrorExecuted,
    /// 503 SlowDown, not executed.
    SlowDown,
    /// 503 SlowDown, executed all the same.
    SlowDownExecuted,
    /// Half of a body of a GET, then the connection is closed.
    CutBody,
    /// Half of a body of a GET, then nothing for this long, then the connection is closed.
    StallBody(Duration),
    /// The request waits this long before it is executed, even if the client has gone by then.
    Delay(Duration),
    /// The request is executed at once, and its answer waits this long.
    DelayAnswer(Duration),
    /// A listing shows what was there this long ago (at most a minute and 10,000 changes).
    StaleList(Duration),
}

impl Fault {
    /// Its name, as the command line and the meter have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LoseRequest => "lose-request",
            Self::LoseAnswer => "lose-answer",
            Self::Conflict => "conflict",
            Self::ConflictExecuted => "conflict-executed",
            Self::PreconditionExecuted => "precondition-executed",
            Self::Error => "error",
            Self::ErrorExecuted => "error-executed",
            Self::SlowDown => "slow-down",
            Self::SlowDownExecuted => "slow-down-executed",
            Self::CutBody => "cut-body",
            Self::StallBody(_) => "stall-body",
            Self::Delay(_) => "delay",
            Self::DelayAnswer(_) => "delay-answer",
            Self::StaleList(_) => "stale-list",
        }
    }
}

/// How often what goes wrong: rates are probabilities per request, from 0 to 1.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    /// Where all chance starts.
    pub seed: u64,
    /// [`Fault::LoseRequest`]
    pub lose_request: f64,
    /// [`Fault::LoseAnswer`]
    pub lose_answer: f64,
    /// [`Fault::Conflict`], of conditional PUTs
    pub conflict: f64,
    /// [`Fault::ConflictExecuted`], of conditional PUTs
    pub conflict_executed: f64,
    /// [`Fault::Error`]
    pub error: f64,
    /// [`Fault::ErrorExecuted`]
    pub error_executed: f64,
    /// [`Fault::SlowDown`]
    pub slow_down: f64,
    /// [`Fault::SlowDownExecuted`]
    pub slow_down_executed: f64,
    /// [`Fault::CutBody`], of GETs of objects
    pub cut_body: f64,
    /// Every request takes this much longer.
    pub latency: Duration,
    /// And, at random, up to this much longer still.
    pub jitter: Duration,
    /// Every listing is behind by a random time of up to this.
    pub list_lag: Duration,
}

impl Faults {
    /// The names that [`Faults::set`] knows.
    pub const NAMES: [&'static str; 9] = [
        "lose-request",
        "lose-answer",
        "conflict",
        "conflict-executed",
        "error",
        "error-executed",
        "slow-down",
        "slow-down-executed",
        "cut-body",
    ];

    /// Sets the rate of one fault by its name; false if there is none of that name.
    #[must_use]
    pub fn set(&mut self, name: &str, rate: f64) -> bool {
        let slot = match name {
            "lose-request" => &mut self.lose_request,
            "lose-answer" => &mut self.lose_answer,
            "conflict" => &mut self.conflict,
            "conflict-executed" => &mut self.conflict_executed,
            "error" => &mut self.error,
            "error-executed" => &mut self.error_executed,
            "slow-down" => &mut self.slow_down,
            "slow-down-executed" => &mut self.slow_down_executed,
            "cut-body" => &mut self.cut_body,
            _ => return false,
        };
        *slot = rate;
        true
    }
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) fault: Option<Fault>,
    /// How long it takes before it is executed.
    pub(crate) delay: Duration,
    /// How far behind a listing is.
    pub(crate) list_age: Duration,
}

/// The generator, and the rates it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Dice {
    faults: Faults,
    state: u64,
}

impl Dice {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { state: faults.seed, faults }
    }

    /// From 0 up to, not including, 1. SplitMix64: small, and the same for ever.
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Chooses for one request. Every draw is made every time, whatever comes of it.
    pub(crate) fn roll(&mut self, info: &RequestInfo) -> Plan {
        let conditional = info.is_conditional_put();
        let faults = self.faults.clone();
        let candidates = [
            (Fault::LoseRequest, faults.lose_request, true),
            (Fault::LoseAnswer, faults.lose_answer, true),
            (Fault::Conflict, faults.conflict, conditional),
            (Fault::ConflictExecuted, faults.conflict_executed, conditional),
            (Fault::Error, faults.error, true),
            (Fault::ErrorExecuted, faults.error_executed, true),
            (Fault::SlowDown, faults.slow_down, true),
            (Fault::SlowDownExecuted, faults.slow_down_executed, true),
            (Fault::CutBody, faults.cut_body, info.op == "GetObject"),
        ];
        let mut fault = None;
        for (candidate, rate, applies) in candidates {
            if self.draw() < rate && applies && fault.is_none() {
                fault = Some(candidate);
            }
        }
        let delay = faults.latency + faults.jitter.mul_f64(self.draw());
        let list_age = faults.list_lag.mul_f64(self.draw());
        Plan { fault, delay, list_age }
    }
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, Method, Uri};

    use super::*;

    fn plans(faults: &Faults, count: usize) -> Vec<Plan> {
        let uri = Uri::from_static("/bucket/key");
        let info = RequestInfo::new(&Method::GET, &uri, &HeaderMap::new());
        let mut dice = Dice::new(faults.clone());
        (0..count).map(|_| dice.roll(&info)).collect()
    }

    #[test]
    fn the_same_seed_rolls_the_same() {
        let jitter = Duration::from_secs(1);
        let faults = Faults { seed: 7, error: 0.2, lose_answer: 0.2, jitter, ..Faults::default() };
        assert_eq!(plans(&faults, 500), plans(&faults, 500));
        assert_ne!(plans(&faults, 500), plans(&Faults { seed: 8, ..faults }, 500));
    }

    #[test]
    fn one_rate_does_not_move_another() {
        let some = Faults { seed: 7, error: 0.2, ..Faults::default() };
        let more = Faults { slow_down: 0.5, ..some.clone() };
        let errors = |faults| {
            let plans = plans(faults, 500);
            plans.iter().map(|plan| plan.fault == Some(Fault::Error)).collect::<Vec<_>>()
        };
        assert_eq!(errors(&some), errors(&more));
    }

    #[test]
    fn rates_are_about_right_and_every_name_sets_one() {
        for name in Faults::NAMES {
            let mut faults = Faults { seed: 3, ..Faults::default() };
            assert!(faults.set(name, 0.25), "{name}");
            let hits = plans(&faults, 2000).iter().filter(|plan| plan.fault.is_some()).count();
            let wanted = if name.starts_with("conflict") { 0..=0 } else { 400..=600 };
            assert!(wanted.contains(&hits), "{name}: {hits}");
        }
        assert!(!Faults::default().set("no-such", 0.5));
    }
}
