//! `group_protocol = "consumer"`: the broker assigns partitions member by member; the delivery guarantee is the same.

use std::time::Duration;

use crate::exactly_once::{self, STOP_TIMEOUT, finish_with, follow, numbered, rounds, wait_for_backlog};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::wait::{let_the_fault_last, wait_until};
use crate::{
    support::broker::Broker, support::config::Config, support::producer::Load, support::reader::Follower,
    support::watermaster::Watermaster,
};

fn config(rig: &Rig, capacity: u64, instance: &'static str) -> Config {
    let mut config = exactly_once::config(rig, capacity, instance);
    config.kafka.push_str("\ngroup_protocol = \"consumer\"");
    config
}

/// Two instances; the second joins while the first has a backlog.
struct Pair {
    rig: Rig,
    load: Load,
    follower: Follower,
    first: Watermaster,
    second: Watermaster,
}

impl Pair {
    fn start(prefix: &str) -> Pair {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, prefix, 2, 4, TargetTime::Create);
        let sources = rig.sources.clone();
        let load = Load::start(&broker, 2_000, move |n| numbered(&sources, n));
        let follower = follow(&broker, &rig);
        let mut first = Watermaster::start(&config(&rig, 1_000, "first"));
        wait_for_backlog(&mut first, 2_000.0);
        let mut second = Watermaster::start(&config(&rig, 1_000, "second"));
        wait_for_backlog(&mut second, 500.0);
        let rebalances = first.metric("watermaster_rebalances_total", &[]);
        assert!(rebalances.is_some_and(|count| count > 0.0), "no partition was revoked: {rebalances:?}");
        Pair { rig, load, follower, first, second }
    }

    /// Waits until this many more records are delivered.
    fn flow(&mut self, records: u64) {
        self.follower.wait_for(self.follower.seen() as u64 + records, DRAIN_TIMEOUT);
    }

    fn finish(mut self) {
        let sent = self.load.stop();
        eprintln!("first: {}\nsecond: {}", rounds(&self.first), rounds(&self.second));
        assert_eq!(self.first.terminate(STOP_TIMEOUT).code(), Some(0), "{}", self.first.log());
        assert_eq!(self.second.terminate(STOP_TIMEOUT).code(), Some(0), "{}", self.second.log());
        finish_with(&config(&self.rig, 100_000, "only"), &self.rig, &mut self.follower, sent);
    }
}

/// The broker of `scripts/kafka-node` ends a member's session after 6 s.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_join_and_a_kill_repeat_nothing() {
    let mut pair = Pair::start("kip848-kill");
    pair.first.kill();
    // The second instance owned only some partitions before the kill; now it owns all eight.
    wait_until("the survivor to own all partitions", DRAIN_TIMEOUT, || {
        pair.follower.read_on(Duration::from_millis(100));
        lagging_partitions(&pair.second) == 8
    });
    pair.first = Watermaster::start(&config(&pair.rig, 1_000, "first"));
    pair.flow(2_000);
    pair.finish();
}

/// librdkafka reports only partitions to a member of this protocol. A member without any gets no event, and must
/// not stay "joining" for ever.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn an_instance_without_partitions_is_ready_too() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "kip848-spare", 1, 1, TargetTime::Create);
    let mut instances = ["first", "second"].map(|instance| Watermaster::start(&config(&rig, 1_000, instance)));
    for instance in &mut instances {
        let replaced = instance.metric("watermaster_consumer_recreations_total", &[]);
        assert_eq!(replaced, Some(0.0), "{}", instance.log());
        assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
}

/// Counts the partitions that an instance owns.
fn lagging_partitions(watermaster: &Watermaster) -> usize {
    let (_, text) = watermaster.get("/metrics").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("watermaster_consumer_lag_records{")).count()
}

mod long {
    use super::*;

    /// The freeze outlasts session and transaction: the second instance takes over, and the first one's open round is
    /// void.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_frozen_instance_that_comes_back_repeats_nothing() {
        let mut pair = Pair::start("kip848-stop");
        pair.first.freeze();
        // The session times out after 6 s; the transaction and the coordinator's check of it after 10 s each.
        let_the_fault_last(Duration::from_secs(25));
        pair.flow(4_000);
        pair.first.thaw();
        pair.flow(4_000);
        pair.finish();
    }

    /// Kills and freezes alternate at seeded moments.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn kills_and_freezes_repeat_nothing() {
        let mut random = crate::support::generator::Random(3);
        let mut pair = Pair::start("kip848-chaos");
        for _ in 0..4 {
            let_the_fault_last(Duration::from_millis(random.below(2_000)));
            pair.first.kill();
            pair.first = Watermaster::start(&config(&pair.rig, 1_000, "first"));
            pair.second.freeze();
            let_the_fault_last(Duration::from_millis(4_000 + random.below(5_000)));
            pair.second.thaw();
            pair.flow(1_500);
        }
        pair.finish();
    }
}
