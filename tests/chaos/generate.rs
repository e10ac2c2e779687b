//! The generator's process: numbered records of several clients, plain and in transactions of its own, until told to stop.
//!
//! Orders come by lines: `partitions TOPIC N`, `poison KIND`, `stop`. Each second it tells what it sent; its last word
//! has the field `done`.

use std::io::{BufRead, stdin};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use serde_json::json;

use crate::origin::Fate;
use crate::plan::Plan;
use crate::records::{Made, Maker};

/// Of a load that swings: so long above what the program may let through, so long below, so that delays build up and go, and
/// nobody waits long for an instance with a backlog.
const HIGH: (f64, f64) = (5.0, 2.2);
const LOW: (f64, f64) = (7.5, 0.2);
const TICK: Duration = Duration::from_millis(5);
/// A transaction of the generator's own: one in four is aborted.
const TRANSACTION_EVERY: Duration = Duration::from_millis(1500);
const TRANSACTION_RECORDS: u64 = 24;
const CALL: Duration = Duration::from_secs(10);

/// What became of what was sent.
#[derive(Default)]
struct Tally {
    sent: AtomicU64,
    acknowledged: AtomicU64,
    failed: AtomicU64,
    committed: AtomicU64,
    /// Records of these.
    committed_records: AtomicU64,
    aborted: AtomicU64,
}

struct Deliveries(Arc<Tally>);

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
    let maker = Arc::new(Mutex::new(Maker::new(&plan)));
    let plain = Arc::new(Tally::default());
    let upstream = Arc::new(Tally::default());
    let stop = Arc::new(AtomicBool::new(false));
    let transactions = {
        let (plan, maker, partitions) = (plan.clone(), Arc::clone(&maker), Arc::clone(&partitions));
        let (tally, stop) = (Arc::clone(&upstream), Arc::clone(&stop));
        std::thread::spawn(move || transactions(&plan, &maker, &partitions, &tally, &stop))
    };
    let producer = producer(&plan, None, &plain);
    steady(&plan, &producer, &maker, &partitions, [&plain, &upstream]);
    stop.store(true, Ordering::Relaxed);
    let flushed = producer.flush(Duration::from_secs(120)).is_ok();
    transactions.join().expect("the transactions' thread does not panic");
    tell([&plain, &upstream], json!(flushed));
}

/// Sends what is due until told to stop.
fn steady(plan: &Plan, producer: &Sender, maker: &Mutex<Maker>, partitions: &[AtomicI32], tallies: [&Arc<Tally>; 2]) {
    let orders = orders();
    let began = Instant::now();
    let (mut sent, mut told) = (0_u64, Instant::now());
    loop {
        let due = (worth(began.elapsed().as_secs_f64()) * plan.rate as f64) as u64;
        for _ in sent..due {
            let made = maker.lock().expect("no holder panics").next(partitions, Fate::Plain);
            send(producer, &made, tallies[0]);
        }
        sent = sent.max(due);
        while let Ok(order) = orders.try_recv() {
            let words: Vec<&str> = order.split_whitespace().collect();
            match words[..] {
                ["stop"] => return,
                ["partitions", topic, count] => {
                    let (topic, count): (usize, i32) =
                        (topic.parse().expect("an index"), count.parse().expect("a count"));
                    partitions[topic].store(count, Ordering::Relaxed);
                }
                ["poison", kind] => {
                    let made = maker.lock().expect("no holder panics").poison(kind);
                    send(producer, &made, tallies[0]);
                }
                _ => eprintln!("no such order: {order}"),
            }
        }
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            tell(tallies, serde_json::Value::Null);
        }
        std::thread::sleep(TICK);
    }
}

/// How many seconds' worth of the average rate are due after so many seconds.
fn worth(seconds: f64) -> f64 {
    let (high, low) = (HIGH.0 * HIGH.1, LOW.0 * LOW.1);
    let period = HIGH.0 + LOW.0;
    let (whole, part) = ((seconds / period).floor(), seconds % period);
    whole * (high + low) + part.min(HIGH.0) * HIGH.1 + (part - HIGH.0).max(0.0) * LOW.1
}

fn orders() -> Receiver<String> {
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        // Whoever gave orders is gone.
        let _ = sender.send("stop".to_owned());
    });
    orders
}

fn tell([plain, upstream]: [&Arc<Tally>; 2], done: serde_json::Value) {
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

fn producer(plan: &Plan, transactional_id: Option<&str>, tally: &Arc<Tally>) -> Sender {
    let mut config = plan.client();
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "5").set("compression.type", "lz4");
    config.set("message.max.bytes", "4194304").set("queue.buffering.max.messages", "500000");
    if let Some(id) = transactional_id {
        config.set("transactional.id", id).set("transaction.timeout.ms", "8000");
    }
    config.create_with_context(Deliveries(Arc::clone(tally))).expect("a producer")
}

/// False: it was refused, as by a client that does not know a new partition yet.
fn send(producer: &Sender, made: &Made, tally: &Tally) -> bool {
    let headers = made
        .headers
        .iter()
        .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(KafkaHeader { key, value: value.as_deref() }));
    let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&made.topic);
    (record.partition, record.timestamp) = (Some(made.partition), Some(made.timestamp));
    (record.key, record.payload, record.headers) = (made.key.as_deref(), made.value.as_deref(), Some(headers));
    tally.sent.fetch_add(1, Ordering::Relaxed);
    loop {
        record = match producer.send(record) {
            Ok(()) => return true,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => back,
            // It does not count as acknowledged; the source topics are the truth.
            Err((error, _)) => {
                eprintln!("not sent: {error}");
                return false;
            }
        };
        std::thread::sleep(TICK);
    }
}

/// Transactions of the generator's own until `stop`. Whatever fails is aborted with its producer: the source topics are the truth.
fn transactions(plan: &Plan, maker: &Mutex<Maker>, partitions: &[AtomicI32], tally: &Arc<Tally>, stop: &AtomicBool) {
    let id = format!("{}-upstream", plan.group);
    let mut current: Option<Sender> = None;
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TRANSACTION_EVERY);
        let producer = match current.take() {
            Some(producer) => producer,
            None => {
                let fresh = producer(plan, Some(&id), tally);
                if let Err(error) = fresh.init_transactions(CALL) {
                    eprintln!("init: {error}");
                    continue;
                }
                fresh
            }
        };
        number += 1;
        let fate = if number.is_multiple_of(4) { Fate::Aborted } else { Fate::Upstream };
        match transaction(&producer, maker, partitions, fate, tally) {
            Ok(()) => current = Some(producer),
            Err(error) => eprintln!("transaction {number}: {error}"),
        }
    }
    if let Some(producer) = current {
        let _ = producer.flush(CALL);
    }
}

fn transaction(
    producer: &Sender,
    maker: &Mutex<Maker>,
    partitions: &[AtomicI32],
    fate: Fate,
    tally: &Tally,
) -> Result<(), KafkaError> {
    producer.begin_transaction()?;
    let mut sent = 0;
    for _ in 0..TRANSACTION_RECORDS {
        let made = maker.lock().expect("no holder panics").next(partitions, fate);
        sent += u64::from(send(producer, &made, tally));
    }
    if fate == Fate::Aborted {
        producer.flush(CALL)?;
        producer.abort_transaction(CALL)?;
        tally.aborted.fetch_add(1, Ordering::Relaxed);
    } else {
        producer.commit_transaction(CALL)?;
        tally.committed.fetch_add(1, Ordering::Relaxed);
        tally.committed_records.fetch_add(sent, Ordering::Relaxed);
    }
    Ok(())
}
