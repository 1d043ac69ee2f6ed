//! `dfq umask`: what `dfq work` starts commands through when it has changed its own umask for the sake
//! of a shared queue. Not for people.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::exit::{Answer, invalid};

/// Run a command with this umask
#[derive(Args, Debug)]
#[command(hide = true)]
pub(crate) struct Umask {
    /// In octal
    mask: String,
    #[arg(last = true, required = true)]
    command: Vec<std::ffi::OsString>,
}

impl Umask {
    pub(crate) async fn run(self, _: &Context) -> Result<Answer> {
        let mask = u32::from_str_radix(&self.mask, 8);
        let mask = mask.map_err(|_| invalid(format!("'{}' is no umask", self.mask)))?;
        rustix::process::umask(rustix::fs::Mode::from_bits_retain(mask));
        let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
        crate::output::note!("dfq: {}: {error}", self.command[0].display());
        // As a shell would: found but not to be run, or not found.
        let found = error.kind() != std::io::ErrorKind::NotFound;
        Ok(Answer::CannotRun { found })
    }
}
