//! What can go wrong, sorted by what the caller should do about it.

use std::fmt;

/// The result of anything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do. Every kind has one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong (an id that is too long, a lease of no length). Correct it; trying
    /// again as it is cannot help.
    Invalid,
    /// There is no such queue or task. Check the name.
    NotFound,
    /// Somebody else has this task now, or its lease ran out. Stop working on it and drop the
    /// result: the task will be, or is being, done again.
    ClaimLost,
    /// The task was finished already, by somebody else or by an operator. Stop, and drop the result.
    AlreadyCompleted,
    /// This provider cannot do that. Use another one, or do without.
    Unsupported,
    /// The store failed or did not answer; nothing was lost. Try again later.
    Unavailable,
    /// No room left on the store; nothing was lost. Make room, then try again.
    Full,
    /// The store says that we may not. Fix the permissions.
    Denied,
    /// The queue was written by a newer dfq, or in a way that this one must not touch. Upgrade.
    Incompatible,
    /// Something in the tree is not what it should be. Look at the path in the message.
    Damaged,
    /// The store is known not to keep what a queue rests on; two workers could do the same task. Use
    /// another one, or say that this does not matter
    /// ([`OpenOptions::allow_unsafe`](crate::OpenOptions::allow_unsafe)).
    Unsafe,
}

/// An error: its [kind](ErrorKind), and one sentence that says what happened and to what.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    /// Trying the same call again soon may help.
    passing: bool,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), passing: false }
    }

    /// Says that the same call may succeed if it is made again soon. A store says this of a single call, for
    /// [`Retrying`](crate::store::retrying::Retrying).
    #[must_use]
    pub fn passing(mut self) -> Self {
        self.passing = true;
        self
    }

    /// Whether the same call may succeed if it is made again soon.
    pub fn is_passing(&self) -> bool {
        self.passing
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Puts `context` in front of the message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn damaged(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn claim_lost(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ClaimLost, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}

/// What cannot fail has no error; see [`open`](crate::open).
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// The error for an address whose provider was not built.
pub(crate) fn left_out(address: &dyn std::fmt::Display, feature: &str) -> Error {
    let message = format!(
        "{address}: this program was built without what it takes; add the feature '{feature}' to its \
         dependency dfq"
    );
    Error::new(ErrorKind::Unsupported, message)
}
