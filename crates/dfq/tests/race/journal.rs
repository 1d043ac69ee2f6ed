//! What a worker writes down, and how the parent reads it.
//!
//! A line an event, and a write a line (or a few lines): a process can be killed between two writes
//! but hardly within one, and if so only its last line is cut short.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;

use dfq::{Error, ErrorKind, Receipt};

/// What can be done with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Ack,
    Nack,
    Release,
    Beat,
}

const VERBS: [(Verb, &str); 4] =
    [(Verb::Ack, "ack"), (Verb::Nack, "nack"), (Verb::Release, "release"), (Verb::Beat, "beat")];

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = VERBS.iter().find(|(verb, _)| verb == self).map(|(_, word)| *word);
        f.write_str(word.unwrap_or_default())
    }
}

impl FromStr for Verb {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        VERBS.iter().find(|(_, word)| *word == text).map(|(verb, _)| *verb).ok_or(())
    }
}

/// What the queue said. All but the first two of the errors is trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done; a heartbeat's answer is for how many nanoseconds the lease still holds.
    Ok(u64),
    ClaimLost,
    AlreadyCompleted,
    /// The store did not answer: it may have been done, or not.
    Unknown,
    Other(String),
}

/// On a disk nothing is ever unanswered.
pub(crate) fn unknowns_are_fine() -> bool {
    std::env::var_os(crate::site::ENDPOINT).is_some()
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::ClaimLost => Self::ClaimLost,
            ErrorKind::AlreadyCompleted => Self::AlreadyCompleted,
            ErrorKind::Unavailable if unknowns_are_fine() => Self::Unknown,
            _ => Self::Other(format!("{error:?}")),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok(left) => write!(f, "ok {left}"),
            Self::ClaimLost => write!(f, "lost"),
            Self::AlreadyCompleted => write!(f, "completed"),
            Self::Unknown => write!(f, "unknown"),
            Self::Other(error) => write!(f, "other {}", error.escape_debug()),
        }
    }
}

/// One line. Times are nanoseconds on the clock that all processes share.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A poll that lasted from `from` to `to` handed this out for `lease` nanoseconds.
    Claim { receipt: Receipt, fence: u64, from: u64, to: u64, lease: u64 },
    /// About to ask.
    Begin { verb: Verb, receipt: Receipt, from: u64 },
    /// The answer.
    End { verb: Verb, receipt: Receipt, from: u64, to: u64, answer: Answer },
    /// About to push the next life of a task that has finished.
    Again { receipt: Receipt },
    /// That push was answered: this life exists.
    Pushed { id: String, generation: u32 },
    /// The queue answered what it never should.
    Trouble(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { receipt, fence, from, to, lease } => {
                writeln!(f, "claim {receipt} {fence} {from} {to} {lease}")
            }
            Self::Begin { verb, receipt, from } => writeln!(f, "begin {verb} {receipt} {from}"),
            Self::End { verb, receipt, from, to, answer } => {
                writeln!(f, "end {verb} {receipt} {from} {to} {answer}")
            }
            Self::Again { receipt } => writeln!(f, "again {receipt}"),
            Self::Pushed { id, generation } => writeln!(f, "pushed {id} {generation}"),
            Self::Trouble(what) => writeln!(f, "trouble {}", what.escape_debug()),
        }
    }
}

fn parse(line: &str) -> Option<Event> {
    let (word, rest) = line.split_once(' ')?;
    if word == "trouble" {
        return Some(Event::Trouble(rest.to_owned()));
    }
    let mut parts = rest.splitn(if word == "end" { 5 } else { 6 }, ' ');
    let mut next = || parts.next();
    let event = match word {
        "claim" => Event::Claim {
            receipt: next()?.parse().ok()?,
            fence: next()?.parse().ok()?,
            from: next()?.parse().ok()?,
            to: next()?.parse().ok()?,
            lease: next()?.parse().ok()?,
        },
        "begin" => Event::Begin {
            verb: next()?.parse().ok()?,
            receipt: next()?.parse().ok()?,
            from: next()?.parse().ok()?,
        },
        "end" => Event::End {
            verb: next()?.parse().ok()?,
            receipt: next()?.parse().ok()?,
            from: next()?.parse().ok()?,
            to: next()?.parse().ok()?,
            answer: match next()?.split_once(' ') {
                Some(("ok", left)) => Answer::Ok(left.parse().ok()?),
                Some((_, error)) => Answer::Other(error.to_owned()),
                None if rest.ends_with(" lost") => Answer::ClaimLost,
                None if rest.ends_with(" completed") => Answer::AlreadyCompleted,
                None if rest.ends_with(" unknown") => Answer::Unknown,
                None => return None,
            },
        },
        "again" => Event::Again { receipt: next()?.parse().ok()? },
        "pushed" => Event::Pushed { id: next()?.to_owned(), generation: next()?.parse().ok()? },
        _ => return None,
    };
    Some(event)
}

/// What a race must have seen, so that a pass means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    Takeover,
    LostAck,
    Heartbeat,
    GivenBack,
    NextLife,
}

impl Incident {
    pub(crate) fn all() -> Vec<Self> {
        vec![Self::Takeover, Self::LostAck, Self::Heartbeat, Self::GivenBack, Self::NextLife]
    }

    pub(crate) fn is(self, event: &Event) -> bool {
        match (self, event) {
            (Self::Takeover, Event::Claim { receipt, .. }) => receipt.attempt() > 1,
            (Self::NextLife, Event::Claim { receipt, .. }) => receipt.key().generation() > 1,
            (Self::LostAck, Event::End { verb: Verb::Ack, answer, .. }) => {
                matches!(answer, Answer::ClaimLost | Answer::AlreadyCompleted)
            }
            (Self::Heartbeat, Event::End { verb: Verb::Beat, answer: Answer::Ok(_), .. }) => true,
            (Self::GivenBack, Event::End { verb: Verb::Nack | Verb::Release, answer, .. }) => {
                matches!(answer, Answer::Ok(_))
            }
            _ => false,
        }
    }
}

/// A worker's account, being written.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        File::options().append(true).create_new(true).open(path).map(Self)
    }

    /// Writes events down, all in one write.
    pub(crate) fn note<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        let lines: String = events.into_iter().map(Event::to_string).collect();
        if !lines.is_empty() {
            self.0.write_all(lines.as_bytes()).expect("the journal can be written");
        }
    }
}

/// Reads a worker's account. A last line that was cut short is left out.
pub(crate) fn read(path: &Path) -> Result<Vec<Event>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let event = |line| parse(line).ok_or_else(|| format!("{}: '{line}'", path.display()));
    whole.lines().map(event).collect()
}

/// Whether the last thing that a worker wrote down is that it is about to ask the queue something.
pub(crate) fn in_a_call(path: &Path) -> bool {
    let last = || {
        let file = File::open(path).ok()?;
        let mut end = vec![0; 200];
        let read = file.read_at(&mut end, file.metadata().ok()?.len().saturating_sub(200)).ok()?;
        let line = end[..read].strip_suffix(b"\n")?.rsplit(|byte| *byte == b'\n').next()?;
        Some(line.starts_with(b"begin"))
    };
    last().unwrap_or(false)
}
