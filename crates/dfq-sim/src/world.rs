//! The world: virtual time, and everything that runs in it.
//!
//! Invariant: one thing runs at a time, and what runs next is decided by virtual time and by the world's seed alone.
//! Everything that runs is a coroutine with a stack of its own, so that a system call deep in the library can stop
//! and let others come in between. No lock of the world is held while a coroutine runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dfq::clock::Work;
use generator::{Generator, Gn};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// In machine words. The library's verbs in a debug build, with room.
const STACK: usize = 64 * 1024;

/// How far apart two things that become ready at the same moment may come, so that none always comes first.
const JITTER: u64 = 20_000;

/// A process of the simulation, or the world itself: the network, the one who starts processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub u32);

impl Pid {
    /// What belongs to no process, and never dies.
    pub const WORLD: Self = Self(0);
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// Why a coroutine stops for now.
enum Pause {
    /// Until this time.
    Until(Duration),
    /// Until its waker is called.
    Asleep,
    /// The work is done, and the coroutine may be given other work.
    Idle,
}

type Act = Box<dyn FnOnce(&Arc<World>) + Send>;

/// What happens at a time.
enum Item {
    Resume(u64),
    Fire(Arc<Mutex<Waker>>),
    Do(Act),
}

/// Work for a coroutine, and whom it wakes.
type Slot = Arc<Mutex<Option<(Work, Waker)>>>;

/// A stack, and what runs on it.
struct Body {
    code: Generator<'static, (), Pause>,
    slot: Slot,
}

thread_local! {
    /// Bodies without work. To make a stack takes several system calls, and each verb on a disk has one.
    static IDLE: RefCell<Vec<Body>> = const { RefCell::new(Vec::new()) };
}

/// No more than that many wait for work.
const MOST_IDLE: usize = 64;

impl Body {
    fn for_work(work: Work, waker: Waker) -> Self {
        let body = IDLE.with_borrow_mut(Vec::pop).unwrap_or_else(Self::new);
        *lock(&body.slot) = Some((work, waker));
        body
    }

    #[allow(deprecated, reason = "as in `World::pause`")]
    fn new() -> Self {
        let slot = Slot::default();
        let within = Arc::clone(&slot);
        let code = Gn::new_opt(STACK, move || {
            loop {
                let given = lock(&within).take();
                if let Some((work, waker)) = given {
                    drive(work, &waker);
                }
                generator::yield_with(Pause::Idle);
            }
        });
        Self { code, slot }
    }

    /// Back among those without work.
    fn rest(self) {
        IDLE.with_borrow_mut(|idle| {
            if idle.len() < MOST_IDLE {
                idle.push(self);
            }
        });
    }
}

/// Taken by whoever ends a coroutine that has not come to its end.
static ENDING: Mutex<()> = Mutex::new(());

impl Drop for Body {
    /// A coroutine is ended by a panic. The crate silences that by taking the panic hook of the whole program away for
    /// a moment: if two threads did so at once, it might never come back.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _alone = lock(&ENDING);
            self.code.cancel();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Coroutine {
    pid: Pid,
    /// Out while it runs.
    body: Option<Body>,
    /// It is in the agenda.
    due: bool,
    /// Woken since it last began to poll.
    woken: bool,
    /// It waits to be woken, and not for the end of a call.
    asleep: bool,
}

#[derive(Default)]
struct Process {
    dead: bool,
    frozen_until: Duration,
}

struct State {
    now: Duration,
    /// By time, then by chance, then by order.
    agenda: BTreeMap<(Duration, u64, u64), Item>,
    coroutines: BTreeMap<u64, Coroutine>,
    processes: Vec<Process>,
    chance: StdRng,
    /// Whose coroutine runs now.
    current: Pid,
    count: u64,
    steps: u64,
}

impl State {
    fn add(&mut self, at: Duration, item: Item) {
        self.count += 1;
        let key = (at.max(self.now), self.chance.next_u64(), self.count);
        self.agenda.insert(key, item);
    }

