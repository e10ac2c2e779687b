//! The topic for dead letters that are not sent again.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::error::RDKafkaErrorCode as Code;
use watermaster_settings::Kafka;

use super::reader::Reader;
use crate::client::{self, KafkaError, LoggingContext};
use crate::{load, load::OpenError, preflight::block_on};

/// The brokers' default number of replicas.
const DEFAULT_REPLICAS: i32 = -1;

/// Makes the topic with as many partitions as that of `reader`, unless it is there. Returns whether it was made.
///
/// # Errors
/// The topic is missing and can't be made.
pub fn ensure_parking(kafka: &Kafka, topic: &str, reader: &Reader, timeout: Duration) -> Result<bool, OpenError> {
    match load::partitions(&reader.consumer, kafka, topic, timeout) {
        Err(OpenError::MissingTopic { .. }) => {}
        other => return other.map(|_| false),
    }
    let failed = |source| OpenError::Topic { topic: topic.to_owned(), source };
    let config = client::config(kafka, &[], &[]);
    let admin: AdminClient<_> = client::create(&config, LoggingContext::default()).map_err(KafkaError::from)?;
    let options = AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
    let new = NewTopic::new(topic, reader.partition_count(), TopicReplication::Fixed(DEFAULT_REPLICAS));
    let made = block_on(admin.create_topics([&new], &options)).map_err(failed)?;
    match made.into_iter().next() {
        None | Some(Ok(_) | Err((_, Code::TopicAlreadyExists))) => Ok(true),
        Some(Err(_)) => Err(OpenError::MissingTopic { topic: topic.to_owned() }),
    }
}
