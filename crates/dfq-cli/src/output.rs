//! All that is printed: tables for people, JSON lines for programs, times and lengths in few letters.
//!
//! Invariant: what came from a task (ids, errors, payloads) never reaches a terminal with its control
//! characters.

mod cost;
mod rows;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use dfq::queue::{TaskState, TaskView};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use unicode_width::UnicodeWidthStr;

pub(crate) use cost::{cost, dollars};
pub(crate) use rows::Rows;

/// Says something on stderr. That nobody can hear it is no reason to stop, let alone to panic as
/// `eprintln!` does.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
pub(crate) use note;

/// Prints one value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    std::io::stdout().lock().write_all(line.as_bytes())?;
    Ok(())
}

/// Stdout for much: buffered, unless somebody watches. Flush it at the end, or a full disk or a closed
/// pipe goes unnoticed.
pub(crate) fn sink() -> Box<dyn Write> {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        Box::new(stdout)
    } else {
        Box::new(std::io::BufWriter::with_capacity(1 << 16, stdout))
    }
}

/// Prints one line.
pub(crate) fn line(text: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

/// An id to be printed on a line of its own: as it is for programs, without what a terminal would obey
/// for people. One that takes more than a line is told whole by `--json` only.
pub(crate) fn id(id: &str) -> String {
    let plain = std::io::stdout().is_terminal() || id.contains(['\n', '\r']);
    if plain { printable(id) } else { id.to_owned() }
}

/// A table: a head, and rows of as many cells.
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|name| (*name).to_owned()).collect(), rows: Vec::new() }
    }

    /// Gives a column a name that is known only now.
    pub(crate) fn relabel(&mut self, column: usize, name: &str) {
        self.head[column] = printable(name);
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
        debug_assert_eq!(self.rows.last().map(Vec::len), Some(self.head.len()));
    }

    /// The lines of the table. The last column is cut at `width`, if there is one.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let all: Vec<&Vec<String>> = std::iter::once(&self.head).chain(&self.rows).collect();
        let columns = self.head.len();
        let widths: Vec<usize> = (0..columns)
            .map(|column| all.iter().map(|row| row[column].width()).max().unwrap_or(0))
            .collect();
        let render = |row: &Vec<String>| {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                line.push_str(cell);
                if column + 1 < columns {
                    line.push_str(&" ".repeat(widths[column] - cell.width() + 2));
                }
            }
            let line = line.trim_end().to_owned();
            width.map_or(line.clone(), |width| cut(&line, width))
        };
        all.into_iter().map(render).collect()
    }

    /// Prints it.
    pub(crate) fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        for line in self.lines(terminal_width()) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// How wide the terminal is, if stdout is one.
pub(crate) fn terminal_width() -> Option<usize> {
    let stdout = std::io::stdout();
    let size =
        stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// The first `width` columns of a text, with a mark if that is not all. Letters without a width of their own, such as
/// accents, are cut too if there are far too many of them.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let most = width.saturating_mul(LETTERS_PER_COLUMN);
    let start = text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end]);
    if start.len() == text.len() && text.width() <= width {
        return text.to_owned();
    }
    let (mut short, mut columns) = (String::new(), 0);
    for letter in start.chars() {
        columns += unicode_width::UnicodeWidthChar::width(letter).unwrap_or(0);
        if columns >= width {
            break;
        }
        short.push(letter);
    }
    short + "…"
}

/// No writing needs more letters in one column.
const LETTERS_PER_COLUMN: usize = 8;

/// The text on one line, without what a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    // Marks that turn the direction of writing can make a text look like another.
    let turns = |letter| matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let safe = |letter: char| if letter.is_control() || turns(letter) { '␣' } else { letter };
    text.chars().map(safe).collect()
}

/// A length of time in its two largest units: `3h50m`, `12s`, `250ms`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, unit: &str, small: u64, sub: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{sub}"),
    };
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// How long ago, or in how long, as seen from `now`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    let ahead = at.duration_since(now);
    let length = duration(ahead.unsigned_abs());
    if ahead > SignedDuration::ZERO { format!("in {length}") } else { format!("{length} ago") }
}

