//! The offsets of a service's target: its ends, and how far the service's own consumer group has committed.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::pace::Offsets;

use super::Observer;
use crate::client::{KafkaError, LoggingContext};
use crate::ffi;

const POLL_TIMEOUT: Duration = Duration::from_millis(50);

impl Observer {
    /// Returns the offsets of those of the first `partitions` partitions of a topic in which the service's
    /// `consumer_group` committed: two requests.
    ///
    /// # Errors
    /// A broker does not answer in time, or refuses.
    pub fn offsets(&self, topic: &str, partitions: usize, timeout: Duration) -> Result<Vec<Offsets>, KafkaError> {
        self.prepare();
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition(topic, partition as i32);
        }
        let mut committed = entries(&self.consumer.committed_offsets(list, timeout)?)?;
        committed.retain(|entry| entry.offset >= 0);
        if committed.is_empty() {
            return Ok(Vec::new());
        }
        let mut ends = TopicPartitionList::new();
        for entry in &committed {
            ends.add_partition(topic, entry.partition).set_offset(Offset::End)?;
        }
        let ends = entries(&self.consumer.offsets_for_times(ends, timeout)?)?;
        let end_of = |partition| ends.iter().find(|end| end.partition == partition).map_or(0, |end| end.offset);
        let offsets = committed.iter().map(|entry| Offsets {
            partition: entry.partition,
            end: end_of(entry.partition),
            committed: entry.offset,
        });
        Ok(offsets.collect())
    }

    /// Returns whether a record lies from the committed offset to the end of a partition; markers of transactions are
    /// none.
    ///
    /// # Errors
    /// A broker does not answer in time, or refuses.
    pub fn has_record(&self, topic: &str, tail: Offsets, timeout: Duration) -> Result<bool, KafkaError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, tail.partition, Offset::Offset(tail.committed))?;
        self.consumer.assign(&list)?;
        let found = next_record(&self.consumer, Instant::now() + timeout);
        self.consumer.unassign()?;
        found
    }
}

/// Returns whether a record comes before the end of the only partition that is assigned.
fn next_record(consumer: &BaseConsumer<LoggingContext>, deadline: Instant) -> Result<bool, KafkaError> {
    while Instant::now() < deadline {
        match consumer.poll(POLL_TIMEOUT) {
            Some(Ok(_)) => return Ok(true),
            Some(Err(ClientError::PartitionEOF(_))) => return Ok(false),
            Some(Err(error)) if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) => {
                return Err(error.into());
            }
            // Errors of connections pass by.
            Some(Err(_)) | None => {}
        }
    }
    Err(ClientError::MessageConsumption(Code::OperationTimedOut).into())
}

/// Returns the entries of a list, or the first error of any partition.
fn entries(list: &TopicPartitionList) -> Result<Vec<ffi::Entry>, ClientError> {
    let entries = ffi::entries(list);
    match entries.iter().find(|entry| entry.error != Code::NoError) {
        Some(entry) => Err(ClientError::OffsetFetch(entry.error)),
        None => Ok(entries),
    }
}
