//! Exit codes. One table gives the codes, their help and their tests.

use std::process::ExitCode;

/// The way in which a command ended; the value is the process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    /// The command line is wrong.
    Usage = 2,
    /// No broker answered at the start, or no instance (`top --once`).
    Unreachable = 69,
    /// No service is left running.
    Stopped = 70,
    /// The configuration is wrong, or its file is missing.
    Config = 78,
}

impl Exit {
    /// Every way to end with its meaning for `--help`, in the order of the codes.
    pub const TABLE: [(Exit, &'static str); 5] = [
        (Exit::Done, "done; also after SIGTERM or SIGINT, once all services have drained"),
        (Exit::Usage, "the command line is wrong"),
        (Exit::Unreachable, "no broker could be reached at the start; top --once: the instance did not answer"),
        (Exit::Stopped, "no service is left running: each met a fatal error"),
        (Exit::Config, "the configuration is wrong, or its file is missing"),
    ];

    /// Returns the table for `--help`.
    pub fn help() -> String {
        let rows: Vec<_> =
            Exit::TABLE.iter().map(|(exit, meaning)| format!("  {:<3} {meaning}", *exit as u8)).collect();
        format!("Exit codes:\n{}", rows.join("\n"))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
