//! The control topic of a group: records that are too large for it, and a log that lost its records.

use crate::promise::{PROMISE, STOP_TIMEOUT, TABLES};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::broker::{Broker, Topic};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::{support::reader::Follower, support::record::Identity, support::watermaster::Watermaster};

const KEYS: &str = "client_from = [\"header:client-id\"]";

fn start(rig: &Rig, instance: &'static str, capacity: u64, keys: &str, tables: &str) -> Watermaster {
    let mut config = rig.config(rig.service(capacity, "2s", &format!("{KEYS}\n{keys}"), tables));
    (config.commit_interval, config.instance) = ("20ms", instance);
    Watermaster::start(&config)
}

/// Returns the control topic of a rig, to be made by hand.
fn control_topic(rig: &Rig) -> Topic {
    let mut topic = Topic::new(format!("{}.kyc.seats", rig.name), 1);
    topic.set("cleanup.policy", "compact");
    topic.set("min.compaction.lag.ms", "60000");
    topic
}

/// Deletes all records of a topic that is compacted, as an operator does by mistake.
pub fn empty(broker: &Broker, topic: &Topic) {
    let mut deletable = topic.clone();
    deletable.set("cleanup.policy", "delete");
    broker.alter(&deletable);
    broker.delete_records(&topic.name);
    broker.alter(topic);
}

/// Sends records of many clients at once, and asserts that all are admitted, while the log is opened again at most
/// `reopened` times.
fn admits_all(rig: &Rig, instance: &mut Watermaster, clients: u64, length: usize, reopened: usize) {
    let records = clients * 2;
    let numbered = |n: u64| Outgoing::numbered(&rig.sources[0], n, &format!("{:0length$}", n % clients));
    Producer::to(&rig.broker).send_all((0..records).map(numbered));
    Follower::of(&rig.broker, &[&rig.target], Identity::Value).wait_for(records, DRAIN_TIMEOUT);
    assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0));
    let log = instance.log();
    assert!(log.matches("opening the control log again").count() <= reopened, "{log}");
}

/// A record of more than 1 MB was refused by the producer, and sent again for ever: hardly any record was admitted.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn many_clients_with_long_ids_do_not_fill_a_record() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "long-ids", 1, 2, TargetTime::Append);
    let mut instance = start(&rig, "wm-0", 2_000, "max_clients = 9000", TABLES);
    admits_all(&rig, &mut instance, 8_000, 128, 0);
}

/// Configured clients were named in each record, however many they were.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn many_configured_clients_do_not_fill_a_record() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "configured", 1, 2, TargetTime::Append);
    let mut tables = TABLES.to_owned();
    (0..8_000).for_each(|n| tables.push_str(&format!("\n[service.client.\"{n:0128}\"]\nweight = 1")));
    let mut instance = start(&rig, "wm-0", 2_000, "max_clients = 9000", &tables);
    admits_all(&rig, &mut instance, 8_000, 128, 0);
}

/// A record that the topic refuses for its size was sent again unchanged, for ever.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn loads_shrink_to_what_the_control_topic_takes() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "small-records", 1, 2, TargetTime::Append);
    let mut topic = control_topic(&rig);
    topic.set("max.message.bytes", "20000");
    let _topics = broker.create(&[topic]);
    let mut instance = start(&rig, "wm-0", 1_000, "max_clients = 2000", TABLES);
    admits_all(&rig, &mut instance, 1_500, 64, 3);
    let log = instance.log();
    assert!(log.contains("max.message.bytes"), "the remedy is named: {log}");
}

/// A log without records below its end never looked read: the instance joined for ever, and said nothing.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn an_instance_starts_on_a_control_topic_that_was_emptied() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "emptied", 1, 2, TargetTime::Append);
    let topic = control_topic(&rig);
    let _topics = broker.create(std::slice::from_ref(&topic));
    let producer = Producer::to(&broker);
    let mut follower = Follower::of(&broker, &[&rig.target], Identity::Value);
    for run in 1..=2 {
        let mut instance = start(&rig, "wm-0", PROMISE.capacity, "", TABLES);
        let numbered = |n: u64| Outgoing::numbered(&rig.sources[0], n, "one");
        producer.send_all((100 * (run - 1)..100 * run).map(numbered));
        follower.wait_for(100 * run, DRAIN_TIMEOUT);
        assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0));
        empty(&broker, &topic);
    }
}

/// A newcomer to an emptied log knows no member until it has heard of all: it must not take what another one holds.
/// Then the fullest window would hold up to two capacities.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_control_topic_that_is_emptied_under_load_gives_nothing_away() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "emptied-under-load", 1, 4, TargetTime::Append);
    let topic = control_topic(&rig);
    let _topics = broker.create(std::slice::from_ref(&topic));
    let source = rig.sources[0].clone();
    let load = Load::start(&broker, PROMISE.capacity, move |n| Outgoing::numbered(&source, n, "one"));
    let mut follower = Follower::of(&broker, &[&rig.target], Identity::Value);
    let mut first = start(&rig, "wm-0", PROMISE.capacity, "", TABLES);
    follower.wait_for(PROMISE.capacity * 2, DRAIN_TIMEOUT);
    empty(&broker, &topic);
    let mut second = start(&rig, "wm-1", PROMISE.capacity, "", TABLES);
    follower.wait_for(PROMISE.capacity * 8, DRAIN_TIMEOUT);
    load.stop();
    [&mut first, &mut second]
        .into_iter()
        .for_each(|instance| assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0)));
    let most = PROMISE.most_in_any_window(&rig.read_target());
    eprintln!("the fullest window holds {most} records, the capacity is {}", PROMISE.capacity);
    assert!(most * 100 <= PROMISE.capacity * 110, "{most} records in a window");
}
