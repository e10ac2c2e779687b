//! Logs: to stderr, so that results have stdout for themselves.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::TryInitError;

use crate::settings::LogFormat;

/// Starts logging for the whole process. `RUST_LOG` chooses what is logged, else `default` and above is.
///
/// Answers with an error when logging was started before.
pub fn init(format: LogFormat, default: Level) -> Result<(), TryInitError> {
    use tracing_subscriber::util::SubscriberInitExt;

    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default.as_str()));
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal);
    if is_json(format, terminal) { lines.json().finish().try_init() } else { lines.finish().try_init() }
}

fn is_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    }
}
