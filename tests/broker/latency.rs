//! The delay that the program adds at low load.

use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::rig::{Rig, TargetTime, now_ms};
use crate::support::{
    broker::Broker, config::Config, producer::Outgoing, producer::Producer, wait::wait_until, watermaster::Watermaster,
};

const TIMEOUT: Duration = Duration::from_secs(30);

fn config(rig: &Rig, commit_interval: &'static str) -> Config {
    let mut config = rig.config(rig.service(100_000, "10s", "", ""));
    config.commit_interval = commit_interval;
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    config
}

/// Reads the next record of the target whose number is below `end`, and returns its age in milliseconds.
fn next_age(consumer: &BaseConsumer, end: u64) -> i64 {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < deadline, "a record comes within {TIMEOUT:?}");
        if let Some(record) = consumer.poll(Duration::from_millis(100)) {
            let record = record.expect("the target can be read");
            let value = record.payload().and_then(|value| std::str::from_utf8(value).ok());
            let number = value.and_then(|value| value.split_once('|')?.0.parse::<u64>().ok());
            if number.expect("every record has a number") < end {
                return now_ms() - record.timestamp().to_millis().expect("every record has a timestamp");
            }
        }
    }
}

fn reader(broker: &Broker, rig: &Rig) -> BaseConsumer {
    let mut client = broker.client();
    client.set("group.id", "latency").set("auto.offset.reset", "earliest").set("isolation.level", "read_committed");
    client.set("fetch.wait.max.ms", "5");
    let consumer: BaseConsumer = client.create().expect("librdkafka makes a consumer");
    consumer.subscribe(&[&rig.target]).expect("the target can be subscribed to");
    consumer
}

const LONE: u64 = 8;
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Sends records one after the other, each as soon as the former one has come to the target, and checks that they do not
/// wait for the end of a commit interval. The first one does not count: it waits for connections.
fn send_one_after_the_other(broker: &Broker, rig: &Rig) {
    let (producer, consumer) = (Producer::to(broker), reader(broker, rig));
    let mut began = None;
    for number in 0..=LONE {
        let record = Outgoing { timestamp: Some(now_ms()), ..Outgoing::numbered(&rig.sources[0], number, "a") };
        producer.send_all([record]);
        next_age(&consumer, LONE + 1);
        began.get_or_insert_with(Instant::now);
    }
    let spent = began.expect("a record came").elapsed();
    assert!(spent < COMMIT_INTERVAL * LONE as u32 / 2, "{LONE} records one after the other took {spent:?}");
}

/// Each record once waited for the end of the commit interval, although no other came.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_lone_record_does_not_wait_for_the_commit_interval() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "lone", 1, 1, TargetTime::Create);
    let mut watermaster = Watermaster::start(&config(&rig, "1s"));
    send_one_after_the_other(&broker, &rig);
    assert_eq!(watermaster.terminate(TIMEOUT).code(), Some(0));
}

/// The bug: while records of any client were delayed, each round took the whole commit interval. So a flood delayed
/// every other client's records by that much.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_delayed_records_of_a_flood_keep_no_other_record_for_a_commit_interval() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "beside-a-flood", 2, 1, TargetTime::Create);
    let mut config = config(&rig, "1s");
    config.services[0].capacity = 1_000;
    let mut watermaster = Watermaster::start(&config);
    let flood = |number| Outgoing::numbered(&rig.sources[1], LONE + 1 + number, "b");
    Producer::to(&broker).send_all((0..8_000).map(flood));
    let delayed = || watermaster.metric("watermaster_backlog_records", &["client=\"b\""]).unwrap_or(0.0);
    wait_until("the flood to be delayed", TIMEOUT, || delayed() > 5_000.0);
    send_one_after_the_other(&broker, &rig);
    assert!(delayed() > 0.0, "the flood is over too early: this test sees nothing");
    assert_eq!(watermaster.terminate(TIMEOUT).code(), Some(0));
}

mod long {
    use super::*;

    /// Measures the age of records in the target, with the default intervals.
    #[test]
    #[ignore = "needs a real Kafka, and takes half a minute: scripts/test --long"]
    fn a_hundred_records_a_second_wait_for_less_than_a_commit_interval() {
        const RECORDS: u64 = 2_000;
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "hundred", 1, 1, TargetTime::Create);
        let mut watermaster = Watermaster::start(&config(&rig, "100ms"));
        let (producer, consumer) = (Producer::lingering(&broker, "0"), reader(&broker, &rig));
        let topic = rig.sources[0].clone();
        let sender = std::thread::spawn(move || {
            let began = Instant::now();
            for number in 0..RECORDS {
                let due = Duration::from_millis(10 * number);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
                producer.send(&Outgoing { timestamp: Some(now_ms()), ..Outgoing::numbered(&topic, number, "a") });
            }
            producer.flush();
        });
        let mut ages: Vec<i64> = (0..RECORDS).map(|_| next_age(&consumer, RECORDS)).skip(200).collect();
        sender.join().expect("the sender did not panic");
        ages.sort_unstable();
        let at = |percent: usize| ages[ages.len() * percent / 100];
        let [p50, p90, p99] = [50, 90, 99].map(at);
        let rounds =
            watermaster.metric("watermaster_rounds_total", &["outcome=\"committed\""]).expect("the metric exists");
        println!("{rounds} rounds; age of records in the target: p50 {p50} ms, p90 {p90} ms, p99 {p99} ms");
        assert!(p50 < 50 && p90 < 100, "p50 {p50} ms, p90 {p90} ms");
        assert_eq!(watermaster.terminate(TIMEOUT).code(), Some(0));
    }
}
