//! Ulids and times as they stand in names and rows.
//!
//! Invariant: both are texts of one length, whose order as bytes is the order of what they stand for.

use std::fmt;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::clock::Env;
use crate::layout::ULID_CHARS;

const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

const RANDOM_BITS: u32 = 80;

/// A time in milliseconds and 80 random bits, in Crockford's base 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Ulid(u128);

impl Ulid {
    /// A new one of this time.
    pub(crate) fn new(millis: u64, env: &Env) -> Self {
        // Half of the highest part is left free, so that many can be counted on from here in one millisecond.
        let random = (u128::from(env.next_u64()) << 15) | u128::from(env.next_u64() & 0x7fff);
        Self((u128::from(millis) << RANDOM_BITS) | random)
    }

    /// The one after this.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Its time in milliseconds since 1970.
    pub(crate) fn millis(self) -> u64 {
        u64::try_from(self.0 >> RANDOM_BITS).unwrap_or(u64::MAX)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != ULID_CHARS || text.as_bytes()[0] > b'7' {
            return None;
        }
        let digit = |byte| DIGITS.iter().position(|digit| *digit == byte);
        let mut bits = 0_u128;
        for byte in text.bytes() {
            bits = (bits << 5) | digit(byte)? as u128;
        }
        Some(Self(bits))
    }
}

impl fmt::Display for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [b'0'; ULID_CHARS];
        let mut bits = self.0;
        for place in text.iter_mut().rev() {
            *place = DIGITS[(bits & 31) as usize];
            bits >>= 5;
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// How a time begins that is as long as all others.
const EARLIEST: Timestamp = Timestamp::constant(-62_167_219_200, 0);

/// A time to the microsecond; `None` before the year 0, whose text would begin with a sign.
pub(crate) fn time_text(time: Timestamp) -> Option<String> {
    (time >= EARLIEST).then(|| time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string())
}

/// Reads what [`time_text`] wrote, and nothing else.
pub(crate) fn parse_time_text(text: &str) -> Option<Timestamp> {
    let time: Timestamp = text.parse().ok()?;
    (time_text(time).as_deref() == Some(text)).then_some(time)
}

/// A time as people and programs write it: RFC 3339, or without an offset (UTC), or only a date.
pub(crate) fn read_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    text.parse::<Timestamp>().ok().or_else(|| {
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        TimeZone::UTC.to_timestamp(civil).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ulid_is_read_as_it_is_written_and_sorts_by_its_text() {
        let env = Env::system();
        let mut all: Vec<Ulid> =
            [0, 1, 31, 1_800_000_000_000, (1 << 45) - 1].map(|ms| Ulid::new(ms, &env)).to_vec();
        all.extend(all.clone().into_iter().map(Ulid::next));
        all.sort_unstable();
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert!(texts.is_sorted());
        for (ulid, text) in all.iter().zip(&texts) {
            assert_eq!(Ulid::parse(text), Some(*ulid));
            assert_eq!(text.len(), ULID_CHARS);
        }
        assert_eq!(Ulid::parse("01ARYZ6S41TSV4RRFFQ69G5FAV").unwrap().millis(), 1_469_918_176_385);
        for wrong in [
            "",
            "01ARZ3NDEKTSV4RRFFQ69G5FA",
            "01arz3ndektsv4rrffq69g5fav",
            "81ARZ3NDEKTSV4RRFFQ69G5FAV",
        ] {
            assert_eq!(Ulid::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_time_is_one_text() {
        let time: Timestamp = "2026-11-19T01:02:03.4Z".parse().unwrap();
        assert_eq!(time_text(time).unwrap(), "2026-11-19T01:02:03.400000Z");
        assert_eq!(parse_time_text("2026-11-19T01:02:03.400000Z"), Some(time));
        assert_eq!(parse_time_text("2026-11-19T01:02:03.4Z"), None);
        assert_eq!(time_text(Timestamp::MIN), None);
        for text in
            ["2026-11-19T01:02:03.4", "2026-11-19 01:02:03.4", "2026-11-19T02:02:03.4+01:00"]
        {
            assert_eq!(read_time(text), Some(time), "{text}");
        }
        assert_eq!(read_time("2026-11-19").unwrap().to_string(), "2026-11-19T00:00:00Z");
        assert_eq!(read_time("soon"), None);
    }
}
