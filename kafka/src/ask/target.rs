//! The offsets of a service's target: its ends, and how far the service's own consumer group has committed.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::Offset;
use watermaster_core::pace::Offsets;

use super::{AskError, Asker};
use crate::assign;
use crate::client::{KafkaError, LoggingContext};
use crate::topics::{SourceIndex, Topics, all_partitions};

const POLL_TIMEOUT: Duration = Duration::from_millis(50);

impl Asker {
    /// Returns the offsets of those of the first `partitions` partitions of a topic in which `group` committed: two
    /// requests.
    ///
    /// # Errors
    /// A broker does not answer in time, or refuses.
    pub fn offsets(
        &self, group: &str, topic: &str, partitions: i32, timeout: Duration,
    ) -> Result<Vec<Offsets>, AskError> {
        let (topics, deadline) = (Topics::new([topic]), Instant::now() + timeout);
        let committed = self.committed(group, &topics, &all_partitions([partitions]), timeout)?;
        let asked: Vec<_> = committed.keys().copied().collect();
        let ends = assign::offsets(&self.consumer, &topics, &asked, Offset::End, deadline).map_err(KafkaError::from)?;
        let offsets = committed.into_iter().map(|(partition, (committed, _))| {
            let end = ends.get(&partition).copied().unwrap_or(0);
            Offsets { partition: partition.1, end, committed }
        });
        Ok(offsets.collect())
    }

    /// Returns the number of offsets of a topic from those that `group` committed to the end of the stable records.
    /// Partitions without a committed offset do not count; `None` if there is no other.
    ///
    /// # Errors
    /// A broker does not answer in time, or refuses.
    pub fn lag(&self, group: &str, topic: &str, timeout: Duration) -> Result<Option<u64>, AskError> {
        let offsets = self.offsets(group, topic, self.partitions(topic, timeout)?, timeout)?;
        let behind = offsets.iter().map(|one| u64::try_from(one.end - one.committed).unwrap_or(0));
        Ok((!offsets.is_empty()).then(|| behind.sum()))
    }

    /// Returns whether a record lies from the committed offset to the end of a partition; markers of transactions are
    /// none.
    ///
    /// # Errors
    /// A broker does not answer in time, or refuses.
    pub fn has_record(&self, topic: &str, tail: Offsets, timeout: Duration) -> Result<bool, AskError> {
        let at = [((SourceIndex(0), tail.partition), Offset::Offset(tail.committed))];
        self.consumer.assign(&Topics::new([topic]).list_at(at)).map_err(KafkaError::from)?;
        let found = next_record(&self.consumer, Instant::now() + timeout);
        self.consumer.unassign().map_err(KafkaError::from)?;
        Ok(found?)
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
