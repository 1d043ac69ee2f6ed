//! Rows of fields: how they are separated, and what stands for what cannot stand for itself.
//!
//! Invariant: fields are separated by U+001F and rows end with a newline, and neither occurs in a value. So `cut`, `awk`
//! and a CSV reader that knows the separator find every field, without quotes.
//!
//! | written | stands for |
//! | --- | --- |
//! | nothing | null |
//! | U+0010 `0` | the empty text |
//! | U+0010 and `_`, `^`, `J`, `M`, `@`, `P` | U+001F, U+001E, newline, carriage return, U+0000, U+0010 |
//!
//! The letters are those of the caret notation (`^J` is a newline). A value without such characters is written as
//! it is. What follows U+0010 otherwise stands for itself, since only others can have written it.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};

/// Between two fields.
pub(crate) const FIELD: u8 = 0x1f;
/// At the end of a row in the files of other programs, perhaps with a newline after it.
pub(crate) const RECORD: u8 = 0x1e;
/// At the end of a row.
pub(crate) const END: u8 = b'\n';
/// Before a letter that stands for something else.
const ESCAPE: u8 = 0x10;
/// The letter for the empty text.
const EMPTY: u8 = b'0';

fn needs_escape(byte: u8) -> bool {
    matches!(byte, FIELD | RECORD | END | b'\r' | 0 | ESCAPE)
}

/// Appends a text that is not null.
pub(crate) fn escape(out: &mut Vec<u8>, text: &str) {
    if text.is_empty() {
        return out.extend([ESCAPE, EMPTY]);
    }
    for &byte in text.as_bytes() {
        if needs_escape(byte) {
            out.extend([ESCAPE, byte ^ 0x40]);
        } else {
            out.push(byte);
        }
    }
}

/// What a field stands for; `None` is null.
pub(crate) fn unescape(field: &[u8]) -> Option<Cow<'_, str>> {
    if field.is_empty() {
        return None;
    }
    let mut from = field;
    if memchr(ESCAPE, from).is_none() {
        return Some(String::from_utf8_lossy(from));
    }
    let mut bytes = Vec::with_capacity(from.len());
    while let Some(at) = memchr(ESCAPE, from) {
        bytes.extend(&from[..at]);
        from = &from[at + 1..];
        match from.first() {
            Some(&EMPTY) => from = &from[1..],
            Some(&letter) if needs_escape(letter ^ 0x40) => {
                bytes.push(letter ^ 0x40);
                from = &from[1..];
            }
            _ => bytes.push(ESCAPE),
        }
    }
    bytes.extend(from);
    Some(String::from_utf8_lossy(&bytes).into_owned().into())
}

/// The fields of a row.
pub(crate) fn fields(row: &[u8]) -> impl Iterator<Item = &[u8]> {
    row.split(|byte| *byte == FIELD)
}

/// The first field.
pub(crate) fn key_of(row: &[u8]) -> &[u8] {
    &row[..memchr(FIELD, row).unwrap_or(row.len())]
}

/// A field by its number; what a short row lacks is null.
pub(crate) fn field(row: &[u8], number: usize) -> &[u8] {
    if number == 0 {
        return key_of(row);
    }
    let mut ends = memchr_iter(FIELD, row).skip(number - 1);
    let Some(before) = ends.next() else { return &[] };
    &row[before + 1..ends.next().unwrap_or(row.len())]
}

/// The first four fields, and how many there are. What a short row lacks is null. In one pass, because a merge does this
/// for every row that there is.
pub(crate) fn first_four(row: &[u8]) -> ([&[u8]; 4], usize) {
    let mut first: [&[u8]; 4] = [&[]; 4];
    let (mut begin, mut width) = (0, 0);
    for end in memchr_iter(FIELD, row).chain([row.len()]) {
        if let Some(field) = first.get_mut(width) {
            *field = &row[begin..end];
        }
        (begin, width) = (end + 1, width + 1);
    }
    (first, width)
}

/// How many fields a row has.
pub(crate) fn width(row: &[u8]) -> usize {
    memchr_iter(FIELD, row).count() + 1
}

/// The rows of a text, without their ends. The last one may lack its end.
pub(crate) fn rows(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_suffix(&[END]).unwrap_or(text);
    let empty = text.is_empty();
    text.split(|byte| *byte == END).filter(move |_| !empty)
}

/// How rows of another program end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowEnd {
    Newline,
    Record,
    RecordAndNewline,
}

