//! What a round asks of Kafka. Each call takes a bounded time; a machine in simulated time answers as well as brokers do.

use crate::offset_map::DecodeError;

use super::Output;

/// What to commit for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The partition's number.
    pub partition: u32,
    /// The first offset that is not completed.
    pub offset: i64,
    /// The map of what is completed beyond it.
    pub metadata: String,
}

/// What the group has committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The partition's number.
    pub partition: u32,
    /// The committed offset and the metadata beside it, as the broker keeps them; `None` if there are none.
    pub offset: Option<(i64, Vec<u8>)>,
}

/// What an error of a transaction asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The same call again, and no other.
    Retriable,
    /// Abort.
    Abortable,
    /// Another producer.
    Fatal,
}

impl ErrorClass {
    /// The names of all classes, for metrics.
    pub const NAMES: [&'static str; 3] = ["retriable", "abortable", "fatal"];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What an error of a transaction is about, where that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Another producer has this id now, or the coordinator ended the transaction for its age.
    Fenced,
    /// The group, or what is to be committed to it, is refused for good.
    Group,
    /// Writing is refused for good.
    Denied,
    Other,
}

/// Why a call of a transaction failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct TransactionError {
    pub class: ErrorClass,
    pub kind: ErrorKind,
    pub text: String,
}

impl TransactionError {
    /// One about nothing in particular.
    pub fn other(class: ErrorClass, text: impl Into<String>) -> TransactionError {
        TransactionError { class, kind: ErrorKind::Other, text: text.into() }
    }
}

/// Why offsets can't be committed now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OffsetsError {
    /// The group moved on: serve it, then take them again.
    Moved(String),
    /// They will never be taken.
    Never(String),
}

/// Why an output was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendError {
    /// Flush, then send again.
    QueueFull,
    /// This record can't be sent, ever.
    Refused(String),
    /// The topic can't be written to: authorization, gone, policy.
    Denied(String),
    /// The producer is of no use any more.
    Fatal(String),
}

/// Why an output that was taken did not arrive. A broker refuses whole batches: `Refused` may be a neighbour's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The broker refuses this record, or one of its batch, for good.
    Refused(String),
    /// The topic can't be written to: authorization, gone, policy.
    Denied(String),
    /// It may or may not have arrived.
    Unknown(String),
    /// The producer is of no use any more.
    Fatal(String),
}

/// The producer and the consumer of a service, as far as a transaction needs them.
pub trait Kafka<P> {
    /// Offsets that are ready to be made part of a transaction, with who we are in the group.
    type Offsets;

    /// Offsets with their maps, and who this member is in its group by now. Taken before the transaction begins; if the
    /// group moves on meanwhile, the broker refuses them.
    fn offsets(&mut self, commits: &[Commit]) -> Result<Self::Offsets, OffsetsError>;

    /// Gets the producer its epoch: fences and aborts whatever went before under the same id.
    fn init(&mut self) -> Result<(), TransactionError>;
    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), TransactionError>;
    /// Takes an output; it is on its way after this, and arrived when [`flush`](Kafka::flush) says true and
    /// [`failures`](Kafka::failures) does not name its tag. The payload must remain good for being sent again.
    fn send(&mut self, output: &mut Output<P>, tag: usize) -> Result<(), SendError>;
    /// Waits for a moment until nothing is in flight; false if something still is.
    fn flush(&mut self) -> bool;
    /// What did not arrive, by tag, since the last call.
    fn failures(&mut self) -> Vec<(usize, Failure)>;
    /// Makes the offsets part of the transaction. False: that is under way; then the same call again, and no other, until it
    /// is answered or the producer is given up.
    fn send_offsets(&mut self, offsets: &Self::Offsets) -> Result<bool, TransactionError>;
    /// Commits.
    fn commit(&mut self) -> Result<(), TransactionError>;
    /// Aborts.
    fn abort(&mut self) -> Result<(), TransactionError>;
    /// Another producer with the same id, not initialised.
    fn replace(&mut self) -> Result<(), String>;

    /// What the group has committed. Pending transactions are waited for.
    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, String>;

    /// Whether [`init`](Kafka::init) succeeded.
    fn is_initialised(&self) -> bool;
    /// Whether a transaction was begun and neither committed nor aborted.
    fn in_transaction(&self) -> bool;
    /// Something failed: the open transaction can't be committed any more.
    fn failing(&self) -> bool;
    /// A connection broke or a request timed out: a copy of a commit may still be on its way, and would end the *next*
    /// transaction (KAFKA-17754). Another producer gets another epoch, which makes that copy void.
    fn tainted(&self) -> bool;
    /// Why this producer is of no use any more, if so.
    fn fatal(&self) -> Option<String>;
}

/// An offset that somebody else committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The partition's number.
    pub partition: u32,
    pub offset: i64,
    pub why: DecodeError,
}
