//! Instances that share one capacity: the promise over all of them, measured by append time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use crate::promise::{PROMISE, STOP_TIMEOUT, TABLES};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::{
    support::broker::Broker, support::config::SHORT_SESSION, support::promise::Promise, support::reader::Follower,
    support::record::Identity, support::record::Record, support::wait::wait_until, support::watermaster::Watermaster,
};

const GROUP_TIMEOUT: Duration = Duration::from_secs(30);
const KEYS: &str = "client_from = [\"header:client-id\"]";

fn start(rig: &Rig, instance: &'static str) -> Watermaster {
    let mut config = rig.config(rig.service(PROMISE.capacity, "2s", KEYS, TABLES));
    (config.commit_interval, config.instance) = ("20ms", instance);
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    config.kafka.push_str(SHORT_SESSION);
    Watermaster::start(&config)
}

fn admitted(instance: &Watermaster) -> f64 {
    instance.metric("watermaster_records_total", &["decision=\"admitted\""]).unwrap_or(0.0)
}

/// Two instances with a capacity each would admit twice as much.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn three_instances_admit_one_capacity_while_they_die_and_leave() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "group", 2, 6, TargetTime::Append);
    let records = PROMISE.capacity * 14;
    let numbered =
        |n: u64| Outgoing::numbered(&rig.sources[n as usize % 2], n, ["one", "two", "three"][n as usize % 3]);
    Producer::to(&broker).send_all((0..records).map(numbered));
    let mut first = start(&rig, "wm-0");
    let mut second = start(&rig, "wm-1");
    let mut third = start(&rig, "wm-2");
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    wait_until("each instance to admit records", GROUP_TIMEOUT, || {
        [&first, &second, &third].into_iter().all(|instance| admitted(instance) > 0.0)
    });
    follower.wait_for(PROMISE.capacity * 4, DRAIN_TIMEOUT);
    let (status, group) = first.get("/v1/services/kyc/group").expect("the admin API answers");
    let group: serde_json::Value = serde_json::from_str(&group).expect("the admin API speaks JSON");
    assert_eq!((status, &group["scope"], &group["state"]), (200, &json!("group"), &json!("active")), "{group}");
    let members = group["members"].as_array().expect("members");
    assert_eq!(members.len(), 3, "{group}");
    let held: u64 = members.iter().filter_map(|member| member["hold"].as_u64()).sum();
    assert!(held <= PROMISE.capacity && held > 0, "{group}");
    assert_eq!(first.metric("watermaster_group_members", &[]), Some(3.0));
    second.kill();
    follower.wait_for(PROMISE.capacity * 8, DRAIN_TIMEOUT);
    assert_eq!(third.terminate(STOP_TIMEOUT).code(), Some(0));
    follower.wait_for(records, DRAIN_TIMEOUT);
    assert_eq!(first.terminate(STOP_TIMEOUT).code(), Some(0));

    let target = rig.read_target();
    assert_eq!(rig.read_dead_letter().len(), 0, "no record is rejected, as the backlogs fit their bounds");
    assert_eq!(target.len() as u64, records, "records are lost or repeated");
    let most = PROMISE.most_in_any_window(&target);
    eprintln!("the fullest window holds {most} records, the capacity is {}", PROMISE.capacity);
    assert!(most * 100 <= PROMISE.capacity * 103, "{most} records in a window");
}

/// A later version of the program may write such a record: to go on without it would be to go on with wrong holds.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_record_that_can_not_be_read_stops_the_service() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "unreadable", 1, 1, TargetTime::Create);
    let mut instance = start(&rig, "wm-0");
    let record = Outgoing {
        topic: format!("{}.kyc.seats", rig.name),
        key: Some(b"s/wm-1".to_vec()),
        value: Some(vec![9]),
        ..Outgoing::default()
    };
    Producer::to(&broker).send_all([record]);
    assert_eq!(instance.wait(STOP_TIMEOUT).code(), Some(70));
    assert!(instance.log().contains("version"), "{}", instance.log());
}

mod long {
    use super::*;
    use crate::rig::now_ms;

    const TOKEN: &str = "the-token-of-the-group";

