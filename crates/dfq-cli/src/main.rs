//! The command; see the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    dfq_cli::main()
}
