//! The generator's process: sends numbered records of several clients, plain and in transactions, until it is told to
//! stop.
//!
//! Commands on standard input, one on a line: `partitions TOPIC N`, `poison KIND`, `stop`. The generator reports its
//! counts each second; its final report has the field `done`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use serde_json::json;

use crate::records::{NewRecord, RecordMaker};
use crate::{children, origin::Fate, plan::Plan};

/// The high phase of the load: its length in seconds, and its rate as a multiple of the average. It exceeds the
/// capacity, so that backlogs build up; the low phase drains them. Faults that need an instance with a backlog
/// therefore find one soon.
const HIGH: (f64, f64) = (5.0, 2.2);
/// The low phase of the load.
const LOW: (f64, f64) = (7.5, 0.2);
const SEND_INTERVAL: Duration = Duration::from_millis(5);
/// Pause between two transactions of the generator; it aborts one in four.
const TRANSACTION_INTERVAL: Duration = Duration::from_millis(1500);
const TRANSACTION_RECORDS: u64 = 24;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Counts of the sent records and of their deliveries.
#[derive(Default)]
struct SendCounts {
    sent: AtomicU64,
    acknowledged: AtomicU64,
    failed: AtomicU64,
    committed: AtomicU64,
    /// Records of the committed transactions.
    committed_records: AtomicU64,
    aborted: AtomicU64,
}

struct Deliveries(Arc<SendCounts>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();
    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let count = if result.is_ok() { &self.0.acknowledged } else { &self.0.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

type Sender = ThreadedProducer<Deliveries>;

pub fn run(plan: &Path) {
    let plan = Plan::read(plan);
    let partitions: Arc<Vec<AtomicI32>> = Arc::new(plan.sources.iter().map(|s| AtomicI32::new(s.partitions)).collect());
    let maker = Arc::new(Mutex::new(RecordMaker::new(&plan)));
    let plain = Arc::new(SendCounts::default());
    let upstream = Arc::new(SendCounts::default());
    let stop = Arc::new(AtomicBool::new(false));
    let transactions = {
        let (plan, maker, partitions) = (plan.clone(), Arc::clone(&maker), Arc::clone(&partitions));
        let (counts, stop) = (Arc::clone(&upstream), Arc::clone(&stop));
        std::thread::spawn(move || transactions(&plan, &maker, &partitions, &counts, &stop))
    };
    let producer = producer(&plan, None, &plain);
    send_until_stopped(&plan, &producer, &maker, &partitions, [&plain, &upstream]);
    stop.store(true, Ordering::Relaxed);
    let flushed = producer.flush(Duration::from_secs(120)).is_ok();
    transactions.join().expect("the thread for transactions does not panic");
    report([&plain, &upstream], json!(flushed));
}

/// Sends the due records and follows commands, until `stop`.
fn send_until_stopped(
    plan: &Plan, producer: &Sender, maker: &Mutex<RecordMaker>, partitions: &[AtomicI32], counts: [&Arc<SendCounts>; 2],
) {
    let commands = children::commands(Some("stop"));
    let began = Instant::now();
    let (mut sent, mut reported) = (0_u64, Instant::now());
    loop {
        let seconds = began.elapsed().as_secs_f64();
        let due = if plan.steady { seconds } else { due_seconds(seconds) };
        let due = (due * plan.rate as f64) as u64;
        for _ in sent..due {
            let new = maker.lock().expect("no holder panics").next(partitions, Fate::Plain);
            send(producer, &new, counts[0]);
        }
        sent = sent.max(due);
        while let Ok(command) = commands.try_recv() {
            let words: Vec<&str> = command.split_whitespace().collect();
            match words[..] {
                ["stop"] => return,
                ["partitions", topic, count] => {
                    let (topic, count): (usize, i32) =
                        (topic.parse().expect("an index"), count.parse().expect("a count"));
                    partitions[topic].store(count, Ordering::Relaxed);
                }
                ["poison", kind] => {
                    let new = maker.lock().expect("no holder panics").poison(kind);
                    send(producer, &new, counts[0]);
                }
                _ => eprintln!("unknown command: {command}"),
            }
        }
        if reported.elapsed() > Duration::from_secs(1) {
            reported = Instant::now();
            report(counts, serde_json::Value::Null);
        }
        std::thread::sleep(SEND_INTERVAL);
    }
}

/// Returns the load that is due after this many seconds, in seconds of the average rate.
fn due_seconds(seconds: f64) -> f64 {
    let (high, low) = (HIGH.0 * HIGH.1, LOW.0 * LOW.1);
    let period = HIGH.0 + LOW.0;
    let (whole, part) = ((seconds / period).floor(), seconds % period);
    whole * (high + low) + part.min(HIGH.0) * HIGH.1 + (part - HIGH.0).max(0.0) * LOW.1
}

fn report([plain, upstream]: [&Arc<SendCounts>; 2], done: serde_json::Value) {
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let mut news = json!({
        "sent": get(&plain.sent), "acknowledged": get(&plain.acknowledged), "failed": get(&plain.failed),
        "transactions_committed": get(&upstream.committed), "transactions_aborted": get(&upstream.aborted),
        "committed_records": get(&upstream.committed_records),
    });
    if !done.is_null() {
        news["done"] = done;
    }
    println!("{news}");
}

fn producer(plan: &Plan, transactional_id: Option<&str>, counts: &Arc<SendCounts>) -> Sender {
    let mut config = plan.client();
    config.set("max.in.flight.requests.per.connection", "1");
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "5").set("compression.type", "lz4");
    config.set("message.max.bytes", "4194304").set("queue.buffering.max.messages", "500000");
    if let Some(id) = transactional_id {
        config.set("transactional.id", id).set("transaction.timeout.ms", "8000");
    }
    config.create_with_context(Deliveries(Arc::clone(counts))).expect("the producer configuration is valid")
}

/// Sends a record; returns false if the client refuses it, for example because it does not know a new partition yet.
fn send(producer: &Sender, new: &NewRecord, counts: &SendCounts) -> bool {
    let headers = new
        .headers
        .iter()
        .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(KafkaHeader { key, value: value.as_deref() }));
    let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&new.topic);
    (record.partition, record.timestamp) = (Some(new.partition), Some(new.timestamp));
    (record.key, record.payload, record.headers) = (new.key.as_deref(), new.value.as_deref(), Some(headers));
    counts.sent.fetch_add(1, Ordering::Relaxed);
    loop {
        record = match producer.send(record) {
            Ok(()) => return true,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => back,
            // The record does not count as acknowledged; the oracle reads the source topics.
            Err((error, _)) => {
                eprintln!("not sent: {error}");
                return false;
            }
        };
        std::thread::sleep(SEND_INTERVAL);
    }
}

