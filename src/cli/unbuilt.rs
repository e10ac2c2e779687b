//! What the command line calls and nobody has built yet. Each function here goes when its command exists.

use watermaster_core::policy::Mode;

use crate::config::Config;
use crate::exit::Exit;
use crate::settings::Settings;

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    pub accept_foreign_offsets: bool,
}

/// How to demonstrate.
#[derive(Debug, Clone, Copy)]
pub struct DemoOptions {
    pub mode: Mode,
    /// Admit everything, and count what would have been done.
    pub observe: bool,
    pub seconds: u64,
    /// Print one JSON object at the end instead of tables.
    pub json: bool,
}

/// Runs the throttler.
pub fn run(_config: Config, _options: RunOptions) -> Exit {
    not_built("run")
}

/// Runs the demo.
pub fn demo(_options: DemoOptions) -> Exit {
    not_built("demo")
}

/// Asks the brokers.
pub fn connect(_settings: &Settings) -> Exit {
    not_built("check --connect")
}

fn not_built(command: &str) -> Exit {
    eprintln!("watermaster {command} is not built yet");
    Exit::Stopped
}
