//! Instances of a group that are killed, restarted and suspended: their part of the capacity is used again at once, no
//! record is rejected, and the promise holds.

use crate::promise::{PROMISE, STOP_TIMEOUT, TABLES};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime, now_ms};
use crate::support::config::{Config, SHORT_SESSION};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::{
    support::broker::Broker, support::reader::Follower, support::record::Identity, support::wait::wait_until,
    support::watermaster::Watermaster,
};

const IDS: [&str; 3] = ["wm-0", "wm-1", "wm-2"];
const KEYS: &str = "client_from = [\"header:client-id\"]";

fn config(rig: &Rig, capacity: u64, cycle: &'static str, keys: &str, tables: &str) -> Config {
    let mut config = rig.config(rig.service(capacity, cycle, keys, tables));
    config.commit_interval = "20ms";
    config.kafka = format!("delivery = \"exactly_once\"{SHORT_SESSION}");
    config
}

fn admitted(instance: &Watermaster) -> f64 {
    instance.metric("watermaster_records_total", &["decision=\"admitted\""]).unwrap_or(0.0)
}

mod long {
    use super::*;

    /// The instance was the only one, so that no other one can tell it what the capacity is used for. It admitted
    /// nothing until a cycle was over.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_killed_instance_admits_as_soon_as_it_is_back() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "back", 1, 2, TargetTime::Append);
        let config = config(&rig, 60_000, "60s", &format!("{KEYS}\nmode = \"reject\""), "");
        let mut instance = Watermaster::start(&config);
        let source = rig.sources[0].clone();
        let load = Load::start(&broker, 200, move |n| Outgoing::numbered(&source, n, "one"));
        let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
        follower.wait_for(400, DRAIN_TIMEOUT);
        let killed = now_ms();
        instance.kill();
        instance = Watermaster::start(&config);
        let back = now_ms();
        wait_until("records to be admitted", DRAIN_TIMEOUT, || admitted(&instance) > 0.0);
        follower.wait_for(load.stop(), DRAIN_TIMEOUT);
        assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0));
        assert_eq!(rig.read_dead_letter().len(), 0, "records are rejected");
        let target = rig.read_target();
        // A record of before the kill may become visible a moment later.
        let first = target.iter().map(|record| record.timestamp).filter(|at| *at > killed + 500).min();
        let after = first.expect("records after the kill") - back;
        eprintln!("ready {} ms after the kill, first record {after} ms after that", back - killed);
        assert!(after <= 2_000, "the first record came {after} ms after the instance was ready");
    }

    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_rolling_restart_rejects_nothing_and_keeps_the_promise() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "rolling", 2, 3, TargetTime::Append);
        let config = config(&rig, PROMISE.capacity, "2s", KEYS, &TABLES.replace("10m", "20s"));
        let mut running = Watermaster::start_all(&config, &IDS);
        let sources = rig.sources.clone();
        // 90 % of the capacity.
        let load = Load::start(&broker, 900, move |n| {
            Outgoing::numbered(&sources[n as usize % 2], n, ["one", "two", "three"][n as usize % 3])
        });
        let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
        follower.wait_for(PROMISE.capacity, DRAIN_TIMEOUT);
        for (number, instance) in IDS.into_iter().enumerate() {
            assert_eq!(running[number].terminate(STOP_TIMEOUT).code(), Some(0));
            running[number] = Watermaster::start(&Config { instance, ..config.clone() });
            wait_until("the instance to admit records", DRAIN_TIMEOUT, || admitted(&running[number]) > 0.0);
        }
        let sent = load.stop();
        follower.wait_for(sent, DRAIN_TIMEOUT);
        running.iter_mut().for_each(|instance| assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0)));
        assert_eq!(rig.read_dead_letter().len(), 0, "records are rejected");
        let target = rig.read_target();
        assert_eq!(target.len() as u64, sent, "records are lost or repeated");
        let most = PROMISE.most_in_any_window(&target);
        eprintln!("the fullest window holds {most} records, the capacity is {}", PROMISE.capacity);
        assert!(most * 100 <= PROMISE.capacity * 105, "{most} records in a window");
    }

    /// The other instance claims the part of one that is suspended. When that one goes on, it may admit at most the
    /// records that it had announced.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_suspended_instance_loses_its_part_and_gets_one_again() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "suspended", 2, 2, TargetTime::Append);
        let config = config(&rig, PROMISE.capacity, "2s", KEYS, TABLES);
        let mut running = Watermaster::start_all(&config, &IDS[..2]);
        let records = PROMISE.capacity * 10;
        let numbered = |n: u64| Outgoing::numbered(&rig.sources[n as usize % 2], n, ["one", "two"][n as usize % 2]);
        Producer::to(&broker).send_all((0..records).map(numbered));
        let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
        wait_until("each instance to admit records", DRAIN_TIMEOUT, || running.iter().all(|one| admitted(one) > 0.0));
        follower.wait_for(PROMISE.capacity * 2, DRAIN_TIMEOUT);
        running[1].freeze();
        wait_until("the other instance to claim the seat", DRAIN_TIMEOUT, || {
            running[0].metric("watermaster_group_claims_total", &[]) == Some(1.0)
        });
        running[1].thaw();
        let before = admitted(&running[1]);
        wait_until("the instance to have a part again", DRAIN_TIMEOUT, || {
            running[1].assert_running();
            running[1].metric("watermaster_group_hold_units", &[]) > Some(PROMISE.capacity as f64 / 4.0)
        });
        follower.wait_for(records, DRAIN_TIMEOUT);
        assert!(admitted(&running[1]) > before, "the instance admits nothing more");
        running.iter_mut().for_each(|instance| assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0)));
        assert_eq!(rig.read_dead_letter().len(), 0, "records are rejected");
        let target = rig.read_target();
        assert_eq!(target.len() as u64, records, "records are lost or repeated");
        let most = PROMISE.most_in_any_window(&target);
        eprintln!("the fullest window holds {most} records, the capacity is {}", PROMISE.capacity);
        assert!(most * 100 <= PROMISE.capacity * 103, "{most} records in a window");
    }
}
