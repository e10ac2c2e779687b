//! A plain producer and an independent reader, which the demo and tests put before and behind the throttler.
//!
//! They share no code with the throttler's consumer and producer, and so no mistake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use crate::client::KafkaError;

/// The wait for room in a full queue, and the reader's wait for a record.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);

const THREAD: &str = "target-reader";

/// Sends records with one header each.
pub struct TestProducer {
    producer: ThreadedProducer<Failures>,
}

/// Counts records that were not acknowledged.
#[derive(Default)]
struct Failures(AtomicU64);

impl ClientContext for Failures {}

impl ProducerContext for Failures {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl TestProducer {
    /// Makes a producer that keeps order and doesn't send twice.
    pub fn new(bootstrap_servers: &str) -> Result<TestProducer, KafkaError> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap_servers)
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .create_with_context(Failures::default())?;
        Ok(TestProducer { producer })
    }

    /// Queues one record without a key; waits only while the queue is full.
    pub fn send(&self, topic: &str, header: (&str, &str), value: &[u8]) -> Result<(), KafkaError> {
        let (key, client) = header;
        let headers = OwnedHeaders::new().insert(Header { key, value: Some(client) });
        let mut record = BaseRecord::<(), [u8]>::to(topic).payload(value).headers(headers);
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((ClientError::MessageProduction(RDKafkaErrorCode::QueueFull), unsent)) => {
                    record = unsent;
                    std::thread::sleep(POLL_TIMEOUT);
                }
                Err((error, _)) => return Err(error.into()),
            }
        }
    }

    /// Waits until all records are acknowledged; an error if one was not.
    pub fn flush(&self, limit: Duration) -> Result<(), KafkaError> {
        self.producer.flush(limit)?;
        match self.producer.context().0.load(Ordering::Relaxed) {
            0 => Ok(()),
            records => Err(KafkaError::Unacknowledged { records }),
        }
    }
}

/// Reads all partitions of a topic, without a group, and reports the arrival of each record.
pub struct TargetReader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TargetReader {
    /// Starts reading at the beginning. `on_arrival` is called on the reader's thread, in order of arrival.
    pub fn start(
        bootstrap_servers: &str,
        topic: &str,
        partitions: i32,
        mut on_arrival: impl FnMut(Instant) + Send + 'static,
    ) -> Result<TargetReader, KafkaError> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap_servers)
            .set("group.id", "reader-without-a-group")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", "20")
            .create()?;
        let mut assignment = TopicPartitionList::new();
        for partition in 0..partitions {
            assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&assignment)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    if let Some(Ok(_record)) = consumer.poll(POLL_TIMEOUT) {
                        on_arrival(Instant::now());
                    }
                }
            })
            .map_err(|source| KafkaError::Thread { name: THREAD, source })?;
        Ok(TargetReader { stop, thread: Some(thread) })
    }
}

impl Drop for TargetReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
