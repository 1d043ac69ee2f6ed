//! Where the blocks of a compacted shard begin, so that a lookup reads one of them.
//!
//! Invariant: a hint. It is pinned to one version of the shard; with any other it is worth nothing, and readers then
//! search the shard itself. It ends in a sum of what comes before: nobody syncs it, so a power cut may leave any part.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::usv;
use crate::store::Version;
use crate::store::objects::Head;

/// How long a block is at the least, and how many blocks a shard has at the most, roughly.
const SMALLEST: u64 = 16 << 10;
const MOST: u64 = 1000;

/// What the first line begins with.
const FORMAT: &str = "dfq-blocks-1";

/// Where blocks begin, and with which key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    length: u64,
    /// The first block begins at 0 and is left out.
    begin: Vec<(u64, Vec<u8>)>,
    last: u64,
}

/// To which content of a shard blocks belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) version: Version,
    pub(crate) size: u64,
    /// The time of its last write, to tell that somebody has written into it since.
    pub(crate) modified: i128,
}

impl Pin {
    /// The content that this describes.
    pub(crate) fn of(head: &Head) -> Self {
        let modified = head.modified.as_nanosecond();
        Self { version: head.version.clone(), size: head.size, modified }
    }

    /// For a store that keeps each version as it was written, where the time does not matter.
    pub(crate) fn untimed(version: &Version, size: u64) -> Self {
        Self { version: version.clone(), size, modified: 0 }
    }

    /// Whether it describes this content.
    pub(crate) fn is_of(&self, head: &Head) -> bool {
        *self == Self::of(head) || *self == Self::untimed(&head.version, head.size)
    }
}

impl Blocks {
    /// For a shard of about this size.
    pub(crate) fn for_size(size: u64) -> Self {
        Self { length: SMALLEST.max(size / MOST), ..Self::default() }
    }

    /// Notes that a row begins here.
    pub(crate) fn note(&mut self, at: u64, row: &[u8]) {
        if at >= self.last + self.length {
            self.begin.push((at, usv::key_of(row).to_vec()));
            self.last = at;
            if self.begin.len() as u64 >= 2 * MOST {
                self.thin_out();
            }
        }
    }

    /// Joins every two blocks: the shard is longer than was expected.
    fn thin_out(&mut self) {
        let mut number = 0;
        self.begin.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        self.length *= 2;
    }

    /// Where blocks begin, and with which key; the first is left out.
    pub(crate) fn begins(&self) -> &[(u64, Vec<u8>)] {
        &self.begin
    }

    /// Whether there is more than one.
    pub(crate) fn are_many(&self) -> bool {
        !self.begin.is_empty()
    }

    /// Where the block lies in which a key is, if it is there; `size` is that of the whole.
    pub(crate) fn range_of(&self, key: &[u8], size: u64) -> Range<u64> {
        let after = self.begin.partition_point(|(_, first)| first.as_slice() <= key);
        let from = after.checked_sub(1).map_or(0, |at| self.begin[at].0);
        from..self.begin.get(after).map_or(size, |(at, _)| *at)
    }

    /// The file: rows of fields, as all else.
    pub(crate) fn to_bytes(&self, pin: &Pin) -> Vec<u8> {
        let mut out = FORMAT.as_bytes().to_vec();
        let generation = pin.version.generation().unwrap_or_default();
        let (size, modified) = (pin.size.to_string(), pin.modified.to_string());
        for text in [pin.version.tag(), generation, &size, &modified] {
            out.push(usv::FIELD);
            usv::escape(&mut out, text);
        }
        out.push(usv::END);
        for (at, key) in &self.begin {
            out.extend(at.to_string().as_bytes());
            out.push(usv::FIELD);
            out.extend(key);
            out.push(usv::END);
        }
        let sum = sum_of(&out);
        out.extend(sum.as_bytes());
        out.push(usv::END);
        out
    }

