//! The offsets of a service's target: its ends, and how far the service's own consumer group has committed.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::pace::Offsets;

use super::Observer;
use crate::assign;
use crate::client::{KafkaError, LoggingContext};
use crate::topics::{SourceIndex, SourcePartition, Topics};

const POLL_TIMEOUT: Duration = Duration::from_millis(50);

impl Observer {
    /// Returns the offsets of those of the first `partitions` partitions of a topic in which the service's
    /// `consumer_group` committed: two requests.
    ///
    /// # Errors
    /// A broker does not answer in time, or refuses.
    pub fn offsets(&self, topic: &str, partitions: usize, timeout: Duration) -> Result<Vec<Offsets>, KafkaError> {
        self.prepare();
        let topics = Topics::new([topic]);
        let all: Vec<SourcePartition> = (0..partitions).map(|number| (SourceIndex(0), number as i32)).collect();
        let mut committed = assign::committed(&self.consumer, &topics, &all, timeout)?;
        committed.retain(|(_, committed)| committed.is_some());
        committed.sort_unstable_by_key(|(partition, _)| *partition);
        let asked: Vec<_> = committed.iter().map(|(partition, _)| *partition).collect();
        let ends = assign::offsets(&self.consumer, &topics, &asked, Offset::End, Instant::now() + timeout)?;
        let offsets = committed.into_iter().filter_map(|(partition, committed)| {
            let end = ends.get(&partition).copied().unwrap_or(0);
            Some(Offsets { partition: partition.1, end, committed: committed?.0 })
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
