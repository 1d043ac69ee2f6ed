//! `dfq index delete`: records that are no more.

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::get::keys;
use crate::context::Context;
use crate::exit::{self, Answer};
use crate::many::MAX_SENTENCES;
use crate::output;

/// Delete the records of keys
///
/// Puts a deletion for each key, which counts as a record does: one that is put later brings the key back, one with an
/// older "updated_at" does not. A key that is not there can be deleted, too. Deletions are kept for 90 days.
#[derive(Args, Debug)]
pub(crate) struct Delete {
    /// The index
    index: String,
    /// The keys; `-` reads them from stdin, one on each line
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
}

#[derive(Serialize)]
struct DeletedJson<'a> {
    key: &'a str,
    deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// How many are deleted in one go.
const BATCH: usize = 1000;

impl Delete {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let keys = keys(&self.keys)?;
        let index = context.open_index(&self.index).await?;
        let (mut first, mut deleted, mut refused) = (None, 0_u64, 0);
        for batch in keys.chunks(BATCH) {
            let answers = index.delete(batch.to_vec()).await;
            // What one of them says of the index, the others would say as well.
            let about_all = |error: &dfq::Error| error.kind() != dfq::ErrorKind::Invalid;
            let trouble = answers.iter().filter_map(|answer| answer.as_ref().err());
            if let Some(error) = trouble.into_iter().find(|error| about_all(error)) {
                let before =
                    answers.iter().filter(|answer| answer.is_ok()).count() as u64 + deleted;
                let done = match before {
                    0 => String::new(),
                    _ => format!("; deleted so far: {}", output::count(before, "key")),
                };
                return Err(dfq::Error::new(error.kind(), format!("{error}{done}")).into());
            }
            for (key, answer) in batch.iter().zip(answers) {
                let error = answer.err();
                match &error {
                    None => deleted += 1,
                    Some(error) => {
                        first.get_or_insert(error.kind());
                        refused += 1;
                    }
                }
                if context.json {
                    let (deleted, error) = (error.is_none(), error.map(|error| error.to_string()));
                    output::json_line(&DeletedJson { key, deleted, error })?;
                } else if let Some(error) = error.filter(|_| refused <= MAX_SENTENCES) {
                    exit::report(&error.into());
                }
            }
        }
        if !context.json && !context.quiet {
            output::note!("dfq: {} deleted", output::count(deleted, "key"));
        }
        Ok(first.map_or(Answer::Yes, Answer::Told))
    }
}
