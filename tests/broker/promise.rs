//! The promise to the service, measured by an independent reader of the target by append time.

use std::time::{Duration, Instant};

use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Outgoing, Producer};
use crate::{
    support::broker::Broker, support::config::SHORT_SESSION, support::promise::Promise, support::reader::Follower,
    support::record::Identity, support::wait::wait_until, support::watermaster::Watermaster,
};

pub const PROMISE: Promise = Promise {
    capacity: 2_000,
    cycle: Duration::from_secs(2),
    commit_interval: Duration::from_millis(20),
    burst_percent: 1,
};
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);
pub const TABLES: &str = "[service.shape]\nqueue_capacity = 100000\nmax_delay = \"10m\"\nburst = 0.01";

/// A service under a flood from three clients, and a reader of its target.
struct Flood {
    rig: Rig,
    watermaster: Watermaster,
    follower: Follower,
    records: u64,
}

impl Flood {
    /// Starts the program with this many cycles' worth of records in the sources.
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

    /// Waits until this many cycles' worth of records has been delivered.
    fn wait_for_cycles(&mut self, cycles: u64) {
        self.follower.wait_for(PROMISE.capacity * cycles, DRAIN_TIMEOUT);
    }

    /// Waits for the remaining records; asserts that none is lost and that the promise was kept.
    ///
    /// Up to `open_rounds` rounds may be appended but not committed: one for each kill or loss of the broker.
    fn finish(mut self, kills: u64, open_rounds: u64) {
        self.follower.wait_for(self.records, DRAIN_TIMEOUT);
        assert_eq!(self.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
        let target = self.rig.read_target();
        assert_eq!(self.rig.read_dead_letter().len(), 0, "no record is rejected, as the backlogs fit their bounds");
        let repeated = target.len() as u64 - self.records;
        eprintln!("{repeated} records repeated; {open_rounds} rounds of {} records are allowed", PROMISE.round());
        assert!(repeated <= open_rounds * PROMISE.round(), "{repeated} records repeated");
        PROMISE.assert_kept(&target, kills);
    }
}

fn start(rig: &Rig) -> Watermaster {
    let mut config = rig.config(rig.service(PROMISE.capacity, "2s", "client_from = [\"header:client-id\"]", TABLES));
    config.commit_interval = "20ms";
    config.kafka.push_str(SHORT_SESSION);
    Watermaster::start(&config)
}

/// The log of a new group knows nothing of what an instance admitted before, but its commits do.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_group_that_begins_remembers_recent_admissions() {
    restart_within_a_cycle(["instance", "group"]);
}

/// With a burst as large as the capacity, the whole capacity is admitted at once. A new instance that did not restore
/// the recent admissions would admit as much again. `scopes` are those before and after the restart.
fn restart_within_a_cycle(scopes: [&str; 2]) {
    const CYCLE: Duration = Duration::from_secs(20);
    let capacity = PROMISE.capacity;
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "memory", 2, 4, TargetTime::Append);
    let numbered = |n: u64| Outgoing::numbered(&rig.sources[n as usize % 2], n, ["one", "two"][n as usize % 2]);
    Producer::to(&broker).send_all((0..2 * capacity).map(numbered));
    let tables = TABLES.replace("burst = 0.01", "burst = 1.0");
    let start = |scope| {
        let keys = format!("client_from = [\"header:client-id\"]\nscope = {scope:?}");
        let mut config = rig.config(rig.service(capacity, "20s", &keys, &tables));
        // The group waits for the dead member for 6 s, which is well within a cycle.
        config.kafka.push_str(SHORT_SESSION);
        Watermaster::start(&config)
    };
    let mut watermaster = start(scopes[0]);
    wait_until("a full window to be committed", CYCLE, || {
        let admitted = watermaster.metric("watermaster_records_total", &["decision=\"admitted\""]);
        admitted.is_some_and(|records| records >= capacity as f64)
    });
    let filled = Instant::now();
    watermaster.kill();
    watermaster = start(scopes[1]);
    wait_until("the new instance to delay or to admit records", CYCLE, || {
        let some = |name, labels| watermaster.metric(name, labels).is_some_and(|records| records > 0.0);
        some("watermaster_backlog_records", &[]) || some("watermaster_records_total", &["decision=\"admitted\""])
    });
    let back = filled.elapsed();
    eprintln!("the new instance works after {:.1} s", back.as_secs_f32());
    assert!(back < CYCLE * 3 / 4, "the restart took {back:?}, too long for the cycle of {CYCLE:?}");
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    follower.wait_for(2 * capacity, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0));

    let target = rig.read_target();
    // No round was open at the kill. The measured window is one second shorter than the cycle, because rounds of the
    // first burst may have been appended up to a second after their decisions.
    let promise = Promise { capacity, cycle: CYCLE - Duration::from_secs(1), ..PROMISE };
    let most = promise.most_in_any_window(&target);
    assert_eq!(most, capacity, "the window held {most} records, of which {capacity} were admitted before the kill");
    assert_eq!(target.len() as u64, 2 * capacity, "records are lost or repeated");
}

/// The long tests of this file; `scripts/chaos` combines these faults with dying instances.
mod long {
    use super::*;
    use crate::{support::own_broker::OwnBroker, support::wait::let_the_fault_last};

    #[test]
    #[ignore = "takes a Kafka of its own: scripts/test --long"]
    fn holds_while_a_broker_is_dead_for_5_s() {
        let mut broker = OwnBroker::start();
        let mut flood = Flood::start(&broker, 6);
        flood.wait_for_cycles(2);
        broker.kill();
        let_the_fault_last(Duration::from_secs(5));
        broker.start_again();
        flood.finish(0, 1);
    }

    #[test]
    #[ignore = "takes a Kafka of its own: scripts/test --long"]
    fn holds_while_a_broker_is_frozen_for_5_s() {
        let mut broker = OwnBroker::start();
        let mut flood = Flood::start(&broker, 6);
        flood.wait_for_cycles(2);
        broker.freeze();
        let_the_fault_last(Duration::from_secs(5));
        broker.thaw();
        flood.finish(0, 1);
    }

    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn holds_across_kills() {
        let mut flood = Flood::start(&Broker::of_this_run(), 7);
        for cycles in [2, 3] {
            flood.wait_for_cycles(cycles);
            flood.watermaster.kill();
            flood.watermaster = start(&flood.rig);
        }
        flood.finish(2, 2);
    }

    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn holds_in_a_flood() {
        let mut flood = Flood::start(&Broker::of_this_run(), 5);
        flood.wait_for_cycles(1);
        let most = flood.watermaster.metric("watermaster_window_admitted_max_units", &[]).expect("the metric exists");
        assert!(most <= PROMISE.capacity as f64, "{most} records in a window by decision time");
        flood.finish(0, 0);
    }

    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_restart_within_a_cycle_remembers_recent_admissions() {
        restart_within_a_cycle(["group"; 2]);
    }
}
