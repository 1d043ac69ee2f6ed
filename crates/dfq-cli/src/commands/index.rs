//! `dfq index`: records by key.

mod check;
mod compact;
mod delete;
mod get;
mod import;
mod init;
mod lines;
mod put;
mod scan;
mod stats;
mod told;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::exit::Answer;

/// Records by key, on the same storage as queues
///
/// Any number of writers put records; the latest of each key counts. `dfq index compact` merges them into sorted text
/// files, which awk, DuckDB and others read. A lookup sees every put that returned, compacted or not.
///
/// INDEX is an address (./domains, s3://bucket/domains; made by the first put) or a name below [indexes] in the nearest
/// dfq.toml. `dfq work --index` puts what commands print.
#[derive(Args, Debug)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct IndexCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Put(put::Put),
    Get(get::Get),
    Delete(delete::Delete),
    Scan(scan::Scan),
    Stats(stats::Stats),
    Compact(compact::Compact),
    Import(import::Import),
    Check(check::Check),
    Init(init::Init),
}

impl IndexCommand {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        match self.verb {
            Verb::Put(args) => args.run(context).await,
            Verb::Get(args) => args.run(context).await,
            Verb::Delete(args) => args.run(context).await,
            Verb::Scan(args) => args.run(context).await,
            Verb::Stats(args) => args.run(context).await,
            Verb::Compact(args) => args.run(context).await,
            Verb::Import(args) => args.run(context).await,
            Verb::Check(args) => args.run(context).await,
            Verb::Init(args) => args.run(context).await,
        }
    }
}
