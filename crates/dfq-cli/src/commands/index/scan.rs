//! `dfq index scan`: all records, or those that are asked for.

mod csv;

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::index::{Entry, Filter, ScanOptions};

use crate::context::Context;
use crate::exit::{Answer, invalid};
use crate::output;
use csv::Csv;

/// Print all records, or those that are asked for
///
/// Sees every put that returned, compacted or not. Each key comes once; the keys of one of the 256 shards are sorted, the
/// shards follow each other. Takes little memory however much there is, and costs a listing and a read or two of each shard.
///
/// json: a line for each record. csv: a head, then a row for each; null is empty, the empty text is "". usv: rows as in the
/// shards (the key, _updated_at, _ulid, _deleted, then the fields, separated by U+001F), without deletions.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    dfq index scan ./domains --where country=de -o csv > de.csv\n  \
    dfq index scan ./domains --prefix www. | jq .domain")]
pub(crate) struct Scan {
    /// The index
    index: String,
    /// Only keys that begin with this
    #[arg(long, value_name = "P", default_value = "")]
    prefix: String,
    /// Only records with this value: a text, or what JSON writes for anything else, or nothing for null. May be given more
    /// than once: all must hold
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    filters: Vec<Filter>,
    /// End after so many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// How records are printed [default: json]
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    output: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Json,
    Csv,
    Usv,
}

impl Scan {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let format = self.output.unwrap_or(Format::Json);
        if context.json && format != Format::Json {
            return Err(invalid("--json prints JSON lines; leave it out, or -o"));
        }
        let index = context.open_index(&self.index).await?;
        let column = index.key_column();
        let known: Vec<String> = index.columns().into_iter().map(|column| column.name).collect();
        for Filter { field, .. } in &self.filters {
            if *field != column && !known.contains(field) {
                let fields = known.iter().map(String::as_str);
                let known: Vec<&str> = std::iter::once(column.as_str()).chain(fields).collect();
                let hint = match dfq::config::nearest(field, &known) {
                    Some(near) => format!("did you mean '{near}'?"),
                    None => format!("there are: {}", known.join(", ")),
                };
                let message = format!("--where: the index has no column '{field}': {hint}");
                return Err(invalid(output::printable(&message)));
            }
        }
        let mut scan = index.scan(ScanOptions {
            prefix: self.prefix,
            filters: self.filters,
            rows: format == Format::Usv,
        });
        let mut printer = Printer::new(format, column, Csv::new(&index));
        let mut left = self.limit.unwrap_or(u64::MAX);
        printer.head()?;
        while left > 0 {
            let batch = scan.next_batch().await?;
            if batch.is_empty() {
                break;
            }
            for entry in batch.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                printer.print(entry)?;
                left -= 1;
            }
        }
        printer.out.flush()?;
        Ok(Answer::Yes)
    }
}

/// Prints records as they come.
struct Printer {
    format: Format,
    key_column: String,
    csv: Csv,
    out: Box<dyn Write>,
    /// A person looks at it.
    on_terminal: bool,
    line: Vec<u8>,
}

impl Printer {
    fn new(format: Format, key_column: String, csv: Csv) -> Self {
        let on_terminal = std::io::stdout().is_terminal();
        Self { format, key_column, csv, out: output::sink(), on_terminal, line: Vec::new() }
    }

    fn head(&mut self) -> Result<()> {
        if self.format == Format::Csv {
            self.csv.head(&mut self.line);
            self.end_line()?;
        }
        Ok(())
    }

    fn print(&mut self, entry: &Entry) -> Result<()> {
        match self.format {
            Format::Json => {
                serde_json::to_writer(&mut self.line, &entry.to_json(&self.key_column))?
            }
            Format::Csv => self.csv.row(&mut self.line, entry),
            Format::Usv => self.line.extend(entry.row().unwrap_or_default()),
        }
        self.end_line()
    }

    fn end_line(&mut self) -> Result<()> {
        if self.on_terminal {
            let text = String::from_utf8_lossy(&self.line);
            self.line = output::printable(&text).into_bytes();
        }
        self.line.push(b'\n');
        self.out.write_all(&self.line)?;
        self.line.clear();
        Ok(())
    }
}
