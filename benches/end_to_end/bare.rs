//! Consumes and produces, decides nothing: what watermaster is compared with.
//!
//! Written as its author would: `BaseConsumer` and `BaseProducer` of rdkafka, with the librdkafka properties that watermaster
//! uses, and commits as often as watermaster does.

use std::io::Write as _;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

/// What it says once all is forwarded and committed.
pub const DONE: &str = "done";
const PATIENCE: Duration = Duration::from_secs(30);

/// What one of the loops is to do.
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

/// Forwards all records, says so, and waits to be killed.
pub fn run(task: &Task) {
    let (consumer, producer) = (consumer(task), producer(task));
    consumer.subscribe(&[&task.source]).expect("a subscription");
    if task.transactions == Transactions::Yes {
        producer.init_transactions(PATIENCE).expect("an epoch");
        producer.begin_transaction().expect("a transaction");
    }
    let (mut forwarded, mut committed) = (0, 0);
    let mut round = Instant::now();
    while committed < task.records {
        match consumer.poll(Duration::from_millis(20)) {
            Some(Ok(message)) => {
                forward(&producer, &task.target, &message);
                forwarded += 1;
            }
            Some(Err(error)) => eprintln!("  the loop goes on: {error}"),
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
    std::io::stdout().flush().expect("somebody listens");
    // Measured from outside while it waits here.
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
        .expect("a consumer")
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
    config.create().expect("a producer")
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
    // `flush` looks up once in 100 ms where no report says that a record arrived; `poll` spins through its last millisecond.
    while producer.in_flight_count() > 0 {
        producer.poll(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
    }
    let position = consumer.position().expect("it has read");
    match transactions {
        Transactions::No => consumer.commit(&position, CommitMode::Async).expect("a commit begins"),
        Transactions::Yes => {
            let group = consumer.group_metadata().expect("it is a member");
            producer.send_offsets_to_transaction(&position, &group, PATIENCE).expect("offsets are taken");
            producer.commit_transaction(PATIENCE).expect("the transaction is committed");
            producer.begin_transaction().expect("another transaction");
        }
    }
}
