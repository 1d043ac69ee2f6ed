//! `dfq index get`: the records of some keys.

use anyhow::Result;
use clap::Args;
use dfq::ErrorKind;
use dfq::index::Entry;
use futures::StreamExt;
use jiff::Timestamp;
use serde::Serialize;

use crate::context::Context;
use crate::exit::Answer;
use crate::many::MAX_SENTENCES;
use crate::output;

/// Look up records: each is a line of JSON, in the order of the keys
///
/// Sees every put that returned, compacted or not. If a key is not there, the others are printed all the same, and the
/// exit status is 3. With --json each line says whether the key was found, and when its record was put.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  dfq index get ./domains example.com example.org | jq .employees"
)]
pub(crate) struct Get {
    /// The index
    index: String,
    /// The keys; `-` reads them from stdin, one on each line
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
}

#[derive(Serialize)]
struct FoundJson<'a> {
    key: &'a str,
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ulid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Lookups under way at a time.
const AT_ONCE: usize = 16;

impl Get {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let keys = keys(&self.keys)?;
        let index = context.open_index(&self.index).await?;
        let column = index.key_column();
        let from = &index;
        let lookups = keys.iter().map(|key| async move { (key, from.get(key).await) });
        let mut answers = futures::stream::iter(lookups).buffered(AT_ONCE);
        let (mut first, mut missing) = (None, 0);
        while let Some((key, answer)) = answers.next().await {
            let (entry, error) = match answer {
                Ok(entry) => (entry, None),
                // Wrong with the key, and not with the index.
                Err(error) if error.kind() == ErrorKind::Invalid => (None, Some(error)),
                Err(error) => return Err(error.into()),
            };
            if entry.is_none() {
                let kind = error.as_ref().map_or(ErrorKind::NotFound, dfq::Error::kind);
                first.get_or_insert(kind);
                missing += 1;
            }
            if context.json {
                print_json(key, &column, entry, error)?;
            } else if let Some(entry) = entry {
                output::json_line(&entry.to_json(&column))?;
            } else if missing <= MAX_SENTENCES && !context.quiet {
                let key = output::printable(key);
                match error {
                    Some(error) => output::note!("dfq: {}", output::printable(&error.to_string())),
                    None => output::note!("dfq: there is no record '{key}' in {}", index.address()),
                }
            }
        }
        if missing > MAX_SENTENCES && !context.json && !context.quiet {
            let more = output::thousands(missing - MAX_SENTENCES);
            output::note!("dfq: and {more} more that are not there; --json tells of each");
        }
        Ok(first.map_or(Answer::Yes, Answer::Told))
    }
}

fn print_json(
    key: &str,
    column: &str,
    entry: Option<Entry>,
    error: Option<dfq::Error>,
) -> Result<()> {
    output::json_line(&FoundJson {
        key,
        found: entry.is_some(),
        record: entry.as_ref().map(|entry| entry.to_json(column)),
        updated_at: entry.as_ref().and_then(|entry| entry.updated_at),
        ulid: entry.as_ref().and_then(|entry| entry.ulid.as_deref()),
        error: error.map(|error| error.to_string()),
    })
}

/// The keys as typed; `-` alone means one on each line of stdin.
pub(super) fn keys(typed: &[String]) -> Result<Vec<String>> {
    if typed != ["-"] {
        return Ok(typed.to_vec());
    }
    let lines = std::io::stdin().lines();
    let lines: Vec<String> = lines.collect::<std::io::Result<_>>()?;
    Ok(lines.into_iter().filter(|line| !line.is_empty()).collect())
}
