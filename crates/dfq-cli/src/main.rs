//! `dfq`: a work queue with no server, on the command line.
//!
//! `args` is what can be typed, `commands/` has one file for each verb, `context` opens queues,
//! `output` is all that is printed, `exit` all that is answered. What a queue is and promises stands
//! in the library; nothing here knows a file of the tree.

mod args;
mod commands;
mod context;
mod cost;
mod exit;
mod many;
mod output;
mod select;

use std::process::ExitCode;

fn main() -> ExitCode {
    args::parse().map_or_else(|code| code, exit::run)
}
