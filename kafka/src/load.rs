//! What `watermaster load` puts before and behind a running Watermaster: a plain producer, and a reader of what came out.
//!
//! They use the connection that the configuration describes, and none of the throttler's own consumer and producer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Header, Message as _, OwnedHeaders, Timestamp};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::assign::{self, Committed, SourcePartition, Topics};
use super::client::{self, KafkaError};
use super::record::Headers;
use watermaster_settings::Kafka;

/// How the brokers know us, unless `client.id` is configured.
const CLIENT_ID: &str = "watermaster-load";
/// One wait for a record.
const STEP: Duration = Duration::from_millis(50);

/// Why nothing can be sent or read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// No broker answered.
    #[error("no answer from kafka.bootstrap_servers = \"{bootstrap_servers}\": {why}")]
    Unreachable { bootstrap_servers: String, why: String },
    /// A topic can't be used.
    #[error("topic {topic}: {why}")]
    Topic { topic: String, why: String },
    /// A client can't be made.
    #[error(transparent)]
    Client(#[from] KafkaError),
}

/// A record to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    pub topic: &'a str,
    /// Comes back with its delivery.
    pub number: usize,
    pub key: Option<&'a [u8]>,
    pub value: &'a [u8],
    /// Name and value of each.
    pub headers: &'a [(&'a str, &'a str)],
}

/// What became of a record that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub number: usize,
    /// Where it lies, or why nobody knows whether it does.
    pub place: Result<Place, String>,
}

/// Where a record lies in its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub partition: i32,
    pub offset: i64,
}

/// Sends records, keeps their order and doesn't send twice.
pub struct LoadProducer<F: Fn(Delivery) + Send + Sync + 'static> {
    producer: ThreadedProducer<Deliveries<F>>,
}

impl<F: Fn(Delivery) + Send + Sync + 'static> LoadProducer<F> {
    /// `on_delivery` is called on librdkafka's thread, once for each record that was taken.
    ///
    /// # Errors
    /// When librdkafka refuses a property.
    pub fn new(kafka: &Kafka, on_delivery: F) -> Result<LoadProducer<F>, KafkaError> {
        let defaults = [("linger.ms", "5"), ("queue.buffering.max.messages", "500000")];
        let owned = [("enable.idempotence", "true"), ("partitioner", "murmur2_random")];
        let producer = config(kafka, &defaults, &owned).create_with_context(Deliveries(on_delivery))?;
        Ok(LoadProducer { producer })
    }

    /// Hands a record over without waiting. `false`: the queue is full, it was not taken.
    ///
    /// # Errors
    /// The record can't be sent at all: it is too large, say.
    pub fn send(&self, outgoing: &Outgoing<'_>) -> Result<bool, KafkaError> {
        let headers = outgoing
            .headers
            .iter()
            .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(*value) }));
        let mut record: BaseRecord<'_, [u8], [u8], usize> =
            BaseRecord::with_opaque_to(outgoing.topic, outgoing.number).payload(outgoing.value).headers(headers);
        record.key = outgoing.key;
        match self.producer.send(record) {
            Ok(()) => Ok(true),
            Err((ClientError::MessageProduction(Code::QueueFull), _)) => Ok(false),
            Err((error, _)) => Err(error.into()),
        }
    }

    /// Waits until the fate of every record is known; `false`: not in time.
    pub fn flush(&self, limit: Duration) -> bool {
        self.producer.flush(limit).is_ok()
    }
}

/// Passes deliveries on.
struct Deliveries<F>(F);

impl<F: Fn(Delivery) + Send + Sync + 'static> ClientContext for Deliveries<F> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }
}

impl<F: Fn(Delivery) + Send + Sync + 'static> ProducerContext for Deliveries<F> {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let place = match result {
            Ok(message) => Ok(Place { partition: message.partition(), offset: message.offset() }),
            Err((error, _)) => Err(error.to_string()),
        };
        (self.0)(Delivery { number, place });
    }
}

/// A record that came out.
pub struct Arrived<'r> {
    /// Index into the topics that are watched.
    pub topic: usize,
    pub headers: Headers<'r>,
    /// Milliseconds since 1970, where the topic's timestamps are its broker's (`LogAppendTime`).
    pub append_ms: Option<i64>,
}

/// Reads topics from where they ended when it was opened, without a group, `read_committed`.
pub struct Watcher {
    consumer: BaseConsumer<Quiet>,
    topics: Vec<String>,
}

