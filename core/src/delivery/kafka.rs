//! The trait through which a delivery talks to Kafka. Each call takes a bounded time; a model in simulated time
//! implements it as well as brokers do.

use std::{error::Error, sync::Arc};

use strum::{IntoStaticStr, VariantNames};

use crate::offset_map::DecodeError;
use crate::units::Time;

use super::round::Output;

/// An offset to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub partition: u32,
    /// The first offset that is not completed.
    pub offset: i64,
    /// The map of the offsets beyond it that are completed.
    pub metadata: String,
}

/// The offset that the group has committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The partition's number.
    pub partition: u32,
    /// The committed offset and its metadata, as the broker keeps them; `None` if nothing is committed.
    pub offset: Option<(i64, Vec<u8>)>,
}

/// An error of a Kafka client. The delivery passes it on and decides nothing by it.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct ClientError(Arc<dyn Error + Send + Sync>);

impl ClientError {
    /// Wraps an error of a client, or a text.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> ClientError {
        ClientError(Arc::from(error.into()))
    }
}

impl PartialEq for ClientError {
    /// Compares the texts: clients' errors can't be compared otherwise.
    fn eq(&self, other: &ClientError) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for ClientError {}

/// The reaction that an error of a transaction asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ErrorClass {
    /// Repeat the same call, and make no other.
    Retriable,
    /// Abort the transaction.
    Abortable,
    /// Replace the producer.
    Fatal,
}

/// The cause of a transaction's error, where it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Another producer took this id, or the coordinator ended the transaction for its age.
    Fenced,
    /// The group, or the offsets for it, are refused for good.
    Group,
    /// Writing is refused for good.
    Denied,
    Other,
}

/// A failed call of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source}")]
pub struct TransactionError {
    pub class: ErrorClass,
    pub kind: ErrorKind,
    pub source: ClientError,
}

impl TransactionError {
    /// Makes an error of the kind [`ErrorKind::Other`].
    pub fn other(class: ErrorClass, error: impl Into<Box<dyn Error + Send + Sync>>) -> TransactionError {
        TransactionError { class, kind: ErrorKind::Other, source: ClientError::new(error) }
    }
}

/// Offsets that can't be committed now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OffsetsError {
    /// The group moved on: serve it, then take the offsets again.
    #[error(transparent)]
    GroupMoved(ClientError),
    /// A repeated commit may succeed; whether this one did is unknown.
    #[error(transparent)]
    Retriable(ClientError),
    /// The group will never take them.
    #[error(transparent)]
    Refused(ClientError),
}

/// An output that the producer did not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Flush, then send it again.
    #[error("the send queue is full")]
    QueueFull,
    /// This record can never be sent.
    #[error(transparent)]
    Refused(ClientError),
    /// The topic can't be written to: authorization, gone, policy.
    #[error(transparent)]
    Denied(ClientError),
    /// The producer takes nothing any more.
    #[error(transparent)]
    Fatal(ClientError),
}

/// An output that the producer took and that did not arrive. A broker refuses whole batches, so a `Refused` one may
/// only have been in the batch of the culprit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The broker refuses this record, or another one of its batch, for good.
    #[error(transparent)]
    Refused(ClientError),
    /// The topic can't be written to: authorization, gone, policy.
    #[error(transparent)]
    Denied(ClientError),
    /// The record may or may not have arrived.
    #[error(transparent)]
    Unknown(ClientError),
    /// The producer sends nothing any more.
    #[error(transparent)]
    Fatal(ClientError),
}

impl Failure {
    /// Returns the client's error.
    pub fn into_cause(self) -> ClientError {
        match self {
            Failure::Refused(error) | Failure::Denied(error) | Failure::Unknown(error) | Failure::Fatal(error) => error,
        }
    }
}

/// The producer and the consumer of a service, as far as a delivery needs them.
pub trait Kafka<P> {
    /// Offsets that are ready to be committed by this member of the group.
    type Offsets;

    // ## Both deliveries

    /// Prepares offsets with their maps for a commit, together with this member's identity in the group. If the group
    /// moves on before the commit, the broker refuses them.
    fn offsets(&mut self, commits: &[Commit]) -> Result<Self::Offsets, OffsetsError>;
    /// Takes an output. It has arrived once [`flush`](Kafka::flush) returned true and [`failures`](Kafka::failures) did
    /// not name its tag. The payload must stay good for being sent again.
    fn send(&mut self, output: &mut Output<P>, tag: usize) -> Result<(), SendError>;
    /// Waits for a moment until nothing is in flight; returns false if something still is.
    fn flush(&mut self) -> bool;
    /// Takes the failures since the last call, by tag.
    fn failures(&mut self) -> Vec<(usize, Failure)>;
    /// Replaces the producer by a new one, with the same id and not initialised.
    fn replace(&mut self) -> Result<(), ClientError>;
    /// Returns the error after which the producer sends nothing any more, if one occurred.
    fn fatal(&self) -> Option<ClientError>;
    /// Returns the time after the last call, in a step that began at `step`: the process may have stood still in the
    /// call.
    fn now(&self, step: Time) -> Time {
        step
    }

    // ## At least once

    /// Commits the offsets through the consumer. Returns false while the answer is awaited: the same call goes on with
    /// it.
    fn commit_offsets(&mut self, offsets: &Self::Offsets) -> Result<bool, OffsetsError>;
    /// Abandons what is in flight: each record becomes a [`Failure::Unknown`].
    fn purge(&mut self);

    // ## Exactly once

    /// Gets the producer an epoch, which fences earlier producers of the same id and aborts their transactions.
    fn init(&mut self) -> Result<(), TransactionError>;
    fn begin(&mut self) -> Result<(), TransactionError>;
    /// Adds the offsets to the transaction. Returns false while the answer is awaited: then only the same call may
    /// follow, until it is answered or the producer is replaced.
    fn send_offsets(&mut self, offsets: &Self::Offsets) -> Result<bool, TransactionError>;
    fn commit(&mut self) -> Result<(), TransactionError>;
    fn abort(&mut self) -> Result<(), TransactionError>;
    /// Reads what the group has committed, after pending transactions have ended.
    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, ClientError>;
    /// Returns whether [`init`](Kafka::init) succeeded.
    fn is_initialised(&self) -> bool;
    /// Returns whether a transaction was begun and neither committed nor aborted.
    fn in_transaction(&self) -> bool;
    /// Returns whether the open transaction can't be committed any more.
    fn failing(&self) -> bool;
    /// Returns whether a connection broke or a request timed out. A copy of a commit may then still be on its way and
    /// would end the *next* transaction (KAFKA-17754); a new producer has another epoch, which makes that copy void.
    fn tainted(&self) -> bool;
}

/// A committed offset that this program did not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("foreign offset {offset} of partition {partition}")]
pub struct Foreign {
    /// The partition's number.
    pub partition: u32,
    pub offset: i64,
    pub source: DecodeError,
}
