//! What happened: every call, every change of a store, every question to a queue and its answer.
//!
//! Invariant: entries stand in the order in which they happened, at the true time. Nobody in the simulation sees
//! it; the checker sees nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dfq::clock::Clock;
use dfq::queue::{MoveClaim, Polled, Pushed};
use dfq::{Delivery, Error, ErrorKind, Receipt, TaskKey};

use jiff::Timestamp;

use crate::node::Node;
use crate::seam::{Call, Change};
use crate::world::{Pid, World};

/// Which queue, if there are several.
pub type QueueNo = usize;

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The true time.
    pub at: Duration,
    /// Who did it.
    pub pid: Pid,
    /// What it was.
    pub what: What,
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum What {
    /// A system call or a request, and its answer. Only kept for a timeline.
    Call(String),
    /// A name in a queue's store has changed.
    Changed(QueueNo, Changed),
    /// A verb of a queue was called. The number tells which answer belongs to it.
    Asked(u64, Ask),
    /// It answered.
    Told(u64, Answer),
    /// A handler began to work on a task.
    Began(QueueNo, Receipt),
    /// It ended, or was dropped.
    Ended(QueueNo, Receipt),
    /// A fault, or something that the plan did.
    Happened(Event),
}

/// What the plan does to processes and stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process started, as this.
    Started(String),
    /// A process was killed.
    Killed(Pid),
    /// A process does nothing until this time.
    Stalled(Pid, Duration),
    /// The power of the machine that holds the store failed.
    PowerCut,
    /// The store's clock, or that of this process's machine, was set.
    Jumped(String),
    /// From here on nothing goes wrong any more.
    Calm,
    /// Whatever helps a reader.
    Note(String),
}

/// A change of a name.
#[derive(Clone, PartialEq, Eq)]
pub struct Changed {
    /// The whole name.
    pub name: String,
    /// How.
    pub how: How,
    /// What it has now.
    pub bytes: Arc<[u8]>,
    /// What the store's clock showed.
    pub wall: Timestamp,
}

/// How a name changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is new.
    Created,
    /// It has another content.
    Replaced,
    /// It has gone.
    Removed,
}

/// A question to a queue.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Which queue.
    pub queue: QueueNo,
    /// The verb.
    pub verb: &'static str,
    /// What is pushed.
    pub tasks: Vec<Task>,
    /// Which claims it is about.
    pub receipts: Vec<Receipt>,
    /// Which ids.
    pub ids: Vec<String>,
    /// It is the first poll by one that has just opened the queue, and so knows nothing of its tasks.
    pub first: bool,
    /// What the store's clock showed.
    pub wall: Timestamp,
}

/// A task that is pushed.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its id.
    pub id: Option<String>,
    /// The number in its payload, which no other task has.
    pub n: i64,
    /// It is not to be done at once.
    pub later: bool,
}

/// Its answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// For each task that was pushed.
    Pushed(Vec<Result<Pushed, Refused>>),
    /// What was claimed.
    Claimed(Result<Vec<Claimed>, Refused>),
    /// For each receipt, until when it holds by its owner's own clock, as a true time; and when its owner last looked
    /// for the next lease.
    Alive(Vec<Result<(Duration, Option<Duration>), Refused>>),
    /// One for each.
    Each(Vec<Result<String, Refused>>),
    /// One for all.
    Whole(Result<String, Refused>),
}

/// An error, as far as it matters.
#[derive(Clone, PartialEq, Eq)]
pub struct Refused(pub ErrorKind, pub String);

impl From<&Error> for Refused {
    fn from(error: &Error) -> Self {
        Self(error.kind(), error.to_string())
    }
}

impl fmt::Debug for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.bytes);
        write!(f, "{:?} {} {}", self.how, self.name, text.trim_end())
    }
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0, self.1)
    }
}

/// A task that was handed out.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Which task, and which life.
    pub key: TaskKey,
    /// The number in its payload.
    pub n: i64,
    /// Which push it came from.
    pub push_id: String,
    /// The fencing token.
    pub fence: u64,
    /// The proof.
    pub receipt: Receipt,
    /// Until when it holds by its owner's own clock, as a true time.
    pub alive_until: Duration,
    /// It was claimed to be moved.
    pub moving: bool,
    /// When its owner last looked at each lease of the task, by the end of its name.
    pub looks: BTreeMap<String, Duration>,
}

impl Claimed {
    /// What a delivery says, which holds until this true time.
    pub fn of(delivery: &Delivery, alive_until: Duration, moving: bool) -> Self {
        Self {
            key: delivery.key.clone(),
            n: delivery.payload.integer_member("n").unwrap_or(-1),
            push_id: delivery.meta.push_id.clone(),
            fence: delivery.fence,
            receipt: delivery.receipt.clone(),
            alive_until,
            moving,
            looks: BTreeMap::new(),
        }
    }

