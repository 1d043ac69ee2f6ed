//! What passes between the models of stores and the rest of the simulation.
//!
//! Invariant: a model of a store decides nothing. What becomes of a call, and when, is decided at its [`Gate`]; what
//! a call has changed is told to a [`Witness`], in the order in which it happened.

use std::fmt;

use rustix::io::Errno;

/// One system call or request of one process, on its way to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is asked for: `link`, `put`.
    pub verb: &'static str,
    /// The name, below the queue's root.
    pub path: String,
    /// Whether it would change anything.
    pub changes: bool,
}

/// What becomes of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Done,
    /// It fails with this, and nothing has changed.
    Failed(Errno),
    /// It is carried out, its answer is lost, and it is made again, as an NFS client does. The second answer counts.
    Repeated,
}

/// Where the calls of one process come out of it: others may run before the call is carried out.
pub trait Gate: Send + Sync + fmt::Debug + 'static {
    /// Waits for the call's turn, and says what becomes of it. A process that was killed in the meantime makes no
    /// further call: it is failed with `OWNERDEAD`.
    fn enter(&self, call: &Call) -> Fate;
    /// Tells how the call was answered, in a few words.
    fn answered(&self, call: &Call, answer: &dyn fmt::Display);
}

/// What has changed in a store, as everybody can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The name has this content now, and had none before.
    Created(&'a str, &'a [u8]),
    /// The name has this content now, and had another before.
    Replaced(&'a str, &'a [u8]),
    /// The name has gone.
    Removed(&'a str),
}

/// Somebody who sees every change of a store when it happens. A folder that is renamed is told file by file.
pub trait Witness: Send + Sync + fmt::Debug + 'static {
    /// It has just happened.
    fn changed(&self, change: Change<'_>);
}