impl RowEnd {
    pub(crate) fn bytes(self) -> &'static [u8] {
        match self {
            Self::Newline => &[END],
            Self::Record => &[RECORD],
            Self::RecordAndNewline => &[RECORD, END],
        }
    }

    /// How the first row of a text ends; `None` if it has no end.
    pub(crate) fn of(text: &[u8]) -> Option<Self> {
        match memchr(RECORD, text) {
            Some(at) if text.get(at + 1) == Some(&END) => Some(Self::RecordAndNewline),
            Some(_) => Some(Self::Record),
            None => memchr(END, text).map(|_| Self::Newline),
        }
    }
}

/// The rows of another program's file. They end with U+001E and perhaps a newline, or, where there is no U+001E, with
/// a newline. Where rows end with U+001E, a value may hold a newline; a row that has more than `columns` that way is many
/// rows, of a file that two programs have written into.
pub(crate) fn foreign_rows(text: &[u8], columns: usize) -> Vec<&[u8]> {
    let lines = |text| <[u8]>::split(text, |byte| *byte == END).filter(|row| !row.is_empty());
    if memchr(RECORD, text).is_none() {
        return lines(text).collect();
    }
    let mut rows = Vec::new();
    for row in text.split(|byte| *byte == RECORD) {
        let row = row.strip_prefix(&[END]).unwrap_or(row);
        match row {
            [] => {}
            row if width(row) > columns && memchr(END, row).is_some() => rows.extend(lines(row)),
            row => rows.push(row),
        }
    }
    rows
}

/// Whether another program's file ends with the end of a row.
pub(crate) fn is_whole(text: &[u8]) -> bool {
    matches!(text.last(), Some(&(END | RECORD)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_survives_and_no_separator_is_left(
            texts in prop::collection::vec(
                prop_oneof![any::<String>(), "[\u{10}\u{1e}\u{1f}\n\r\0@JM_P0^]{0,9}"], 1..9)
        ) {
            let mut row = b"key".to_vec();
            for text in &texts {
                row.push(FIELD);
                escape(&mut row, text);
            }
            prop_assert_eq!(rows(&row).count(), 1);
            prop_assert!(!row.contains(&RECORD));
            prop_assert_eq!(width(&row), texts.len() + 1);
            let read: Vec<_> =
                fields(&row).skip(1).map(|field| unescape(field).unwrap().into_owned()).collect();
            prop_assert_eq!(&read, &texts);
            for (n, text) in texts.iter().enumerate() {
                let one = unescape(field(&row, n + 1)).unwrap();
                prop_assert_eq!(one.as_ref(), text);
            }
            prop_assert_eq!(field(&row, texts.len() + 1), b"");
            let fields = [0, 1, 2, 3].map(|n| field(&row, n));
            prop_assert_eq!(first_four(&row), (fields, width(&row)));
        }

        #[test]
        fn anything_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            for row in rows(&bytes).chain(foreign_rows(&bytes, 3)) {
                for field in fields(row) {
                    let _ = unescape(field);
                }
            }
        }
    }

    #[test]
    fn the_empty_text_is_not_null() {
        let mut row = Vec::new();
        escape(&mut row, "");
        assert_eq!(unescape(&row).as_deref(), Some(""));
        assert_eq!(unescape(b""), None);
    }

    #[test]
    fn rows_end_as_they_do() {
        let split = |text: &'static [u8]| rows(text).collect::<Vec<_>>();
        assert_eq!(split(b""), [b""; 0]);
        assert_eq!(split(b"a\n"), [b"a"]);
        assert_eq!(split(b"a\nb"), [b"a", b"b"]);
        let foreign = |text: &'static [u8]| foreign_rows(text, 2);
        assert_eq!(foreign(b"a\x1e\nb\x1ec\nd"), [&b"a"[..], b"b", b"c\nd"]);
        assert_eq!(foreign(b"a\x1f1\nb\x1f2\x1e\n"), [b"a\x1f1", b"b\x1f2"]);
        assert_eq!(foreign(b"a\n\nb\n"), [b"a", b"b"]);
        for (text, end) in [
            (&b"a\x1e\nb"[..], Some(RowEnd::RecordAndNewline)),
            (b"a\x1eb", Some(RowEnd::Record)),
            (b"a\nb", Some(RowEnd::Newline)),
            (b"a", None),
        ] {
            assert_eq!(RowEnd::of(text), end);
        }
    }
}
