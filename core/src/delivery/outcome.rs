//! Reports of the delivery machine: the next step, events for the log and the metrics, fatal errors.

use strum::{IntoStaticStr, VariantNames};
use thiserror::Error;

use super::kafka::{ClientError, ErrorClass, Foreign, TransactionError};
use crate::offset_map::TooLarge;

/// The owner's task after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Again,
    /// Wait for a moment, then make the next step: a call that failed at once would fail at once again.
    Backoff,
    /// Serve the consumer group, then make the next step.
    PollGroup,
    /// The round is committed, or there was nothing to commit.
    Done,
}

/// The cause of a failed attempt, a replaced producer or a refused record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeliveryError {
    #[error("a connection broke: a late commit could end the next transaction")]
    Tainted,
    #[error("records were given up that may have arrived: others could be taken for them")]
    InDoubt,
    #[error("the offsets of a transaction were not answered in time")]
    OffsetsTimeout,
    #[error("an abort was not answered")]
    AbortTimeout,
    #[error("the group has moved on since the transaction began")]
    GroupMoved,
    #[error("a record is refused")]
    RecordRefused,
    #[error("the outputs did not arrive in time")]
    LandingTimeout,
    #[error("an output did not arrive")]
    NotLanded,
    #[error("larger than queue.buffering.max.kbytes")]
    LargerThanQueue,
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Transaction(#[from] TransactionError),
}

/// An error after which the service can't go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FatalError {
    #[error("committing failed: {0}")]
    Commit(#[source] DeliveryError),
    #[error("writing is refused: {0}")]
    Denied(#[source] DeliveryError),
    #[error("the offset map of a partition outgrew its budget: {0}")]
    Map(#[from] TooLarge),
    /// The dead-letter topic refuses this record and each stub of it.
    #[error("the dead-letter topic refuses a record: {source}")]
    Undeliverable { partition: u32, offset: i64, source: DeliveryError },
    #[error(transparent)]
    Foreign(Foreign),
    #[error("{count} producers failed within 10 min, the last one: {source}")]
    TooManyFailures { count: usize, source: DeliveryError },
    /// Two instances share a transactional id.
    #[error("fenced twice within a minute: {0}")]
    FencedTwice(#[source] DeliveryError),
    /// A producer could not be made.
    #[error(transparent)]
    NoProducer(ClientError),
}

/// The part of a round that is under way, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Phase {
    /// A producer gets its epoch.
    Prepare,
    /// The time until a transaction has begun.
    Begin,
    Send,
    Offsets,
    Commit,
    Abort,
    Resync,
}

/// The reason to replace a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ReplaceCause {
    Fatal,
    Fenced,
    Timeout,
    Disconnect,
}

/// The end of a transaction without an acknowledged commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    Aborted,
    /// Committed or not: a resync finds out.
    Unknown,
}

/// An occurrence for the log and the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    CallFailed {
        phase: Phase,
        class: ErrorClass,
    },
    AttemptEnded {
        outcome: AttemptOutcome,
        error: DeliveryError,
    },
    ProducerReplaced {
        cause: ReplaceCause,
        error: DeliveryError,
    },
    /// An attempt with this many outputs took too long: the next one has fewer.
    Divided {
        outputs: usize,
        next: usize,
    },
    /// The commit waits until the group is stable.
    GroupMoved(ClientError),
    CommitRetried(ClientError),
    /// Outputs that may have arrived are sent again.
    SentAgain {
        records: usize,
        error: ClientError,
    },
    /// The committed offsets can't be read yet.
    CommittedUnreadable(ClientError),
    /// The round was compared with the committed offsets: `done` outputs were committed, `left` were not.
    Compared {
        done: usize,
        left: usize,
    },
    /// The committed offset is higher than this owner's.
    Overtaken {
        partition: u32,
        committed: i64,
        known: i64,
    },
    /// A record that the target refuses goes to the dead-letter topic.
    Undeliverable {
        partition: u32,
        offset: i64,
        error: DeliveryError,
    },
    /// The dead-letter topic refuses a record, or the stub with its key: a stub, or one without the key, goes there.
    Stubbed {
        partition: u32,
        offset: i64,
        error: DeliveryError,
    },
    /// A record of which each stub is refused, too, is dropped.
    Discarded {
        partition: u32,
        offset: i64,
        error: DeliveryError,
    },
}
