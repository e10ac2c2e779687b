//! How the program ends. One table: the code, its help and its tests come from it.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All was done, or a signal asked for the end and everything was drained.
    Done = 0,
    /// The command line makes no sense.
    Usage = 2,
    /// No broker answered at the start, or no instance (`top --once`).
    Unreachable = 69,
    /// No service is left running.
    Stopped = 70,
    /// The configuration is wrong, or there is none.
    Config = 78,
}

impl Exit {
    /// Every ending, in the order of its code.
    pub const ALL: [Exit; 5] = [Exit::Done, Exit::Usage, Exit::Unreachable, Exit::Stopped, Exit::Config];

    /// The process's exit code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What it means, for `--help`.
    pub const fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done; also after SIGTERM or SIGINT, once everything is drained",
            Exit::Usage => "the command line makes no sense",
            Exit::Unreachable => "no broker could be reached at the start; top --once: the instance did not answer",
            Exit::Stopped => "no service is left running: each met a fatal error",
            Exit::Config => "the configuration is wrong, or its file is missing",
        }
    }

    /// The table for `--help`.
    pub fn table() -> String {
        let rows: Vec<_> = Exit::ALL.iter().map(|exit| format!("  {:<3} {}", exit.code(), exit.meaning())).collect();
        format!("Exit codes:\n{}", rows.join("\n"))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
