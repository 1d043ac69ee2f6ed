//! Who a task is: an id that the caller chose or that was made for it, and which of its lives.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::layout;

/// The longest an id may be once encoded for use in a file name.
pub const MAX_ENCODED_ID_BYTES: usize = 200;

/// Which life of a task id: pushed again after it finished, an id starts its next generation.
pub type Generation = u32;

/// A task's id: any non-empty text that takes at most [`MAX_ENCODED_ID_BYTES`] in a file name.
///
/// ```
/// use dfq::TaskId;
/// assert!(TaskId::new("order 17/päivä").is_ok());
/// assert!(TaskId::new("").is_err());
/// assert!(TaskId::new("x".repeat(201)).is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Arc<str>);

impl TaskId {
    /// Checks and wraps an id.
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        if id.is_empty() {
            return Err(Error::invalid("a task id must not be empty"));
        }
        let encoded = layout::encoded_len(&id);
        if encoded > MAX_ENCODED_ID_BYTES {
            let start: String = id.chars().take(24).collect();
            return Err(Error::invalid(format!(
                "task id '{}…' takes {encoded} bytes in a file name, the limit is \
                 {MAX_ENCODED_ID_BYTES}; use a shorter id or the payload's hash",
                start.escape_debug()
            )));
        }
        Ok(Self(id.into()))
    }

    /// The id as the caller gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::str::FromStr for TaskId {
    type Err = Error;
    fn from_str(id: &str) -> Result<Self> {
        Self::new(id)
    }
}

/// One life of one task: what names in the tree are made of. A key is used once and never again.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskKey {
    id: TaskId,
    generation: Generation,
    /// What decides the shard: every name of the task needs it, and a hash is not for nothing.
    hash_byte: u8,
    /// A folder that some other program named in its own way (the seeds do not encode). Its name is
    /// then the id itself, kept as it is.
    verbatim: bool,
}

impl TaskKey {
    /// The `generation`-th life of `id`; the first is 1.
    pub fn new(id: TaskId, generation: Generation) -> Self {
        debug_assert!(generation >= 1, "generations count from one");
        Self { hash_byte: layout::hash_byte(&id), id, generation, verbatim: false }
    }

    pub(crate) fn verbatim(id: TaskId) -> Self {
        Self { hash_byte: layout::hash_byte(&id), id, generation: 1, verbatim: true }
    }

    /// The id.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// Which life.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub(crate) fn hash_byte(&self) -> u8 {
        self.hash_byte
    }

    pub(crate) fn is_verbatim(&self) -> bool {
        self.verbatim
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation {
            1 => write!(f, "{}", self.id),
            g => write!(f, "{} (life {g})", self.id),
        }
    }
}

impl fmt::Debug for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{}", self.id, self.generation)
    }
}
