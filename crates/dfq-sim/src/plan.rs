//! What is to happen in a run: who does what, on which store, and what goes wrong.
//!
//! Invariant: a plan is plain data, and a run is a function of its plan. So a plan that fails can be made smaller,
//! part by part.

mod aimed;
mod aims;
mod drawn;
mod spots;
mod staged;

pub use drawn::On;
pub use spots::{Spot, When};

use std::time::Duration;

use jiff::SignedDuration;
use rustix::io::Errno;

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Decides what comes first, how long calls take, and all chance in the library.
    pub seed: u64,
    /// Where the queue is.
    pub store: Store,
    /// How long a claim holds.
    pub lease: Duration,
    /// Failures, and lost leases, that end a task.
    pub max_attempts: u32,
    /// See above.
    pub max_lost: u32,
    /// The wait after the first failure.
    pub backoff: Duration,
    /// The seeds' layout.
    pub flat: bool,
    /// The queues are there before anybody comes. Else whoever comes first makes them.
    pub made: bool,
    /// The machines. The first one holds the directory, or is the bucket's server.
    pub hosts: Vec<Host>,
    /// Who takes part.
    pub actors: Vec<Actor>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// Where the queue is.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// A directory.
    Disk(DiskKind),
    /// A bucket.
    Bucket(BucketKind),
}

/// What kind of directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskKind {
    /// How far apart modification times are.
    pub tick: Duration,
    /// All but the first machine have mounted it from there, and what they know of names may be this old.
    pub nfs: Option<Duration>,
    /// It has `O_TMPFILE`.
    pub unnamed: bool,
    /// It has hard links.
    pub links: bool,
    /// Room, in bytes.
    pub room: Option<u64>,
    /// A power cut keeps the changes of names in order, as a journal does.
    pub journal: bool,
}

/// How the network to the bucket is: how many of a thousand requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketKind {
    /// Never arrive.
    pub lost: u32,
    /// Are carried out, and the answer is lost.
    pub unanswered: u32,
    /// Are carried out after the one who sent them has given up.
    pub late: u32,
    /// Are carried out twice.
    pub doubled: u32,
    /// Are answered 409 or 5xx, carried out or not.
    pub refused: u32,
    /// A listing may show names as they were so long ago.
    pub listing_lag: Duration,
}

/// A machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// How many millionths its clocks are fast.
    pub drift: i64,
    /// How far its calendar is ahead.
    pub ahead: SignedDuration,
}

/// A process that does one thing after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Actor {
    /// On which machine.
    pub host: usize,
    /// When it starts.
    pub starts: Duration,
    /// What it does.
    pub steps: Vec<Step>,
    /// After a crash it starts again, with the step at which it was.
    pub restarts: bool,
}

/// Something that a process does.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing.
    Wait(Duration),
    /// Pushes tasks of these ids.
    Push {
        /// Which ids.
        ids: Vec<u8>,
        /// A new life if the last one has ended.
        again: bool,
        /// Not to be done before that.
        delay: Option<Duration>,
    },
    /// Is a worker for so long.
    Work(Work),
    /// Uses the verbs as a program of one's own does.
    Pull(Pull),
    /// Starts a failed task again.
    Retry(u8),
    /// Ends a task.
    Cancel(u8),
    /// Takes a task from who has it.
    Unlock(u8),
    /// Stops all claims.
    Pause,
    /// Lets them go on.
    Resume,
    /// Removes old records.
    Purge {
        /// Completed ones; else failed ones.
        completed: bool,
        /// How old they must be.
        older_than: Duration,
    },
    /// Brings all tasks to the other queue, or back.
    Transfer {
        /// They do not stay.
        moves: bool,
        /// From the other queue to the first.
        back: bool,
    },
    /// Looks for what should not be there.
    Check {
        /// And mends it.
        repair: bool,
    },
    /// Removes what killed processes left.
    Tidy,
    /// Looks at everything, and changes nothing.
    Look,
    /// Opens the queue anew, and so forgets all that it knows of tasks.
    Reopen,
    /// Somebody writes what is no lease, or no task, over one that is there.
    Spoil {
        /// Whose.
        id: u8,
        /// Its last lease; else its task.
        lease: bool,
        /// As if the writer had been cut short.
        torn: bool,
    },
    /// The power of the machine that holds the directory fails, now.
    Cut,
}

/// How a worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// For how long. At the end it is stopped.
    pub lasts: Duration,
    /// How many tasks at once.
    pub slots: usize,
    /// How long its handlers take at the most.
    pub busy: Duration,
    /// Of a hundred tasks, so many fail; half as many are hopeless, and half as many are given back.
    pub fails: u32,
    /// It works on the other queue.
    pub elsewhere: bool,
}

/// How a program of one's own uses the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// How many tasks it asks for.
    pub max: usize,
    /// How often.
    pub rounds: u32,
    /// How long it keeps each lot, perhaps longer than its leases.
    pub keeps: Duration,
    /// It renews its leases meanwhile.
    pub renews: bool,
    /// What it says of them in the end.
    pub says: Says,
}

/// What a program of one's own says of the tasks that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// They are done.
    Done,
    /// The same, and once more.
    DoneTwice,
    /// They failed.
    Failed,
    /// They are given back.
    Back,
    /// Nothing.
    Nothing,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process, when it makes this call, counted over all its starts.
    Process(usize, u64, Trouble),
    /// A process, at a call of a certain kind.
    At(usize, When, Trouble),
    /// The power of the machine that holds the directory fails.
    PowerCut(Duration),
    /// The calendar of a machine is set, at a time.
    Jump(usize, Duration, SignedDuration),
    /// A machine sleeps from one time on, for so long.
    Suspend(usize, Duration, Duration),
    /// A process may not write below a folder, or cannot; from the start, and for ever.
    Refused(usize, &'static str, Errno),
}

/// What happens to a process at a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// It is killed before the call.
    Killed,
    /// It does nothing for so long.
    Stalled(Duration),
    /// So many calls fail with this, beginning with this one. In a bucket: are lost.
    Fails(Errno, u32),
    /// The call's answer is lost, and it is made again, as NFS does.
    Repeated,
    /// This call takes so long. The rest of the process goes on.
    Slow(Duration),
    /// The request arrives so long after it was sent, when nobody waits for its answer. On a disk: as above.
    Late(Duration),
    /// The power of the machine that holds the directory fails before the call.
    PowerCut,
}
