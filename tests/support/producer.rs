//! Produces records into source topics, with every field as given.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{sync::Arc, thread::JoinHandle};

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};

use super::{broker::Broker, record::Header};

/// A record to produce.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    pub topic: String,
    /// The partition; `None` for the one of the key's hash.
    pub partition: Option<i32>,
    pub timestamp: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<Header>,
}

impl Outgoing {
    /// Returns a plain record: its value is the number and padding, its client is in a header.
    pub fn numbered(topic: &str, number: u64, client: &str) -> Outgoing {
        Outgoing {
            topic: topic.to_owned(),
            key: Some(format!("key-{}", number % 97).into_bytes()),
            value: Some(format!("{number}|{:-<100}", "").into_bytes()),
            headers: vec![("client-id".to_owned(), Some(client.as_bytes().to_vec()))],
            ..Outgoing::default()
        }
    }
}

/// The number of records that the broker refused.
#[derive(Default)]
struct Deliveries {
    failed: AtomicU64,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();
    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            eprintln!("a source record was not delivered: {error}");
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A producer for source topics.
pub struct Producer(ThreadedProducer<Deliveries>);

impl Producer {
    pub fn to(broker: &Broker) -> Producer {
        Producer::lingering(broker, "5")
    }

    /// Returns a producer that waits for so many milliseconds for more records.
    pub fn lingering(broker: &Broker, millis: &str) -> Producer {
        let mut config = broker.client();
        config.set("enable.idempotence", "true").set("linger.ms", millis).set("compression.type", "lz4");
        // With more than one, a batch may be lost on a new topic, whose leader refuses the first and takes the second.
        config.set("max.in.flight.requests.per.connection", "1");
        config.set("message.max.bytes", "4194304").set("partitioner", "murmur2_random");
        config.set("queue.buffering.max.messages", "200000");
        Producer(config.create_with_context(Deliveries::default()).expect("a producer"))
    }

    /// Queues a record; waits while the queue is full.
    pub fn send(&self, outgoing: &Outgoing) {
        let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&outgoing.topic);
        record.partition = outgoing.partition;
        record.timestamp = outgoing.timestamp;
        record.key = outgoing.key.as_deref();
        record.payload = outgoing.value.as_deref();
        record.headers = (!outgoing.headers.is_empty()).then(|| kafka_headers(&outgoing.headers));
        loop {
            record = match self.0.send(record) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => back,
                Err((error, _)) => panic!("producing to {}: {error}", outgoing.topic),
            };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Queues all records and waits until the broker has them; returns their number.
    pub fn send_all(&self, records: impl IntoIterator<Item = Outgoing>) -> u64 {
        let count = records.into_iter().map(|record| self.send(&record)).count();
        self.flush();
        count as u64
    }

    /// Waits until the broker has every queued record, and panics if it refused one.
    pub fn flush(&self) {
        self.0.flush(Duration::from_secs(60)).expect("the broker accepts the source records");
        assert_eq!(self.0.context().failed.load(Ordering::Relaxed), 0, "source records were refused");
    }
}

fn kafka_headers(headers: &[Header]) -> OwnedHeaders {
    headers.iter().fold(OwnedHeaders::new_with_capacity(headers.len()), |all, (key, value)| {
        all.insert(KafkaHeader { key, value: value.as_deref() })
    })
}

/// A constant load from its own thread, until it is stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Load {
    /// Sends `make(0)`, `make(1)`, … at `per_second`.
    pub fn start(broker: &Broker, per_second: u64, make: impl Fn(u64) -> Outgoing + Send + 'static) -> Load {
        let producer = Producer::to(broker);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                let due = start.elapsed().as_millis() as u64 * per_second / 1000;
                (sent..due).for_each(|number| producer.send(&make(number)));
                sent = sent.max(due);
                std::thread::sleep(Duration::from_millis(2));
            }
            producer.flush();
            sent
        });
        Load { stop, thread }
    }

    /// Stops the load; returns the number of records that it sent.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the load's thread did not panic")
    }
}