impl Watcher {
    /// Finds the ends of the topics; what comes later will be read.
    ///
    /// # Errors
    /// When no broker answers within `timeout`, or a topic can't be read.
    pub fn open(kafka: &Kafka, topics: &[&str], timeout: Duration) -> Result<Watcher, OpenError> {
        // The group is never joined and nothing is committed; librdkafka wants a name to hand out records.
        let owned = [
            ("group.id", CLIENT_ID),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("isolation.level", "read_committed"),
            ("auto.offset.reset", "earliest"),
        ];
        let defaults = [("fetch.wait.max.ms", "100"), ("fetch.queue.backoff.ms", "10")];
        let consumer: BaseConsumer<Quiet> =
            config(kafka, &defaults, &owned).create_with_context(Quiet).map_err(KafkaError::from)?;
        let mut ends = TopicPartitionList::new();
        for topic in topics {
            for partition in 0..partitions(&consumer, kafka, topic, timeout)? {
                let cannot = |error: ClientError| topic_error(topic, &error);
                let (_, end) = consumer.fetch_watermarks(topic, partition, timeout).map_err(cannot)?;
                ends.add_partition_offset(topic, partition, Offset::Offset(end)).map_err(cannot)?;
            }
        }
        consumer.assign(&ends).map_err(KafkaError::from)?;
        Ok(Watcher { consumer, topics: topics.iter().map(|topic| (*topic).to_owned()).collect() })
    }

    /// Reads until told to stop. Brokers that are away for a while are waited for.
    pub fn read(&self, stop: &AtomicBool, mut on_record: impl FnMut(&Arrived<'_>)) {
        while !stop.load(Ordering::Relaxed) {
            let Some(Ok(message)) = self.consumer.poll(STEP) else { continue };
            let Some(topic) = self.topics.iter().position(|topic| topic == message.topic()) else { continue };
            let append_ms = match message.timestamp() {
                Timestamp::LogAppendTime(ms) => Some(ms),
                Timestamp::CreateTime(_) | Timestamp::NotAvailable => None,
            };
            on_record(&Arrived { topic, headers: Headers::of(&message), append_ms });
        }
    }
}

/// Makes sure that topics exist.
///
/// # Errors
/// When no broker answers within `timeout`, or a topic can't be used.
pub fn find_topics(kafka: &Kafka, topics: &[&str], timeout: Duration) -> Result<(), OpenError> {
    let consumer: BaseConsumer<Quiet> = config(kafka, &[], &[]).create_with_context(Quiet).map_err(KafkaError::from)?;
    topics.iter().try_for_each(|topic| partitions(&consumer, kafka, topic, timeout).map(drop))
}

/// What a group has committed for partitions of topics (an index into `topics`, a partition): offset and metadata, where there is
/// one. Pending transactions are waited for.
///
/// # Errors
/// When the group's coordinator does not answer in time, or refuses.
pub fn committed(
    kafka: &Kafka,
    group: &str,
    topics: &[String],
    partitions: &[SourcePartition],
    timeout: Duration,
) -> Result<Vec<(SourcePartition, i64, Vec<u8>)>, KafkaError> {
    let owned = [("group.id", group), ("enable.auto.commit", "false"), ("isolation.level", "read_committed")];
    let consumer: BaseConsumer<Quiet> = config(kafka, &[], &owned).create_with_context(Quiet)?;
    let names =
        Topics::new(topics.iter().map(String::as_str)).map_err(|error| KafkaError::Client(error.to_string()))?;
    let deadline = Instant::now() + timeout;
    let found = loop {
        match assign::committed(&consumer, &names, partitions, timeout) {
            // Its coordinator may be moving, or a transaction pending.
            Err(_) if Instant::now() < deadline => std::thread::sleep(STEP),
            result => break result?,
        }
    };
    let written = found.into_iter().filter_map(|(partition, committed)| match committed {
        Committed::At { offset, metadata } => Some((partition, offset, metadata)),
        Committed::Nothing => None,
    });
    Ok(written.collect())
}

fn config(kafka: &Kafka, defaults: &[(&str, &str)], owned: &[(&str, &str)]) -> ClientConfig {
    let mut config = client::config(kafka, defaults, owned);
    if !kafka.properties.contains_key("client.id") {
        config.set("client.id", CLIENT_ID);
    }
    config
}

fn partitions(consumer: &BaseConsumer<Quiet>, kafka: &Kafka, topic: &str, timeout: Duration) -> Result<i32, OpenError> {
    let metadata = consumer.fetch_metadata(Some(topic), timeout).map_err(|error| OpenError::Unreachable {
        bootstrap_servers: kafka.bootstrap_servers.clone(),
        why: error.to_string(),
    })?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let why = match found.map(|found| (found.error().map(Code::from), found.partitions().len())) {
        Some((None, count)) if count > 0 => return Ok(i32::try_from(count).unwrap_or(i32::MAX)),
        Some((Some(Code::UnknownTopicOrPartition | Code::UnknownTopic), _)) | Some((None, _)) | None => {
            "does not exist: create it".to_owned()
        }
        Some((Some(code), _)) => code.to_string(),
    };
    Err(OpenError::Topic { topic: topic.to_owned(), why })
}

fn topic_error(topic: &str, error: &ClientError) -> OpenError {
    OpenError::Topic { topic: topic.to_owned(), why: error.to_string() }
}

/// Logs as everything else does.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }
}

impl ConsumerContext for Quiet {}
