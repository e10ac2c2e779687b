//! The bare loop: consumes and produces without deciding anything. Watermaster is compared with it.
//!
//! The loop uses rdkafka's `BaseConsumer` and `BaseProducer` with Watermaster's librdkafka properties, and commits at
//! the same interval, so the difference between the two is the cost of deciding.

use std::io::Write as _;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

/// The line printed once all records are forwarded and committed.
pub const DONE: &str = "done";
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The work of one loop.
pub struct Task {
    pub broker: String,
    pub source: String,
    pub target: String,
    pub records: u64,
    pub transactions: Transactions,
    pub commit_interval: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transactions {
    No,
    Yes,
}

/// Forwards all records, prints [`DONE`], and waits to be killed.
pub fn run(task: &Task) {
    let (consumer, producer) = (consumer(task), producer(task));
    consumer.subscribe(&[&task.source]).expect("the topic can be subscribed");
    if task.transactions == Transactions::Yes {
        producer.init_transactions(TRANSACTION_TIMEOUT).expect("the producer gets its id and epoch");
        producer.begin_transaction().expect("the first transaction begins");
    }
    let (mut forwarded, mut committed) = (0, 0);
    let mut round = Instant::now();
    while committed < task.records {
        match consumer.poll(Duration::from_millis(20)) {
            Some(Ok(message)) => {
                forward(&producer, &task.target, &message);
                forwarded += 1;
            }
            Some(Err(error)) => eprintln!("  the loop continues after an error: {error}"),
            None => {}
        }
        if round.elapsed() >= task.commit_interval || forwarded == task.records {
            if forwarded > committed {
                commit(task.transactions, &consumer, &producer);
            }
            (committed, round) = (forwarded, Instant::now());
        }
    }
    println!("{DONE}");
    std::io::stdout().flush().expect("the benchmark reads standard output");
    // The benchmark reads CPU and memory of this process from outside while it waits here.
    std::thread::sleep(Duration::from_secs(600));
}

fn consumer(task: &Task) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", &task.broker)
        .set("group.id", &task.target)
        .set("session.timeout.ms", "60000")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("fetch.queue.backoff.ms", "10")
        .set("fetch.wait.max.ms", "100")
        .set("queued.max.messages.kbytes", "16384")
        .set("queued.min.messages", "20000")
        .set("fetch.max.bytes", "16777216")
        .create()
        .expect("the consumer configuration is valid")
}

fn producer(task: &Task) -> BaseProducer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &task.broker)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "1")
        .set("batch.size", "1000000")
        .set("compression.type", "lz4")
        .set("retry.backoff.ms", "10")
        .set("retry.backoff.max.ms", "50")
        .set("message.max.bytes", "1000000000")
        .set("delivery.report.only.error", "true");
    if task.transactions == Transactions::Yes {
        config.set("transactional.id", &task.target).set("transaction.timeout.ms", "60000");
    }
    config.create().expect("the producer configuration is valid")
}

fn forward(producer: &BaseProducer, target: &str, message: &BorrowedMessage<'_>) {
    let mut record = BaseRecord::<[u8], [u8]>::to(target);
    (record.key, record.payload) = (message.key(), message.payload());
    record.timestamp = message.timestamp().to_millis();
    record.headers = message.headers().map(|headers| headers.detach());
    loop {
        match producer.send(record) {
            Ok(()) => return,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                producer.poll(Duration::from_millis(10));
                record = back;
            }
            Err((error, _)) => panic!("{error}"),
        }
    }
}

fn commit(transactions: Transactions, consumer: &BaseConsumer, producer: &BaseProducer) {
    // Successful deliveries make no report here (`delivery.report.only.error`), so `flush` would notice them only every
    // 100 ms, and `poll` with a timeout busy-waits through its last millisecond.
    while producer.in_flight_count() > 0 {
        producer.poll(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
    }
    let position = consumer.position().expect("the consumer has a position");
    match transactions {
        Transactions::No => consumer.commit(&position, CommitMode::Async).expect("the commit is sent"),
        Transactions::Yes => {
            let group = consumer.group_metadata().expect("the consumer is a group member");
            producer
                .send_offsets_to_transaction(&position, &group, TRANSACTION_TIMEOUT)
                .expect("the broker takes the offsets");
            producer.commit_transaction(TRANSACTION_TIMEOUT).expect("the transaction is committed");
            producer.begin_transaction().expect("the next transaction begins");
        }
    }
}