    /// Reads the file; `None` if it is not one of ours, or not whole.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, Pin)> {
        let sum = bytes.strip_suffix(&[usv::END])?.rsplit(|byte| *byte == usv::END).next()?;
        let rows = &bytes[..bytes.len() - 1 - sum.len()];
        if sum_of(rows).as_bytes() != sum {
            return None;
        }
        let mut rows = usv::rows(rows);
        let first = rows.next()?;
        let text = |number| usv::unescape(usv::field(first, number)).unwrap_or_default();
        if text(0) != FORMAT {
            return None;
        }
        let generation = Some(text(2).into_owned()).filter(|text| !text.is_empty());
        let version = Version::new(text(1)).with_generation(generation);
        let pin = Pin { version, size: text(3).parse().ok()?, modified: text(4).parse().ok()? };
        let mut blocks = Self::for_size(pin.size);
        for row in rows {
            let at: u64 = std::str::from_utf8(usv::key_of(row)).ok()?.parse().ok()?;
            let key = usv::field(row, 1).to_vec();
            let follows =
                blocks.begin.last().is_none_or(|(last, first)| *last < at && *first < key);
            if !follows || at >= pin.size || key.is_empty() {
                return None;
            }
            blocks.last = at;
            blocks.begin.push((at, key));
        }
        Some((blocks, pin))
    }
}

/// Tells whether all of a file is there.
fn sum_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_lies_in_the_block_that_begins_before_it() {
        let mut blocks = Blocks::for_size(100_000);
        for n in 0..1000_u64 {
            blocks.note(n * 100, format!("{n:04}\u{1f}x").as_bytes());
        }
        assert!(blocks.are_many());
        for n in 0..1000_u64 {
            for key in [format!("{n:04}"), format!("{n:04}a")] {
                let range = blocks.range_of(key.as_bytes(), 100_000);
                assert!(range.contains(&(n * 100)), "{key}: {range:?}");
                assert!(range.end - range.start < 2 * SMALLEST);
            }
        }
        assert_eq!(blocks.range_of(b"", 100_000).start, 0);
        let version = Version::new("\"a\u{1f}b\"").with_generation(Some("7".to_owned()));
        let pin = Pin { version, size: 100_000, modified: -5 };
        assert_eq!(Blocks::parse(&blocks.to_bytes(&pin)), Some((blocks, pin)));
    }

    /// After a power cut: only a part, or zeros at the end.
    #[test]
    fn what_is_not_whole_is_ignored() {
        let mut blocks = Blocks::for_size(100_000);
        for n in 0..4 {
            blocks.note(n * 20_000, format!("{n:04}\u{1f}x").as_bytes());
        }
        let whole = blocks.to_bytes(&Pin::untimed(&Version::new("7.150"), 100_000));
        assert!(Blocks::parse(&whole).is_some());
        for length in 0..whole.len() {
            let mut torn = whole[..length].to_vec();
            assert_eq!(Blocks::parse(&torn), None, "{length} bytes");
            torn.resize(whole.len(), 0);
            assert_eq!(Blocks::parse(&torn), None, "{length} bytes, and zeros");
        }
    }

    /// An import makes a shard of any length out of nothing.
    #[test]
    fn blocks_are_few_however_long_the_shard_becomes() {
        let mut blocks = Blocks::for_size(0);
        let size = 64_000_000;
        for n in 0..size / 1000 {
            blocks.note(n * 1000, format!("{n:08}\u{1f}x").as_bytes());
        }
        let count = blocks.begins().len() as u64;
        assert!((MOST / 2..=2 * MOST).contains(&count), "{count} blocks");
        for n in 0..size / 1000 {
            let range = blocks.range_of(format!("{n:08}").as_bytes(), size);
            assert!(range.contains(&(n * 1000)), "{n}: {range:?}");
            assert!(range.end - range.start < 4 * size / MOST, "{n}: {range:?}");
        }
    }

    #[test]
    fn what_is_not_ours_is_ignored() {
        for bytes in
            [&b""[..], b"dfq-blocks-2\x1fa\x1f\x1f5\x1f5\n", b"dfq-blocks-1\n", b"\xff\n\n\x1f"]
        {
            assert_eq!(Blocks::parse(bytes), None);
        }
    }
}
