//! The topics that a job makes if they are missing.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::error::RDKafkaErrorCode as Code;
use watermaster_settings::Kafka;

use super::reader::Reader;
use crate::client::{self, KafkaError, LoggingContext};
use crate::{load, load::OpenError, preflight::block_on};

/// The brokers' default number of replicas.
const REPLICATION: TopicReplication<'_> = TopicReplication::Fixed(-1);

/// Makes the topic for dead letters that are not sent again, with as many partitions as that of `reader`, unless it is
/// there. Returns whether it was made.
///
/// # Errors
/// The topic is missing and can't be made.
pub fn ensure_parking(kafka: &Kafka, topic: &str, reader: &Reader, timeout: Duration) -> Result<bool, OpenError> {
    ensure(kafka, NewTopic::new(topic, reader.partition_count(), REPLICATION), reader, timeout).map(|(made, _)| made)
}

/// Makes the topic of the ledger unless it is there, with one partition: only that one is read. Returns whether it was
/// made.
///
/// # Errors
/// The topic is missing and can't be made, or has several partitions.
pub fn ensure_ledger(kafka: &Kafka, topic: &str, reader: &Reader, timeout: Duration) -> Result<bool, OpenError> {
    // Without compaction, retention would forget what is done.
    let new = NewTopic::new(topic, 1, REPLICATION).set("cleanup.policy", "compact");
    match ensure(kafka, new, reader, timeout)? {
        (made, 1) => Ok(made),
        (_, partitions) => Err(OpenError::Partitions { topic: topic.to_owned(), partitions }),
    }
}

/// Makes the topic unless it is there. Returns whether it was made, and the number of its partitions.
fn ensure(kafka: &Kafka, new: NewTopic<'_>, reader: &Reader, timeout: Duration) -> Result<(bool, i32), OpenError> {
    let topic = new.name;
    match load::partitions(&reader.consumer, kafka, topic, timeout) {
        Err(OpenError::MissingTopic { .. }) => {}
        other => return other.map(|partitions| (false, partitions)),
    }
    let failed = |source| OpenError::Topic { topic: topic.to_owned(), source };
    let config = client::config(kafka, &[], &[]);
    let admin: AdminClient<_> = client::create(&config, LoggingContext::default()).map_err(KafkaError::from)?;
    let options = AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
    let made = block_on(admin.create_topics([&new], &options)).map_err(failed)?;
    match made.into_iter().next() {
        None | Some(Ok(_) | Err((_, Code::TopicAlreadyExists))) => Ok((true, new.num_partitions)),
        Some(Err(_)) => Err(OpenError::MissingTopic { topic: topic.to_owned() }),
    }
}
