//! Where records come from: the command line, a file, or stdin.
//!
//! Invariant: a line that is no record costs only itself, and a line of any length takes bounded memory. Lines are read
//! and parsed by a thread of their own. It hands on what it has before it waits for more.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

use anyhow::Result;
use dfq::index::Record;
use tokio::sync::mpsc;

use crate::commands::push::source::given;
use crate::exit::invalid;

/// A line longer than this is no record: a row has at most a mebibyte, and JSON may take six bytes for one.
const LONGEST_LINE: usize = 8 << 20;

/// Some of what was read.
pub(super) type Batch = Vec<Line>;

/// A line, or what was given on the command line.
pub(super) struct Line {
    /// Its number, from 1 on.
    pub(super) number: u64,
    /// The record, or why it is none.
    pub(super) record: Result<Record, String>,
    /// Bytes of the line.
    bytes: usize,
}

/// How much is read before it is handed on, at most.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) records: usize,
    pub(super) bytes: usize,
    /// Hand on what is there rather than wait for more.
    pub(super) eager: bool,
}

/// Records on their way.
pub(super) struct Lines {
    batches: mpsc::Receiver<Result<Batch>>,
    /// What is counted: `line`, or `record` for those on the command line.
    pub(super) noun: &'static str,
}

impl Lines {
    /// Records from the command line, or from a file (`-` is stdin), or, if neither is given, from stdin. `key` is the
    /// member that is the key.
    pub(super) fn open(
        words: &[String],
        file: Option<&Path>,
        key: String,
        limits: Limits,
    ) -> Result<Self> {
        match file {
            Some(path) => Self::stream(path, key, limits),
            None if !words.is_empty() => Self::given(words, &key),
            None if !std::io::stdin().is_terminal() => Self::stream(Path::new("-"), key, limits),
            None => Err(invalid(
                "nothing to put: give records as JSON or key=value, or pipe JSON lines in (see `dfq index help put`)",
            )),
        }
    }

    fn given(words: &[String], key: &str) -> Result<Self> {
        let inputs = given(words, "put")?;
        let line = |(number, json): (u64, &str)| Line::new(number, json.as_bytes(), key);
        let numbered = (1..).zip(inputs.iter().map(|input| input.json.as_str()));
        let batch: Batch = numbered.filter_map(line).collect();
        let (sender, batches) = mpsc::channel(1);
        let _ = sender.try_send(Ok(batch));
        Ok(Self { batches, noun: "record" })
    }

    fn stream(path: &Path, key: String, limits: Limits) -> Result<Self> {
        let reader: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(std::io::stdin())
        } else {
            let opened = File::open(path);
            Box::new(opened.map_err(|error| invalid(format!("{}: {error}", path.display())))?)
        };
        let shown =
            if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
        // One batch is put while the next one is read.
        let (sender, batches) = mpsc::channel(1);
        #[allow(clippy::disallowed_methods, reason = "a pipe cannot be simulated")]
        std::thread::Builder::new().name("dfq-reader".to_owned()).spawn(move || {
            let mut reading = Reading { limits, key, sender, batch: Vec::new(), bytes: 0 };
            let reader = BufReader::with_capacity(1 << 16, reader);
            if let Err(error) = reading.read(reader) {
                reading.hand_on();
                let error = invalid(format!("{shown} cannot be read: {error}"));
                let _ = reading.sender.blocking_send(Err(error));
            }
        })?;
        Ok(Self { batches, noun: "line" })
    }

    /// The next batch; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Batch>> {
        self.batches.recv().await
    }
}

/// The thread that reads.
struct Reading {
    limits: Limits,
    key: String,
    sender: mpsc::Sender<Result<Batch>>,
    batch: Batch,
    bytes: usize,
}

impl Reading {
    fn read(&mut self, mut reader: BufReader<Box<dyn Read + Send>>) -> std::io::Result<()> {
        let mut number = 0;
        loop {
            let mut bytes = Vec::new();
            let limit = LONGEST_LINE as u64 + 1;
            if reader.by_ref().take(limit).read_until(b'\n', &mut bytes)? == 0 {
                self.hand_on();
                return Ok(());
            }
            number += 1;
            if bytes.len() > LONGEST_LINE {
                skip_line(&mut reader)?;
                bytes = Vec::new();
                let record = Err("it is longer than a record may be".to_owned());
                self.batch.push(Line { number, record, bytes: 0 });
            }
            if let Some(line) = Line::new(number, &bytes, &self.key) {
                self.bytes += line.bytes;
                self.batch.push(line);
            }
            let is_full =
                self.batch.len() >= self.limits.records || self.bytes >= self.limits.bytes;
            let would_wait = self.limits.eager && !reader.buffer().contains(&b'\n');
            if (is_full || would_wait) && !self.hand_on() {
                return Ok(());
            }
        }
    }

    /// Whether anybody wants more.
    fn hand_on(&mut self) -> bool {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        batch.is_empty() || self.sender.blocking_send(Ok(batch)).is_ok()
    }
}

fn skip_line(reader: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let part = reader.fill_buf()?;
        let end = part.iter().position(|byte| *byte == b'\n');
        let (used, done) = match end {
            Some(at) => (at + 1, true),
            None => (part.len(), part.is_empty()),
        };
        reader.consume(used);
        if done {
            return Ok(());
        }
    }
}

impl Line {
    /// A line that was read; none if it is empty.
    fn new(number: u64, bytes: &[u8], key: &str) -> Option<Self> {
        let record = match std::str::from_utf8(bytes) {
            Ok(text) if text.trim().is_empty() => return None,
            Ok(text) => Record::from_json(text, key).map_err(|error| error.to_string()),
            Err(_) => Err("it is not UTF-8".to_owned()),
        };
        Some(Self { number, record, bytes: bytes.len() })
    }
}
