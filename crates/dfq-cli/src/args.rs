//! What can be typed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{Styles, styling::AnsiColor};
use clap::{Args, CommandFactory, Parser, Subcommand};
use dfq::config::Provider;

use crate::commands as c;
use crate::exit;

/// A work queue with no server: the queue is a directory or a bucket.
///
/// QUEUE is an address (./jobs, /data/jobs, s3://bucket/prefix; also gs:// and az://; made by the first
/// push) or a name from the nearest dfq.toml.
#[derive(Parser, Debug)]
#[command(name = "dfq", version, styles = styles(), after_long_help = exit::TABLE)]
#[command(subcommand_required = true, arg_required_else_help = true, propagate_version = true)]
#[command(after_help = "`dfq help COMMAND` tells more; `dfq demo` shows it at work.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes.
#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Names queues, instead of the nearest dfq.toml [env: DFQ_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Names mean queues of this campaign [env: DFQ_CAMPAIGN]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub(crate) campaign: Option<String>,
    /// Names mean queues in this kind of store, whatever dfq.toml says [env: DFQ_QUEUE_TYPE]
    #[arg(
        long,
        global = true,
        value_name = "KIND",
        value_parser = Provider::WORDS,
        help_heading = "Global options"
    )]
    pub(crate) provider: Option<String>,
    /// Say at the end, on stderr, which requests were sent to the store, and what they cost
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) cost: bool,
    /// Print JSON lines
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Print no more than asked for
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Say more about what happens; -vv and -vvv say even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Push(c::push::Push),
    Work(Box<c::work::Work>),
    Poll(c::poll::Poll),
    Ack(c::settle::Ack),
    Nack(c::settle::Nack),
    Fail(c::settle::Fail),
    Heartbeat(c::settle::Heartbeat),
    Release(c::settle::Release),
    Ls(c::ls::Ls),
    Show(c::show::Show),
    Peek(c::peek::Peek),
    Stats(c::stats::Stats),
    Top(c::top::Top),
    Workers(c::workers::Workers),
    Explain(c::explain::Explain),
    Failed(c::failed::Failed),
    Retry(c::retry::Retry),
    Cancel(c::cancel::Cancel),
    Unlock(c::unlock::Unlock),
    Pause(c::pause::Pause),
    Resume(c::pause::Resume),
    Gc(c::gc::Gc),
    Supervise(c::supervise::Supervise),
    Conflicts(c::conflicts::Conflicts),
    Index(c::index::IndexCommand),
    Check(c::check::Check),
    Wait(c::wait::Wait),
    Export(c::export::Export),
    Cp(c::cp::Cp),
    Mv(c::cp::Mv),
    Init(c::init::Init),
    Queues(c::queues::Queues),
    Config(c::config::Config),
    IamPolicy(c::iam_policy::IamPolicy),
    Bench(c::bench::Bench),
    Doctor(c::doctor::Doctor),
    Demo(c::demo::Demo),
    Completions(c::generate::Completions),
    Man(c::generate::Man),
    Umask(c::umask::Umask),
}

/// Reads the command line; otherwise says what is wrong with it, and answers the exit status.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        // Help and version are answers, not errors.
        let status = if error.use_stderr() { exit::status(dfq::ErrorKind::Invalid) } else { 0 };
        let _ = error.print();
        ExitCode::from(status)
    })
}

/// The command line as clap sees it, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

fn styles() -> Styles {
    Styles::styled()
        .header(AnsiColor::Green.on_default().bold())
        .usage(AnsiColor::Green.on_default().bold())
        .literal(AnsiColor::Cyan.on_default().bold())
        .placeholder(AnsiColor::Cyan.on_default())
}

/// A length of time, as `90s`, `10m`, `3h50m` or `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    dfq::config::parse_duration(text).map_err(|error| error.to_string())
}

/// `--dry-run` and `--yes`, for whatever touches many tasks.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Careful {
    /// Only say what would be done
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// What a command that touches many tasks is to touch.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct Which {
    /// The tasks' ids
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "ids")]
    pub(crate) all: bool,
    /// Those with field=value, field!=value or field~part; field is a member of the task as `a.b`, or
    /// id, error or worker. May be given more than once: all must hold
    #[arg(long = "where", value_name = "CONDITION", conflicts_with_all = ["ids", "all"])]
    pub(crate) conditions: Vec<crate::select::Condition>,
}
