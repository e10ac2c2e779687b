//! Questions about the topics of a service that its engine does not ask: how many partitions the sources have, and how
//! far behind the consumers of the target are.

mod offsets;

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use watermaster_settings::{Kafka, Service};

use crate::client::{self, KafkaError, LoggingContext};
use crate::login::Login;

/// A client of its own, so that no engine waits for the answers. It reads no record and joins no group.
pub struct Observer {
    consumer: BaseConsumer<LoggingContext>,
    login: Login,
}

impl Observer {
    /// Makes a client that asks about the topics of a service.
    ///
    /// # Errors
    /// librdkafka refuses the configuration.
    pub fn new(kafka: &Kafka, service: &Service) -> Result<Observer, KafkaError> {
        let mut forced = vec![
            ("allow.auto.create.topics", "false"),
            ("enable.auto.commit", "false"),
            ("enable.partition.eof", "true"),
            // One record is enough to know that a partition has one.
            ("queued.max.messages.kbytes", "1024"),
        ];
        forced.extend(service.consumer_group.as_deref().map(|group| ("group.id", group)));
        let mut config = client::config(kafka, &[], &forced);
        client::silence(&mut config);
        let login = Login::new(kafka);
        Ok(Observer { consumer: client::consumer(&config)?, login })
    }

    /// Returns true if secrets have changed that only another client takes.
    pub fn has_old_secrets(&self) -> bool {
        self.login.is_outdated()
    }

    /// Takes events, and a user and a password that were read again.
    fn prepare(&self) {
        self.login.renew(self.consumer.client());
        // Errors of connections pile up until they are polled.
        while self.consumer.poll(Duration::ZERO).is_some() {}
    }

    /// Returns the number of partitions of a topic.
    ///
    /// # Errors
    /// No broker answers in time, or the topic is missing or hidden.
    pub fn partitions(&self, topic: &str, timeout: Duration) -> Result<usize, KafkaError> {
        self.prepare();
        let metadata = self.consumer.fetch_metadata(Some(topic), timeout)?;
        let found = metadata.topics().first();
        match found.and_then(|topic| topic.error()).map(Code::from) {
            Some(code) => Err(ClientError::MetadataFetch(code).into()),
            None => Ok(found.map_or(0, |topic| topic.partitions().len())),
        }
    }

    /// Returns the number of offsets of a topic from those that the service's `consumer_group` committed to the end of
    /// the stable records. Partitions without a committed offset do not count; `None` if there is no other.
    ///
    /// # Errors
    /// A broker does not answer in time, or refuses.
    pub fn lag(&self, topic: &str, timeout: Duration) -> Result<Option<u64>, KafkaError> {
        let offsets = self.offsets(topic, self.partitions(topic, timeout)?, timeout)?;
        let behind = offsets.iter().map(|one| u64::try_from(one.end - one.committed).unwrap_or(0));
        Ok((!offsets.is_empty()).then(|| behind.sum()))
    }
}

#[cfg(test)]
mod tests;
