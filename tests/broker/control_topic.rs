//! The control topic of a group: posts that are too large for it.

use crate::promise::{STOP_TIMEOUT, TABLES};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::broker::{Broker, Topic};
use crate::support::producer::{Outgoing, Producer};
use crate::{support::reader::Follower, support::record::Identity, support::watermaster::Watermaster};

const KEYS: &str = "client_from = [\"header:client-id\"]";

fn start(rig: &Rig, instance: &'static str, capacity: u64, keys: &str, tables: &str) -> Watermaster {
    let mut config = rig.config(rig.service(capacity, "2s", &format!("{KEYS}\n{keys}"), tables));
    (config.commit_interval, config.instance) = ("20ms", instance);
    Watermaster::start(&config)
}

/// Returns the control topic of a rig, to be made by hand.
fn control_topic(rig: &Rig) -> Topic {
    let mut topic = Topic::new(format!("{}.kyc.control", rig.name), 1);
    topic.set("cleanup.policy", "compact");
    topic.set("min.compaction.lag.ms", "60000");
    topic
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

/// A post of more than 1 MB was refused by the producer, and sent again for ever: hardly any record was admitted.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn many_clients_with_long_ids_do_not_fill_a_post() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "long-ids", 1, 2, TargetTime::Append);
    let mut instance = start(&rig, "wm-0", 2_000, "max_clients = 9000", TABLES);
    admits_all(&rig, &mut instance, 8_000, 128, 0);
}

/// Configured clients were named in each post, however many they were.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn many_configured_clients_do_not_fill_a_post() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "configured", 1, 2, TargetTime::Append);
    let mut tables = TABLES.to_owned();
    (0..8_000).for_each(|n| tables.push_str(&format!("\n[service.client.\"{n:0128}\"]\nweight = 1")));
    let mut instance = start(&rig, "wm-0", 2_000, "max_clients = 9000", &tables);
    admits_all(&rig, &mut instance, 8_000, 128, 0);
}

/// A post that the topic refuses for its size was sent again unchanged, for ever.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn posts_shrink_to_what_the_control_topic_takes() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "small-posts", 1, 2, TargetTime::Append);
    let mut topic = control_topic(&rig);
    topic.set("max.message.bytes", "20000");
    let _topics = broker.create(&[topic]);
    let mut instance = start(&rig, "wm-0", 1_000, "max_clients = 2000", TABLES);
    admits_all(&rig, &mut instance, 1_500, 64, 3);
    let log = instance.log();
    assert!(log.contains("max.message.bytes"), "the remedy is named: {log}");
}
