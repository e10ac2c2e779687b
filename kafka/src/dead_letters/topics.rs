//! The topics that a job makes if they are missing.

use std::time::Duration;

use rdkafka::admin::{NewTopic, TopicReplication};
use watermaster_settings::Kafka;

use super::reader::Reader;
use crate::ask::{self, AskError};
use crate::client;

/// The brokers' default number of replicas.
const REPLICATION: TopicReplication<'_> = TopicReplication::Fixed(-1);

/// Makes the topic for dead letters that are not sent again, with as many partitions as that of `reader`, unless it is
/// there. Returns whether it was made.
///
/// # Errors
/// The topic is missing and can't be made.
pub fn ensure_parking(kafka: &Kafka, topic: &str, reader: &Reader, timeout: Duration) -> Result<bool, AskError> {
    ensure(kafka, NewTopic::new(topic, reader.partition_count(), REPLICATION), reader, timeout).map(|(made, _)| made)
}

/// Makes the topic of the ledger unless it is there, with one partition: only that one is read. Returns whether it was
/// made.
///
/// # Errors
/// The topic is missing and can't be made, or has several partitions.
pub fn ensure_ledger(kafka: &Kafka, topic: &str, reader: &Reader, timeout: Duration) -> Result<bool, AskError> {
    // Without compaction, retention would forget what is done.
    let new = NewTopic::new(topic, 1, REPLICATION).set("cleanup.policy", "compact");
    match ensure(kafka, new, reader, timeout)? {
        (made, 1) => Ok(made),
        (_, partitions) => Err(AskError::Partitions { topic: topic.to_owned(), partitions }),
    }
}

/// Makes the topic unless it is there. Returns whether it was made, and the number of its partitions.
fn ensure(kafka: &Kafka, new: NewTopic<'_>, reader: &Reader, timeout: Duration) -> Result<(bool, i32), AskError> {
    let topic = new.name;
    match reader.asker.partitions(topic, timeout) {
        Err(AskError::MissingTopic { .. }) => {}
        other => return other.map(|partitions| (false, partitions)),
    }
    match ask::create_topic(&client::config(kafka, &[], &[]), &new, timeout) {
        Ok(Ok(_)) => Ok((true, new.num_partitions)),
        Ok(Err(_)) => Err(AskError::MissingTopic { topic: topic.to_owned() }),
        Err(source) => Err(AskError::Topic { topic: topic.to_owned(), source }),
    }
}
