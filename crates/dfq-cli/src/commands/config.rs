//! `dfq config`: every value that counts, and where it came from.

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::context::Context;
use crate::exit::Answer;
use crate::output::{self, Table};

/// Show every value that counts, and where it came from
///
/// A flag goes before the environment, that before dfq.toml, and that before the default. AWS
/// credentials come from where every AWS tool takes them, and are never shown.
#[derive(Args, Debug)]
pub(crate) struct Config {}

#[derive(Serialize)]
struct Row<'a> {
    key: &'a str,
    value: Option<&'a str>,
    /// flag, environment, file, made or default.
    from: &'static str,
    /// The flag, variable or key; or what it was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl Config {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let values = context.config.effective()?;
        if context.json {
            for value in &values {
                output::json_line(&Row {
                    key: &value.key,
                    value: value.value.as_deref(),
                    from: value.origin.kind(),
                    name: value.origin.name(),
                })?;
            }
            return Ok(Answer::Yes);
        }
        let mut table = Table::new(&["KEY", "VALUE", "FROM"]);
        for value in values {
            let shown = value.value.unwrap_or_else(|| "-".to_owned());
            table.row([value.key, shown, value.origin.to_string()]);
        }
        table.print()?;
        Ok(Answer::Yes)
    }
}
