//! A plain producer and readers, which `watermaster load` and `watermaster work` put before and behind a running
//! Watermaster.
//!
//! They use the configured connection, but not the throttler's consumer and producer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Header, Message as _, OwnedHeaders, Timestamp};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::Offset;

use watermaster_settings::Kafka;

use crate::ask::{AskError, Asker};
use crate::assign;
use crate::client::{self, KafkaError, LoggingContext};
use crate::record::Headers;
use crate::topics::{Topics, all_partitions};

/// The name of the clients' consumer group, which none joins, and their `client.id` unless one is configured.
pub const NAME: &str = "watermaster-load";
const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// The longest wait for the end of a partition.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A record to send.
#[derive(Debug, Clone, Copy)]
pub struct LoadRecord<'a> {
    pub topic: &'a str,
    /// Returned with its fate.
    pub number: usize,
    pub key: Option<&'a [u8]>,
    pub value: &'a [u8],
    /// Name and value of each header.
    pub headers: &'a [(&'a str, &'a str)],
}

/// The position of a record in its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPosition {
    pub partition: i32,
    pub offset: i64,
}

/// The position of a record, or the error that leaves its fate unknown.
pub type Fate = Result<RecordPosition, ClientError>;

/// Sends records, keeps their order and doesn't send twice.
pub struct LoadProducer<F: Fn(usize, Fate) + Send + Sync + 'static> {
    producer: ThreadedProducer<Deliveries<F>>,
}

impl<F: Fn(usize, Fate) + Send + Sync + 'static> LoadProducer<F> {
    /// Makes a producer that calls `on_delivery` on librdkafka's thread, once for each record that was
    /// taken, with its number.
    pub fn new(kafka: &Kafka, on_delivery: F) -> Result<LoadProducer<F>, KafkaError> {
        let defaults = [
            ("client.id", NAME),
            ("linger.ms", "5"),
            ("queue.buffering.max.messages", "500000"),
            // With more, a batch may be lost where a leader changes: see `is_unplaced` of the service's producer.
            ("max.in.flight.requests.per.connection", "1"),
        ];
        let forced = [("enable.idempotence", "true"), ("partitioner", "murmur2_random")];
        let config = client::config(kafka, &defaults, &forced);
        let producer = client::create(&config, Deliveries(on_delivery), ThreadedProducer::client)?;
        Ok(LoadProducer { producer })
    }

    /// Hands a record over without waiting. Returns false if the queue is full and the record was not taken.
    ///
    /// # Errors
    /// Fails when the record can never be sent, because it is too large for instance.
    pub fn send(&self, outgoing: &LoadRecord<'_>) -> Result<bool, KafkaError> {
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

    /// Waits until the fate of every record is known; false if that takes longer.
    pub fn flush(&self, limit: Duration) -> bool {
        self.producer.flush(limit).is_ok()
    }
}

struct Deliveries<F>(F);

impl<F: Fn(usize, Fate) + Send + Sync + 'static> ClientContext for Deliveries<F> {
    crate::oauth::makes_tokens!();

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }
}

impl<F: Fn(usize, Fate) + Send + Sync + 'static> ProducerContext for Deliveries<F> {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let position = match result {
            Ok(message) => Ok(RecordPosition { partition: message.partition(), offset: message.offset() }),
            Err((error, _)) => Err(error.clone()),
        };
        (self.0)(number, position);
    }
}

/// A record that was read.
pub struct Arrived<'r> {
    /// The index into the watched topics.
    pub topic: usize,
    pub headers: Headers<'r>,
    /// Milliseconds since 1970, where the topic's timestamps are its broker's (`LogAppendTime`).
    pub append_ms: Option<i64>,
}

/// Reads topics from the ends that they had when it was opened, without a group, `read_committed`.
pub struct Watcher {
    asker: Asker,
    topics: Topics,
}

impl Watcher {
    /// Finds the ends of the topics; later records will be read.
    pub fn open(kafka: &Kafka, topics: &[&str], timeout: Duration) -> Result<Watcher, AskError> {
        // librdkafka requires a group, which is never joined; nothing is committed.
        let asker = Asker::named(kafka, NAME)?;
        let names = Topics::new(topics.iter().copied());
        let counts = topics.iter().map(|topic| asker.partitions(topic, timeout));
        let partitions = all_partitions(counts.collect::<Result<Vec<_>, _>>()?);
        let ends = assign::offsets(&asker.consumer, &names, &partitions, Offset::End, Instant::now() + timeout);
        let ends = ends.map_err(KafkaError::from)?.into_iter().map(|(partition, end)| (partition, Offset::Offset(end)));
        asker.consumer.assign(&names.list_at(ends)).map_err(KafkaError::from)?;
        Ok(Watcher { asker, topics: names })
    }

    /// Reads until `stop` is set; waits for brokers that are away.
    pub fn read(&self, stop: &AtomicBool, mut on_record: impl FnMut(&Arrived<'_>)) {
        while !stop.load(Ordering::Relaxed) {
            let Some(Ok(message)) = self.asker.consumer.poll(POLL_TIMEOUT) else { continue };
            let Some(source) = self.topics.find(message.topic()) else { continue };
            let append_ms = match message.timestamp() {
                Timestamp::LogAppendTime(ms) => Some(ms),
                Timestamp::CreateTime(_) | Timestamp::NotAvailable => None,
            };
            on_record(&Arrived { topic: source.index(), headers: Headers::of(&message), append_ms });
        }
    }
}

/// A member of the consumer group that reads a service's target, as the protected service itself would be.
///
/// It commits once a second the records that it has finished.
pub struct Worker {
    consumer: BaseConsumer<LoggingContext>,
    topic: String,
}

impl Worker {
    /// Joins the group, which starts at the beginning of the topic if it has committed nothing.
    pub fn join(kafka: &Kafka, group: &str, topic: &str, timeout: Duration) -> Result<Worker, AskError> {
        let forced = [
            ("group.id", group),
            ("enable.auto.commit", "true"),
            ("auto.commit.interval.ms", "1000"),
            // An offset is stored by `finish`.
            ("enable.auto.offset.store", "false"),
            ("isolation.level", "read_committed"),
            ("auto.offset.reset", "earliest"),
        ];
        Asker::named(kafka, NAME)?.partitions(topic, timeout)?;
        let defaults = [("client.id", NAME), ("fetch.wait.max.ms", "100"), ("fetch.queue.backoff.ms", "10")];
        let consumer = client::consumer(&client::config(kafka, &defaults, &forced))?;
        consumer.subscribe(&[topic]).map_err(KafkaError::from)?;
        Ok(Worker { consumer, topic: topic.to_owned() })
    }

    /// Finishes the next record, if one comes within a moment. Waits for brokers that are away.
    pub fn finish_next(&self) -> bool {
        let Some(Ok(message)) = self.consumer.poll(POLL_TIMEOUT) else { return false };
        // A partition that moved to another member while its record was finished is committed there.
        let _ = self.consumer.store_offset_from_message(&message);
        true
    }

    /// Returns the number of offsets between this member and the ends of its partitions; `None` if no broker answers.
    /// Markers of transactions count, too; a partition counts once a record of it came.
    pub fn behind(&self) -> Option<u64> {
        let positions = self.consumer.position().ok()?;
        let behind = positions.elements().into_iter().map(|element| {
            let Offset::Offset(at) = element.offset() else { return Some(0) };
            let (_, end) = self.consumer.fetch_watermarks(&self.topic, element.partition(), END_TIMEOUT).ok()?;
            u64::try_from(end - at).ok()
        });
        behind.sum()
    }
}