    /// All that a poll brought.
    pub fn all(
        polled: &Result<Polled, Error>,
        alive: impl Fn(&Delivery) -> Duration,
    ) -> Result<Vec<Self>, Refused> {
        let polled = polled.as_ref().map_err(Refused::from)?;
        Ok(polled.deliveries.iter().map(|it| Self::of(it, alive(it), false)).collect())
    }

    /// All that was claimed to be moved.
    pub fn to_move(
        claims: &[Result<MoveClaim, Error>],
        alive: impl Fn(&Delivery) -> Duration,
    ) -> Vec<Self> {
        let ours = claims.iter().filter_map(|claim| match claim {
            Ok(MoveClaim::Ours(it)) => Some(Self::of(it, alive(it), true)),
            _ => None,
        });
        ours.collect()
    }
}

/// How often something went wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Processes that were killed, also by a power cut.
    pub killed: u64,
    /// Processes that stood still.
    pub stalled: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Clocks that were set.
    pub jumps: u64,
}

/// What a poll took.
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    /// Who asked.
    pub pid: Pid,
    /// Of which queue.
    pub queue: QueueNo,
    /// When.
    pub asked: Duration,
    /// When it was answered.
    pub told: Duration,
    /// System calls or requests, with those of other verbs at the same time.
    pub calls: u64,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    asked: u64,
    calls: BTreeMap<Pid, u64>,
    polls: Vec<Poll>,
    /// When a process last looked at a task or a lease, or removed something, by its name.
    looks: BTreeMap<(Pid, String), Duration>,
    /// What a process has asked a bucket to remove, and when it first did.
    deletes: BTreeMap<(Pid, String), Duration>,
    /// Who has sent what is to be a task, and when, by its name.
    sent: BTreeMap<String, Vec<(Duration, Pid)>>,
    /// When a process was told what the store's clock shows.
    clock_looks: BTreeMap<Pid, Vec<Duration>>,
    /// Which actor a process is.
    roles: BTreeMap<Pid, usize>,
}

/// The history of one run.
pub struct History {
    world: Arc<World>,
    /// Calls are many, and only a timeline needs them.
    keeps_calls: bool,
    inner: Mutex<Inner>,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({} entries)", self.inner().entries.len())
    }
}

