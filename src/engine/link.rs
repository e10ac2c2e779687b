//! Kafka as a round sees it: partitions by their number in the core, every call bounded.

use std::collections::HashMap;
use std::time::Duration;

use watermaster_core::round::{
    Commit, Committed, Failure, Kafka, OffsetsError, Output, Rejected, SendError, TransactionError,
};

use super::late::STEP;
use super::{Job, Place};
use crate::kafka::consumer::{self, CommitError, Consumer, Offsets, PartitionCommit, SourcePartition};
use crate::kafka::producer::{DeadLetter, Destination, Producer};
use crate::kafka::record;

/// One call that can be gone on with; the heart beats between two of them.
const CALL: Duration = Duration::from_millis(500);
/// The longest wait for the offsets of a transaction to be taken; far below the heartbeat's limit.
const SEND_OFFSETS: Duration = Duration::from_secs(5);
/// One attempt to learn what is committed.
const COMMITTED: Duration = Duration::from_secs(3);

/// The consumer and the producer of an engine.
pub(super) struct Link<'a> {
    pub(super) job: &'a Job,
    pub(super) consumer: &'a Consumer,
    pub(super) producer: &'a mut Producer,
    pub(super) places: &'a [Place],
    pub(super) numbers: &'a HashMap<SourcePartition, u32>,
}

/// Sends an output where it belongs.
pub(super) fn send(
    producer: &Producer,
    output: &Output<record::Output<'_>>,
    tag: usize,
) -> Result<(), SendError> {
    let to = match &output.rejected {
        None => Destination::Target,
        Some(Rejected { reason, retry_after, client }) => Destination::DeadLetter(DeadLetter {
            reason: *reason,
            client,
            retry_after_ms: u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX),
        }),
    };
    producer.send(to, &output.payload, tag)
}

/// Commits by source and partition.
pub(super) fn by_source(places: &[Place], commits: &[Commit]) -> Vec<PartitionCommit> {
    let by_source = |commit: &Commit| {
        let Place { source, partition, .. } = places[commit.partition as usize];
        PartitionCommit { source, partition, offset: commit.offset, metadata: commit.metadata.clone() }
    };
    commits.iter().map(by_source).collect()
}

impl Kafka<record::Output<'_>> for Link<'_> {
    type Offsets = Offsets;

    fn offsets(&mut self, commits: &[Commit]) -> Result<Offsets, OffsetsError> {
        self.consumer.transaction_offsets(&by_source(self.places, commits)).map_err(|error| match error {
            CommitError::Fatal(why) => OffsetsError::Never(why),
            CommitError::Lost(why) | CommitError::Retriable(why) => OffsetsError::Moved(why),
        })
    }

    fn init(&mut self) -> Result<(), TransactionError> {
        self.producer.init(CALL)
    }

    fn begin(&mut self) -> Result<(), TransactionError> {
        self.producer.begin()
    }

    fn send(&mut self, output: &Output<record::Output<'_>>, tag: usize) -> Result<(), SendError> {
        send(self.producer, output, tag)
    }

    fn flush(&mut self) -> bool {
        self.producer.flush(STEP)
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        self.producer.take_failures()
    }

    fn send_offsets(&mut self, offsets: &Offsets) -> Result<(), TransactionError> {
        self.producer.send_offsets(offsets, SEND_OFFSETS)
    }

    fn commit(&mut self) -> Result<(), TransactionError> {
        self.producer.commit(CALL)
    }

    fn abort(&mut self) -> Result<(), TransactionError> {
        self.producer.abort(CALL)
    }

    fn replace(&mut self) -> Result<(), String> {
        let limits = self.job.facts.limits(&self.job.service);
        let producer = Producer::new(&self.job.kafka, &self.job.service, limits);
        *self.producer = producer.map_err(|error| error.to_string())?;
        Ok(())
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, String> {
        let address = |&number: &u32| (self.places[number as usize].source, self.places[number as usize].partition);
        let addresses: Vec<SourcePartition> = partitions.iter().map(address).collect();
        let committed = self.consumer.committed(&addresses, COMMITTED).map_err(|error| error.to_string())?;
        let by_number = |(address, committed)| {
            let offset = match committed {
                consumer::Committed::Nothing => None,
                consumer::Committed::At { offset, metadata } => Some((offset, metadata)),
            };
            Committed { partition: self.numbers[&address], offset }
        };
        Ok(committed.into_iter().map(by_number).collect())
    }

    fn is_initialised(&self) -> bool {
        self.producer.is_initialised()
    }

    fn in_transaction(&self) -> bool {
        self.producer.in_transaction()
    }

    fn failing(&self) -> bool {
        self.producer.failing()
    }

    fn tainted(&self) -> bool {
        self.producer.tainted()
    }

    fn fatal(&self) -> Option<String> {
        self.producer.fatal()
    }
}
