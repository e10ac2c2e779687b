//! The `watermaster` command. Everything that it does is in the library, but for the choice of the process's allocator.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    watermaster::cli::main().into()
}
