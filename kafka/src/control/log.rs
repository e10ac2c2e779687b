//! A reader and a writer of the control log.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use watermaster_core::group::record::Record;
use watermaster_core::group::wire::{self, WireError};
use watermaster_settings as settings;

use super::topic::MAX_MESSAGE_BYTES;
use crate::client::{self, KafkaError, LoggingContext};
use crate::seats::{ends_reading, named};
use crate::{ffi, login::Login};

/// The only partition of a control topic.
const PARTITION: i32 = 0;

/// Properties that the log's order depends on.
const PRODUCER_PROPERTIES: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // A record that can't be delivered in order ends the producer: compaction keeps the last record of a key.
    ("enable.gapless.guarantee", "true"),
    ("linger.ms", "0"),
    ("allow.auto.create.topics", "false"),
    // Less than the topic takes, also with the framing of a batch.
    ("message.max.bytes", "990000"),
];

const CONSUMER_PROPERTIES: &[(&str, &str)] = &[
    ("isolation.level", "read_uncommitted"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // Truncation and deletion are lost history, and not an occasion to begin elsewhere.
    ("auto.offset.reset", "error"),
    ("allow.auto.create.topics", "false"),
    ("enable.partition.eof", "false"),
    ("fetch.wait.max.ms", "500"),
    ("queued.max.messages.kbytes", "4096"),
];

/// A failure of the control log.
#[derive(Debug, thiserror::Error)]
pub enum ControlLogError {
    /// A client could not be made.
    #[error(transparent)]
    Client(#[from] KafkaError),
    /// The ends of the log are not known.
    #[error("the ends of {topic} are not known: {source}")]
    Ends { topic: String, source: ClientError },
    /// Reading failed for good: the log was truncated, deleted, or may not be read.
    #[error("{topic} can't be read: {source}")]
    Read { topic: String, source: ClientError },
    /// The brokers refuse this program.
    #[error("not allowed to use the control topic {topic}: grant READ, WRITE and DESCRIBE on it")]
    Denied { topic: String },
    /// A record is not of this program's format.
    #[error("{topic}, offset {offset}: {source}")]
    Record { topic: String, offset: i64, source: WireError },
    /// The topic refuses a record for its size. It must not be sent again.
    #[error("{topic} refuses a post for its size: set its max.message.bytes to {MAX_MESSAGE_BYTES} or more")]
    TooLarge { topic: String },
    /// A record could not be handed to the producer, which must not be used any more.
    #[error("{topic} takes no record: {source}")]
    Append { topic: String, source: ClientError },
}

impl ControlLogError {
    /// Returns whether it helps to open the log again: brokers come and go, and a producer that gave up can't go on. A
    /// record that this program can't read stays in the log.
    pub fn passes_by(&self) -> bool {
        match self {
            ControlLogError::Ends { .. }
            | ControlLogError::Read { .. }
            | ControlLogError::TooLarge { .. }
            | ControlLogError::Append { .. } => true,
            ControlLogError::Client(_) | ControlLogError::Denied { .. } | ControlLogError::Record { .. } => false,
        }
    }

    /// Returns whether records are gone that other members may still rely on.
    pub fn is_lost_history(&self) -> bool {
        matches!(self, ControlLogError::Read { .. })
    }
}

/// A reader and a writer of the control log.
pub struct ControlLog {
    topic: String,
    consumer: BaseConsumer<LoggingContext>,
    producer: BaseProducer<ReportContext>,
    login: Login,
    /// The log's beginning when it was opened.
    low: i64,
    start: u64,
}

impl ControlLog {
    /// Opens the log at its beginning. Waits up to `timeout` for the brokers. Nothing joins `group` or commits to it.
    /// librdkafka looks for its coordinator all the time, so it has to be one that this program may describe.
    ///
    /// # Errors
    /// Fails when a client can't be made or the log's ends are not known.
    pub fn open(
        kafka: &settings::Kafka, group: &str, topic: &str, timeout: Duration,
    ) -> Result<ControlLog, ControlLogError> {
        let login = Login::new(kafka);
        let consumer = client::consumer(config(kafka, CONSUMER_PROPERTIES).set("group.id", group))?;
        let ends = consumer.fetch_watermarks(topic, PARTITION, timeout);
        let (low, end) = ends.map_err(|source| ControlLogError::Ends { topic: topic.to_owned(), source })?;
        let mut assignment = TopicPartitionList::new();
        // The offset and not Offset::Beginning: if records vanish meanwhile, reading fails.
        let beginning = assignment.add_partition_offset(topic, PARTITION, Offset::Offset(low));
        beginning.and_then(|()| consumer.assign(&assignment)).map_err(KafkaError::from)?;
        let producer = config(kafka, PRODUCER_PROPERTIES);
        let producer = client::create(&producer, ReportContext::default()).map_err(KafkaError::from)?;
        let start = u64::try_from(end).unwrap_or(0);
        Ok(ControlLog { topic: topic.to_owned(), consumer, producer, login, low, start })
    }

    /// Takes a user and a password that were read again.
    pub fn renew_login(&self) {
        if let Some((user, password)) = self.login.take_changed() {
            ffi::set_login(self.consumer.client(), &user, &password);
            ffi::set_login(self.producer.client(), &user, &password);
        }
    }

    /// The end of the log when it was opened.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns whether the log had records once, and none when it was opened: they were deleted.
    pub fn was_emptied(&self) -> bool {
        self.start > 0 && self.low as u64 >= self.start
    }

    /// Returns whether all records below [`start`](ControlLog::start) were read.
    ///
    /// # Errors
    /// Fails when the position is not known.
    pub fn is_caught_up(&self) -> Result<bool, ControlLogError> {
        let positions = self.consumer.position().map_err(|source| self.read_error(source))?;
        let position = positions.find_partition(&self.topic, PARTITION).map(|element| element.offset());
        let is_read = matches!(position, Some(Offset::Offset(next)) if next as u64 >= self.start);
        Ok(is_read || self.low as u64 >= self.start)
    }

    /// Reads the next record, waiting up to `timeout`; `None` without one.
    ///
    /// # Errors
    /// Fails when history is lost or a record is not of this format. Errors that pass by themselves are not returned.
    pub fn poll(&self, timeout: Duration) -> Result<Option<(u64, Record)>, ControlLogError> {
        match self.consumer.poll(timeout) {
            None => Ok(None),
            Some(Ok(message)) => {
                let offset = message.offset();
                let record = wire::decode(message.key().unwrap_or_default(), message.payload());
                let record = record.map_err(|source| {
                    let topic = self.topic.clone();
                    ControlLogError::Record { topic, offset, source }
                })?;
                Ok(Some((offset as u64, record)))
            }
            Some(Err(error)) if ends_reading(&error) => Err(self.read_error(error)),
            Some(Err(_)) => Ok(None),
        }
    }

    fn read_error(&self, source: ClientError) -> ControlLogError {
        let topic = self.topic.clone();
        match source.rdkafka_error_code() {
            Some(Code::TopicAuthorizationFailed) => ControlLogError::Denied { topic },
            _ => ControlLogError::Read { topic, source },
        }
    }

    /// Hands a record to the producer. `tag` comes back from [`take_failed`](ControlLog::take_failed) if the producer
    /// gives the record up.
    ///
    /// # Errors
    /// The producer takes no record any more.
    pub fn append(&self, record: &Record, tag: u64) -> Result<(), ControlLogError> {
        let (key, value) = wire::encode(record);
        let message = BaseRecord::with_opaque_to(&self.topic, Box::new(tag)).partition(PARTITION);
        let message = message.key(&key);
        let sent = self.producer.send(match &value {
            Some(value) => message.payload(value),
            None => message,
        });
        sent.map_err(|(source, _)| self.append_error(source))
    }

    /// A refused record is a fatal error of the producer, which then says no more than that.
    fn append_error(&self, source: ClientError) -> ControlLogError {
        let (topic, context) = (self.topic.clone(), self.producer.context());
        let is_too_large = source.rdkafka_error_code() == Some(Code::MessageSizeTooLarge);
        match (context.denied.load(Ordering::Relaxed), is_too_large || context.too_large.load(Ordering::Relaxed)) {
            (true, _) => ControlLogError::Denied { topic },
            (_, true) => ControlLogError::TooLarge { topic },
            _ => ControlLogError::Append { topic, source },
        }
    }

    /// Returns the tags of the records that the producer gave up since the last call.
    pub fn take_failed(&self) -> Vec<u64> {
        self.producer.poll(Duration::ZERO);
        std::mem::take(&mut *client::lock(&self.producer.context().failed))
    }

    /// Waits until every record is delivered or given up, up to `timeout`.
    ///
    /// # Errors
    /// Some records are still on their way.
    pub fn flush(&self, timeout: Duration) -> Result<(), ControlLogError> {
        let flushed = self.producer.flush(timeout);
        flushed.map_err(|source| self.append_error(source))
    }
}

impl Drop for ControlLog {
    fn drop(&mut self) {
        // Records on their way must not keep the process.
        self.producer.purge(PurgeConfig::default().queue().inflight());
    }
}

/// Returns the configuration of a client of the control log.
fn config(kafka: &settings::Kafka, properties: &[(&str, &str)]) -> ClientConfig {
    named(client::config(kafka, &[], properties))
}

/// Collects the records that the producer gave up.
#[derive(Default)]
struct ReportContext {
    failed: Mutex<Vec<u64>>,
    /// True once a broker refused a record because this program may not write to the topic.
    denied: AtomicBool,
    /// True once a broker refused a record for its size.
    too_large: AtomicBool,
}

impl ClientContext for ReportContext {
    crate::oauth::makes_tokens!();

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        tracing::debug!("control log: {error}: {reason}");
    }
}

impl ProducerContext for ReportContext {
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: Box<u64>) {
        if let Err((error, _)) = result {
            let is = |code| error.rdkafka_error_code() == Some(code);
            self.denied.fetch_or(is(Code::TopicAuthorizationFailed), Ordering::Relaxed);
            self.too_large.fetch_or(is(Code::MessageSizeTooLarge), Ordering::Relaxed);
            client::lock(&self.failed).push(*tag);
        }
    }
}
