//! The `watermaster` command: the library's command line, by default with jemalloc as the process's allocator.

use std::process::ExitCode;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    watermaster::cli::main().into()
}
