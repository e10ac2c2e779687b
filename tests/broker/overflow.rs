//! A flood on a topic of its own waits in Kafka: none of its records is rejected, and no other client waits.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::{Rig, TargetTime, now_ms};
use crate::support::broker::Broker;
use crate::support::producer::{Load, Outgoing};
use crate::support::record::{Identity, Record};
use crate::support::watermaster::Watermaster;

const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Records per second.
const CAPACITY: u64 = 2_000;
/// The default of `queue_capacity`.
const QUEUE_CAPACITY: f64 = 10_000.0;

/// Sends records that name no client to one source.
fn load(rig: &Rig, source: usize, per_second: u64) -> Load {
    let topic = rig.sources[source].clone();
    let header = |name: &str, value: String| (name.to_owned(), Some(value.into_bytes()));
    Load::start(&rig.broker, per_second, move |number| Outgoing {
        headers: vec![header("source", source.to_string()), header("sent", now_ms().to_string())],
        partition: Some((number % 2) as i32),
        ..Outgoing::numbered(&topic, number, "")
    })
}

fn number(record: &Record, header: &str) -> i64 {
    record.header(header).and_then(|value| value.parse().ok()).expect("a number that the test wrote")
}

/// The largest values of two gauges while the service works.
#[derive(Default)]
struct Largest {
    /// Records of the flood in memory and in its topic.
    waiting: f64,
    /// Records in memory.
    held: f64,
}

impl Largest {
    /// Returns the number of decided records.
    fn look(&mut self, watermaster: &Watermaster) -> u64 {
        let value = |name: &str, labels: &[&str]| watermaster.metric(name, labels).unwrap_or_default();
        self.waiting = self.waiting.max(value("watermaster_backlog_records", &["client=\"topic-1\""]));
        self.held = self.held.max(value("watermaster_held_records", &[]));
        value("watermaster_records_total", &[]) as u64
    }

    /// Looks until as many records are decided.
    fn until(&mut self, decided: u64, watermaster: &Watermaster, deadline: Instant) {
        while self.look(watermaster) < decided {
            assert!(Instant::now() < deadline, "{decided} records are decided");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Floods one of two topics of the least configuration with four times the capacity for a while.
fn flood(name: &str, seconds: u64) {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, name, 2, 2, TargetTime::Append);
    let mut config = rig.config(rig.service(CAPACITY * 10, "10s", "", ""));
    (config.commit_interval, config.kafka) = ("100ms", "delivery = \"exactly_once\"".to_owned());
    let mut watermaster = Watermaster::start(&config);
    let home = load(&rig, 0, 100);
    let (flood, began) = (load(&rig, 1, CAPACITY * 4), Instant::now());
    let mut largest = Largest::default();
    while began.elapsed() < Duration::from_secs(seconds) {
        largest.look(&watermaster);
        thread::sleep(Duration::from_millis(100));
    }
    let flooded = flood.stop();
    let deadline = Instant::now() + Duration::from_secs(60) + Duration::from_millis(flooded * 2_000 / CAPACITY);
    largest.until(flooded, &watermaster, deadline);
    let sent = home.stop();
    largest.until(flooded + sent, &watermaster, deadline);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

    assert_eq!(rig.read_dead_letter().len(), 0, "nothing is rejected");
    let target = rig.read_target();
    let of = |source: i64| target.iter().filter(move |record| number(record, "source") == source);
    let mut waits: Vec<i64> = of(0).map(|record| record.timestamp - number(record, "sent")).collect();
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    let Largest { waiting, held } = largest;
    eprintln!(
        "{name}: {flooded} records of a flood, {sent} of home; p99 of home's waits {p99} ms; at most {waiting} records \
         of the flood waited, {held} records in memory"
    );
    assert_eq!((waits.len() as u64, of(1).count() as u64), (sent, flooded));
    assert!(p99 <= 1_000, "home's records wait for {p99} ms");
    assert!(held <= 1.5 * QUEUE_CAPACITY, "{held} records in memory");
    assert!(waiting > 1.5 * QUEUE_CAPACITY, "{waiting} records waited: those in the topic count");
    // The target's partition follows from the key, so order holds for each pair of partitions.
    let mut last = HashMap::new();
    for record in of(1) {
        let sequence = Identity::Value.of(record).expect("every record has a number");
        let before = last.insert((sequence % 2, record.partition), sequence);
        assert!(before.is_none_or(|before| before < sequence), "{sequence} after {before:?}");
    }
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_flood_on_a_topic_of_its_own_is_delayed_and_not_dropped() {
    flood("overflow", 5);
}

mod long {
    #[test]
    #[ignore = "needs a real Kafka, and takes five minutes: scripts/test --long"]
    fn a_minute_of_flood_on_a_topic_of_its_own_is_delayed_and_not_dropped() {
        super::flood("overflow-long", 60);
    }
}
