//! The engine's side of the core's trait `Kafka`: partitions by their number in the core, every call bounded.

use std::time::Duration;

use watermaster_core::delivery::{
    ClientError, Commit, Committed, ErrorClass, Failure, Kafka, OffsetsError, Output, SendError, TransactionError,
};
use watermaster_core::units::Time;

use super::{Job, partitions::Partitions};
use crate::clock::Clock;
use watermaster_kafka::consumer::{Consumer, Offsets, SourcePartition};
use watermaster_kafka::producer::{Producer, TaintedStarts};
use watermaster_kafka::record::Record;

/// The longest wait of one step. Between two steps the heart beats and a shutdown is seen.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest wait of a transaction's call that can be repeated.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
const COMMITTED_TIMEOUT: Duration = Duration::from_secs(3);

/// The consumer and the producer of an engine, and the numbers of its partitions.
pub(super) struct Link<'c> {
    pub(super) job: &'c Job,
    clock: &'c Clock,
    pub(super) consumer: &'c Consumer,
    pub(super) producer: &'c mut Producer,
    pub(super) partitions: &'c mut Partitions,
    tainted_starts: TaintedStarts,
}

impl<'c> Link<'c> {
    pub(super) fn new(
        job: &'c Job, clock: &'c Clock, consumer: &'c Consumer, producer: &'c mut Producer,
        partitions: &'c mut Partitions,
    ) -> Link<'c> {
        Link { job, clock, consumer, producer, partitions, tainted_starts: TaintedStarts::default() }
    }

    /// Returns the topic of a partition and its number there.
    pub(super) fn name(&self, number: u32) -> (&str, i32) {
        let (source, partition) = self.partitions.address(number);
        (&self.partitions.sources.get(source).topic, partition)
    }
}

impl Kafka<Record<'_>> for Link<'_> {
    type Offsets = Offsets;

    fn offsets(&mut self, commits: &[Commit]) -> Result<Offsets, OffsetsError> {
        let commits: Vec<_> =
            commits.iter().map(|commit| (self.partitions.address(commit.partition), commit)).collect();
        self.consumer.offsets(&commits)
    }

    fn send(&mut self, output: &mut Output<Record<'_>>, tag: usize) -> Result<(), SendError> {
        let rejected = output.rejected.as_deref().map(|rejected| (rejected, output.form));
        self.producer.send(&mut output.payload, rejected, tag)
    }

    fn flush(&mut self) -> bool {
        self.producer.transactions().flush(STEP_TIMEOUT)
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        self.producer.transactions().take_failures()
    }

    fn replace(&mut self) -> Result<(), ClientError> {
        *self.producer = self.partitions.sources.producer(self.job).map_err(ClientError::new)?;
        Ok(())
    }

    fn fatal(&self) -> Option<ClientError> {
        self.producer.transactions().fatal()
    }

    fn now(&self, _step: Time) -> Time {
        self.clock.now()
    }

    fn commit_offsets(&mut self, offsets: &Offsets) -> Result<bool, OffsetsError> {
        self.consumer.commit_offsets(offsets, STEP_TIMEOUT)
    }

    fn purge(&mut self) {
        self.producer.transactions().purge();
    }

    fn init(&mut self) -> Result<(), TransactionError> {
        self.producer.transactions().init(CALL_TIMEOUT)?;
        if self.tainted_starts.accept(self.producer.transactions()) {
            return Ok(());
        }
        self.replace().map_err(|error| TransactionError::other(ErrorClass::Fatal, error))?;
        Err(TransactionError::other(ErrorClass::Retriable, "a connection broke before the producer was ready"))
    }

    fn begin(&mut self) -> Result<(), TransactionError> {
        self.producer.transactions().begin()
    }

    fn send_offsets(&mut self, offsets: &Offsets) -> Result<bool, TransactionError> {
        self.producer.transactions().send_offsets(offsets, CALL_TIMEOUT)
    }

    fn commit(&mut self) -> Result<(), TransactionError> {
        self.producer.transactions().commit(CALL_TIMEOUT)
    }

    fn abort(&mut self) -> Result<(), TransactionError> {
        self.producer.transactions().abort(CALL_TIMEOUT)
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, ClientError> {
        let addresses: Vec<SourcePartition> =
            partitions.iter().map(|&number| self.partitions.address(number)).collect();
        let committed = self.consumer.committed(&addresses, COMMITTED_TIMEOUT).map_err(ClientError::new)?;
        let by_number = |(address, offset)| {
            let partition = self.partitions.find(address).expect("the answer names the partitions of the request");
            Committed { partition, offset }
        };
        Ok(committed.into_iter().map(by_number).collect())
    }

    fn is_initialised(&self) -> bool {
        self.producer.transactions().is_initialised()
    }

    fn in_transaction(&self) -> bool {
        self.producer.transactions().in_transaction()
    }

    fn failing(&self) -> bool {
        self.producer.transactions().failing()
    }

    fn tainted(&self) -> bool {
        self.producer.transactions().tainted()
    }
}
