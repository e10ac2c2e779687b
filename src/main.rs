//! The `watermaster` command. Everything that it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    watermaster::cli::main().into()
}
