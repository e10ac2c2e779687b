//! Instances of one group with different configurations.

use std::time::Duration;

use serde_json::Value;

use crate::rig::{Rig, TargetTime};
use crate::{support::broker::Broker, support::wait::wait_until, support::watermaster::Watermaster};

const NOTICE_TIMEOUT: Duration = Duration::from_secs(30);

fn spawn(rig: &Rig, instance: &'static str, capacity: u64, cycle: &'static str, keys: &str) -> Watermaster {
    let keys = format!("client_from = [\"header:client-id\"]\n{keys}");
    let mut config = rig.config(rig.service(capacity, cycle, &keys, ""));
    config.instance = instance;
    Watermaster::spawn(&config)
}

fn wait_for_configurations(instance: &Watermaster, expected: f64) {
    wait_until(&format!("{expected} configurations"), NOTICE_TIMEOUT, || {
        instance.metric("watermaster_group_configurations", &[]) == Some(expected)
    });
}

fn members(instance: &Watermaster) -> Value {
    let (_, group) = instance.get("/v1/services/kyc/group").expect("the admin API answers");
    serde_json::from_str::<Value>(&group).expect("the admin API speaks JSON")["members"].clone()
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn differing_configurations_are_named_and_another_cycle_does_not_join() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "configurations", 1, 2, TargetTime::Create);
    let mut first = spawn(&rig, "wm-0", 100, "1s", "");
    first.wait_ready(NOTICE_TIMEOUT);
    wait_for_configurations(&first, 1.0);

    let mut second = spawn(&rig, "wm-1", 200, "1s", "lending = \"max_min\"");
    second.wait_ready(NOTICE_TIMEOUT);
    wait_for_configurations(&first, 2.0);
    wait_for_configurations(&second, 2.0);
    let members = members(&first);
    assert_eq!((&members[0]["capacity"], &members[1]["capacity"]), (&100.into(), &200.into()), "{members}");
    assert_ne!(members[0]["configuration"], members[1]["configuration"], "{members}");
    let named = "instances of the group have another configuration";
    wait_until("the line of the log", NOTICE_TIMEOUT, || first.log().contains(named));
    let log = first.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(named)).collect();
    assert!(matches!(&lines[..], [line] if line.contains("wm-1 (capacity, other settings)")), "once: {lines:?}");
    assert_eq!(second.terminate(NOTICE_TIMEOUT).code(), Some(0));
    wait_for_configurations(&first, 1.0);
    assert!(first.log().contains("all instances of the group have the same configuration"));

    let mut third = spawn(&rig, "wm-2", 100, "2s", "mode = \"reject\"");
    wait_for_configurations(&third, 2.0);
    let reason = "the group has another cycle and mode";
    wait_until("the reason for not being ready", NOTICE_TIMEOUT, || {
        third.get("/readyz").is_some_and(|(status, body)| status == 503 && body.contains(reason))
    });
    assert!(third.log().contains("not joining the group"), "{}", third.log());
    assert_eq!(third.terminate(NOTICE_TIMEOUT).code(), Some(0));
    assert!(first.is_ready(), "an instance that did not join changes nothing for the others");
    assert_eq!(first.terminate(NOTICE_TIMEOUT).code(), Some(0));
}

/// Two instances in different modes that start together once both joined, and admitted more than the capacity.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn of_two_instances_that_start_together_in_different_modes_one_joins() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "together", 1, 2, TargetTime::Create);
    let mut instances =
        [("wm-0", ""), ("wm-1", "mode = \"reject\"")].map(|(name, mode)| spawn(&rig, name, 100, "1s", mode));
    let refused = |instance: &Watermaster| {
        let (status, body) = instance.get("/readyz").unwrap_or_default();
        status == 503 && body.contains("the group has another mode")
    };
    let mut joined = 0;
    wait_until("one to join, and the other to say why it does not", NOTICE_TIMEOUT, || {
        joined = usize::from(!instances[0].is_ready());
        instances[joined].is_ready() && refused(&instances[1 - joined])
    });
    // Once the group has no live member, its cycle and mode are those of the instance that waits.
    assert_eq!(instances[joined].terminate(NOTICE_TIMEOUT).code(), Some(0));
    wait_until("the other one to join", NOTICE_TIMEOUT, || instances[1 - joined].is_ready());
    assert_eq!(instances[1 - joined].terminate(NOTICE_TIMEOUT).code(), Some(0));
}

mod long {
    use super::*;

    /// A group that an instance can't join for long once left no line in its log.
    #[test]
    #[ignore = "needs a real Kafka, and takes half a minute: scripts/test --long"]
    fn an_instance_that_joins_for_long_says_so() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "joining", 1, 2, TargetTime::Create);
        let mut first = spawn(&rig, "wm-0", 100, "1s", "");
        first.wait_ready(NOTICE_TIMEOUT);
        let mut second = spawn(&rig, "wm-1", 100, "2s", "");
        wait_until("a line in the log", NOTICE_TIMEOUT * 2, || second.log().contains("still joining the group"));
        [&mut first, &mut second]
            .into_iter()
            .for_each(|instance| assert_eq!(instance.terminate(NOTICE_TIMEOUT).code(), Some(0)));
    }
}
