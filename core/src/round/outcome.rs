//! What the machine says: what to do next, why it can't go on, what happened.

use super::kafka::{ErrorClass, Foreign};

/// What to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The next step.
    Again,
    /// The next step, after a moment: what failed at once would fail at once again.
    Breathe,
    /// Serve the group, then the next step.
    ServeGroup,
    /// The round is committed, or there was nothing to commit.
    Done,
}

/// Why the service can't go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The group refuses what is committed, for good.
    Commit(String),
    /// Writing is refused for good.
    Denied(String),
    /// The map of a partition outgrew its budget.
    Map(String),
    /// The dead-letter topic refuses this record and each stub of it.
    Undeliverable { partition: u32, offset: i64, why: String },
    /// Somebody else committed.
    Foreign(Foreign),
    /// No producer lives long.
    Failures { count: usize, why: String },
    /// Two instances share an id.
    FencedTwice(String),
    /// There is no other producer to be had.
    NoProducer(String),
}

/// Where a round is, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A producer gets its epoch.
    Prepare,
    /// Until the transaction has begun.
    Begin,
    Send,
    Offsets,
    Commit,
    Abort,
    Resync,
}

impl Phase {
    /// The names of all phases.
    pub const NAMES: [&'static str; 7] = ["prepare", "begin", "send", "offsets", "commit", "abort", "resync"];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Why a producer is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Fatal,
    Fenced,
    Timeout,
    Disconnect,
}

impl Cause {
    /// The names of all causes.
    pub const NAMES: [&'static str; 4] = ["fatal", "fenced", "timeout", "disconnect"];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// How an attempt that was not committed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Aborted,
    /// It may be committed or not: resync tells.
    Unknown,
}

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A call failed.
    Failed { phase: Phase, class: ErrorClass },
    /// A transaction ended without an acknowledged commit.
    Ended { outcome: Ending, why: String },
    /// The producer was replaced.
    Replaced { cause: Cause, why: String },
    /// An attempt with so many outputs took too long: the next one has fewer.
    Divided { outputs: usize, next: usize },
    /// Not sent yet.
    GroupMoves(String),
    /// What is committed can't be learnt yet.
    Unlearnt(String),
    /// The round was compared with what is committed: so many outputs were, so many are left.
    Compared { done: usize, left: usize },
    /// More is committed than this owner knows of.
    Overtaken { partition: u32, committed: i64, known: i64 },
    /// A record that its topic refuses goes to the dead-letter topic.
    Undeliverable { partition: u32, offset: i64, why: String },
    /// The dead-letter topic refuses a record, or the stub with its key: a stub, or one without the key, goes there.
    Stubbed { partition: u32, offset: i64, why: String },
    /// A record whose stubs are refused, too, is let go.
    Discarded { partition: u32, offset: i64, why: String },
}
