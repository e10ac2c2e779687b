//! Instances that share one capacity: the promise over all of them, measured by append time.

use std::time::Duration;

use serde_json::json;

use crate::promise::{PROMISE, STOP_TIMEOUT, TABLES};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Outgoing, Producer};
use crate::{
    support::broker::Broker, support::config::SHORT_SESSION, support::reader::Follower, support::record::Identity,
    support::wait::wait_until, support::watermaster::Watermaster,
};

const GROUP_TIMEOUT: Duration = Duration::from_secs(30);
const KEYS: &str = "client_from = [\"header:client-id\"]\nscope = \"group\"\ngroup_lease = \"3s\"";

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