impl History {
    /// An empty one.
    pub fn new(world: &Arc<World>, keeps_calls: bool) -> Arc<Self> {
        Arc::new(Self { world: Arc::clone(world), keeps_calls, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes something that this process did.
    pub fn add(&self, pid: Pid, what: What) {
        let at = self.world.now();
        self.inner().entries.push(Entry { at, pid, what });
    }

    /// Notes what the plan did.
    pub fn happened(&self, event: Event) {
        self.add(Pid::WORLD, What::Happened(event));
    }

    /// Notes a call and its answer.
    pub fn call(&self, pid: Pid, text: impl FnOnce() -> String) {
        *self.inner().calls.entry(pid).or_default() += 1;
        if self.keeps_calls {
            self.add(pid, What::Call(text()));
        }
    }

    /// Notes that a process looked at a task or a lease, or removed something from a bucket.
    pub fn looked(&self, pid: Pid, call: &Call) {
        let is_pending = call.path.starts_with("pending/");
        if call.changes && is_pending && call.path.ends_with("/task.json") && call.verb != "delete"
        {
            let sent = (self.world.now(), pid);
            self.inner().sent.entry(call.path.clone()).or_default().push(sent);
        }
        let looks = !call.changes && is_pending;
        if looks || call.verb == "delete" {
            let (at, mut inner) = (self.world.now(), self.inner());
            // Several can be removed at once.
            for path in call.path.split(' ') {
                inner.looks.insert((pid, path.to_owned()), at);
                if call.verb == "delete" {
                    inner.deletes.entry((pid, path.to_owned())).or_insert(at);
                }
            }
        }
    }

    /// Notes the answer to a call, if it tells what the store's clock shows: the time of a file made for that.
    pub fn answered(&self, pid: Pid, call: &Call) {
        let tells = matches!(call.verb, "file_meta" | "head") && call.path.starts_with("tmp/");
        if tells {
            let at = self.world.now();
            self.inner().clock_looks.entry(pid).or_default().push(at);
        }
    }

    /// What each process has asked a bucket to remove, and when it first did.
    pub fn deletes(&self) -> BTreeMap<(Pid, String), Duration> {
        self.inner().deletes.clone()
    }

    /// Who has asked for a task of that name to be there, from then on.
    pub fn senders(&self, name: &str, since: Duration) -> BTreeSet<Pid> {
        let inner = self.inner();
        let sent = inner.sent.get(name).into_iter().flatten();
        sent.filter(|(at, _)| *at >= since).map(|(_, pid)| *pid).collect()
    }

    /// When each process was told what the store's clock shows.
    pub fn clock_looks(&self) -> BTreeMap<Pid, Vec<Duration>> {
        self.inner().clock_looks.clone()
    }

    /// When a process last looked at each lease in the folder of that name, by their names.
    pub fn looks(&self, pid: Pid, folder: &str) -> BTreeMap<String, Duration> {
        let inner = self.inner();
        let from = (pid, String::new());
        let of = inner.looks.range(from..).take_while(|((of, _), _)| *of == pid);
        let named = of.filter_map(|((_, path), at)| {
            let (dir, file) = path.rsplit_once('/')?;
            (dir.rsplit('/').next() == Some(folder)).then(|| (file.to_owned(), *at))
        });
        named.collect()
    }

    /// When each process last looked at, or removed, what has a name.
    pub fn all_looks(&self) -> BTreeMap<(Pid, String), Duration> {
        self.inner().looks.clone()
    }

    /// Notes which actor a process is.
    pub fn plays(&self, pid: Pid, actor: usize) {
        self.inner().roles.insert(pid, actor);
    }

    /// Which actors the processes are.
    pub fn roles(&self) -> BTreeMap<Pid, usize> {
        self.inner().roles.clone()
    }

    /// Notes a question; answers with its number.
    pub fn asked(&self, pid: Pid, ask: Ask) -> u64 {
        let number = {
            let mut inner = self.inner();
            inner.asked += 1;
            inner.asked
        };
        self.add(pid, What::Asked(number, ask));
        number
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.inner().calls.values().sum()
    }

    /// How many a process has made.
    pub fn calls_of(&self, pid: Pid) -> u64 {
        self.inner().calls.get(&pid).copied().unwrap_or(0)
    }

    /// Notes what a poll took that was asked for then, when its process had made so many calls.
    pub fn polled(&self, pid: Pid, queue: QueueNo, asked: Duration, calls_before: u64) {
        let (told, calls) = (self.world.now(), self.calls_of(pid) - calls_before);
        self.inner().polls.push(Poll { pid, queue, asked, told, calls });
    }

    /// What polls took.
    pub fn polls(&self) -> Vec<Poll> {
        self.inner().polls.clone()
    }

    /// The true time.
    pub fn now(&self) -> Duration {
        self.world.now()
    }

    /// What went wrong.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for entry in &self.inner().entries {
            match &entry.what {
                What::Happened(Event::Killed(_)) => tally.killed += 1,
                What::Happened(Event::Stalled(..)) => tally.stalled += 1,
                What::Happened(Event::PowerCut) => tally.power_cuts += 1,
                What::Happened(Event::Jumped(_)) => tally.jumps += 1,
                _ => {}
            }
        }
        tally
    }

    /// Whether a store has had something of that name.
    pub fn has_been(&self, name: &str) -> bool {
        let is_it = |it: &Entry| matches!(&it.what, What::Changed(_, it) if it.name == name);
        self.inner().entries.iter().any(is_it)
    }

    /// Everything, in order.
    pub fn entries(&self) -> Vec<Entry> {
        self.inner().entries.clone()
    }

    /// The whole history as text, which is the same for the same seed.
    pub fn text(&self) -> String {
        use fmt::Write;
        let mut text = String::new();
        for Entry { at, pid, what } in &self.inner().entries {
            let _ = writeln!(text, "{at:?} {pid} {what:?}");
        }
        text
    }
}

/// Sees the changes of one queue's store.
#[derive(Debug)]
pub struct Witness {
    /// Whose clock is the store's.
    pub server: Arc<Node>,
    /// Which queue's.
    pub queue: QueueNo,
    /// Where they are noted.
    pub history: Arc<History>,
}

impl crate::seam::Witness for Witness {
    fn changed(&self, change: Change<'_>) {
        let (name, how, bytes): (_, _, &[u8]) = match change {
            Change::Created(name, bytes) => (name, How::Created, bytes),
            Change::Replaced(name, bytes) => (name, How::Replaced, bytes),
            Change::Removed(name) => (name, How::Removed, &[]),
        };
        // What has no name yet means nothing.
        if name.starts_with("tmp/") {
            return;
        }
        let changed =
            Changed { name: name.to_owned(), how, bytes: bytes.into(), wall: self.server.wall() };
        let pid = self.history.world.current();
        self.history.add(pid, What::Changed(self.queue, changed));
    }
}
