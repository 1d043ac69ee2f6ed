//! `dfq index import`: an index from a large file, without the inbox.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use dfq::ErrorKind;
use dfq::index::{Import as Importing, ImportOptions, Record};

use super::lines::{Limits, Lines};
use super::put::sort_out;
use super::told::Told;
use crate::context::Context;
use crate::exit::{Answer, stop_signal};
use crate::many::progress;
use crate::output;

/// Add many records from a file straight into the shards
///
/// The file has a JSON object on each line, as for `dfq index put`. Records are sorted in temporary files on this machine,
/// then merged into each shard, once. That is the cheapest way for a million records: 256 reads and writes, no inbox. It
/// may be run beside writers and others that compact, and again: the later record of a key counts, as with put.
///
/// A line that is no record costs only itself: the command says which and why, and ends with 2. Nothing counts before the
/// file was read to its end. Interrupted, it may have written some shards; to run it again does no harm.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  dfq index import ./domains everything.jsonl --key-field domain"
)]
pub(crate) struct Import {
    /// The index; made if it is not there
    index: String,
    /// The file; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The member that is the key, a string or a number [default: the name of the index's key]
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// Where temporary files are kept; about as much room as the file takes is needed
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

/// Records handed on at a time.
const LIMITS: Limits = Limits { records: 10_000, bytes: 8 << 20, eager: false };

impl Import {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let stop = tokio_util::sync::CancellationToken::new();
        let signal = context.env.spawn(stop_signal(stop));
        tokio::select! {
            answer = self.import(context) => answer,
            Ok(signal) = signal => {
                output::note!("dfq: interrupted; some shards may have their records, run it again");
                Ok(Answer::Killed(signal))
            }
        }
    }

    async fn import(&self, context: &Context) -> Result<Answer> {
        let mut place = context.index_place(&self.index, self.key_field.as_deref()).await?;
        let key = place.key_field();
        let mut lines = Lines::open(&[], Some(&self.file), key.clone(), LIMITS)?;
        let hint = match place.key_is_a_guess() {
            true => "; --key-field says which member is the key",
            false => "",
        };
        let mut told = Told::new(context, lines.noun);
        let shown = !context.quiet && !context.json && std::io::stderr().is_terminal();
        let bar = shown.then(|| progress(0));
        if let Some(bar) = &bar {
            // Not before there are shards to be written.
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        let mut import: Option<Importing> = None;
        while let Some(batch) = lines.next().await {
            let (numbers, records) = sort_out(batch?, &mut told, &key, hint)?;
            if records.is_empty() {
                continue;
            }
            // Made only now: an index must not appear because of bad input.
            let index = place.make().await?;
            let importing = match &mut import {
                Some(importing) => importing,
                None => {
                    let options = ImportOptions {
                        scratch: self.scratch.clone(),
                        progress: bar.clone().map(super::compact::shown_by),
                    };
                    import.insert(index.import(options).await?)
                }
            };
            let fit = match importing.add(records.clone()).await {
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    let tried = index.try_records(records.clone()).await;
                    let fit = sort(numbers, records, tried, &mut told)?;
                    let number = fit.len();
                    importing.add(fit).await?;
                    number
                }
                added => {
                    added?;
                    records.len()
                }
            };
            told.done(fit as u64);
        }
        told.clear();
        if let Some(import) = import {
            if let Some(bar) = &bar {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            let report = import.finish().await;
            if let Some(bar) = &bar {
                bar.finish_and_clear();
            }
            let report = report?;
            if !context.quiet && !context.json {
                output::note!(
                    "dfq: {} written, {}",
                    output::count(report.shards as u64, "shard"),
                    output::bytes(report.bytes_written)
                );
            }
        }
        told.sum_up("imported")
    }
}

/// The records that fit; tells of the others.
fn sort(
    numbers: Vec<u64>,
    records: Vec<Record>,
    tried: Vec<dfq::Result<()>>,
    told: &mut Told,
) -> Result<Vec<Record>> {
    let mut fit = Vec::with_capacity(records.len());
    for ((number, record), answer) in numbers.into_iter().zip(records).zip(tried) {
        match answer {
            Ok(()) => fit.push(record),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                told.refuse(number, &error.to_string())?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(fit)
}
