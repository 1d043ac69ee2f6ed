//! `dfq`: a work queue with no server, on the command line.
//!
//! `args` is what can be typed, `commands/` has one file for each verb, `context` opens queues,
//! `output` is all that is printed, `exit` all that is answered. What a queue is and promises stands
//! in the library; nothing here knows a file of the tree. It is a library only so that its parsers can be fuzzed, and
//! tests can run it with a wrong clock.

mod args;
mod commands;
mod context;
mod cost;
mod exit;
mod many;
mod output;
#[cfg(feature = "parsers")]
pub mod parsers;
mod select;

use std::process::ExitCode;

use dfq::Env;

/// Reads the command line, and does what it says.
pub fn main() -> ExitCode {
    main_in(Env::system())
}

/// The same with another clock, or chance.
pub fn main_in(env: Env) -> ExitCode {
    args::parse().map_or_else(|code| code, |cli| exit::run(cli, env))
}
