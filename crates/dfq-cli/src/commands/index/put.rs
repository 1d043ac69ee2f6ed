//! `dfq index put`: add records, or replace those of their keys.
//!
//! One rule for bad input: a line that is no record costs only itself. (Records have keys, so to put the same file
//! again after it was mended does no harm.) What is said to be put was answered so by the store.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use dfq::ErrorKind;
use dfq::index::{Index, Record};

use super::lines::{Batch, Limits, Line, Lines};
use super::told::Told;
use crate::commands::push::interrupt::{Interrupted, Interrupts};
use crate::context::Context;
use crate::exit::Answer;
use crate::output;

/// Add records, or replace those of their keys
///
/// A record is a JSON object, or key=value (a string) and key:=value (JSON) that make one object. Without RECORD and
/// --jsonl, JSON lines are read from stdin if that is not a terminal. The latest record of a key counts: by its own
/// member "updated_at", if it has one (a time as 2026-11-19T08:30:00Z), else by when it was put.
///
/// A line that is no record costs only itself: the command says which and why, puts the others, and ends with 2.
/// Interrupted (Ctrl-C), it waits for what is on its way, and says how many were put; interrupted twice, it does not
/// wait.
#[derive(Args, Debug)]
#[command(
    override_usage = "dfq index put [OPTIONS] INDEX [JSON… | key=value…]\n       \
    … | dfq index put [OPTIONS] INDEX [--jsonl -]",
    after_help = "Examples:\n  \
    dfq index put ./domains --key-field domain domain=example.com employees:=12\n  \
    dfq index put s3://bucket/domains --key-field domain --jsonl found.jsonl --bundle"
)]
pub(crate) struct Put {
    /// The index; made if it is not there
    index: String,
    /// JSON, or key=value
    #[arg(value_name = "RECORD", conflicts_with = "jsonl")]
    records: Vec<String>,
    /// A record on each line of this file; `-` is stdin
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// The member that is the key, a string or a number [default: the name of the index's key]
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// Put many records into one file for each of 256 shards: much cheaper for thousands. They count when 20,000 have
    /// come, or the input ends
    #[arg(long)]
    bundle: bool,
}

/// Records put at once, each into a file of its own.
const EACH: Limits = Limits { records: 1000, bytes: 8 << 20, eager: true };

/// Records put at once into files of many.
const BUNDLED: Limits = Limits { records: 20_000, bytes: 16 << 20, eager: false };

/// How often a bundle is tried without the records that were refused.
const ROUNDS: usize = 3;

/// What became of the record of a line.
type Numbered = (u64, dfq::Result<()>);

impl Put {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let mut place = context.index_place(&self.index, self.key_field.as_deref()).await?;
        let limits = if self.bundle { BUNDLED } else { EACH };
        let (words, key) = (&self.records, place.key_field());
        let mut lines = Lines::open(words, self.jsonl.as_deref(), key.clone(), limits)?;
        let hint = match place.key_is_a_guess() {
            true => "; --key-field says which member is the key",
            false => "",
        };
        let mut told = Told::new(context, lines.noun);
        let mut interrupts = Interrupts::listen()?;
        loop {
            let batch = tokio::select! {
                biased;
                signal = interrupts.next() => return Ok(interrupted(signal, &told, 0)),
                batch = lines.next() => batch,
            };
            let Some(batch) = batch else { break };
            let batch = batch.map_err(|error| with_so_far(&error, &told))?;
            let (numbers, records) = sort_out(batch, &mut told, &key, hint)?;
            if records.is_empty() {
                continue;
            }
            // Made only now: an index must not appear because of bad input.
            let index = place.make().await?;
            let under_way = records.len();
            let putting = put_all(&index, numbers, records, self.bundle);
            let (answers, signal) = match interrupts.let_finish(putting, under_way, "record").await
            {
                Ok(ended) => ended,
                Err(Interrupted(signal)) => return Ok(interrupted(signal, &told, under_way)),
            };
            count(answers, &mut told)?;
            if let Some(signal) = signal {
                return Ok(interrupted(signal, &told, 0));
            }
        }
        told.sum_up("put")
    }
}

/// The records of a batch with their lines; tells of those that are none.
pub(super) fn sort_out(
    batch: Batch,
    told: &mut Told,
    key: &str,
    hint: &str,
) -> Result<(Vec<u64>, Vec<Record>)> {
    let mut numbers = Vec::with_capacity(batch.len());
    let mut records = Vec::with_capacity(batch.len());
    for Line { number, record, .. } in batch {
        match record {
            Ok(record) => {
                numbers.push(number);
                records.push(record);
            }
            Err(error) if error.ends_with(&format!("has no '{key}'")) => {
                told.refuse(number, &format!("{error}{hint}"))?;
            }
            Err(error) => told.refuse(number, &error)?,
        }
    }
    Ok((numbers, records))
}

/// Puts records in their order, so that of two with the same key the later one counts.
async fn put_all(
    index: &Index,
    numbers: Vec<u64>,
    records: Vec<Record>,
    bundle: bool,
) -> Vec<Numbered> {
    if !bundle {
        return numbers.into_iter().zip(index.put(records).await).collect();
    }
    let (mut answers, mut rest) = (Vec::with_capacity(numbers.len()), (numbers, records));
    for _ in 0..ROUNDS {
        let (numbers, records) = rest;
        match index.put_bundle(records.clone()).await {
            // Nothing was put, because of some. Those are sorted out.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let tried = index.try_records(records.clone()).await;
                rest = (Vec::new(), Vec::new());
                for ((number, record), answer) in numbers.into_iter().zip(records).zip(tried) {
                    match answer {
                        Ok(()) => {
                            rest.0.push(number);
                            rest.1.push(record);
                        }
                        refused => answers.push((number, refused)),
                    }
                }
                if rest.0.is_empty() {
                    break;
                }
            }
            put => {
                answers.extend(numbers.into_iter().map(|number| (number, put.clone())));
                return answers;
            }
        }
    }
    // Columns that others change at this very moment: each for itself.
    answers.extend(rest.0.into_iter().zip(index.put(rest.1).await));
    answers
}

/// Counts answers. What is wrong with a record is told; what is wrong with the store is the end.
fn count(answers: Vec<Numbered>, told: &mut Told) -> Result<()> {
    let mut trouble = None;
    for (number, answer) in answers {
        match answer {
            Ok(()) => told.done(1),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                told.refuse(number, &error.to_string())?;
            }
            Err(error) => trouble = trouble.or(Some(error)),
        }
    }
    match trouble {
        None => Ok(()),
        Some(error) => Err(with_so_far(&error.into(), told)),
    }
}

/// Says with an error how many were put before it.
fn with_so_far(error: &anyhow::Error, told: &Told) -> anyhow::Error {
    told.clear();
    let kind = error.downcast_ref::<dfq::Error>().map_or(ErrorKind::Unavailable, dfq::Error::kind);
    dfq::Error::new(kind, format!("{error:#}; {}", told.so_far("put"))).into()
}

/// Says how far it came, and of how many nothing is known.
fn interrupted(signal: u8, told: &Told, under_way: usize) -> Answer {
    told.clear();
    let unknown = match under_way {
        0 => String::new(),
        some => format!("; {} on the way, perhaps put too", output::count(some as u64, "record")),
    };
    output::note!("dfq: interrupted; {}{unknown}", told.so_far("put"));
    Answer::Killed(signal)
}