    /// A single instance without a group admits nothing until its window has emptied to the lowered capacity.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_group_in_shape_mode_admits_at_a_lowered_capacity_s_pace_at_once() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "lowered", 1, 4, TargetTime::Append);
        let token = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(token.path(), TOKEN).expect("the token is written");
        let config = |capacity| {
            let mut config = rig.config(rig.service(capacity, "4s", KEYS, TABLES));
            config.admin = format!("token_file = {:?}", token.path().display().to_string());
            config
        };
        let mut instance = Watermaster::start(&config(2_000));
        let source = rig.sources[0].clone();
        let load = Load::start(&broker, 1_000, move |n| Outgoing::numbered(&source, n, "one"));
        let mut follower = Follower::of(&broker, &[&rig.target], Identity::Value);
        follower.wait_for(4_000, DRAIN_TIMEOUT);
        let (status, body) = instance.reload(&config(500).to_toml(), TOKEN);
        assert_eq!(status, 200, "{body}");
        let reloaded = now_ms();
        follower.read_on(Duration::from_secs(4));
        load.stop();
        assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0));
        let second = |record: &Record| (record.timestamp - reloaded).div_euclid(1_000);
        let seconds: Vec<i64> = rig.read_target().iter().map(second).collect();
        for after in 1..3 {
            let admitted = seconds.iter().filter(|second| **second == after).count();
            assert!((60..250).contains(&admitted), "{admitted} records in second {after} after the reload, not 125");
        }
    }

    const PROMISE: Promise = Promise {
        capacity: 5_000,
        cycle: Duration::from_secs(5),
        commit_interval: Duration::from_millis(50),
        burst_percent: 1,
    };
    /// Cycles until the group has found its targets, and cycles that are compared.
    const WARM_UP: u64 = 4;
    const COMPARED: u64 = 10;

    /// Sends a load of 1.5 capacities for some cycles: one client to a single partition, the others to all. Returns the
    /// records of each client that were appended in the compared cycles.
    ///
    /// Three clients want clearly more than their shares. (One that wants hardly more gets a bit more from a group than
    /// from one instance, so that it waits hardly longer.)
    fn shares(broker: &Broker, instances: &[&'static str], scope: &str) -> BTreeMap<String, u64> {
        let rig = Rig::new(broker, scope, 2, 3, TargetTime::Append);
        let keys = format!("client_from = [\"header:client-id\"]\nscope = {scope:?}");
        let mut config = rig.config(rig.service(PROMISE.capacity, "5s", &keys, TABLES));
        config.kafka = "delivery = \"exactly_once\"".to_owned();
        let mut running = Watermaster::start_all(&config, instances);
        let sources = rig.sources.clone();
        let load = Load::start(broker, 1_500, move |n| match n % 10 {
            0..4 => Outgoing { partition: Some(0), ..Outgoing::numbered(&sources[0], n, "one") },
            client @ 4..10 => {
                let names = ["two", "two", "two", "three", "three", "light"];
                Outgoing::numbered(&sources[n as usize / 10 % 2], n, names[client as usize - 4])
            }
            _ => unreachable!("a remainder"),
        });
        let mut follower = Follower::of(broker, &[&rig.target], Identity::Value);
        follower.wait_for(PROMISE.capacity * (WARM_UP + COMPARED + 1), DRAIN_TIMEOUT);
        load.stop();
        running.iter_mut().for_each(|instance| assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0)));

        let target = rig.read_target();
        let first = target.iter().map(|record| record.timestamp).min().expect("records");
        let cycle = PROMISE.cycle.as_millis() as i64;
        let (from, to) = (first + WARM_UP as i64 * cycle, first + (WARM_UP + COMPARED) as i64 * cycle);
        let mut shares = BTreeMap::new();
        for record in target.iter().filter(|record| (from..to).contains(&record.timestamp)) {
            *shares.entry(record.header("client-id").expect("a client").to_owned()).or_insert(0) += 1;
        }
        let used = shares.values().sum::<u64>() as f64 / (PROMISE.capacity * COMPARED) as f64;
        let most = PROMISE.most_in_any_window(&target);
        eprintln!("scope {scope}: used {used:.3}, the fullest window holds {most} of {}; {shares:?}", PROMISE.capacity);
        assert!(most * 100 <= PROMISE.capacity * 103, "{most} records in a window");
        assert!(used >= 0.97, "{used} of the capacity is used");
        shares
    }

    #[test]
    #[ignore = "needs a real Kafka, and takes three minutes: scripts/test --long"]
    fn each_client_gets_the_share_that_one_instance_gives() {
        let broker = Broker::of_this_run();
        let alone = shares(&broker, &["wm-0"], "instance");
        let group = shares(&broker, &["wm-0", "wm-1", "wm-2"], "group");
        for (client, alone) in alone {
            let off = group[&client].abs_diff(alone).saturating_sub(3 * COMPARED);
            assert!(off * 20 <= alone, "{client}: {} in the group, {alone} alone", group[&client]);
        }
    }

    /// Each instance would stop for good, or go on with a part that others take, if it did not notice. An instance that
    /// began a group in the middle of a round once waited for the commits of that round, until the transaction was too
    /// old and the coordinator ended it.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn an_instance_goes_on_after_its_control_topic_was_deleted() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "deleted", 1, 2, TargetTime::Append);
        let mut instance = start(&rig, "wm-0");
        let mut follower = Follower::of(&broker, &[&rig.target], Identity::Value);
        let source = rig.sources[0].clone();
        let load = Load::start(&broker, 400, move |n| Outgoing::numbered(&source, n, "one"));
        follower.wait_for(100, DRAIN_TIMEOUT);
        broker.delete(&[format!("{}.kyc.seats", rig.name)]);
        wait_until("the instance to notice", DRAIN_TIMEOUT, || {
            instance.log().contains("opening the control log again")
        });
        follower.wait_for(follower.seen() as u64 + 1_000, DRAIN_TIMEOUT);
        let sent = load.stop();
        follower.wait_for(sent, DRAIN_TIMEOUT);
        assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0));
        assert_eq!(rig.read_target().len() as u64, sent, "records are lost or repeated");
        let log = instance.log();
        assert!(log.contains("the group is new"), "{log}");
        assert!(!log.contains("fenced"), "{log}");
    }
}
