//! The corpus: a file for each target, with one input on each line.
//!
//! Bytes that are not plain text are written as `\xNN`, a line end as `\n`, a backslash as `\\`. Lines that begin with `#`
//! say what the next inputs are about. `printf %b` reads such a line, which is how `./fuzz` does it.

use std::path::{Path, PathBuf};

use crate::Target;

/// Where a target's inputs are kept.
pub fn path(target: Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{}.txt", target.name))
}

/// The inputs in the text of such a file. Nothing at all is an input, too, and is not written down.
pub fn read(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    std::iter::once(Vec::new()).chain(lines.map(unescape)).collect()
}

/// An input as a line.
pub fn escape(input: &[u8]) -> String {
    let mut line = String::new();
    for chunk in input.utf8_chunks() {
        for letter in chunk.valid().chars() {
            let plain = letter.is_alphanumeric() || letter == ' ' || letter.is_ascii_graphic();
            match letter {
                '\\' => line.push_str("\\\\"),
                '\n' => line.push_str("\\n"),
                '#' if line.is_empty() => line.push_str("\\x23"),
                letter if plain => line.push(letter),
                letter => push_bytes(&mut line, letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        push_bytes(&mut line, chunk.invalid());
    }
    line
}

fn push_bytes(line: &mut String, bytes: &[u8]) {
    line.extend(bytes.iter().map(|byte| format!("\\x{byte:02x}")));
}

fn unescape(line: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'\\', [b'x', high, low, tail @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).expect("two hex digits");
                bytes.push((digit(*high) * 16 + digit(*low)) as u8);
                tail
            }
            (b'\\', [b'n', tail @ ..]) => {
                bytes.push(b'\n');
                tail
            }
            (b'\\', [b'\\', tail @ ..]) => {
                bytes.push(b'\\');
                tail
            }
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    bytes
}
