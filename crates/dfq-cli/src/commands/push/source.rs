//! Where tasks come from: the command line, a file, or stdin.
//!
//! Lines are read by a thread of their own and pushed in batches of whatever has come so far, so that
//! a slow writer's tasks are not kept waiting and a fast one's share the cost.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

use anyhow::Result;
use tokio::sync::mpsc;

use crate::exit::invalid;

/// The most tasks pushed at once, and the most bytes of them.
const BATCH: usize = 1000;
const BATCH_BYTES: usize = 8 << 20;

/// A task as JSON, and the line it stood on.
pub(crate) struct Input {
    pub(super) line: Option<u64>,
    pub(crate) json: String,
}

/// Where tasks come from.
pub(super) enum Source {
    Given(Vec<Input>),
    Stream(mpsc::Receiver<Result<Input>>),
}

#[derive(Clone, Copy)]
pub(crate) enum Format {
    Json,
    Text,
}

impl Source {
    pub(super) fn open(
        tasks: &[String],
        jsonl: Option<&Path>,
        lines: Option<&Path>,
    ) -> Result<Self> {
        match (jsonl, lines) {
            (Some(path), _) => Self::stream(path, Format::Json),
            (None, Some(path)) => Self::stream(path, Format::Text),
            (None, None) if !tasks.is_empty() => Ok(Self::Given(given(tasks, "pushed")?)),
            (None, None) if !std::io::stdin().is_terminal() => {
                Self::stream(Path::new("-"), Format::Json)
            }
            (None, None) => Err(invalid(
                "nothing to push: give JSON or key=value, or pipe JSON lines in (see `dfq help push`)",
            )),
        }
    }

    fn stream(path: &Path, format: Format) -> Result<Self> {
        let reader: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(std::io::stdin())
        } else {
            let opened = File::open(path);
            Box::new(opened.map_err(|error| invalid(format!("{}: {error}", path.display())))?)
        };
        let (sender, receiver) = mpsc::channel(2 * BATCH);
        #[allow(clippy::disallowed_methods, reason = "a pipe cannot be simulated")]
        std::thread::Builder::new().name("dfq-reader".to_owned()).spawn(move || {
            read_lines(BufReader::with_capacity(1 << 16, reader), format, &sender)
        })?;
        Ok(Self::Stream(receiver))
    }

    /// The next tasks, and whether they were the last.
    pub(super) async fn next_batch(&mut self) -> (Vec<Result<Input>>, bool) {
        let receiver = match self {
            Self::Given(inputs) => {
                return (std::mem::take(inputs).into_iter().map(Ok).collect(), true);
            }
            Self::Stream(receiver) => receiver,
        };
        let Some(first) = receiver.recv().await else { return (Vec::new(), true) };
        let size = |input: &Result<Input>| input.as_ref().map_or(0, |input| input.json.len());
        let mut bytes = size(&first);
        let mut batch = vec![first];
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            match receiver.try_recv() {
                Ok(input) => {
                    bytes += size(&input);
                    batch.push(input);
                }
                Err(_) => break,
            }
        }
        (batch, false)
    }

    /// Whether lines are read, of which one may turn out to be bad when others are pushed already.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

fn read_lines(mut reader: impl BufRead, format: Format, sender: &mpsc::Sender<Result<Input>>) {
    // One byte more than a task may have: a file without line ends must not fill the memory.
    let longest = dfq::model::MAX_TASK_BYTES as u64 + 2;
    let mut number = 0;
    loop {
        number += 1;
        let mut line = Vec::new();
        let input = match reader.by_ref().take(longest).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) if line.len() as u64 == longest => {
                Err(invalid(format!("line {number} is longer than a task may be")))
            }
            Ok(_) => read_line(number, line, format),
            Err(error) => Err(invalid(format!("line {number} cannot be read: {error}"))),
        };
        let input = match input {
            Ok(None) => continue,
            Ok(Some(input)) => Ok(input),
            Err(error) => Err(error),
        };
        let bad = input.is_err();
        if sender.blocking_send(input).is_err() || bad {
            return;
        }
    }
}

/// The task on a line; none on an empty one.
pub(crate) fn read_line(number: u64, line: Vec<u8>, format: Format) -> Result<Option<Input>> {
    let not_text = |_| invalid(format!("line {number} is not UTF-8"));
    let line = String::from_utf8(line).map_err(not_text)?;
    let line = line.strip_suffix('\n').unwrap_or(&line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.trim().is_empty() {
        return Ok(None);
    }
    let json = match format {
        Format::Json => line.to_owned(),
        Format::Text => serde_json::json!({ "line": line }).to_string(),
    };
    Ok(Some(Input { line: Some(number), json }))
}

/// Tasks or records given on the command line: JSON each, or key=value that make one object together. `done` says what
/// was not done to them if they are wrong.
pub(crate) fn given(tasks: &[String], done: &str) -> Result<Vec<Input>> {
    if let Some(pairs) = pairs(tasks) {
        let mut object = serde_json::Map::new();
        for (key, value) in pairs {
            let value = value.map_err(|error| invalid(format!("{key}:= is not JSON: {error}")))?;
            if object.insert(key.to_owned(), value).is_some() {
                return Err(invalid(format!("{key} is given twice")));
            }
        }
        let json = serde_json::Value::Object(object).to_string();
        return Ok(vec![Input { line: None, json }]);
    }
    let read = |task: &String| match serde_json::from_str::<serde::de::IgnoredAny>(task) {
        Ok(_) => Ok(Input { line: None, json: task.clone() }),
        Err(_) if pair(task).is_some() => Err(invalid(format!(
            "'{task}' is key=value, which cannot be mixed with JSON; nothing was {done}"
        ))),
        Err(error) => Err(invalid(format!(
            "'{}' is neither JSON ({error}) nor key=value; nothing was {done}",
            crate::output::printable(task)
        ))),
    };
    tasks.iter().map(read).collect()
}

type Pair<'a> = (&'a str, serde_json::Result<serde_json::Value>);

/// The members of one object, if that is what all of the words are.
pub(super) fn pairs(words: &[String]) -> Option<Vec<Pair<'_>>> {
    words.iter().map(|word| pair(word)).collect()
}

fn pair(word: &str) -> Option<Pair<'_>> {
    let (key, value) = word.split_once('=')?;
    let (key, value) = match key.strip_suffix(':') {
        Some(key) => (key, serde_json::from_str(value)),
        None => (key, Ok(serde_json::Value::String(value.to_owned()))),
    };
    let is_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.');
    (!key.is_empty() && key.chars().all(is_name)).then_some((key, value))
}
