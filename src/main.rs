//! The `watermaster` command: the library's command line, with jemalloc as the process's allocator.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    watermaster::cli::main().into()
}
