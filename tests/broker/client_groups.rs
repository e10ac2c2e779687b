//! Groups of clients, which records name by their topic.

use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime};
use crate::support::broker::Broker;
use crate::support::judge::Judge;
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::Record;
use crate::support::wait::wait_until;
use crate::support::watermaster::Watermaster;

/// Records a second.
const CAPACITY: u64 = 200;
const BATCH: u64 = 2_000;
const OTHERS: u64 = 40;

/// The group `topic-0` has a client that floods and one that does not; the topic of another group has two clients, which
/// count as one, since the group is not configured. A flood delays its siblings as little as it delays others, at two
/// instances that share the capacity.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_flood_delays_neither_its_siblings_nor_others() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "client-groups", 2, 2, TargetTime::Append);
    let keys = "client_from = [\"header:client-id\"]\ngroup_from = [\"topic\"]";
    let config = rig.config(rig.service(CAPACITY, "1s", keys, "[service.group.topic-0]\nweight = 2\n"));
    let mut instances = Watermaster::start_all(&config, &["one", "two"]);

    let producer = Producer::to(&broker);
    let [loans, cards] = &rig.sources[..] else { panic!("two sources") };
    producer.send_all((0..BATCH).map(|number| Outgoing::numbered(loans, number, "batch")));
    let web = (BATCH..BATCH + OTHERS).map(|number| Outgoing::numbered(loans, number, "web"));
    let strangers = (BATCH + OTHERS..BATCH + 2 * OTHERS)
        .map(|number| Outgoing::numbered(cards, number, ["one", "two"][number as usize % 2]));
    producer.send_all(web.chain(strangers));
    producer.flush();
    wait_until("all records are admitted", DRAIN_TIMEOUT, || {
        let admitted = |one: &Watermaster| one.metric("watermaster_records_total", &["decision=\"admitted\""]);
        instances.iter().filter_map(admitted).sum::<f64>() as u64 == BATCH + 2 * OTHERS
    });

    let service = instances[0].service("kyc");
    let named: Vec<&str> =
        service["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(named, ["", "topic-0"]);
    for instance in &instances {
        let service = instance.service("kyc");
        for client in service["clients"].as_array().unwrap() {
            let name = client["name"].as_str().unwrap();
            assert!(["topic-0/batch", "topic-0/web", "topic-1"].contains(&name), "{name}");
            assert_eq!(client["group"].as_str(), name.split_once('/').map(|(group, _)| group), "{client}");
        }
    }
    for instance in &mut instances {
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
    let target = rig.read_target();
    Judge { keeps_timestamps: false, ..NUMBERED }
        .judge(&rig.read_sources(), &target, &rig.read_dead_letter())
        .assert_right();
    // The other clients want less than their shares: their records are admitted within a second or two.
    let last = |name: &str| {
        target.iter().filter(|record| record.header("client-id") == Some(name)).map(|one| one.timestamp).max()
    };
    for name in ["web", "one", "two"] {
        let before =
            |record: &&Record| record.header("client-id") == Some("batch") && Some(record.timestamp) <= last(name);
        let batch = target.iter().filter(before).count() as u64;
        assert!(batch <= BATCH / 2, "{batch} records of the batch were admitted before the last one of {name}");
    }
}

/// A pattern of a rule makes a group of each topic whose records come, at all instances: they share the capacity out by
/// the same groups. Records before that count as one client with the group's name.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_pattern_of_a_rule_makes_groups() {
    let broker = Broker::of_this_run();
    // One of the two instances reads the only partition of each topic.
    let rig = Rig::new(&broker, "made-groups", 2, 1, TargetTime::Append);
    let keys = "client_from = [\"header:client-id\"]\ngroup_from = [\"topic\"]";
    let rule = "[[service.rule]]\nname = \"tier\"\ngroups = [\"topic-*\"]\nweight = 2\n";
    let config = rig.config(rig.service(CAPACITY, "1s", keys, rule));
    let mut instances = Watermaster::start_all(&config, &["one", "two"]);
    let named = |instance: &Watermaster, list: &str| -> Vec<String> {
        let service = instance.service("kyc");
        // Without groups there is no list of them.
        let entries = service[list].as_array().into_iter().flatten();
        entries.map(|entry| entry["name"].as_str().expect("a name").to_owned()).collect()
    };
    let producer = Producer::to(&broker);
    let send = |topics: &[String], from: u64| {
        producer.send_all((from..).zip(topics).map(|(number, topic)| Outgoing::numbered(topic, number, "web")));
        producer.flush();
    };
    send(&rig.sources[..1], 0);
    wait_until("the first group, at its instance", DRAIN_TIMEOUT, || {
        instances.iter().any(|one| named(one, "groups") == ["", "topic-0"])
    });
    // From now on the group's clients have loads, which tell the other instance.
    let mut sent = 1;
    wait_until("both groups at both instances", DRAIN_TIMEOUT, || {
        send(&rig.sources, sent);
        sent += 2;
        instances.iter().all(|one| named(one, "groups") == ["", "topic-0", "topic-1"])
    });
    let all = ["topic-0", "topic-0/web", "topic-1", "topic-1/web"];
    wait_until("the clients of both groups", DRAIN_TIMEOUT, || {
        send(&rig.sources, sent);
        sent += 2;
        let mut names: Vec<String> = instances.iter().flat_map(|one| named(one, "clients")).collect();
        names.sort();
        names == all
    });
    wait_until("all records are admitted", DRAIN_TIMEOUT, || rig.read_target().len() as u64 == sent);
    for instance in &mut instances {
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
}
