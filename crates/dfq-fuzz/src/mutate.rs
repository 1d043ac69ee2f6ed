//! Mutations of inputs: of bytes, and of what most formats here consist of, which is words, numbers and nesting.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Bytes and short texts at which parsers stumble.
const ODD: [&[u8]; 34] = [
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    "\u{feff}".as_bytes(),
    "\u{fffe}".as_bytes(),
    "\u{ffff}".as_bytes(),
    "\u{1f600}".as_bytes(),
    "\u{301}".as_bytes(),
    "\u{202e}".as_bytes(),
    "ä".as_bytes(),
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\\uFFFE",
    b"%",
    b"%2e",
    b"%2E",
    b"%00",
    b"..",
    b"../",
    b"/",
    b"@",
    b"@2",
    b"\n",
    b"\r\n",
    b"\t",
    b" ",
    b"-",
    b":",
    b",",
    b"{}",
    b"[]",
];

/// Numbers at the edges.
const NUMBERS: [&str; 22] = [
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "63",
    "64",
    "65",
    "255",
    "256",
    "4294967295",
    "4294967296",
    "2147483647",
    "1000000000",
    "1000000001",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e400",
    "0.1",
    "1.7976931348623157e308",
];

/// Times at the edges.
const TIMES: [&str; 10] = [
    "9999-12-30T22:00:00.999999999Z",
    "9999-12-31T23:59:59.999999999",
    "-009999-01-02T01:59:59Z",
    "0000-01-01T00:00:00Z",
    "1969-12-31T23:59:59.999999999Z",
    "2026-11-15T23:59:60Z",
    "2026-11-15T22:20:00+25:59",
    "2026-02-30T00:00:00Z",
    "2026-11-15 22:20:00",
    "20261115T1930Z",
];

/// Makes inputs out of others, always the same from the same seed.
#[derive(Debug)]
pub struct Mutator {
    random: StdRng,
    words: &'static [&'static str],
    longest: usize,
}

impl Mutator {
    /// With a dictionary, for inputs no longer than `longest`.
    pub fn new(seed: u64, words: &'static [&'static str], longest: usize) -> Self {
        Self { random: StdRng::seed_from_u64(seed), words, longest }
    }

    /// A mutation of one of `corpus`, which must not be empty.
    pub fn next(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        // Rather one of the first, which were made by hand and are whole.
        let most = self.below(corpus.len()) + 1;
        let mut input = corpus[self.below(most)].clone();
        for _ in 0..1 + self.below(4) {
            self.step(&mut input, corpus);
        }
        input.truncate(self.longest);
        input
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.random_range(0..bound.max(1))
    }

    /// A part of the input, short more often than long.
    fn part(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(input.len() + 1);
        let most = if self.random.random() { 4 } else { input.len() };
        let length = self.below(most.min(input.len() - from) + 1);
        from..from + length
    }

    fn step(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let part = self.part(input);
        match self.below(11) {
            0 if !input.is_empty() => {
                let at = self.below(input.len());
                input[at] ^= 1 << self.below(8);
            }
            1 => drop(input.drain(part)),
            2 => {
                let odd = ODD[self.below(ODD.len())];
                input.splice(part, odd.iter().copied());
            }
            3 => {
                let copy = input[part].to_vec();
                let at = self.below(input.len() + 1);
                input.splice(at..at, copy);
            }
            4 => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.part(other);
                input.splice(part, other[from].iter().copied());
            }
            5 if !self.words.is_empty() => {
                let word = self.words[self.below(self.words.len())];
                input.splice(part, word.bytes());
            }
            6 => self.replace_token(input),
            7 => {
                // Nesting, and repetition.
                let copy = input[part.clone()].to_vec();
                let times = 1 << self.below(8);
                if copy.len() * times <= self.longest {
                    input.splice(part, copy.repeat(times));
                }
            }
            8 => input.truncate(part.start),
            9 => {
                let byte = self.random.random();
                input.splice(part, [byte]);
            }
            _ => self.replace_token(input),
        }
        input.truncate(2 * self.longest);
    }

    /// Another number, time or word in the place of a string or a number of JSON or TOML.
    fn replace_token(&mut self, input: &mut Vec<u8>) {
        let start = self.below(input.len() + 1);
        let is_end = |byte: &u8| b"\",:{}[]=\n /".contains(byte);
        let from = input[..start].iter().rposition(is_end).map_or(0, |at| at + 1);
        let to = input[start..].iter().position(is_end).map_or(input.len(), |at| start + at);
        let new = match self.below(4) {
            0 => NUMBERS[self.below(NUMBERS.len())],
            1 => TIMES[self.below(TIMES.len())],
            2 if !self.words.is_empty() => self.words[self.below(self.words.len())],
            _ => ["null", "true", "\"\"", "", "\"x\"", "[1]", "{\"a\":1}"][self.below(7)],
        };
        input.splice(from..to.max(from), new.bytes());
    }
}
