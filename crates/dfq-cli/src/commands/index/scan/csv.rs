//! Records as CSV: what spreadsheets and `csv` readers take.
//!
//! Invariant: every row has as many fields as the head. A value is quoted if it holds a quote, a comma or a line end, or
//! begins or ends with a space; quotes in it are doubled. Null is an empty field, the empty text is `""`.

use dfq::index::{Column, Entry, Index, Kind};
use serde_json::Value;

/// The columns, as they are when the scan begins.
pub(super) struct Csv {
    key: String,
    columns: Vec<Column>,
}

impl Csv {
    pub(super) fn new(index: &Index) -> Self {
        Self { key: index.key_column(), columns: index.columns() }
    }

    /// Appends the head, without a line end.
    pub(super) fn head(&self, line: &mut Vec<u8>) {
        write(line, &self.key);
        for column in &self.columns {
            line.push(b',');
            write(line, &column.name);
        }
    }

    /// Appends a record, without a line end.
    pub(super) fn row(&self, line: &mut Vec<u8>, entry: &Entry) {
        write(line, &entry.key);
        for column in &self.columns {
            line.push(b',');
            match entry.fields.get(&column.name) {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) if column.kind != Kind::Json => write(line, text),
                Some(value) => write(line, &value.to_string()),
            }
        }
    }
}

fn write(line: &mut Vec<u8>, text: &str) {
    let quotes = text.is_empty()
        || text.starts_with(' ')
        || text.ends_with(' ')
        || text.bytes().any(|byte| matches!(byte, b'"' | b',' | b'\n' | b'\r'));
    if !quotes {
        return line.extend(text.as_bytes());
    }
    line.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            line.push(b'"');
        }
        line.push(byte);
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_they_must_be() {
        for (value, written) in [
            ("plain", "plain"),
            ("", "\"\""),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            (" a", "\" a\""),
            ("ü;\t", "ü;\t"),
        ] {
            let mut line = Vec::new();
            write(&mut line, value);
            assert_eq!(String::from_utf8(line).unwrap(), written);
        }
    }
}
