//! The promise to the service, as an independent reader of the target sees it by append time.

use std::time::Duration;

use crate::rig::{DRAIN, Rig, TargetTime};
use crate::support::broker::Broker;
use crate::support::own_broker::OwnBroker;
use crate::support::producer::{Outgoing, Producer};
use crate::support::promise::Promise;
use crate::support::reader::Follower;
use crate::support::record::Identity;
use crate::support::wait::let_the_fault_last;
use crate::support::watermaster::Watermaster;

const PROMISE: Promise = Promise {
    capacity: 2_000,
    cycle: Duration::from_secs(2),
    commit_interval: Duration::from_millis(20),
    burst_percent: 1,
};
const END: Duration = Duration::from_secs(10);
const TABLES: &str = "[service.shape]\nqueue_capacity = 100000\nmax_delay = \"10m\"\nburst = 0.01";

/// A service that is flooded by three clients, and a reader behind it.
struct Flood {
    rig: Rig,
    watermaster: Watermaster,
    follower: Follower,
    records: u64,
}

impl Flood {
    /// So many cycles' worth of records wait when the program starts.
    fn start(broker: &Broker, cycles: u64) -> Flood {
        let rig = Rig::new(broker, "promise", 2, 4, TargetTime::Append);
        let records = PROMISE.capacity * cycles;
        let numbered =
            |n: u64| Outgoing::numbered(&rig.sources[n as usize % 2], n, ["one", "two", "three"][n as usize % 3]);
        Producer::to(broker).send_all((0..records).map(numbered));
        let watermaster = start(&rig);
        let follower = Follower::of(broker, &[&rig.target, &rig.dead_letter], Identity::Value);
        Flood { rig, watermaster, follower, records }
    }

    /// Waits until so many cycles' worth has come out.
    fn wait_for_cycles(&mut self, cycles: u64) {
        self.follower.wait_for(PROMISE.capacity * cycles, DRAIN);
    }

    /// Waits for the rest; nothing may be lost and the promise must have been kept.
    fn finish(mut self, kills: u64) {
        self.follower.wait_for(self.records, DRAIN);
        assert_eq!(self.watermaster.terminate(END).code(), Some(0));
        let target = self.rig.read_target();
        assert_eq!(self.rig.read_dead_letter().len(), 0, "a shaped flood that fits its queues loses nothing to them");
        let repeated = target.len() as u64 - self.records;
        eprintln!("{repeated} repeated after {kills} kills, a round is {} records", PROMISE.round());
        assert!(repeated <= kills * PROMISE.round(), "{repeated} records repeated after {kills} kills");
        PROMISE.assert_kept(&target, kills);
    }
}

fn start(rig: &Rig) -> Watermaster {
    let mut config = rig.config(rig.service(PROMISE.capacity, "2s", "client_from = [\"header:client-id\"]", TABLES));
    config.commit_interval = "20ms";
    Watermaster::start(&config)
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn holds_in_a_flood() {
    let mut flood = Flood::start(&Broker::of_this_run(), 5);
    flood.wait_for_cycles(1);
    let most = flood.watermaster.metric("watermaster_window_admitted_max_units", &[]).expect("the metric exists");
    assert!(most <= PROMISE.capacity as f64, "by decision time {most} in a window");
    flood.finish(0);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn holds_across_kills_within_a_cycle() {
    let mut flood = Flood::start(&Broker::of_this_run(), 7);
    for cycles in [2, 3] {
        flood.wait_for_cycles(cycles);
        flood.watermaster.kill();
        flood.watermaster = start(&flood.rig);
    }
    flood.finish(2);
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn holds_while_a_broker_is_dead_for_5_s() {
    let mut broker = OwnBroker::start();
    let mut flood = Flood::start(&broker, 6);
    flood.wait_for_cycles(2);
    broker.kill();
    let_the_fault_last(Duration::from_secs(5));
    broker.start_again();
    flood.finish(0);
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn holds_while_a_broker_is_frozen_for_5_s() {
    let mut broker = OwnBroker::start();
    let mut flood = Flood::start(&broker, 6);
    flood.wait_for_cycles(2);
    broker.freeze();
    let_the_fault_last(Duration::from_secs(5));
    broker.thaw();
    flood.finish(0);
}
