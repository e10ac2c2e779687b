//! Kafka as a round sees it: partitions by their number in the core, every call bounded.

use std::time::Duration;

use watermaster_core::round::{
    Commit, Committed, ErrorClass, Failure, Kafka, OffsetsError, Output, Rejected, SendError, TransactionError,
};

use super::Job;
use super::late::STEP;
use super::places::Places;
use watermaster_kafka::consumer::{self, CommitError, Consumer, Offsets, PartitionCommit, SourcePartition};
use watermaster_kafka::failpoint;
use watermaster_kafka::producer::{DeadLetter, Destination, Producer};
use watermaster_kafka::record;

/// One call that can be gone on with; the heart beats between two of them.
const CALL: Duration = Duration::from_millis(500);
/// So many producers in a row may lose a connection before they have their epoch; the next one may keep it.
const TAINTED_STARTS: u32 = 3;
/// One attempt to learn what is committed.
const COMMITTED: Duration = Duration::from_secs(3);

/// The consumer and the producer of an engine, and the numbers of its partitions.
pub(super) struct Link<'c> {
    pub(super) job: &'c Job,
    pub(super) consumer: &'c Consumer,
    pub(super) producer: Producer,
    pub(super) places: Places,
    /// How many producers lost a connection before they had their epoch, since one did not.
    tainted_starts: u32,
}

impl<'c> Link<'c> {
    pub(super) fn new(job: &'c Job, consumer: &'c Consumer, producer: Producer, places: Places) -> Link<'c> {
        Link { job, consumer, producer, places, tainted_starts: 0 }
    }

    /// Commits by source and partition.
    pub(super) fn by_source(&self, commits: &[Commit]) -> Vec<PartitionCommit> {
        let by_source = |commit: &Commit| {
            let (source, partition) = self.places.address(commit.partition);
            PartitionCommit { source, partition, offset: commit.offset, metadata: commit.metadata.clone() }
        };
        commits.iter().map(by_source).collect()
    }
}

/// Sends an output where it belongs.
pub(super) fn send(producer: &Producer, output: &mut Output<record::Output<'_>>, tag: usize) -> Result<(), SendError> {
    let to = match &output.rejected {
        None => Destination::Target,
        Some(Rejected { reason, retry_after, client }) => Destination::DeadLetter(DeadLetter {
            reason: *reason,
            client,
            retry_after_ms: u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX),
            form: output.form,
        }),
    };
    producer.send(to, &mut output.payload, tag)
}

/// A call between two places at which the process can be told to die; the second one is reached if it succeeded.
fn around<E>(before: &str, after: &str, call: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    failpoint::reach(before);
    call()?;
    failpoint::reach(after);
    Ok(())
}

impl Kafka<record::Output<'_>> for Link<'_> {
    type Offsets = Offsets;

    fn offsets(&mut self, commits: &[Commit]) -> Result<Offsets, OffsetsError> {
        self.consumer.transaction_offsets(&self.by_source(commits)).map_err(|error| match error {
            CommitError::Fatal(why) => OffsetsError::Never(why.to_string()),
            CommitError::Lost(why) | CommitError::Retriable(why) => OffsetsError::Moved(why.to_string()),
        })
    }

    fn init(&mut self) -> Result<(), TransactionError> {
        self.producer.init(CALL)?;
        // Librdkafka tells once in 30 s what happens to a connection time and again: a connection that broke before could hide
        // one that breaks now. A client of its own starts with a clean slate. Where each one begins so (an address that
        // nobody answers at as Kafka does), the third has to do.
        if self.producer.tainted() && self.tainted_starts < TAINTED_STARTS {
            self.tainted_starts += 1;
            let text = "a connection broke before the producer was ready";
            self.replace().map_err(|why| TransactionError::other(ErrorClass::Fatal, why))?;
            return Err(TransactionError::other(ErrorClass::Retriable, text));
        }
        self.tainted_starts = 0;
        self.producer.forgive();
        Ok(())
    }

    fn begin(&mut self) -> Result<(), TransactionError> {
        around("before_begin", "after_begin", || self.producer.begin())
    }

    fn send(&mut self, output: &mut Output<record::Output<'_>>, tag: usize) -> Result<(), SendError> {
        send(&self.producer, output, tag)
    }

    fn flush(&mut self) -> bool {
        let landed = self.producer.flush(STEP);
        if landed {
            failpoint::reach("after_send");
        }
        landed
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        self.producer.take_failures()
    }

    fn send_offsets(&mut self, offsets: &Offsets) -> Result<bool, TransactionError> {
        failpoint::reach("before_offsets");
        let placed = self.producer.send_offsets(offsets, CALL)?;
        if placed {
            failpoint::reach("after_offsets");
        }
        Ok(placed)
    }

    fn commit(&mut self) -> Result<(), TransactionError> {
        around("before_commit", "after_commit", || self.producer.commit(CALL))
    }

    fn abort(&mut self) -> Result<(), TransactionError> {
        self.producer.abort(CALL)
    }

    fn replace(&mut self) -> Result<(), String> {
        let limits = self.job.facts.limits(&self.job.service);
        let producer = Producer::new(&self.job.kafka, &self.job.service, limits);
        self.producer = producer.map_err(|error| error.to_string())?;
        Ok(())
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, String> {
        let addresses: Vec<SourcePartition> = partitions.iter().map(|&number| self.places.address(number)).collect();
        let committed = self.consumer.committed(&addresses, COMMITTED).map_err(|error| error.to_string())?;
        let by_number = |(address, committed)| {
            let offset = match committed {
                consumer::Committed::Nothing => None,
                consumer::Committed::At { offset, metadata } => Some((offset, metadata)),
            };
            let partition = self.places.find(address).expect("only what was asked for is answered");
            Committed { partition, offset }
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