    fn wake(&mut self, id: u64) {
        let jitter = Duration::from_nanos(self.chance.next_u64() % JITTER);
        let Some(coroutine) = self.coroutines.get_mut(&id) else { return };
        coroutine.woken = true;
        // One that is in the middle of a call finds out when it has come to the end of that.
        if coroutine.asleep && !coroutine.due {
            coroutine.due = true;
            self.add(self.now + jitter, Item::Resume(id));
        }
    }
}

/// How a run of the world ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// What was waited for has happened.
    Done,
    /// The time was over first.
    TimeUp,
    /// Too much happened first: something goes round in circles.
    StepsUp,
    /// Nothing is left that could happen.
    Still,
}

/// Virtual time and all that runs in it.
pub struct World {
    state: Mutex<State>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World at {:?}", self.now())
    }
}

impl World {
    /// A world at time zero, in which this seed decides what comes first.
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                now: Duration::ZERO,
                agenda: BTreeMap::new(),
                coroutines: BTreeMap::new(),
                processes: vec![Process::default()],
                chance: StdRng::seed_from_u64(seed),
                current: Pid::WORLD,
                count: 0,
                steps: 0,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The true time, which nobody in the simulation can see.
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// How often something was let run.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// 64 bits that the seed decides.
    pub fn chance(&self) -> u64 {
        self.state().chance.next_u64()
    }

    /// Whose work runs now.
    pub fn current(&self) -> Pid {
        self.state().current
    }

    /// A new process.
    pub fn start_process(&self) -> Pid {
        let mut state = self.state();
        state.processes.push(Process::default());
        Pid(u32::try_from(state.processes.len() - 1).unwrap_or(u32::MAX))
    }

    /// Whether a process was killed.
    pub fn is_dead(&self, pid: Pid) -> bool {
        self.state().processes[pid.0 as usize].dead
    }

    /// Starts work in a process.
    pub fn spawn(self: &Arc<Self>, pid: Pid, work: Work) {
        let mut state = self.state();
        if state.processes[pid.0 as usize].dead {
            return;
        }
        state.count += 1;
        let id = state.count;
        let wakeup = Arc::new(Wakeup { world: Arc::downgrade(self), id });
        let body = Body::for_work(work, Waker::from(wakeup));
        let coroutine = Coroutine { pid, body: Some(body), due: false, woken: false, asleep: true };
        state.coroutines.insert(id, coroutine);
        state.wake(id);
    }

