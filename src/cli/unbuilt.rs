//! What the command line calls and nobody has built yet. Each function here goes when its command exists.

use watermaster_core::policy::Mode;

use crate::config::Config;
use crate::exit::Exit;
use crate::settings::Settings;

/// How to run.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "read once run exists")]
pub struct RunOptions {
    pub accept_foreign_offsets: bool,
}

/// How to demonstrate.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "read once the demo exists")]
pub struct DemoOptions {
    pub mode: Mode,
    /// Admit everything, and count what would have been done.
    pub observe: bool,
    pub seconds: u64,
    /// Print one JSON object at the end instead of tables.
    pub json: bool,
}

/// Runs the throttler.
pub fn run(config: Config, options: RunOptions) -> Exit {
    not_built(&format!(
        "run ({} services, {options:?})",
        config.settings.services.len()
    ))
}

/// Runs the demo.
pub fn demo(options: DemoOptions) -> Exit {
    not_built(&format!("demo ({:?}, {options:?})", options.mode))
}

/// Asks the brokers.
pub fn connect(settings: &Settings) -> Exit {
    not_built(&format!(
        "check --connect ({})",
        settings.kafka.bootstrap_servers
    ))
}

fn not_built(what: &str) -> Exit {
    eprintln!("not built yet: {what}");
    Exit::Stopped
}
