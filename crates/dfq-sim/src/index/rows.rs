//! Rows as they lie in files, read without the library.
//!
//! Invariant: of two rows of a key, the one with the later time counts, and of equal times the one with the greater ulid
//! (I2). Both are texts whose order is that of what they stand for.

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: String,
    pub(super) stamp: Stamp,
    pub(super) deleted: bool,
    /// How many fields it has.
    pub(super) width: usize,
    /// Without what stands for nulls at its end.
    pub(super) text: String,
}

/// By what a row counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp {
    pub(super) updated_at: String,
    pub(super) ulid: String,
}

impl Stamp {
    /// The time in the ulid, in milliseconds.
    pub(super) fn millis(&self) -> i64 {
        const DIGITS: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
        let digits = self.ulid.chars().take(10);
        digits.fold(0, |time, digit| {
            let digit = DIGITS.find(digit).and_then(|at| i64::try_from(at).ok()).unwrap_or(0);
            (time << 5) | digit
        })
    }
}

/// The rows of a file; `None` if it is not one of ours.
pub(super) fn parse(bytes: &[u8]) -> Option<Vec<Row>> {
    let text = std::str::from_utf8(bytes).ok()?;
    if text.is_empty() {
        return Some(Vec::new());
    }
    let row = |line: &str| {
        let fields: Vec<&str> = line.split('\x1f').collect();
        let (updated_at, ulid) = (fields.get(1)?.to_string(), fields.get(2)?.to_string());
        let is_stamp = updated_at.len() == 27 && ulid.len() == 26;
        is_stamp.then(|| Row {
            key: fields[0].to_owned(),
            stamp: Stamp { updated_at, ulid },
            deleted: fields.get(3) == Some(&"true"),
            width: fields.len(),
            text: line.trim_end_matches('\x1f').to_owned(),
        })
    };
    text.strip_suffix('\n')?.split('\n').map(row).collect()
}
