//! `dfq index init`: make an index, or name columns.

use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use dfq::index::{Column, Index, Kind};

use crate::context::{Context, whole};
use crate::exit::{Answer, invalid};
use crate::output;

/// Make an index, or name columns of one
///
/// The first put makes an index too, and puts add the columns that their records need: of the type of the first value. This
/// is for types that cannot be seen from a value (a datetime is a text in JSON), and for a name of the key. On an index that
/// is there already, --columns adds those that it lacks.
///
/// If another program made the index, and there is no datapackage.json that names its columns, --columns names them all, in
/// the order in which they stand in its rows; the first is the key. It can be written to from then on, in its own form.
///
/// Types: string, integer, float, boolean, datetime, json.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    dfq index init ./domains --key-field domain --columns seen:datetime,score:float\n  \
    dfq index init s3://bucket/indexes/theirs --columns domain,name,phone,updated_at")]
pub(crate) struct Init {
    /// The index
    index: String,
    /// The name of the key's column [default: that of dfq.toml, or key]
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// Columns, each a name, perhaps with a type: name:integer
    #[arg(long, value_name = "NAME[:TYPE],…", value_delimiter = ',')]
    columns: Vec<ColumnWords>,
}

/// A column as typed.
#[derive(Clone, Debug)]
struct ColumnWords(Column);

impl FromStr for ColumnWords {
    type Err = dfq::Error;

    fn from_str(text: &str) -> dfq::Result<Self> {
        // Names may have a colon in them, types do not.
        let (name, kind) = match text.rsplit_once(':') {
            Some((name, kind)) => (name, kind.parse()?),
            None => (text, Kind::String),
        };
        match name {
            "" => {
                let message = format!("'{text}' has no name; write name:type");
                Err(dfq::Error::new(dfq::ErrorKind::Invalid, message))
            }
            name => Ok(Self(Column::new(name, kind))),
        }
    }
}

impl Init {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let columns: Vec<Column> = self.columns.iter().map(|words| words.0.clone()).collect();
        for (at, column) in columns.iter().enumerate() {
            if column.name.starts_with('_') {
                let name = output::printable(&column.name);
                let message =
                    format!("--columns: '{name}' begins with '_', as dfq's own columns do");
                return Err(invalid(message));
            }
            if columns[..at].iter().any(|before| before.name == column.name) {
                let name = output::printable(&column.name);
                return Err(invalid(format!("--columns: '{name}' is given twice")));
            }
        }
        let mut place = context.index_place(&self.index, self.key_field.as_deref()).await?;
        let address = whole(&place.target().address);
        let key = place.key_field();
        match place.there() {
            Some(_) if columns.is_empty() => Err(invalid(format!(
                "{address} is an index already; its columns stand in datapackage.json"
            ))),
            Some(index) if index.is_unnamed() => {
                let (target, options) = (&place.target().address, context.index_options());
                let number = columns.len() as u64;
                Index::adopt(target, options, columns).await?;
                say(context, &format!("{} of {address} named", output::count(number, "column")));
                Ok(Answer::Yes)
            }
            Some(index) => {
                let key = index.key_column();
                if self.key_field.as_ref().is_some_and(|wanted| *wanted != key) {
                    return Err(invalid(format!(
                        "the key of {address} is '{key}'; that cannot change"
                    )));
                }
                let added = add(index, columns).await?;
                say(context, &format!("{} added to {address}", output::count(added, "column")));
                Ok(Answer::Yes)
            }
            None => {
                // Seen to before anything is made.
                if let Some(column) = columns.iter().find(|column| column.name == key) {
                    return Err(invalid(format!(
                        "--columns: '{}' is the key, which has a column of its own",
                        output::printable(&column.name)
                    )));
                }
                let index = place.make().await?;
                index.add_columns(columns).await?;
                Ok(Answer::Yes)
            }
        }
    }
}

/// Adds the columns that an index lacks; answers how many.
async fn add(index: &Index, columns: Vec<Column>) -> Result<u64> {
    let there = index.columns();
    let mut lacks = Vec::new();
    for column in columns {
        match there.iter().find(|there| there.name == column.name) {
            None => lacks.push(column),
            Some(there) if there.kind == column.kind => {}
            Some(there) => {
                return Err(invalid(format!(
                    "column '{}' is of type {}, which cannot change",
                    output::printable(&column.name),
                    there.kind.name()
                )));
            }
        }
    }
    let number = lacks.len() as u64;
    index.add_columns(lacks).await?;
    Ok(number)
}

fn say(context: &Context, text: &str) {
    if !context.quiet {
        output::note!("dfq: {text}");
    }
}