/// Sends transactions until `stop`. A transaction that fails is aborted with its producer.
fn transactions(
    plan: &Plan, maker: &Mutex<RecordMaker>, partitions: &[AtomicI32], counts: &Arc<SendCounts>, stop: &AtomicBool,
) {
    let id = format!("{}-upstream", plan.group);
    let mut current: Option<Sender> = None;
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TRANSACTION_INTERVAL);
        let producer = match current.take() {
            Some(producer) => producer,
            None => {
                let new = producer(plan, Some(&id), counts);
                if let Err(error) = new.init_transactions(CALL_TIMEOUT) {
                    eprintln!("init: {error}");
                    continue;
                }
                new
            }
        };
        number += 1;
        let fate = if number.is_multiple_of(4) { Fate::Aborted } else { Fate::Upstream };
        match transaction(&producer, maker, partitions, fate, counts) {
            Ok(()) => current = Some(producer),
            Err(error) => eprintln!("transaction {number}: {error}"),
        }
    }
    if let Some(producer) = current {
        let _ = producer.flush(CALL_TIMEOUT);
    }
}

fn transaction(
    producer: &Sender, maker: &Mutex<RecordMaker>, partitions: &[AtomicI32], fate: Fate, counts: &SendCounts,
) -> Result<(), KafkaError> {
    producer.begin_transaction()?;
    let mut sent = 0;
    for _ in 0..TRANSACTION_RECORDS {
        let new = maker.lock().expect("no holder panics").next(partitions, fate);
        sent += u64::from(send(producer, &new, counts));
    }
    if fate == Fate::Aborted {
        producer.flush(CALL_TIMEOUT)?;
        producer.abort_transaction(CALL_TIMEOUT)?;
        counts.aborted.fetch_add(1, Ordering::Relaxed);
    } else {
        producer.commit_transaction(CALL_TIMEOUT)?;
        counts.committed.fetch_add(1, Ordering::Relaxed);
        counts.committed_records.fetch_add(sent, Ordering::Relaxed);
    }
    Ok(())
}