    /// Lets others run until this time. Outside a coroutine nothing happens.
    #[allow(
        deprecated,
        reason = "the other form hands down a scope, which a system call has no way to get"
    )]
    pub fn pause(&self, until: Duration) {
        if generator::is_generator() {
            generator::yield_with(Pause::Until(until));
        }
    }

    /// Never comes back, unless the process is killed: then it unwinds.
    #[allow(deprecated, reason = "as above")]
    pub fn pause_for_ever(&self) {
        while generator::is_generator() {
            generator::yield_with(Pause::Asleep);
        }
    }

    /// Completes at this time.
    pub fn at(self: &Arc<Self>, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        Timer { world: Arc::clone(self), time, alarm: None }
    }

    /// Does something at this time, outside every process.
    pub fn act(&self, at: Duration, act: impl FnOnce(&Arc<Self>) + Send + 'static) {
        self.state().add(at, Item::Do(Box::new(act)));
    }

    /// Nothing in this process runs before that time.
    pub fn freeze(&self, pid: Pid, until: Duration) {
        let process = &mut self.state().processes[pid.0 as usize];
        process.frozen_until = process.frozen_until.max(until);
    }

    /// Ends a process where it is. Not to be called by itself: it would have to end while it runs.
    pub fn kill(&self, pid: Pid) {
        let bodies: Vec<_> = {
            let mut state = self.state();
            state.processes[pid.0 as usize].dead = true;
            let ids: Vec<u64> = state
                .coroutines
                .iter()
                .filter(|(_, it)| it.pid == pid)
                .map(|(id, _)| *id)
                .collect();
            ids.into_iter().filter_map(|id| state.coroutines.remove(&id)).collect()
        };
        // What they hold is dropped here: dead processes' calls do nothing.
        drop(bodies);
    }

    /// Runs until `done`, this time, or so many steps.
    pub fn run(self: &Arc<Self>, until: Duration, steps: u64, done: impl Fn() -> bool) -> Ended {
        let last = self.steps().saturating_add(steps);
        loop {
            if done() {
                return Ended::Done;
            }
            let item = {
                let mut state = self.state();
                let Some(entry) = state.agenda.first_entry() else { return Ended::Still };
                let at = entry.key().0;
                if at > until {
                    state.now = until;
                    return Ended::TimeUp;
                }
                let item = entry.remove();
                state.now = at;
                state.steps += 1;
                if state.steps > last {
                    return Ended::StepsUp;
                }
                item
            };
            match item {
                Item::Fire(waker) => {
                    lock(&waker).wake_by_ref();
                }
                Item::Do(act) => act(self),
                Item::Resume(id) => self.resume(id),
            }
        }
    }

    fn resume(&self, id: u64) {
        let mut body = {
            let mut state = self.state();
            let Some(pid) = state.coroutines.get(&id).map(|it| it.pid) else { return };
            let frozen_until = state.processes[pid.0 as usize].frozen_until;
            if frozen_until > state.now {
                state.add(frozen_until, Item::Resume(id));
                return;
            }
            let Some(coroutine) = state.coroutines.get_mut(&id) else { return };
            coroutine.due = false;
            if std::mem::take(&mut coroutine.asleep) {
                coroutine.woken = false;
            }
            let Some(body) = coroutine.body.take() else { return };
            state.current = pid;
            body
        };
        let pause = body.code.resume();
        let mut state = self.state();
        state.current = Pid::WORLD;
        let Some(coroutine) = state.coroutines.get_mut(&id) else {
            drop(state);
            return drop(body); // its process was killed by what it did
        };
        match pause {
            Some(Pause::Until(time)) => {
                coroutine.body = Some(body);
                coroutine.due = true;
                state.add(time, Item::Resume(id));
            }
            Some(Pause::Asleep) => {
                coroutine.body = Some(body);
                coroutine.asleep = true;
                if coroutine.woken {
                    state.wake(id);
                }
            }
            Some(Pause::Idle) => {
                state.coroutines.remove(&id);
                drop(state);
                body.rest();
            }
            None => {
                state.coroutines.remove(&id);
                drop(state);
                drop(body);
            }
        }
    }

    /// Ends everything. Worlds are full of circles, so that nothing would be dropped otherwise.
    pub fn end(&self) {
        let (bodies, agenda) = {
            let mut state = self.state();
            for process in &mut state.processes {
                process.dead = true;
            }
            (std::mem::take(&mut state.coroutines), std::mem::take(&mut state.agenda))
        };
        drop(bodies);
        drop(agenda);
    }
}

/// Runs work to its end, within a coroutine.
#[allow(deprecated, reason = "as above")]
fn drive(mut work: Work, waker: &Waker) {
    let mut context = Context::from_waker(waker);
    while work.as_mut().poll(&mut context).is_pending() {
        generator::yield_with(Pause::Asleep);
    }
}

struct Wakeup {
    world: Weak<World>,
    id: u64,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        if let Some(world) = self.world.upgrade() {
            world.state().wake(self.id);
        }
    }
}

struct Timer {
    world: Arc<World>,
    time: Duration,
    /// Whom to wake: whoever asked last.
    alarm: Option<Arc<Mutex<Waker>>>,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.world.now() >= self.time {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        if let Some(alarm) = &self.alarm {
            *lock(alarm) = waker;
        } else {
            let alarm = Arc::new(Mutex::new(waker));
            self.world.state().add(self.time, Item::Fire(Arc::clone(&alarm)));
            self.alarm = Some(alarm);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
