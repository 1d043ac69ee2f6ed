//! What travels in a message: the task file's text, and the receipt that comes back with it.
//!
//! Invariant: what was pushed comes out byte for byte. SQS refuses two characters that JSON may hold
//! as they are, U+FFFE and U+FFFF, and some servers refuse all beyond them too. They travel escaped,
//! which any JSON parser reads as the same text, in a spelling that the text has no other use for; a
//! message attribute names the spelling, so that exactly these escapes can be undone.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::format;
use crate::layout;
use crate::model::{Payload, Receipt, TaskKey, TaskMeta};

/// The message attribute with the spelling of the escapes.
pub(super) const ESCAPE: &str = "dfq.escape";

/// How the digits of an escape are written: `\uFFFE` or `\ufffe`. What is escaped begins with an F, or
/// with a D as halves of pairs do, so an escape tells its spelling by its first digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    Upper,
    Lower,
}

impl Spelling {
    const ALL: [Self; 2] = [Self::Upper, Self::Lower];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Upper => "upper",
            Self::Lower => "lower",
        }
    }

    fn named(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|spelling| spelling.name() == name);
        known.ok_or_else(|| Error::invalid(format!("its attribute {ESCAPE} is '{name}'")))
    }

    fn starts(self) -> [&'static str; 2] {
        match self {
            Self::Upper => ["\\uD", "\\uF"],
            Self::Lower => ["\\ud", "\\uf"],
        }
    }

    fn escape(self, character: char, out: &mut String) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            out.push_str(&match self {
                Self::Upper => format!("\\u{unit:04X}"),
                Self::Lower => format!("\\u{unit:04x}"),
            });
        }
    }

    /// Puts the characters back that were escaped in this spelling.
    fn undo(self, text: &str) -> Result<String> {
        let mut out = String::with_capacity(text.len());
        let mut units = Vec::new();
        let mut rest = text;
        let torn = || Error::invalid("its escapes are torn");
        loop {
            if self.starts().iter().any(|start| rest.starts_with(start)) {
                let digits = rest.get(2..6).ok_or_else(torn)?;
                units.push(u16::from_str_radix(digits, 16).map_err(|_| torn())?);
                rest = &rest[6..];
                continue;
            }
            for character in char::decode_utf16(units.drain(..)) {
                out.push(character.map_err(|_| torn())?);
            }
            // On to the next backslash.
            let Some(first) = rest.chars().next() else { return Ok(out) };
            let next = rest[first.len_utf8()..].find('\\').map(|at| at + first.len_utf8());
            let (plain, tail) = rest.split_at(next.unwrap_or(rest.len()));
            out.push_str(plain);
            rest = tail;
        }
    }
}

/// A body ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) text: String,
    /// How that is spelled which had to be escaped.
    pub(super) escape: Option<Spelling>,
}

impl Body {
    /// The text of a task file or a record, as it may travel; `strictly` for servers that refuse more
    /// than they should.
    pub(super) fn new(file: Vec<u8>, strictly: bool) -> Result<Self> {
        let text = String::from_utf8(file).map_err(|_| Error::invalid("a task is not UTF-8"))?;
        Self::escaped(text.trim_end(), strictly)
    }

    fn escaped(text: &str, strictly: bool) -> Result<Self> {
        let refused = |c: char| matches!(c, '\u{fffe}' | '\u{ffff}') || strictly && c > '\u{ffff}';
        if !text.contains(refused) {
            return Ok(Self { text: text.to_owned(), escape: None });
        }
        let free = |spelling: &Spelling| !spelling.starts().iter().any(|s| text.contains(s));
        let spelling = Spelling::ALL.into_iter().find(free).ok_or_else(|| {
            let what = "characters that SQS refuses, and others escaped in every spelling";
            Error::invalid(format!("the payload holds {what}"))
        })?;
        let mut out = String::with_capacity(text.len() + 64);
        for character in text.chars() {
            if refused(character) {
                spelling.escape(character, &mut out);
            } else {
                out.push(character);
            }
        }
        Ok(Self { text: out, escape: Some(spelling) })
    }

    /// The same for a strict server.
    pub(super) fn strictly(&self) -> Result<Self> {
        match self.escape {
            None => Self::escaped(&self.text, true),
            Some(spelling) => Self::escaped(&spelling.undo(&self.text)?, true),
        }
    }

    /// How much of a message's size it takes: the attribute counts too, with its name and type.
    pub(super) fn size(&self) -> usize {
        let attribute = |escape: Spelling| ESCAPE.len() + "String".len() + escape.name().len();
        self.text.len() + self.escape.map_or(0, attribute)
    }
}

/// Reads the body of a message that we sent. An error says why it is none of ours.
pub(super) fn decode(text: &str, escape: Option<&str>) -> Result<(Payload, TaskMeta)> {
    let text = match escape {
        None => Cow::Borrowed(text),
        Some(name) => Cow::Owned(Spelling::named(name)?.undo(text)?),
    };
    let (payload, meta) = format::split_payload(&text)?;
    let meta = meta.ok_or_else(|| Error::invalid("it has no member _dfq"))?;
    Ok((payload, meta))
}

/// A word that SQS takes as the id of a group or of a message: itself, or else its hash.
pub(super) fn word(text: &str) -> String {
    let fits = (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { text.to_owned() } else { format::hex(&Sha256::digest(text.as_bytes())) }
}

/// What the receipt of a message carries, in one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// For how many seconds it was received.
    pub(super) seconds: u32,
    /// Which handle to the queue received it.
    pub(super) origin: String,
    /// What SQS calls the receipt.
    pub(super) handle: String,
}

impl Ticket {
    pub(super) fn receipt(&self, key: TaskKey, attempt: u32) -> Receipt {
        let handle = layout::encode_segment(&self.handle);
        Receipt::new(key, attempt, format!("{}-{}-{handle}", self.seconds, self.origin))
    }

    /// Nothing if the receipt was not given by SQS.
    pub(super) fn of(receipt: &Receipt) -> Option<Self> {
        let mut parts = receipt.lease_id.splitn(3, '-');
        let seconds = parts.next()?.parse().ok()?;
        let origin = parts.next()?.to_owned();
        let handle = layout::decode_segment(parts.next()?)?;
        Some(Self { seconds, origin, handle })
    }
}

#[cfg(test)]
mod tests;
