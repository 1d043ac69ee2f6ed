//! Where the calls of a process come out, and what becomes of them.
//!
//! Invariant: at each call others may come in between. A process that was killed makes no further call, also while
//! what it held is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::bucket::{Luck, Tap};
use crate::history::{Event, History};
use crate::plan::{Spot, Trouble, When};
use crate::seam::{Call, Fate, Gate};
use crate::world::{Pid, World};

/// What goes wrong for one actor, over all its starts.
#[derive(Debug)]
pub struct Troubles {
    state: Mutex<State>,
    /// Folders below which it cannot write.
    refused: Vec<(&'static str, Errno)>,
    /// Nothing goes wrong any more.
    calm: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    calls: u64,
    ahead: Vec<(u64, Trouble)>,
    /// By kinds of calls, and how many there were of each.
    spots: Vec<(When, Trouble)>,
    seen: BTreeMap<Spot, u32>,
    /// What is to happen at the next call.
    at_next: Vec<Trouble>,
    failing: Option<(Errno, u32)>,
}

impl Troubles {
    /// All that the plan has for an actor.
    pub fn new(
        ahead: Vec<(u64, Trouble)>,
        spots: Vec<(When, Trouble)>,
        refused: Vec<(&'static str, Errno)>,
        calm: Arc<AtomicBool>,
    ) -> Arc<Self> {
        let state = Mutex::new(State { ahead, spots, ..State::default() });
        Arc::new(Self { state, refused, calm })
    }

    /// Nothing goes wrong.
    pub fn none() -> Arc<Self> {
        Self::new(Vec::new(), Vec::new(), Vec::new(), Arc::new(AtomicBool::new(true)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// Something is refused for ever.
    pub fn lasts(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The folders below which it cannot write.
    pub fn folders(&self) -> Vec<&'static str> {
        self.refused.iter().map(|(folder, _)| *folder).collect()
    }

    /// How many calls were made.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// What happens at the next call.
    fn next(&self, call: &Call) -> Vec<Trouble> {
        let mut state = self.state();
        let number = state.calls;
        state.calls += 1;
        if self.is_calm() {
            return Vec::new();
        }
        let now = |(at, _): &mut (u64, Trouble)| *at <= number;
        let mut after = Vec::new();
        let mut met: Vec<_> = state.ahead.extract_if(.., now).map(|(_, trouble)| trouble).collect();
        met.append(&mut state.at_next);
        for spot in Spot::all_of(call) {
            let seen = state.seen.entry(spot).or_default();
            let this = (spot, *seen);
            *seen += 1;
            for (when, trouble) in state.spots.extract_if(.., |(when, _)| when.spot() == this) {
                match when {
                    When::Before(..) => met.push(trouble),
                    When::After(..) => after.push(trouble),
                }
            }
        }
        state.at_next = after;
        met
    }

    /// What this call fails with, if it does.
    fn failure(&self, call: &Call) -> Option<Errno> {
        // A name of a task that is being staged is refused where it is to go.
        let below =
            |folder: &str| call.path == folder || call.path.starts_with(&format!("{folder}/"));
        let refused = self.refused.iter().find(|(folder, _)| call.changes && below(folder));
        if let Some((_, errno)) = refused {
            return Some(*errno);
        }
        let mut state = self.state();
        let (errno, left) = state.failing?;
        if self.is_calm() || left == 0 {
            state.failing = None;
            return None;
        }
        // Only what writes needs room.
        if errno == Errno::NOSPC
            && !matches!(call.verb, "write" | "mkdir" | "create" | "link" | "link_file")
        {
            return None;
        }
        state.failing = Some((errno, left - 1));
        Some(errno)
    }
}

/// What a call meets, besides what may end its process.
#[derive(Default)]
struct Met {
    /// Its answer is lost.
    repeated: bool,
    /// How long it takes besides.
    slow: Duration,
    /// How late it arrives.
    late: Option<Duration>,
}

type OnKill = dyn Fn() + Send + Sync;

/// The calls of one process.
pub struct Door {
    /// Where it runs.
    pub world: Arc<World>,
    /// Where its calls are noted.
    pub history: Arc<History>,
    /// Which process it is.
    pub pid: Pid,
    /// What goes wrong for it.
    pub troubles: Arc<Troubles>,
    /// Arranges for its end, and for what comes after.
    pub on_kill: Arc<OnKill>,
    /// Arranges for a power cut.
    pub on_cut: Arc<OnKill>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({})", self.pid)
    }
}

impl Door {
    /// While something is dropped because of a panic, nothing may run in between.
    fn is_closed(&self) -> bool {
        std::thread::panicking() || self.world.is_dead(self.pid)
    }

    /// What the plan has for this call.
    fn meets(&self, call: &Call) -> Met {
        let mut met = Met::default();
        for trouble in self.troubles.next(call) {
            match trouble {
                Trouble::Killed => {
                    (self.on_kill)();
                    self.world.pause_for_ever();
                }
                Trouble::Stalled(lasts) => {
                    let until = self.world.now() + lasts;
                    self.history.happened(Event::Stalled(self.pid, until));
                    self.world.freeze(self.pid, until);
                }
                Trouble::Fails(errno, times) => {
                    self.troubles.state().failing = Some((errno, times))
                }
                Trouble::Repeated => met.repeated = true,
                Trouble::Slow(lasts) => met.slow = met.slow.max(lasts),
                Trouble::Late(after) => met.late = Some(after),
                Trouble::PowerCut => {
                    (self.on_cut)();
                    self.world.pause(self.world.now() + Duration::from_micros(1));
                }
            }
        }
        met
    }

    /// How long a system call takes: mostly little.
    fn delay(&self) -> Duration {
        let draw = self.world.chance();
        let (kind, part) = (draw % 100, (draw >> 8) % 1000);
        match kind {
            0..85 => Duration::from_micros(2 + part / 20),
            85..98 => Duration::from_micros(50 + part * 2),
            _ => Duration::from_micros(2000 + part * 100),
        }
    }
}

impl Gate for Door {
    fn enter(&self, call: &Call) -> Fate {
        if self.is_closed() {
            return Fate::Failed(Errno::OWNERDEAD);
        }
        let Met { repeated, slow, late } = self.meets(call);
        self.world.pause(self.world.now() + self.delay() + slow + late.unwrap_or_default());
        if self.is_closed() {
            return Fate::Failed(Errno::OWNERDEAD);
        }
        match self.troubles.failure(call) {
            Some(errno) => Fate::Failed(errno),
            None if repeated => Fate::Repeated,
            None => Fate::Done,
        }
    }

    fn answered(&self, call: &Call, answer: &dyn fmt::Display) {
        self.history.looked(self.pid, call);
        self.history.answered(self.pid, call);
        self.history.call(self.pid, || format!("{} {} → {answer}", call.verb, call.path));
    }
}

impl Tap for Door {
    fn sent(&self, call: &Call) -> Luck {
        if self.is_closed() {
            return Luck::AsDrawn;
        }
        let Met { repeated, slow, late } = self.meets(call);
        self.world.pause(self.world.now() + slow);
        self.history.looked(self.pid, call);
        let mut state = self.troubles.state();
        match &mut state.failing {
            Some((_, left)) if *left > 0 && !self.troubles.is_calm() => {
                *left -= 1;
                Luck::Lost
            }
            _ if repeated => Luck::AnswerLost,
            _ if late.is_some() => Luck::Late(late.unwrap_or_default()),
            _ => Luck::AsDrawn,
        }
    }

    fn answered(&self, call: &Call, answer: &str) {
        self.history.answered(self.pid, call);
        self.history.call(self.pid, || format!("{} {} → {answer}", call.verb, call.path));
    }

    fn is_dead(&self) -> bool {
        self.world.is_dead(self.pid)
    }
}