/// How long ago something was that has been: clocks that differ a little make no future of it.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    relative(at.min(now), now)
}

/// A word as a shell takes it, for commands to be copied.
pub(crate) fn shell(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./~:@%+,=".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", printable(word).replace('\'', r"'\''")),
    }
}

/// A time for programs and for people who compare: RFC 3339, UTC.
pub(crate) fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// A number with its noun: `1 task`, `1,200 tasks`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(number))
}

/// A number with commas.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes to two digits or more: `312 B`, `1.2 KiB`, `340 MiB`.
pub(crate) fn bytes(number: u64) -> String {
    let (mut amount, mut units) = (number as f64, ["B", "KiB", "MiB", "GiB", "TiB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if amount < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, larger);
    }
    let places = usize::from(unit != "B" && amount < 10.0);
    format!("{amount:.places$} {unit}")
}

/// A state in words for a table: `leased by pi4, 3m left`.
pub(crate) fn state(state: &TaskState, now: Timestamp) -> String {
    match state {
        TaskState::Leased { worker_id, until } => {
            format!("leased by {worker_id}, runs out {}", relative(*until, now))
        }
        TaskState::Stale { worker_id } => format!("stale, was leased by {worker_id}"),
        TaskState::Backoff { until } => format!("backoff, next try {}", relative(*until, now)),
        TaskState::Scheduled { due } => format!("scheduled, due {}", relative(*due, now)),
        other => other.name().to_owned(),
    }
}

/// How long ago, or `-` if nobody knows.
pub(crate) fn age(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(
        || "-".to_owned(),
        |at| duration(now.duration_since(at).try_into().unwrap_or_default()),
    )
}

/// A task as programs see it.
#[derive(Serialize)]
pub(crate) struct TaskJson {
    id: String,
    state: &'static str,
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// When the state ends by itself: the lease, the backoff, the waiting for its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    attempts: Vec<AttemptJson>,
    task: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct AttemptJson {
    attempt: u32,
    worker_id: String,
    started_at: String,
    last_seen_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl TaskJson {
    pub(crate) fn new(view: &TaskView) -> Self {
        let (worker_id, until) = match &view.state {
            TaskState::Leased { worker_id, until } => (Some(worker_id.clone()), Some(*until)),
            TaskState::Stale { worker_id } => (Some(worker_id.clone()), None),
            TaskState::Backoff { until } | TaskState::Scheduled { due: until } => {
                (None, Some(*until))
            }
            _ => (None, None),
        };
        let attempts = view.attempts.iter().map(|attempt| AttemptJson {
            attempt: attempt.attempt,
            worker_id: attempt.worker_id.clone(),
            started_at: time(attempt.created_at),
            last_seen_at: time(attempt.heartbeat_at),
            state: attempt.state.map(lease_state),
            error: attempt.error.clone(),
        });
        Self {
            id: view.key.id().to_string(),
            state: view.state.name(),
            generation: view.key.generation(),
            worker_id,
            until: until.map(time),
            created_at: view.meta.created_at.map(time),
            finished_at: view.finished_at.map(time),
            reason: view.reason.clone(),
            attempts: attempts.collect(),
            task: view.payload.as_ref().and_then(raw),
        }
    }
}

/// A payload, to be put into other JSON byte for byte.
pub(crate) fn raw(payload: &dfq::Payload) -> Option<Box<RawValue>> {
    RawValue::from_string(payload.as_json().to_owned()).ok()
}

/// How an attempt ended, in one word.
pub(crate) fn lease_state(state: dfq::model::LeaseState) -> &'static str {
    match state {
        dfq::model::LeaseState::Failed => "failed",
        dfq::model::LeaseState::Released => "released",
        dfq::model::LeaseState::Withdrawn => "withdrawn",
    }
}

#[cfg(test)]
mod tests;
