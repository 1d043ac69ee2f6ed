//! `dfq completions` and `dfq man`: what a shell and a manual need to know, made from the arguments
//! themselves.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::Resettable;
use clap_mangen::Man as Page;

use crate::context::Context;
use crate::exit::{Answer, TABLE, unwritable};

/// Print a script that completes dfq's commands and options in a shell
///
/// bash: dfq completions bash > ~/.local/share/bash-completion/completions/dfq
/// fish: dfq completions fish > ~/.config/fish/completions/dfq.fish
/// zsh:  dfq completions zsh > _dfq, in a folder of $fpath
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    pub(crate) async fn run(self, _context: &Context) -> Result<Answer> {
        // Into memory first: it panics where it cannot write, and whoever reads us may go away.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::args::command(), "dfq", &mut script);
        std::io::stdout().lock().write_all(&script)?;
        Ok(Answer::Yes)
    }
}

/// Print the manual page, or write one for each command
///
/// `dfq man | man -l -` shows it.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Write dfq.1, dfq-push.1, dfq-index-put.1 and so on into this folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let mut dfq = crate::args::command();
        dfq.build();
        let Some(dir) = &self.dir else {
            std::io::stdout().lock().write_all(&page(dfq)?)?;
            return Ok(Answer::Yes);
        };
        let mut commands = Vec::new();
        pages_below(&dfq, "dfq", &mut commands);
        std::fs::create_dir_all(dir).map_err(|error| unwritable(dir, &error))?;
        let number = commands.len() + 1;
        for command in std::iter::once(dfq).chain(commands) {
            let file = dir.join(format!("{}.1", command.get_name()));
            std::fs::write(&file, page(command)?).map_err(|error| unwritable(&file, &error))?;
        }
        if !context.quiet {
            crate::output::note!("dfq: {number} pages written into {}", dir.display());
        }
        Ok(Answer::Yes)
    }
}

/// The commands below one, each under the name of its page: `dfq-push`, `dfq-index-put`.
fn pages_below(command: &clap::Command, name: &str, pages: &mut Vec<clap::Command>) {
    let shown = |below: &&clap::Command| below.get_name() != "help" && !below.is_hide_set();
    for below in command.get_subcommands().filter(shown) {
        let name = format!("{name}-{}", below.get_name());
        pages_below(below, &name, pages);
        pages.push(below.clone().name(name));
    }
}

/// A command's manual page.
fn page(command: clap::Command) -> Result<Vec<u8>> {
    // The table has a section of its own, instead of what clap would make of it.
    let page = Page::new(command.after_long_help(Resettable::Reset).after_help(Resettable::Reset))
        .manual("dfq")
        .source(format!("dfq {}", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    page.render(&mut out).context("the manual page cannot be made")?;
    out.extend_from_slice(exit_section().as_bytes());
    Ok(out)
}

/// The table of exit statuses in the manual's own markup.
fn exit_section() -> String {
    let mut section = String::from(".SH \"EXIT STATUS\"\n");
    for line in TABLE.lines().skip(1) {
        let (status, meaning) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
        section += &format!(".TP\n\\fB{status}\\fR\n{}\n", escape(meaning.trim()));
    }
    section
}

fn escape(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    // A line that begins with a dot or a quote would be an instruction.
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}
